# SPDX-License-Identifier: MIT
"""Absent, late, dead and interrupted ranks, and calls without headers that disagree: who is named, what works on."""

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import pool
import sheaf
from agree import everyone_gives_up, everyone_says, quantized, strange, works
from pool import fresh, run, run_raises, values

pytestmark = pytest.mark.usefixtures("engine")

WRONG_SIZES = {
    "length": ([2, 2], "sizes must have 3 entries, one per rank, got 2"),
    "negative": ([2, 2, -1], "sizes must not be negative, got [2, 2, -1]"),
    "own": ([2, 2, 5], "give this rank 5 rows, but it has 2"),
    "type": ([2, 2, 2.0], "sizes must be integers"),
}


LARGE = 3000
"""Columns that make a block too large to ride along with its header: then sized calls on c10d exchange none."""


def wrong_sizes(rank, world, sizes, columns, timeout):
    right = [2, 2, 2]
    start = time.monotonic()
    try:
        sheaf.all_gather(torch.ones(2, columns), sizes=sizes if rank == 2 else right, timeout=timeout)
    finally:
        took = time.monotonic() - start
        assert rank != 2 or took < timeout / 2, f"the rank that sees its mistake waited {took:.1f} s"


@pytest.mark.parametrize("name", WRONG_SIZES)
def test_wrong_sizes_of_small_tensors(name):
    sizes, text = WRONG_SIZES[name]
    everyone_says(3, text, wrong_sizes, sizes, 3, 30)


@pytest.mark.parametrize("name", WRONG_SIZES)
def test_wrong_sizes_of_large_tensors(name):
    sizes, text = WRONG_SIZES[name]
    everyone_says(3, text, wrong_sizes, sizes, LARGE, 30)


def _sized(change):
    """Both ops with sizes given, of a large tensor that `change` makes another one of on the odd rank."""
    ops = {
        "all_gather": lambda x, dim=0: sheaf.all_gather(x, dim, sizes=[2, 2, 2]),
        "reduce_scatter": lambda x, dim=0: sheaf.reduce_scatter(x, [2, 2, 2], dim),
    }
    rows = {"all_gather": 2, "reduce_scatter": 6}
    return {name: lambda odd, name=name: change(ops[name], torch.ones(rows[name], 6, LARGE), odd) for name in ops}


SIZED = {
    f"{op}: {text}": case
    for text, change in {
        "ranks disagree on dtype: int32 on rank 0": lambda op, x, odd: op(x.int() if odd else x),
        "ranks disagree on ndim: 2 on rank 0": lambda op, x, odd: op(x[:, 0] if odd else x),
        "ranks disagree on the size of dim 1: 5 on rank 0": lambda op, x, odd: op(x[:, :5] if odd else x),
        "ranks disagree on dim: ": lambda op, x, odd: op(x[:2, :2] if x.shape[0] == 2 else x, 1 if odd else 0),
        "rank 0 refuses: a 0-d tensor": lambda op, x, odd: op(torch.tensor(1.0) if odd else x),
        "rank 0 refuses: sparse tensors": lambda op, x, odd: op(x.to_sparse() if odd else x),
        "rank 0 refuses: quantized tensors": lambda op, x, odd: op(quantized(x) if odd else x),
        "rank 0 refuses: tensor subclasses such as Strange": lambda op, x, odd: op(strange(x) if odd else x),
        "rank 0 refuses: meta tensors": lambda op, x, odd: op(x.to("meta") if odd else x),
        "ranks disagree on dtype: int64 on rank 0": lambda op, x, odd: [
            op(x.long() if first else x)
            for first in (odd, not odd)  # in another order: the first raises
        ],
        f"rank 0 refuses: dim must be from -3 to 2, got {1 << 70}": lambda op, x, odd: op(x, 1 << 70 if odd else 0),
        "rank 0 refuses: dim must be from -3 to 2, got 7": lambda op, x, odd: op(x, 7 if odd else 0),
    }.items()
    for op, case in _sized(change).items()
}
"""By what every rank says: the calls of one in which rank 0 is the odd one."""


def checked(rank, world):
    """One process group with SHEAF_CHECK=1: what would end at the deadline is a ValueError on every rank."""
    said = []
    for sizes, _ in WRONG_SIZES.values():
        with pytest.raises(ValueError, match=" #") as caught:
            sheaf.all_gather(torch.ones(2, LARGE), sizes=sizes if rank == 2 else [2, 2, 2])
        said.append(str(caught.value))
    for call in (
        lambda: sheaf.reduce_scatter(torch.ones(6, LARGE if rank else LARGE + 1), [2, 2, 2]),
        lambda: sheaf.reduce_scatter(torch.ones(6, LARGE), [2, 2, 2] if rank else [1, 3, 2]),
        lambda: sheaf.reduce_scatter(torch.ones(6, LARGE), [2, 2, 2], op="sum" if rank else "mean"),
        lambda: sheaf.all_gather(torch.ones(2, LARGE), sizes=[2, 2, 2], grad="sum" if rank else "mean"),
        lambda: sheaf.reduce_scatter(torch.ones(6, LARGE), [2, 2, 2]) if rank else sheaf.gather_sizes(torch.ones(6)),
        *(lambda case=case: case(rank == 0) for case in SIZED.values()),
    ):
        with pytest.raises(ValueError, match=" #") as caught:
            call()
        said.append(str(caught.value))
    x = torch.ones(rank + 1, requires_grad=True)
    sheaf.all_gather(x, sizes=[1, 2, 3]).tensor.sum().backward()
    assert x.grad.tolist() == [3.0] * (rank + 1)
    return said


