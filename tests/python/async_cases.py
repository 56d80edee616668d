# SPDX-License-Identifier: MIT
"""What holds of asynchronous calls wherever tensors are, and whatever carries them: on every engine of the CPU's, by
the collectives of a group's backend, and on GPUs. Every body takes the device; truths are computed on the CPU."""

import ctypes
import gc
import itertools
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import async_graphs
import sheaf
from truth import MODES, blocks, expected_gradient, own_rows, patterns, rank_sum, values
from truth import same as same_on_cpu

LARGE = 40_000
"""Elements of a row that rides along with no header, on no engine."""
_keys = itertools.count()


def mark(text):
    """For other ranks to see; not by way of Sheaf."""
    dist.distributed_c10d._get_default_store().set(f"async-test/{text}", "1")


def await_mark(text, seconds=30.0, *, hold=False):
    """With `hold`, no other thread of this process runs Python meanwhile, as if this one computed."""
    store = dist.distributed_c10d._get_default_store()
    deadline = time.monotonic() + seconds
    while not store.check([f"async-test/{text}"]):
        assert time.monotonic() < deadline, f"nobody left the mark {text!r}"
        ctypes.PyDLL(None).usleep(100_000) if hold else time.sleep(0.005)


def await_done(handle, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not handle.done():
        assert time.monotonic() < deadline, "a call that every rank made is not done"
        time.sleep(0.005)


def key():
    """The same on every rank, and another at each call: ranks make the same calls."""
    return f"{next(_keys)}"


def same(got, truth, what):
    same_on_cpu(got.cpu(), truth.cpu(), what)


def gather(rank, world, device, sizes, dim, mode, known):
    parts = blocks(sizes, dim)
    x = parts[rank].to(device, copy=True).requires_grad_()
    handle = sheaf.all_gather(x, dim, sizes=sizes if known else None, grad=mode, async_op=True)
    result = handle.wait()
    y, learned = result
    assert isinstance(result, sheaf.Gathered)
    same(y, torch.cat(parts, dim), "value")
    if y.is_cuda:
        torch.cuda.synchronize()  # a result of no rows was not waited for above
    assert handle.done()
    assert y.is_contiguous() and learned.tolist() == list(sizes)
    assert handle.wait().tensor is y and handle.wait().sizes is learned, "wait() twice"
    upstream = [values(50 + r, y.shape, torch.float64) for r in range(world)]
    y.backward(upstream[rank].to(device))
    same(x.grad, expected_gradient(mode, upstream, sizes, rank, dim), f"gradient {mode}")


def scatter(rank, world, device, sizes, dim, mode):
    wholes = [values(70 + r, torch.cat(blocks(sizes, dim), dim).shape, torch.float64) for r in range(world)]
    y = wholes[rank].to(device, copy=True).requires_grad_()
    handle = sheaf.reduce_scatter(y, sizes, dim, op=mode, async_op=True)
    mine = handle.wait()
    same(mine, own_rows(rank_sum(wholes, mean=mode == "mean"), sizes, rank, dim), "sum")
    assert handle.wait() is mine
    upstream = blocks(sizes, dim, seed=3)
    mine.backward(upstream[rank].to(device))
    factor = world if mode == "mean" else 1
    torch.testing.assert_close(y.grad.cpu(), torch.cat(upstream, dim) / factor)


def every_call(rank, world, device):
    for sizes in patterns(world):
        for dim in (0, 1, -1):
            for mode in MODES:
                for known in (False, True):
                    gather(rank, world, device, sizes, dim, mode, known)
            for mode in ("sum", "mean"):
                scatter(rank, world, device, sizes, dim, mode)


def large_calls(rank, world, device):
    sizes = [3 + r for r in range(world)]
    for dim in (0, 1):
        parts = [torch.full((rows, LARGE) if dim == 0 else (LARGE, rows), 2.0 + r) for r, rows in enumerate(sizes)]
        x = parts[rank].to(device, copy=True).requires_grad_()
        handles = [sheaf.all_gather(x, dim, sizes=known, async_op=True) for known in (None, sizes, None)]
        gradients = []
        for handle in reversed(handles):
            y = handle.wait().tensor
            same(y, torch.cat(parts, dim), "value")
            gradients.append((y * (rank + 1)).sum())
        sum(gradients).backward()
        same(x.grad, torch.full_like(x, 3.0 * sum(r + 1 for r in range(world))), "gradient")


class Plain(TorchDispatchMode):
    """How many collectives of gradients run on this thread."""

    OPS = ("all_gather_sized", "reduce_scatter_sized", "all_gather_coalesced_sized", "reduce_scatter_coalesced_sized")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in [getattr(torch.ops.sheaf, name).default for name in self.OPS]
        return func(*args, **(kwargs or {}))


def second_order(rank, world, device, mode):
    """L_r = sum(w_r * y**3): the second derivative of all losses together, from one process that has all blocks."""
    sizes = [2, 1, 3, 2, 1][:world]
    parts = blocks(sizes, 0)
    x = parts[rank].to(device, copy=True).requires_grad_()
    y = sheaf.all_gather(x, grad=mode, async_op=True).wait().tensor
    weights = [values(20 + r, y.shape, torch.float64) for r in range(world)]
    with Plain() as plain:
        (first,) = torch.autograd.grad((weights[rank].to(device) * y**3).sum(), x, create_graph=True)
    assert plain.count == (world > 1), "with create_graph the plain op runs"
    factor = world if mode == "mean" else 1
    slope = [3 * w * torch.cat(parts) ** 2 for w in weights]
    torch.testing.assert_close(first.detach().cpu(), expected_gradient(mode, slope, sizes, rank, 0))
    probe = blocks(sizes, 0, seed=5)
    (second,) = torch.autograd.grad((first * probe[rank].to(device)).sum(), x)
    # gather_m of the probes, times the curvature, scatter_m again.
    if mode == "own":
        spread = torch.cat([p if r == rank else torch.zeros_like(p) for r, p in enumerate(probe)])
        curved = [6 * w * torch.cat(parts) * spread for w in weights]
        want = own_rows(curved[rank], sizes, rank, 0)
    else:
        curved = [6 * w * torch.cat(parts) * torch.cat(probe) / factor for w in weights]
        want = own_rows(rank_sum(curved) / factor, sizes, rank, 0)
    torch.testing.assert_close(second.cpu(), want)


def second_order_of_a_sum(rank, world, device, op):
    """L_r = sum(w_r * s_r**3), s_r the own rows of the sum: both derivatives from one process that has all of it."""
    sizes = [2, 1, 3, 2, 1][:world]
    wholes = [values(30 + r, (sum(sizes), 3), torch.float64) for r in range(world)]
    factor = world if op == "mean" else 1
    sums = [own_rows(rank_sum(wholes) / factor, sizes, r, 0) for r in range(world)]
    weights = [values(40 + r, part.shape, torch.float64) for r, part in enumerate(sums)]
    y = wholes[rank].to(device, copy=True).requires_grad_()
    mine = sheaf.reduce_scatter(y, sizes, op=op, async_op=True).wait()
    with Plain() as plain:
        (first,) = torch.autograd.grad((weights[rank].to(device) * mine**3).sum(), y, create_graph=True)
    assert plain.count == (world > 1), "with create_graph the plain op runs"
    slope = torch.cat([3 * w * part**2 for w, part in zip(weights, sums, strict=True)])
    torch.testing.assert_close(first.detach().cpu(), slope / factor)
    probes = [values(50 + r, y.shape, torch.float64) for r in range(world)]
    (second,) = torch.autograd.grad((first * probes[rank].to(device)).sum(), y)
    curve = torch.cat([6 * w * part for w, part in zip(weights, sums, strict=True)])
    torch.testing.assert_close(second.cpu(), curve * rank_sum(probes) / factor**2)


def second_order_of_every_mode(rank, world, device):
    for mode in MODES:
        second_order(rank, world, device, mode)
    for op in ("sum", "mean"):
        second_order_of_a_sum(rank, world, device, op)


def start_before_the_peer(rank, device, calls):
    """Rank 1 starts each call only once rank 0's start has returned: had that waited for it, nobody would go on."""
    sheaf.gather_sizes(torch.ones(1, device=device))  # in a group's first call ranks meet
    for call in calls:
        now = key()
        if rank == 1:
            await_mark(now)
        handle = call()
        if rank == 0:
            assert not handle.done()
            mark(now)
        handle.wait()


def starts_before_the_peer(rank, world, device):
    x = torch.full((rank + 1, 3), float(rank), device=device)
    large = torch.full((rank + 1, LARGE), float(rank), device=device)
    calls = (
        lambda: sheaf.all_gather(x, async_op=True),
        lambda: sheaf.all_gather(x, sizes=[1, 2], async_op=True),
        lambda: sheaf.all_gather(large, async_op=True),
        lambda: sheaf.all_gather(large, sizes=[1, 2], async_op=True),
        lambda: sheaf.reduce_scatter(torch.ones(3, 3, device=device), [1, 2], async_op=True),
        lambda: sheaf.reduce_scatter(torch.ones(3, LARGE, device=device), [1, 2], async_op=True),
    )
    start_before_the_peer(rank, device, calls)


def coalesced_starts_before_the_peer(rank, world, device):
    small, large = torch.ones(rank + 1, 3, device=device), torch.ones(rank + 1, LARGE, device=device)
    ids, column = torch.arange(rank + 1, device=device), torch.ones(3, device=device)
    calls = (
        lambda: sheaf.all_gather_coalesced([small, ids], async_op=True),
        lambda: sheaf.all_gather_coalesced([small, ids], sizes=[1, 2], async_op=True),
        lambda: sheaf.all_gather_coalesced([large, ids], async_op=True),
        lambda: sheaf.all_gather_coalesced([large, ids], sizes=[1, 2], async_op=True),
        lambda: sheaf.reduce_scatter_coalesced([torch.ones(3, 3, device=device), column], [1, 2], async_op=True),
        lambda: sheaf.reduce_scatter_coalesced([torch.ones(3, LARGE, device=device), column], [1, 2], async_op=True),
    )
    start_before_the_peer(rank, device, calls)


def computes_while_the_peer_waits(rank, world, device):
    """Rank 0 waits for its result only after rank 1 has its own, and keeps Python's lock nearly all the time."""
    calls = (
        (lambda x, y: sheaf.all_gather(x, async_op=True), lambda got: got.tensor),
        (lambda x, y: sheaf.reduce_scatter(y, [2, 3], async_op=True), lambda got: got),
        (lambda x, y: sheaf.all_gather_coalesced([x, x], async_op=True), lambda got: got[1].tensor),
        (lambda x, y: sheaf.reduce_scatter_coalesced([y, y], [2, 3], async_op=True), lambda got: got[1]),
    )
    for width, (start, result) in itertools.product((3, LARGE), calls):
        now = key()
        x = torch.full((rank + 2, width), 1.0, device=device, requires_grad=True)
        handle = start(x, torch.ones(5, width, device=device))
        if rank == 1:
            got = result(handle.wait()).cpu()  # all of it, where a device brings it
            mark(now)
        else:
            await_mark(now, hold=True)
            await_done(handle)
            got = result(handle.wait())
        summed = got.shape[0] != 5
        same(got.detach(), torch.full((rank + 2 if summed else 5, width), 2.0 if summed else 1.0), "value")


class Late(torch.autograd.Function):
    """Identity; its backward calls `then`."""

    @staticmethod
    def forward(ctx, x, then):
        ctx.then = then
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.then()
        return gradient, None


def early_and_late(rank):
    """What this rank does in a node before its backward call, in one between that call and its result, and when it has
    its gradient.

    Rank 1's gradient arrives only once rank 0 has gone past its call, which so waits for nobody. Rank 0 asks for its
    result only once rank 1 has its own, which it would never get of a call that rank 0 has not started yet."""
    past_the_start, arrived = key(), key()

    def nothing():
        pass

    def older():
        mark(past_the_start)
        await_mark(arrived)

    if rank == 0:
        return nothing, older, nothing
    return lambda: await_mark(past_the_start), nothing, lambda: mark(arrived)


def backward_starts_early(rank, world, device):
    for width in (3, LARGE):
        late, older, arrived = early_and_late(rank)
        x = torch.full((rank + 2, width), 1.0, device=device, requires_grad=True)
        z = torch.full((3,), 1.0, device=device, requires_grad=True)
        other = Late.apply(z, older)  # differentiated after what is younger
        y = sheaf.all_gather(x, async_op=True).wait().tensor
        (Late.apply(y, late).sum() * (rank + 1) + other.sum()).backward()
        same(x.grad, torch.full_like(x, 3.0), "gradient")
        arrived()
        same(z.grad, torch.ones(3), "the other gradient")


def coalesced_backward_starts_early(rank, world, device):
    for width, gather in itertools.product((3, LARGE), (True, False)):
        late, older, arrived = early_and_late(rank)
        rows = rank + 2 if gather else 5
        x = torch.ones(rows, width, device=device, requires_grad=True)
        b = torch.ones(rows, 2, device=device, requires_grad=True)
        z = torch.ones(3, device=device, requires_grad=True)
        other = Late.apply(z, older)
        if gather:
            results = [y for y, _ in sheaf.all_gather_coalesced([x, b], grad=["sum", "mean"], async_op=True).wait()]
        else:
            results = sheaf.reduce_scatter_coalesced([x, b], [2, 3], op=["sum", "mean"], async_op=True).wait()
        first = Late.apply(results[0], late)
        with Plain() as seen:
            (first.sum() * (rank + 1) + results[1].sum() * 2 * (rank + 1) + other.sum()).backward()
        assert seen.count == 0, "no collective runs where the gradients arrive"
        factors = torch.full((rows, 1), 3.0) if gather else torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0])[:, None]
        same(x.grad, factors.expand(rows, width), "sum")
        arrived()
        same(b.grad, factors.expand(rows, 2), "mean")
        same(z.grad, torch.ones(3), "the other gradient")


