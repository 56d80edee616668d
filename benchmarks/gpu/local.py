# SPDX-License-Identifier: MIT
"""What a rank does on its device beside the collective, in one process with the blocks of eight ranks."""

import torch

from benchmarks.gpu.kernels import WORLD, Kernels, Scene
from benchmarks.gpu.timing import MIB, Body, in_turns, sizes_of
from benchmarks.padded import padded_to, without_padding

ROW = 1024
"""Elements of a row, or chunks of an inner dim."""


def padded_local(landed: torch.Tensor, own: torch.Tensor, sizes: list[int], dim: int) -> torch.Tensor:
    """What the padded way does on the device beside the collective's kernel; sizes being known. That leaves all blocks
    in one memory of torch's, and its all_gather copies each from there to the tensor that was asked for."""
    padded_to(own, max(sizes), dim)
    blocks = [torch.empty_like(block).copy_(block) for block in landed]
    return without_padding(blocks, sizes, dim)


def sheaf_work(
    kernels: Kernels | None, blocks: list[torch.Tensor], sizes: list[int], dim: int, whole: torch.Tensor
) -> Body | None:
    """What Sheaf does: along dim 0 the collective puts the others' blocks in their places, and the own one is copied;
    along others all are placed."""
    if dim == 0:
        own = blocks[0].flatten()
        to = whole.view(-1)[: own.numel()]
        return lambda: to.copy_(own)
    if not kernels:
        return None
    packed = torch.cat([block.flatten() for block in blocks])
    place = kernels.place(Scene("", whole.dtype, 1, tuple(sizes)), ROW)
    return lambda: place(packed, whole)


def measure(kernels: Kernels | None, device: str, mib: int, pattern: str, dim: int, rounds: int) -> str:
    sizes = sizes_of(pattern, mib * MIB // (4 * ROW), WORLD)
    blocks = [torch.rand((rows, ROW) if dim == 0 else (ROW, rows), device=device) for rows in sizes]
    landed = torch.stack([padded_to(block, max(sizes), dim) for block in blocks])
    whole, again = torch.cat(blocks, dim), torch.empty_like(torch.cat(blocks, dim))
    ways: dict[str, Body] = {
        "copy": lambda: again.copy_(whole),
        "padded": lambda: padded_local(landed, blocks[0], sizes, dim),
    }
    if work := sheaf_work(kernels, blocks, sizes, dim, again):
        work()
        assert dim == 0 or torch.equal(again, whole), "placed wrongly"
        ways["sheaf"] = work
    ms = in_turns(ways, device, rounds, 10)
    assert torch.equal(padded_local(landed, blocks[0], sizes, dim), whole), "the padded way is wrong"
    ratio = f"{ms['padded'] / ms['sheaf']:.1f}x" if "sheaf" in ms else "not measured"
    times = [f"{ms[name]:.3f}" if name in ms else "" for name in ("copy", "padded", "sheaf")]
    return f"| {mib} MiB | {pattern} | {dim} | {' | '.join(times)} | {ratio} |"


def table(kernels: Kernels | None, device: str, mibs: list[int], rounds: int) -> list[str]:
    lines = [
        "| N | pattern | dim | one copy of N, ms | padded way, ms | Sheaf, ms | Sheaf is faster |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mib in mibs:
        for dim in (0, 1):
            lines += [measure(kernels, device, mib, pattern, dim, rounds) for pattern in ("skew 2", "skew 4", "heavy")]
    return lines
