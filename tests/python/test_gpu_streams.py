# SPDX-License-Identifier: MIT
"""What CUDA calls do to the host, to streams and to memory. Skipped where there is no GPU."""

import pytest
import torch

import gpu
import sheaf
from pool import run
from truth import same

WORLDS = [2, 3, 4]

pytestmark = gpu.TESTS


def without_sync(rank, world):
    """Forward and backward, sizes given and learned, along the first and another dim; small, ragged and even."""
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(1, device="cuda").item()
    torch.cuda.set_sync_debug_mode("default")
    for rows in (3, 2400):  # every block to every rank at once, and one by one
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


def not_waiting(rank, world, rows, width, dim):
    """The host runs ahead of a device that is busy: calls, and backwards, return before it is done."""
    sizes = [rows + r for r in range(world)]
    shape, whole = [width, width], [width, width]
    shape[dim], whole[dim] = sizes[rank], sum(sizes)
    x = torch.ones(shape, device="cuda", requires_grad=True)
    upstream = torch.full(whole, float(rank + 1), device="cuda")

    def step(known):
        y, _ = sheaf.all_gather(x, dim, sizes=known)
        y.backward(upstream)
        return y

    for known in (sizes, None):
        step(known)  # sets up NCCL, and the allocator's memory
        x.grad = None
        torch.cuda.synchronize()
        busy = torch.cuda.Event()
        torch.cuda._sleep(2_000_000_000)
        busy.record()
        y = step(known)
        assert not busy.query(), f"the call waited for the device, sizes {known}"
        assert y.sum().item() == width * sum(sizes)
        same(x.grad.cpu(), torch.full(shape, world * (world + 1) / 2), "gradient")
        x.grad = None


@pytest.mark.parametrize(("rows", "width", "dim"), [(70, 20_000, 0), (3, 64, 0), (70, 20_000, 1), (3, 64, 1)])
@pytest.mark.parametrize("world", WORLDS)
def test_the_host_runs_ahead(world, rows, width, dim):
    run(world, not_waiting, rows, width, dim)


def on_side_streams(rank, world):
    """What a stream makes late is gathered late, and so is a gradient; memory that is dropped at once is not handed on
    too early."""
    sizes = [33 + 9 * r for r in range(world)]
    parts = [torch.full((rows, 15_000), float(r + 1)) for r, rows in enumerate(sizes)]
    for dim in (0, 1):
        truth = torch.cat([part if dim == 0 else part.t() for part in parts], dim)
        weight = torch.full_like(truth, float(rank + 1)).cuda()
        kept, gradients = [], []
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        for turn in range(6):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                x = (parts[rank] * (turn + 1)).cuda(non_blocking=True).requires_grad_()
                y = sheaf.all_gather(x if dim == 0 else x.t(), dim, sizes=sizes).tensor
                late = weight * (turn + 1)
            if turn % 2:  # or made on the current stream, and late there
                torch.cuda._sleep(20_000_000)
                late = weight * (turn + 1)
            torch.autograd.backward(y, late)  # on the stream of the forward, whatever is current
            kept.append(y.detach())
            gradients.append((x.grad, late))
            with torch.cuda.stream(stream):
                del x, y
                for shape in (parts[rank].shape, truth.shape):  # take what was dropped
                    torch.full(shape, -1.0, device="cuda")
        torch.cuda.current_stream().wait_stream(stream)
        for turn, (got, (gradient, _)) in enumerate(zip(kept, gradients, strict=True)):
            same(got.cpu(), truth * (turn + 1), f"turn {turn} along {dim}")
            whole = torch.full_like(parts[rank], world * (world + 1) / 2 * (turn + 1))
            same(gradient.cpu(), whole, f"gradient of turn {turn} along {dim}")


@pytest.mark.parametrize("world", WORLDS)
def test_streams(world):
    run(world, on_side_streams)


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


def first_dim(rank, world, even, known, width):
    """Blocks along dim 0: what runs on the device, and the peak of memory in results."""
    sizes = [1001 + 200 * r * (not even) for r in range(world)]
    x = torch.ones(sizes[rank], width, device="cuda")
    given = sizes if known else None
    sheaf.all_gather(x, sizes=given)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y, _ = sheaf.all_gather(x, sizes=given)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    names = kernels_of(lambda: sheaf.all_gather(x, sizes=given))
    return peak / y.nbytes, names


@pytest.mark.parametrize("known", [False, True], ids=["learned", "given"])
@pytest.mark.parametrize("width", [64, 4096, 255], ids=["direct", "grouped", "staged"])
def test_first_dim_is_left_to_nccl(width, known):
    """Nothing runs but NCCL and a copy of the own block; memory is the result's, and no more. Blocks that begin at no
    whole vectors go by memory where they do, and a kernel places them."""
    for peak, names in run(3, first_dim, False, known, width):
        collectives = [name for name in names if "nccl" in name.lower()]
        others = [name for name in names if "nccl" not in name.lower()]
        assert peak < (2.02 if width == 255 else 1.01), peak
        assert len(others) == 1 and ("Memcpy" in others[0]) == (width != 255), names
        assert collectives and any("SendRecv" in name for name in collectives) == (width == 64), names


@pytest.mark.parametrize("known", [False, True], ids=["learned", "given"])
@pytest.mark.parametrize("width", [64, 4096, 255])
def test_even_blocks_are_nccls_alone(width, known):
    for peak, names in run(3, first_dim, True, known, width):
        assert peak < 1.01 and names and all("nccl" in name.lower() for name in names), (peak, names)


def inner_dim(rank, world, even):
    """Blocks along dim 1: what runs on the device, for a gather and for its adjoint."""
    sizes = [1001 + 200 * r * (not even) for r in range(world)]
    x, y = torch.ones(64, sizes[rank], device="cuda"), torch.ones(64, sum(sizes), device="cuda")
    calls = (lambda: sheaf.all_gather(x, 1, sizes=sizes), lambda: sheaf.reduce_scatter(y, sizes, 1))
    for call in calls:
        call()
    return [[name for name in kernels_of(call) if "nccl" not in name.lower()] for call in calls]


@pytest.mark.parametrize("even", [False, True], ids=["ragged", "even"])
def test_inner_dims_take_one_kernel_beside_nccl(even):
    """It places all blocks. Back, one packs them, and one sums."""
    for placing, back in run(3, inner_dim, even):
        assert len(placing) == 1 and len(back) == 2, (placing, back)