def in_any_order(rank, world, device):
    """Each rank waits in an order of its own; the backward is in step all the same."""
    blocks_of = [[torch.full((r + 1, 2 + n), float(10 * r + n)) for r in range(world)] for n in range(6)]
    inputs = [parts[rank].to(device, copy=True).requires_grad_() for parts in blocks_of]
    handles = [sheaf.all_gather(x, async_op=True) for x in inputs]
    plain = sheaf.all_gather(inputs[0].detach()).tensor  # after those in flight
    same(plain, torch.cat(blocks_of[0]), "a plain call among them")
    order = list(range(6))[rank:] + list(range(6))[:rank]
    loss = 0.0
    for n in order if rank % 2 else reversed(order):
        y = handles[n].wait().tensor
        same(y, torch.cat(blocks_of[n]), f"call {n}")
        loss = loss + (y * (n + 1)).sum()
    loss.backward()
    for n, x in enumerate(inputs):
        same(x.grad, torch.full_like(x, float(world * (n + 1))), f"gradient {n}")


def many_in_flight(rank, world, device):
    x = torch.full((rank + 1, 2), 1.0, device=device, requires_grad=True)
    total = world * (world + 1) // 2
    handles = [sheaf.all_gather(x * n, async_op=True) for n in range(64)]
    with pytest.raises(ValueError, match=r"all_gather: 64 calls of this group are in flight.*wait\(\) for some"):
        # What one rank refuses by itself has no number either.
        sheaf.all_gather("x" if rank == 0 else x, async_op=True)
    assert handles.pop().wait().tensor.shape == (total, 2)
    handles.append(sheaf.all_gather(x * 63, async_op=True))  # there is room again
    results = [handle.wait().tensor for handle in handles]
    for n, y in enumerate(results):
        same(y.detach(), torch.full((total, 2), float(n)), f"call {n}")
    # More backward calls than may be in flight: those that find no place run as plain ones.
    more = [sheaf.all_gather(x * n, async_op=True).wait().tensor for n in range(64, 80)]
    sum(y.sum() for y in results + more).backward()
    same(x.grad, torch.full_like(x, float(world * sum(range(80)))), "gradient")


