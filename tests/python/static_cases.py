# SPDX-License-Identifier: MIT
"""Static shapes, `valid=`: what holds on the CPU and on a GPU. Every body takes the device."""

import torch
import torch.distributed as dist

import sheaf
from device_cases import byte_cat, second_derivative, told
from truth import DTYPES, FLOAT8, MODES, blocks, expected_gradient, same, values


def compacted(parts, counts, dim):
    """Valid rows first and in rank order, the rest zero."""
    rows = [part.narrow(dim, 0, min(max(count, 0), part.shape[dim])) for part, count in zip(parts, counts, strict=True)]
    whole = byte_cat(rows, dim)
    shape = list(whole.shape)
    shape[dim] = sum(part.shape[dim] for part in parts) - whole.shape[dim]
    rest = torch.zeros([*shape, whole.dtype.itemsize], dtype=torch.uint8).view(whole.dtype).squeeze(-1)
    return byte_cat([whole, rest], dim)


def valid_gradient(mode, upstream, counts, rank, dim, capacity):
    """Own valid rows of the gradient, zeros behind them."""
    mine = expected_gradient(mode, upstream, counts, rank, dim)
    shape = list(mine.shape)
    shape[dim] = capacity - mine.shape[dim]
    return torch.cat([mine, torch.zeros(shape, dtype=mine.dtype)], dim)


CAPACITY = 5


def count_patterns(world):
    some = [(2 * r + 3) % (CAPACITY + 1) for r in range(world)]
    return [some, [CAPACITY] * world, [0] * world, [0 if r else 4 for r in range(world)], some[::-1]]


def static_shapes(rank, world, device):
    for dim in (0, 1, -1):
        for mode in MODES:
            for counts in count_patterns(world):
                parts = blocks([CAPACITY] * world, dim)
                x = parts[rank].to(device).requires_grad_()
                y, sizes = sheaf.all_gather(x, dim, grad=mode, valid=torch.tensor(counts[rank], device=device))
                same(y.cpu(), compacted(parts, counts, dim), f"value of {counts}")
                assert sizes.device.type == device and sizes.dtype == torch.int64 and sizes.tolist() == counts
                upstream = [values(50 + r, y.shape, torch.float64) for r in range(world)]
                y.backward(upstream[rank].to(device))
                same(x.grad.cpu(), valid_gradient(mode, upstream, counts, rank, dim, CAPACITY), f"{mode} of {counts}")
    for dtype in [*DTYPES, torch.complex32]:
        parts = blocks([CAPACITY] * world, 1, dtype)
        counts = count_patterns(world)[0]
        count = torch.tensor([counts[rank]], dtype=torch.int32, device=device)
        got = sheaf.all_gather(parts[rank].to(device), 1, valid=count).tensor
        same(got.cpu(), compacted(parts, counts, 1), str(dtype))
    for dtype in FLOAT8[:-1]:  # the last has no zero
        parts, counts = blocks([CAPACITY] * world, 1, dtype), count_patterns(world)[0]
        x = parts[rank].to(device).requires_grad_()
        y, _ = sheaf.all_gather(x, 1, valid=torch.tensor(counts[rank], device=device))
        upstream = [values(50 + r, y.shape, dtype) for r in range(world)]
        y.backward(upstream[rank].to(device))
        mine = byte_rows(expected_gradient("sum", upstream, counts, rank, 1), CAPACITY, 1)
        same(x.grad.cpu(), mine, f"gradient of {dtype}")


def byte_rows(part, rows, dim):
    """With zeros behind it along `dim`, of any dtype."""
    shape = list(part.shape)
    shape[dim] = rows - part.shape[dim]
    return byte_cat([part, torch.zeros(shape, dtype=torch.float32).to(part.dtype)], dim)


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def strided(x):
    return torch.stack([x, x], -1)[..., 0]


def turned(x):
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def expanded(x):
    return x[..., :1].expand(x.shape)


def static_layouts(rank, world, device):
    """Buffers and gradients of any layout, and of any size: large ones go another way than small ones."""
    counts = count_patterns(world)[0]
    count = torch.tensor(counts[rank], device=device)
    for layout in (channels_last, strided, turned, expanded):
        for dim, wide in ((0, 2), (1, 2), (0, 1000), (1, 1000)):
            parts = [layout(values(r, (CAPACITY, CAPACITY, 3, wide), torch.float64)) for r in range(world)]
            x = layout(parts[rank].to(device)).requires_grad_()
            y, _ = sheaf.all_gather(x, dim, valid=count)
            same(y.cpu(), compacted(parts, counts, dim), f"{layout.__name__}, {wide}")
            upstream = [layout(values(50 + r, y.shape, torch.float64)) for r in range(world)]
            (back,) = torch.autograd.grad(y, x, layout(upstream[rank].to(device)))
            truth = valid_gradient("sum", upstream, counts, rank, dim, CAPACITY)
            same(back.cpu(), truth, f"gradient, {layout.__name__}, {wide}")
    x = torch.ones(0, 3, device=device, requires_grad=True)
    y, sizes = sheaf.all_gather(x, valid=count * 0)
    assert y.shape == (0, 3) and sizes.tolist() == [0] * world
    assert torch.autograd.grad(y.sum(), x)[0].shape == (0, 3)


