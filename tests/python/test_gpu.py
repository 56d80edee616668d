# SPDX-License-Identifier: MIT
"""CUDA tensors over NCCL, several ranks on one GPU: `make test-gpu`. Skipped where there is no GPU."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import device_cases
import pool
import sheaf
import test_cpp_on_gloo
from compiled import compiling
from pool import fresh, run, values
from truth import same

WORLDS = [2, 3, 4]
BOTH = "cpu:gloo,cuda:nccl"


def obstacle() -> str:
    """Why these tests cannot run; empty: they can."""
    if not torch.cuda.is_available():
        return "no GPU"
    if not dist.is_nccl_available():
        return "this torch has no NCCL"
    return ""


pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "nothing is in the way")


@pytest.fixture(scope="module", autouse=True)
def _on_gpu() -> Iterator[None]:
    pool.close_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(pool.BACKEND, BOTH)
        yield
        pool.close_all()


def described(rank, world):
    return sheaf.engine().cuda


def test_the_build_carries_cuda_tensors():
    assert set(run(2, described)) == {"collectives of nccl (the group's backend for CUDA tensors)"}


@pytest.mark.parametrize("case", device_cases.EVERY, ids=lambda case: case.__name__)
@pytest.mark.parametrize("world", WORLDS)
def test_like_one_process(world, case):
    run(world, case, "cuda", timeout=240)


def cpp_cases(rank, world, kinds):
    """The C++ cases of these kinds, with tensors on the GPU; their number."""
    library = test_cpp_on_gloo.cases()
    chosen = [name for name in test_cpp_on_gloo.names() if name.split("/")[0] in kinds]
    library.sheaf_cases_on(b"cuda")
    try:
        for name in chosen:
            test_cpp_on_gloo.perform(rank, world, name)
    finally:
        library.sheaf_cases_on(b"cpu")
    return len(chosen)


KINDS = [
    ("all_gather", "reduce_scatter", "layouts"),
    ("gradient", "second_derivative"),
    ("coalesced", "async"),
    ("async_coalesced", "valid"),
]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("kinds", KINDS, ids=" and ".join)
def test_from_cpp(kinds, world):
    assert run(world, cpp_cases, kinds, timeout=240)[0] >= len(kinds)


@pytest.mark.parametrize("world", WORLDS)
def test_disagreements_are_told_to_every_rank(world):
    said = run(world, device_cases.disagreements, "cuda")
    assert all(texts == said[0] for texts in said)
    for text, expected in zip(said[0], ("size of dim 1", "dtype", "on dim", f"rank {world - 1} refuses"), strict=True):
        assert expected in text, said[0]


@pytest.mark.parametrize("world", WORLDS)
def test_disagreements_with_sizes_given_are_told_to_every_rank(world):
    said = run(world, device_cases.sized_disagreements, "cuda")
    assert all(texts == said[0] for texts in said)
    for text, expected in zip(said[0], device_cases.SIZED, strict=True):
        assert expected in text, said[0]


@pytest.mark.parametrize("world", WORLDS)
def test_mistakes_with_static_shapes(world):
    for texts in run(world, device_cases.static_mistakes, "cuda"):
        for text, expected in zip(texts, device_cases.MISTAKES, strict=True):
            assert expected in text, texts


def one_device(rank, world):
    """Device types differ by rank: told before anything moves."""
    return device_cases.told(lambda: sheaf.all_gather(torch.ones(2, device="cuda" if rank else "cpu")))


def test_devices_must_agree():
    said = run(2, one_device)
    assert said[0] == said[1] and "device" in said[0], said


def without_sync(rank, world):
    """Forward and backward, sizes given and learned, along the first and another dim; small, ragged and even."""
    for rows in (3, 2400):  # padded, and one by one
        for sizes in ([rows + r for r in range(world)], [rows] * world):
            for dim in (0, 1):
                shape = [257, 257]
                shape[dim] = sizes[rank]
                x = torch.ones(shape, device="cuda", requires_grad=True)
                upstream = torch.ones(1, device="cuda")
                for known in (sizes, torch.tensor(sizes), None):
                    x.grad = None
                    torch.cuda.synchronize()
                    torch.cuda.set_sync_debug_mode("error")
                    try:
                        y, _ = sheaf.all_gather(x, dim, sizes=known)
                        y.backward(upstream.expand_as(y))
                    finally:
                        torch.cuda.set_sync_debug_mode("default")
                    same(x.grad.cpu(), torch.full(shape, float(world)), "gradient")


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_synchronises(world):
    run(world, without_sync)


def drop_ins_without_sync(rank, world):
    """Neither do the drop-ins, nor calls that are started."""
    x = torch.ones(3 + rank, 257, device="cuda", requires_grad=True)
    rows = [3 + r for r in range(world)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        whole, sizes = sheaf.compat.spear_tts.all_gather(x, 0, None)
        counted = sheaf.compat.st_moe.gather_sizes(x, dim=0)
        several = sheaf.all_gather_coalesced([x, x.detach()], sizes=rows, async_op=True).wait()
        y = sheaf.all_gather(x, async_op=True).wait().tensor
        (whole.sum() + several[0].tensor.sum() + y.sum()).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sizes.tolist() == counted.tolist() == rows
    same(x.grad.cpu(), torch.full_like(x, 1.0 + 2 * world).cpu().detach(), "gradient")


def test_drop_ins_do_not_synchronise():
    run(3, drop_ins_without_sync)


def not_waiting(rank, world):
    """The host runs ahead of a device that is busy: the calls return before it is done."""
    sizes = [70 + r for r in range(world)]
    x = torch.ones(sizes[rank], 20_000, device="cuda")
    sheaf.all_gather(x, sizes=sizes)
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    busy.record()
    y, _ = sheaf.all_gather(x, sizes=sizes)
    assert not busy.query(), "the call waited for the device"
    assert y.sum().item() == 20_000 * sum(sizes)


def test_the_host_runs_ahead():
    run(2, not_waiting)


def on_side_streams(rank, world):
    """What a stream makes late is gathered late; memory that is dropped at once is not handed on too early."""
    sizes = [33 + 9 * r for r in range(world)]
    parts = [torch.full((rows, 15_000), float(r + 1)) for r, rows in enumerate(sizes)]
    for dim in (0, 1):
        truth = torch.cat([part if dim == 0 else part.t() for part in parts], dim)
        kept = []
        stream = torch.cuda.Stream()
        for turn in range(6):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                x = (parts[rank] * (turn + 1)).cuda(non_blocking=True)
                kept.append(sheaf.all_gather(x if dim == 0 else x.t(), dim, sizes=sizes).tensor)
                del x
                torch.full((200, 15_000), -1.0, device="cuda")  # takes what was dropped
        torch.cuda.current_stream().wait_stream(stream)
        for turn, got in enumerate(kept):
            same(got.cpu(), truth * (turn + 1), f"turn {turn} along {dim}")


def test_streams():
    run(2, on_side_streams)


def waited_for_elsewhere(rank, world):
    """A call that is started on one stream and waited for on others: they run behind it, and the host does not wait.
    What they read is not handed on while they read."""
    sizes = [33 + 9 * r for r in range(world)]
    parts = [torch.full((rows, 15_000), float(r + 1)) for r, rows in enumerate(sizes)]
    late, reader, again = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
    x, y = parts[rank].cuda(), torch.cat(parts).cuda()

    def started(cycles):
        torch.cuda.synchronize()
        with torch.cuda.stream(late):
            torch.cuda._sleep(cycles)
            handle = sheaf.all_gather(x * 2, sizes=sizes, async_op=True)
            summed = sheaf.reduce_scatter(y, sizes, async_op=True)
            both = sheaf.all_gather_coalesced([x * 3, x * 4], sizes=sizes, async_op=True)
        was_done = handle.done() or summed.done() or both.done()
        with torch.cuda.stream(reader):
            got = handle.wait().tensor
            copies = [got.clone(), summed.wait().clone(), *(one.tensor.clone() for one in both.wait())]
            torch.cuda._sleep(cycles // 10)
            copies.append(got.clone())
        with torch.cuda.stream(again):
            copies.append(handle.wait().tensor.clone())
        was_done = was_done or handle.done()
        del got, handle
        with torch.cuda.stream(late):
            torch.full((sum(sizes), 15_000), -1.0, device="cuda")  # would take what was dropped
        torch.cuda.synchronize()
        assert summed.done() and both.done()
        return was_done, copies

    started(10)  # sets up NCCL, and the allocator's memory for each stream
    was_done, copies = started(2_000_000_000)
    assert not was_done, "the host waited for the device"
    whole = torch.cat(parts)
    truths = [whole * 2, parts[rank] * world, whole * 3, whole * 4, whole * 2, whole * 2]
    for i, (copy, truth) in enumerate(zip(copies, truths, strict=True)):
        same(copy.cpu(), truth, f"copy {i}")


def test_handles_order_streams():
    run(2, waited_for_elsewhere)


def kernels_of(body):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        body()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]


def first_dim(rank, world):
    """Large ragged blocks along dim 0: nothing runs but NCCL and copies, and memory is the result's."""
    sizes = [1000 + 200 * r for r in range(world)]
    x = torch.ones(sizes[rank], 4096, device="cuda")
    sheaf.all_gather(x, sizes=sizes)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y, _ = sheaf.all_gather(x, sizes=sizes)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    names = kernels_of(lambda: sheaf.all_gather(x, sizes=sizes))
    return peak / y.nbytes, [name for name in names if "nccl" not in name.lower() and "Memcpy" not in name]


