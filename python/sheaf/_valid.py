# SPDX-License-Identifier: MIT
"""all_gather of static shapes: buffers of fixed rows, of which a number on the device says how many are valid.
Only an eager call's look at the flag waits for the device, so forward and backward can be captured and replayed."""

import torch
from torch.compiler import is_compiling

from sheaf._arguments import holds_integers, is_plain, no_such_dim, refuse
from sheaf._call import call
from sheaf._group import Ranks

FOLLOWS = 2
"""The gathers that follow where ranks have heard each other: of counts, and of buffers."""


def gather_valid(
    x: torch.Tensor,
    valid: torch.Tensor,
    dim: int,
    grad: str,
    where: Ranks,
    limit: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The valid rows of every rank, in rank order and then zeros, in as many rows as all buffers have; and how many
    each rank gave, on the device. What is wrong on one rank is told to the others where they listen."""
    _check(x, valid, dim, grad, where, limit)
    dim %= x.ndim
    capacity = x.shape[dim]
    look = not is_compiling()  # which waits for the device
    name = where.name if where.world > 1 else ""  # all groups of one are the same
    given = _counted(valid)
    call(torch.ops.sheaf.prepare_valid, x, dim, where.world, grad, name, look, timeout=limit)
    if where.world > 1:
        ones = torch.ones(where.world, dtype=torch.int64, device="cpu")
        op, then = torch.ops.sheaf.all_gather_sized, FOLLOWS - 1
        given = call(op, given, ones, where.world, 0, where.world, "sum", name, grad="own", timeout=limit, follows=then)
        total = where.world * capacity
        x = call(op, x, ones * capacity, total, dim, where.world, "sum", name, grad=grad, timeout=limit)
    sizes = torch.ops.sheaf.clamped(given, capacity, name)
    return torch.ops.sheaf.compact(x, sizes, dim), sizes


def _counted(valid: torch.Tensor) -> torch.Tensor:
    """As an int64; what that does not hold stays beyond every buffer."""
    count = valid.detach().reshape(1).to(torch.int64)
    if valid.dtype != torch.uint64:
        return count
    return count.masked_fill(count < 0, torch.iinfo(torch.int64).max)


# What it says, check_valid() of src/torch/valid.cpp says to callers from C++.
def _check(x: torch.Tensor, valid: torch.Tensor, dim: int, grad: str, where: Ranks, limit: float | None) -> None:
    why = None
    if not is_plain(valid) or not holds_integers(valid) or valid.numel() != 1:
        why = "valid must be a tensor of one integer"
    elif valid.device != x.device:
        why = f"valid must be on the tensor's device, {x.device}, got {valid.device}"
    elif no_such_dim(x, dim):
        why = no_such_dim(x, dim)
    elif grad not in ("sum", "mean", "own"):
        why = f'a gradient is "sum", "mean" or "own", got "{grad}"'
    if why:
        refuse("all_gather", why, where, sized=False, timeout=limit, follows=FOLLOWS)
    if where.world == 1:
        torch.ops.sheaf.alone(x, None, dim, "all_gather", grad, timeout=limit)
