# SPDX-License-Identifier: MIT
"""Asynchronous calls: what they return, that a start waits for nobody, orders of waiting, dropped handles, the end."""

import ctypes
import os
import resource
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import schema_check_mode

import async_cases
import async_graphs
import sheaf
from async_cases import LARGE, await_mark, key, mark
from compiled import ran
from pool import fresh, run
from truth import same

pytestmark = pytest.mark.usefixtures("engine")

WORLDS = [1, 2, 3, 5]


@pytest.mark.parametrize("world", WORLDS)
def test_values_and_gradients(world):
    run(world, async_cases.every_call, "cpu")


@pytest.mark.parametrize("world", [2, 3])
def test_large_blocks(world):
    run(world, async_cases.large_calls, "cpu")


@pytest.mark.parametrize("world", WORLDS)
def test_second_derivative(world):
    run(world, async_cases.second_order_of_every_mode, "cpu")


def handles_have_no_length():
    """opcheck asks for it, to find lists of tensors, and takes a handle's answer for a failure."""
    is_list = schema_check_mode.is_iterable_of_tensors
    return mock.patch.object(
        schema_check_mode, "is_iterable_of_tensors", lambda given: isinstance(given, list) and is_list(given)
    )


def opcheck_of_starts(rank, world):
    """What opcheck can check of ops that return or take a handle, which has no fake."""
    sizes = [r + 1 for r in range(world)]
    rows, name, ops = torch.tensor(sizes), dist.group.WORLD.group_name, torch.ops.sheaf
    for recorded in (False, True):
        x = torch.ones(rank + 1, 3, requires_grad=recorded)
        y = torch.ones(sum(sizes), 3, requires_grad=recorded)
        for op, args in (
            (ops.start_all_gather, (x, None, 0, world, "sum", name)),
            (ops.start_all_gather, (x, rows, 0, world, "own", name)),
            (ops.start_reduce_scatter, (y, rows, 0, world, "mean", name)),
            (ops.start_all_gather_coalesced, ([x, x], None, [0, 0], world, ["sum", "own"], name)),
            (ops.start_reduce_scatter_coalesced, ([y, y], rows.expand(2, -1), [0, 0], world, ["sum", "mean"], name)),
        ):
            torch.library.opcheck(op.default, args, test_utils=("test_schema", "test_autograd_registration"))
        handle = ops.start_all_gather(x, None, 0, world, "sum", name)
        with handles_have_no_length():
            for op in (ops.wait, ops.done):
                torch.library.opcheck(op.default, (handle,), test_utils="test_schema")
    torch.library.opcheck(ops.engine.default, (name,), test_utils="test_schema")


@pytest.mark.parametrize("world", [2, 3])
def test_opcheck(world):
    run(world, opcheck_of_starts)


@pytest.mark.parametrize("case", [async_cases.hooks, async_cases.some_start_what_others_call])
@pytest.mark.parametrize("world", [2, 3])
def test_like_the_plain_call(case, world):
    run(world, case, "cpu")


@pytest.mark.parametrize("case", async_graphs.EVERY, ids=lambda case: case.__name__)
@pytest.mark.parametrize("world", [2, 3])
def test_graphs_that_differ_by_rank(case, world):
    run(world, case, "cpu")


def test_a_start_waits_for_nobody():
    run(2, async_cases.starts_before_the_peer, "cpu")


def test_a_refusal_waits_for_nobody():
    run(2, async_cases.refusals_wait_for_nobody, "cpu")


def test_a_busy_rank_holds_nobody_up():
    run(2, async_cases.computes_while_the_peer_waits, "cpu")


def in_the_store_meanwhile(rank, world):
    """Rank 0 waits in the store, which answers one thread at a time, for what rank 1 does after the call. That rank
    comes so late that rank 0 would leave word there of the call it is in."""
    sheaf.all_gather(torch.ones(1))
    x, now = torch.full((rank + 1, LARGE), rank + 1.0), key()
    if rank == 0:
        handle = sheaf.all_gather(x, async_op=True)
        dist.distributed_c10d._get_default_store().get(f"async-test/{now}")
        y = handle.wait().tensor
    else:
        threading.Event().wait(3.0)
        y = sheaf.all_gather(x, async_op=True).wait().tensor
        mark(now)
    same(y, torch.cat([torch.full((r + 1, LARGE), r + 1.0) for r in range(world)]), "value")


def test_a_rank_that_waits_in_the_store_holds_nobody_up():
    run(2, in_the_store_meanwhile, timeout=20)


def test_backward_is_started_early_and_waited_for_late():
    run(2, async_cases.backward_starts_early, "cpu")


@pytest.mark.parametrize("world", [2, 3, 5])
def test_waits_in_any_order(world):
    run(world, async_cases.in_any_order, "cpu")


@pytest.mark.parametrize("world", [2, 3])
def test_sixty_four_in_flight_and_a_clear_error(world):
    run(world, async_cases.many_in_flight, "cpu")