def test_first_dim_is_one_collective():
    for peak, others in run(3, first_dim):
        assert peak < 1.01 and others == [], (peak, others)


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


def captured(rank, world, dim, mode):
    """Ten patterns of counts replayed through one graph, forward and backward."""
    capacity, counts = 10, torch.zeros((), dtype=torch.int64, device="cuda")
    parts = device_cases.blocks([capacity] * world, dim)
    shape = torch.cat(parts, dim).shape
    upstream = [device_cases.values(50 + r, shape, torch.float64) for r in range(world)]
    x, weight = parts[rank].cuda().requires_grad_(), upstream[rank].cuda()

    def step():
        y, sizes = sheaf.all_gather(x, dim, valid=counts)
        (gradient,) = torch.autograd.grad(y, x, weight)
        return y, sizes, gradient

    y, sizes, gradient, graph = capture(step, mode)
    for turn in range(10):
        pattern = [(turn * (r + 1) + 2 * r) % (capacity + 1) for r in range(world)]
        counts.fill_(pattern[rank])
        graph.replay()
        same(y.cpu(), device_cases.compacted(parts, pattern, dim), f"value of {pattern}")
        assert sizes.tolist() == pattern
        truth = device_cases.valid_gradient("sum", upstream, pattern, rank, dim, capacity)
        same(gradient.cpu(), truth, f"gradient of {pattern}")
    counts.fill_(capacity + 1)
    graph.replay()
    return device_cases.told(step)


