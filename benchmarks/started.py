# SPDX-License-Identifier: MIT
"""What starting a call costs where a peer comes late: the start must not wait for it, `wait()` does."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.cases import Case
from benchmarks.groups import OURS, OURS_C10D, Groups
from benchmarks.launch import meet
from benchmarks.results import Result, summary

LATE_S = 1.0
"""How much later than the others the last rank comes."""
AND_WAIT = " and wait"


def with_late_peer(
    start: Callable[[], Any], rank: int, world: int, settle: Callable[[], object] = lambda: None
) -> tuple[torch.Tensor, float, float]:
    """What was gathered, and milliseconds: to start, and on rank 0, which is never late, until `settle` returns."""
    time.sleep(LATE_S if rank == world - 1 else 0)
    begin = time.perf_counter()
    handle = start()
    started = time.perf_counter() - begin
    result = handle.wait().tensor
    settle()
    done = time.perf_counter() - begin if rank == 0 else 0.0
    return result, started * 1e3, done * 1e3


def measure(case: Case, rank: int, groups: Groups, rounds: int) -> Result:
    """Called by every rank: the slowest rank's time to start, and until rank 0, which is never late, has its result."""
    import sheaf

    ways = {OURS: groups.chosen, OURS_C10D: groups.c10d}
    names = [name + how for name in ways for how in ("", AND_WAIT)]
    own, wrong = torch.zeros(rounds + 1, len(names), dtype=torch.float64), torch.zeros(len(names), dtype=torch.int64)
    expected = torch.arange(case.nbytes // 4, dtype=torch.float32).view(case.shape)
    for turn in range(rounds + 1):  # the first one warms up
        for index, group in enumerate(ways.values()):
            expected += 1
            x = expected.split(case.sizes)[rank].clone()
            meet()
            start = partial(sheaf.all_gather, x, group=group, async_op=True)
            result, own[turn, 2 * index], own[turn, 2 * index + 1] = with_late_peer(start, rank, case.world)
            wrong[2 * index : 2 * index + 2] += not torch.equal(result, expected)
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    dist.all_reduce(wrong)
    times: list[list[float]] = own[1:].t().tolist()
    found = {name: summary(*column) for name, *column in zip(names, times, wrong.tolist(), strict=True)}
    return Result(case, rounds, timings=found)
