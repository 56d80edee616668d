# SPDX-License-Identifier: MIT
"""A result in shared memory is an ordinary tensor: what may be done to one, how long it lives, and that neither writes
nor forks nor a full pool make a later result wrong."""

import copy
import io
import os
import pickle
import random
import resource
import threading
import time
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import sheaf
from pool import fresh, run, values

ROWS = {"segment": 100_000, "private": 1000}
"""float32 rows a rank: a result in a segment of the pool, and one that rode along with the headers."""

SHM = {"SHEAF_ENGINE": "shm"}

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.parametrize("engine", ["shm"], indirect=True)]


def block(rank, rows, salt=0.0):
    return torch.arange(rows, dtype=torch.float32) % 1000 + 1000 * rank + salt


def truth(world, rows, salt=0.0):
    return torch.cat([block(r, rows + r, salt) for r in range(world)])


def gathered(rank, world, rows, salt=0.0):
    return sheaf.all_gather(block(rank, rows + rank, salt)).tensor


def is_shared(tensor):
    """Whether its bytes lie in the group's file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return "memfd:sheaf" in line
    raise AssertionError("a tensor that lies nowhere")


def meet(world):
    """Everybody has come here; not by Sheaf, whose calls are what is tested."""
    dist.barrier()


# --- an ordinary tensor -----------------------------------------------------------------------------------------------
def written(y, rank, world, rows):
    meet(world)
    y[:: 1 + rank].add_(5).mul_(-1)
    y[-1] = rank
    expected = truth(world, rows)
    expected[:: 1 + rank].add_(5).mul_(-1)
    expected[-1] = rank
    meet(world)
    assert torch.equal(y, expected), "another rank's writes"


def resized(y, rank, world, rows):
    expected, n = truth(world, rows), y.numel()
    y.resize_(n * 3)
    y[n:] = 1
    assert torch.equal(y[:n], expected) and not is_shared(y)
    y.resize_(7)
    assert torch.equal(y, expected[:7])
    z = gathered(rank, world, rows)
    z.untyped_storage().resize_(0)
    z.untyped_storage().resize_(n * 4)
    assert z.fill_(3).eq(3).all()


def pickled(y, rank, world, rows):
    again = pickle.loads(pickle.dumps(y))
    assert torch.equal(again, y) and not is_shared(again)


def saved(y, rank, world, rows):
    whole, part = io.BytesIO(), io.BytesIO()
    torch.save(y, whole)
    torch.save(y[:10].clone(), part)
    assert len(whole.getvalue()) < y.nbytes + 4096, "more than the tensor was saved"
    assert len(part.getvalue()) < 4096
    view = io.BytesIO()
    torch.save(y[5:15], view)  # torch saves a view's whole storage: N bytes, not the segment
    assert len(view.getvalue()) < y.nbytes + 4096, "more than the storage was saved"
    whole.seek(0)
    view.seek(0)
    assert torch.equal(torch.load(whole), y) and torch.equal(torch.load(view), y[5:15])


def storage(y, rank, world, rows):
    assert y.untyped_storage().nbytes() == y.numel() * 4 == y.nbytes
    assert y.is_contiguous() and y.storage_offset() == 0 and not y.is_shared()
    other = torch.empty(0).set_(y.untyped_storage(), 3, (5,), (2,))
    assert torch.equal(other, y[3:13:2])
    y.set_(torch.ones(4).untyped_storage(), 0, (4,), (1,))
    assert y.eq(1).all() and torch.equal(other, truth(world, rows)[3:13:2])


def moved_to_shared_memory(y, rank, world, rows):
    y.share_memory_()
    assert y.is_shared() and torch.equal(y, truth(world, rows))


def as_numpy(y, rank, world, rows):
    array = y.numpy()
    array[0] = 77
    assert y[0] == 77 and numpy.shares_memory(array, y.numpy())
    del y
    assert numpy.array_equal(array[1:], truth(world, rows).numpy()[1:])


def by_dlpack(y, rank, world, rows):
    other = torch.from_dlpack(y.__dlpack__())
    array = numpy.from_dlpack(y)
    other[1] = 66
    assert y[1] == 66 and array[1] == 66
    del y, other
    assert numpy.array_equal(array[2:], truth(world, rows).numpy()[2:])


def copied(y, rank, world, rows):
    deep, shallow = copy.deepcopy(y), copy.copy(y)
    y.zero_()
    assert torch.equal(deep, truth(world, rows)) and shallow.eq(0).all() and not is_shared(deep)


def lazily_cloned(y, rank, world, rows):
    clone = torch._lazy_clone(y)
    y.add_(1)
    assert torch.equal(clone, truth(world, rows)) and torch.equal(y, truth(world, rows) + 1)
    again = torch._lazy_clone(clone)
    clone.zero_()
    assert torch.equal(again, truth(world, rows))


def viewed(y, rank, world, rows):
    assert torch.equal(y.view(torch.int32).view(torch.float32), truth(world, rows))
    last = sheaf.split(y, [rows + r for r in range(world)])[-1]
    del y
    for salt in range(3):
        gathered(rank, world, rows, salt + 1.0)
    assert torch.equal(last, block(world - 1, rows + world - 1)), "a view must keep the result"


USES = {
    use.__name__: use
    for use in (
        written, resized, pickled, saved, storage, moved_to_shared_memory, as_numpy, by_dlpack, copied, lazily_cloned,
        viewed,
    )
}  # fmt: skip


def is_used(rank, world, use, rows):
    for _ in range(80):  # where results are written into, the next ones of that size are private for a while
        y = gathered(rank, world, rows)
    assert torch.equal(y, truth(world, rows))
    was_shared = is_shared(y)
    USES[use](y, rank, world, rows)
    del y
    for salt in range(10):
        assert torch.equal(gathered(rank, world, rows, salt), truth(world, rows, salt)), f"after {use}"
    return was_shared


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("use", USES)
def test_a_result_is_an_ordinary_tensor(use, kind):
    assert run(2, is_used, use, ROWS[kind]) == [kind == "segment"] * 2


def read_elsewhere(inbox, outbox):
    tensor = inbox.get(timeout=60)
    outbox.put(float(tensor.double().sum()))
    tensor.zero_()
    outbox.put("zeroed")


def is_sent(rank, world, rows):
    """To a process that shares nothing else with this one, which may write into it as into any tensor sent."""
    y = gathered(rank, world, rows)
    expected = float(y.double().sum())
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    other = context.Process(target=read_elsewhere, args=(inbox, outbox))
    other.start()
    inbox.put(y)
    assert outbox.get(timeout=120) == expected and outbox.get(timeout=60) == "zeroed"
    other.join(60)
    del y
    assert torch.equal(gathered(rank, world, rows, 1.0), truth(world, rows, 1.0))


def test_a_result_is_sent_to_another_process():
    run(2, is_sent, ROWS["segment"], timeout=180)


# --- how long it lives ------------------------------------------------------------------------------------------------
def outlives_calls(rank, world):
    rows = ROWS["segment"]
    held = [(salt, gathered(rank, world, rows + salt, salt)) for salt in range(8)]
    for salt in range(100):
        gathered(rank, world, rows - 1000 * (salt % 5), salt + 0.5)
    for salt, y in held:
        assert torch.equal(y, truth(world, rows + salt, salt)), f"result {salt} changed"


def test_results_outlive_later_calls():
    run(3, outlives_calls)


def outlives_group_and_peers(rank, world):
    """Rank 1 leaves by itself, with all its memory; rank 0 goes on with what it has."""
    y = gathered(rank, world, ROWS["segment"])
    assert is_shared(y)
    meet(world)
    if rank == 1:
        os._exit(0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            sheaf.all_gather(torch.ones(1), timeout=30)
        except dist.DistBackendError:
            break
    dist.destroy_process_group()
    sheaf.all_gather(torch.ones(1))  # looks after the engines of groups that are gone
    assert torch.equal(y, truth(world, ROWS["segment"]))
    y.add_(1)
    assert torch.equal(y, truth(world, ROWS["segment"]) + 1)
    del y


def test_a_result_outlives_its_group_and_its_peers():
    outcomes = fresh(2, outlives_group_and_peers, env=SHM)
    assert outcomes[0].error is None and outcomes[0].returncode == 0, outcomes[0].describe()


def in_child(body):
    """Forks; what `body()` raises in the child is raised here."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"right"
        try:
            body()
        except BaseException as error:
            said = repr(error).encode()
        os.write(theirs, said)
        os._exit(0)
    os.close(theirs)

    def join():
        with os.fdopen(ours, "rb") as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
        assert said == b"right", said

    return join