@pytest.mark.parametrize(("world", "dim", "mode"), [(2, 0, None), (3, 1, None), (4, 0, "thread_local")])
def test_a_captured_graph_is_replayed_with_other_sizes(world, dim, mode):
    for text in run(world, captured, dim, mode, timeout=120):
        assert "was clamped" in text, text


def captured_with_sizes(rank, world, known, width):
    """Sizes are those of the captured call, learned or given; values change."""
    sizes = [2 + r for r in range(world)]
    x = torch.zeros(sizes[rank], width, device="cuda", requires_grad=True)

    def step():
        y, _ = sheaf.all_gather(x, sizes=sizes if known else None)
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
@pytest.mark.parametrize("width", [3, 200_000], ids=["padded", "grouped"])
def test_a_captured_graph_keeps_its_sizes(known, width):
    run(3, captured_with_sizes, known, width, timeout=120)


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


def opcheck(rank, world):
    sizes = [2 + r for r in range(world)]
    rows, total, own = torch.tensor(sizes), sum(sizes), sizes[rank]
    name, ops = dist.group.WORLD.group_name, torch.ops.sheaf
    x = device_cases.values(rank, (own, 3), torch.float64).cuda().requires_grad_()
    y = device_cases.values(rank, (total, 3), torch.float64).cuda().requires_grad_()
    torch.library.opcheck(ops.gather_sizes.default, (x.detach(), 0, world, name))
    for mode in device_cases.MODES:
        torch.library.opcheck(ops.all_gather.default, (x, 0, world, mode, name))
        torch.library.opcheck(ops.all_gather_sized.default, (x, rows, total, 0, world, mode, name))
        torch.library.opcheck(ops.reduce_scatter_sized.default, (y, rows, own, 0, world, mode, name))


def test_opcheck():
    run(2, opcheck, timeout=180)


def without_gloo(rank, world):
    """No backend for CPU tensors: headers come through shared memory, or through the store."""
    device_cases.gathers(rank, world, "cuda")
    device_cases.disagreements(rank, world, "cuda")
    refused = device_cases.told(lambda: sheaf.all_gather(torch.ones(2)))
    return sheaf.engine().cpu, refused


@pytest.mark.parametrize("headers", ["auto", "c10d"])
def test_a_group_of_nccl_alone(headers):
    env = {pool.BACKEND: "nccl", "SHEAF_ENGINE": headers}
    for cpu, refused in values(fresh(2, without_gloo, env=env, timeout=120)):
        assert cpu == "none (the group has no backend for CPU tensors)" and "no engine of this group" in refused


def by_messages(rank, world):
    """Headers go by messages of the group's backend for CPU tensors; the group's first call is a grouped one."""
    group, sizes = dist.new_group(), [1 + 2 * r for r in range(world)]
    x = torch.full((sizes[rank], 1 << 20), float(rank), device="cuda")
    got = sheaf.all_gather(x, group=group).tensor[:, 0].cpu()
    same(got, torch.cat([torch.full((rows,), float(r)) for r, rows in enumerate(sizes)]), "first call")
    without_sync(rank, world)
    return sheaf.engine().cpu


def test_headers_by_messages():
    said = values(fresh(2, by_messages, env={pool.BACKEND: BOTH, "SHEAF_ENGINE": "c10d"}, timeout=120))
    assert all(cpu.startswith("c10d over gloo") for cpu in said)
