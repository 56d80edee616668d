# SPDX-License-Identifier: MIT
"""What holds wherever tensors move by the collectives of a group's backend: on GPUs, and on the CPU with
SHEAF_ENGINE=collectives. Every body takes the device; truths are computed on the CPU, by one process."""

import torch
import torch.distributed as dist

import sheaf
from truth import (
    COMPLEX,
    DTYPES,
    FLOAT8,
    FLOATS,
    INTEGERS,
    MODES,
    blocks,
    expected_gradient,
    own_rows,
    patterns,
    rank_sum,
    same,
    values,
)


def byte_cat(parts, dim):
    """torch.cat lacks some dtypes: join what they are made of."""
    kind, dim = parts[0].dtype, dim % parts[0].ndim
    return torch.cat([part.contiguous().unsqueeze(-1).view(torch.uint8) for part in parts], dim).view(kind).squeeze(-1)


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
    ragged = [51 + 36 * r for r in range(world)]
    empty = [0 if r == 0 else 80 + r for r in range(world)]
    heavy = [97 if r == world - 1 else 0 for r in range(world)]
    nearly = [97 if r == 0 else 1 for r in range(world)]
    return [ragged, [33] * world, empty, heavy, nearly]


def large_gathers(rank, world, device):
    """Past what goes directly. Rows are whole vectors in one dtype and shape, and not in the other."""
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
    """h = v · d(w · (y + 1)³)/dx on every rank; its gradient by one process."""
    for mode in MODES:
        sizes, dim = patterns(world)[0], 1
        parts, directions = blocks(sizes, dim), blocks(sizes, dim, seed=3)
        weights = [values(7 + r, torch.cat(parts, dim).shape, torch.float64) for r in range(world)]
        x = parts[rank].to(device).requires_grad_()
        y, _ = sheaf.all_gather(x, dim, grad=mode)
        (gradient,) = torch.autograd.grad((weights[rank].to(device) * (y + 1) ** 3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((directions[rank].to(device) * gradient).sum(), x)
        truth = second_derivative(mode, parts, directions, weights, rank, dim)
        torch.testing.assert_close(second.cpu(), truth, rtol=1e-12, atol=0)


def second_derivative(mode, parts, directions, weights, rank, dim):
    """The same of h, by one process."""
    if mode == "own":
        sizes = [part.shape[dim] for part in parts]
        return directions[rank] * 6 * own_rows(weights[rank], sizes, rank, dim) * (parts[rank] + 1)
    leaves = [part.clone().requires_grad_() for part in parts]
    whole = torch.cat(leaves, dim)
    firsts = torch.autograd.grad(sum((w * (whole + 1) ** 3).sum() for w in weights), leaves, create_graph=True)
    both = sum((v * first).sum() for v, first in zip(directions, firsts, strict=True))
    return torch.autograd.grad(both, leaves)[rank] / (len(parts) ** 2 if mode == "mean" else 1)


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
    rows = [values(r, (1, 3), torch.float32) for r in range(world)]
    expanded = sheaf.all_gather(rows[rank].to(device).expand(sizes[rank], 3)).tensor
    same(expanded.cpu(), torch.cat([row.expand(n, 3) for row, n in zip(rows, sizes, strict=True)]), "expanded")
    total = sum(sizes)
    for name, form in {
        "expanded": lambda r: torch.tensor(float(r + 2)).expand(total, 3),
        "transposed": lambda r: values(r, (3, total), torch.float32).t(),
        "channels last": lambda r: values(r, (total, 3, 2, 2), torch.float32).to(memory_format=torch.channels_last),
    }.items():
        for mode in MODES:
            x = torch.ones(sizes[rank], *form(rank).shape[1:], device=device, requires_grad=True)
            y, _ = sheaf.all_gather(x, grad=mode)
            y.backward(form(rank).to(device))
            truth = expected_gradient(mode, [form(r).contiguous() for r in range(world)], sizes, rank, 0)
            same(x.grad.cpu(), truth, f"{name}, {mode}")


def scatters(rank, world, device):
    """reduce_scatter along the first, the middle and the last dim, and its gradient, which is a gather."""
    for dim in (0, 1, -1):
        for sizes in patterns(world):
            for op in ("sum", "mean"):
                wholes = [values(20 + r, torch.cat(blocks(sizes, dim), dim).shape, torch.float64) for r in range(world)]
                y = wholes[rank].to(device).requires_grad_()
                mine = sheaf.reduce_scatter(y, sizes, dim, op=op)
                truth = own_rows(rank_sum(wholes, mean=op == "mean"), sizes, rank, dim)
                same(mine.cpu(), truth.contiguous(), f"{op} of {sizes} along {dim}")
                upstream = blocks(sizes, dim, seed=5)
                mine.backward(upstream[rank].to(device))
                share = torch.cat(upstream, dim) / (world if op == "mean" else 1)
                same(y.grad.cpu(), share, f"gradient of {op} of {sizes} along {dim}")


def whole_system(rank, world, device):
    """First and second derivatives against differences: of all ranks' losses by every element of every rank's input."""
    sizes = [(r + 1) % 3 for r in range(world)]
    for dim in (0, 1):
        parts = [part.select(-1, 0).contiguous() for part in blocks(sizes, dim)]
        weight = values(7 + rank, torch.cat(parts, dim).shape, torch.float64).to(device)
        direction = values(9 + rank, parts[rank].shape, torch.float64).to(device)

        def loss(x, dim=dim, weight=weight):
            return (weight * sheaf.all_gather(x, dim).tensor.sin()).sum()

        def slope(x, loss=loss, direction=direction):
            (gradient,) = torch.autograd.grad(loss(x), x, create_graph=True)
            return (direction * gradient).sum()

        for of in (loss, slope):
            x = parts[rank].clone().to(device).requires_grad_()
            (analytic,) = torch.autograd.grad(of(x), x)
            numeric = differences(rank, world, of, [part.numel() for part in parts], parts[rank].to(device))
            torch.testing.assert_close(analytic, numeric, rtol=1e-6, atol=1e-6)


def differences(rank, world, of, counts, x, step=1e-5):
    """By every element in turn, all ranks together."""
    result = torch.zeros_like(x)
    for owner in range(world):
        for i in range(counts[owner]):
            ends = []
            for sign in (1, -1):
                moved = x.clone()
                if owner == rank:
                    moved.view(-1)[i] += sign * step
                losses, _ = sheaf.all_gather(of(moved.requires_grad_()).detach().reshape(1), grad="own")
                ends.append(losses.sum())
            if owner == rank:
                result.view(-1)[i] = (ends[0] - ends[1]) / (2 * step)
    return result


def faces(rank, world, device):
    """What stands on the gather: sizes alone, the module, the drop-ins, groups of some ranks."""
    sizes = patterns(world)[0]
    parts = blocks(sizes, 1)
    x = parts[rank].to(device)
    assert sheaf.gather_sizes(x, 1).tolist() == sizes
    upstream = [values(50 + r, torch.cat(parts, 1).shape, torch.float64) for r in range(world)]
    for name, call, mode in (
        ("module", sheaf.nn.AllGather(1, grad="mean"), "mean"),
        ("spear_tts", lambda x: sheaf.compat.spear_tts.all_gather(x, 1, None), "own"),
        ("musiclm", sheaf.compat.musiclm.AllGather(1, all_reduce_grads=True), "sum"),
        ("st_moe", sheaf.compat.st_moe.AllGather(dim=1), "own"),
    ):
        leaf = x.clone().requires_grad_()
        y, learned = call(leaf)
        same(y.cpu(), torch.cat(parts, 1), name)
        assert learned.tolist() == sizes and learned.device.type == ("cpu" if name == "module" else device), name
        y.backward(upstream[rank].to(device))
        same(leaf.grad.cpu(), expected_gradient(mode, upstream, sizes, rank, 1).contiguous(), name)
    assert sheaf.compat.st_moe.gather_sizes(x, dim=1).tolist() == sizes
    own, rows = sheaf.compat.st_moe.split_by_rank(tuple(part.to(device) for part in parts))
    assert own.device == rows.device and rows.tolist() == [part.shape[0] for part in parts]
    members = [0, world - 1]
    group = dist.new_group(members)
    if rank in members:
        leaf = x.clone().requires_grad_()
        y, learned = sheaf.all_gather(leaf, 1, group=group)
        same(y.cpu(), torch.cat([parts[r] for r in members], 1), "two of the ranks")
        (y * (rank + 1)).sum().backward()
        same(leaf.grad.cpu(), torch.full_like(parts[rank], 1.0 + world), "gradient of two of the ranks")


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


KINDS = [
    (0, torch.float64, "sum"),
    (1, torch.bool, "sum"),
    (-1, torch.bfloat16, "mean"),
    (0, torch.int64, "mean"),
    (1, torch.complex64, "own"),
    (2, torch.float8_e5m2, "sum"),
]


def several(world, large=False):
    """Of each tensor: dim, every rank's block, mode. Sizes of every pattern, or such that go round by round."""
    all_sizes = patterns(world)
    for i, (dim, dtype, mode) in enumerate(KINDS):
        if not large:
            yield dim, blocks(all_sizes[i % len(all_sizes)], dim, dtype, seed=i + 1), mode
        elif dim in (0, 1):
            other = (120, 130)
            sizes = large_sizes(world)[i % 5]
            yield dim, [values(i + r, (*other[:dim], n, *other[dim:]), dtype) for r, n in enumerate(sizes)], mode


def coalesced(rank, world, device, scales=(False, True)):
    """Several tensors in one call, started or not, small and large: values, and gradients of those that need one."""
    for large in scales:
        tensors = list(several(world, large))
        for known in (False, True):
            for started in (False, True):
                several_at_once(rank, tensors, known, started, device)
        sums = [(dim, parts) for dim, parts, mode in tensors if mode == "sum" and parts[0].dtype != torch.bool]
        several_sums(rank, world, sums, device)
    if device != "cpu":
        mixed = [torch.ones(2, device=device), torch.ones(2)]
        for known in (None, [2] * world):
            said = told(lambda known=known: sheaf.all_gather_coalesced(mixed, sizes=known))
            assert "must be on one device" in said, said
    same(sheaf.all_gather(torch.ones(1, device=device)).tensor.cpu(), torch.ones(world), "after")


def several_at_once(rank, tensors, known, started, device):
    sizes = [[part.shape[dim] for part in parts] for dim, parts, _ in tensors]
    records = [parts[0].dtype.is_floating_point or parts[0].dtype.is_complex for _, parts, _ in tensors]
    inputs = [
        parts[rank].clone().to(device).requires_grad_(on) for (_, parts, _), on in zip(tensors, records, strict=True)
    ]
    got = sheaf.all_gather_coalesced(
        inputs,
        [dim for dim, _, _ in tensors],
        sizes=sizes if known else None,
        grad=[mode for _, _, mode in tensors],
        async_op=started,
    )
    got = got.wait() if started else got
    ends, upstreams = [], []
    for (dim, parts, _), on, (y, learned), rows in zip(tensors, records, got, sizes, strict=True):
        same(y.cpu(), byte_cat(parts, dim), f"value of {parts[0].dtype}")
        assert y.device.type == device and y.requires_grad == on and learned.tolist() == rows
        upstreams.append([values(50 + r, y.shape, y.dtype) for r in range(len(parts))])
        if on:
            ends.append((y, upstreams[-1][rank].to(device)))
    torch.autograd.backward(*zip(*ends, strict=True))
    for (dim, parts, mode), on, x, rows, upstream in zip(tensors, records, inputs, sizes, upstreams, strict=True):
        if on:
            truth = expected_gradient(mode, upstream, rows, rank, dim)
            same(x.grad.cpu(), truth.contiguous(), f"{mode} of {parts[0].dtype}")
        else:
            assert x.grad is None


def several_sums(rank, world, tensors, device):
    """reduce_scatter of several, and its gradient, which is a gather of several."""
    sizes = [[part.shape[dim] for part in parts] for dim, parts in tensors]
    wholes = [
        [values(30 + r, byte_cat(parts, dim).shape, parts[0].dtype) for r in range(world)] for dim, parts in tensors
    ]
    for started in (False, True):
        inputs = [whole[rank].clone().to(device).requires_grad_() for whole in wholes]
        dims = [dim for dim, _ in tensors]
        got = sheaf.reduce_scatter_coalesced(inputs, sizes, dims, op="mean", async_op=started)
        got = got.wait() if started else got
        for (dim, _), rows, whole, mine in zip(tensors, sizes, wholes, got, strict=True):
            same(mine.cpu(), own_rows(rank_sum(whole, mean=True), rows, rank, dim).contiguous(), "sum")
        torch.autograd.backward(got, [parts[rank].to(device) for _, parts in tensors])
        for (dim, parts), x in zip(tensors, inputs, strict=True):
            shares = [
                rank_sum([part] + [torch.zeros_like(part.float()).to(part.dtype)] * (world - 1), mean=True)
                for part in parts
            ]
            same(x.grad.cpu(), byte_cat(shares, dim), "gradient")


def started(rank, world, device):
    """Calls of one tensor that are started: values and gradients of the plain ones."""
    for dim in (0, 1):
        for mode in MODES:
            sizes = patterns(world)[0]
            parts = blocks(sizes, dim)
            x = parts[rank].to(device).requires_grad_()
            one = sheaf.all_gather(x, dim, sizes=sizes, grad=mode, async_op=True)
            other = sheaf.all_gather(x, dim, grad=mode, async_op=True)
            y, learned = other.wait()
            assert learned.tolist() == sizes and one.wait().tensor is one.wait().tensor
            same(y.cpu(), torch.cat(parts, dim), "value")
            assert one.done() and other.done()  # its data has come to the host
            upstream = [values(50 + r, y.shape, torch.float64) for r in range(world)]
            torch.autograd.backward([one.wait().tensor, y], [upstream[rank].to(device)] * 2)
            truth = expected_gradient(mode, upstream, sizes, rank, dim)
            same(x.grad.cpu(), truth + truth, mode)
            summed = sheaf.reduce_scatter(upstream[rank].to(device), sizes, dim, async_op=True).wait()
            same(summed.cpu(), own_rows(rank_sum(upstream), sizes, rank, dim).contiguous(), "sum")


def sized_disagreements(rank, world, device):
    """The same with sizes given: what every rank was told of each, after which the group works."""
    texts, last, even = [], rank == world - 1, [2] * world
    whole, row = torch.ones(2 * world, 3, device=device), torch.ones(2, 3, device=device, requires_grad=True)

    def after():
        sizes = [r + 1 for r in range(world)]
        got = sheaf.all_gather(torch.full((rank + 1,), float(rank), device=device), sizes=sizes).tensor
        same(got.cpu(), torch.cat([torch.full((r + 1,), float(r)) for r in range(world)]), texts[-1])

    def learn(body):
        texts.append(told(body))
        after()

    learn(lambda: sheaf.all_gather(row, sizes=[3, *even[1:]] if last else even))
    learn(lambda: sheaf.all_gather(whole if last else row, sizes=even))
    learn(lambda: sheaf.all_gather(row, sizes=[2.0] * world if last else even))
    learn(lambda: sheaf.reduce_scatter(whole, even) if last else sheaf.all_gather(row, sizes=even))
    kinds = [torch.float32, torch.int32]
    for kind in reversed(kinds) if last else kinds:
        texts.append(told(lambda kind=kind: sheaf.all_gather(row.detach().to(kind), sizes=even)))
    after()
    y, _ = sheaf.all_gather(row, sizes=even)
    texts.append(told(lambda: sheaf.all_gather(row, sizes=even) if last else y.sum().backward()))
    after()
    return texts


SIZED = [
    "ranks disagree on sizes",
    "give this rank 2 rows, but it has",
    "sizes must be integers",
    "ranks disagree on op",
    "ranks disagree on dtype",
    "ranks disagree on dtype",
    "has left out the backward of",
]

EVERY = [gathers, large_gathers, dtypes, sums, second_derivatives, forms, takes_part]
EVERY += [scatters, whole_system, faces, coalesced, started]
