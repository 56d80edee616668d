# SPDX-License-Identifier: MIT
"""Ranks as processes that share one device: NCCL must take them for hosts of their own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import torch.distributed as dist

from benchmarks.gpu.timing import Body, in_turns


def service() -> str:
    """The program that has ranks use a GPU at the same time."""
    name = "nvidia-cuda-mps-control"
    found = shutil.which(name)
    if not found:
        raise SystemExit(
            f"Ranks use one GPU at the same time by NVIDIA's multi-process service, but {name}, which comes with the "
            "driver, is not on PATH. The other parts: --only kernels local started"
        )
    return found


@contextmanager
def at_once(device: str) -> Iterator[None]:
    """Ranks that are made in here use the device at the same time. On a GPU they would else wait milliseconds for their
    turns, and how many turns depends on the driver."""
    if device != "cuda":
        yield
        return
    control = service()
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"  # a file, since the service would hold a pipe open
        with patch.dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder):
            with said.open("w") as words:
                begun = subprocess.run([control, "-d"], stderr=words, timeout=30, check=False)
            if begun.returncode:
                raise SystemExit(f"{control} does not start (exit {begun.returncode}): {said.read_text().strip()}")
            try:
                yield
            finally:
                with suppress(subprocess.TimeoutExpired):  # what ended the ranks says more
                    subprocess.run([control], input="quit\n", text=True, timeout=60, check=False)


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
