# SPDX-License-Identifier: MIT
"""Stands in for `musiclm_pytorch.distributed`: a module `AllGather(dim, *, all_reduce_grads=False)`, whose gradient
is the own slice or, with `all_reduce_grads`, the sum over ranks. Without a group, or alone in it, `(x, None)`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the original's name
from torch import Tensor, nn
from torch.autograd import Function

import sheaf
from sheaf.compat import _shared
from sheaf.compat._shared import (
    Sizes,
    all_gather_same_dim,
    all_gather_variable_dim,
    default,
    einops_name,
    exists,
    gather,
    gather_in_function,
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
    "exists",
    "nn",
    "pad_dim_to",
    "torch",
]


class AllGatherFunction(Function):
    """Gathers blocks of different sizes; called as `AllGatherFunction.apply(x, dim, sizes, all_reduce_grads)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Sizes, all_reduce_grads: bool) -> tuple[Tensor, Tensor]:
        ctx.all_reduce_grads = all_reduce_grads
        return gather_in_function(ctx, x, dim, sizes)

    @staticmethod
    def backward(ctx: Any, grads: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        if ctx.all_reduce_grads:
            return sheaf.reduce_scatter(grads, ctx.batch_sizes, ctx.dim), None, None, None
        return own_rows(ctx, grads), None, None, None


class AllGather(nn.Module):
    """Gathers blocks of different sizes along `dim`: `module(x, sizes=None)` gives the whole and its sizes."""

    _forced: bool | None = None

    def __init__(self, dim: int, *, all_reduce_grads: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.all_reduce_grads = all_reduce_grads

    @property
    def is_distributed(self) -> bool:
        """Whether there is a default group of more than one rank, now; or what it was set to, None to ask again."""
        return _shared.is_distributed() if self._forced is None else self._forced

    @is_distributed.setter
    def is_distributed(self, value: bool | None) -> None:
        self._forced = value

    def forward(self, x: Tensor, sizes: Sizes = None) -> tuple[Tensor, Tensor | None]:
        if not self.is_distributed:
            return x, None
        return gather(x, self.dim, sizes, "sum" if self.all_reduce_grads else "own")


def __getattr__(name: str) -> Any:
    return einops_name(__name__, name, "rearrange")
