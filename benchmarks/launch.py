# SPDX-License-Identifier: MIT
"""Runs a function as the ranks of a fresh Gloo group on this machine, and hands on what they report."""

import ctypes
import multiprocessing as mp
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchmarks.meeting import Meeting

HOST = "127.0.0.1"
PR_SET_PDEATHSIG = 1  # from sys/prctl.h
Report = Callable[[Any], None]

_here: tuple[Meeting, int] | None = None  # where this process meets the other ranks, and as which rank


def cores() -> int:
    return len(os.sched_getaffinity(0))


def run_ranks(world: int, body: Callable[..., None], *args: Any, silence: float = 120.0) -> Iterator[Any]:
    """Calls `body(rank, report, *args)` in `world` new processes and yields everything they `report`.

    The store listens on a port the system picks. A rank that fails, dies, or leaves the parent without any
    word for `silence` seconds ends the run with an error that names it; no process outlives this call.
    """
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    meeting = Meeting(world)
    context = mp.get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: dict[Connection, int] = {}
    try:
        for rank in range(world):
            reader, writer = context.Pipe(duplex=False)
            place = (rank, world, store.port, meeting)
            child = context.Process(target=_rank_main, args=(body, place, writer, args), daemon=True)
            child.start()
            writer.close()  # so that the death of the child reads as the end of the pipe
            processes.append(child)
            pipes[reader] = rank
        yield from _reports(pipes, silence)
        _join(processes, seconds=10)
    finally:
        for child in processes:
            if child.is_alive():
                child.kill()
            child.join()
        meeting.close()


def meet() -> None:
    """Called by every rank before it takes the time: dist.barrier(), then a meeting that lets all go at once.

    Gloo's barrier ends tens of microseconds later on one rank than on another, which is more than a small call takes.
    """
    assert _here is not None
    meeting, rank = _here
    dist.barrier()
    meeting.wait(rank)


def _reports(pipes: dict[Connection, int], silence: float) -> Iterator[Any]:
    while pipes:
        ready = wait(list(pipes), timeout=silence)
        if not ready:
            raise TimeoutError(f"no word from ranks {sorted(pipes.values())} for {silence:g} s")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            try:
                kind, payload = pipe.recv()
            except EOFError:
                raise RuntimeError(f"rank {pipes[pipe]} died") from None
            if kind == "failed":
                raise RuntimeError(f"rank {pipes[pipe]} failed:\n{payload}")
            if kind == "done":
                del pipes[pipe]
            else:
                yield payload


def _join(processes: list[SpawnProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for child in processes:
        child.join(max(0.0, deadline - time.monotonic()))


def _rank_main(
    body: Callable[..., None], place: tuple[int, int, int, Meeting], pipe: Connection, args: tuple[Any, ...]
) -> None:
    global _here
    rank, world, port, meeting = place
    _here = meeting, rank
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # so that no rank outlives a parent that is killed
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(max(1, cores() // world))
        store = TCPStore(HOST, port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
        body(rank, lambda payload: pipe.send(("report", payload)), *args)
        dist.barrier()
        dist.destroy_process_group()
        pipe.send(("done", None))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
