# SPDX-License-Identifier: MIT
"""Stands in for `mirasol_pytorch.distributed`: `all_gather(x, dim, sizes)`, the gradient is the own slice.
Without a group, or alone in it, an AssertionError."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch
import torch.distributed as distributed
import torch.nn.functional as F  # noqa: N812 - the original's name
from torch import Tensor
from torch.autograd import Function

from sheaf.compat._shared import (
    Sizes,
    all_gather_variable_dim,
    default,
    einops_name,
    exists,
    gather_in_function,
    is_distributed,
    own_rows,
    pad_dim_to,
)

__all__ = [
    "AllGather",
    "F",
    "Function",
    "all_gather",
    "all_gather_variable_dim",
    "cache",
    "default",
    "distributed",
    "exists",
    "get_is_distributed",
    "pad_dim_to",
    "torch",
]


# Keeps nothing: the answer changes with the group. It is wrapped only so that `cache_clear()` can still be called.
@lru_cache(maxsize=0)
def get_is_distributed() -> bool:
    """Whether there is a default group of more than one rank, now."""
    return is_distributed()


class AllGather(Function):
    """Gathers blocks of different sizes; called as `AllGather.apply(x, dim, sizes)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
        if not get_is_distributed():
            raise AssertionError("AllGather needs a default process group of more than one rank")
        return gather_in_function(ctx, x, dim, sizes)

    @staticmethod
    def backward(ctx: Any, grads: Tensor, _: Any) -> tuple[Tensor, None, None]:
        return own_rows(ctx, grads), None, None


all_gather = AllGather.apply


def __getattr__(name: str) -> Any:
    return einops_name(__name__, name, "rearrange")
