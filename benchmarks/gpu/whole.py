# SPDX-License-Identifier: MIT
"""Whole gathers of ranks that share one GPU, beside the padded way."""

import torch
import torch.distributed as dist

import sheaf
from benchmarks.gpu.ranks import lines_of
from benchmarks.gpu.timing import Body, in_turns, sizes_of
from benchmarks.padded import padded_gather

ROW = 1024
"""Elements in a row, at most."""


def rank_body(device: str, kibs: list[int], rounds: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for kib in kibs:
        for pattern in ("even", "skew 2", "heavy"):
            row = min(ROW, max(1, kib * 1024 // (4 * 4 * world)))
            sizes = sizes_of(pattern, kib * 1024 // (4 * row), world)
            x = torch.rand(sizes[rank], row, device=device)
            upstream = torch.rand(sum(sizes), row, device=device)
            truth = padded_gather(x)
            assert torch.equal(sheaf.all_gather(x).tensor, truth), "the ways differ"
            ways: dict[str, Body] = {
                "padded": lambda x=x: padded_gather(x),
                "learned": lambda x=x: sheaf.all_gather(x),
                "given": lambda x=x, sizes=sizes: sheaf.all_gather(x, sizes=sizes),
                "all-reduce": lambda upstream=upstream: dist.all_reduce(upstream.clone()),
                "scatter": lambda upstream=upstream, sizes=sizes: sheaf.reduce_scatter(upstream, sizes),
            }
            ms = in_turns(ways, device, rounds, 1 if kib > 1024 else 10, dist.barrier)
            if rank == 0:
                cells = [f"{ms['padded']:.2f}", *(f"{ms['padded'] / ms[name]:.2f}" for name in ("learned", "given"))]
                cells += [f"{ms['all-reduce']:.2f}", f"{ms['all-reduce'] / ms['scatter']:.2f}"]
                print(f"| {kib} KiB | {pattern} | {' | '.join(cells)} |", flush=True)


def table(device: str, world: int, kibs: list[int], rounds: int) -> list[str]:
    head = "| N | pattern | padded way, ms | sheaf, learned | sheaf, given | all-reduce, ms | sheaf's backward |"
    return [head, "| --- " * 7 + "|", *lines_of("whole", device, world, kibs, rounds)]