def dropped_make_room(rank, world, device):
    """Whether the peer has come or not, what is dropped is counted no more: all ranks are refused at the same call."""
    sheaf.gather_sizes(torch.ones(1, device=device))
    x, now = torch.ones(rank + 1, device=device), key()
    if rank == 1:
        await_mark(now)
    for _ in range(70):
        sheaf.all_gather(x, async_op=True)
    handles = [sheaf.all_gather(x + n, async_op=True) for n in range(64)]
    with pytest.raises(ValueError, match="64 calls of this group are in flight"):
        sheaf.all_gather(x, async_op=True)
    if rank == 0:
        mark(now)
    for n, handle in enumerate(handles):
        same(handle.wait().tensor, torch.full((3,), n + 1.0), f"call {n}")


def recording_on_one_rank(rank, world, device):
    """Rank 0 alone needs a gradient: the others take part in its backward."""
    x = torch.full((rank + 1, 2), 1.0, device=device, requires_grad=rank == 0)
    y = sheaf.all_gather(x, async_op=True).wait().tensor
    assert y.requires_grad
    upstream = torch.full_like(y, float(rank + 1))
    y.backward(upstream)
    upstream.zero_()
    if rank == 0:
        same(x.grad, torch.full_like(x, sum(range(1, world + 1))), "gradient")
    with torch.no_grad():
        assert not sheaf.all_gather(x.detach(), async_op=True).wait().tensor.requires_grad
    with torch.inference_mode():
        assert sheaf.all_gather(x.detach(), async_op=True).wait().tensor.is_inference()


