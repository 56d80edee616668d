# SPDX-License-Identifier: MIT
"""all_gather, and what goes with a gathered tensor: gather_sizes, split, offset."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, NamedTuple, overload

import torch
from torch.compiler import is_compiling
from torch.utils._pytree import _register_namedtuple

from sheaf._arguments import Sizes, Timeout, alone, check_types, is_integer, refuse, rows, seconds, total
from sheaf._call import call
from sheaf._group import Group, Ranks, ranks
from sheaf._handle import Finished, Handle
from sheaf._valid import FOLLOWS, gather_valid

Gradient = Literal["sum", "mean", "own"]


class Gathered(NamedTuple):
    """A gathered tensor and every rank's rows in it."""

    tensor: torch.Tensor
    sizes: torch.Tensor
    """int64 on the CPU, one entry per rank; on the tensor's device where `valid` was given."""


made: Callable[[Iterable[torch.Tensor]], Gathered] = partial(tuple.__new__, Gathered)
"""Gathered of a pair, without the time that a NamedTuple's own constructor takes."""

_register_namedtuple(Gathered, serialized_type_name="sheaf.Gathered")  # so that exported programs can be saved


@overload
def all_gather(
    x: torch.Tensor,
    dim: int = 0,
    *,
    sizes: Sizes | None = None,
    grad: Gradient = "sum",
    group: Group = None,
    timeout: Timeout = None,
    valid: torch.Tensor | None = None,
    async_op: Literal[False] = False,
) -> Gathered: ...


@overload
def all_gather(
    x: torch.Tensor,
    dim: int = 0,
    *,
    sizes: Sizes | None = None,
    grad: Gradient = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: Literal[True],
) -> Handle[Gathered]: ...


@overload
def all_gather(
    x: torch.Tensor,
    dim: int = 0,
    *,
    sizes: Sizes | None = None,
    grad: Gradient = "sum",
    group: Group = None,
    timeout: Timeout = None,
    async_op: bool,
) -> Gathered | Handle[Gathered]: ...


def all_gather(
    x: torch.Tensor,
    dim: int = 0,
    *,
    sizes: Sizes | None = None,
    grad: Gradient = "sum",
    group: Group = None,
    timeout: Timeout = None,
    valid: torch.Tensor | None = None,
    async_op: bool = False,
) -> Gathered | Handle[Gathered]:
    """Gathers the ranks' tensors, which may differ in size along `dim`, into one, in rank order.

    Shapes: rank r passes `(..., n_r, ...)`, every rank receives `(..., n_0 + n_1 + ..., ...)`, contiguous. A rank may
    have no rows.

    All ranks must agree on dtype, device type, number of dims, `dim`, the sizes of all other dims, `grad`, and on
    whether `sizes` is given. Where they do not, every rank raises the same ValueError. Only over a group's own backend
    (not in shared memory), with `sizes` given and blocks of more than 8 KiB, they raise at the deadline, unless
    SHEAF_CHECK=1. CUDA tensors of ranks on several hosts: NCCL compares nothing, so set SHEAF_CHECK=1 while you look
    for a mistake in sizes that you give.

    Args:
        x: the own block: any strided tensor, from bool to complex128 and float8, at least 1-d and at most 8-d.
        dim: where blocks differ in size and are joined; may be negative.
        sizes: every rank's size along `dim`, where it is known (a tensor on any device, a list or a tuple): then
            large blocks travel without a round before them.
        grad: what the gradient of the own block is, for losses L_q on every rank q: "sum", the own rows of the sum over
            q of dL_q/dy; "mean", that divided by the number of ranks; "own", the own rows of dL_r/dy, without
            communication.
        group: a process group, its name, a 1-D DeviceMesh or (mesh, dim); None is the default group.
        timeout: how long to wait for other ranks, in seconds or as a timedelta; None is the group's timeout.
        valid: for static shapes: one integer on the device of `x`, how many of its rows are valid. Every rank passes
            one, and neither `sizes` nor `async_op`. All ranks' buffers have the same rows; the result has all of them,
            valid rows first and in rank order, the rest zero, and the sizes are on the device. A count that is negative
            or beyond the buffer is clamped, and the next call with `valid` of this group and device that is neither
            captured in a graph nor compiled raises.
        async_op: start the call and return a handle at once. `x` must not be written before its `wait()`. At most 64
            calls of a group may be in flight. Of a CUDA tensor the call goes by a stream of its own, behind what
            the current one has to do, and `wait()` makes the stream wait that is current then, not the host.

    Returns:
        `Gathered(tensor, sizes)`, or a handle whose `wait()` returns it. Alone (no group, or a group of one) the tensor
        may be `x` itself.

    Example, where rank 0 holds 2 rows and rank 1 holds 3:
        >>> x = torch.full((2 + rank, 4), float(rank))
        >>> y, sizes = sheaf.all_gather(x)
        >>> y.shape, sizes.tolist()
        (torch.Size([5, 4]), [2, 3])
    """
    if async_op and is_compiling() and valid is None:
        return Finished(all_gather(x, dim, sizes=sizes, grad=grad, group=group, timeout=timeout))
    where = ranks(group)
    given_too = sizes is not None
    follows = 0 if valid is None or async_op else FOLLOWS
    check_types(
        "all_gather", x, dim, where, sized=given_too, mode=grad, timeout=timeout, later=async_op, follows=follows
    )
    if valid is not None:
        if given_too or async_op:
            why = f"{'sizes' if given_too else 'async_op'} and valid cannot both be given"
            refuse("all_gather", why, where, sized=given_too, timeout=timeout, later=async_op, follows=follows)
        return Gathered(*gather_valid(x, valid, dim, grad, where, seconds(timeout)))
    given = None if sizes is None else rows("all_gather", sizes, where, timeout=timeout, later=async_op)
    if where.world > 1 and async_op:
        start = torch.ops.sheaf.start_all_gather
        under_way = call(start, x, given, dim, where.world, grad, where.name, timeout=seconds(timeout))
        return Handle(under_way, made)
    result = _all_gather(x, dim, sizes, given, grad, where, timeout)
    return Finished(result) if async_op else result


