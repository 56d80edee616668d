# SPDX-License-Identifier: MIT
"""Compilers neither drop calls nor change their order: the same list on every rank, whatever its own sizes."""

import pytest
import torch

import sheaf
from compiled import BACKENDS, RUNS_INDUCTOR, WHY_NOT, compiling, number, ran
from pool import run

pytestmark = pytest.mark.usefixtures("engine")
WIDTHS = [3, 5, 2]


def three(a, b, c, known):
    """Three gathers that have nothing to do with each other, of different widths, and one that nobody uses."""
    ya, _ = sheaf.all_gather(a, sizes=known[0])
    sheaf.all_gather(b[:, :1], sizes=known[1])
    yb, _ = sheaf.all_gather(b, sizes=known[1])
    yc, _ = sheaf.all_gather(c, sizes=known[2])
    return ya, yb, yc


def ragged(world):
    """Sizes of the three: what is long on one rank is short on others, and some rank has no rows at all."""
    lengths = [300, 0, 4]
    return [[lengths[(rank + which) % 3] for rank in range(world)] for which in range(3)]


def forward_calls(learned):
    widths = [WIDTHS[0], 1, WIDTHS[1], WIDTHS[2]]
    return [(op, width) for width in widths for op in (["sizes", "gather"] if learned else ["gather"])]


def independent(rank, world, learned, backend):
    for recorded in (True, False):
        with compiling():
            in_order(rank, world, learned, recorded, torch.compile(three, fullgraph=True, backend=backend))


def in_order(rank, world, learned, recorded, compiled):
    sizes = ragged(world)
    known = [None] * 3 if learned else [torch.tensor(rows) for rows in sizes]
    xs = [torch.full((rows[rank], w), rank + 1.0) for rows, w in zip(sizes, WIDTHS, strict=True)]
    for x in xs:
        x.requires_grad_(recorded)

    def step():
        ys = compiled(*xs, known)
        for y, rows, x in zip(ys, sizes, xs, strict=True):
            assert y.sum() == sum((r + 1) * n for r, n in enumerate(rows)) * x.shape[1]
        if recorded:
            torch.autograd.backward(ys, [torch.full_like(y, rank + 1.0) for y in ys])

    backward = [("scatter", width) for width in reversed(WIDTHS)] if recorded else []
    first = number()
    step()
    assert number() - first - 1 == len(forward_calls(learned) + backward)
    assert ran(step) == forward_calls(learned) + backward
    for x in xs if recorded else []:
        assert x.grad.eq(2 * sum(range(1, world + 1))).all()  # two steps


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("learned", [True, False], ids=["learned", "given"])
@pytest.mark.parametrize("world", [2, 3])
def test_independent_gathers_keep_their_order(world, learned, backend):
    if backend == "inductor" and not RUNS_INDUCTOR:
        pytest.skip(WHY_NOT)
    run(world, independent, learned, backend, timeout=240)


def without_use(x, used):
    y, _ = sheaf.all_gather(x * 2)
    return (y * 3).sum() if used else (x * 5).sum() + y[:0].sum()


def keeps_in_step(rank, world, backend):
    """Rank 1 has no use for the result, and takes part in its backward by using no row of it."""
    with compiling():
        compiled = torch.compile(without_use, fullgraph=True, backend=backend)
        x = torch.ones(rank + 2, 3, requires_grad=True)
        compiled(x, rank != 1).backward()
        assert ran(lambda: compiled(x, rank != 1).backward()) == [("sizes", 3), ("gather", 3), ("scatter", 3)]
    assert x.grad.eq(2 * (2 * 3 * (world - 1) + (5 if rank == 1 else 0))).all()  # two steps


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_without_use_for_the_result(backend):
    if backend == "inductor" and not RUNS_INDUCTOR:
        pytest.skip(WHY_NOT)
    run(2, keeps_in_step, backend, timeout=120)
