# SPDX-License-Identifier: MIT
"""Groups of CUDA tensors: what carries headers, and what is left of a group. Skipped where there is no GPU."""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import device_cases
import gpu
import pool
import sheaf
import static_cases
from pool import fresh, values
from test_gpu_streams import without_sync
from truth import same

pytestmark = gpu.TESTS


def without_gloo(rank, world):
    """No backend for CPU tensors: headers come through shared memory, or through the store."""
    device_cases.gathers(rank, world, "cuda")
    device_cases.disagreements(rank, world, "cuda")
    static_cases.static_shapes(rank, world, "cuda")
    refused = device_cases.told(lambda: sheaf.all_gather(torch.ones(2)))
    return sheaf.engine().cpu, refused


@pytest.mark.parametrize("headers", ["auto", "c10d"])
def test_a_group_of_nccl_alone(headers):
    env = {pool.BACKEND: "nccl", "SHEAF_ENGINE": headers}
    for cpu, refused in values(fresh(2, without_gloo, env=env, timeout=120)):
        assert cpu == "none (the group has no backend for CPU tensors)" and "has no backend for CPU tensors" in refused


def destroyed(rank, world):
    """Groups with started calls that the device has yet to finish when the group goes: results that were waited for are
    right, and neither threads nor the device's memory stay behind."""
    sizes = [3 + r for r in range(world)]
    x = torch.full((sizes[rank], 1 << 16), float(rank), device="cuda")
    truth = torch.cat([torch.full((rows, 1 << 16), float(r)) for r, rows in enumerate(sizes)])

    def one():
        group = dist.new_group()
        sheaf.all_gather(x, group=group)
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        y = sheaf.all_gather(x, group=group, async_op=True).wait().tensor
        dist.barrier()
        dist.destroy_process_group(group)
        same(y.cpu(), truth, "what was waited for before the group went")

    def left():
        time.sleep(3)  # groups are forgotten when nothing else is to be done
        sheaf.all_gather(x)
        return sum(1 for _ in Path("/proc/self/task").iterdir()), torch.cuda.mem_get_info()[0]

    one()
    threads, free = left()
    for _ in range(3):
        one()
    dist.barrier()
    more_threads, less_free = left()
    dist.barrier()
    return more_threads - threads, (free - less_free) >> 20


def test_nothing_is_left_of_a_group_that_started_calls():
    env = {pool.BACKEND: gpu.BOTH}
    for threads, mib in values(fresh(2, destroyed, env=env, timeout=120)):
        assert threads <= 2 and mib < 64, (threads, mib)


def leaves_open_handles(rank, world, many):
    """Returns when it ends."""
    x = torch.ones(rank + 1, 1 << 16, device="cuda", requires_grad=True)
    sheaf.all_gather(x, async_op=True).wait()
    if rank == 0:  # nobody else comes to these
        globals()["open_handles"] = [sheaf.all_gather(x * 2, async_op=True) for _ in range(many)]
    return time.monotonic()


def seconds_to_end(many):
    outcomes = fresh(2, leaves_open_handles, many, env={pool.BACKEND: gpu.BOTH}, timeout=60)
    took = time.monotonic() - outcomes[0].value
    for outcome in outcomes:
        assert outcome.returncode == 0, outcome.describe()
    return took


def test_processes_end_with_handles_open():
    """A second later than without any at the latest, and another for what runs differ by."""
    assert seconds_to_end(5) < seconds_to_end(0) + 2


def by_messages(rank, world):
    """Headers go by messages of the group's backend for CPU tensors; the group's first call is a grouped one."""
    group, sizes = dist.new_group(), [1 + 2 * r for r in range(world)]
    x = torch.full((sizes[rank], 1 << 20), float(rank), device="cuda")
    got = sheaf.all_gather(x, group=group).tensor[:, 0].cpu()
    same(got, torch.cat([torch.full((rows,), float(r)) for r, rows in enumerate(sizes)]), "first call")
    without_sync(rank, world)
    return sheaf.engine().cpu


def test_headers_by_messages():
    said = values(fresh(2, by_messages, env={pool.BACKEND: gpu.BOTH, "SHEAF_ENGINE": "c10d"}, timeout=120))
    assert all(cpu.startswith("c10d over gloo") for cpu in said)
