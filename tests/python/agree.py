# SPDX-License-Identifier: MIT
"""What every test of an error asks: the same text on every rank, or the same kind of error where no rank can know what
is wrong, and a group that works on. And two odd tensors."""

import torch

import sheaf
from pool import run, run_raises
from truth import patterns


def quantized(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


def strange(x):
    return x.as_subclass(type("Strange", (torch.Tensor,), {}))


def works(rank, world):
    sizes = patterns(world)[0]
    got = sheaf.all_gather(torch.full((sizes[rank],), float(rank)))
    assert got.sizes.tolist() == sizes
    assert got.tensor.sum() == sum(r * n for r, n in enumerate(sizes))


def everyone_says(world, text, body, *args):
    """The same ValueError on every rank, and a group that works on."""
    raised = run_raises(world, body, *args)
    assert [error and error[0] for error in raised] == ["ValueError"] * world, raised
    assert len({error[1] for error in raised}) == 1, raised
    assert text in raised[0][1], raised[0]
    run(world, works)


def everyone_gives_up(world, body, *args):
    """Nobody gets to know what is wrong: every rank raises at its deadline, what it says is returned, and the group
    works on."""
    run(world, works)  # a group's first call, which settles its engine, needs all ranks at once
    raised = run_raises(world, body, *args)
    assert [error and error[0] for error in raised] == ["DistBackendError"] * world, raised
    run(world, works)
    return [error[1] for error in raised]
