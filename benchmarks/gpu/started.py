# SPDX-License-Identifier: MIT
"""What starting a call costs where a peer comes late: the start must not wait for it, `wait()` does."""

import time

import torch
import torch.distributed as dist

import sheaf
from benchmarks.gpu.ranks import lines_of
from benchmarks.gpu.timing import wait
from benchmarks.started import LATE_S


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
                time.sleep(LATE_S if rank == world - 1 else 0)
                begin = time.perf_counter()
                handle = sheaf.all_gather(x, sizes=known, async_op=True)
                started = time.perf_counter() - begin
                got = handle.wait().tensor
                wait(device)
                done = time.perf_counter() - begin if rank == 0 else 0.0
                slowest = torch.maximum(slowest, torch.tensor([started, done], dtype=torch.float64) * 1e3)
                assert torch.equal(got, truth), "gathered wrongly"
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if rank == 0:
                times = " | ".join(f"{ms:.2f}" for ms in slowest.tolist())
                print(f"| {kib} KiB | {'given' if known else 'learned'} | {times} |", flush=True)


def table(device: str, world: int, kibs: list[int], rounds: int) -> list[str]:
    head = "| N | sizes | start, ms | until the result is there, ms |"
    return [head, "| --- " * 4 + "|", *lines_of("started", device, world, kibs, rounds)]
