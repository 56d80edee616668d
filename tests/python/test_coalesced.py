# SPDX-License-Identifier: MIT
"""all_gather_coalesced and reduce_scatter_coalesced against one process: values, gradients of every mode and order,
tensors of all kinds in one call, and errors on every rank."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import sheaf
from agree import everyone_says, strange
from compiled import reported
from pool import run
from test_all_gather import byte_cat, expected_gradient
from truth import DTYPES, FLOAT8, MODES, own_rows, patterns, rank_sum, same, values

pytestmark = pytest.mark.usefixtures("engine")

WORLDS = [1, 2, 3, 5]
GRADIENTS = [torch.float64, torch.float16, torch.complex64, torch.bfloat16]


class Ragged:
    """One tensor of a call: what every rank brings, and what must come of it. `other` are the other dims' extents."""

    def __init__(self, sizes, dim, other, dtype, mode="sum", seed=0):
        self.sizes, self.dim, self.other, self.dtype, self.mode, self.seed = sizes, dim, other, dtype, mode, seed
        self.blocks = [values(seed + r, self.shape(n), dtype) for r, n in enumerate(sizes)]
        self.upstream = [values(seed + 50 + r, self.shape(sum(sizes)), dtype) for r in range(len(sizes))]

    def shape(self, rows):
        position = self.dim % (len(self.other) + 1)
        return (*self.other[:position], rows, *self.other[position:])

    def whole(self):
        return byte_cat(self.blocks, self.dim % (len(self.other) + 1))

    def gradient(self, rank):
        return expected_gradient(self.mode, self.upstream, self.sizes, rank, self.dim)

    @property
    def records(self):
        return self.dtype in GRADIENTS


def mixed(world, scale=1):
    """Floats of all kinds and modes beside a mask, ids and bytes, along different dims, of 1 to 4 dims, with sizes of
    every pattern. Rows are `scale` times as long."""
    kinds = [
        (0, (3, 2 * scale), torch.float64, "sum"),
        (0, (), torch.bool, "sum"),
        (1, (2, 3 * scale), torch.float16, "mean"),
        (0, (1,), torch.int64, "mean"),
        (-1, (2, 1, scale), torch.complex64, "own"),
        (-2, (3,), torch.uint8, "own"),
        (1, (5, scale), torch.bfloat16, "sum"),
        (2, (1, 2, 3), torch.float64, "mean"),
    ]
    all_sizes = patterns(world)
    return [Ragged(all_sizes[i % len(all_sizes)], *kind, seed=1000 * i + scale) for i, kind in enumerate(kinds)]


def gather(rank, tensors, sizes, **options):
    inputs = [one.blocks[rank].clone().requires_grad_(one.records) for one in tensors]
    dims, modes = [one.dim for one in tensors], [one.mode for one in tensors]
    results = sheaf.all_gather_coalesced(inputs, dims, sizes=sizes, grad=modes, **options)
    assert isinstance(results, tuple) and len(results) == len(tensors)
    return inputs, results


def check(rank, tensors, sizes):
    inputs, results = gather(rank, tensors, sizes)
    for i, (one, (y, learned)) in enumerate(zip(tensors, results, strict=True)):
        same(y, one.whole(), f"value of tensor {i}")
        assert y.is_contiguous() and learned.tolist() == list(one.sizes), i
        assert learned.dtype == torch.int64 and learned.device.type == "cpu"
        assert y.requires_grad == one.records, i
    ends = [(y, one.upstream[rank]) for one, (y, _) in zip(tensors, results, strict=True) if one.records]
    if ends:
        torch.autograd.backward(*zip(*ends, strict=True))
    for i, (one, x) in enumerate(zip(tensors, inputs, strict=True)):
        if one.records:
            same(x.grad, one.gradient(rank), f"gradient of tensor {i}")
        else:
            assert x.grad is None


def ways_to_give(tensors):
    rows = [one.sizes for one in tensors]
    return [None, rows, torch.tensor(rows), [None if i % 2 else row for i, row in enumerate(rows)], tuple(rows)]


def values_and_gradients(rank, world, scale):
    tensors = mixed(world, scale)
    for sizes in ways_to_give(tensors):
        check(rank, tensors, sizes)
    for turn in range(len(tensors)):  # every tensor comes first, and alone
        check(rank, tensors[turn:] + tensors[:turn], None)
        check(rank, tensors[turn : turn + 1], None)