def outlives_fork(rank, world, rows):
    """A child reads after its parent has made many more gathers, writes and drops; the parent's stay right."""
    held = [(salt, gathered(rank, world, rows, salt)) for salt in range(4)]
    held[1][1].mul_(2)
    go_read, go_write = os.pipe()

    def read_late():
        os.close(go_write)
        os.read(go_read, 1)
        for salt, y in held:
            factor = 2 if salt == 1 else 1
            assert torch.equal(y, truth(world, rows, salt) * factor), f"result {salt} changed in the child"
            y.zero_()
        held.clear()

    join = in_child(read_late)
    os.close(go_read)
    for salt in range(20):
        assert torch.equal(gathered(rank, world, rows, 10.0 + salt), truth(world, rows, 10.0 + salt))
    first = held[0][1]
    held.clear()
    for salt in range(100):
        y = gathered(rank, world, rows, 40.0 + salt)
        if salt % 10 == 0:
            assert torch.equal(y, truth(world, rows, 40.0 + salt))
    os.write(go_write, b".")
    os.close(go_write)
    join()
    for salt in range(5):
        assert torch.equal(gathered(rank, world, rows, 7.0 + salt), truth(world, rows, 7.0 + salt))
    assert torch.equal(first, truth(world, rows)), "the child's writes came through"


