# SPDX-License-Identifier: MIT
"""What holds wherever tensors move by the collectives of a group's backend: on GPUs, and on the CPU with
SHEAF_ENGINE=collectives. Every body takes the device; truths are computed on the CPU, by one process."""

import torch

import sheaf
from truth import COMPLEX, DTYPES, FLOAT8, FLOATS, INTEGERS, blocks, own_rows, patterns, rank_sum, same, values

MODES = ["sum", "mean", "own"]


def byte_cat(parts, dim):
    """torch.cat lacks some dtypes: join what they are made of."""
    kind, dim = parts[0].dtype, dim % parts[0].ndim
    return torch.cat([part.contiguous().unsqueeze(-1).view(torch.uint8) for part in parts], dim).view(kind).squeeze(-1)


def expected_gradient(mode, upstream, sizes, rank, dim):
    if mode == "own":
        return own_rows(upstream[rank], sizes, rank, dim)
    return own_rows(rank_sum(upstream, mean=mode == "mean"), sizes, rank, dim)


def differentiate(rank, parts, dim, mode, known, device):
    """Gathers, and sends a gradient back that differs by rank."""
    sizes = [part.shape[dim] for part in parts]
    x = parts[rank].to(device).requires_grad_()
    y, learned = sheaf.all_gather(x, dim, sizes=sizes if known else None, grad=mode)
    same(y.cpu(), byte_cat(parts, dim), f"value of {sizes} along {dim}")
    assert y.device.type == device and y.is_contiguous()
    assert learned.tolist() == sizes and learned.device.type == "cpu"
    upstream = [values(50 + r, y.shape, parts[0].dtype) for r in range(len(parts))]
    y.backward(upstream[rank].to(device))
    same(x.grad.cpu(), expected_gradient(mode, upstream, sizes, rank, dim), f"gradient {mode} of {sizes} along {dim}")


def gathers(rank, world, device):
    for dim in (0, 1, -1):
        for mode in MODES:
            for sizes in patterns(world):
                for known in (False, True):
                    differentiate(rank, blocks(sizes, dim), dim, mode, known, device)


def large_sizes(world):
    """Ragged, even, an empty rank, one with everything: blocks of a MiB and more, some of an odd number of rows."""
    ragged = [17 + 12 * r for r in range(world)]
    empty = [0 if r == 0 else 40 + r for r in range(world)]
    heavy = [97 if r == world - 1 else 0 for r in range(world)]
    nearly = [97 if r == 0 else 1 for r in range(world)]
    return [ragged, [33] * world, empty, heavy, nearly]


def large_gathers(rank, world, device):
    """Past what is padded. Rows are whole vectors in one dtype and shape, and not in the other."""
    for dtype, other in ((torch.float32, (64, 128)), (torch.bfloat16, (63, 257))):
        for dim in (0, 1, 2):
            for sizes in large_sizes(world):
                parts = [values(r, (*other[:dim], rows, *other[dim:]), dtype) for r, rows in enumerate(sizes)]
                differentiate(rank, parts, dim, "sum" if dim else "mean", True, device)


def heavy_gathers(rank, world, device):
    """One rank owns so much that the others take over a part of its sums: four ranks or more."""
    for dim, other in ((0, (64, 128)), (1, (63, 257))):
        for sizes in large_sizes(world)[3:]:
            parts = [values(r, (*other[:dim], rows, *other[dim:]), torch.float32) for r, rows in enumerate(sizes)]
            differentiate(rank, parts, dim, "sum", True, device)


def dtypes(rank, world, device):
    sizes = patterns(world)[0]
    for dim in (0, 1):
        for dtype in DTYPES:
            parts = blocks(sizes, dim, dtype)
            for known in (None, sizes):
                got = sheaf.all_gather(parts[rank].to(device), dim, sizes=known).tensor
                same(got.cpu(), byte_cat(parts, dim), str(dtype))


def sums(rank, world, device):
    for dtype in [*INTEGERS, *FLOATS, *COMPLEX, *FLOAT8]:
        for sizes in (patterns(world)[0], patterns(world)[2], patterns(world)[4]):
            inputs = [values(20 + r, (3, sum(sizes), 2), dtype) for r in range(world)]
            for op in ("sum", "mean") if dtype not in INTEGERS else ("sum",):
                got = sheaf.reduce_scatter(inputs[rank].to(device), sizes, 1, op=op)
                if dtype in INTEGERS:
                    whole = sum(part.to(torch.int64) for part in inputs).to(dtype)  # wraps as the type does
                else:
                    whole = rank_sum(inputs, mean=op == "mean")
                same(got.cpu(), own_rows(whole, sizes, rank, 1).contiguous(), f"{op} of {dtype}")


