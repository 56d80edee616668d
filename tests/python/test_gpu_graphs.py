# SPDX-License-Identifier: MIT
"""CUDA calls that are captured, compiled and checked as ops. Skipped where there is no GPU."""

import pytest
import torch
import torch.distributed as dist

import device_cases
import gpu
import sheaf
import static_cases
from compiled import compiling
from pool import run
from truth import MODES, same

pytestmark = gpu.TESTS


def capture(step, mode):
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **({"capture_error_mode": mode} if mode else {})):
        results = step()
    return *results, graph


def captured(rank, world, dim, mode, grad):
    """Ten patterns of counts, and one beyond the buffers, replayed through one graph, forward and backward."""
    capacity, counts = 10, torch.zeros((), dtype=torch.int64, device="cuda")
    parts = device_cases.blocks([capacity] * world, dim)
    shape = torch.cat(parts, dim).shape
    upstream = [device_cases.values(50 + r, shape, torch.float64) for r in range(world)]
    x, weight = parts[rank].cuda().requires_grad_(), upstream[rank].cuda()

    def step():
        y, sizes = sheaf.all_gather(x, dim, grad=grad, valid=counts)
        (gradient,) = torch.autograd.grad(y, x, weight)
        return y, sizes, gradient

    y, sizes, gradient, graph = capture(step, mode)
    for turn in range(11):
        pattern = [(turn * (r + 1) + 2 * r) % (capacity + 1) for r in range(world)] if turn < 10 else [capacity] * world
        counts.fill_(pattern[rank] + (turn == 10))
        graph.replay()
        same(y.cpu(), static_cases.compacted(parts, pattern, dim), f"value of {pattern}")
        assert sizes.tolist() == pattern
        truth = static_cases.valid_gradient(grad, upstream, pattern, rank, dim, capacity)
        same(gradient.cpu(), truth, f"gradient of {pattern}")
    return device_cases.told(step)


CAPTURED = [
    (2, 0, None, "sum"),
    (3, 1, None, "sum"),
    (4, 0, "thread_local", "sum"),
    (3, 0, None, "mean"),
    (2, 1, None, "own"),
]


@pytest.mark.parametrize(("world", "dim", "mode", "grad"), CAPTURED)
def test_a_captured_graph_is_replayed_with_other_sizes(world, dim, mode, grad):
    for text in run(world, captured, dim, mode, grad, timeout=120):
        assert "was clamped" in text, text


def captured_unprepared(rank, world):
    """The first call of its kind must not be captured, and the capture ends; after an eager one it can be."""
    x, count = torch.ones(3, 2, device="cuda"), torch.tensor(2, device="cuda")
    group = dist.new_group()
    sheaf.all_gather(x, group=group)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match="once before it is captured"), torch.cuda.graph(graph):
        sheaf.all_gather(x, valid=count, group=group)
    *_, graph = capture(lambda: sheaf.all_gather(x, valid=count, group=group), None)
    graph.replay()
    torch.cuda.synchronize()


def test_an_unprepared_call_is_not_captured():
    run(2, captured_unprepared)


def captured_with_sizes(rank, world, known, width, started):
    """Sizes are those of the captured call, learned or given; values change."""
    sizes = [2 + r for r in range(world)]
    x = torch.zeros(sizes[rank], width, device="cuda", requires_grad=True)

    def step():
        y, _ = (
            sheaf.all_gather(x, sizes=sizes if known else None, async_op=True).wait()
            if started
            else sheaf.all_gather(x, sizes=sizes if known else None)
        )
        (gradient,) = torch.autograd.grad((y * y).sum(), x)
        return y, gradient

    y, gradient, graph = capture(step, None)
    for turn in range(3):
        with torch.no_grad():
            x.fill_(10.0 * turn + rank)
        graph.replay()
        same(y.cpu(), torch.cat([torch.full((n, width), 10.0 * turn + r) for r, n in enumerate(sizes)]), "value")
        same(gradient.cpu(), torch.full((sizes[rank], width), 2.0 * world * (10 * turn + rank)), "gradient")


@pytest.mark.parametrize("known", [False, True], ids=["learned", "given"])
@pytest.mark.parametrize("width", [3, 200_000], ids=["direct", "grouped"])
@pytest.mark.parametrize("started", [False, True], ids=["plain", "started"])
def test_a_captured_graph_keeps_its_sizes(known, width, started):
    run(3, captured_with_sizes, known, width, started, timeout=120)


