# SPDX-License-Identifier: MIT
"""Eight tensors of N bytes each, gathered in one call, in eight, and one of them by itself; sizes are learned."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.cases import Case
from benchmarks.engine import Candidate, Workload
from benchmarks.groups import OURS, OURS_C10D, Groups
from benchmarks.must_show import EACH, ONE_C10D

TENSORS = 8


def workload(case: Case, rank: int, groups: Groups) -> Workload:
    expected = torch.arange(case.nbytes // 4, dtype=torch.float32).view(case.shape)
    blocks = [expected.split(case.sizes)[rank].clone() for _ in range(TENSORS)]

    def refresh() -> None:
        expected.add_(1)
        for block in blocks:
            block.add_(1)

    return Workload(
        expected,
        [
            Candidate(OURS, together(blocks, groups.chosen)),
            Candidate(OURS_C10D, together(blocks, groups.c10d)),
            Candidate(EACH, one_by_one(blocks, groups.chosen)),
            Candidate("eight calls, c10d", one_by_one(blocks, groups.c10d)),
            Candidate("one tensor", one_by_one(blocks[:1], groups.chosen)),
            Candidate(ONE_C10D, one_by_one(blocks[:1], groups.c10d)),
        ],
        refresh,
        case.calls,
    )


def together(blocks: list[torch.Tensor], group: dist.ProcessGroup) -> Callable[[], torch.Tensor]:
    import sheaf

    return lambda: sheaf.all_gather_coalesced(blocks, group=group)[-1].tensor


def one_by_one(blocks: list[torch.Tensor], group: dist.ProcessGroup) -> Callable[[], torch.Tensor]:
    import sheaf

    return lambda: [sheaf.all_gather(block, group=group) for block in blocks][-1].tensor