def dropped(rank, world, device):
    x = torch.full((rank + 1, LARGE), float(rank + 1), device=device)
    seen = []
    sizes = [r + 1 for r in range(world)]
    for n in range(20):
        handle = sheaf.all_gather(x + n, async_op=True)
        if n % 5 == rank % 5:
            sheaf.reduce_scatter(x.new_full((sum(sizes), LARGE), float(n)), sizes, async_op=True)  # dropped at once
        else:
            sums = sheaf.reduce_scatter(x.new_full((sum(sizes), LARGE), float(n)), sizes, async_op=True)
            same(sums.wait(), torch.full((rank + 1, LARGE), float(world * n)), f"sum {n}")
        if n % 3 == rank % 3:
            del handle  # what was handed over lives on without it
        else:
            seen.append((n, handle))
    for n, handle in seen:
        y = handle.wait().tensor
        same(y, torch.cat([torch.full((r + 1, LARGE), float(r + 1 + n)) for r in range(world)]), f"call {n}")
    alive = weakref.ref(handle := sheaf.all_gather(x.clone().requires_grad_(), async_op=True))
    result = weakref.ref(handle.wait().tensor)
    gc.disable()
    try:
        del handle
        assert alive() is None and result() is None, "handle, result and graph form no cycle"
    finally:
        gc.enable()


