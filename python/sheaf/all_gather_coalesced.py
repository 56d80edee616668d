# SPDX-License-Identifier: MIT
"""all_gather_coalesced: several tensors in one call."""

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch.compiler import is_compiling

from sheaf._arguments import Timeout, alone, seconds
from sheaf._call import call
from sheaf._coalesced import Each, ManySizes, are_plain, reach_an_op
from sheaf._group import Group, Ranks, ranks
from sheaf._handle import Finished, Handle
from sheaf.all_gather import Gathered, Gradient, made


@overload
def all_gather_coalesced(
    tensors: Sequence[torch.Tensor],
    dim: int | Sequence[int] = 0,
    *,
    sizes: ManySizes = None,
    grad: Gradient | Sequence[Gradient] = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: Literal[False] = False,
) -> tuple[Gathered, ...]: ...


@overload
def all_gather_coalesced(
    tensors: Sequence[torch.Tensor],
    dim: int | Sequence[int] = 0,
    *,
    sizes: ManySizes = None,
    grad: Gradient | Sequence[Gradient] = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: Literal[True],
) -> Handle[tuple[Gathered, ...]]: ...


@overload
def all_gather_coalesced(
    tensors: Sequence[torch.Tensor],
    dim: int | Sequence[int] = 0,
    *,
    sizes: ManySizes = None,
    grad: Gradient | Sequence[Gradient] = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: bool,
) -> tuple[Gathered, ...] | Handle[tuple[Gathered, ...]]: ...


def all_gather_coalesced(
    tensors: Sequence[torch.Tensor],
    dim: int | Sequence[int] = 0,
    *,
    sizes: ManySizes = None,
    grad: Gradient | Sequence[Gradient] = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: bool = False,
) -> tuple[Gathered, ...] | Handle[tuple[Gathered, ...]]:
    """Gathers several tensors of any dtypes, shapes and dims in one call: one exchange of headers, one payload, and one
    collective in the backward, which carries the gradients of those tensors that need one.

    Shapes: of each tensor rank r passes `(..., n_r, ...)`, and every rank receives `(..., n_0 + n_1 + ..., ...)`. All
    ranks must agree on how many tensors there are, from 1 to 64, and on what `all_gather` asks of them, for each.
    The results of a large call lie in one memory: it is free when the last of them is.

    Args:
        tensors: the own blocks, a list or a tuple.
        dim: one for all tensors, or a list with one for each.
        sizes: every rank's size along `dim`, where it is known: one row for all tensors; a list with a row for each, or
            None for those whose sizes are to be learned; or one tensor, `(tensors, ranks)`.
        grad: "sum", "mean" or "own", as in `all_gather`: one for all tensors, or a list with one for each.
        group: a process group, its name, a 1-D DeviceMesh or (mesh, dim); None is the default group.
        timeout: how long to wait for other ranks, in seconds or as a timedelta; None is the group's timeout.
        async_op: start the call and return a handle at once. No tensor must be written before its `wait()`. At most 64
            calls of a group may be in flight.

    Returns:
        one `Gathered(tensor, sizes)` per tensor, or a handle whose `wait()` returns them.

    Example, where rank 0 holds 2 rows and rank 1 holds 3, with a mask that leaves each rank's first one out:
        >>> mask = torch.arange(x.shape[0]) > 0
        >>> y, kept = sheaf.all_gather_coalesced([x, mask])
        >>> y.tensor[kept.tensor].shape
        torch.Size([3, 4])
    """
    if async_op and is_compiling():
        return Finished(all_gather_coalesced(tensors, dim, sizes=sizes, grad=grad, group=group, timeout=timeout))
    where = ranks(group)
    if (sizes is None and timeout is None and not async_op and where.world > 1 and not is_compiling()) and (
        type(dim) is int and -8 <= dim < 8 and type(grad) is str and are_plain(tensors)
    ):
        try:
            return _learned(tensors, None, [dim], [grad], where, None)
        except RuntimeError:
            if reach_an_op(tensors):
                raise
    each = Each("all_gather_coalesced", tensors, dim, sizes, grad, timeout, where, learns=True, later=async_op)
    if async_op and where.world > 1:
        start = torch.ops.sheaf.start_all_gather_coalesced
        limit = seconds(timeout)
        return Handle(
            call(start, each.tensors, each.table(), each.dims, where.world, each.modes, where.name, timeout=limit),
            _gathered,
        )
    results = _all_gather_coalesced(each, where, timeout)
    return Finished(results) if async_op else results


def _gathered(tensors: list[torch.Tensor]) -> tuple[Gathered, ...]:
    count = len(tensors) // 2
    return tuple(map(made, zip(tensors[:count], tensors[count:], strict=True)))


def _learned(
    tensors: Sequence[torch.Tensor],
    given: torch.Tensor | None,
    dims: list[int],
    modes: list[str],
    where: Ranks,
    limit: float | None,
) -> tuple[Gathered, ...]:
    op = torch.ops.sheaf.all_gather_coalesced
    gathered, rows = call(op, tensors, given, dims, where.world, modes, where.name, timeout=limit)
    # Of one length; zip takes its time over a keyword.
    return tuple(map(made, zip(gathered, rows)))  # noqa: B905


def _all_gather_coalesced(each: Each, where: Ranks, timeout: Timeout) -> tuple[Gathered, ...]:
    """Waits for the results."""
    if where.world == 1:
        own = each.alone(seconds(timeout))
        return tuple(Gathered(alone(x), rows) for x, rows in zip(each.tensors, own, strict=True))
    ops = torch.ops.sheaf
    given, limit = each.table(), seconds(timeout)
    if not each.sized and not is_compiling():
        return _learned(each.tensors, given, each.dims, each.modes, where, limit)
    if each.sized:
        totals = each.totals()
    else:
        # A compiler must see sizes of fixed shape before the data whose shape depends on them.
        op = ops.gather_sizes_coalesced
        learned = call(op, each.tensors, each.dims, where.world, where.name, timeout=limit, follows=1)
        each.rows = [learned[i] if row is None else row for i, row in enumerate(each.rows)]
        given, totals = each.table(), each.totals()
    gathered = call(
        ops.all_gather_coalesced_sized,
        each.tensors,
        given,
        totals,
        each.dims,
        where.world,
        ["sum"] * len(each.tensors),
        where.name,
        each.modes,
        timeout=limit,
    )
    return tuple(Gathered(y, row) for y, row in zip(gathered, each.rows, strict=True) if row is not None)
