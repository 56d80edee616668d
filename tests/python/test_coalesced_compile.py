# SPDX-License-Identifier: MIT
"""Coalesced calls under opcheck and torch.compile: no graph break, none dropped or reordered, seldom compiled anew."""

import pytest
import torch

import sheaf
from compiled import RUNS_INDUCTOR, WHY_NOT, compiling, number, one_process, ran
from pool import run
from test_compile import KNOWN, KNOWN_NAMES, loss, with_fewer_rows, with_two_rows_or_more
from truth import own_rows, patterns, rank_sum, values

pytestmark = pytest.mark.slow

BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.skipif(not RUNS_INDUCTOR, reason=WHY_NOT))]


def opcheck(rank, world):
    rows = [patterns(world)[0], patterns(world)[2]]
    table = torch.tensor(rows)
    totals, own = [sum(row) for row in rows], [row[rank] for row in rows]
    name, ops = torch.distributed.group.WORLD.group_name, torch.ops.sheaf
    for recorded in (False, True):
        x = [values(rank, (own[0], 3), torch.float64), values(rank, (2, own[1]), torch.float32)]
        y = [values(rank, (totals[0], 3), torch.float64), values(rank, (2, totals[1]), torch.float32)]
        for one in (*x, *y):
            one.requires_grad_(recorded)
        still = [one.detach() for one in x]
        torch.library.opcheck(ops.gather_sizes_coalesced.default, (still, [0, 1], world, name))
        for modes in (["sum", "mean"], ["own", "sum"]):
            torch.library.opcheck(ops.all_gather_coalesced.default, (x, None, [0, 1], world, modes, name))
            torch.library.opcheck(ops.all_gather_coalesced.default, (x, table, [0, 1], world, modes, name))
            sized = (x, table, totals, [0, 1], world, ["sum", "mean"], name, modes)
            torch.library.opcheck(ops.all_gather_coalesced_sized.default, sized)
        scattered = (y, table, own, [0, 1], world, ["sum", "mean"], name)
        torch.library.opcheck(ops.reduce_scatter_coalesced_sized.default, scattered)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_opcheck(world):
    run(world, opcheck, timeout=180)


def table(sizes):
    """A list for each of up to three tensors."""
    return tuple(list(sizes) for _ in range(3))


KNOWN = [*KNOWN, table]
KNOWN_NAMES = [*KNOWN_NAMES, "list of lists"]


def of_first(known):
    return known[:2] if isinstance(known, tuple) else known


def gathers(x, z, ids, known, modes):
    """Two floats beside ids, after a call that nobody uses."""
    sheaf.all_gather_coalesced([x, ids], sizes=of_first(known))
    return sheaf.all_gather_coalesced([x * 2, ids, z.t() * 3], [0, 0, 1], sizes=known, grad=modes)


def check(call, rank, sizes, known, mode):
    first = [values(r, (rows, 3), torch.float64) for r, rows in enumerate(sizes)]
    second = [values(90 + r, (rows, 2), torch.float64) for r, rows in enumerate(sizes)]
    x, z = first[rank].clone().requires_grad_(), second[rank].clone().requires_grad_()
    ids = torch.arange(sizes[rank]) + 100 * rank
    before = number()
    results = call(x, z, ids, known and known(sizes), [mode, "sum", "mean"])
    (loss(rank, results[0].tensor) + loss(rank + 1, results[2].tensor.t())).backward()
    learning = 1 if known is None else 0
    assert number() - before - 1 == 2 * (1 + learning) + 1, "two gathers and one backward"
    for inputs, factor, got, leaf, how, extra in (
        (first, 2, results[0].tensor, x, mode, 0),
        (second, 3, results[2].tensor.t(), z, "mean", 1),
    ):
        y, grads = one_process([factor * part for part in inputs], sizes, how, lambda r, y, e=extra: loss(r + e, y))
        torch.testing.assert_close(got.detach(), y, rtol=1e-15, atol=0)
        torch.testing.assert_close(leaf.grad, factor * grads[rank], rtol=1e-12, atol=0)
    assert results[1].tensor.tolist() == [i + 100 * r for r, rows in enumerate(sizes) for i in range(rows)]
    assert all(got.tolist() == sizes for _, got in results)


def compiled_gather(rank, world, known, backend):
    with compiling() as compiled_so_far:
        compiled = torch.compile(gathers, fullgraph=True, backend=backend)
        for sizes in with_two_rows_or_more(world):
            check(compiled, rank, sizes, known, "sum")
        assert compiled_so_far() <= 2
        for sizes in with_fewer_rows(world):
            check(compiled, rank, sizes, known, "sum")
        assert compiled_so_far() <= 4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("known", KNOWN, ids=KNOWN_NAMES)
def test_all_gather_coalesced_compiles(known, backend):
    run(2, compiled_gather, known, backend, timeout=240)


def gathers_some_known(x, ids, sizes):
    """Sizes of the first tensor given and the other's learned; and all in one tensor."""
    y, ids = sheaf.all_gather_coalesced([x * 2, ids], sizes=[sizes, None])
    z, more = sheaf.all_gather_coalesced([x * 3, ids.tensor[: x.shape[0]]], sizes=torch.stack([sizes, sizes]))
    return y.tensor, ids.tensor, z.tensor, more.sizes


