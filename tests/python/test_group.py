# SPDX-License-Identifier: MIT
"""Groups by every name they have, sub-groups side by side, and no group at all."""

import atexit
import copy
import errno
import os
import pickle
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import sheaf
from pool import fresh, run
from sheaf import __main__ as sheaf_main

pytestmark = pytest.mark.usefixtures("engine")


def every_name(rank, world):
    expected = [r + 1 for r in range(world)]
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("data",))
    default = dist.group.WORLD
    for group in (None, default, default.group_name, mesh, (mesh, 0), (mesh, "data")):
        got = sheaf.all_gather(torch.full((rank + 1,), rank), group=group)
        assert got.sizes.tolist() == expected, group
    flat = init_device_mesh("cpu", (1, world))
    with pytest.raises(ValueError, match="a mesh of 2 dims is no group"):
        sheaf.all_gather(torch.ones(1), group=flat)
    for wrong in (5, [default], (mesh, 0, 0), (0, mesh), object(), torch.tensor([1, 2])):
        with pytest.raises(ValueError, match="a group is a process group, its name, a 1-D DeviceMesh or"):
            sheaf.all_gather(torch.ones(1), group=wrong)
    first = dist.new_group([0])
    if rank > 0:
        with pytest.raises(ValueError, match="this process is not a rank of the group"):
            sheaf.all_gather(torch.ones(1), group=first)


def test_every_name_of_a_group():
    run(3, every_name)


def sub_groups(rank, world):
    """Ranks 0, 2 and ranks 1, 3 gather at once, then all four; ranks are counted inside the group."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = groups[rank % 2]
    local = rank // 2
    x = torch.full((local + 1, 2), float(rank), requires_grad=True)
    y, sizes = sheaf.all_gather(x, group=mine)
    assert sizes.tolist() == [1, 2] and y[:, 0].tolist() == [rank % 2, rank % 2 + 2, rank % 2 + 2]
    assert sheaf.offset(sizes, mine) == local
    (y * (local + 1)).sum().backward()
    assert x.grad.eq(3).all()
    assert sheaf.all_gather(x).sizes.tolist() == [1, 1, 2, 2]
    reordered = dist.new_group([3, 0])
    if rank in (0, 3):
        assert sheaf.all_gather(torch.tensor([rank]), group=reordered).tensor.tolist() == [
            dist.get_global_rank(reordered, r) for r in range(2)
        ]


def test_sub_groups():
    run(4, sub_groups)


def again(rank, world):
    """The default group has the same name after destroy and init."""
    for _ in range(3):
        assert sheaf.all_gather(torch.ones(rank + 1)).sizes.tolist() == [1, 2]
        port = torch.zeros(1, dtype=torch.int64)
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            port.fill_(store.port)
        port = int(sheaf.all_gather(port).tensor[0])
        dist.destroy_process_group()
        assert sheaf.all_gather(torch.ones(3)).sizes.tolist() == [3]
        if rank == 1:
            store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def test_destroy_and_init():
    outcomes = fresh(2, again)
    assert all(outcome.error is None and outcome.answered for outcome in outcomes), outcomes


def sockets():
    return sum(entry.is_socket() for entry in Path("/proc/self/fd").iterdir())


def closed(rank, world):
    """A destroyed group's connections close, and its receives that stood ready with them."""
    before = sockets()
    for _ in range(3):
        group = dist.new_group()
        sheaf.all_gather(torch.ones(rank + 1), group=group)
        assert sockets() > before
        dist.destroy_process_group(group)
        del group
    deadline = time.monotonic() + 30
    while sockets() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    return sockets() - before


def test_destroyed_groups_close_their_sockets():
    outcomes = fresh(2, closed)
    assert [outcome.value for outcome in outcomes] == [0, 0], outcomes


class Pause:
    """Lets other threads run once more while Python ends."""

    def __del__(self, sleep=time.sleep):
        sleep(0.2)


def hold_python():
    """No other thread gets Python's lock: one that asks for it now still waits when Python begins to end."""
    sys.setswitchinterval(1000)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        pass


def left_behind(rank, world):
    """Sizes disagree: blocks stay posted after the deadline, and a thread drops them once the group is destroyed."""
    sys.modules["pause"] = Pause()
    atexit.register(hold_python)
    with pytest.raises(dist.DistBackendError, match="no answer from rank"):
        sheaf.all_gather(torch.ones(2, 3000), sizes=[3, 2] if rank else [2, 3], timeout=1)


def test_python_ends_while_a_thread_drops_tensors():
    outcomes = fresh(2, left_behind, env={"SHEAF_ENGINE": "c10d"})
    assert all(outcome.ok for outcome in outcomes), outcomes


def test_without_a_group():
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    y, sizes = sheaf.all_gather(x.t(), 1)
    assert torch.equal(y, x.t()) and y.is_contiguous() and sizes.tolist() == [2]
    y.sum().backward()
    assert x.grad.eq(1).all()
    assert torch.equal(sheaf.reduce_scatter(x, [2]), x)
    assert sheaf.gather_sizes(x, 1).tolist() == [3]
    assert sheaf.offset([2]) == 0
    assert "alone" in sheaf.engine().cpu
    with pytest.raises(ValueError, match="0-d"):
        sheaf.all_gather(torch.tensor(1.0))
    with pytest.raises(ValueError, match="give this rank 3 rows, but it has 2"):
        sheaf.all_gather(x, sizes=[3])
    with pytest.raises(ValueError, match="median"):
        sheaf.all_gather(x, grad="median")
    for call in (
        lambda timeout: sheaf.all_gather(x, timeout=timeout),
        lambda timeout: sheaf.gather_sizes(x, timeout=timeout),
        lambda timeout: sheaf.reduce_scatter(x, [2], timeout=timeout),
        lambda timeout: sheaf.all_gather_coalesced([x], timeout=timeout),
        lambda timeout: sheaf.reduce_scatter_coalesced([x], [2], timeout=timeout),
    ):
        for timeout in (-1, 0, float("nan"), timedelta(seconds=-1)):
            with pytest.raises(ValueError, match="timeout must be a positive number of seconds, got"):
                call(timeout)
        call(1)
    with pytest.raises(ValueError, match="not initialized"):
        sheaf.all_gather(x, group="0")


