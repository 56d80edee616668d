# SPDX-License-Identifier: MIT
"""Eight tensors of N bytes each, gathered in one call, in eight, and one of them by itself; sizes are learned."""

from collections.abc import Callable
from itertools import cycle
from typing import TypeAlias

import torch
import torch.distributed as dist

from benchmarks.cases import Case
from benchmarks.engine import Candidate, Workload
from benchmarks.groups import OURS, OURS_C10D, Groups
from benchmarks.must_show import EACH, ONE_C10D

TENSORS = 8
Kept: TypeAlias = tuple[int, torch.Tensor]
"""Of each call one tensor in turn, and which: all of them would take up memory that a program has free by then."""


def workload(case: Case, rank: int, groups: Groups) -> Workload:
    expected = torch.arange(TENSORS * (case.nbytes // 4), dtype=torch.float32).view(TENSORS, *case.shape)
    blocks = [one.split(case.sizes)[rank].clone() for one in expected]

    def refresh() -> None:
        expected.add_(1)
        for block in blocks:
            block.add_(1)

    calls = {
        OURS: together(blocks, groups.chosen),
        OURS_C10D: together(blocks, groups.c10d),
        EACH: one_by_one(blocks, groups.chosen),
        "eight calls, c10d": one_by_one(blocks, groups.c10d),
        "one tensor": one_by_one(blocks[:1], groups.chosen),
        ONE_C10D: one_by_one(blocks[:1], groups.c10d),
    }
    candidates = [Candidate(name, call, is_right=is_right) for name, call in calls.items()]
    return Workload(expected, candidates, refresh, case.calls)


def is_right(kept: Kept, expected: torch.Tensor) -> bool:
    index, tensor = kept
    return torch.equal(tensor, expected[index])


def together(blocks: list[torch.Tensor], group: dist.ProcessGroup) -> Callable[[], Kept]:
    import sheaf

    turns = cycle(range(len(blocks)))
    return lambda: (index := next(turns), sheaf.all_gather_coalesced(blocks, group=group)[index].tensor)


def one_by_one(blocks: list[torch.Tensor], group: dist.ProcessGroup) -> Callable[[], Kept]:
    import sheaf

    turns = cycle(range(len(blocks)))
    return lambda: (index := next(turns), [sheaf.all_gather(block, group=group) for block in blocks][index].tensor)
