# SPDX-License-Identifier: MIT
"""Calls an op so that Ctrl-C comes out as what it is."""

from typing import Any

from torch.compiler import is_compiling


def call(op: Any, *args: object, timeout: float | None, **keywords: object) -> Any:
    if timeout is not None:  # torch takes its time over each keyword
        keywords["timeout"] = timeout
    if is_compiling():
        return op(*args, **keywords)
    try:
        return op(*args, **keywords)
    except RuntimeError:
        _let_python_run()
        raise


def _let_python_run() -> None:
    """What a signal handler raised during the op's wait is raised here, at the next call that Python makes."""
