# SPDX-License-Identifier: MIT
"""Whole gathers of ranks that share one GPU, beside the padded way."""

import itertools

import torch
import torch.distributed as dist

import sheaf
from benchmarks.gpu.ranks import lines_of, slowest_in_turns
from benchmarks.gpu.timing import Body, calls_of, sizes_of
from benchmarks.padded import padded_gather

ROW = 1024
"""Elements in a row, at most."""


def rank_body(device: str, kibs: list[int], rounds: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for kib, dim, pattern in itertools.product(kibs, (0, 1), ("even", "skew 2", "heavy")):
        row = min(ROW, max(1, kib * 1024 // (4 * 4 * world)))
        sizes = sizes_of(pattern, kib * 1024 // (4 * row), world)
        x = torch.rand((sizes[rank], row) if dim == 0 else (row, sizes[rank]), device=device)
        upstream = torch.rand((sum(sizes), row) if dim == 0 else (row, sum(sizes)), device=device)
        ms = slowest_in_turns(ways_of(x, upstream, sizes, dim), device, rounds, calls_of(kib))
        if rank == 0:
            cells = [f"{ms['padded']:.2f}", *(f"{ms['padded'] / ms[name]:.2f}" for name in ("learned", "given"))]
            cells += [f"{ms['all-reduce']:.2f}", f"{ms['all-reduce'] / ms['scatter']:.2f}"]
            print(f"| {kib} KiB | {dim} | {pattern} | {' | '.join(cells)} |", flush=True)


def ways_of(x: torch.Tensor, upstream: torch.Tensor, sizes: list[int], dim: int) -> dict[str, Body]:
    assert torch.equal(sheaf.all_gather(x, dim).tensor, padded_gather(x, dim)), "the ways differ"
    return {
        "padded": lambda: padded_gather(x, dim),
        "learned": lambda: sheaf.all_gather(x, dim),
        "given": lambda: sheaf.all_gather(x, dim, sizes=sizes),
        "all-reduce": lambda: dist.all_reduce(upstream.clone()),
        "scatter": lambda: sheaf.reduce_scatter(upstream, sizes, dim),
    }


def table(device: str, world: int, kibs: list[int], rounds: int) -> list[str]:
    head = "| N | dim | pattern | padded way, ms | sheaf, learned | sheaf, given | all-reduce, ms | sheaf's backward |"
    return [head, "| --- " * 8 + "|", *lines_of("whole", device, world, kibs, rounds)]
