# SPDX-License-Identifier: MIT
"""opcheck on every rank, and torch.compile with no graph break: values and gradients as in eager mode."""

import pytest
import torch

import sheaf
from pool import run
from truth import patterns, values

WORLDS = [1, 2, 3]


def opcheck(rank, world):
    sizes = patterns(world)[0]
    rows = torch.tensor(sizes)
    total, own = sum(sizes), sizes[rank]
    name = torch.distributed.group.WORLD.group_name
    ops = torch.ops.sheaf
    for recorded in (False, True):
        x = values(rank, (own, 3), torch.float64).requires_grad_(recorded)
        y = values(rank, (total, 3), torch.float64).requires_grad_(recorded)
        torch.library.opcheck(ops.gather_sizes.default, (x.detach(), 0, world, name))
        torch.library.opcheck(ops.alone.default, (x.detach(), None, 0, "all_gather", "sum"))
        for mode in ("sum", "mean", "own"):
            torch.library.opcheck(ops.all_gather.default, (x, 0, world, mode, name))
            torch.library.opcheck(ops.all_gather_sized.default, (x, rows, total, 0, world, mode, name))
            torch.library.opcheck(ops.reduce_scatter_sized.default, (y, rows, own, 0, world, mode, name))


@pytest.mark.parametrize("world", WORLDS)
def test_opcheck(world):
    run(world, opcheck, timeout=120)


def gathers(x, known, mode):
    y, sizes = sheaf.all_gather(x * 2, sizes=known, grad=mode)
    return (y.sin() * (torch.arange(y.shape[0])[:, None] + 1)).sum(), y, sizes


def compiled_gather(rank, world, learned, mode):
    torch._dynamo.reset()
    compiled = torch.compile(gathers, fullgraph=True, backend="aot_eager")
    for sizes in patterns(world):
        x = values(rank, (sizes[rank], 3), torch.float64)
        given = None if learned else torch.tensor(sizes)
        results = []
        for call in (gathers, compiled):
            leaf = x.clone().requires_grad_()
            loss, y, got = call(leaf, given, mode)
            (loss * (rank + 1)).backward()
            assert got.tolist() == sizes
            results.append((y.detach(), leaf.grad))
        for eager, other in zip(*results, strict=True):
            torch.testing.assert_close(other, eager, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["sum", "mean", "own"])
@pytest.mark.parametrize("learned", [True, False], ids=["learned", "given"])
@pytest.mark.parametrize("world", WORLDS)
def test_all_gather_compiles(world, learned, mode):
    run(world, compiled_gather, learned, mode, timeout=180)


def scatters(y, sizes, op):
    return sheaf.reduce_scatter(y.exp(), sizes, op=op) * 3


def compiled_scatter(rank, world, op):
    torch._dynamo.reset()
    compiled = torch.compile(scatters, fullgraph=True, backend="aot_eager")
    sizes = patterns(world)[0]
    results = []
    for call in (scatters, compiled):
        leaf = (values(rank, (sum(sizes), 2), torch.float64) / 8).requires_grad_()
        mine = call(leaf, sizes, op)
        (mine * (rank + 1)).sum().backward()
        results.append((mine.detach(), leaf.grad))
    for eager, other in zip(*results, strict=True):
        torch.testing.assert_close(other, eager, rtol=1e-15, atol=0)


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("world", WORLDS)
def test_reduce_scatter_compiles(world, op):
    run(world, compiled_scatter, op, timeout=180)


def compiled_module(rank, world):
    torch._dynamo.reset()
    module = torch.nn.Sequential(torch.nn.Linear(3, 4, dtype=torch.float64), sheaf.nn.AllGather())
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter)
    x = values(rank, (rank + 1, 3), torch.float64)
    expected = module(x).tensor
    got = torch.compile(module, fullgraph=True, backend="aot_eager")(x).tensor
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_a_module_compiles():
    run(2, compiled_module, timeout=180)


def unused(x):
    sheaf.all_gather(x, sizes=torch.tensor([1, 2]))
    return x + 1


def unused_calls(rank, world):
    """An unused gather is still a call that the other rank waits for."""
    torch._dynamo.reset()
    x = torch.ones(rank + 1)
    if rank == 0:
        torch.compile(unused, fullgraph=True, backend="aot_eager")(x)
    else:
        unused(x)
    assert sheaf.all_gather(x).sizes.tolist() == [1, 2]


def test_an_unused_gather_is_not_dropped():
    run(2, unused_calls, timeout=120)
