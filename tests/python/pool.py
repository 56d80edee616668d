# SPDX-License-Identifier: MIT
"""Standing worker processes for multi-rank tests: one crew a world size, its ranks in one Gloo group.
`run` wants every rank to succeed, `run_raises` collects the errors, `fresh` starts processes of its own."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import datetime
import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

HERE = Path(__file__).resolve().parent
HOST = "127.0.0.1"
START_S = 180.0  # importing torch takes seconds a rank, more when the cores are taken
GRACE_S = 10.0  # once one rank of a `run` has failed, how long its peers may still take
CLOSE_S = 20.0
DUMP_S = 1.0  # for a stuck rank to write where it is
STDERR_SHOWN = 8000
PR_SET_PDEATHSIG = 1
BACKEND = "SHEAF_TEST_BACKEND"  # what the ranks' group is made of, if not Gloo

Body = Callable[..., Any]

store_port = 0
"""In a worker, where its crew's store is served."""


class RankError(AssertionError):
    """Some rank raised, died or missed its deadline; the text shows every rank."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one rank's task."""

    rank: int
    value: Any = None
    error: tuple[str, str] | None = None  # type name and text of what the body raised
    trace: str = ""
    missed: bool = False  # no answer before the deadline
    returncode: int | None = None  # how the process ended, where it did
    stderr: str = ""

    @property
    def answered(self) -> bool:
        return not self.missed and self.returncode in (None, 0)

    @property
    def ok(self) -> bool:
        return self.error is None and self.answered

    def describe(self) -> str:
        state = "ok" if self.ok else f"ended with return code {self.returncode}"
        if self.missed:
            state = "missed the deadline"
        elif self.error is not None:
            state = f"raised {self.error[0]}"
        parts = [f"--- rank {self.rank}: {state}", self.trace.rstrip()]
        if self.stderr and not self.ok:
            parts += [f"stderr of rank {self.rank}:", self.stderr[-STDERR_SHOWN:].rstrip()]
        return "\n".join(part for part in parts if part)


def values(outcomes: list[Outcome]) -> list[Any]:
    """Every rank's return value; RankError with all ranks' texts where one has none."""
    if not all(outcome.ok for outcome in outcomes):
        raise RankError("\n" + "\n".join(outcome.describe() for outcome in outcomes))
    return [outcome.value for outcome in outcomes]


