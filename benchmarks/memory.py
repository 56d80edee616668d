# SPDX-License-Identifier: MIT
"""Peak memory of one call, from the kernel's high-water mark (VmHWM), which writing 5 to clear_refs resets."""

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SETTLE = 0.05  # seconds: Gloo's threads drop what they hold of the call before a moment late
M_MMAP_THRESHOLD = -3  # from malloc.h


@dataclass(frozen=True)
class Peak:
    """Bytes above what the process held before the call, its input being there already: the rank with most."""

    nbytes: int


def return_freed_memory() -> None:
    """Makes glibc give back what is free, and large blocks at once from now on: left-overs would hide a call's use."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 128 << 10)
    libc.malloc_trim(0)


def peak_of(call: Callable[[], torch.Tensor], prepare: Callable[[], None]) -> Peak:
    """Called by every rank, and measures the first such call: what it keeps counts, as nothing was kept before it."""
    prepare()
    gc.collect()
    dist.barrier()
    time.sleep(SETTLE)
    return_freed_memory()
    before = status_bytes("VmRSS")
    CLEAR_REFS.write_text("5")
    result = call()
    peak = status_bytes("VmHWM")
    del result
    most = torch.tensor([max(0, peak - before)])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return Peak(int(most.item()))


def status_bytes(key: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) << 10