def static_counts(rank, world, device):
    """Of any type of integers; what int64 does not hold is beyond the buffer, too."""
    x = torch.ones(CAPACITY, 2, device=device)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64):
        sizes = sheaf.all_gather(x, valid=torch.tensor(2 + rank % 2, dtype=dtype, device=device)).sizes
        assert sizes.tolist() == [2 + r % 2 for r in range(world)], dtype
    for most in (2**63, 2**64 - 1):
        y, sizes = sheaf.all_gather(x, valid=torch.tensor(most, dtype=torch.uint64, device=device))
        assert sizes.tolist() == [CAPACITY] * world and y.eq(1).all()
        assert "was clamped" in told(lambda: sheaf.all_gather(x, valid=torch.tensor(2, device=device)))


def static_among_calls(rank, world, device):
    """Between other calls of the group, and in a part of it."""
    ends = sorted({0, world - 1})
    part = dist.new_group(ends)
    for turn in range(3):
        x = torch.full((CAPACITY, 2), float(rank + turn), device=device)
        for group, ranks in ((part, ends), (None, range(world))):
            if rank not in ranks:
                continue
            whole = torch.cat([torch.full((1 + r % 2, 2), float(r + turn)) for r in ranks])
            y, sizes = sheaf.all_gather(x, valid=torch.tensor(1 + rank % 2, device=device), group=group)
            same(y.cpu()[: len(whole)], whole, "valid rows")
            assert sizes.tolist() == [1 + r % 2 for r in ranks] and not y[len(whole) :].any()
            same(sheaf.all_gather(x[: 1 + rank % 2], group=group).tensor.cpu(), whole, "a plain call")


def static_in_inference_mode(rank, world, device):
    """The first call in inference mode, or the second one: a new group each, which knows nothing yet."""
    x, count = torch.ones(CAPACITY, 2, device=device), torch.tensor(2, device=device)
    for modes in ((True, False, True), (False, True, False)):
        group = dist.new_group()
        for inference in modes:
            with torch.inference_mode(inference):
                got = sheaf.all_gather(x, valid=count, group=group).tensor
            assert got.sum().item() == 4 * world


def static_compiled(rank, world, device, backend="aot_eager"):
    """Under a compiler: the same, forward and backward, for counts that change. One beyond its buffer is told by the
    next call that is not compiled, and only by that."""

    @torch.compile(backend=backend, fullgraph=True)
    def step(x, count, dim):
        y, sizes = sheaf.all_gather(x * 2, dim, valid=count)
        return y * 3, sizes

    for dim in (0, 1):
        for counts in count_patterns(world):
            parts = blocks([CAPACITY] * world, dim)
            x = parts[rank].to(device).requires_grad_()
            y, sizes = step(x, torch.tensor(counts[rank], device=device), dim)
            same(y.cpu(), compacted(parts, counts, dim) * 6, f"value of {counts}")
            assert sizes.tolist() == counts
            upstream = [values(50 + r, y.shape, torch.float64) for r in range(world)]
            y.backward(upstream[rank].to(device))
            truth = valid_gradient("sum", [one * 3 for one in upstream], counts, rank, dim, CAPACITY) * 2
            same(x.grad.cpu(), truth, f"gradient of {counts}")
    x, count = torch.ones(CAPACITY, 2, device=device), torch.tensor(1, device=device)
    sheaf.all_gather(x, valid=count)
    y, sizes = step(x, count + CAPACITY * (rank == world - 1), 0)
    assert sizes.tolist() == [1] * (world - 1) + [CAPACITY] and y.sum().item() == 12 * (world - 1 + CAPACITY)
    assert step(x, count - 5, 0)[1].tolist() == [0] * world
    assert "was clamped" in told(lambda: sheaf.all_gather(x, valid=count))
    sheaf.all_gather(x, valid=count)


def static_partly_compiled(rank, world, device):
    """Where only some ranks compile, all are told of a count beyond its buffer, once, and the group works on."""

    def step(x, count):
        return sheaf.all_gather(x, valid=count).tensor

    some = torch.compile(step, backend="aot_eager", fullgraph=True) if rank else step
    x, count = torch.ones(CAPACITY, 2, device=device), torch.tensor(1, device=device)
    for late in (0, world - 1):
        some(x, count + CAPACITY * (rank == late))
        assert "was clamped" in told(lambda: some(x, count))
        for body in (some, step):
            assert body(x, count).sum().item() == 2 * world


