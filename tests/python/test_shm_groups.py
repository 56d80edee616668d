# SPDX-License-Identifier: MIT
"""Which groups shared memory carries, why not the others, and that groups leave nothing behind when they go."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import sheaf
from pool import HERE, fresh, values

SHM = {"SHEAF_ENGINE": "shm"}
AUTO = {"SHEAF_ENGINE": "auto"}
LARGE = 100_000
"""float32 rows that lie in a segment."""


def gathers(rank, world, group=None):
    """Small and large, forward and back, on whatever carries the group."""
    for rows in (3, LARGE):
        x = torch.full((rows + rank,), float(rank + 1), requires_grad=True)
        y, sizes = sheaf.all_gather(x, group=group)
        assert sizes.tolist() == [rows + r for r in range(world)]
        assert all(part.eq(r + 1).all() for r, part in enumerate(sheaf.split(y, sizes)))
        (y * (rank + 1)).sum().backward()
        assert x.grad.eq(world * (world + 1) / 2).all()


def told(rank, world):
    before = sheaf.engine().cpu
    gathers(rank, world)
    return before, sheaf.engine().cpu


def test_one_host_is_shared_memory():
    for before, after in values(fresh(3, told, env=AUTO)):
        assert before == "shm, or c10d over gloo (settled in the group's first call)"
        assert after.startswith("shm (all 3 ranks are processes of one host"), after


# --- where it cannot be -----------------------------------------------------------------------------------------------
def on_another_host(rank):
    if rank == 1:
        os.environ["SHEAF_HOST_ID"] = "elsewhere"


def of_another_user(rank):
    if rank == 1:
        os.setuid(65534)


def without_address_space(rank):
    """The file is made, but there is no room to map it."""
    if rank == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))


def without_files(rank):
    """A file in memory can be made, but may have no bytes."""
    if rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


OBSTACLES = {
    "host": (on_another_host, r"rank 1 is on another host than rank 0"),
    "user": (of_another_user, r"rank 1 belongs to another user than rank 0"),
    "mapping": (without_address_space, r"rank 1: mapping \d+ MiB: Cannot allocate memory"),
    "file": (without_files, r"rank 1: ftruncate of a memfd: File too large"),
}


def with_obstacle(rank, world, obstacle):
    OBSTACLES[obstacle][0](rank)
    said = None
    for _ in range(2):  # a second call must say the same, and wait for nobody
        try:
            gathers(rank, world)
        except ValueError as error:
            said = str(error)
    return said, sheaf.engine().cpu


def check_possible(obstacle):
    if obstacle == "user" and os.geteuid() != 0:
        pytest.skip("only root can become another user")


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_group_that_cannot_have_it_is_carried_by_its_backend(obstacle):
    check_possible(obstacle)
    for said, engine in values(fresh(3, with_obstacle, obstacle, env=AUTO)):
        assert said is None, said
        assert re.fullmatch(rf"c10d over gloo \(.*: {OBSTACLES[obstacle][1]}\)", engine), engine


@pytest.mark.slow
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_who_insists_hears_why_not_on_every_rank(obstacle):
    check_possible(obstacle)
    answers = values(fresh(3, with_obstacle, obstacle, env=SHM))
    assert len({said for said, _ in answers}) == 1, answers
    expected = rf"SHEAF_ENGINE=shm, but shared memory cannot be used: {OBSTACLES[obstacle][1]}"
    assert re.fullmatch(expected, answers[0][0] or ""), answers


def engines_differ(rank, world):
    os.environ["SHEAF_ENGINE"] = ["shm", "c10d", "auto"][rank]
    for _ in range(2):
        with pytest.raises(ValueError, match="ranks disagree on settings") as caught:
            gathers(rank, world)
    return str(caught.value)


def test_engines_that_disagree():
    said = set(values(fresh(3, engines_differ)))
    assert len(said) == 1, said
    text = said.pop()
    for rank, engine in enumerate(["shm", "c10d", "auto"]):
        assert re.search(rf"SHEAF_ENGINE={engine}[^;]* on rank {rank}", text), text


def asked_for_c10d(rank, world):
    gathers(rank, world)
    return sheaf.engine().cpu


def test_who_asks_for_c10d_gets_it():
    for said in values(fresh(2, asked_for_c10d, env={"SHEAF_ENGINE": "c10d"})):
        assert said.startswith("c10d over gloo") and said.endswith("SHEAF_ENGINE=c10d)"), said


def unknown(rank, world):
    sheaf.all_gather(torch.ones(1))


def test_an_unknown_engine_is_refused():
    for outcome in fresh(2, unknown, env={"SHEAF_ENGINE": "carrier pigeon"}):
        assert outcome.error is not None and "expected auto, shm, c10d or collectives" in outcome.error[1], outcome


# --- namespaces -------------------------------------------------------------------------------------------------------
PROGRAM = """
import sys, torch, torch.distributed as dist, sheaf
rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
for rows in (3, 100_000):
    y, sizes = sheaf.all_gather(torch.full((rows + rank,), rank))
    assert sizes.tolist() == [rows, rows + 1] and y[0] == 0 and y[-1] == 1
