# SPDX-License-Identifier: MIT
"""What the ops cannot see for themselves: tensor subclasses, lists of sizes, and timeouts of several types."""

import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import reduce
from numbers import Integral
from operator import add
from typing import Any, NoReturn, TypeAlias, TypeGuard

import torch
from torch._C._functorch import TransformType
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.compiler import is_compiling, is_dynamo_compiling, is_exporting

from sheaf._group import Ranks

Sizes: TypeAlias = torch.Tensor | Sequence[int]
Timeout: TypeAlias = float | timedelta | None

_TRACED = frozenset((FakeTensor, FunctionalTensor))
_PLAIN = _TRACED | {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
_TIMES = (int, float, timedelta)
_INTEGERS = frozenset(
    (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
)
_NO_TRANSFORMS = "torch.func transforms are not supported, but for vmap: use torch.autograd.grad"
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def refuse(
    op: str,
    why: str,
    where: Ranks,
    *,
    sized: bool,
    timeout: object = None,
    later: bool = False,
    follows: int = 0,
) -> NoReturn:
    """Raises ValueError here and, where the other ranks listen, there. Of a call that is only started, at once. So many
    follow that the other ranks number, too."""
    if where.world > 1:
        limit = seconds(timeout) if isinstance(timeout, _TIMES) else None
        torch.ops.sheaf.refuse(op, why, where.name, sized, later, follows, timeout=limit)
    raise ValueError(f"{op}: {why}")


def check_types(
    op: str,
    x: object,
    dim: object,
    where: Ranks,
    *,
    sized: bool,
    mode: object = "sum",
    timeout: object = None,
    of: str = "",
    later: bool = False,
    follows: int = 0,
) -> None:
    """What torch would refuse, or a subclass take for itself, before the op sees it and the other ranks hear of it.
    `of` says which of several tensors it is, `later` that the call is only started; `follows` as in refuse()."""
    if is_compiling():
        if _is_transformed():  # all ranks compile the same, and come here
            raise ValueError(f"{op}: {of}{_NO_TRANSFORMS}")
        if where.world == 1 and isinstance(x, torch.Tensor) and isinstance(dim, int):
            wrong = no_such_dim(x, dim)
            if wrong:
                raise ValueError(f"{op}: {of}{wrong}")  # no op is left in the graph that would say so
        return
    if (of or later) and isinstance(x, torch.Tensor) and _is_wrapped(x):  # torch makes no calls of these by itself
        why = "torch.func transforms are not supported here, nor is vmap"
        refuse(op, of + why, where, sized=sized, timeout=timeout, later=later, follows=follows)
    objection = _objection(x, dim, mode, timeout, op)
    if objection is not None:
        refuse(op, of + objection, where, sized=sized, timeout=timeout, later=later, follows=follows)


def is_plain(x: object) -> TypeGuard[torch.Tensor]:
    return type(x) in _PLAIN and x.layout is torch.strided and not x.is_nested  # type: ignore[attr-defined]


def holds_integers(x: torch.Tensor) -> bool:
    return x.dtype in _INTEGERS


def is_integer(size: object) -> bool:
    """Those of other libraries, too, where no compiler looks on."""
    if isinstance(size, int | torch.SymInt):
        return not isinstance(size, bool)
    return not is_compiling() and isinstance(size, Integral)


def no_such_dim(x: torch.Tensor, dim: int) -> str | None:
    if x.ndim == 0:
        return "a 0-d tensor has no dim to gather along: pass x.reshape(1)"
    return None if -x.ndim <= dim < x.ndim else f"dim must be from {-x.ndim} to {x.ndim - 1}, got {dim}"


def mode_argument(op: str) -> str:
    """What its callers know the mode as."""
    return "op" if op.startswith("reduce_scatter") else "grad"


def _objection(x: object, dim: object, mode: object, timeout: object, op: str) -> str | None:
    if not isinstance(dim, int) or isinstance(dim, bool):
        return f"dim must be an integer, got {dim!r}"
    if not isinstance(mode, str):
        return f"{mode_argument(op)} must be a string, got {mode!r}"
    if timeout is not None and not isinstance(timeout, _TIMES):
        return f"timeout must be a number of seconds or a timedelta, got {timeout!r}"
    if not isinstance(x, torch.Tensor):
        return f"a tensor is needed, got {type(x).__name__}"
    if type(x) not in _PLAIN:
        advice = "its to_local()" if hasattr(x, "to_local") else "a plain torch.Tensor"
        return f"tensor subclasses such as {type(x).__name__} are not taken: pass {advice}"
    if abs(dim) >= 1 << 63:  # an op takes no such number, so it could not refuse it
        return f"dim must be from {-x.dim()} to {x.dim() - 1}, got {dim}"
    if _is_wrapped(x) and _is_differentiated(x):
        return _NO_TRANSFORMS
    if x.is_nested:  # torch has no kernel of ours to call for these
        return "nested tensors are not taken: pass the values and gather along their ragged dim"
    if x.is_meta and type(x) not in _TRACED:  # torch would call the fake kernel, and no other rank would know
        return "meta tensors hold no data: with sizes given, a FakeTensorMode infers shapes"
    return None


def _is_differentiated(x: torch.Tensor) -> bool:
    """Whether torch.func differentiates x. torch refuses C++ autograd there in reverse, and loses tangents silently."""
    functions = torch._C._functorch
    while functions.is_functorch_wrapped_tensor(x):
        if functions.is_gradtrackingtensor(x):
            return True
        x = functions.get_unwrapped(x)
    return False


def _is_transformed() -> bool:
    """Whether torch.func differentiates what is being compiled, seen as it is traced: tensors show nothing then."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return any(one.key() in (TransformType.Grad, TransformType.Jvp) for one in stack)


_is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def rows(
    op: str,
    sizes: Sizes,
    where: Ranks,
    of: str = "",
    *,
    sized: bool = True,
    timeout: Timeout = None,
    later: bool = False,
) -> torch.Tensor:
    """Sizes as the ops take them, an int64 CPU tensor. What is wrong in their values is the op's to refuse. `sized`:
    those of all tensors are given."""

    def no(why: str) -> NoReturn:
        refuse(op, of + why, where, sized=sized, timeout=timeout, later=later)

    if isinstance(sizes, torch.Tensor):
        if not holds_integers(sizes):
            no(f"sizes must be integers, got {sizes.dtype}")
        return sizes.detach().to("cpu", torch.int64)
    if not isinstance(sizes, list | tuple):
        no(f"sizes must be a tensor, a list or a tuple, got {type(sizes).__name__}")
    read_as_variables(sizes)
    plain = set(map(type, sizes)) <= {int}  # nearly all, at once
    if not plain and not all(map(is_integer, sizes)):
        no(f"sizes must be integers, got {list(sizes)}")
    if not is_compiling() and sum(map(abs, sizes)) >= 2**63:
        no(f"sizes must add up to what 63 bits hold, got {list(sizes)}")
    return torch.tensor(sizes, dtype=torch.int64, device="cpu")


def read_as_variables(sizes: Sequence[object]) -> None:
    """Has a compiler take the numbers in it for variables from the start. It would take each for a constant until that
    one changes, and compile anew every time. It reads a number when it is first looked at."""
    if not is_dynamo_compiling() or _exports():
        return
    _begin_variables()
    for size in sizes:
        isinstance(size, int)
    _end_variables()


def _exports() -> bool:
    """Called as it is traced: in a trace torch 2.11 takes is_exporting() for true."""
    return is_exporting()


_exports._dynamo_marked_constant = True  # type: ignore[attr-defined]

_before = threading.local()
"""What the setting was, while it is another: each thread has its own."""


def _begin_variables() -> None:
    """Called as it is traced. What torch cannot read ends the trace at once: then its clean-up ends this."""
    if not torch._dynamo.config.automatic_dynamic_shapes:  # the program asked for constants, by dynamic=False
        return
    torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().output.add_cleanup_hook(_end_variables)
    _before.sources = torch.compiler.config.dynamic_sources
    torch.compiler.config.dynamic_sources = ".*"


def _end_variables() -> None:
    if hasattr(_before, "sources"):
        torch.compiler.config.dynamic_sources = _before.sources
        del _before.sources


_begin_variables._dynamo_marked_constant = True  # type: ignore[attr-defined]
_end_variables._dynamo_marked_constant = True  # type: ignore[attr-defined]


def total(sizes: Sizes | None, given: torch.Tensor, tensors: Sequence[torch.Tensor], dims: Sequence[int]) -> Any:
    """What they add up to; `given` is `sizes` (None: learned) as the ops take them. A compiler is told that it is no
    less than what any of the tensors has: Inductor is at a loss with products of both otherwise."""
    if isinstance(sizes, list | tuple) and not is_compiling():
        return sum(sizes)
    if _is_known(given) and given.dim() == 1:
        found = sum(given.tolist())
        return found if -(2**63) <= found < 2**63 else 0  # no op takes such a number, and each refuses such sizes
    own_rows = [_rows_along(*one) for one in zip(tensors, dims, strict=True)]
    if isinstance(sizes, list | tuple) and all(_may_be_known(size, own_rows) for size in sizes):
        return reduce(add, sizes, 0)  # as exported programs can be saved
    summed = given.sum()
    if sizes is not None:  # less is wrong, which is the op's to refuse
        for own in own_rows:
            summed = summed.clamp(min=own)
    found = summed.item()
    for own in own_rows:
        torch._check(found >= own)
    return found


def own(sizes: Sizes, given: torch.Tensor, where: Ranks, tensors: Sequence[torch.Tensor], dims: Sequence[int]) -> Any:
    """The one of this rank, likewise, and no more than what any of the tensors has."""
    if isinstance(sizes, list | tuple) and (not is_compiling() or _may_be_known(sizes[where.rank], [])):
        return sizes[where.rank]
    if _is_known(given):
        return given.tolist()[where.rank]
    in_all = [_rows_along(*one) for one in zip(tensors, dims, strict=True)]
    mine = given[where.rank].clamp(min=0)
    for most in in_all:
        mine = mine.clamp(max=most)
    found = mine.item()
    for most in in_all:
        torch._check(found <= most)
    return found


def _rows_along(x: torch.Tensor, dim: int) -> Any:
    return x.shape[dim] if -x.dim() <= dim < x.dim() else 0  # another dim is the op's to refuse


def _may_be_known(size: Any, own_rows: list[Any]) -> bool:
    """Whether a compiler may know a number of a list. It knows constants and own rows anyway; where it knows others, it
    compiles anew when their sum is 0, and when it is 1. Exported programs have no anew."""
    from torch.fx.experimental.symbolic_shapes import has_static_value, statically_known_true

    if _exports() or _breaks_at_items() or has_static_value(size):
        return True
    return any(statically_known_true(size == own) for own in own_rows)


def _breaks_at_items() -> bool:
    """Called as it is traced. A graph that may break is worse broken than compiled anew."""
    context = torch._guards.TracingContext.try_get()
    shapes = context and context.fake_mode and context.fake_mode.shape_env
    return bool(shapes and not shapes.allow_scalar_outputs)


_breaks_at_items._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_known(sizes: torch.Tensor) -> bool:
    """Whether its numbers can be had at once, which takes a tenth of the time of an op."""
    return type(sizes) is torch.Tensor and not is_compiling()


def alone(x: torch.Tensor) -> torch.Tensor:
    """The own tensor as the result of a group of one."""
    result = x.resolve_conj().resolve_neg().contiguous()
    return result if torch.is_grad_enabled() else result.detach()


def seconds(timeout: Timeout) -> float | None:
    if not isinstance(timeout, timedelta):
        return timeout
    return timeout.days * 86_400 + timeout.seconds + timeout.microseconds * 1e-6  # as a compiler can read it