def test_headers_of_sized_calls():
    outcomes = fresh(3, checked, env={"SHEAF_CHECK": "1"}, timeout=120)
    assert all(outcome.error is None for outcome in outcomes), outcomes
    said = [outcome.value for outcome in outcomes]
    assert said[0] == said[1] == said[2], said
    for (_, text), got in zip(WRONG_SIZES.values(), said[0], strict=False):
        assert text in got, said[0]
    assert "the size of dim 1" in said[0][4] and "sizes: [1, 3, 2] on rank 0" in said[0][5], said[0]
    assert "reduction: mean on rank 0" in said[0][6] and "gradient mode: mean on rank 0" in said[0][7], said[0]
    assert "op: gather_sizes on rank 0" in said[0][8], said[0]
    for text, got in zip(SIZED, said[0][9:], strict=True):
        assert text.partition(": ")[2] in got and got.startswith(text.partition(": ")[0]), (text, got)


def settings_differ(rank, world):
    os.environ["SHEAF_CHECK"] = str(rank % 2)
    sheaf.all_gather(torch.ones(1))


def test_settings_are_compared():
    outcomes = fresh(2, settings_differ)
    said = {outcome.error for outcome in outcomes}
    assert len(said) == 1, said
    kind, text = said.pop()
    assert kind == "ValueError" and "SHEAF_CHECK=0" in text and "SHEAF_CHECK=1" in text, text


def sizes_disagree(rank, world, columns):
    sheaf.all_gather(torch.ones(2, columns), sizes=[2, 2, 3] if rank == 0 else [2, 2, 2], timeout=1)


def test_sizes_that_disagree_never_match(engine):
    # rank 2 has 2 rows: only rank 0's sizes are wrong, and rank 0 cannot see it
    said = "ranks disagree on sizes: [2, 2, 3] on rank 0; [2, 2, 2] on ranks 1, 2"
    everyone_says(3, said, sizes_disagree, 2)
    if engine == "shm":
        everyone_says(3, said, sizes_disagree, LARGE)
        return
    for text in everyone_gives_up(3, sizes_disagree, LARGE):
        assert "no answer from rank" in text, text
        assert "sizes [2, 2, 3]" in text and "sizes [2, 2, 2]" in text, text


def different_ops(rank, world, columns):
    x = torch.ones(6, columns)
    if rank == 0:
        sheaf.reduce_scatter(x, [2, 2, 2], timeout=30)
    sheaf.all_gather(x, timeout=30)


def test_calls_of_different_kinds():
    said = "ranks disagree on op: reduce_scatter on rank 0; all_gather on ranks 1, 2"
    everyone_says(3, said, different_ops, 2)
    everyone_says(3, said, different_ops, LARGE)


def past_it(rank, world):
    """Rank 0 makes a call without a header and gives up; the others come to it when it is in the next."""
    x = torch.ones(2, LARGE)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="no answer"):
            sheaf.all_gather(x, sizes=[2, 2, 2], timeout=0.5)
    else:
        time.sleep(2)
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="rank 0 is past it, in all_gather"):
            sheaf.all_gather(x, timeout=30)
        assert time.monotonic() - start < 15
    sheaf.all_gather(x)


@pytest.mark.parametrize("engine", ["c10d"], indirect=True)  # shm has no call without a header
def test_a_rank_that_went_on():
    run(3, past_it)


def late(rank, world):
    if rank == 1:
        time.sleep(2)
    sheaf.all_gather(torch.ones(rank + 1), timeout=0.7)


def test_a_late_rank_is_named_and_the_group_works_on():
    run(3, works)  # a group's first call, which settles its engine, needs all ranks at once
    raised = run_raises(3, late)
    for rank in (0, 2):
        kind, text = raised[rank]
        assert kind == "DistBackendError" and "no answer from rank 1 within 0.7 s; rank 1 never came" in text, text
    assert raised[1] is None, "what the others had posted was withdrawn"
    run(3, works)


def first_call_fails(rank, world):
    """Rank 0 gives up the group's first call before rank 1 comes to it: that call is over for rank 1 as well."""
    group = dist.new_group()
    if rank == 1:
        time.sleep(1.5)
    with pytest.raises(dist.DistBackendError, match="#1") as caught:
        sheaf.all_gather(torch.tensor([10 + rank]), group=group, timeout=30 if rank else 0.5)
    assert sheaf.all_gather(torch.tensor([20 + rank]), group=group, timeout=30).tensor.tolist() == [20, 21]
    return str(caught.value)


