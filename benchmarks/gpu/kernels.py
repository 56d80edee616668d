# SPDX-License-Identifier: MIT
"""Placing and packing along inner dims, beside one device copy, torch.cat and a split into copies."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.gpu.timing import MIB, Body, in_turns

WORLD = 8
Move = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True)
class Scene:
    """A gathered tensor of chunks, in which every rank has `sizes[rank]` rows of `row` elements."""

    name: str
    dtype: torch.dtype
    row: int
    sizes: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return self.row * self.dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        return self.row_bytes * sum(self.sizes)

    @property
    def is_aligned(self) -> bool:
        return all(size * self.row_bytes % 16 == 0 for size in self.sizes)


F32, BF16 = torch.float32, torch.bfloat16
SCENES = (
    Scene("last dim, float32", F32, 1, (20, 4, 48, 12, 28, 36, 8, 100)),
    Scene("last dim, bfloat16", BF16, 1, (160, 32, 384, 96, 224, 288, 64, 800)),
    Scene("dim 1, float32", F32, 64, (20, 4, 48, 12, 28, 36, 8, 100)),
    Scene("dim 1, bfloat16", BF16, 2048, (20, 4, 48, 12, 28, 36, 8, 100)),
    Scene("last dim, float32", F32, 1, (21, 5, 47, 11, 29, 37, 7, 99)),
    Scene("last dim, float32", F32, 1, (21, 5, 47, 11, 29, 37, 7, 100)),
    Scene("last dim, bfloat16", BF16, 1, (41, 9, 95, 23, 57, 73, 15, 199)),
    Scene("last dim, bfloat16", BF16, 1, (41, 9, 95, 23, 57, 73, 15, 200)),
    Scene("last dim, bfloat16", BF16, 1, (319, 65, 767, 193, 447, 577, 127, 1601)),
    Scene("last dim, one column", BF16, 1, (1, 48, 96, 24, 57, 73, 14, 199)),
    Scene("dim 1, float32", F32, 33, (21, 5, 47, 11, 29, 37, 7, 99)),
    Scene("dim 1, bfloat16", BF16, 33, (21, 5, 47, 11, 29, 37, 7, 99)),
    Scene("dim 1, bfloat16", BF16, 2049, (20, 4, 48, 12, 28, 36, 8, 100)),
)


class Kernels:
    """The functions of benchmarks/cuda/place.cu."""

    def __init__(self, library: str) -> None:
        loaded = ctypes.CDLL(library)
        self._place, self._pack = loaded.sheaf_place, loaded.sheaf_pack

    def place(self, scene: Scene, outer: int) -> Move:
        return self._bound(self._place, scene, outer)

    def pack(self, scene: Scene, outer: int) -> Move:
        return self._bound(self._pack, scene, outer)

    @staticmethod
    def _bound(function: Callable[..., int], scene: Scene, outer: int) -> Move:
        sizes = (ctypes.c_int64 * len(scene.sizes))(*scene.sizes)
        head = (ctypes.c_int64(outer), ctypes.c_int64(scene.row_bytes), sizes, ctypes.c_int(len(scene.sizes)))

        def move(source: torch.Tensor, to: torch.Tensor) -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            if function(*head, ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(to.data_ptr()), stream):
                raise SystemExit("a kernel failed")

        return move


def measure(kernels: Kernels, scene: Scene, mib: int, rounds: int) -> str:
    outer = mib * MIB // scene.chunk_bytes
    whole = torch.randn(outer, sum(scene.sizes), scene.row, device="cuda").to(scene.dtype)
    packed, again = torch.empty_like(whole).flatten(), torch.empty_like(whole)
    place, pack = kernels.place(scene, outer), kernels.pack(scene, outer)
    pack(whole, packed)
    widths = [outer * size * scene.row for size in scene.sizes]
    blocks = [block.view(outer, size, scene.row) for block, size in zip(packed.split(widths), scene.sizes, strict=True)]
    for block, truth in zip(blocks, whole.split(scene.sizes, 1), strict=True):
        assert torch.equal(block, truth), "packed wrongly"
    place(packed, again)
    assert torch.equal(again, whole), "placed wrongly"

    def split() -> None:
        for block, part in zip(blocks, whole.split(scene.sizes, 1), strict=True):
            block.copy_(part)

    ways: dict[str, Body] = {
        "copy": lambda: again.copy_(whole),
        "place": lambda: place(packed, again),
        "cat": lambda: torch.cat(blocks, 1, out=again),
        "pack": lambda: pack(whole, packed),
        "split": split,
    }
    ms = in_turns(ways, "cuda", rounds, 20)
    share = {name: f"{100 * ms['copy'] / ms[name]:.0f} %" for name in ways}
    cells = [scene.name, f"{scene.chunk_bytes} B", "yes" if scene.is_aligned else "no", f"{mib} MiB"]
    cells += [f"{2e-6 * whole.nbytes / ms['copy']:.0f}", *(share[name] for name in ("place", "cat", "pack", "split"))]
    return f"| {' | '.join(cells)} |"


def table(library: str, mibs: tuple[int, ...] = (64, 512), rounds: int = 15) -> list[str]:
    kernels = Kernels(library)
    head = ("case", "result row", "all multiples of 16 B", "N", "copy, GB/s", "place", "torch.cat", "pack", "W copies")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    return lines + [measure(kernels, scene, mib, rounds) for mib in mibs for scene in SCENES]
