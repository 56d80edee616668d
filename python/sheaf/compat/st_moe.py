# SPDX-License-Identifier: MIT
"""Stands in for `st_moe_pytorch.distributed`: a module `AllGather(*, dim=0)`, the gradient is the own slice, and
`split_by_rank`. Alone in a group it gives sizes all the same; without a group it raises."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the original's name
from torch import Tensor, nn
from torch.autograd import Function

import sheaf
from sheaf.compat._shared import (
    Sizes,
    all_gather_same_dim,
    all_gather_variable_dim,
    default,
    einops_name,
    exists,
    gather,
    gather_in_function,
    on_device_of,
    own_rows,
    pad_dim_to,
)

__all__ = [
    "AllGather",
    "AllGatherFunction",
    "F",
    "Function",
    "all_gather_same_dim",
    "all_gather_variable_dim",
    "default",
    "dist",
    "divisible_by",
    "exists",
    "gather_sizes",
    "has_only_one_value",
    "nn",
    "pad_dim_to",
    "split_by_rank",
    "torch",
]


def divisible_by(num: int, den: int) -> bool:
    """Whether `num` is a multiple of `den`."""
    return num % den == 0


def gather_sizes(t: Tensor, *, dim: int) -> Tensor:
    """Every rank's size along `dim`: int64, `(W,)`, on the device of `t`."""
    dist.get_world_size()  # raises without a group, as the original does
    # One number per rank: what else the tensors are is not compared.
    return on_device_of(t, sheaf.gather_sizes(torch.empty(t.shape[dim], 0, dtype=torch.uint8, device=t.device)))


def has_only_one_value(t: Tensor) -> Tensor:
    """Whether all elements equal the first: a 0-d bool tensor."""
    return t.eq(t[0]).all()


class AllGatherFunction(Function):
    """Gathers blocks of different sizes; called as `AllGatherFunction.apply(x, dim, sizes)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
        return gather_in_function(ctx, x, dim, sizes)

    @staticmethod
    def backward(ctx: Any, grads: Tensor, _: Any) -> tuple[Tensor, None, None]:
        return own_rows(ctx, grads), None, None


class AllGather(nn.Module):
    """Gathers blocks of different sizes along `dim`: `module(x, sizes=None)` gives the whole and its sizes."""

    def __init__(self, *, dim: int = 0) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, sizes: Sizes = None) -> tuple[Tensor, Tensor]:
        return gather(x, self.dim, sizes, "own")


def split_by_rank(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The own one of W blocks, given as a tuple or as the first dim of a tensor, and how many rows each has."""
    own = x[dist.get_rank()]
    rows = [x.shape[1]] * x.shape[0] if isinstance(x, Tensor) else [block.shape[0] for block in x]
    return own, on_device_of(own, torch.tensor(rows, dtype=torch.int64, device="cpu"))


def __getattr__(name: str) -> Any:
    return einops_name(__name__, name, "rearrange", "pack", "unpack")
