# SPDX-License-Identifier: MIT
"""Asynchronous calls of several tensors: what they return, gradients started early, orders of waiting, errors."""

import pytest
import torch

import async_cases
import sheaf
from async_cases import LARGE, Late, Plain
from compiled import ran
from pool import run
from test_coalesced import Ragged, divided, mixed, ways_to_give
from truth import own_rows, patterns, rank_sum, same, values

pytestmark = pytest.mark.usefixtures("engine")

WORLDS = [1, 2, 3, 5]


def start_gather(rank, tensors, sizes=None):
    inputs = [one.blocks[rank].clone().requires_grad_(one.records) for one in tensors]
    dims, modes = [one.dim for one in tensors], [one.mode for one in tensors]
    return inputs, sheaf.all_gather_coalesced(inputs, dims, sizes=sizes, grad=modes, async_op=True)


def check_results(tensors, results):
    assert isinstance(results, tuple) and len(results) == len(tensors)
    for i, (one, result) in enumerate(zip(tensors, results, strict=True)):
        y, learned = result
        assert isinstance(result, sheaf.Gathered), i
        same(y, one.whole(), f"value of tensor {i}")
        assert y.is_contiguous() and learned.tolist() == list(one.sizes), i
        assert learned.dtype == torch.int64 and y.requires_grad == one.records, i


def check_gradients(rank, tensors, inputs, results):
    ends = [(y, one.upstream[rank]) for one, (y, _) in zip(tensors, results, strict=True) if one.records]
    torch.autograd.backward(*zip(*ends, strict=True))
    for i, (one, x) in enumerate(zip(tensors, inputs, strict=True)):
        if one.records:
            same(x.grad, one.gradient(rank), f"gradient of tensor {i}")
        else:
            assert x.grad is None, i


def gathers(rank, world):
    for scale in (1, 700):
        tensors = mixed(world, scale)
        for sizes in ways_to_give(tensors)[: 4 if scale == 1 else 2]:
            inputs, handle = start_gather(rank, tensors, sizes)
            results = handle.wait()
            assert handle.done() and all(a is b for a, b in zip(handle.wait(), results, strict=True)), "wait() twice"
            check_results(tensors, results)
            check_gradients(rank, tensors, inputs, results)


@pytest.mark.parametrize("world", WORLDS)
def test_gathered_values_and_gradients(world):
    run(world, gathers)


def start_scatter(rank, world, scale, seed=0):
    """Sums of every kind but bool, started. `ops` are their modes."""
    kinds = [torch.float64, torch.float16, torch.int64, torch.complex64, torch.bfloat16]
    others = [(3,), (2, scale), (), (4,), (scale,)]
    ops = ["sum", "mean", "sum", "mean", "sum"]
    tensors = [
        Ragged(patterns(world)[i % 5], [0, 1, 0, -1, -2][i], others[i], kind, ops[i], seed=seed + i)
        for i, kind in enumerate(kinds)
    ]
    inputs = [one.upstream[rank].clone().requires_grad_(one.records) for one in tensors]
    sizes, dims = [one.sizes for one in tensors], [one.dim for one in tensors]
    return tensors, inputs, sheaf.reduce_scatter_coalesced(inputs, sizes, dims, op=ops, async_op=True)


def scatters(rank, world):
    for scale in (1, 3_000):
        tensors, inputs, handle = start_scatter(rank, world, scale)
        mine = handle.wait()
        assert isinstance(mine, tuple) and handle.done()
        assert all(a is b for a, b in zip(handle.wait(), mine, strict=True)), "wait() twice"
        for one, got in zip(tensors, mine, strict=True):
            expected = own_rows(rank_sum(one.upstream, mean=one.mode == "mean"), one.sizes, rank, one.dim)
            same(got, expected, f"sum of {one.dtype}")
            assert got.requires_grad == one.records
        ends = [(got, one.blocks[rank]) for one, got in zip(tensors, mine, strict=True) if one.records]
        torch.autograd.backward(*zip(*ends, strict=True))
        for one, y in zip(tensors, inputs, strict=True):
            if one.records:
                parts = [divided(block, world) if one.mode == "mean" else block for block in one.blocks]
                same(y.grad, torch.cat(parts, one.dim), f"gradient, {one.dtype} {one.mode}")