def compiled(rank, world):
    sizes = [2 + r for r in range(world)]

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x):
        return sheaf.all_gather(x, sizes=sizes).tensor * 2

    x = torch.full((sizes[rank], 3), float(rank + 1), device="cuda", requires_grad=True)
    y = step(x)
    y.sum().backward()
    same(y.cpu(), torch.cat([torch.full((n, 3), 2.0 * (r + 1)) for r, n in enumerate(sizes)]), "value")
    same(x.grad.cpu(), torch.full((sizes[rank], 3), 2.0 * world), "gradient")


def test_compiled():
    run(2, compiled, timeout=120)


def inducted(rank, world, known):
    """Two independent gathers, whose order a compiler might change, with other sizes each time."""

    def step(x, z, sizes):
        y, learned = sheaf.all_gather(x * 2, sizes=sizes)
        other, _ = sheaf.all_gather(z.sin(), 1, grad="mean")
        return y * 3, other * 2, learned

    with compiling():
        built = torch.compile(step, fullgraph=True)
        for sizes in ([2 + r for r in range(world)], [5] * world, [3 if r else 7 for r in range(world)]):
            parts = [device_cases.values(r, (n, 3), torch.float64) for r, n in enumerate(sizes)]
            wide = [device_cases.values(9 + r, (2, n), torch.float64) for r, n in enumerate(sizes)]
            x, z = parts[rank].cuda().requires_grad_(), wide[rank].cuda().requires_grad_()
            y, other, learned = built(x, z, torch.tensor(sizes) if known else None)
            assert learned.tolist() == sizes
            torch.testing.assert_close(y.detach().cpu(), torch.cat(parts) * 6)
            torch.testing.assert_close(other.detach().cpu(), torch.cat(wide, 1).sin() * 2)
            (y.sum() * (rank + 1) + other.sum() * (rank + 2)).backward()
            torch.testing.assert_close(x.grad.cpu(), torch.full_like(parts[rank], 3.0 * world * (world + 1)))
            mean = sum(2.0 * (r + 2) for r in range(world)) / world
            torch.testing.assert_close(z.grad.cpu(), wide[rank].cos() * mean)


@pytest.mark.parametrize("known", [False, True], ids=["learned", "given"])
def test_inductor(known):
    run(3, inducted, known, timeout=300)


def inducted_static(rank, world, device):
    with compiling():
        static_cases.static_compiled(rank, world, device, "inductor")


def test_inductor_with_static_shapes():
    run(2, inducted_static, "cuda", timeout=300)


def opcheck(rank, world):
    """Of one tensor, of several, and of static shapes."""
    sizes = [2 + r for r in range(world)]
    rows, total, own = torch.tensor(sizes), sum(sizes), sizes[rank]
    name, ops = dist.group.WORLD.group_name, torch.ops.sheaf
    x = device_cases.values(rank, (own, 3), torch.float64).cuda().requires_grad_()
    y = device_cases.values(rank, (total, 3), torch.float64).cuda().requires_grad_()
    torch.library.opcheck(ops.gather_sizes.default, (x.detach(), 0, world, name))
    for mode in MODES:
        torch.library.opcheck(ops.all_gather.default, (x, 0, world, mode, name))
        torch.library.opcheck(ops.all_gather_sized.default, (x, rows, total, 0, world, mode, name))
        torch.library.opcheck(ops.reduce_scatter_sized.default, (y, rows, own, 0, world, mode, name))
    both, table = [x, x.detach().t().contiguous()], rows.repeat(2, 1)
    torch.library.opcheck(ops.all_gather_coalesced.default, (both, None, [0, 1], world, ["sum", "mean"], name))
    sized = (both, table, [total] * 2, [0, 1], world, ["sum", "mean"], name, ["sum", "mean"])
    torch.library.opcheck(ops.all_gather_coalesced_sized.default, sized)
    counts = torch.tensor(sizes, device="cuda")
    for look in (False, True):
        torch.library.opcheck(ops.prepare_valid.default, (counts, 0, world, "sum", name, look))
    torch.library.opcheck(ops.clamped.default, (counts, max(sizes), name))
    blocks = device_cases.values(rank, (world * max(sizes), 3), torch.float64).cuda().requires_grad_()
    for op in (ops.compact, ops.spread):
        torch.library.opcheck(op.default, (blocks, counts, 0))


@pytest.mark.parametrize("world", [2, 4])
def test_opcheck(world):
    run(world, opcheck, timeout=240)
