# SPDX-License-Identifier: MIT
"""What starting a call costs where a peer comes late: the start must not wait for it, `wait()` does."""

from functools import partial

import torch
import torch.distributed as dist

import sheaf
from benchmarks.gpu.ranks import lines_of
from benchmarks.gpu.timing import wait
from benchmarks.started import with_late_peer


def rank_body(device: str, kibs: list[int], rounds: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for kib in kibs:
        rows = kib * 256 // world
        for known in (None, [rows] * world):
            x = torch.full((rows,), float(rank), device=device)
            truth = torch.arange(float(world), device=device).repeat_interleave(rows)
            sheaf.all_gather(x, sizes=known, async_op=True).wait()
            slowest = torch.zeros(2, dtype=torch.float64)
            for _ in range(rounds):
                wait(device)
                dist.barrier()
                start = partial(sheaf.all_gather, x, sizes=known, async_op=True)
                got, *times = with_late_peer(start, rank, world, partial(wait, device))
                slowest = torch.maximum(slowest, torch.tensor(times, dtype=torch.float64))
                assert torch.equal(got, truth), "gathered wrongly"
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if rank == 0:
                cells = " | ".join(f"{ms:.2f}" for ms in slowest.tolist())
                print(f"| {kib} KiB | {'given' if known else 'learned'} | {cells} |", flush=True)


def table(device: str, world: int, kibs: list[int], rounds: int) -> list[str]:
    head = "| N | sizes | start, ms | until the result is there, ms |"
    return [head, "| --- " * 4 + "|", *lines_of("started", device, world, kibs, rounds)]