@pytest.mark.parametrize("kind", ROWS)
def test_a_result_outlives_a_fork(kind):
    values(fresh(2, outlives_fork, ROWS[kind], env=SHM))


# --- later results stay right -----------------------------------------------------------------------------------------
def writes_always(rank, world, calls):
    """Ranks write into different parts of their results, whole or in spots, and keep some of them for a while."""
    dice = random.Random(rank)
    sizes = random.Random(7)
    held = []
    for salt in range(calls):
        rows = sizes.choice([20_000, 50_000, 100_000])
        y = gathered(rank, world, rows, salt)
        assert torch.equal(y, truth(world, rows, salt)), f"call {salt}"
        how = dice.randrange(4)
        if how == 1:
            y.neg_()
        elif how == 2:
            y[dice.randrange(y.numel())] = -1
        elif how == 3:
            y[dice.randrange(y.numel()) :] = -2
        held.append(y)
        dice.shuffle(held)
        del held[dice.randrange(6) :]


@pytest.mark.parametrize("pool_mb", [1024, pytest.param(8, marks=pytest.mark.slow)])
def test_writes_into_results_stay_out_of_later_ones(pool_mb):
    values(fresh(3, writes_always, 300, env={**SHM, "SHEAF_POOL_MB": str(pool_mb)}, timeout=180))


def holds_many(rank, world, count):
    """More live results than the pool has room or segments for."""
    rows = ROWS["segment"]
    held = [gathered(rank, world, rows, salt) for salt in range(count)]
    kinds = {is_shared(y) for y in held}
    for salt, y in enumerate(held):
        assert torch.equal(y, truth(world, rows, salt)), f"result {salt}"
    whole = sum(y.nbytes for y in held if is_shared(y))
    held.clear()
    for salt in range(20):
        assert torch.equal(gathered(rank, world, rows, salt), truth(world, rows, salt))
    return kinds == {True, False}, whole


