# SPDX-License-Identifier: MIT
"""What an asynchronous call returns."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from sheaf._call import call

Result = TypeVar("Result")


class Handle(Generic[Result]):
    """A call that was started and is carried on while this rank does something else: by a thread of the group's and, of
    CUDA tensors, by the device.

    What was handed to the call must not be written before `wait()` has returned or `done()` is true. A handle that is
    dropped goes on: the other ranks need the call.
    """

    def __init__(self, under_way: Any, finish: Callable[[list[torch.Tensor]], Result]) -> None:
        self._under_way = under_way
        self._finish = finish

    def wait(self) -> Result:
        """What the call would have returned, or raised. A second time it returns the same tensors. Of CUDA tensors the
        current stream waits, each time, and not the host."""
        tensors = call(torch.ops.sheaf.wait, self._under_way, timeout=None)
        if not hasattr(self, "_result"):
            self._result = self._finish(tensors)
        return self._result

    def done(self) -> bool:
        """Whether `wait()` would return, or raise, at once; of CUDA tensors, whether the device is done, too."""
        return bool(torch.ops.sheaf.done(self._under_way))


class Finished(Handle[Result]):
    """One that is done: alone, and under a compiler, which sees the plain call."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def wait(self) -> Result:
        return self._result

    def done(self) -> bool:
        return True