def static_second_derivatives(rank, world, device):
    """h = v · d(w · (y + 1)³)/dx on every rank; its gradient by one process. What lies behind the counts has none."""

    def and_noise(x, rows):
        noise = values(90 + rank, (x.shape[0], rows - x.shape[1], *x.shape[2:]), torch.float64)
        return torch.cat([x, noise], 1).to(device)

    counts = count_patterns(world)[0]
    parts, directions = blocks(counts, 1), blocks(counts, 1, seed=3)
    weights = [values(7 + r, torch.cat(parts, 1).shape, torch.float64) for r in range(world)]
    for mode in MODES:
        x = and_noise(parts[rank], CAPACITY).requires_grad_()
        y, _ = sheaf.all_gather(x, 1, grad=mode, valid=torch.tensor(counts[rank], device=device))
        upstream = (and_noise(weights[rank], CAPACITY * world) * (y + 1) ** 3).sum()
        (gradient,) = torch.autograd.grad(upstream, x, create_graph=True)
        (second,) = torch.autograd.grad((and_noise(directions[rank], CAPACITY) * gradient).sum(), x)
        truth = second_derivative(mode, parts, directions, weights, rank, 1)
        torch.testing.assert_close(second[:, : counts[rank]].cpu(), truth, rtol=1e-12, atol=0)
        assert not second[:, counts[rank] :].any()


def static_clamped(rank, world, device):
    """A count beyond its buffer counts as the buffer's rows, forward and backward; nothing is written into but results,
    and what lies behind the counts leaks nowhere."""
    counts = [CAPACITY + 3 if r == world - 1 else -2 if r == 0 else 2 for r in range(world)]
    clamped = [min(max(count, 0), CAPACITY) for count in counts]
    parts = blocks([CAPACITY] * world, 0)
    for part, count in zip(parts, clamped, strict=True):
        part[count:] = float("nan")
    x, count = parts[rank].to(device).requires_grad_(), torch.tensor(counts[rank], device=device)
    y, sizes = sheaf.all_gather(x, valid=count)
    same(y.cpu(), compacted(parts, counts, 0), "value")
    assert sizes.tolist() == clamped
    upstream = [values(50 + r, y.shape, torch.float64) for r in range(world)]
    y.backward(upstream[rank].to(device))
    same(x.grad.cpu(), valid_gradient("sum", upstream, clamped, rank, 0, CAPACITY), "gradient")
    same(x.detach().cpu(), parts[rank], "the buffer")
    assert count.item() == counts[rank]
    assert "was clamped" in told(lambda: sheaf.all_gather(x, valid=count))


def static_mistakes(rank, world, device):
    def gather(rows=CAPACITY, count=2, **others):
        x = torch.ones(rows, 3, device=device)
        return sheaf.all_gather(x, valid=torch.tensor(count, device=device), **others).tensor

    last = rank == world - 1
    said = [told(lambda: gather(rows=CAPACITY + last, count=1))]
    whole = gather(count=CAPACITY + 2 if last else -1 if rank == 0 else 1)
    rows = world - 2 + CAPACITY
    same(whole.cpu()[:, 0], torch.tensor([1.0] * rows + [0.0] * (CAPACITY * world - rows)), "clamped")
    said.append(told(gather))
    said.append(told(gather))  # once is enough
    said.append(told(lambda: gather(sizes=[CAPACITY] * world)))
    said.append(told(lambda: sheaf.all_gather(torch.ones(2, device=device), valid=torch.tensor(1.5, device=device))))
    said.append(told(lambda: sheaf.all_gather(torch.ones(2, device=device), valid=torch.tensor(True, device=device))))
    sparse = torch.tensor([1], device=device).to_sparse()
    said.append(told(lambda: sheaf.all_gather(torch.ones(2, device=device), valid=sparse)))
    elsewhere = torch.tensor(1, device="meta")
    said.append(told(lambda: sheaf.all_gather(torch.ones(2, device=device), valid=elsewhere)))
    said.append(told(lambda: gather(grad="mean" if last else "own")))
    said.append(told(lambda: gather(grad="avg")))
    said.append(told(lambda: gather(dim=2)))
    said.append(told(lambda: gather(rows=CAPACITY + last)))  # the last rank's buffer is new, and no other's
    said.append(told(gather))
    return said


EVERY = [
    static_shapes,
    static_layouts,
    static_counts,
    static_among_calls,
    static_second_derivatives,
    static_clamped,
    static_in_inference_mode,
    static_compiled,
    static_partly_compiled,
]
MISTAKES = [
    "must have the same rows",
    "was clamped",
    "nothing was raised",
    "cannot both be given",
    "one integer",
    "one integer",
    "one integer",
    "valid must be on the tensor's device, ",
    "ranks disagree on gradient mode: own on rank",
    'a gradient is "sum", "mean" or "own", got "avg"',
    "dim must be from -2 to 1, got 2",
    "must have the same rows",
    "nothing was raised",
]
