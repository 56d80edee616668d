# SPDX-License-Identifier: MIT
"""Ranks as processes that share one device: NCCL must take them for hosts of their own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from benchmarks.gpu.timing import Body, in_turns


@contextmanager
def at_once(device: str) -> Iterator[str]:
    """Ranks that are made in here use the device at the same time: a GPU by NVIDIA's multi-process service. Without it
    they would wait milliseconds for their turns, and for more or fewer of them as the driver orders ranks. Yields what
    is missing."""
    if device != "cuda":
        yield ""
        return
    control = shutil.which("nvidia-cuda-mps-control")
    if not control:
        yield "there is no nvidia-cuda-mps-control"
        return
    with tempfile.TemporaryDirectory() as folder:
        where = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        begun = subprocess.run([control, "-d"], env=where, timeout=30, check=False).returncode == 0
        before = dict(os.environ)
        os.environ.update(where if begun else {})
        try:
            yield "" if begun else "nvidia-cuda-mps-control does not start"
        finally:
            os.environ.clear()
            os.environ.update(before)
            if begun:
                subprocess.run([control], env=where, input="quit\n", text=True, timeout=60, check=False)


def lines_of(part: str, device: str, world: int, kibs: list[int], rounds: int) -> list[str]:
    """What rank 0 prints of a part, run by all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(world):
            env = {**os.environ, "NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
            given = [part, rank, world, f"{folder}/store", device, ",".join(map(str, kibs)), rounds]
            command = [sys.executable, "-m", "benchmarks.gpu", "--rank", *map(str, given)]
            ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE if rank == 0 else None, text=True))
        lines, _ = ranks[0].communicate(timeout=600)
        if any(each.wait(60) for each in ranks):
            raise SystemExit("a rank failed")
    return lines.splitlines()


def slowest_in_turns(ways: dict[str, Body], device: str, rounds: int, calls: int) -> dict[str, float]:
    """Each way's time on the rank where it takes longest. Ranks begin together."""
    ms = in_turns(ways, device, rounds, calls, dist.barrier)
    every: list[dict[str, float]] = [{}] * dist.get_world_size()
    dist.all_gather_object(every, ms)
    return {way: max(one[way] for one in every) for way in ms}


def join(rank: int, world: int, store: str, device: str) -> None:
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
