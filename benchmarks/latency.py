# SPDX-License-Identifier: MIT
"""What a small call costs above the dispatcher: the op against one of the same signature that does nothing.

Both are called many times in a row, block by block in turn, without gradients and with the call recorded for one.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.cases import Case
from benchmarks.launch import meet
from benchmarks.results import Result, summary

NOOP, RECORDED = "no-op", ", recorded"
Op = Callable[[torch.Tensor, int, int, str, str], tuple[torch.Tensor, torch.Tensor]]


def library() -> Path:
    """Of the no-op, in the build tree that Sheaf's own library lies in."""
    import sheaf

    return sheaf.LIBRARY.path.parent / "benchmarks" / "libsheaf_noop.so"


def measure(case: Case, rank: int, group: dist.ProcessGroup, blocks: tuple[int, int]) -> Result:
    """Called by every rank: `blocks` blocks of so many calls; a block counts as its slowest rank's time a call."""
    torch.ops.load_library(str(library()))
    ops: dict[str, Any] = {"sheaf": torch.ops.sheaf.all_gather, NOOP: torch.ops.sheaf_bench.noop}
    expected = torch.arange(case.nbytes // 4, dtype=torch.float32).view(case.shape)
    count, calls = blocks
    names = [name + how for how in ("", RECORDED) for name in ops]
    own, wrong = torch.zeros(count + 1, len(names), dtype=torch.float64), torch.zeros(len(names), dtype=torch.int64)
    for block in range(count + 1):  # the first one warms up
        for index, name in enumerate(names):
            expected += 1
            recorded = name.endswith(RECORDED)
            x = expected.split(case.sizes)[rank].clone().requires_grad_(recorded)
            op = ops[name.removesuffix(RECORDED)]
            own[block, index], result = time_block(op, x, group, calls)
            right = torch.equal(result, expected) or (op is ops[NOOP] and result.shape == expected.shape)
            wrong[index] += not (right and result.requires_grad == recorded)
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    dist.all_reduce(wrong)
    times: list[list[float]] = own[1:].t().tolist()
    found = {name: summary(*column) for name, *column in zip(names, times, wrong.tolist(), strict=True)}
    return Result(case, count, timings=found)


def time_block(op: Op, x: torch.Tensor, group: dist.ProcessGroup, calls: int) -> tuple[float, torch.Tensor]:
    """Milliseconds a call, and the last result."""
    world, name = dist.get_world_size(group), group.group_name
    meet()
    begin = time.perf_counter_ns()
    for _ in range(calls):
        result, _sizes = op(x, 0, world, "sum", name)
    return (time.perf_counter_ns() - begin) / calls / 1e6, result