def errors(rank, world, device):
    x = torch.ones(2, 3, device=device)
    # Ranks that disagree: the same error, from wait().
    handle = sheaf.all_gather(x if rank == 0 else x.int(), async_op=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="ranks disagree on dtype: float32 on rank 0; int32 on") as caught:
            handle.wait()

    # What one rank sees by itself it says at once, and the others hear of it.
    def started_by_rank_0(*given):
        if rank == 0:
            return sheaf.all_gather(*given, async_op=True)
        return sheaf.all_gather(x, async_op=True).wait()

    with pytest.raises(ValueError, match="rank 0 refuses: dim must be from -2 to 1, got 7"):
        started_by_rank_0(x, 7)
    # The same for what Python refuses, with a call in flight before it.
    before = sheaf.all_gather(x, async_op=True)
    with pytest.raises(ValueError, match="rank 0 refuses: a tensor is needed, got str"):
        started_by_rank_0("x")
    assert before.wait().tensor.shape == (2 * world, 3)
    assert sheaf.all_gather(x).tensor.shape == (2 * world, 3), "the group works on"
    return str(caught.value)


def refusals_wait_for_nobody(rank, world, device):
    """Rank 0 is refused before rank 1 has come, which hears of it when it does."""
    sheaf.gather_sizes(torch.ones(1, device=device))
    x = torch.ones(2, 3, device=device)
    odd, rows = "no tensor", [2, 2]
    calls = (
        (lambda: sheaf.all_gather(odd, async_op=True), lambda: sheaf.all_gather(x, async_op=True)),
        (lambda: sheaf.all_gather(x, 7, async_op=True), lambda: sheaf.all_gather(x, async_op=True)),
        (
            lambda: sheaf.all_gather(x, sizes=[2.0, 2.0], async_op=True),
            lambda: sheaf.all_gather(x, sizes=rows, async_op=True),
        ),
        (
            lambda: sheaf.reduce_scatter(x, [1, 1], op="max", async_op=True),
            lambda: sheaf.reduce_scatter(x, [1, 1], async_op=True),
        ),
        (
            lambda: sheaf.all_gather_coalesced([x, odd], async_op=True),
            lambda: sheaf.all_gather_coalesced([x, x], async_op=True),
        ),
        (
            lambda: sheaf.reduce_scatter_coalesced([x, x], [[1, 1], None], async_op=True),
            lambda: sheaf.reduce_scatter_coalesced([x, x], [1, 1], async_op=True),
        ),
    )
    for n, (bad, good) in enumerate(calls):
        now = key()
        if rank == 0:
            begin = time.monotonic()
            with pytest.raises(ValueError, match="rank 0 refuses"):
                bad()
            assert time.monotonic() - begin < 0.7, f"refusal {n} waited for the peer"
            mark(now)
        else:
            await_mark(now)
            with pytest.raises(ValueError, match="rank 0 refuses"):
                good().wait()
        assert sheaf.all_gather(x).sizes.tolist() == rows, "the group works on"