@pytest.mark.parametrize("world", WORLDS)
def test_summed_values_and_gradients(world):
    run(world, scatters)


def second_order(rank, world):
    """Against the plain calls, bit for bit: their derivatives are held against one process."""
    tensors = [
        Ragged(patterns(world)[0], 0, (2,), torch.float64, "sum", seed=1),
        Ragged(patterns(world)[2], 1, (3,), torch.float64, "mean", seed=2),
        Ragged(patterns(world)[0], 0, (), torch.int64, "sum", seed=3),
        Ragged(patterns(world)[0], -1, (2, 2), torch.float64, "own", seed=4),
    ]
    dims, modes = [one.dim for one in tensors], [one.mode for one in tensors]
    floats = [0, 1, 3]
    sizes = [tensors[i].sizes for i in floats]

    def twice(is_async):
        inputs = [one.blocks[rank].clone().requires_grad_(one.records) for one in tensors]
        results = sheaf.all_gather_coalesced(inputs, dims, grad=modes, async_op=is_async)
        gathered = [y for y, _ in (results.wait() if is_async else results)]
        wholes = [gathered[i] ** 2 for i in floats]
        mine = sheaf.reduce_scatter_coalesced(wholes, sizes, [dims[i] for i in floats], async_op=is_async)
        mine = mine.wait() if is_async else mine
        own = [inputs[i] for i in floats]
        loss = sum((values(7 + rank, got.shape, torch.float64) * got**2).sum() for got in mine)
        with Plain() as plain:
            firsts = torch.autograd.grad(loss, own, create_graph=True)
        assert plain.count > 0 or world == 1
        probed = sum((values(9 + rank, one.shape, torch.float64) * one).sum() for one in firsts)
        return firsts, torch.autograd.grad(probed, own)

    for order, got, expected in zip((1, 2), twice(True), twice(False), strict=True):
        for i, a, b in zip(floats, got, expected, strict=True):
            same(a, b, f"derivative {order} of tensor {i}")
            assert a.numel() == 0 or a.abs().min() > 0


@pytest.mark.parametrize("world", WORLDS)
def test_second_derivative(world):
    run(world, second_order)


def different_needs(rank, world):
    """Rank r needs the gradient of tensor r alone, and of one in mode `own`; each takes part for the others' sake. One
    that nobody's loss uses counts as zero, and mode `own` is a rank's own affair."""
    blocks = [torch.full((rank + 1, 2), 1.0, requires_grad=i == rank) for i in range(world)]
    seen = []
    stays = torch.ones(2, requires_grad=True)
    blocks += [torch.ones(3), Late.apply(stays, lambda: seen.append(1)), torch.arange(4)]
    modes = ["sum"] * world + ["sum", "own", "mean"]
    results = [y for y, _ in sheaf.all_gather_coalesced(blocks, grad=modes, async_op=True).wait()]
    assert [y.requires_grad for y in results] == [True] * world + [False, True, False]
    own = results[world + 1]
    if rank == 0:
        (own * 5).sum().backward(retain_graph=True)
        same(stays.grad, torch.full((2,), 5.0), "own, on one rank")
        assert blocks[0].grad is None
    sum((y * (rank + 1) * (i + 1)).sum() for i, y in enumerate(results[:world])).backward(retain_graph=True)
    total = float(sum(range(1, world + 1)))
    same(blocks[rank].grad, torch.full((rank + 1, 2), total * (rank + 1)), "sum")
    assert len(seen) == (rank == 0), "what leads to a result in mode own that no loss used is left alone"
    blocks[rank].grad = None
    results[(world - 1)].sum().backward()
    same(
        blocks[rank].grad, torch.full((rank + 1, 2), float(world if rank == world - 1 else 0)), "used by the last rank"
    )
    with torch.no_grad():
        results = sheaf.all_gather_coalesced(blocks, async_op=True).wait()
        assert not any(y.requires_grad for y, _ in results)
    with torch.inference_mode():
        x = torch.ones(2)
        assert sheaf.all_gather_coalesced([x, x], async_op=True).wait()[1].tensor.is_inference()


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_need_different_gradients(world):
    run(world, different_needs)


