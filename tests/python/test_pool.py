# SPDX-License-Identifier: MIT
"""The pool itself: values, errors, deadlines and deaths of ranks, and that no worker outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pool import HERE, RankError, fresh, run, run_raises, values


def total(rank: int, world: int, start: int) -> tuple[int, int]:
    x = torch.tensor([start + rank])
    dist.all_reduce(x)
    return os.getpid(), int(x)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_answers_and_the_workers_stay(world: int) -> None:
    first = run(world, total, 10)
    again = run(world, total, 20)
    assert [value for _, value in first] == [10 * world + sum(range(world))] * world
    assert [value for _, value in again] == [20 * world + sum(range(world))] * world
    assert len({pid for pid, _ in first}) == world
    assert [pid for pid, _ in first] == [pid for pid, _ in again]


def double(rank: int, world: int, x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_tensors_travel_both_ways() -> None:
    x = torch.arange(6, dtype=torch.float64).view(2, 3)
    for y in run(2, double, x):
        assert torch.equal(y, 2 * x)


def rank_one_fails(rank: int, world: int) -> None:
    print(f"written by {rank}", file=sys.stderr, flush=True)
    if rank == 1:
        raise ValueError("no such thing")


def test_an_error_shows_its_traceback_and_stderr() -> None:
    with pytest.raises(RankError) as caught:
        run(2, rank_one_fails)
    text = str(caught.value)
    assert "rank 0: ok" in text
    assert "rank 1: raised ValueError" in text
    assert "in rank_one_fails" in text
    assert "no such thing" in text
    assert "written by 1" in text
    assert [value for _, value in run(2, total, 0)] == [1, 1]


def test_errors_as_data_leave_the_workers_alive() -> None:
    before = [pid for pid, _ in run(2, total, 0)]
    assert run_raises(2, rank_one_fails) == [None, ("ValueError", "no such thing")]
    assert [pid for pid, _ in run(2, total, 0)] == before


def rank_zero_hangs(rank: int, world: int) -> None:
    if rank == 0:
        time.sleep(600)


@pytest.mark.parametrize("call", [run, pytest.param(run_raises, marks=pytest.mark.slow)])
def test_a_missed_deadline_shows_where_and_renews_the_workers(call: object) -> None:
    before = [pid for pid, _ in run(2, total, 0)]
    with pytest.raises(RankError, match=r"(?s)rank 0: missed the deadline.*in rank_zero_hangs.*rank 1: ok"):
        call(2, rank_zero_hangs, timeout=1)  # type: ignore[operator]
    after = run(2, total, 5)
    assert [value for _, value in after] == [11, 11]
    assert not {pid for pid, _ in after} & set(before)


def rank_one_dies(rank: int, world: int) -> str:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def test_a_dead_rank_is_named_and_replaced() -> None:
    with pytest.raises(RankError, match="rank 1: ended with return code -9"):
        run(2, rank_one_dies)
    assert [value for _, value in run(2, total, 5)] == [11, 11]


def setting(rank: int, world: int) -> str:
    return os.environ["SHEAF_TEST_SETTING"]


def test_fresh_processes_have_their_own_environment() -> None:
    assert values(fresh(2, setting, env={"SHEAF_TEST_SETTING": "on"})) == ["on", "on"]
    assert "SHEAF_TEST_SETTING" not in os.environ


def test_fresh_reports_deaths_as_data() -> None:
    first, second = fresh(2, rank_one_dies)
    assert (first.ok, first.value, first.returncode) == (True, "alive", 0)
    assert (second.ok, second.error, second.returncode, second.missed) == (False, None, -signal.SIGKILL, False)


@pytest.mark.slow
def test_fresh_reports_errors_and_missed_deadlines_as_data() -> None:
    outcomes = fresh(2, rank_zero_hangs, timeout=1)
    assert [outcome.missed for outcome in outcomes] == [True, False]
    assert "rank_zero_hangs" in outcomes[0].stderr
    outcomes = fresh(2, rank_one_fails)
    assert [outcome.error for outcome in outcomes] == [None, ("ValueError", "no such thing")]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_no_worker_outlives_its_parent() -> None:
    # The workers are stuck in a task when their parent is killed, so only the kernel can end them.
    program = (
        "import pool, test_pool\n"
        "print(*[pid for pid, _ in pool.run(2, test_pool.total, 0)], flush=True)\n"
        "pool.run(2, test_pool.rank_zero_hangs)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=HERE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 30
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.05)