def hooks(rank, world, device):
    """Hooks of a started call's tensors and nodes see what they would of the plain one, and change it likewise; ranks
    without hooks are in step with those that have some."""

    def gradients(started, watches):
        x = torch.full((rank + 1, 2), 1.0, device=device, requires_grad=True)
        got = sheaf.all_gather(x, async_op=started)
        y = (got.wait() if started else got).tensor
        seen = []
        x.register_hook(lambda gradient: seen.append(gradient.clone()))
        y.register_hook(lambda gradient: gradient * 2)
        if watches:

            def look(inputs, outputs):
                seen.extend((inputs[0].clone(), outputs[0].clone()))
                return tuple(gradient * 10 for gradient in inputs)

            y.grad_fn.register_hook(look)
            y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 3,))
        y.backward(torch.full_like(y, rank + 1.0))
        return [*seen, x.grad]

    for watches in (True, rank == 0):
        plain, started = gradients(False, watches), gradients(True, watches)
        assert len(plain) == len(started) == (4 if watches else 2)
        for i, (got, truth) in enumerate(zip(started, plain, strict=True)):
            same(got, truth, f"{i}, watched: {watches}")
            assert truth.min() > 0


def beside_the_programs_own(rank, world, device):
    """The program's own collectives of the same group, between starts and waits, elsewhere on every rank: what the
    group's thread makes must not be paired with them."""
    sizes = [r + 2 for r in range(world)]
    dist.all_reduce(torch.ones(1, device=device))  # here backends wait for each other, the first time
    for turn, width in itertools.product(range(5), (3, LARGE)):
        parts = [torch.full((rows, width), float(10 * turn + r)) for r, rows in enumerate(sizes)]
        x = parts[rank].to(device, copy=True).requires_grad_()
        total = torch.full((width,), float(rank), device=device)
        work = dist.all_reduce(total, async_op=True) if rank == 0 else None
        handles = [sheaf.all_gather(x, sizes=known, async_op=True) for known in (None, sizes)]
        if rank == 1:
            work = dist.all_reduce(total, async_op=True)
        got = [handle.wait().tensor for handle in handles]
        if rank > 1:
            work = dist.all_reduce(total, async_op=True)
        work.wait()
        for y in got:
            same(y.detach(), torch.cat(parts), f"turn {turn}")
        same(total, torch.full((width,), float(sum(range(world)))), "the program's own")
        torch.autograd.backward(got, [torch.full_like(got[0], float(rank + 1))] * 2)
        same(x.grad, torch.full_like(x, float(world * (world + 1))), "gradient")


def some_start_what_others_call(rank, world, device):
    """One rank starts a call that the others make as a plain one: they are the same call, and so is its backward."""
    sizes = [r + 2 for r in range(world)]
    for width, odd in itertools.product((3, LARGE), range(world)):
        parts = [torch.full((rows, width), float(r)) for r, rows in enumerate(sizes)]
        x = parts[rank].to(device, copy=True).requires_grad_()
        y = (sheaf.all_gather(x, async_op=True).wait() if rank == odd else sheaf.all_gather(x)).tensor
        same(y.detach(), torch.cat(parts), f"rank {odd} starts it")
        y.backward(torch.full_like(y, float(rank + 1)))
        same(x.grad, torch.full_like(x, world * (world + 1) / 2), "gradient")


EVERY = [
    second_order_of_every_mode,
    errors,
    hooks,
    every_call,
    some_start_what_others_call,
    large_calls,
    in_any_order,
    many_in_flight,
    recording_on_one_rank,
    dropped,
    beside_the_programs_own,
    *async_graphs.EVERY,
]
OF_TWO = [
    starts_before_the_peer,
    coalesced_starts_before_the_peer,
    computes_while_the_peer_waits,
    backward_starts_early,
    coalesced_backward_starts_early,
    dropped_make_room,
    refusals_wait_for_nobody,
]
"""With two ranks, of which one waits for the other."""
