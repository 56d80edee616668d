# SPDX-License-Identifier: MIT
"""Runs a function as the ranks of a fresh Gloo group on this machine, and hands on what they report."""

import multiprocessing as mp
import os
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
import torch.distributed as dist

HOST = "127.0.0.1"
Report = Callable[[Any], None]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def run_ranks(world: int, body: Callable[..., None], *args: Any, silence: float = 120.0) -> Iterator[Any]:
    """Calls `body(rank, report, *args)` in `world` new processes and yields everything they `report`.

    The store listens on a port the system picks. A rank that fails, dies, or leaves the parent without any
    word for `silence` seconds ends the run with an error that names it; no process outlives this call.
    """
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: dict[Connection, int] = {}
    try:
        for rank in range(world):
            reader, writer = context.Pipe(duplex=False)
            child = context.Process(target=_rank_main, args=(body, rank, world, store.port, writer, args), daemon=True)
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
    body: Callable[..., None], rank: int, world: int, port: int, pipe: Connection, args: tuple[Any, ...]
) -> None:
    try:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(max(1, cores() // world))
        store = dist.TCPStore(HOST, port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
        body(rank, lambda payload: pipe.send(("report", payload)), *args)
        dist.barrier()
        dist.destroy_process_group()
        pipe.send(("done", None))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
