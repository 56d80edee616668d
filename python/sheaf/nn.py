# SPDX-License-Identifier: MIT
"""all_gather as a module."""

import torch

from sheaf._arguments import Sizes
from sheaf._group import Group, ranks
from sheaf.all_gather import Gathered, Gradient, all_gather


class AllGather(torch.nn.Module):
    """`sheaf.all_gather` with its settings kept; it has no parameters.

    Shapes: rank r passes `(..., n_r, ...)`, every rank receives `(..., n_0 + n_1 + ..., ...)`. All ranks must agree on
    what `all_gather` asks of them, the module's `dim` and `grad` among it.

    The group is kept by its name, so a module can be copied and pickled, and finds the group of that name where it is
    used.

    Example:
        >>> gather = sheaf.nn.AllGather(dim=1, grad="own")
        >>> y, sizes = gather(x)
    """

    def __init__(self, dim: int = 0, *, grad: Gradient = "sum", group: Group = None) -> None:
        super().__init__()
        self.dim = dim
        self.grad = grad
        self.group = None if group is None else ranks(group).name

    def forward(self, x: torch.Tensor, sizes: Sizes | None = None) -> Gathered:
        return all_gather(x, self.dim, sizes=sizes, grad=self.grad, group=self.group)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, grad={self.grad!r}" + (f", group={self.group!r}" if self.group else "")