def test_split_and_offset_check_their_sizes():
    x = torch.arange(10.0).reshape(5, 2)
    views = sheaf.split(x, [2, 0, 3])
    assert [view.shape[0] for view in views] == [2, 0, 3]
    assert views[2].data_ptr() == x[2:].data_ptr()
    with pytest.raises(ValueError, match="add up to 4, but the tensor has 5 rows"):
        sheaf.split(x, [2, 2])
    with pytest.raises(ValueError, match="dim must be from -2 to 1, got 2"):
        sheaf.split(x, [5], 2)
    with pytest.raises(ValueError, match=r"sizes must not be negative, got \[7, -2\]"):
        sheaf.split(x, [7, -2])
    with pytest.raises(ValueError, match=r"sizes must not be negative, got \[-2\]"):
        sheaf.offset([-2])
    with pytest.raises(ValueError, match="must have 1 entries"):
        sheaf.offset([1, 2])
    assert sheaf.offset([numpy.int64(2)]) == 0 and sheaf.all_gather(x, sizes=[numpy.int64(5)]).sizes.tolist() == [5]
    for sizes in ([1.9], [True], torch.tensor([1.9]), torch.tensor([True])):
        with pytest.raises(ValueError, match="sizes must be integers, got"):
            sheaf.offset(sizes)


def module(rank, world):
    group = dist.new_group([0, 1])
    gather = sheaf.nn.AllGather(dim=1, grad="own", group=group)
    assert "dim=1" in repr(gather) and "own" in repr(gather)
    copies = [gather, copy.deepcopy(gather), pickle.loads(pickle.dumps(gather))]
    for made in copies:
        x = torch.ones(2, rank + 1, requires_grad=True)
        y, sizes = made(x)
        assert y.shape == (2, 3) and sizes.tolist() == [1, 2] and made.group == group.group_name
        (y * (rank + 1)).sum().backward()
        assert x.grad.eq(rank + 1).all()
        assert made(x, sizes).tensor.shape == (2, 3)


def test_module():
    run(2, module)


def engine_told(rank, world):
    sheaf.all_gather(torch.ones(1))
    return sheaf.engine().cpu, sheaf.engine().cuda


def test_engine_is_told(engine):
    expected = {"shm": "shm (all 2 ranks are processes of one host", "c10d": "c10d over gloo"}[engine]
    for cpu, cuda in run(2, engine_told):
        assert cpu.startswith(expected)
        assert cuda.startswith("collectives of gloo" if sheaf.LIBRARY.cuda else "none")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_build_without_cuda_has_no_trace_of_it():
    built = sheaf.LIBRARY.path.read_bytes()
    assert not any(name in built for name in (b"libcuda", b"c10_cuda", b"nccl", b"N5sheaf4cuda"))


def test_python_m_sheaf():
    said = subprocess.run([sys.executable, "-m", "sheaf"], capture_output=True, text=True, timeout=60, check=True)
    assert "built for torch 2." in said.stdout and "gloo" in said.stdout, said.stdout
    engines = said.stdout.split("engines:\n")[1].split("missing:")[0].splitlines()
    cuda = ["collectives"] if sheaf.LIBRARY.cuda else []
    assert [line.split()[0] for line in engines] == ["shm", "c10d", "threads", *cuda], said.stdout
    assert ("missing:" in said.stdout) == (not sheaf.LIBRARY.cuda), said.stdout


def test_python_m_sheaf_says_what_is_missing(monkeypatch, capsys):
    def forbidden(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(sheaf, "LIBRARY", sheaf.LIBRARY._replace(cuda=True))
    sheaf_main.main()
    assert "missing" not in capsys.readouterr().out
    monkeypatch.setattr(os, "memfd_create", forbidden)
    sheaf_main.main()
    said = capsys.readouterr().out
    assert "\n  shm  " not in said and "\n  c10d  " in said, said
    assert "missing:\n  shm: this host forbids it (memfd_create: Operation not permitted)" in said, said
    monkeypatch.undo()
    monkeypatch.setattr(Path, "readlink", lambda path: Path("1"))
    sheaf_main.main()
    assert "shm: this host forbids it (/proc does not show its processes)" in capsys.readouterr().out


def foreign_messages(rank, world):
    """A user's own messages and collectives on the same group, while Sheaf's are under way."""
    peer = 1 - rank
    mine, theirs = torch.full((1000,), float(rank)), torch.zeros(1000)
    pending = [dist.irecv(theirs, peer, tag=0), dist.isend(mine, peer, tag=0)]
    y, _ = sheaf.all_gather(torch.ones(rank + 1, 40_000))
    total = torch.ones(3)
    dist.all_reduce(total)
    for work in pending:
        work.wait()
    assert theirs.eq(peer).all() and total.eq(2).all() and y.eq(1).all()


def test_other_users_of_the_group():
    run(2, foreign_messages)