@pytest.mark.parametrize("world", WORLDS)
def test_values_and_gradients(world):
    run(world, values_and_gradients, 1)


def large(rank, world):
    """Past what rides along with headers, past one packed message, and past the pool's small sizes."""
    for scale in (500, 5_000, 60_000):
        tensors = mixed(world, scale)
        check(rank, tensors, None)
        check(rank, tensors, [one.sizes for one in tensors])


@pytest.mark.parametrize("world", [2, 3])
def test_large_tensors(world):
    run(world, large, timeout=120)


def shared_arguments(rank, world):
    sizes = patterns(world)[0]
    tensors = [Ragged(sizes, 0, other, torch.float64, "mean", seed=i) for i, other in enumerate([(2,), (), (3, 2)])]
    for known in (None, sizes, torch.tensor(sizes), tuple(sizes)):
        inputs = [one.blocks[rank].clone().requires_grad_() for one in tensors]
        results = sheaf.all_gather_coalesced(tuple(inputs), sizes=known, grad="mean")
        torch.autograd.backward([y for y, _ in results], [one.upstream[rank] for one in tensors])
        for one, x, (y, learned) in zip(tensors, inputs, results, strict=True):
            same(y, one.whole(), "value")
            same(x.grad, one.gradient(rank), "gradient")
            assert learned.tolist() == sizes


@pytest.mark.parametrize("world", WORLDS)
def test_one_argument_for_all_tensors(world):
    run(world, shared_arguments)


def divided(x, world):
    return torch.view_as_complex(torch.view_as_real(x) / world) if x.is_complex() else x / world


def scatter(rank, world, scale):
    ops = ["sum", "mean", "sum", "mean", "sum"]
    kinds = [torch.float64, torch.float16, torch.int64, torch.complex64, torch.bfloat16]
    tensors = [
        Ragged(patterns(world)[i % 5], [0, 1, 0, -1, -2][i], [(3,), (2, scale), (), (4,), (scale,)][i], kind, seed=i)
        for i, kind in enumerate(kinds)
    ]
    dims, sizes = [one.dim for one in tensors], [one.sizes for one in tensors]
    inputs = [one.upstream[rank].clone().requires_grad_(one.records) for one in tensors]
    mine = sheaf.reduce_scatter_coalesced(inputs, sizes, dims, op=ops)
    plain = [
        sheaf.reduce_scatter(one.upstream[rank], one.sizes, one.dim, op=op)
        for one, op in zip(tensors, ops, strict=True)
    ]
    for one, op, got, alike in zip(tensors, ops, mine, plain, strict=True):
        expected = own_rows(rank_sum(one.upstream, mean=op == "mean"), one.sizes, rank, one.dim)
        same(got, expected, f"{one.dtype} {op}")
        same(got, alike, "the plain op")
        assert got.is_contiguous() and got.requires_grad == one.records
    ends = [(got, one.blocks[rank]) for one, got in zip(tensors, mine, strict=True) if one.records]
    torch.autograd.backward(*zip(*ends, strict=True))
    for one, op, y in zip(tensors, ops, inputs, strict=True):
        if one.records:
            parts = [divided(block, world) if op == "mean" else block for block in one.blocks]
            same(y.grad, torch.cat(parts, one.dim), f"gradient, {one.dtype} {op}")


def scatters(rank, world):
    for scale in (1, 700, 90_000):
        scatter(rank, world, scale)


@pytest.mark.parametrize("world", WORLDS)
def test_reduce_scatter(world):
    run(world, scatters, timeout=120)


