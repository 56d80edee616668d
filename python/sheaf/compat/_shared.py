# SPDX-License-Identifier: MIT
"""What the drop-ins have in common: small helpers under the originals' names, and the gather that all of them call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

import sheaf
from sheaf.all_gather import Gradient

T = TypeVar("T")
Sizes = Tensor | Sequence[int] | None


def exists(val: object) -> bool:
    """Whether `val` is anything but None."""
    return val is not None


def default(val: T | None, d: T) -> T:
    """`val`, or `d` where it is None."""
    return d if val is None else val


def pad_dim_to(t: Tensor, length: int, dim: int = 0) -> Tensor:
    """`t` with zeros behind it along `dim`, up to `length` rows."""
    missing = length - t.shape[dim]
    dims_behind = t.ndim - 1 - (dim % t.ndim)
    return nn.functional.pad(t, [0, 0] * dims_behind + [0, missing])


def is_distributed() -> bool:
    """Whether there is a default group of more than one rank, now."""
    return dist.is_initialized() and dist.get_world_size() > 1


def gather(x: Tensor, dim: int, sizes: Sizes, grad: Gradient) -> tuple[Tensor, Tensor]:
    """All ranks' blocks along `dim` and their sizes: the given tensor itself, else int64 on the device of `x`."""
    y, learned = _gather_with_rows(x, dim, sizes, grad)
    return y, sizes if isinstance(sizes, Tensor) else on_device_of(x, learned)


def on_device_of(x: Tensor, sizes: Tensor) -> Tensor:
    """Sizes that are on the host where `x` is, without a wait for the device."""
    return sizes.pin_memory().to(x.device, non_blocking=True) if x.is_cuda else sizes.to(x.device)


def _gather_with_rows(x: Tensor, dim: int, sizes: Sizes, grad: Gradient) -> tuple[Tensor, Tensor]:
    """All ranks' blocks along `dim`, and their sizes on the host."""
    world = dist.get_world_size()  # raises without a group, as the originals do
    given = sizes if sizes is None or isinstance(sizes, Tensor) else torch.as_tensor(sizes, device="cpu")
    y, learned = sheaf.all_gather(x, dim, sizes=given, grad=grad)
    if world == 1:
        y = y.clone(memory_format=torch.contiguous_format)  # never the input itself, which callers may go on to write
    return y, learned


def all_gather_variable_dim(t: Tensor, dim: int = 0, sizes: Sizes = None) -> tuple[Tensor, Tensor]:
    """All ranks' blocks along `dim` as a constant, and their sizes."""
    return gather(t.detach(), dim, sizes, "own")


def all_gather_same_dim(t: Tensor) -> list[Tensor]:
    """Every rank's `t`, which has one shape on all ranks, as tensors of their own."""
    dist.get_world_size()
    rows, _ = sheaf.all_gather(t.detach().unsqueeze(0), 0, grad="own")
    return [row.clone() for row in rows]


def gather_in_function(ctx: Any, x: Tensor, dim: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The forward of every Function here; keeps what `own_rows` needs."""
    y, learned = _gather_with_rows(x.detach(), dim, sizes, "own")
    ctx.batch_sizes = learned.tolist()
    ctx.dim = dim
    return y, sizes if isinstance(sizes, Tensor) else on_device_of(x, learned)


def own_rows(ctx: Any, grads: Tensor) -> Tensor:
    """This rank's rows of the incoming gradient; a copy, so that nothing holds on to all the others' rows."""
    rank = dist.get_rank()
    first = sum(ctx.batch_sizes[:rank])
    return grads.narrow(ctx.dim, first, ctx.batch_sizes[rank]).clone(memory_format=torch.contiguous_format)


def einops_name(module: str, name: str, *offered: str) -> Any:
    """A name the original had from einops, for a module's `__getattr__`: imported only when it is asked for."""
    if name not in offered:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    import einops

    return getattr(einops, name)
