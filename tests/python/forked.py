# SPDX-License-Identifier: MIT
"""Ranks by fork from one process that has imported torch: a fresh group in a tenth of a second, for tests that end
many of them. Use it inside `nursery`, so that the forking process has no group, no threads and no results."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import os
import signal
import time
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import pool
from pool import HOST, PR_SET_PDEATHSIG, Body, fresh, values

ANSWER_S = 60.0


def nursery(body: Body, *args: Any, timeout: float = 300.0, **env: str) -> Any:
    """Calls `body(*args)` in a process of its own and returns its value."""
    settings = {"SHEAF_ENGINE": "shm", **env}
    return values(fresh(1, _alone, body, args, env=settings, timeout=timeout))[0]


def _alone(rank: int, world: int, body: Body, args: tuple[Any, ...]) -> Any:
    dist.destroy_process_group()
    before = left_behind()
    value = body(*args)
    check_nothing_left(before)
    return value


def left_behind() -> set[str]:
    """What outlives a process unless somebody removes it, and the children of this one."""
    shared = {f"/dev/shm/{entry.name}" for entry in Path("/dev/shm").iterdir()}
    sockets = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "@sheaf-" in line}
    children = {f"child {pid}" for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    return shared | sockets | children


def held_by_others(files: set[str]) -> set[str]:
    """Those that a living process has mapped."""
    held: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            held |= {name for line in maps.read_text().splitlines() if (name := line.split()[-1]) in files}
    return held


def check_nothing_left(before: set[str]) -> None:
    """Other programs on this machine come and go; the ranks of this one are gone, so what is left of them stays."""
    deadline = time.monotonic() + 20
    while (left := left_behind() - before) and (left := left - held_by_others(left)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"left on the system: {left}"


class Family:
    """The ranks of one group. Each calls `body(rank, world, conn, *args)` and talks to the test through `conn`. They
    meet at the store of the process that started the nursery: one that forks loses connections made meanwhile."""

    count = 0

    def __init__(self, world: int, body: Body, *args: Any, timeout: float = 60.0, rank_0_hosts: bool = False) -> None:
        self.world = world
        self.ends: dict[int, int] = {}
        port = None if rank_0_hosts else pool.store_port
        Family.count += 1
        self.pids: list[int] = []
        self.conns: list[connection.Connection] = []
        for rank in range(world):
            ours, theirs = connection.Pipe()
            pid = os.fork()
            if pid == 0:
                for other in [ours, *self.conns]:
                    other.close()  # a rank sees by its own pipe alone that the parent hangs up
                _be(rank, world, theirs, port, timeout, body, args)
            theirs.close()
            self.pids.append(pid)
            self.conns.append(ours)
        if port is None:
            self.tell(self.hear(0), but=0)

    def hear(self, rank: int) -> Any:
        """What the rank says next; ("ended", …) where it does not."""
        assert self.conns[rank].poll(ANSWER_S), f"rank {rank} said nothing for {ANSWER_S} s"
        try:
            return self.conns[rank].recv()
        except (EOFError, ConnectionResetError):
            return ("ended", self.reap(rank))

    def hear_all(self, but: int = -1) -> list[Any]:
        return [self.hear(rank) for rank in range(self.world) if rank != but]

    def tell(self, message: Any, but: int = -1) -> None:
        for rank in range(self.world):
            if rank != but:
                self.conns[rank].send(message)

    def signal(self, rank: int, number: int) -> float:
        now = time.monotonic()
        os.kill(self.pids[rank], number)
        return now

    def reap(self, rank: int) -> int:
        if rank not in self.ends:
            self.ends[rank] = os.waitstatus_to_exitcode(os.waitpid(self.pids[rank], 0)[1])
        return self.ends[rank]

    def close(self) -> list[int]:
        for conn in self.conns:
            conn.close()
        return [self.reap(rank) for rank in range(self.world)]

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in range(self.world):
            if rank not in self.ends:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pids[rank], signal.SIGKILL)
        self.close()


def _be(
    rank: int,
    world: int,
    conn: connection.Connection,
    port: int | None,
    timeout: float,
    body: Body,
    args: tuple[Any, ...],
) -> None:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        store: dist.Store
        if port is None and rank == 0:
            store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
            conn.send(store.port)
        else:
            store = TCPStore(HOST, conn.recv() if port is None else port, is_master=False)
        limit = datetime.timedelta(seconds=timeout)
        store = dist.PrefixStore(f"family {Family.count}", store)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
        body(rank, world, conn, *args)
    except BaseException as error:
        with contextlib.suppress(OSError):
            conn.send(("raised", type(error).__name__, str(error), time.monotonic()))
    with contextlib.suppress(EOFError, OSError):
        conn.recv()  # until the parent hangs up: ranks that end make the others raise
    os._exit(0)
