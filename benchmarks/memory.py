# SPDX-License-Identifier: MIT
"""Peak memory of one call, from the kernel's high-water mark (VmHWM), which writing 5 to clear_refs resets."""

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
M_MMAP_THRESHOLD = -3  # from malloc.h


@dataclass(frozen=True)
class Peak:
    """Bytes above what the process held before the call, its input being there already: the rank with most."""

    nbytes: int


def return_freed_memory() -> None:
    """Makes glibc give large blocks back at once, so that none is taken from an earlier call's unseen left-overs."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 128 << 10)
    libc.malloc_trim(0)


def peak_of(call: Callable[[], torch.Tensor], prepare: Callable[[], None]) -> Peak:
    """Called by every rank. One call goes ahead unmeasured: connections and threads stay, and are no one call's."""
    prepare()
    call()
    prepare()
    gc.collect()
    dist.barrier()
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