def _nccl(rank: int) -> dict[str, str]:
    """NCCL takes ranks of one host for ranks with a GPU each: to share one they must look like hosts of their own."""
    return {"NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


class Rank:
    """One worker process: a connection that carries pickles, and a file that collects its stdout and stderr."""

    def __init__(self, rank: int, world: int, port: int, env: Mapping[str, str], group_timeout: float) -> None:
        self.rank = rank
        self.log = tempfile.TemporaryFile(mode="a+b")  # noqa: SIM115 - lives as long as the process
        self.conn, theirs = connection.Pipe()
        given = [theirs.fileno(), rank, world, port, os.getpid(), group_timeout]
        self.process = subprocess.Popen(
            [sys.executable, HERE / "pool.py", *map(str, given)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **_nccl(rank), **env},
            start_new_session=True,  # Ctrl-C in the terminal is the parent's to handle
        )
        theirs.close()
        self.seen = 0

    def send(self, message: bytes) -> None:
        self.seen = os.fstat(self.log.fileno()).st_size
        with contextlib.suppress(OSError):  # it may have ended: the answer will say how
            self.conn.send_bytes(message)

    def stderr(self) -> str:
        size = os.fstat(self.log.fileno()).st_size - self.seen
        return os.pread(self.log.fileno(), size, self.seen).decode(errors="replace")

    def answer(self) -> Outcome:
        try:
            value, error, trace = pickle.loads(self.conn.recv_bytes())
        except (EOFError, ConnectionResetError):
            return Outcome(self.rank, returncode=self.process.wait(CLOSE_S), stderr=self.stderr())
        return Outcome(self.rank, value, error, trace, stderr=self.stderr())

    def dump(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> tuple[int, str]:
        """Ends the process, in order where it follows and by force where it does not: return code and stderr."""
        self.conn.close()
        try:
            self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self.dump()
            time.sleep(DUMP_S)
            self.kill()
        with self.log:
            return self.process.returncode, self.stderr()


class Crew:
    """The ranks of one world; the store they meet at is served by this process."""

    def __init__(self, world: int, env: Mapping[str, str] | None = None, group_timeout: float = 60.0) -> None:
        self.store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.ranks = [Rank(rank, world, self.store.port, env or {}, group_timeout) for rank in range(world)]
        try:
            values(self.collect(START_S, GRACE_S))
        except BaseException:
            self.abandon()
            raise

    def task(self, body: Body, args: tuple[Any, ...], timeout: float, grace: float | None) -> list[Outcome]:
        message = pickle.dumps((sys.path, pickle.dumps((body, args))))
        for rank in self.ranks:
            rank.send(message)
        return self.collect(timeout, grace)

    def collect(self, timeout: float, grace: float | None) -> list[Outcome]:
        deadline = time.monotonic() + timeout
        waiting = {rank.conn: rank for rank in self.ranks}
        outcomes: dict[int, Outcome] = {}
        while waiting:
            ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for conn in ready:
                outcome = waiting.pop(conn).answer()  # type: ignore[call-overload]
                outcomes[outcome.rank] = outcome
                if grace is not None and not outcome.ok:
                    deadline = min(deadline, time.monotonic() + grace)
        for rank in waiting.values():
            rank.dump()
        if waiting:
            time.sleep(DUMP_S)
        for rank in waiting.values():
            rank.kill()
            code = rank.process.returncode
            outcomes[rank.rank] = Outcome(rank.rank, missed=True, returncode=code, stderr=rank.stderr())
        return [outcomes[rank.rank] for rank in self.ranks]

    def hang_up(self) -> None:
        for rank in self.ranks:
            rank.conn.close()

    def close(self) -> list[tuple[int, str]]:
        self.hang_up()  # all first: each may wait for the others on its way out
        return [rank.close() for rank in self.ranks]

    def abandon(self) -> None:
        for rank in self.ranks:
            rank.kill()
        self.close()


_crews: dict[int, Crew] = {}


def _standing(world: int, body: Body, args: tuple[Any, ...], timeout: float, grace: float | None) -> list[Outcome]:
    if world not in _crews:
        _crews[world] = Crew(world)
    try:
        outcomes = _crews[world].task(body, args, timeout, grace)
    except BaseException:
        _crews.pop(world).abandon()
        raise
    # Where a rank is gone, or failed when none should, the group may be out of step: the next use gets a new one.
    if not all(outcome.answered if grace is None else outcome.ok for outcome in outcomes):
        _crews.pop(world).abandon()
    return outcomes


def run(world: int, body: Body, *args: Any, timeout: float = 60.0) -> list[Any]:
    """Calls `body(rank, world, *args)` on every rank and returns every rank's value."""
    return values(_standing(world, body, args, timeout, GRACE_S))


def run_raises(world: int, body: Body, *args: Any, timeout: float = 60.0) -> list[tuple[str, str] | None]:
    """As `run`, but returns what each rank raised: (type name, text), None where nothing."""
    outcomes = _standing(world, body, args, timeout, None)
    if not all(outcome.answered for outcome in outcomes):
        values(outcomes)
    return [outcome.error for outcome in outcomes]


def fresh(
    world: int,
    body: Body,
    *args: Any,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    group_timeout: float = 60.0,
) -> list[Outcome]:
    """As `run` in processes of its own, with `env` added; errors, deaths and missed deadlines are returned as data."""
    crew = Crew(world, env, group_timeout)
    try:
        outcomes = crew.task(body, args, timeout, None)
    except BaseException:
        crew.abandon()
        raise
    ends = crew.close()
    return [dataclasses.replace(o, returncode=c, stderr=e) for o, (c, e) in zip(outcomes, ends, strict=True)]


def close_all() -> None:
    """Ends the standing crews; RankError where a worker did not end well."""
    bad = []
    for crew in _crews.values():
        crew.hang_up()
    for world in list(_crews):
        for rank, (code, stderr) in enumerate(_crews.pop(world).close()):
            if code != 0:
                bad.append(f"--- rank {rank} of {world} ended with return code {code}\n{stderr[-STDERR_SHOWN:]}")
    if bad:
        raise RankError("\n".join(["workers ended badly", *bad]))


atexit.register(close_all)


def _perform(rank: int, world: int, message: bytes) -> bytes:
    try:
        path, task = pickle.loads(message)
        sys.path[:] = path
        body, args = pickle.loads(task)
        return pickle.dumps((body(rank, world, *args), None, ""))
    except BaseException as error:
        return pickle.dumps((None, (type(error).__name__, str(error)), traceback.format_exc()))


def _serve(fd: int, rank: int, world: int, port: int, parent: int, group_timeout: float) -> None:
    global store_port
    store_port = port
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return  # it ended before the line above could be of use
    atexit.unregister(close_all)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    conn = connection.Connection(fd)
    store = TCPStore(HOST, port, is_master=False, timeout=datetime.timedelta(seconds=START_S))
    timeout = datetime.timedelta(seconds=group_timeout)
    backend = os.environ.get(BACKEND, "gloo")
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    conn.send_bytes(pickle.dumps((None, None, "")))
    while True:
        try:
            message = conn.recv_bytes()
        except (EOFError, ConnectionResetError):
            break
        conn.send_bytes(_perform(rank, world, message))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.modules["pool"] = sys.modules["__main__"]  # test modules import this one
    fd, rank, world, port, parent = map(int, sys.argv[1:6])
    _serve(fd, rank, world, port, parent, float(sys.argv[6]))