def some_known(rank, world):
    with compiling() as compiled_so_far:
        compiled = torch.compile(gathers_some_known, fullgraph=True, backend="aot_eager")
        for sizes in with_two_rows_or_more(world):
            x = torch.full((sizes[rank], 3), rank + 1.0, requires_grad=True)
            ids = torch.arange(sizes[rank]) + 100 * rank
            before = number()
            y, every, z, rows = compiled(x, ids, torch.tensor(sizes))
            ((y + z).sum() * (rank + 1)).backward()
            assert number() - before - 1 == 3 + 2, "one to learn, two gathers and two backwards"
            whole = torch.cat([torch.full((n, 3), r + 1.0) for r, n in enumerate(sizes)])
            assert torch.equal(y.detach(), 2 * whole) and torch.equal(z.detach(), 3 * whole)
            assert every.tolist() == [i + 100 * r for r, n in enumerate(sizes) for i in range(n)]
            assert rows.tolist() == sizes
            assert x.grad.eq(5 * world * (world + 1) / 2).all()
        assert compiled_so_far() <= 2


def test_some_sizes_given_and_others_learned():
    run(2, some_known, timeout=240)


def several(x, z, w, known):
    """Calls of several tensors among such of one; one that nobody uses, and sums."""
    (y, sizes), (u, _) = sheaf.all_gather_coalesced([x, z.t()], [0, 1], sizes=known)
    sheaf.all_gather_coalesced([z], sizes=known)
    v, _ = sheaf.all_gather(w, sizes=known)
    mine, more = sheaf.reduce_scatter_coalesced([y * 2, u.t()], [sizes, sizes])
    return mine, more, v


def in_order(rank, world, backend):
    """The same calls in the same order on every rank, with and without gradient, where one rank has no rows."""
    sizes = [0, 7, 3][:world]
    for learned in (True, False):
        forward = []
        for name, which in (("all", [0, 1]), ("all", [0]), ("", 4)):
            of_all = " of all" if name else ""
            forward += [("sizes" + of_all, which)] if learned else []
            forward += [(f"gather {name}".strip(), which)]
        forward += [("scatter all", [0, 0])]
        for recorded in (True, False):
            xs = [torch.full((sizes[rank], width), rank + 1.0, requires_grad=recorded) for width in (3, 2, 4)]
            with compiling():
                compiled = torch.compile(several, fullgraph=True, backend=backend)

                def step(compiled=compiled, xs=xs, learned=learned, recorded=recorded):
                    results = compiled(*xs, None if learned else torch.tensor(sizes))
                    assert results[0].eq(2.0 * world * (rank + 1)).all() and results[1].eq(world * (rank + 1.0)).all()
                    assert results[2].sum() == 4 * sum((r + 1) * n for r, n in enumerate(sizes))
                    if recorded:
                        torch.autograd.backward(results, [torch.full_like(y, rank + 1.0) for y in results])

                step()
                calls = ran(step)
            backward = [("gather all", [0, 0]), ("scatter", 4), ("scatter all", [0, 1])] if recorded else []
            assert calls == forward + backward, (learned, recorded)
            factors = (2 * world * (rank + 1), world * (rank + 1), world * (world + 1) // 2)
            for x, factor in zip(xs, factors, strict=True):
                assert not recorded or x.grad.eq(2 * factor).all(), factor  # two steps


@pytest.mark.parametrize("world", [2, 3])
def test_calls_keep_their_order(world):
    run(world, in_order, "aot_eager", timeout=240)


def compiled_modes(rank, world):
    for mode in ("mean", "own"):
        with compiling():
            compiled = torch.compile(gathers, fullgraph=True, backend="aot_eager")
            if mode == "mean":
                check(compiled, rank, [2, 3, 5][:world], None, mode)
            else:
                check(compiled, rank, [2, 3, 5][:world], torch.tensor, mode)


def test_modes_compile():
    run(3, compiled_modes, timeout=180)


def scatters(y, z, sizes, ops):
    return sheaf.reduce_scatter_coalesced([y * 3, z.t()], of_first(sizes), [0, 1], op=ops)


def compiled_scatter(rank, world, known, backend):
    with compiling() as compiled_so_far:
        compiled = torch.compile(scatters, fullgraph=True, backend=backend)
        many, few = with_two_rows_or_more(world), with_fewer_rows(world)
        for sizes in [*many, *few]:
            if sizes is few[0]:
                assert compiled_so_far() <= 2
            inputs = [[values(20 * i + r, (sum(sizes), 2), torch.float64) for r in range(world)] for i in (1, 2)]
            upstream = [[values(70 * i + r, (rows, 2), torch.float64) for r, rows in enumerate(sizes)] for i in (1, 2)]
            y, z = (parts[rank].clone().requires_grad_() for parts in inputs)
            mine = compiled(y, z, known(sizes), ["sum", "mean"])
            torch.autograd.backward(mine, [upstream[0][rank], upstream[1][rank].t()])
            expected = [own_rows(rank_sum(inputs[i], mean=i == 1), sizes, rank, 0) for i in (0, 1)]
            torch.testing.assert_close(mine[0].detach(), 3 * expected[0], rtol=1e-14, atol=0)
            torch.testing.assert_close(mine[1].detach().t(), expected[1], rtol=1e-14, atol=0)
            torch.testing.assert_close(y.grad, 3 * torch.cat(upstream[0]), rtol=1e-14, atol=0)
            torch.testing.assert_close(z.grad, torch.cat(upstream[1]) / world, rtol=1e-14, atol=0)
        assert compiled_so_far() <= 4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("known", KNOWN[1:], ids=KNOWN_NAMES[1:])
def test_reduce_scatter_coalesced_compiles(known, backend):
    run(2, compiled_scatter, known, backend, timeout=240)
