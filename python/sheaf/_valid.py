# SPDX-License-Identifier: MIT
"""all_gather of static shapes: buffers of fixed rows, of which a number on the device says how many are valid.
Only an eager call's look at the alarm waits for the device, so forward and backward can be captured and replayed."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from sheaf._arguments import refuse
from sheaf._call import call
from sheaf._group import Ranks

# torch lacks kernels for these: they move as what they are made of.
_OPAQUE = {torch.uint16, torch.uint32, torch.uint64} | {
    getattr(torch, name) for name in dir(torch) if name.startswith("float8_")
}


class _State(NamedTuple):
    """What is known of one group."""

    agreed: set[tuple[object, ...]]
    """Kinds of buffers whose capacity all ranks have compared."""
    alarms: dict[torch.device, torch.Tensor]
    """By device: whether a count was beyond its buffer."""


_states: WeakKeyDictionary[dist.ProcessGroup, _State] = WeakKeyDictionary()
_alone = _State(set(), {})


def gather_valid(
    x: torch.Tensor,
    valid: torch.Tensor,
    dim: int,
    grad: str,
    where: Ranks,
    group: dist.ProcessGroup | None,
    limit: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The valid rows of every rank, in rank order and then zeros, in as many rows as all buffers have; and how many
    each rank gave, on the device. What is wrong on one rank is told to the others where they listen."""
    _check(x, valid, dim, where)
    state = _alone if group is None else _states.setdefault(group, _State(set(), {}))
    dim %= x.ndim
    _prepare(state, x, dim, where, limit)
    capacity = x.shape[dim]
    given = valid.detach().reshape(1).to(torch.int64)
    if where.world > 1:
        ones = torch.ones(where.world, dtype=torch.int64)
        op = torch.ops.sheaf.all_gather_sized
        given = call(op, given, ones, where.world, 0, where.world, "sum", where.name, grad="own", timeout=limit)
        total = where.world * capacity
        x = call(op, x, ones * capacity, total, dim, where.world, "sum", where.name, grad=grad, timeout=limit)
    sizes = given.clamp(0, capacity)
    if x.device in state.alarms:
        state.alarms[x.device].logical_or_((sizes != given).any())
    return compact(x, sizes, dim), sizes


def compact(blocks: torch.Tensor, sizes: torch.Tensor, dim: int) -> torch.Tensor:
    """Of blocks of equal rows, one after another along `dim`, the first `sizes[r]` rows of each, then zeros."""
    if blocks.dtype in _OPAQUE:
        return compact(blocks.unsqueeze(-1).view(torch.uint8), sizes, dim).view(blocks.dtype).squeeze(-1)
    rows, ends = blocks.shape[dim], sizes.cumsum(0)
    row = torch.arange(rows, device=blocks.device)
    owner = torch.bucketize(row, ends, right=True).clamp_(max=len(sizes) - 1)
    is_valid = row < ends[-1]
    # Rows that are not valid are taken from where they are: any would do, and no two of these are the same.
    source = torch.where(is_valid, owner * (rows // len(sizes)) + row - (ends - sizes)[owner], row)
    shape = [rows if i == dim else 1 for i in range(blocks.ndim)]
    zero = torch.zeros((), dtype=blocks.dtype, device=blocks.device)
    return torch.where(is_valid.view(shape), blocks.index_select(dim, source), zero)


def _check(x: torch.Tensor, valid: torch.Tensor, dim: int, where: Ranks) -> None:
    why = None
    if not isinstance(valid, torch.Tensor) or valid.is_floating_point() or valid.is_complex() or valid.numel() != 1:
        why = "valid must be a tensor of one integer"
    elif valid.device != x.device:
        why = f"valid must be on the tensor's device, {x.device}, got {valid.device}"
    elif x.ndim == 0 or not -x.ndim <= dim < x.ndim:
        why = f"the tensor has {x.ndim} dims, and none is {dim}"
    if why:
        refuse("all_gather", why, where, sized=False)


def _prepare(state: _State, x: torch.Tensor, dim: int, where: Ranks, limit: float | None) -> None:
    """The first call compares capacities, and every eager one looks whether an earlier count was too large."""
    if torch.compiler.is_compiling():
        return
    kind = (dim, tuple(x.shape), x.dtype, x.device)
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        if kind not in state.agreed:
            raise ValueError(
                "all_gather: call with valid= once before it is captured: ranks compare their buffers then"
            )
        return
    if kind not in state.agreed:
        if where.world > 1:
            rows = call(torch.ops.sheaf.gather_sizes, x, dim, where.world, where.name, timeout=limit).tolist()
            if len(set(rows)) > 1:
                raise ValueError(f"all_gather: with valid= all ranks' buffers must have the same rows, got {rows}")
        state.agreed.add(kind)
        state.alarms.setdefault(x.device, torch.zeros((), dtype=torch.bool, device=x.device))
    alarm = state.alarms[x.device]
    if alarm.item():
        alarm.zero_()
        raise ValueError(
            "all_gather: in an earlier call a rank's `valid` was negative or beyond its buffer's rows, and was clamped"
        )