def test_a_start_waits_for_nobody():
    run(2, async_cases.coalesced_starts_before_the_peer, "cpu")


def test_backward_is_started_early_and_waited_for_late():
    run(2, async_cases.coalesced_backward_starts_early, "cpu")


def in_any_order(rank, world):
    """Each rank waits in an order of its own, among plain calls and calls of one tensor, some of which are dropped; the
    backward is in step all the same."""
    tensors = [mixed(world, 1 + 300 * (n % 2)) for n in range(4)]
    started = [start_gather(rank, of) for of in tensors]
    x = torch.full((rank + 1, 2), 2.0, requires_grad=True)
    single = sheaf.all_gather(x, async_op=True)
    sheaf.all_gather_coalesced([x.detach() + 1, torch.full((1, LARGE), 1.0)], async_op=True)  # dropped, and goes on
    summed, inputs, sums = start_scatter(rank, world, 300)
    plain = sheaf.all_gather_coalesced([x, torch.arange(rank + 1)])
    rows = world * (world + 1) // 2
    same(plain[0].tensor.detach(), torch.full((rows, 2), 2.0), "a plain call among them")
    results = {}
    for n in ([2, 0, 3, 1], [1, 3, 0, 2], [3, 2, 1, 0])[rank]:
        results[n] = started[n][1].wait()
        check_results(tensors[n], results[n])
    del started[1:3], results[1]  # one that nobody differentiates
    mine = sums.wait()
    pairs = [pair for n in (3, 0, 2) for pair in zip(tensors[n], results[n], strict=True)]
    ends = [(y, one.upstream[rank]) for one, (y, _) in pairs if one.records]
    ends += [(single.wait().tensor, torch.ones(rows, 2)), (plain[0].tensor, torch.ones(rows, 2))]
    ends += [(got, one.blocks[rank]) for one, got in zip(summed, mine, strict=True) if one.records]
    torch.autograd.backward(*zip(*ends, strict=True))
    for n, now in ((0, started[0][0]), (3, started[1][0])):
        for one, given in zip(tensors[n], now, strict=True):
            if one.records:
                same(given.grad, one.gradient(rank), f"gradient of call {n}")
    same(x.grad, torch.full_like(x, 2.0 * world), "calls of one tensor, and plain ones")
    same(inputs[0].grad, torch.cat(summed[0].blocks), "gradient of a sum")


@pytest.mark.parametrize("world", [2, 3])
def test_waits_in_any_order(world):
    run(world, in_any_order)