def test_dropped_handles_make_room():
    run(2, async_cases.dropped_make_room, "cpu")


@pytest.mark.parametrize("world", [2, 3])
def test_gradients_recorded_on_one_rank(world):
    run(world, async_cases.recording_on_one_rank, "cpu")


@pytest.mark.parametrize("world", [2, 3])
def test_beside_the_programs_own_collectives(world):
    run(world, async_cases.beside_the_programs_own, "cpu")


@pytest.mark.parametrize("world", [2, 3])
def test_dropped_handles(world):
    run(world, async_cases.dropped, "cpu")


class MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = (("_", ctypes.c_size_t * 7), ("uordblks", ctypes.c_size_t), ("__", ctypes.c_size_t * 2))


def on_the_heap():
    """Bytes that are allocated and not freed, of all threads, but for large blocks with pages of their own."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallInfo
    return mallinfo().uordblks


def flat_memory(rank, world, count, several, slack):
    """A tenth of the calls is dropped. After some, `count` calls take no more pages than `slack` bytes, and of the heap
    no more than 128 KiB: pages alone would hide 100 bytes a call that nobody frees."""
    x = torch.ones(rank + 1, LARGE if count < 1000 else LARGE // 2, requires_grad=True)
    ids, whole = torch.arange(rank + 1), torch.ones(3, x.shape[1])

    def rounds(number):
        for n in range(number):
            if several:
                handle = sheaf.all_gather_coalesced([x, ids], async_op=True)
            else:
                handle = sheaf.all_gather(x, async_op=True)
            if n % 10 == 5:
                sheaf.reduce_scatter(whole, [1, 2], async_op=True)  # dropped
            if n % 10 != 3:
                result = handle.wait()
                (result[0] if several else result).tensor.sum().backward()
                del result
            del handle
        sheaf.all_gather(x.detach())

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def threads():
        return len(list(Path("/proc/self/task").iterdir()))

    rounds(min(count, 1000))
    before, running, held = resident(), threads(), on_the_heap()
    rounds(count)
    grown, more = resident() - before, on_the_heap() - held
    assert grown < slack, f"{count} calls more took {grown} bytes"
    assert more < 128 << 10, f"{count} calls more left {more} bytes on the heap"
    assert threads() <= running


@pytest.mark.parametrize("several", [False, True], ids=["one tensor", "several"])
def test_memory_is_flat(several):
    run(2, flat_memory, 300, several, 8 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(("several", "calls"), [(False, 10_000), (True, 2_000)], ids=["one tensor", "several"])
def test_memory_stays_flat(several, calls):
    run(2, flat_memory, calls, several, 4 << 20, timeout=500)


@pytest.mark.parametrize("world", [2, 3])
def test_errors(world):
    assert len(set(run(world, async_cases.errors, "cpu"))) == 1


def deadline(rank, world):
    """Rank 1 is too late for two calls of rank 0, both of which end at their own time; the third has both ranks."""
    x = torch.ones(2, 3)
    sheaf.all_gather(x)
    now = key()
    handles = [sheaf.all_gather(x, timeout=0.3, async_op=True) for _ in range(2)] if rank == 0 else []
    for handle in handles:
        with pytest.raises(dist.DistBackendError, match=r"no answer from rank 1 within 0\.3 s"):
            handle.wait()
    if rank == 0:
        mark(now)
    else:
        await_mark(now)
        for _ in range(2):  # what rank 0 posted is still there
            assert sheaf.all_gather(x, async_op=True).wait().tensor.shape == (4, 3)
    assert sheaf.all_gather(x, async_op=True).wait().tensor.shape == (4, 3)


def test_deadline():
    run(2, deadline)


def from_threads(rank, world):
    """Two groups, each used by a thread of its own, and one group by both in turn."""
    groups = [dist.new_group(list(range(world))) for _ in range(2)]
    wrong = []

    def use(number):
        try:
            for n in range(30):
                x = torch.full((rank + 1, 2), float(n + number))
                y = sheaf.all_gather(x, group=groups[number], async_op=True).wait().tensor
                same(y, torch.full((world * (world + 1) // 2, 2), float(n + number)), f"thread {number}")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong, wrong
    # A group that is destroyed with a call in flight: its handle raises, and does not wait for its deadline.
    handle = sheaf.all_gather(torch.ones(1), group=groups[0], async_op=True) if rank == 0 else None
    for group in groups:
        dist.destroy_process_group(group)
    if handle is not None:
        with pytest.raises(dist.DistBackendError):
            handle.wait()


def test_threads_and_groups():
    run(2, from_threads)


def interrupted(rank, world):
    import _thread

    sheaf.all_gather(torch.ones(1))
    now = key()
    handle = None
    if rank == 0:
        handle = sheaf.all_gather(torch.ones(1), async_op=True)
        threading.Timer(0.2, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        mark(now)
    else:
        await_mark(now)
        handle = sheaf.all_gather(torch.ones(1), async_op=True)
    assert handle.wait().tensor.shape == (2,), "the call itself went on"


def test_ctrl_c_ends_a_wait():
    run(2, interrupted)


def numpy_backed(rank, world):
    """What only Python can free is handed over and forgotten."""
    numpy = pytest.importorskip("numpy")
    for n in range(50):
        sheaf.all_gather(torch.from_numpy(numpy.full((rank + 1, LARGE), n, dtype="float32")), async_op=True)
    return sheaf.all_gather(torch.ones(1)).tensor.tolist()


def leaves_open_handles(rank, world):
    x = torch.ones(rank + 1, LARGE, requires_grad=True)
    sheaf.all_gather(x)
    numpy_backed(rank, world)
    if rank == 0:  # nobody else comes to these
        globals()["open_handles"] = [sheaf.all_gather(x * 2, async_op=True) for _ in range(5)]


def test_processes_end_with_handles_open():
    for outcome in fresh(2, leaves_open_handles, timeout=60):
        assert outcome.returncode == 0, outcome.describe()


PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
import sheaf

def busy(pid):  # seconds in which it ran, or would have run on a machine of its own
    ran, delayed, _ = open(f"/proc/{pid}/schedstat").read().split()
    return (int(ran) + int(delayed)) / 1e9

def rank_of(rank, trial, many, tell, hold):  # goes on to the end of this program, as every program does
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
    os.environ["SHEAF_HOST_ID"] = str(rank if sys.argv[2] == "apart" else 0)
    dist.init_process_group("gloo", store=dist.PrefixStore(str(trial), store), rank=rank, world_size=2)
    x = torch.ones(3, 70000)
    sheaf.all_gather(x)
    if trial > 3:  # then what carries started calls is there
        sheaf.all_gather(x, async_op=True).wait()
    if rank == 1:
        os.close(tell)
        return os.read(hold, 1)
    given = [3, 3] if trial % 4 > 1 else None  # without headers, where there need be none
    kept = [sheaf.all_gather(x, sizes=given, async_op=True) for _ in range(many)]
    kept += [sheaf.all_gather_coalesced([x, x], sizes=given, async_op=True) for _ in range(many)]
    for _ in range(many):
        sheaf.all_gather(torch.ones(2), async_op=True)
    os.write(tell, b"x")
    return kept

def seconds_asleep_at_the_end(trial, many):
    heard, tell = os.pipe()
    hold, release = os.pipe()
    ranks = []
    for rank in range(2):
        if (pid := os.fork()) == 0:
            os.close(release)
            return rank_of(rank, trial, many, tell, hold), None
        ranks.append(pid)
    os.close(tell)
    assert os.read(heard, 1) == b"x"
    since = time.monotonic() - busy(ranks[0])
    os.waitid(os.P_PID, ranks[0], os.WEXITED | os.WNOWAIT)
    took = time.monotonic() - busy(ranks[0]) - since
    code = os.waitpid(ranks[0], 0)[1]
    os.close(release)
    os.waitpid(ranks[1], 0)
    assert code == 0, code
    return None, took

times = {0: [], 3: []}
for n in range(8):
    kept, took = seconds_asleep_at_the_end(n, n % 2 * 3)
    if took is None:
        break
    times[n % 2 * 3].append(took)
else:
    print(min(times[0]), max(times[3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["one", "apart"])
@pytest.mark.parametrize("engine", ["auto", "collectives"])
def test_the_end_of_a_process_waits_for_no_handle(engine, hosts):
    """No destroy_process_group, handles open, the peer does not come: the process ends well, and waits less than half a
    second more than without handles."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(store.port), hosts]
    env = {**os.environ, "SHEAF_ENGINE": engine, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    without, with_handles = map(float, done.stdout.split())
    assert with_handles - without < 0.5, (without, with_handles)


def compiled(rank, world, backend="aot_eager"):
    def use(x):
        handle = sheaf.all_gather(x, async_op=True)
        z = x * 2
        y, sizes = handle.wait()
        mine = sheaf.reduce_scatter(y, sizes, async_op=True).wait()
        return (mine * z).sum(), handle.done()

    x = torch.full((rank + 2, 3), 2.0, requires_grad=True)
    step = torch.compile(use, fullgraph=True, backend=backend)
    loss, done = step(x)
    loss.backward()
    again = x.detach().clone().requires_grad_()
    use(again)[0].backward()
    torch.testing.assert_close(x.grad, again.grad)
    assert done
    calls = [("sizes", 3), ("gather", 3), ("scatter", 3), ("gather", 3), ("scatter", 3)]
    assert ran(lambda: step(x)[0].backward()) == calls, "plain calls, one after the other"


def test_under_a_compiler_it_runs_synchronously():
    run(2, compiled, timeout=120)
