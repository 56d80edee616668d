# SPDX-License-Identifier: MIT
"""opcheck on every rank; torch.compile without a graph break, and torch.export, against one process."""

import io

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import sheaf
from compiled import RUNS_INDUCTOR, WHY_NOT, compiling, number, one_process
from pool import run
from truth import MODES, own_rows, patterns, rank_sum, values

WORLDS = [1, 2, 3]
KNOWN = [None, torch.tensor, list]
"""Sizes learned inside the graph, given as a tensor, and as a list."""
KNOWN_NAMES = ["learned", "tensor", "list"]


def opcheck(rank, world):
    sizes = patterns(world)[0]
    rows = torch.tensor(sizes)
    total, own = sum(sizes), sizes[rank]
    name = torch.distributed.group.WORLD.group_name
    ops = torch.ops.sheaf
    for table in (rows, rows.repeat(2, 1)):
        torch.library.opcheck(ops.numbered.default, (table,))
    capacity = max(sizes)
    torch.library.opcheck(ops.clamped.default, (rows, capacity, name))
    for look in (False, True):
        torch.library.opcheck(ops.prepare_valid.default, (rows, 0, world, "sum", name, look))
    for recorded in (False, True):
        x = values(rank, (own, 3), torch.float64).requires_grad_(recorded)
        y = values(rank, (total, 3), torch.float64).requires_grad_(recorded)
        blocks = values(rank, (world * capacity, 3), torch.float64).requires_grad_(recorded)
        for op in (ops.compact, ops.spread):
            torch.library.opcheck(op.default, (blocks, rows, 0))
        torch.library.opcheck(ops.gather_sizes.default, (x.detach(), 0, world, name))
        torch.library.opcheck(ops.alone.default, (x.detach(), None, 0, "all_gather", "sum"))
        for mode in MODES:
            torch.library.opcheck(ops.all_gather.default, (x, 0, world, mode, name))
            torch.library.opcheck(ops.all_gather_sized.default, (x, rows, total, 0, world, mode, name))
            torch.library.opcheck(ops.reduce_scatter_sized.default, (y, rows, own, 0, world, mode, name))


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("world", [*WORLDS, 5])
def test_opcheck(world):
    run(world, opcheck, timeout=120)


def inferred(rank, world):
    """Without data, and without a call."""
    sizes = patterns(world)[0]
    before = number() if world > 1 else 0
    with FakeTensorMode():
        x, y = torch.empty(3, sizes[rank]), torch.empty(3, sum(sizes))
        assert sheaf.all_gather(x, 1, sizes=sizes).tensor.shape == y.shape
        assert sheaf.reduce_scatter(y, sizes, 1).shape == x.shape
        whole, counts = sheaf.all_gather(torch.empty(3, 4), 1, valid=torch.tensor(2))
        assert whole.shape == (3, 4 * world) and counts.shape == (world,)
    assert world == 1 or number() == before + 1


@pytest.mark.parametrize("world", [1, 2])
def test_shapes_are_inferred_without_data(world):
    run(world, inferred)


def gathers(x, known, mode):
    return sheaf.all_gather(x * 2, sizes=known, grad=mode)


def loss(rank, y):
    """Differs by rank, and by row."""
    return (y.sin() * (torch.arange(y.shape[0])[:, None] + rank + 1)).sum()


def check(call, rank, world, sizes, known, mode):
    inputs = [values(r, (rows, 3), torch.float64) for r, rows in enumerate(sizes)]
    doubled, grads = one_process([2 * x for x in inputs], sizes, mode, loss)
    x = inputs[rank].requires_grad_()
    y, got = call(x, known and known(sizes), mode)
    loss(rank, y).backward()
    assert got.tolist() == sizes
    torch.testing.assert_close(y.detach(), doubled, rtol=1e-15, atol=0)
    torch.testing.assert_close(x.grad, 2 * grads[rank], rtol=1e-12, atol=0)


def compiled_gather(rank, world, known, backend="aot_eager", modes=MODES):
    for mode in modes:
        with compiling():
            compiled = torch.compile(gathers, fullgraph=True, backend=backend)
            for sizes in patterns(world):
                check(compiled, rank, world, sizes, known, mode)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("known", KNOWN, ids=KNOWN_NAMES)
@pytest.mark.parametrize("world", WORLDS)
def test_all_gather_compiles(world, known):
    run(world, compiled_gather, known, timeout=180)


def with_two_rows_or_more(world):
    """Ten patterns: at first only one rank's size changes at a time."""
    turns = [[7 if r == who else 3 for r in range(world)] for who in range(world)]
    more = [[2 + (3 * k + 5 * r * (k % 4)) % 11 for r in range(world)] for k in range(9 - world)]
    return [[3] * world, *turns, *more]