def errors(rank, world):
    x, ids = torch.ones(2, 3), torch.arange(4)
    # Ranks that disagree: the same error, from wait().
    handle = sheaf.all_gather_coalesced([x, ids if rank == 0 else ids.int()], async_op=True)
    said = []
    for _ in range(2):
        with pytest.raises(ValueError, match="ranks disagree on dtype of tensor 1") as caught:
            handle.wait()
        said.append(str(caught.value))

    # What one rank sees by itself it says at once, and the others hear of it.
    def by_rank_0(text, start, rest):
        before = sheaf.all_gather_coalesced([x, ids], async_op=True)
        with pytest.raises(ValueError, match=f"rank 0 refuses: {text}") as caught:
            start() if rank == 0 else rest().wait()
        said.append(str(caught.value))
        assert before.wait()[1].tensor.shape == (4 * world,)

    def gather(*given, **options):
        return sheaf.all_gather_coalesced(*(given or ([x, ids],)), **options, async_op=True)

    def scatter(tensors=(x, ids), sizes=None, **options):
        rows = [[2] + [0] * (world - 1), [4] + [0] * (world - 1)]
        return sheaf.reduce_scatter_coalesced(list(tensors), sizes or rows, **options, async_op=True)

    sized = [[2] * world, [4] * world]
    for text, start, rest in (
        (r"tensor 1: dim must be from -1 to 0, got 7", lambda: gather([x, ids], [0, 7]), gather),
        (r"tensor 1: a tensor is needed, got str", lambda: gather([x, "ids"]), gather),
        (r"no tensors were given", lambda: gather([]), gather),
        (r"one call takes at most 64 tensors, got 65", lambda: gather([x] * 65), gather),
        (r"tensor 0: a gradient is .*, got \"max\"", lambda: gather([x, ids], grad=["max", "sum"]), gather),
        (
            r"tensor 1: sizes .* give this rank 5 rows, but it has 4",
            lambda: gather([x, ids], sizes=[[2] * world, [5] * world]),
            lambda: gather([x, ids], sizes=sized),
        ),
        (r"tensor 1: bool tensors have no sum", lambda: scatter([x, ids.bool()]), scatter),
        (r"tensor 1: integer tensors have no mean", lambda: scatter(op="mean"), scatter),
        (r"tensor 0: .* got .own.", lambda: scatter(op=["own", "sum"]), scatter),
        (
            r"tensor 1: sizes .* add up to 5",
            lambda: scatter(sizes=[[2, *[0] * (world - 1)], [5] + [0] * (world - 1)]),
            scatter,
        ),
    ):
        by_rank_0(text, start, rest)
    assert gather().wait()[0].tensor.shape == (2 * world, 3), "the group works on"
    return said


@pytest.mark.parametrize("world", [2, 3])
def test_errors(world):
    said = run(world, errors)
    assert all(len(set(texts)) == 1 for texts in zip(*said, strict=True)), said


def many_in_flight(rank, world):
    x = torch.full((rank + 1, 2), 1.0, requires_grad=True)
    handles = [sheaf.all_gather_coalesced([x * n, x.detach()], async_op=True) for n in range(64)]
    with pytest.raises(ValueError, match=r"all_gather_coalesced: 64 calls of this group are in flight"):
        sheaf.all_gather_coalesced([x, x], async_op=True)
    results = [handle.wait()[0].tensor for handle in handles]
    results += [sheaf.all_gather_coalesced([x * n, x], async_op=True).wait()[0].tensor for n in range(64, 70)]
    sum(y.sum() for y in results).backward()  # more than may be in flight: the rest runs plainly
    same(x.grad, torch.full_like(x, float(world * sum(range(70)))), "gradient")


def test_sixty_four_in_flight():
    run(2, many_in_flight)


def compiled(rank, world):
    def use(x, ids):
        handle = sheaf.all_gather_coalesced([x, ids], grad=["mean", "sum"], async_op=True)
        (y, sizes), (gathered, _) = handle.wait()
        mine = sheaf.reduce_scatter_coalesced([y, y * 2], [sizes, sizes], async_op=True).wait()
        return sum((one * x).sum() for one in mine) + gathered.sum(), handle.done()

    ids = torch.arange(rank + 2)
    x = torch.full((rank + 2, 3), 2.0, requires_grad=True)
    step = torch.compile(use, fullgraph=True, backend="aot_eager")
    loss, done = step(x, ids)
    loss.backward()
    again = x.detach().clone().requires_grad_()
    use(again, ids)[0].backward()
    torch.testing.assert_close(x.grad, again.grad)
    assert done
    calls = [("sizes of all", [0, 0]), ("gather all", [0, 0]), ("scatter all", [0, 0])]
    calls += [("gather all", [0, 0]), ("scatter all", [0])]
    assert ran(lambda: step(x, ids)[0].backward()) == calls, "plain calls, one after the other"


def test_under_a_compiler_it_runs_synchronously():
    run(2, compiled, timeout=120)