def test_a_first_call_that_fails_is_counted():
    early, late = run(2, first_call_fails)
    assert "no answer from rank 1 within 0.5 s; rank 1 never came" in early, early
    assert "rank 0" in late, late


def out_of_step(rank, world, settled):
    """Two groups in different orders, from their first call on or later."""
    pairs = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in pairs if settled else []:
        sheaf.all_gather(torch.ones(1), group=group)
    order = pairs if rank == 0 else pairs[::-1]
    for group in order:
        sheaf.all_gather(torch.ones(1), group=group, timeout=1.5)


@pytest.mark.parametrize("settled", [True, False])
def test_groups_in_different_orders(settled):
    # what a group's first call is about is not known yet while it settles the engine
    call = "all_gather #2 (float32 [1], dim 0)" if settled else "all_gather #1"
    for rank, outcome in enumerate(fresh(2, out_of_step, settled)):
        kind, text = outcome.error
        assert kind == "DistBackendError", text
        assert f"rank {1 - rank} never came: it " in text and f'{call} of group "' in text, text


def memory_in_use():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@contextlib.contextmanager
def at_most(more):
    """No memory for this process beyond what it has and so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory_in_use() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


MIB = 1 << 20


def out_of_memory(rank, world):
    """After the verdict rank 1 has memory for its result, but none to receive the others' blocks."""
    sizes = [8, 8, 8]
    block, whole = torch.ones(MIB // 2, 8), torch.ones(24, MIB // 2)  # 16 and 48 MiB
    calls = {
        "all_gather": (48, lambda: sheaf.all_gather(block, 1, sizes=sizes, timeout=1)),
        "all_gather_coalesced": (48, lambda: sheaf.all_gather_coalesced([block], 1, sizes=sizes, timeout=1)),
        "reduce_scatter": (16, lambda: sheaf.reduce_scatter(whole, sizes, timeout=1)),
        "reduce_scatter_coalesced": (16, lambda: sheaf.reduce_scatter_coalesced([whole], sizes, timeout=1)),
    }
    said = {}
    sheaf.all_gather(torch.ones(1))
    for name, (result, call) in calls.items():
        error = dist.DistBackendError if rank != 1 else MemoryError
        with at_most((result + 4) * MIB if rank == 1 else 1 << 40), pytest.raises(error) as caught:
            call()
        said[name] = str(caught.value)
        dist.barrier()  # there, and silent
    return said


@pytest.mark.parametrize("engine", ["c10d"], indirect=True)  # shm has what it needs to move from the start
def test_a_failure_after_the_verdict_is_told():
    # what glibc reserves for threads, and what Sheaf keeps, would be out of the limit's reach
    outcomes = fresh(3, out_of_memory, env={"MALLOC_ARENA_MAX": "1", "SHEAF_POOL_MB": "1"}, timeout=120)
    said = values(outcomes)
    for name, text in said[1].items():
        assert "lloc" in text and "rank" not in text, (name, text)
        for rank in (0, 2):
            assert f"rank 1 failed in {name} #" in said[rank][name] and "lloc" in said[rank][name], said[rank][name]


def dies(rank, world):
    sheaf.all_gather(torch.ones(1))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        sheaf.all_gather(torch.ones(1), timeout=60)
    finally:
        assert time.monotonic() - start < 30, "not before the deadline"
        # Over Gloo, a survivor that ends is lost as well: nobody does before both have raised.
        store = dist.TCPStore("127.0.0.1", pool.store_port, is_master=False)
        store.set(f"{rank} raised", "")
        store.wait([f"{2 - rank} raised"], timedelta(seconds=30))


def test_a_dead_rank_is_named():
    outcomes = fresh(3, dies, timeout=120)
    assert outcomes[1].returncode == -signal.SIGKILL
    for rank in (0, 2):
        kind, text = outcomes[rank].error
        assert kind == "DistBackendError" and "lost rank 1" in text, text


def interrupted(rank, world, backward):
    x = torch.ones(2, requires_grad=True)
    y, _ = sheaf.all_gather(x, timeout=30)
    if rank == 1:
        time.sleep(4)
        return 0.0
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    try:
        if not backward:
            sheaf.all_gather(x, timeout=30)
        try:
            y.sum().backward()
        except RuntimeError:  # what came through autograd is followed by the interrupt itself
            time.sleep(0.01)
    except KeyboardInterrupt:
        return time.monotonic() - start
    raise AssertionError("Ctrl-C was lost")


def ended(rank, world):
    """A handler of the user's own: what it raises comes out whole."""
    sheaf.all_gather(torch.ones(1))
    if rank == 1:
        time.sleep(3)
        return None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        sheaf.all_gather(torch.ones(1), timeout=30)
    except SystemExit as error:
        return error.code
    return None


def test_a_signal_handler_is_heard():
    assert fresh(2, ended)[0].value == 7


@pytest.mark.parametrize("backward", [False, True])
def test_control_c_ends_a_wait(backward):
    outcomes = fresh(2, interrupted, backward)
    assert outcomes[0].error is None and outcomes[0].value < 1.5, outcomes[0]
