# SPDX-License-Identifier: MIT
"""Steps of several calls, `valid=` and what compilers see of a gather that learns its sizes, of which ranks miss some:
all are in step afterwards. What holds on the CPU and on a GPU. Every body takes the device."""

import time

import pytest
import torch
import torch.distributed as dist

import sheaf


def valid_step(x, timeout, group=None, valid=None):
    count = torch.tensor(1, device=x.device) if valid is None else valid
    return sheaf.all_gather(x, valid=count, group=group, timeout=timeout).tensor


def learned_step(x, timeout, group=None):
    return sheaf.all_gather(x, group=group, timeout=timeout).tensor


def both_step(x, timeout, group=None):
    return sheaf.all_gather_coalesced([x, x], group=group, timeout=timeout)[1].tensor


def compiled(step):
    torch.compiler.reset()  # each group is compiled for
    return torch.compile(step, backend="aot_eager", fullgraph=True)


def in_step(step, rank, world, device, group=None):
    """Every rank's next calls are each other's, as their values tell."""
    for turn in range(2):
        y = step(torch.full((1, 2), 10.0 * turn + rank, device=device), 20.0, group)
        assert y[:, 0].sum().item() == 10.0 * turn * world + world * (world - 1) / 2, (turn, y)


def static_late(rank, world, device):
    """Calls of several numbers to which the last rank comes when the others have given up, and in some it disagrees as
    well. All are in step at the next one, in compiled code or not, be it the group's first call or a later one."""
    wrong = torch.tensor(1.5, device=device)
    x = torch.ones(1, 2, device=device)
    steps = {  # and what the late one makes instead
        "eager": (valid_step, valid_step),
        "other capacity": (valid_step, lambda x, *how: valid_step(x.repeat(2, 1), *how)),
        "other dtype": (valid_step, lambda x, *how: valid_step(x.double(), *how)),
        "one refuses": (lambda *how: valid_step(*how, valid=None if rank else wrong), valid_step),
        "compiled": (compiled(valid_step),) * 2,
        "learned": (compiled(learned_step),) * 2,
        "coalesced": (compiled(both_step),) * 2,
    }
    for name, (step, instead) in steps.items():
        good = valid_step if name == "one refuses" else step
        for first in (True, False):
            made = dist.new_group()
            group = made.group_name
            if not first:
                good(x, 60.0, group)
            if rank == world - 1:
                dist.barrier()
            with pytest.raises((dist.DistBackendError, ValueError)):
                (instead if rank == world - 1 else step)(x, 0.2, group)
            if rank != world - 1:
                dist.barrier()
            dist.barrier()
            in_step(good, rank, world, device, group)
            dist.barrier()
            dist.destroy_process_group(made)


def static_behind(rank, world, device):
    """Calls of several numbers that all but the last rank give up. That one comes late with a call of one number, and
    is behind by this. One more of its calls fails, at once; the next one is in step."""
    x = torch.ones(1, 2, device=device)
    for step in (valid_step, compiled(learned_step)):
        group = dist.new_group().group_name
        step(x, 60.0, group)
        if rank == world - 1:
            dist.barrier()
        with pytest.raises((dist.DistBackendError, ValueError)):
            sheaf.all_gather(x, group=group, timeout=0.2) if rank == world - 1 else step(x, 0.2, group)
        if rank != world - 1:
            dist.barrier()
        if rank == world - 1:
            with pytest.raises(dist.DistBackendError, match=r"is past it|left this call"):
                step(x, 20.0, group)
        in_step(step, rank, world, device, group)


def static_refused_beside_others(rank, world, device):
    """Calls of several numbers that all ranks but the first refuse, while that makes another one: all raise, and are in
    step at the next one."""
    wrong = torch.tensor(1.5, device=device)
    for step in (valid_step, compiled(learned_step)):
        step(torch.ones(1, 2, device=device), 60.0)
        for other in others(world, device).values():
            dist.barrier()
            with pytest.raises((dist.DistBackendError, ValueError)):
                valid_step(torch.ones(1, 2, device=device), 20.0, valid=wrong) if rank else other()
            in_step(step, rank, world, device)


def static_refused_behind(rank, world, device):
    """As static_behind, but the last rank's extra call is one that it refuses: it goes no further than others are."""
    x, wrong = torch.ones(1, 2, device=device), torch.tensor(1.5, device=device)
    for turn in range(2):
        valid_step(x, 60.0)
        if rank == world - 1:
            dist.barrier()
        with pytest.raises((dist.DistBackendError, ValueError)):
            sheaf.all_gather(x, timeout=0.2) if rank == world - 1 else valid_step(x, 0.2)
        if rank != world - 1:
            dist.barrier()
        if rank == world - 1:
            time.sleep(0.5 * turn)  # others are in their next call, or about to be
            with pytest.raises(ValueError, match="one integer"):
                valid_step(x, 20.0, valid=wrong)
        in_step(valid_step, rank, world, device)


def static_refused_in_turn(rank, world, device):
    """All ranks but the first refuse a call of several numbers while one that they started is not done. Nothing is
    given up with it, whatever the first one makes."""
    x, wrong = torch.ones(1, 2, device=device), torch.tensor(1.5, device=device)
    for other in others(world, device).values():
        valid_step(x, 60.0)
        if rank:
            handle = sheaf.all_gather(x, async_op=True)
            with pytest.raises(ValueError, match="one integer"):
                valid_step(x, 20.0, valid=wrong)
            dist.barrier()
        else:
            dist.barrier()
            handle = sheaf.all_gather(x, async_op=True)
            with pytest.raises((dist.DistBackendError, ValueError)):
                other()
        assert handle.wait().tensor.shape == (world, 2)
        in_step(valid_step, rank, world, device)


def others(world, device):
    """Calls of one number."""
    x, even = torch.ones(1, 2, device=device), [1] * world
    large = torch.ones(1, 1 << 19, device=device)
    return {
        "sized": lambda: sheaf.all_gather(large, sizes=even, timeout=20),
        "started": lambda: sheaf.all_gather(x, async_op=True, timeout=20).wait(),
        "sizes refused": lambda: sheaf.all_gather(x, sizes=[2] * world),
        "sizes": lambda: sheaf.gather_sizes(x, timeout=20),
        "sizes of other rows": lambda: sheaf.gather_sizes(x.repeat(2, 1), timeout=20),
        "plain": lambda: sheaf.all_gather(x, timeout=20),
    }


def static_beside_others(rank, world, device):
    """Calls of several numbers on all ranks but the first, which makes another one at the same time, or gave it up
    before: all raise, and are in step at the next one."""
    x = torch.ones(1, 2, device=device)
    early = {
        "refused": lambda: sheaf.all_gather(x, dim=5),
        "sizes given up": lambda: sheaf.gather_sizes(x, timeout=0.2),
    }
    if "collectives" not in getattr(sheaf.engine(), device):  # there, others may carry on with what is given up
        early["given up"] = lambda: sheaf.all_gather(x, timeout=0.2)
    for step in (valid_step, compiled(learned_step)):
        step(x, 60.0)
        for name, other in {**others(world, device), **early}.items():
            if name in early and rank != 0:
                dist.barrier()
            with pytest.raises((dist.DistBackendError, ValueError)):
                step(x, 20.0) if rank else other()
            if name in early and rank == 0:
                dist.barrier()
            dist.barrier()
            in_step(step, rank, world, device)


MISSED = [static_late, static_behind, static_beside_others]
MISSED += [static_refused_beside_others, static_refused_behind, static_refused_in_turn]
