# SPDX-License-Identifier: MIT
"""Single-process truths: every rank can compute every rank's data, and what one process would make of all of it."""

from collections.abc import Sequence

import torch

MODES = ["sum", "mean", "own"]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX, *FLOAT8]

OTHER = (3, 2)
"""The extents of the other dims of a block."""


def patterns(world: int) -> list[list[int]]:
    """Rows a rank: ragged, even, one rank empty, none with any, one rank holding everything."""
    ragged = [(3 * r + 2) % 7 + 1 for r in range(world)]
    empty = [0 if r == world // 2 else r + 1 for r in range(world)]
    heavy = [9 if r == world - 1 else 0 for r in range(world)]
    return [ragged, [2] * world, empty, [0] * world, heavy]


def values(seed: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Values far from zero, so that zeros in their place cannot pass."""
    source = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(list(shape), generator=source) > 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(1, 100, list(shape), generator=source).to(dtype)
    real = torch.rand(list(shape), generator=source, dtype=torch.float64) * 6 + 2
    if dtype.is_complex:
        return torch.complex(real, torch.rand(list(shape), generator=source, dtype=torch.float64) * 6 + 2).to(dtype)
    return real.to(torch.float32).to(dtype) if dtype in FLOAT8 else real.to(dtype)


def shape_with(rows: int, dim: int) -> list[int]:
    shape = list(OTHER)
    shape.insert(dim if dim >= 0 else len(shape) + 1 + dim, rows)
    return shape


def blocks(sizes: Sequence[int], dim: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> list[torch.Tensor]:
    return [values(100 * seed + rank, shape_with(rows, dim), dtype) for rank, rows in enumerate(sizes)]


def rank_sum(tensors: Sequence[torch.Tensor], *, mean: bool = False) -> torch.Tensor:
    """In rank order from rank 0's value; narrow types in float32, rounded once."""
    kind = tensors[0].dtype
    narrow = kind in (torch.float16, torch.bfloat16, *FLOAT8)
    wide = [tensor.to(torch.float32) if narrow else tensor for tensor in tensors]
    total = wide[0].clone()
    for tensor in wide[1:]:
        total = total + tensor
    if mean and kind.is_complex:
        return torch.view_as_complex(torch.view_as_real(total) / len(tensors))
    return (total / len(tensors) if mean else total).to(kind)


def own_rows(whole: torch.Tensor, sizes: Sequence[int], rank: int, dim: int) -> torch.Tensor:
    return whole.narrow(dim, sum(sizes[:rank]), sizes[rank])


def same(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Bit for bit, of any dtype."""
    assert got.dtype == expected.dtype, f"{what}: dtype {got.dtype}, expected {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    left, right = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (got, expected))
    assert torch.equal(left, right), f"{what}: got\n{got}\nexpected\n{expected}"


def expected_gradient(
    mode: str, upstream: Sequence[torch.Tensor], sizes: Sequence[int], rank: int, dim: int
) -> torch.Tensor:
    """What `rank` receives of the ranks' upstream gradients."""
    if mode == "own":
        return own_rows(upstream[rank], sizes, rank, dim)
    return own_rows(rank_sum(upstream, mean=mode == "mean"), sizes, rank, dim)
