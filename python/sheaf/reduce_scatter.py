# SPDX-License-Identifier: MIT
"""reduce_scatter, the adjoint of all_gather."""

from typing import Literal, TypeAlias, overload

import torch
from torch.compiler import is_compiling

from sheaf._arguments import Sizes, Timeout, alone, check_types, own, refuse, rows, seconds
from sheaf._call import call
from sheaf._group import Group, ranks
from sheaf._handle import Finished, Handle

Reduction: TypeAlias = Literal["sum", "mean"]


@overload
def reduce_scatter(
    y: torch.Tensor,
    sizes: Sizes,
    dim: int = 0,
    *,
    op: Reduction = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def reduce_scatter(
    y: torch.Tensor,
    sizes: Sizes,
    dim: int = 0,
    *,
    op: Reduction = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: Literal[True],
) -> Handle[torch.Tensor]: ...


@overload
def reduce_scatter(
    y: torch.Tensor,
    sizes: Sizes,
    dim: int = 0,
    *,
    op: Reduction = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: bool,
) -> torch.Tensor | Handle[torch.Tensor]: ...


def reduce_scatter(
    y: torch.Tensor,
    sizes: Sizes,
    dim: int = 0,
    *,
    op: Reduction = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: bool = False,
) -> torch.Tensor | Handle[torch.Tensor]:
    """Sums the ranks' tensors of one shape; each rank keeps its own rows of the sum.

    Shapes: every rank passes `(..., n_0 + n_1 + ..., ...)`, rank r receives `(..., n_r, ...)`, contiguous. Sums run in
    rank order (float16, bfloat16 and float8 in float32), so they have the same bits in every run; integers wrap.

    All ranks must agree on shape, dtype, device type, `dim`, `sizes` and `op`. A disagreement is the same ValueError on
    every rank. Only over a group's own backend (not in shared memory), for tensors of more than 8 KiB and without
    SHEAF_CHECK=1, it ends at the deadline with an error that says who is in which call. CUDA tensors of ranks on
    several hosts: NCCL compares nothing, so set SHEAF_CHECK=1 while you look for a mistake.

    Args:
        y: the tensor to sum: any dtype but bool; for the mean, no integers either.
        sizes: how many rows each rank receives: a tensor on any device, a list or a tuple.
        dim: where the rows lie; may be negative.
        op: "sum", or "mean", which is the sum divided by the number of ranks. The gradient is all_gather, divided
            likewise.
        group: a process group, its name, a 1-D DeviceMesh or (mesh, dim); None is the default group.
        timeout: how long to wait for other ranks, in seconds or as a timedelta; None is the group's timeout.
        async_op: start the call and return a handle at once. `y` must not be written before its `wait()`. At most 64
            calls of a group may be in flight.

    Returns:
        The own rows, or a handle whose `wait()` returns them.

    Example, where rank 0 receives 2 rows and rank 1 receives 3:
        >>> sheaf.reduce_scatter(torch.ones(5, 4), [2, 3])[0, 0]
        tensor(2.)
    """
    if async_op and is_compiling():
        return Finished(reduce_scatter(y, sizes, dim, op=op, group=group, timeout=timeout))
    where = ranks(group)
    check_types("reduce_scatter", y, dim, where, sized=True, mode=op, timeout=timeout, later=async_op)
    if op not in ("sum", "mean"):  # the ops themselves know "own", of which this one is no part
        why = f'op is "sum" or "mean", got {op!r}'
        refuse("reduce_scatter", why, where, sized=True, timeout=timeout, later=async_op)
    given = rows("reduce_scatter", sizes, where, timeout=timeout, later=async_op)
    if where.world == 1:
        torch.ops.sheaf.alone(y, given, dim, "reduce_scatter", op, timeout=seconds(timeout))
        return Finished(alone(y)) if async_op else alone(y)
    if async_op:
        start = torch.ops.sheaf.start_reduce_scatter
        return Handle(call(start, y, given, dim, where.world, op, where.name, timeout=seconds(timeout)), _only)
    # A row of sizes that is too short is the op's to refuse.
    known = given.dim() == 1 and where.rank < given.shape[0]
    rows_here = own(sizes, given, where, [y], [dim]) if known else 0
    scatter = torch.ops.sheaf.reduce_scatter_sized
    mine: torch.Tensor = call(scatter, y, given, rows_here, dim, where.world, op, where.name, timeout=seconds(timeout))
    return mine


def _only(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0]
