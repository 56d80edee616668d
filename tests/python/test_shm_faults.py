# SPDX-License-Identifier: MIT
"""Ranks over shared memory that die, stop or come late, at any point of a call: who is named and how soon, what works
on, and that nothing is left of them."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

import sheaf
from forked import Family, nursery
from pool import HERE

pytestmark = pytest.mark.slow

SOON_S = 5.0  # it takes a tenth of a second; the cores may be taken
SMALL, LARGE = 10, 300_000
"""float32 rows a rank: with its header, and in a segment of the pool."""

ROOMY = {"SHEAF_POOL_MB": "1024"}
NARROW = {"SHEAF_POOL_MB": "1"}
"""A pool too small for LARGE, and no look into other ranks' memory: gathers and sums go in steps."""


def block(rank, rows, salt=0):
    return torch.arange(rows, dtype=torch.float32).mul_(rank + 1).add_(salt)


def gather(rank, world, rows, salt=0, timeout=60):
    """Rank r holds rows + r rows of multiples of r + 1."""
    y, sizes = sheaf.all_gather(block(rank, rows + rank, salt), timeout=timeout)
    assert sizes.tolist() == [rows + r for r in range(world)]
    for r, part in enumerate(sheaf.split(y, sizes)):
        assert torch.equal(part, block(r, rows + r, salt)), f"rank {r}'s block is wrong"


def scatter(rank, world, rows, salt=0, timeout=60):
    """Every rank sums world * (rows + r) rows, of which rank r gets rows + r."""
    sizes = [rows + r for r in range(world)]
    whole = torch.ones(sum(sizes)) * (rank + 1) + salt
    got = sheaf.reduce_scatter(whole, sizes, timeout=timeout)
    assert got.shape == (rows + rank,) and got.eq(world * (world + 1) / 2 + world * salt).all()


CALLS = {"gather": gather, "scatter": scatter}


def check_lost(family, victim, since):
    """Every survivor raises soon, and names the dead rank."""
    times = []
    for said in family.hear_all(but=victim):
        assert said[0] == "raised" and said[1] == "DistBackendError", said
        assert f"lost rank {victim}" in said[2], said[2]
        times.append(said[3] - since)
        assert times[-1] < SOON_S, f"{times[-1]:.1f} s: {said[2]}"
    return max(times)


# --- deaths -----------------------------------------------------------------------------------------------------------
DEATHS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "null": lambda: ctypes.string_at(0),
    "_exit": lambda: os._exit(3),
    "exit": lambda: ctypes.CDLL(None).exit(3),  # with every destructor of the process
}


def dies_before(rank, world, conn, death, call, rows, victim):
    gather(rank, world, rows)
    if rank == victim:
        conn.send(time.monotonic())
        DEATHS[death]()
    CALLS[call](rank, world, rows)


def deaths_before_a_call(victim):
    slowest = 0.0
    for death in DEATHS:
        for call in CALLS:
            for rows in (SMALL, LARGE):
                with Family(3, dies_before, death, call, rows, victim) as family:
                    since = family.hear(victim)
                    slowest = max(slowest, check_lost(family, victim, since))
    return slowest


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_dies_before_a_call(victim):
    print(f"seen within {nursery(deaths_before_a_call, victim):.2f} s")