print(sheaf.engine().cpu)
"""


def outputs_of(starts, env):
    """What the programs print, all running at once; each must end well."""
    programs = [
        subprocess.Popen(start, env=env, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for start in starts
    ]
    try:
        said = [program.communicate(timeout=100) for program in programs]
    finally:
        for program in programs:
            program.kill()
    assert [program.returncode for program in programs] == [0] * len(programs), said
    return [out for out, _ in said]


def in_namespaces(tmp_path, *flags):
    """Rank 1 in new namespaces: what each rank says."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["unshare", *flags, "true"], check=True, capture_output=True, timeout=20)
        env = {**os.environ, **AUTO, "GLOO_SOCKET_IFNAME": "lo"}
        given = [sys.executable, "-c", PROGRAM]
        starts = [[*given, "0", str(tmp_path / "store")], ["unshare", *flags, *given, "1", str(tmp_path / "store")]]
        return outputs_of(starts, env)
    pytest.skip(f"unshare {' '.join(flags)} is not allowed here")


@pytest.mark.parametrize("proc", [True, False])
def test_a_rank_in_another_pid_namespace(tmp_path, proc):
    flags = ["--pid", "--fork", *(["--mount-proc"] if proc else [])]
    why = "rank 1 is in another pid namespace than rank 0" if proc else "rank 1: /proc does not show its processes"
    for said in in_namespaces(tmp_path, *flags):
        assert said.startswith("c10d over gloo") and why in said, said


class Wall:
    """Two network namespaces with a cable between them: Gloo reaches across, abstract sockets do not."""

    def __init__(self):
        self.names = [f"sheaf-test-{os.getpid()}-{side}" for side in (0, 1)]

    def __enter__(self):
        try:
            for name in self.names:
                self.ip("netns", "add", name)
            cable = [part for name in self.names for part in ("name", "eth0", "netns", name)]
            self.ip("link", "add", *cable[:4], "type", "veth", "peer", *cable[4:])
            for side, name in enumerate(self.names):
                self.ip("-n", name, "address", "add", f"10.77.0.{side + 1}/24", "dev", "eth0")
                self.ip("-n", name, "link", "set", "eth0", "up")
                self.ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.SubprocessError) as error:
            self.__exit__()
            pytest.skip(f"no network namespaces here: {error}")
        return self

    def __exit__(self, *_):
        for name in self.names:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                self.ip("netns", "del", name)

    @staticmethod
    def ip(*given):
        subprocess.run(["ip", *given], check=True, capture_output=True, timeout=20)


def test_ranks_in_different_network_namespaces(tmp_path):
    """They share a kernel and a pid namespace, but cannot connect."""
    with Wall() as wall:
        env = {**os.environ, **AUTO, "GLOO_SOCKET_IFNAME": "eth0"}
        given = [sys.executable, "-c", PROGRAM]
        starts = [
            ["ip", "netns", "exec", name, *given, str(rank), str(tmp_path / "store")]
            for rank, name in enumerate(wall.names)
        ]
        for out in outputs_of(starts, env):
            assert out.startswith("c10d over gloo") and "rank 1: connecting to rank 0's socket: " in out, out


# --- many groups ------------------------------------------------------------------------------------------------------
def side_by_side(rank, world):
    """Groups and sub-groups with live results in each, used in turn."""
    everyone = [dist.new_group() for _ in range(3)]
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([2, 0])]
    mine = [group for group in pairs if dist.get_rank(group) >= 0]
    held = []
    for turn in range(6):
        for group in [None, *everyone, *mine]:
            own = torch.full((LARGE // 4 + rank,), float(10 * turn + rank))
            y, sizes = sheaf.all_gather(own, group=group)
            ranks = range(world) if group is None else dist.get_process_group_ranks(group)
            held.append((y, sizes, [10 * turn + r for r in ranks]))
    for y, sizes, expected in held:
        for part, value in zip(sheaf.split(y, sizes), expected, strict=True):
            assert part.eq(value).all()
    assert all(sheaf.engine(group).cpu.startswith("shm") for group in [None, *everyone, *mine])
    return len(held)


def test_groups_and_sub_groups_side_by_side():
    assert values(fresh(3, side_by_side, env=SHM)) == [36, 36, 36]


def footprint():
    status = Path("/proc/self/status").read_text()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "files": sum("memfd:sheaf" in line for line in Path("/proc/self/maps").read_text().splitlines()),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "threads": int(re.search(r"Threads:\s+(\d+)", status)[1]),
        "KiB": int(re.search(r"VmRSS:\s+(\d+)", status)[1]),
    }


def comes_and_goes(rank, world):
    group = dist.new_group()
    y, _ = sheaf.all_gather(torch.full((LARGE // 4,), float(rank)), group=group)
    z, _ = sheaf.all_gather(torch.full((rank + 1,), float(rank)), group=group)
    assert y.mean() == 0.5 and z.sum() == 2
    dist.destroy_process_group(group)
    return y


def settled():
    """What a group leaves is dropped within a second or two of it."""
    sheaf.all_gather(torch.ones(1))
    now, deadline = footprint(), time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(1.5)
        before, now = now, footprint()
        if all(before[what] == now[what] for what in ("descriptors", "files", "threads")):
            break
    return now


def many_groups(rank, world, count):
    sheaf.all_gather(torch.ones(1))
    for _ in range(20):
        kept = comes_and_goes(rank, world)
    del kept
    before = settled()
    for _ in range(count):
        comes_and_goes(rank, world)
    return before, settled()


@pytest.mark.slow
def test_groups_that_come_and_go_leave_nothing():
    """A page a group would show, and so would a descriptor, a mapping or a thread."""
    count = 1000
    for before, after in values(fresh(2, many_groups, count, env=SHM, timeout=300)):
        assert after["files"] == before["files"], (before, after)
        assert after["descriptors"] <= before["descriptors"] + 2, (before, after)
        assert after["threads"] <= before["threads"] + 1, (before, after)
        assert after["mappings"] <= before["mappings"] + count // 10, (before, after)
        assert after["KiB"] <= before["KiB"] + 4 * count, (before, after)
        print(before, after)
