# SPDX-License-Identifier: MIT
"""Where ranks of one machine meet within a microsecond or two, in shared memory that vanishes with its last process."""

import mmap
import os
import time
from multiprocessing import reduction
from typing import Any

CELL = 64  # bytes a rank: a cache line, so that nobody's arrival disturbs another's
STEP = CELL // 8


class Meeting:
    """Made before the ranks are started and handed to each; the memory has no name, only descriptors."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._turn = 0
        self._descriptor = os.memfd_create("sheaf-benchmarks", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, CELL * world)

    def __getstate__(self) -> tuple[int, Any]:
        return self._world, reduction.DupFd(self._descriptor)

    def __setstate__(self, state: tuple[int, Any]) -> None:
        self._world, passed = state
        self._turn = 0
        self._descriptor = passed.detach()
        self._cells = memoryview(mmap.mmap(self._descriptor, CELL * self._world)).cast("Q")

    def close(self) -> None:
        """Of the process that made it: the ranks keep theirs."""
        os.close(self._descriptor)

    def wait(self, rank: int, seconds: float = 60.0) -> None:
        """Returns when all ranks have come here as often as this one. TimeoutError names those that have not."""
        self._turn += 1
        cells, turn = self._cells, self._turn
        cells[rank * STEP] = turn
        for peer in range(0, self._world * STEP, STEP):
            if cells[peer] < turn:
                self._wait_for(peer, time.monotonic() + seconds)

    def _wait_for(self, peer: int, deadline: float) -> None:
        """Yields the core at every look: with more ranks than cores the one that is missing may need it."""
        cells, turn = self._cells, self._turn
        while cells[peer] < turn:
            os.sched_yield()
            if time.monotonic() > deadline:
                missing = [rank for rank in range(self._world) if cells[rank * STEP] < turn]
                raise TimeoutError(f"ranks {missing} did not come to meeting {turn}")