def dies_hosting(rank, world, conn):
    gather(rank, world, SMALL)
    if rank == 0:
        conn.send(time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    gather(rank, world, SMALL)


def death_of_the_host_of_the_store():
    with Family(3, dies_hosting, rank_0_hosts=True) as family:
        return check_lost(family, 0, family.hear(0))


def test_the_rank_that_hosts_the_store_dies():
    print(f"seen within {nursery(death_of_the_host_of_the_store):.2f} s")


def dies_large(rank, world, conn):
    gather(rank, world, SMALL)
    if rank == 1:
        ballast = torch.ones(1 << 30, dtype=torch.uint8)
        conn.send(time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
        del ballast
    gather(rank, world, SMALL)


def death_with_a_gigabyte():
    with Family(2, dies_large) as family:
        return check_lost(family, 1, family.hear(1))


def test_a_rank_dies_with_a_gigabyte_resident():
    print(f"seen within {nursery(death_with_a_gigabyte):.2f} s")


PROGRAM = """
import datetime, sys, torch, torch.distributed as dist, sheaf
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=60))
sheaf.all_gather(torch.ones(rank + 1))
if rank == 1:
    raise RuntimeError("the data is bad")
sheaf.all_gather(torch.ones(rank + 1))
"""


def test_a_program_that_ends_by_an_exception(tmp_path):
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "SHEAF_ENGINE": "shm"}
    given = [[sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store")] for rank in range(2)]
    programs = [subprocess.Popen(one, env=env, cwd=HERE, stderr=subprocess.PIPE, text=True) for one in given]
    try:
        said = [program.communicate(timeout=50)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
    assert "the data is bad" in said[1]
    assert "DistBackendError" in said[0] and "lost rank 1" in said[0], said[0]


def works_until_lost(rank, world, conn, seed):
    """Calls of every kind and size until one raises; in each, data that tells calls apart."""
    dice = random.Random(seed)
    gather(rank, world, SMALL)
    conn.send("ready")
    for salt in range(1_000_000):
        call = dice.choice(list(CALLS.values()))
        call(rank, world, dice.choice([1, SMALL, 3000, 30_000, LARGE]), salt % 100)


def deaths_at_random(seed, rounds):
    dice = random.Random(seed)
    times = []
    for round_ in range(rounds):
        world = dice.choice([2, 2, 3])
        victim = dice.randrange(world)
        with Family(world, works_until_lost, seed + round_) as family:
            assert family.hear_all() == ["ready"] * world
            time.sleep(dice.uniform(0, 0.03))
            since = family.signal(victim, dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV]))
            times.append(check_lost(family, victim, since))
    return sorted(times)


@pytest.mark.parametrize("env", [ROOMY, NARROW], ids=["roomy", "narrow"])
def test_deaths_at_random_points(env):
    times = nursery(deaths_at_random, len(env), 100, **env)
    print(f"100 deaths seen within {times[50]:.3f} s (median), {times[-1]:.3f} s (slowest)")


def first_call(rank, world, conn):
    conn.send("ready")
    conn.recv()
    while True:  # where the first one was quicker than death
        gather(rank, world, SMALL, timeout=3)


def deaths_in_the_first_call(rounds):
    """A rank that has not told its process yet can only be missed at the deadline."""
    dice = random.Random(rounds)
    for _ in range(rounds):
        victim = dice.randrange(3)
        with Family(3, first_call) as family:
            family.hear_all()
            family.tell("go")
            time.sleep(dice.uniform(0, 0.02))
            family.signal(victim, signal.SIGKILL)
            for said in family.hear_all(but=victim):
                assert said[0] == "raised" and said[1] == "DistBackendError" and f"rank {victim}" in said[2], said


def test_deaths_in_the_first_call():
    nursery(deaths_in_the_first_call, 15)


def first_call_late(rank, world, conn):
    conn.recv()
    gather(rank, world, SMALL)


def death_before_the_last_one_comes():
    """Rank 1 is in the group's first call when it dies, rank 2 not yet."""
    with Family(3, first_call_late) as family:
        for rank in (0, 1):
            family.conns[rank].send("go")
        time.sleep(1)
        family.signal(1, signal.SIGKILL)
        since = time.monotonic()
        family.conns[2].send("go")
        return check_lost(family, 1, since)


def test_a_rank_dies_before_the_last_one_comes_to_the_first_call():
    print(f"seen within {nursery(death_before_the_last_one_comes):.2f} s")


# --- late and stopped -------------------------------------------------------------------------------------------------
def stopped(rank, world, conn, call, rows):
    """Rank 1 stops before a call; the others give up; then it goes on, and all of them with it."""
    CALLS[call](rank, world, rows)
    conn.send("ready")
    conn.recv()
    start = time.monotonic()
    try:
        CALLS[call](rank, world, rows, timeout=1)
        conn.send(("right", "", time.monotonic() - start))
    except dist.DistBackendError as error:
        conn.send(("raised", str(error), time.monotonic() - start))
    conn.recv()
    for salt in range(3):
        for one in CALLS.values():
            for size in (SMALL, LARGE):
                one(rank, world, size, salt)
    conn.send("works on")


def a_stopped_rank(call, rows):
    with Family(3, stopped, call, rows) as family:
        assert family.hear_all() == ["ready"] * 3
        family.signal(1, signal.SIGSTOP)
        family.tell("go")
        for kind, text, took in family.hear_all(but=1):
            assert kind == "raised" and 0.9 < took < 1 + SOON_S, (kind, text, took)
            op = {"gather": "all_gather #1 ", "scatter": "reduce_scatter #1 "}[call]
            assert "no answer from rank 1 within 1 s; rank 1 never came" in text, text
            assert f"before, it was in {op}(float32 [" in text and "is stopped" in text, text
            assert "This rank is in" in text, text
        family.signal(1, signal.SIGCONT)
        kind, text, _ = family.hear(1)
        # A small call is whole in the frames that wait for it; in a large one the others have left.
        assert kind == ("right" if rows == SMALL and call == "gather" else kind), text
        family.tell("on")
        assert family.hear_all() == ["works on"] * 3
        return family.close()


@pytest.mark.parametrize("env", [ROOMY, NARROW], ids=["roomy", "narrow"])
@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.parametrize("call", CALLS)
def test_a_stopped_rank_is_named_and_the_group_works_on(call, rows, env):
    assert nursery(a_stopped_rank, call, rows, **env) == [0, 0, 0]


def stops_at_random(rank, world, conn, seed, calls):
    """Every rank makes the same calls, of which some fail; none is wrong, and after them all are well."""
    dice = random.Random(seed)
    gather(rank, world, SMALL)
    conn.send("ready")
    failed = 0
    for salt in range(calls):
        call, rows = dice.choice(list(CALLS.values())), dice.choice([1, SMALL, 30_000, LARGE])
        try:
            call(rank, world, rows, salt % 50, timeout=0.05)
        except dist.DistBackendError:
            failed += 1
    conn.send(failed)
    conn.recv()
    for salt in range(10):
        for one in CALLS.values():
            one(rank, world, LARGE, salt)
    conn.send("works on")


def stopping_at_random(seed):
    dice = random.Random(seed)
    with Family(3, stops_at_random, seed, 100) as family:
        assert family.hear_all() == ["ready"] * 3
        for _ in range(6):
            victim = dice.randrange(3)
            family.signal(victim, signal.SIGSTOP)
            time.sleep(dice.uniform(0.05, 0.2))
            family.signal(victim, signal.SIGCONT)
            time.sleep(dice.uniform(0, 0.05))
        failed = family.hear_all()
        assert all(isinstance(count, int) for count in failed), failed
        family.tell("on")
        said = family.hear_all()
        assert said == ["works on"] * 3, said
        return sum(failed)


@pytest.mark.parametrize("env", [ROOMY, NARROW], ids=["roomy", "narrow"])
def test_stops_at_random_points(env):
    failed = [nursery(stopping_at_random, seed, **env) for seed in range(3)]
    assert sum(failed) > 0, "no call was in time to fail"
    print(f"{failed} calls failed")


def late_in_data(rank, world, conn):
    """The failed result is dropped while a late rank still writes its block of it; later results are right."""
    gather(rank, world, SMALL)
    for salt in range(5):
        try:
            if rank == 1:
                time.sleep(0.3)
            gather(rank, world, LARGE, salt, timeout=0.1 if rank == 0 else 60)
        except dist.DistBackendError:
            pass
        gather(rank, world, LARGE, 10 + salt)
    conn.send("right")


def a_late_rank():
    with Family(2, late_in_data) as family:
        return family.hear_all()


def test_results_after_a_late_rank():
    assert nursery(a_late_rank) == ["right", "right"]