def second_derivative(rank, world):
    """The sum over tensors of v · d(w · y³)/dx: its gradient by one process in `sum` and `mean`, by hand in `own`."""
    tensors = [
        Ragged(patterns(world)[0], 0, (2,), torch.float64, "sum", seed=1),
        Ragged(patterns(world)[2], 1, (3,), torch.float64, "mean", seed=2),
        Ragged(patterns(world)[0], 0, (), torch.int64, "sum", seed=3),
        Ragged(patterns(world)[0], -1, (2, 2), torch.float64, "own", seed=4),
    ]
    inputs, results = gather(rank, tensors, None)
    floats = [i for i, one in enumerate(tensors) if one.records]
    loss = sum((tensors[i].upstream[rank] * results[i].tensor ** 3).sum() for i in floats)
    own = [inputs[i] for i in floats]
    firsts = torch.autograd.grad(loss, own, create_graph=True)
    tried = [
        [values(900 + i + r, block.shape, torch.float64) for r, block in enumerate(tensors[i].blocks)] for i in floats
    ]
    seconds = torch.autograd.grad(sum((v[rank] * g).sum() for v, g in zip(tried, firsts, strict=True)), own)
    for i, got, v in zip(floats, seconds, tried, strict=True):
        one = tensors[i]
        if one.mode == "own":
            truth = v[rank] * 6 * own_rows(one.upstream[rank], one.sizes, rank, one.dim) * one.blocks[rank]
        else:
            leaves = [block.clone().requires_grad_() for block in one.blocks]
            whole = torch.cat(leaves, one.dim)
            once = torch.autograd.grad(sum((w * whole**3).sum() for w in one.upstream), leaves, create_graph=True)
            both = sum((a * b).sum() for a, b in zip(v, once, strict=True))
            truth = torch.autograd.grad(both, leaves)[rank] / (world**2 if one.mode == "mean" else 1)
        torch.testing.assert_close(got, truth, rtol=1e-12, atol=0, msg=f"tensor {i}")


@pytest.mark.parametrize("world", WORLDS)
def test_second_derivative(world):
    run(world, second_derivative)


def second_derivative_of_sums(rank, world, is_async):
    """The losses of all ranks together are one function of the sums over ranks: by one process."""
    sizes, dims, ops = patterns(world)[0], [0, 1], ["sum", "mean"]
    shapes = [(sum(sizes), 3), (2, sum(sizes))]
    every, tried = (
        [[values(at + r, shape, torch.float64) for r in range(world)] for shape in shapes] for at in (20, 60)
    )
    own = [inputs[rank].clone().requires_grad_() for inputs in every]
    mine = sheaf.reduce_scatter_coalesced(own, sizes, dims, op=ops, async_op=is_async)
    firsts = torch.autograd.grad(sum((y**3).sum() for y in (mine.wait() if is_async else mine)), own, create_graph=True)
    seconds = torch.autograd.grad(sum((v[rank] * g).sum() for v, g in zip(tried, firsts, strict=True)), own)
    for op, inputs, v, got in zip(ops, every, tried, seconds, strict=True):
        leaves = [part.clone().requires_grad_() for part in inputs]
        total = sum(leaves) / (world if op == "mean" else 1)
        once = torch.autograd.grad((total**3).sum(), leaves, create_graph=True)
        truth = torch.autograd.grad(sum((a * b).sum() for a, b in zip(v, once, strict=True)), leaves)[rank]
        torch.testing.assert_close(got, truth, rtol=1e-12, atol=0, msg=op)


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "started"])
@pytest.mark.parametrize("world", WORLDS)
def test_second_derivative_of_sums(world, is_async):
    run(world, second_derivative_of_sums, is_async)


