# SPDX-License-Identifier: MIT
"""CUDA tensors over NCCL, several ranks on one GPU: `make test-gpu`. Skipped where there is no GPU."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import device_cases
import pool
import sheaf
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


@pytest.mark.parametrize("world", [2, 3])
def test_disagreements_are_told_to_every_rank(world):
    said = run(world, device_cases.disagreements, "cuda")
    assert all(texts == said[0] for texts in said)
    for text, expected in zip(said[0], ("size of dim 1", "dtype", "on dim", f"rank {world - 1} refuses"), strict=True):
        assert expected in text, said[0]


@pytest.mark.parametrize("world", [2, 3])
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
    for rows in (3, 400):
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


@pytest.mark.parametrize("world", [2, 3])
def test_nothing_synchronises(world):
    run(world, without_sync)


def not_waiting(rank, world):
    """The host runs ahead of a device that is busy: the calls return before it is done."""
    sizes = [70 + r for r in range(world)]
    x = torch.ones(sizes[rank], 5000, device="cuda")
    sheaf.all_gather(x, sizes=sizes)
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    busy.record()
    y, _ = sheaf.all_gather(x, sizes=sizes)
    assert not busy.query(), "the call waited for the device"
    assert y.sum().item() == 5000 * sum(sizes)


def test_the_host_runs_ahead():
    run(2, not_waiting)


def on_side_streams(rank, world):
    """What a stream makes late is gathered late; memory that is dropped at once is not handed on too early."""
    sizes = [33 + 9 * r for r in range(world)]
    parts = [torch.full((rows, 3000), float(r + 1)) for r, rows in enumerate(sizes)]
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
                torch.full((200, 3000), -1.0, device="cuda")  # takes what was dropped
        torch.cuda.current_stream().wait_stream(stream)
        for turn, got in enumerate(kept):
            same(got.cpu(), truth * (turn + 1), f"turn {turn} along {dim}")


def test_streams():
    run(2, on_side_streams)


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


def captured(rank, world):
    """Ten patterns of counts replayed through one graph, forward and backward."""
    capacity, counts = device_cases.CAPACITY, torch.zeros((), dtype=torch.int64, device="cuda")
    parts = [device_cases.values(r, (capacity, 3, 2), torch.float64) for r in range(world)]
    shape = (capacity * world, 3, 2)
    upstream = [device_cases.values(50 + r, shape, torch.float64) for r in range(world)]
    x, weight = parts[rank].cuda().requires_grad_(), upstream[rank].cuda()

    def step():
        y, sizes = sheaf.all_gather(x, valid=counts)
        (gradient,) = torch.autograd.grad(y, x, weight)
        return y, sizes, gradient

    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y, sizes, gradient = step()
    for turn in range(10):
        pattern = [(turn * (r + 1) + 2 * r) % (capacity + 1) for r in range(world)]
        counts.fill_(pattern[rank])
        graph.replay()
        same(y.cpu(), device_cases.compacted(parts, pattern, 0), f"value of {pattern}")
        assert sizes.tolist() == pattern
        truth = device_cases.valid_gradient("sum", upstream, pattern, rank, 0, capacity)
        same(gradient.cpu(), truth, f"gradient of {pattern}")
    counts.fill_(capacity + 1)
    graph.replay()
    return device_cases.told(step)


@pytest.mark.parametrize("world", [2, 4])
def test_a_captured_graph_is_replayed_with_other_sizes(world):
    for text in run(world, captured, timeout=120):
        assert "was clamped" in text, text


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
