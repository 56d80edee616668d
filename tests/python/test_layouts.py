# SPDX-License-Identifier: MIT
"""Coalesced and asynchronous calls with inputs and gradients of every layout, and the gradient of the whole system by
differences. Against one process; plain calls of one tensor have theirs in test_all_gather.py."""

import pytest
import torch

import sheaf
from pool import run
from test_all_gather import expected_gradient
from truth import MODES, own_rows, patterns, rank_sum, same, values

pytestmark = pytest.mark.usefixtures("engine")

WAYS = ["async", "coalesced", "async coalesced"]


def gather(way, tensors, dims=0, modes="sum"):
    if "coalesced" in way:
        later = way.startswith("async")
        got = sheaf.all_gather_coalesced(tensors, dims, grad=modes, async_op=later)
        return [y for y, _ in (got.wait() if later else got)]
    every = zip(tensors, each(dims, tensors), each(modes, tensors), strict=True)
    handles = [sheaf.all_gather(x, dim, grad=mode, async_op=True) for x, dim, mode in every]
    return [handle.wait().tensor for handle in handles]


def scatter(way, tensors, sizes, dims=0):
    if "coalesced" in way:
        later = way.startswith("async")
        got = sheaf.reduce_scatter_coalesced(tensors, sizes, dims, async_op=later)
        return list(got.wait() if later else got)
    every = zip(tensors, each(dims, tensors), strict=True)
    handles = [sheaf.reduce_scatter(y, sizes, dim, async_op=True) for y, dim in every]
    return [handle.wait() for handle in handles]


def each(given, tensors):
    return given if isinstance(given, list) else [given] * len(tensors)


def forms(plain):
    """The same values, laid out in other ways; of the last one only some."""
    return {
        "transposed": plain.transpose(1, 2).contiguous().transpose(1, 2),
        "strided": torch.stack([plain, plain], -1)[..., 0],
        "channels last": plain.to(memory_format=torch.channels_last),
        "offset": torch.cat([plain, plain])[plain.shape[0] :],
        "expanded": plain[:, :1, :1, :1].expand(plain.shape),
        "conjugated": torch.complex(plain, plain).conj(),
        "negated": torch.complex(plain, plain).conj().imag,
    }


def laid_out(rank, world, way):
    """Rows of what rides along with headers, and of what does not; every form as an input, in one call."""
    for width in (2, 500):
        sizes = patterns(world)[0]
        blocks = [forms(values(r, (n, 4, 3, width), torch.float32)) for r, n in enumerate(sizes)]
        inputs = list(blocks[rank].values())
        assert not any(x.is_contiguous() for name, x in blocks[rank].items() if name not in ("offset", "conjugated"))
        for name, y in zip(blocks[rank], gather(way, inputs), strict=True):
            assert y.is_contiguous()
            same(y, torch.cat([of[name].resolve_conj().resolve_neg() for of in blocks]), f"{name}, {width}")

        wholes = [forms(values(40 + r, (sum(sizes), 4, 3, width), torch.float32)) for r in range(world)]
        for name, mine in zip(wholes[rank], scatter(way, list(wholes[rank].values()), sizes), strict=True):
            assert mine.is_contiguous()
            expected = rank_sum([of[name].resolve_conj().resolve_neg() for of in wholes])
            same(mine, own_rows(expected, sizes, rank, 0), f"sum of {name}, {width}")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_inputs(world, way):
    run(world, laid_out, way)


def incoming(shape):
    """Gradients as other ops make them, by rank."""
    return {
        "expanded": lambda r: torch.tensor(float(r + 2)).expand(shape),
        "expanded rows": lambda r: values(r, (1, *shape[1:]), torch.float32).expand(shape),
        "transposed": lambda r: values(r, shape[::-1], torch.float32).permute(3, 2, 1, 0),
        "channels last": lambda r: values(r, shape, torch.float32).to(memory_format=torch.channels_last),
        "shared": lambda r: values(r, shape, torch.float32),
    }


def differentiate(ends, made):
    """Every end by the gradient that was made for it, which nobody writes."""
    before = [gradient.clone() for gradient in made]
    torch.autograd.backward(ends, made)
    for was, gradient in zip(before, made, strict=True):
        same(gradient, was, "the incoming gradient was written")


def gradients_laid_out(rank, world, way):
    for width in (2, 500):
        sizes = patterns(world)[0]
        of = incoming((sum(sizes), 4, 3, width))
        for mode in MODES:
            inputs = [torch.ones(sizes[rank], 4, 3, width, requires_grad=True) for _ in of]
            made = [form(rank) for form in of.values()]
            differentiate(gather(way, inputs, modes=mode), made)
            for name, x, gradient in zip(of, inputs, made, strict=True):
                upstream = [of[name](r).contiguous() for r in range(world)]
                same(x.grad, expected_gradient(mode, upstream, sizes, rank, 0), f"{name}, {mode}, {width}")
                assert x.grad.untyped_storage().data_ptr() != gradient.untyped_storage().data_ptr()

        wholes = [torch.ones(sum(sizes), 4, 3, width, requires_grad=True) for _ in of]
        blocks = [incoming((n, 4, 3, width)) for n in sizes]
        differentiate(scatter(way, wholes, sizes), [form(rank) for form in blocks[rank].values()])
        for name, y in zip(of, wholes, strict=True):
            same(y.grad, torch.cat([blocks[r][name](r) for r in range(world)]), f"{name} of a sum, {width}")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_incoming_gradients_are_read_only(world, way):
    run(world, gradients_laid_out, way)


def numeric(rank, world, way):
    """Central differences of the sum of all ranks' losses, one entry of one rank at a time, all ranks in step: a gather
    of two tensors, which meet, and a sum of both."""
    sizes, step = patterns(world)[2], 1e-6
    shapes = [(sizes[rank], 2), (3, sizes[rank])]
    leaves = [values(7 * i + rank, shape, torch.float64).requires_grad_() for i, shape in enumerate(shapes)]

    def loss(a, b):
        y, z = gather(way, [a, b.sin()], [0, 1])
        both = y.sin() @ values(rank, (2, 3), torch.float64) * z.t()
        mine, more = scatter(way, [both, (both * z.t()).t()], sizes, [0, 1])
        weight = values(30 + rank, (sizes[rank], 3), torch.float64)
        return (mine.cos() * weight).sum() + ((rank + 1) * (more * 0.1).sin()).sum() + y.sin().sum()

    loss(*leaves).backward()
    for owner in range(world):
        for which, count in enumerate((2 * sizes[owner], 3 * sizes[owner])):
            for entry in range(count):
                totals = []
                for sign in (1, -1):
                    moved = [leaf.detach().clone() for leaf in leaves]
                    if rank == owner:
                        moved[which].view(-1)[entry] += sign * step
                    totals.append(sheaf.all_gather(loss(*moved).reshape(1)).tensor.sum())
                if rank == owner:
                    slope = (totals[0] - totals[1]) / (2 * step)
                    torch.testing.assert_close(leaves[which].grad.view(-1)[entry], slope, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_gradient_of_the_whole_system(world, way):
    run(world, numeric, way)