@pytest.mark.parametrize(("pool_mb", "count"), [(8, 40), (1024, 80)])
def test_more_live_results_than_the_pool_has_room(pool_mb, count):
    for mixed, whole in values(fresh(2, holds_many, count, env={**SHM, "SHEAF_POOL_MB": str(pool_mb)})):
        assert mixed, "none overflowed, or none was shared"
        assert whole <= pool_mb << 20


def threads(rank, world):
    torch.set_num_threads(2)
    rows = 4_000_000
    for salt in range(3):
        assert torch.equal(gathered(rank, world, rows, salt), truth(world, rows, salt))
        x = torch.ones(2, rows // 2, dtype=torch.int32).mul_(rank)
        y = sheaf.all_gather(x, 1).tensor
        assert all(part.eq(r).all() for r, part in enumerate(sheaf.split(y, [rows // 2] * world, 1)))
    whole = truth(world, rows)
    mine = sheaf.reduce_scatter(whole, [rows + r for r in range(world)])
    assert torch.equal(mine, block(rank, rows + rank) * world)


def test_two_threads_copy_what_one_does():
    values(fresh(2, threads, env={**SHM, "OMP_NUM_THREADS": "2"}))


# --- a steady loop ----------------------------------------------------------------------------------------------------
def footprint():
    status = Path("/proc/self/statm").read_text().split()
    return {
        "KiB": int(status[1]) * os.sysconf("SC_PAGESIZE") >> 10,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
    }


def loops(rank, world, calls):
    """Ragged sizes, all dims of which the pool has seen in the first half."""
    sizes = random.Random(3)
    own = torch.full((60_000,), float(rank + 1))
    seen = []
    for call in range(calls):
        rows = [sizes.randrange(1, 60_000) for _ in range(world)]
        y, got = sheaf.all_gather(own[: rows[rank]])
        assert got.tolist() == rows
        if call % 50 == 0:
            assert all(part.eq(r + 1).all() for r, part in enumerate(sheaf.split(y, got)))
        if call in (calls // 2, calls - 1):
            seen.append(footprint())
    return seen


def test_a_steady_loop_takes_nothing_more():
    calls = 2000
    for middle, end in values(fresh(2, loops, calls, env=SHM, timeout=120)):
        assert end["descriptors"] == middle["descriptors"], (middle, end)
        assert end["KiB"] <= middle["KiB"] + 4096, (middle, end)
        faults = (end["faults"] - middle["faults"]) / (calls / 2)
        assert faults < 20, f"{faults} page faults a call"
        print(f"{faults:.2f} page faults a call, {end['KiB'] - middle['KiB']} KiB more")


def small_results_live_apart(rank, world):
    """Small results take the memory of dropped ones: in any order, dropped by any thread, and some are resized."""
    kept = {}
    for number in range(400):
        rows = [(7 * number + 3 * r) % 50 for r in range(world)]
        y, sizes = sheaf.all_gather(torch.full((rows[rank], 1 + number % 9), float(number)))
        assert sizes.tolist() == rows and y.data_ptr() % 64 == 0
        kept[number] = (y, y.numel(), sizes, rows)
        if number % 5 == 4:
            dropped = [kept.pop(old) for old in list(kept)[:: 2 + number % 3]]
            thread = threading.Thread(target=dropped.clear)
            thread.start()
            thread.join()
        if number % 40 == 0 and kept:
            y, *_ = kept[number]
            y.resize_(5000).fill_(float(number))
            kept[number] = (y, 5000, *kept[number][2:])
        for old, (y, count, sizes, rows) in kept.items():
            assert y.numel() == count and y.eq(old).all() and sizes.tolist() == rows, (old, number)


def test_small_results_live_apart():
    run(2, small_results_live_apart, timeout=60)