def second_derivatives(rank, world, device):
    """h = v · d(w · y³)/dx on every rank; its gradient by one process."""
    for mode in MODES:
        sizes, dim = patterns(world)[0], 1
        parts, directions = blocks(sizes, dim), blocks(sizes, dim, seed=3)
        weights = [values(7 + r, torch.cat(parts, dim).shape, torch.float64) for r in range(world)]
        x = parts[rank].to(device).requires_grad_()
        y, _ = sheaf.all_gather(x, dim, grad=mode)
        (gradient,) = torch.autograd.grad((weights[rank].to(device) * y**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((directions[rank].to(device) * gradient).sum(), x)

        leaves = [part.clone().requires_grad_() for part in parts]
        if mode == "own":
            truth = directions[rank] * 6 * own_rows(weights[rank], sizes, rank, dim) * parts[rank]
        else:
            whole = torch.cat(leaves, dim)
            firsts = torch.autograd.grad(sum((w * whole**3).sum() for w in weights), leaves, create_graph=True)
            both = sum((v * first).sum() for v, first in zip(directions, firsts, strict=True))
            truth = torch.autograd.grad(both, leaves)[rank] / (world**2 if mode == "mean" else 1)
        torch.testing.assert_close(second.cpu(), truth, rtol=1e-12, atol=0)


def forms(rank, world, device):
    """Inputs and gradients of other layouts."""
    sizes = patterns(world)[0]
    plain = [values(r, (rows, 4, 3, 2), torch.float32) for r, rows in enumerate(sizes)]
    own = plain[rank].to(device)
    for name, x in {
        "transposed": own.transpose(1, 2).contiguous().transpose(1, 2),
        "strided": torch.stack([own, own], -1)[..., 0],
        "channels last": own.to(memory_format=torch.channels_last),
        "offset": torch.cat([own, own])[sizes[rank] :],
        "misaligned": torch.cat([own.reshape(-1)[:1], own.reshape(-1)])[1:].view(own.shape),
    }.items():
        for dim in (0, 2):
            parts = plain if dim == 0 else [part.transpose(0, 2) for part in plain]
            same(sheaf.all_gather(x if dim == 0 else x.transpose(0, 2), dim).tensor.cpu(), byte_cat(parts, dim), name)
    total = sum(sizes)
    for name, form in {
        "expanded": lambda r: torch.tensor(float(r + 2)).expand(total, 3),
        "transposed": lambda r: values(r, (3, total), torch.float32).t(),
    }.items():
        x = torch.ones(sizes[rank], 3, device=device, requires_grad=True)
        y, _ = sheaf.all_gather(x)
        y.backward(form(rank).to(device))
        truth = rank_sum([form(r).contiguous() for r in range(world)])
        same(x.grad.cpu(), own_rows(truth, sizes, rank, 0), name)


def takes_part(rank, world, device):
    """A rank that needs no gradient discards its own, while the others receive theirs."""
    x = torch.ones(rank + 1, 2, device=device, requires_grad=rank == 0)
    y, _ = sheaf.all_gather(x)
    assert y.requires_grad
    (y * (rank + 1)).sum().backward()
    if rank == 0:
        same(x.grad.cpu(), torch.full((1, 2), float(sum(range(1, world + 1)))), "gradient")
    with torch.no_grad():
        assert not sheaf.all_gather(torch.ones(2, device=device, requires_grad=True)).tensor.requires_grad


def told(body):
    try:
        body()
    except ValueError as error:
        return str(error)
    return "nothing was raised"


def disagreements(rank, world, device):
    """Returns what this rank was told of each, and shows that the group works afterwards."""
    texts = []
    last = rank == world - 1
    texts.append(told(lambda: sheaf.all_gather(torch.ones(2, 3 + last, device=device))))
    texts.append(told(lambda: sheaf.all_gather(torch.ones(2, 3, device=device).to(torch.int32 if last else None))))
    texts.append(told(lambda: sheaf.all_gather(torch.ones(2, 3, device=device), int(last))))
    texts.append(told(lambda: sheaf.all_gather(torch.ones(2, 3, device=device), 7 if last else 0)))
    same(
        sheaf.all_gather(torch.ones(rank + 1, device=device)).tensor.cpu(),
        torch.ones(world * (world + 1) // 2),
        "after",
    )
    return texts


EVERY = [gathers, large_gathers, dtypes, sums, second_derivatives, forms, takes_part]


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
    for dtype in DTYPES:
        parts = blocks([CAPACITY] * world, 1, dtype)
        counts = count_patterns(world)[0]
        count = torch.tensor([counts[rank]], dtype=torch.int32, device=device)
        got = sheaf.all_gather(parts[rank].to(device), 1, valid=count).tensor
        same(got.cpu(), compacted(parts, counts, 1), str(dtype))


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
    return said


EVERY.append(static_shapes)
MISTAKES = ["must have the same rows", "was clamped", "nothing was raised", "cannot both be given", "one integer"]
