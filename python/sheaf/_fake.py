# SPDX-License-Identifier: MIT
"""The ops' shapes without their data, for compilers. None of them needs a process group."""

from collections.abc import Sequence

import torch
from torch.library import get_ctx, register_fake


def _with_rows(x: torch.Tensor, dim: int, rows: int | torch.SymInt) -> torch.Tensor:
    shape: list[int | torch.SymInt] = list(x.shape)
    shape[dim] = rows
    return x.new_empty(shape)


def _sizes(world: int) -> torch.Tensor:
    return torch.empty(world, dtype=torch.int64, device="cpu")


def _sizes_of_each(x: Sequence[torch.Tensor], world: int) -> torch.Tensor:
    return torch.empty(len(x), world, dtype=torch.int64, device="cpu")


def _all_gather(
    x: torch.Tensor, dim: int, world: int, grad: str, group: str, *, timeout: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    return _with_rows(x, dim, get_ctx().new_dynamic_size()), _sizes(world)


def _all_gather_sized(
    x: torch.Tensor,
    sizes: torch.Tensor,
    total: int,
    dim: int,
    world: int,
    mode: str,
    group: str,
    *,
    grad: str | None = None,
    timeout: float | None = None,
    origin: int = 0,
    follows: int = 0,
) -> torch.Tensor:
    return _with_rows(x, dim, total)


def _reduce_scatter_sized(
    y: torch.Tensor,
    sizes: torch.Tensor,
    own: int,
    dim: int,
    world: int,
    mode: str,
    group: str,
    *,
    timeout: float | None = None,
    origin: int = 0,
) -> torch.Tensor:
    return _with_rows(y, dim, own)


def _gather_sizes(
    x: torch.Tensor,
    dim: int,
    world: int,
    group: str,
    *,
    timeout: float | None = None,
    grad: str = "sum",
    follows: int = 0,
) -> torch.Tensor:
    return _sizes(world)


def _all_gather_coalesced(
    x: Sequence[torch.Tensor],
    sizes: torch.Tensor | None,
    dim: Sequence[int],
    world: int,
    grad: Sequence[str],
    group: str,
    *,
    timeout: float | None = None,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    dims = list(dim) * len(x) if len(dim) == 1 else dim
    gathered = [_with_rows(one, at, get_ctx().new_dynamic_size()) for one, at in zip(x, dims, strict=True)]
    return gathered, [_sizes(world) for _ in x]


def _all_gather_coalesced_sized(
    x: Sequence[torch.Tensor],
    sizes: torch.Tensor,
    total: Sequence[int],
    dim: Sequence[int],
    world: int,
    mode: Sequence[str],
    group: str,
    grad: Sequence[str],
    *,
    timeout: float | None = None,
    origin: int = 0,
) -> list[torch.Tensor]:
    return [_with_rows(*one) for one in zip(x, dim, total, strict=True)]


def _reduce_scatter_coalesced_sized(
    y: Sequence[torch.Tensor],
    sizes: torch.Tensor,
    own: Sequence[int],
    dim: Sequence[int],
    world: int,
    mode: Sequence[str],
    group: str,
    *,
    timeout: float | None = None,
    origin: int = 0,
) -> list[torch.Tensor]:
    return [_with_rows(*one) for one in zip(y, dim, own, strict=True)]


def _gather_sizes_coalesced(
    x: Sequence[torch.Tensor],
    dim: Sequence[int],
    world: int,
    group: str,
    *,
    timeout: float | None = None,
    follows: int = 0,
) -> torch.Tensor:
    return _sizes_of_each(x, world)


def _numbered(sizes: torch.Tensor) -> torch.Tensor:
    rows, *others = sizes.shape
    return sizes.new_empty([rows + 1, *others])


def _prepare_valid(
    x: torch.Tensor, dim: int, world: int, grad: str, group: str, look: bool, *, timeout: float | None = None
) -> torch.Tensor:
    return _sizes(world)


def _clamped(given: torch.Tensor, capacity: int, group: str) -> torch.Tensor:
    return given.new_empty(given.shape)


def _moved(x: torch.Tensor, sizes: torch.Tensor, dim: int) -> torch.Tensor:
    return x.new_empty(x.shape)


def _alone(
    x: torch.Tensor, sizes: torch.Tensor | None, dim: int, op: str, mode: str, *, timeout: float | None = None
) -> torch.Tensor:
    return _sizes(1)


def register() -> None:
    register_fake("sheaf::all_gather", _all_gather)
    register_fake("sheaf::all_gather_sized", _all_gather_sized)
    register_fake("sheaf::reduce_scatter_sized", _reduce_scatter_sized)
    register_fake("sheaf::gather_sizes", _gather_sizes)
    register_fake("sheaf::all_gather_coalesced", _all_gather_coalesced)
    register_fake("sheaf::all_gather_coalesced_sized", _all_gather_coalesced_sized)
    register_fake("sheaf::reduce_scatter_coalesced_sized", _reduce_scatter_coalesced_sized)
    register_fake("sheaf::gather_sizes_coalesced", _gather_sizes_coalesced)
    register_fake("sheaf::numbered", _numbered)
    register_fake("sheaf::prepare_valid", _prepare_valid)
    register_fake("sheaf::clamped", _clamped)
    register_fake("sheaf::compact", _moved)
    register_fake("sheaf::spread", _moved)
    register_fake("sheaf::alone", _alone)