class Scatters(TorchDispatchMode):
    """The shapes of what each coalesced scatter is called with."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.sheaf.reduce_scatter_coalesced_sized.default:
            self.shapes.append([tuple(y.shape) for y in args[0]])
        return func(*args, **(kwargs or {}))


def one_backward(rank, world, later, create_graph):
    """The backward is one call, with the tensors that need a gradient on some rank, and no others. Of a started call it
    runs on another thread, but for a graph of its own, and where the rank only joins in."""
    blocks = [
        torch.ones(rank + 1, 2),
        torch.ones(6, dtype=torch.int64),
        torch.ones(7, 3),
        torch.ones(4),
        torch.ones(5),
    ]
    blocks[0].requires_grad_(rank == 0)
    blocks[2].requires_grad_(rank == world - 1)
    blocks[4].requires_grad_()
    results = sheaf.all_gather_coalesced(blocks, grad=["sum", "sum", "mean", "sum", "own"], async_op=later)
    results = results.wait() if later else results
    recorded = [y.requires_grad for y, _ in results]
    assert recorded == [True, False, True, False, True]
    rows = world * (world + 1) // 2
    ends = [results[0].tensor, results[2].tensor]
    upstream = [torch.full((rows, 2), 1.0 + rank), torch.ones(7 * world, 3)]
    with Scatters() as seen:
        calls = reported(lambda: torch.autograd.backward(ends, upstream, create_graph=create_graph), everywhere=True)
    carried = [(call.name, call.concrete_inputs[2]) for call in calls]
    assert carried == [("sheaf::reduce_scatter_coalesced_sized", [rank + 1, 7])], carried
    elsewhere = later and not create_graph and rank in (0, world - 1)
    assert seen.shapes == ([] if elsewhere else [[(rows, 2), (7 * world, 3)]]), seen.shapes
    if rank == 0:
        same(blocks[0].grad.detach(), torch.full((1, 2), float(sum(range(1, world + 1)))), "sum")
    if rank == world - 1:
        same(blocks[2].grad.detach(), torch.ones(7, 3), "mean")
    results[4].tensor.sum().backward()
    same(blocks[4].grad, torch.ones(5), "own")


@pytest.mark.parametrize("create_graph", [False, True], ids=["once", "twice differentiable"])
@pytest.mark.parametrize("later", [False, True], ids=["plain", "started"])
@pytest.mark.parametrize("world", [2, 3])
def test_the_backward_is_one_call_with_what_needs_a_gradient(world, later, create_graph):
    run(world, one_backward, later, create_graph)


def unused_results(rank, world):
    """A result that no loss uses counts as zero where another one is used; mode `own` stays on its rank."""
    x, z = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    own = torch.ones(1, requires_grad=True)
    (y, _), _, (o, _) = sheaf.all_gather_coalesced([x, z, own], grad=["sum", "sum", "own"])
    if rank == 0:
        o.sum().backward(retain_graph=True)
        same(own.grad, torch.ones(1), "own")
    (y * (rank + 1)).sum().backward()
    same(x.grad, torch.full((2,), float(sum(range(1, world + 1)))), "used")
    if world > 1:  # alone, each is its own input
        same(z.grad, torch.zeros(3), "unused")
    with torch.no_grad():
        results = sheaf.all_gather_coalesced([x, z])
        assert not any(y.requires_grad for y, _ in results)
    with torch.inference_mode():
        sheaf.all_gather_coalesced([torch.ones(2), torch.ones(1)])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_results_that_nobody_uses(world):
    run(world, unused_results)


def ordinary_results(rank, world):
    """Results can be written and outlive each other, whatever memory they share."""
    for rows in (3, 200_000):
        x, ids = torch.full((rows, 2), float(rank)), torch.arange(rows)
        before = x.clone()
        (y, _), (i, _) = sheaf.all_gather_coalesced([x, ids])
        same(x, before, "the input was written")
        y.zero_()
        same(i, torch.arange(rows).repeat(world), "beside a result that was written")
        del y
        again = sheaf.all_gather_coalesced([x + 1, ids + 1])
        same(i, torch.arange(rows).repeat(world), "beside a result that is gone")
        same(again[0].tensor, torch.cat([torch.full((rows, 2), r + 1.0) for r in range(world)]), "the next call")
        i.add_(1)
        same(again[1].tensor, i, "ids of the next call")


@pytest.mark.parametrize("world", [1, 2, 3])
def test_results_are_ordinary_tensors(world):
    run(world, ordinary_results)


@st.composite
def calls(draw):
    world = draw(st.sampled_from([2, 3]))
    tensors = []
    for seed in range(draw(st.integers(1, 6))):
        ndim = draw(st.integers(1, 4))
        sizes = draw(st.lists(st.integers(0, 9), min_size=world, max_size=world))
        other = draw(st.lists(st.integers(0, 4), min_size=ndim - 1, max_size=ndim - 1))
        dtype = draw(st.sampled_from([kind for kind in DTYPES if kind not in FLOAT8]))
        dim = draw(st.integers(-ndim, ndim - 1))
        tensors.append((sizes, dim, tuple(other), dtype, draw(st.sampled_from(MODES)), seed, draw(st.booleans())))
    return world, tensors


def any_call(rank, world, drawn):
    tensors = [Ragged(*one[:6]) for one in drawn]
    check(rank, tensors, [one[0] if one[6] else None for one in drawn])


@settings(max_examples=50, deadline=None)
@given(calls())
def test_any_call(drawn):
    world, tensors = drawn
    run(world, any_call, tensors)


def many(rank, world):
    """As many tensors as a call takes."""
    tensors = [Ragged(patterns(world)[i % 5], 0, (i % 3 + 1,), torch.float64, MODES[i % 3], i) for i in range(64)]
    for sizes in (None, [one.sizes for one in tensors]):
        check(rank, tensors, sizes)


@pytest.mark.parametrize("world", [2, 5])
def test_sixty_four_tensors(world):
    run(world, many)


def every_dtype(rank, world, later):
    sizes = patterns(world)[0]
    blocks = [[values(100 * i + r, (n, 3), kind) for r, n in enumerate(sizes)] for i, kind in enumerate(DTYPES)]
    for known in (None, sizes):
        results = sheaf.all_gather_coalesced([parts[rank] for parts in blocks], sizes=known, async_op=later)
        for kind, parts, (y, _) in zip(DTYPES, blocks, results.wait() if later else results, strict=True):
            same(y, byte_cat(parts, 0), str(kind))


@pytest.mark.parametrize("later", [False, True], ids=["plain", "started"])
@pytest.mark.parametrize("world", WORLDS)
def test_every_dtype(world, later):
    run(world, every_dtype, later)


def odd_rank_out(rank, world, name, size, later=False):
    odd = rank == world - 1
    x, ids = torch.ones(2, size), torch.arange(3)

    def done(result):
        return result.wait() if later else result

    def together(*given, **options):
        return done(sheaf.all_gather_coalesced(*given, **options, async_op=later))

    match name:
        case "number":
            together([x] if odd else [x, ids])
        case "op":
            done(sheaf.all_gather(x, async_op=later)) if odd else together([x])
        case "dtype":
            together([x, ids.int() if odd else ids])
        case "dim":
            together([torch.ones(size, size), ids], dim=[1 if odd else 0, 0])
        case "other size":
            together([ids, x[:, 1:] if odd else x])
        case "mode":
            together([ids, x], grad=["sum", "own" if odd else "mean"])
        case "sizes":
            together([ids, x], sizes=[None, None if odd else [2] * world])
        case "values of sizes":
            together([ids, x], sizes=[None, [3 if odd and r == 0 else 2 for r in range(world)]])
        case "recording":
            with torch.set_grad_enabled(not odd):
                together([ids, x.clone().requires_grad_()])


DISAGREEMENTS = {
    "number": "ranks disagree on the number of tensors: 2 on rank",
    "op": "ranks disagree on op: all_gather_coalesced on rank",
    "dtype": "ranks disagree on dtype of tensor 1: int64 on rank",
    "dim": "ranks disagree on dim of tensor 0: 0 on rank",
    "other size": "ranks disagree on the size of dim 1 of tensor 1: ",
    "mode": "ranks disagree on gradient mode of tensor 1: mean on rank",
    "sizes": "ranks disagree on sizes of tensor 1: given on rank",
    "values of sizes": "ranks disagree on sizes of tensor 1: [2, 2",
    "recording": "under no_grad while rank",
}


@pytest.mark.parametrize("later", [False, True], ids=["plain", "started"])
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_disagreement(name, later):
    everyone_says(2, DISAGREEMENTS[name], odd_rank_out, name, 3, later)
    everyone_says(3, DISAGREEMENTS[name], odd_rank_out, name, 30_000 if name != "dim" else 40, later)


def refused(rank, world, name, everywhere):
    odd = everywhere or rank == world - 1
    x, mask = torch.ones(2, 3), torch.ones(2, dtype=torch.bool)
    sheaf.gather_sizes(x)  # in step from here
    together = sheaf.all_gather_coalesced
    match name:
        case "none":
            together([] if odd else [x])
        case "no list":
            together(x if odd else [x, x])
        case "many":
            together([x] * (65 if odd else 64))
        case "0-d":
            together([x, torch.tensor(1.0) if odd else mask])
        case "sparse":
            together([x, x.to_sparse() if odd else mask])
        case "meta":
            together([x, x.to("meta") if odd else mask])
        case "nested":
            together([x, torch.nested.nested_tensor([x, x]) if odd else mask])
        case "subclass":
            together([x, strange(x) if odd else x])
        case "range":
            together([x, mask], [0, 1 if odd else 0])
        case "far range":
            together([x, mask], 1 << 70 if odd else 0)
        case "dims":
            together([x, mask], [0, 0, 0] if odd else 0)
        case "modes":
            together([x, mask], grad=["sum"] if odd else "sum")
        case "mode":
            together([x, mask], grad=["sum", "median" if odd else "sum"])
        case "own size":
            together([x, mask], sizes=[None, [2] * (world - 1) + [3 if odd else 2]])
        case "short sizes":
            together([x, mask], sizes=[None, [2] if odd else [2] * world])
        case "timeout":
            together([x, mask], timeout=-1 if odd else None)


REFUSED = {
    "none": "no tensors were given",
    "no list": "a list or a tuple of tensors is needed, got Tensor",
    "many": "one call takes at most 64 tensors, got 65",
    "0-d": "tensor 1: a 0-d tensor has no dim",
    "sparse": "tensor 1: sparse tensors are not taken",
    "meta": "tensor 1: meta tensors hold no data",
    "nested": "tensor 1: nested tensors are not taken",
    "subclass": "tensor 1: tensor subclasses such as Strange are not taken",
    "range": "tensor 1: dim must be from -1 to 0, got 1",
    "far range": "tensor 0: dim must be from -2 to 1, got 1180591620717411303424",
    "dims": "dim: expected one for each of 2 tensors, got 3",
    "modes": "grad: expected one for each of 2 tensors, got 1",
    "mode": 'tensor 1: a gradient is "sum", "mean" or "own", got "median"',
    "short sizes": "tensor 1: sizes must have 3 entries, one per rank, got 1",
    "timeout": "timeout must be a positive number of seconds",
}


@pytest.mark.parametrize("everywhere", [False, True], ids=["one rank", "all ranks"])
@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name, everywhere):
    everyone_says(3, REFUSED[name], refused, name, everywhere)


def test_refusal_of_the_own_size():
    everyone_says(3, "tensor 1: sizes [2, 2, 3] give this rank 3 rows, but it has 2", refused, "own size", False)


def unsummable(rank, world):
    x, whole = torch.ones(world), torch.ones(world, dtype=torch.bool)
    scatter = sheaf.reduce_scatter_coalesced
    with pytest.raises(ValueError, match="tensor 1: bool tensors have no sum"):
        scatter([x, whole], [1] * world)
    with pytest.raises(ValueError, match="tensor 1: integer tensors have no mean"):
        scatter([x, whole.long()], [1] * world, op=["sum", "mean"])
    with pytest.raises(ValueError, match=f"tensor 0: sizes .* add up to {world}, but the tensor has {world + 1}"):
        scatter([torch.ones(world + 1), x], [1] * world)
    with pytest.raises(ValueError, match="sizes must be given for every tensor"):
        scatter([x, x], [[1] * world, None])
    with pytest.raises(ValueError, match="tensor 1: .*got .own." if world > 1 else ""):
        scatter([x, x], [1] * world, op=["sum", "own"] if world > 1 else "no")
    with pytest.raises(ValueError, match="tensor 1: dim must be from -1 to 0, got 3"):
        sheaf.all_gather_coalesced([x, x], [0, 3])
    with pytest.raises(ValueError, match="no tensors were given"):
        sheaf.all_gather_coalesced([])
    assert scatter([x, x], [1] * world)[1].tolist() == [world]


@pytest.mark.parametrize("world", [1, 2])
def test_what_means_nothing(world):
    run(world, unsummable)


def test_alone():
    x, mask = torch.ones(3, 2, requires_grad=True), torch.ones(2, dtype=torch.bool)
    (y, sizes), (m, _) = sheaf.all_gather_coalesced([x, mask], grad=["mean", "sum"])
    assert sizes.tolist() == [3] and torch.equal(m, mask)
    y.sum().backward()
    same(x.grad, torch.ones(3, 2), "gradient")
    (mine,) = sheaf.reduce_scatter_coalesced([x], [3])
    assert torch.equal(mine, x)
