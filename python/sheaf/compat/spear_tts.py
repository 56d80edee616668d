# SPDX-License-Identifier: MIT
"""Stands in for `spear_tts_pytorch.distributed`: `all_gather(x, dim, sizes)`, the gradient is the own slice.
Without a group, or alone in it, `(x, None)`."""

from __future__ import annotations

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
    "default",
    "distributed",
    "exists",
    "pad_dim_to",
    "torch",
]


class AllGather(Function):
    """Gathers blocks of different sizes; called as `AllGather.apply(x, dim, sizes)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sizes: Sizes) -> tuple[Tensor, Tensor | None]:
        ctx.is_dist = is_distributed()
        return gather_in_function(ctx, x, dim, sizes) if ctx.is_dist else (x, None)

    @staticmethod
    def backward(ctx: Any, grads: Tensor, _: Any) -> tuple[Tensor, None, None]:
        return (own_rows(ctx, grads) if ctx.is_dist else grads), None, None


all_gather = AllGather.apply


def __getattr__(name: str) -> Any:
    return einops_name(__name__, name, "rearrange")
