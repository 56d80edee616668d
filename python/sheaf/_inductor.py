# SPDX-License-Identifier: MIT
"""Keeps the ops in order under Inductor, whose scheduler does not see the order that effects ask for.

Nothing of Inductor is imported here: the ops get their lowerings when, and if, something else imports it.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._higher_order_ops.effects import _EffectType

_LOWERING = "torch._inductor.lowering"
_KNOWN = (2, 11), (2, 13)
"""The first and the last torch whose scheduler this was written for."""


def register(ops: Sequence[Any]) -> None:
    """Gives each op its lowering: now where Inductor is there already, else as soon as it is imported."""
    if _LOWERING in sys.modules:
        _lower(ops)
    else:
        sys.meta_path.insert(0, _AfterImport(ops))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets Inductor's lowerings be found and run as ever, and adds these."""

    def __init__(self, ops: Sequence[Any]) -> None:
        self.ops = ops

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _LOWERING:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_lower(module: ModuleType) -> None:
                run(module)
                _lower(self.ops)

            spec.loader.exec_module = run_and_lower  # type: ignore[method-assign]
        return spec


def _lower(ops: Sequence[Any]) -> None:
    register_lowering = sys.modules[_LOWERING].register_lowering
    make = _in_order if _is_known() else _refused
    for op in ops:
        register_lowering(op, type_promotion_kind=None)(make(op))


def _is_known() -> bool:
    major, minor = torch.__version__.split(".")[:2]
    return _KNOWN[0] <= (int(major), int(minor)) <= _KNOWN[1]


def _in_order(op: Any) -> Callable[..., Any]:
    """The op as it is, after the one before it.

    Inductor files the order of effects under a buffer's name ("buf3") and looks it up under an operation's ("op3"): it
    is lost, and independent calls are then sorted by what saves memory, which differs by rank. Here it is filed under
    the operation's name, as a dependency that keeps nothing alive.

    No CUDA graph may hold such a call: a replay exchanges no headers and looks at no sizes, while other ranks, whose
    sizes changed, record anew and wait.
    """
    from torch._inductor import ir
    from torch._inductor.virtualized import V
    from torch.utils._pytree import tree_map_only

    def lower(*args: Any, **keywords: Any) -> Any:
        V.graph.disable_cudagraphs_reason = (
            f"{op} is part of a call that hears of other ranks, or leaves word for later calls, each time"
        )
        first_new = len(V.graph.operations)
        outputs = ir.FallbackKernel.create(op, *args, **keywords)
        result = tree_map_only(ir.IRNode, ir.TensorBox.create, outputs)
        before = V.graph.effectful_ops.get(_EffectType.ORDERED)
        if before is not None:
            for new in V.graph.operations[first_new:]:
                V.graph.additional_buffer_deps[new.get_operation_name()].add(before.get_name())
        return result

    return lower


def _refused(op: Any) -> Callable[..., Any]:
    def lower(*args: Any, **keywords: Any) -> Any:
        first, last = (".".join(map(str, version)) for version in _KNOWN)
        raise RuntimeError(
            f"{op}: Sheaf keeps calls in order under Inductor of torch {first} to {last}; on torch {torch.__version__} "
            'ranks could come out of step. Compile with backend="aot_eager", or leave the call outside.'
        )

    return lower
