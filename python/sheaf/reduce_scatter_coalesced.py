# SPDX-License-Identifier: MIT
"""reduce_scatter_coalesced, the adjoint of all_gather_coalesced."""

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch.compiler import is_compiling

from sheaf._arguments import Sizes, Timeout, alone, seconds
from sheaf._call import call
from sheaf._coalesced import Each
from sheaf._group import Group, ranks
from sheaf._handle import Finished, Handle
from sheaf.reduce_scatter import Reduction


@overload
def reduce_scatter_coalesced(
    tensors: Sequence[torch.Tensor],
    sizes: Sizes | Sequence[Sizes],
    dim: int | Sequence[int] = 0,
    *,
    op: Reduction | Sequence[Reduction] = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: Literal[False] = False,
) -> tuple[torch.Tensor, ...]: ...


@overload
def reduce_scatter_coalesced(
    tensors: Sequence[torch.Tensor],
    sizes: Sizes | Sequence[Sizes],
    dim: int | Sequence[int] = 0,
    *,
    op: Reduction | Sequence[Reduction] = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: Literal[True],
) -> Handle[tuple[torch.Tensor, ...]]: ...


@overload
def reduce_scatter_coalesced(
    tensors: Sequence[torch.Tensor],
    sizes: Sizes | Sequence[Sizes],
    dim: int | Sequence[int] = 0,
    *,
    op: Reduction | Sequence[Reduction] = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: bool,
) -> tuple[torch.Tensor, ...] | Handle[tuple[torch.Tensor, ...]]: ...


def reduce_scatter_coalesced(
    tensors: Sequence[torch.Tensor],
    sizes: Sizes | Sequence[Sizes],
    dim: int | Sequence[int] = 0,
    *,
    op: Reduction | Sequence[Reduction] = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: bool = False,
) -> tuple[torch.Tensor, ...] | Handle[tuple[torch.Tensor, ...]]:
    """Sums the ranks' tensors, several in one call; each rank keeps its own rows of each sum, to the bit as
    `reduce_scatter` gives them. The backward is one collective, too, for those tensors that need a gradient.

    Shapes: of each tensor every rank passes `(..., n_0 + n_1 + ..., ...)`, and rank r receives `(..., n_r, ...)`. All
    ranks must agree on how many tensors there are, from 1 to 64, and on what `reduce_scatter` asks of them, for each.

    Args:
        tensors: what to sum, a list or a tuple: any dtypes but bool; for the mean, no integers either.
        sizes: how many rows each rank receives: one row for all tensors, a list with a row for each, or one tensor,
            `(tensors, ranks)`.
        dim: where the rows lie: one for all tensors, or a list with one for each.
        op: "sum" or "mean": one for all tensors, or a list with one for each.
        group: a process group, its name, a 1-D DeviceMesh or (mesh, dim); None is the default group.
        timeout: how long to wait for other ranks, in seconds or as a timedelta; None is the group's timeout.
        async_op: start the call and return a handle at once. No tensor must be written before its `wait()`. At most 64
            calls of a group may be in flight.

    Returns:
        the own rows of each sum, or a handle whose `wait()` returns them.

    Example, where rank 0 receives 2 rows of each and rank 1 receives 3:
        >>> a, b = sheaf.reduce_scatter_coalesced([torch.ones(5, 4), torch.ones(5)], [2, 3])
        >>> a[0, 0], b[0]
        (tensor(2.), tensor(2.))
    """
    if async_op and is_compiling():
        return Finished(reduce_scatter_coalesced(tensors, sizes, dim, op=op, group=group, timeout=timeout))
    where = ranks(group)
    each = Each("reduce_scatter_coalesced", tensors, dim, sizes, op, timeout, where, learns=False, later=async_op)
    for i, mode in enumerate(each.modes):
        if mode not in ("sum", "mean"):
            each.refuse(f'tensor {i}: op is "sum" or "mean", got {mode!r}')
    if where.world == 1:
        each.alone(seconds(timeout))
        own = tuple(map(alone, each.tensors))
        return Finished(own) if async_op else own
    if async_op:
        start = torch.ops.sheaf.start_reduce_scatter_coalesced
        limit = seconds(timeout)
        return Handle(
            call(start, each.tensors, each.table(), each.dims, where.world, each.modes, where.name, timeout=limit),
            tuple,
        )
    mine = call(
        torch.ops.sheaf.reduce_scatter_coalesced_sized,
        each.tensors,
        each.table(),
        each.own(),
        each.dims,
        where.world,
        each.modes,
        where.name,
        timeout=seconds(timeout),
    )
    return tuple(mine)