def _all_gather(
    x: torch.Tensor,
    dim: int,
    sizes: Sizes | None,
    given: torch.Tensor | None,
    grad: Gradient,
    where: Ranks,
    timeout: Timeout,
) -> Gathered:
    """Waits for the result. `given` is `sizes` as the ops take them."""
    if where.world == 1:
        own = torch.ops.sheaf.alone(x, given, dim, "all_gather", grad, timeout=seconds(timeout))
        return Gathered(alone(x), own)
    limit = seconds(timeout)
    if given is None:
        if not is_compiling():
            return made(call(torch.ops.sheaf.all_gather, x, dim, where.world, grad, where.name, timeout=limit))
        # A compiler must see sizes of fixed shape before the data whose shape depends on them.
        op = torch.ops.sheaf.gather_sizes
        given = call(op, x, dim, where.world, where.name, timeout=limit, grad=grad, follows=1)
    rows_in_all = total(sizes, given, [x], [dim])
    keywords = {} if grad == "sum" else {"grad": grad}  # the same as the mode, where it is not said
    op = torch.ops.sheaf.all_gather_sized
    gathered = call(op, x, given, rows_in_all, dim, where.world, "sum", where.name, timeout=limit, **keywords)
    return made((gathered, given))


def gather_sizes(x: torch.Tensor, dim: int = 0, *, group: Group = None, timeout: Timeout = None) -> torch.Tensor:
    """Every rank's size along `dim`. Shapes: rank r passes `(..., n_r, ...)`, every rank receives `(ranks,)`, int64 on
    the CPU.

    All ranks must agree on dtype, device type, number of dims, `dim` and the sizes of all other dims.

    Example, where rank 0 holds 2 rows and rank 1 holds 3:
        >>> sheaf.gather_sizes(x)
        tensor([2, 3])
    """
    where = ranks(group)
    check_types("gather_sizes", x, dim, where, sized=False, timeout=timeout)
    sizes: torch.Tensor
    if where.world == 1:
        sizes = torch.ops.sheaf.alone(x, None, dim, "gather_sizes", "sum", timeout=seconds(timeout))
    else:
        sizes = call(torch.ops.sheaf.gather_sizes, x, dim, where.world, where.name, timeout=seconds(timeout))
    return sizes


def split(gathered: torch.Tensor, sizes: Sizes, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """The gathered tensor, `(..., n_0 + n_1 + ..., ...)`, as views, `(..., n_r, ...)` for every rank r. Local.

    Example:
        >>> [block.shape[0] for block in sheaf.split(y, sizes)]
        [2, 3]
    """
    given = _listed(sizes)
    ndim = gathered.dim()
    if not -ndim <= dim < ndim:
        raise ValueError(f"split: dim must be from {-ndim} to {ndim - 1}, got {dim}")
    if is_compiling():  # which knows no values, and must be told what follows from them
        torch._check(sum(given) == gathered.shape[dim])
        return torch.split(gathered, given, dim)
    _check_not_negative("split", given)
    if sum(given) != gathered.shape[dim]:
        raise ValueError(f"split: sizes {given} add up to {sum(given)}, but the tensor has {gathered.shape[dim]} rows")
    return torch.split(gathered, given, dim)


def offset(sizes: Sizes, group: Group = None) -> int:
    """Where the own rows begin in the gathered tensor, of `sizes`, one per rank. Local.

    Example, the labels of a contrastive loss over the gathered keys:
        >>> labels = torch.arange(x.shape[0]) + sheaf.offset(sizes)
    """
    where = ranks(group)
    if len(sizes) != where.world:
        raise ValueError(f"offset: sizes must have {where.world} entries, one per rank, got {len(sizes)}")
    if is_compiling():  # which sees no values, and reads no more than it must
        return int(sum(int(size) for size in sizes[: where.rank]))
    given = _listed(sizes)
    if not all(map(is_integer, given)):
        raise ValueError(f"offset: sizes must be integers, got {given}")
    _check_not_negative("offset", given)
    return int(sum(given[: where.rank]))


def _listed(sizes: Sizes) -> list[int]:
    return sizes.tolist() if isinstance(sizes, torch.Tensor) else list(sizes)


def _check_not_negative(what: str, sizes: list[int]) -> None:
    if any(size < 0 for size in sizes):
        raise ValueError(f"{what}: sizes must not be negative, got {sizes}")