def with_fewer_rows(world):
    """Every rank has no row, then one, and then other ranks have."""
    turns = [[few if r == who else 4 + r + who for r in range(world)] for who in range(world) for few in (0, 1)]
    one_in_all = [0] * (world - 1) + [1]
    return [*turns, [0] * world, [1] * world, one_in_all, one_in_all[::-1], [0, 2] * (world // 2) + [7] * (world % 2)]


def compilations(rank, world, known, backend):
    with compiling() as compiled_so_far:
        compiled = torch.compile(gathers, fullgraph=True, backend=backend)
        for sizes in with_two_rows_or_more(world):
            check(compiled, rank, world, sizes, known, "sum")
        assert compiled_so_far() <= 2
        for sizes in with_fewer_rows(world):
            check(compiled, rank, world, sizes, known, "sum")
        assert compiled_so_far() <= 4


@pytest.mark.parametrize("known", KNOWN, ids=KNOWN_NAMES)
@pytest.mark.parametrize("world", [2, 3])
def test_other_sizes_seldom_compile_again(world, known):
    run(world, compilations, known, "aot_eager", timeout=240)


@pytest.mark.skipif(not RUNS_INDUCTOR, reason=WHY_NOT)
@pytest.mark.parametrize(("world", "known"), [(2, None), (3, torch.tensor), (2, list)], ids=KNOWN_NAMES)
def test_other_sizes_under_inductor(world, known):
    run(world, compilations, known, "inductor", timeout=300)


def scatters(y, sizes, op):
    return sheaf.reduce_scatter(y * 3, sizes, op=op)


def compiled_scatter(rank, world, op, known, backend="aot_eager"):
    with compiling() as compiled_so_far:
        compiled = torch.compile(scatters, fullgraph=True, backend=backend)
        many, few = with_two_rows_or_more(world), with_fewer_rows(world)
        for sizes in [*many, *few]:
            if sizes is few[0]:
                assert compiled_so_far() <= 2
            inputs = [values(20 + r, (sum(sizes), 2), torch.float64) for r in range(world)]
            upstream = [values(60 + r, (rows, 2), torch.float64) for r, rows in enumerate(sizes)]
            y = inputs[rank].clone().requires_grad_()
            mine = compiled(y, known(sizes), op)
            mine.backward(upstream[rank])
            factor = 1 / world if op == "mean" else 1.0
            expected = own_rows(3 * rank_sum(inputs) * factor, sizes, rank, 0)
            torch.testing.assert_close(mine.detach(), expected, rtol=1e-14, atol=0)
            torch.testing.assert_close(y.grad, 3 * torch.cat(upstream) * factor, rtol=1e-14, atol=0)
        assert compiled_so_far() <= 4


@pytest.mark.parametrize("known", KNOWN[1:], ids=KNOWN_NAMES[1:])
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("world", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_reduce_scatter_compiles(world, op, known):
    run(world, compiled_scatter, op, known, timeout=180)


class Projected(torch.nn.Module):
    """A module with a gather, and with one that nobody uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(3, 4, dtype=torch.float64)
        self.gather = sheaf.nn.AllGather()

    def forward(self, x):
        self.gather(x)
        return self.gather(self.project(x))


def compiled_module(rank, world, backend="aot_eager"):
    module = Projected()
    x = values(rank, (rank + 2, 3), torch.float64)
    expected = module(x).tensor
    with compiling():
        got = torch.compile(module, fullgraph=True, backend=backend)(x).tensor
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_a_module_compiles():
    run(2, compiled_module, timeout=180)


def exported_module(rank, world, strict):
    module = Projected()
    x = values(rank, (rank + 2, 3), torch.float64)
    rows = ({0: torch.export.Dim.DYNAMIC},)
    with torch.no_grad():
        program = torch.export.export(module, (x,), dynamic_shapes=rows, strict=strict)
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        lowered = program.run_decompositions()
        for version in (program, torch.export.load(file), lowered):
            for more in (0, 5):
                x = values(rank, (rank + 2 + more, 3), torch.float64)
                expected = module(x)
                before = number()
                got = version.module()(x)
                assert number() - before - 1 == 4  # two gathers that learn their sizes
                torch.testing.assert_close(got[0], expected.tensor, rtol=0, atol=0)
                assert got[1].tolist() == expected.sizes.tolist()


class Even(torch.nn.Module):
    """Gathers blocks of one size, which is given as a list."""

    def forward(self, x):
        return sheaf.all_gather(x * 2, sizes=[x.shape[0]] * torch.distributed.get_world_size()).tensor


def exported_list(rank, world, strict):
    rows = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(Even(), (torch.ones(3, 2),), dynamic_shapes=rows, strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for more in (0, 4):
        got = torch.export.load(file).module()(torch.full((3 + more, 2), rank + 1.0))
        file.seek(0)
        expected = [torch.full((3 + more, 2), 2 * (r + 1.0)) for r in range(world)]
        torch.testing.assert_close(got, torch.cat(expected), rtol=0, atol=0)


@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
def test_a_module_with_a_list_of_sizes_is_exported(strict):
    run(2, exported_list, strict, timeout=60)


@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
def test_a_module_is_exported(strict):
    run(2, exported_module, strict, timeout=180)


def second_derivative(rank, world):
    x = values(rank, (rank + 2, 3), torch.float64).requires_grad_()
    with compiling():
        y, _ = torch.compile(gathers, fullgraph=True, backend="aot_eager")(x, None, "sum")
        # torch says so at once where the graph gives up buffers, and else in the second backward.
        with pytest.raises(RuntimeError, match=r"double backward|donated buffers"):
            torch.autograd.grad((y**3).sum(), x, create_graph=True)[0].sum().backward()


def test_torch_refuses_second_derivatives_of_compiled_code():
    run(2, second_derivative, timeout=120)
