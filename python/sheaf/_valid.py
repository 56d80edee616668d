# SPDX-License-Identifier: MIT
"""all_gather of static shapes: buffers of fixed rows, of which a number on the device says how many are valid.
Only an eager call's look at the alarm waits for the device, so forward and backward can be captured and replayed."""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from sheaf._arguments import refuse
from sheaf._call import call
from sheaf._group import Ranks

# torch lacks kernels for these: they move as what they are made of.
_OPAQUE = {torch.uint16, torch.uint32, torch.uint64, torch.complex32} | {
    getattr(torch, name) for name in dir(torch) if name.startswith("float8_")
}


class _State(NamedTuple):
    """What is known of one group."""

    agreed: set[tuple[object, ...]]
    """Kinds of buffers that were gathered before: others must not be captured."""
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
    _check(x, valid, dim, grad, where)
    dim %= x.ndim
    capacity = x.shape[dim]
    alarm = None if torch.compiler.is_compiling() else _prepare(x, dim, where, group, limit)
    given = valid.detach().reshape(1).to(torch.int64)
    if where.world > 1:
        ones = torch.ones(where.world, dtype=torch.int64, device="cpu")
        op = torch.ops.sheaf.all_gather_sized
        given = call(op, given, ones, where.world, 0, where.world, "sum", where.name, grad="own", timeout=limit)
        total = where.world * capacity
        x = call(op, x, ones * capacity, total, dim, where.world, "sum", where.name, grad=grad, timeout=limit)
    sizes = given.clamp(0, capacity)
    if alarm is not None:
        alarm.logical_or_((sizes != given).any())
    return compact(x, sizes, dim), sizes


def compact(blocks: torch.Tensor, sizes: torch.Tensor, dim: int) -> torch.Tensor:
    """Of blocks of equal rows, one after another along `dim`, the first `sizes[r]` rows of each, then zeros."""
    rows, ends = blocks.shape[dim], sizes.cumsum(0)
    capacity = rows // len(sizes)
    row = torch.arange(rows, device=blocks.device)
    # Where each row of the result comes from, and where each row of the blocks goes; rows that do neither are zero, and
    # stand for themselves.
    owner = torch.bucketize(row, ends, right=True).clamp_(max=len(sizes) - 1)
    is_valid = row < ends[-1]
    source = torch.where(is_valid, owner * capacity + row - (ends - sizes)[owner], row)
    rank = row // max(capacity, 1)
    is_used = row - rank * capacity < sizes[rank]
    target = torch.where(is_used, (ends - sizes)[rank] + row - rank * capacity, row)
    moved: torch.Tensor = _MoveRows.apply(blocks, dim, source, is_valid, target, is_used)  # type: ignore[no-untyped-call]
    return moved


class _MoveRows(torch.autograd.Function):
    """Row i of the result is row `source[i]`, or zero where it is not valid; the gradient goes the other way. torch's
    own gradient of such an index would be a sum, which it does not have for every dtype."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, *ways: torch.Tensor) -> torch.Tensor:
        ctx.dim = dim
        ctx.save_for_backward(*ways)
        return _moved(x, dim, ways[0], ways[1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        source, is_valid, target, is_used = ctx.saved_tensors
        back = _MoveRows.apply(grads[0], ctx.dim, target, is_used, source, is_valid)  # type: ignore[no-untyped-call]
        return back, None, None, None, None, None


def _moved(x: torch.Tensor, dim: int, source: torch.Tensor, is_valid: torch.Tensor) -> torch.Tensor:
    if x.dtype in _OPAQUE:
        parts = x.contiguous().unsqueeze(-1).view(torch.uint8)
        return _moved(parts, dim, source, is_valid).view(x.dtype).squeeze(-1)
    shape = [x.shape[dim] if i == dim else 1 for i in range(x.ndim)]
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(is_valid.view(shape), x.index_select(dim, source), zero)


def _check(x: torch.Tensor, valid: torch.Tensor, dim: int, grad: str, where: Ranks) -> None:
    why = None
    if not isinstance(valid, torch.Tensor) or valid.numel() != 1 or not _is_integer(valid.dtype):
        why = "valid must be a tensor of one integer"
    elif valid.device != x.device:
        why = f"valid must be on the tensor's device, {x.device}, got {valid.device}"
    elif where.world > 1 and (x.ndim == 0 or not -x.ndim <= dim < x.ndim):
        why = f"the tensor has {x.ndim} dims, and none is {dim}"
    if why:
        refuse("all_gather", why, where, sized=False)
    if where.world == 1:
        torch.ops.sheaf.alone(x, None, dim, "all_gather", grad)


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool


def _prepare(
    x: torch.Tensor, dim: int, where: Ranks, group: dist.ProcessGroup | None, limit: float | None
) -> torch.Tensor:
    """Every eager call compares capacities, on the host, and looks whether an earlier count was too large. Returns the
    alarm of this device."""
    state = _alone if group is None else _states.setdefault(group, _State(set(), {}))
    kind = (dim, tuple(x.shape), x.dtype, x.device)
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        if kind not in state.agreed:
            raise ValueError("all_gather: call with valid= once before it is captured: the call sets up what it needs")
        return state.alarms[x.device]
    if where.world > 1:
        rows = call(torch.ops.sheaf.gather_sizes, x, dim, where.world, where.name, timeout=limit).tolist()
        if len(set(rows)) > 1:
            raise ValueError(f"all_gather: with valid= all ranks' buffers must have the same rows, got {rows}")
    state.agreed.add(kind)
    if x.device not in state.alarms:
        with torch.inference_mode(False):  # calls outside of that mode write into it, too
            state.alarms[x.device] = torch.zeros((), dtype=torch.bool, device=x.device)
    alarm = state.alarms[x.device]
    if x.is_cuda:
        torch.cuda.synchronize(x.device)  # graphs may run on any stream, and all ranks must see the same
    if alarm.item():
        alarm.zero_()
        raise ValueError(
            "all_gather: in an earlier call a rank's `valid` was negative or beyond its buffer's rows, and was clamped"
        )
    return alarm
