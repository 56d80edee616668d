# SPDX-License-Identifier: MIT
"""all_gather against one process: values, gradients of every mode and order, every dtype and layout."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sheaf
from pool import run
from truth import DTYPES, MODES, blocks, expected_gradient, own_rows, patterns, same, shape_with, values

pytestmark = pytest.mark.usefixtures("engine")

WORLDS = [1, 2, 3, 5]
DIMS = [0, 1, -1]


def gather_and_differentiate(rank, world, sizes, dim, mode, known, dtype=torch.float64):
    parts = blocks(sizes, dim, dtype)
    x = parts[rank].clone().requires_grad_()
    y, learned = sheaf.all_gather(x, dim, sizes=sizes if known else None, grad=mode)
    same(y, torch.cat(parts, dim), "value")
    assert y.is_contiguous() and learned.tolist() == list(sizes)
    assert learned.dtype == torch.int64 and learned.device.type == "cpu"
    upstream = [values(50 + r, y.shape, dtype) for r in range(world)]
    y.backward(upstream[rank])
    same(x.grad, expected_gradient(mode, upstream, sizes, rank, dim), "gradient")


def all_patterns(rank, world, dim, mode, known):
    for sizes in patterns(world):
        gather_and_differentiate(rank, world, sizes, dim, mode, known)


@pytest.mark.parametrize("known", [False, True], ids=["learned", "given"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("world", WORLDS)
def test_values_and_gradients(world, dim, mode, known):
    run(world, all_patterns, dim, mode, known)


def byte_cat(parts, dim):
    """torch.cat lacks some dtypes: join what they are made of."""
    kind = parts[0].dtype
    return torch.cat([part.contiguous().unsqueeze(-1).view(torch.uint8) for part in parts], dim).view(kind).squeeze(-1)


def each_dtype(rank, world, dim):
    sizes = patterns(world)[0]
    for dtype in DTYPES:
        parts = blocks(sizes, dim, dtype)
        for known in (None, sizes):
            same(sheaf.all_gather(parts[rank], dim, sizes=known).tensor, byte_cat(parts, dim), str(dtype))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dim", [0, 1])
def test_every_dtype(world, dim):
    run(world, each_dtype, dim)


def narrow_gradients(rank, world, mode):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.complex128):
        gather_and_differentiate(rank, world, patterns(world)[0], 0, mode, False, dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", [2, 3])
def test_gradients_of_other_dtypes(world, mode):
    run(world, narrow_gradients, mode)


def second_derivative(rank, world, mode, dim):
    """h = v · d(w · y³)/dx on every rank; its gradient by one process in `sum`, by hand for the others."""
    sizes = patterns(world)[0]
    parts = blocks(sizes, dim)
    weights = [values(7 + r, torch.cat(parts, dim).shape, torch.float64) for r in range(world)]
    directions = blocks(sizes, dim, seed=3)
    x = parts[rank].clone().requires_grad_()
    y, _ = sheaf.all_gather(x, dim, grad=mode)
    (gradient,) = torch.autograd.grad((weights[rank] * y**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((directions[rank] * gradient).sum(), x)

    leaves = [part.clone().requires_grad_() for part in parts]
    whole = torch.cat(leaves, dim)
    if mode == "own":
        truth = directions[rank] * 6 * own_rows(weights[rank], sizes, rank, dim) * parts[rank]
    else:
        firsts = torch.autograd.grad(sum((w * whole**3).sum() for w in weights), leaves, create_graph=True)
        both = sum((v * first).sum() for v, first in zip(directions, firsts, strict=True))
        # `mean` divides once a differentiation
        truth = torch.autograd.grad(both, leaves)[rank] / (world**2 if mode == "mean" else 1)
    torch.testing.assert_close(second, truth, rtol=1e-12, atol=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("world", WORLDS)
def test_second_derivative(world, mode, dim):
    run(world, second_derivative, mode, dim)


def weighed(y, rank):
    """A loss of the rank's own, with derivatives of every order."""
    return ((rank + 1) * (y.sin() * values(rank, y.shape, torch.float64)).sum() * 0.1).exp().log1p()


def of_gather(world):
    sizes = patterns(world)[2]
    return [shape_with(n, 1) for n in sizes], lambda x: sheaf.all_gather(x, 1).tensor


def of_scatter(world):
    sizes = patterns(world)[2]
    return [shape_with(sum(sizes), 1)] * world, lambda y: sheaf.reduce_scatter(y, sizes, 1)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("of", [of_gather, of_scatter])
def test_gradient_of_the_whole_system(world, of):
    run(world, numeric_derivatives, of)


def numeric_derivatives(rank, world, of):
    """Both derivatives against central differences of all ranks' losses, and of all ranks' gradients along fixed
    directions, together."""
    shapes, op = of(world)
    points = [values(30 + r, shape, torch.float64) for r, shape in enumerate(shapes)]
    direction = values(60 + rank, shapes[rank], torch.float64)

    def loss(x):
        return weighed(op(x), rank)

    def slope(x):
        (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
        return (direction * first).sum()

    for function in (loss, slope):
        x = points[rank].clone().requires_grad_()
        (exact,) = torch.autograd.grad(function(x), x)
        compare_with_differences(rank, points, function, exact)


def compare_with_differences(rank, points, function, exact, step=1e-5, most=8):
    """One entry of one rank at a time, up to `most` of each, all ranks in step."""
    for owner, point in enumerate(points):
        for entry in range(0, point.numel(), max(1, point.numel() // most)):
            totals = []
            for sign in (1, -1):
                moved = points[rank].clone()
                if rank == owner:
                    moved.view(-1)[entry] += sign * step
                value = function(moved.requires_grad_()).detach()
                totals.append(sheaf.all_gather(value.reshape(1)).tensor.sum())
            if rank == owner:
                difference = (totals[0] - totals[1]) / (2 * step)
                torch.testing.assert_close(exact.reshape(-1)[entry], difference, rtol=1e-5, atol=1e-6)


def layouts(rank, world):
    sizes = patterns(world)[0]
    shape = [(rows, 4, 3, 2) for rows in sizes]
    plain = [values(r, shape[r], torch.float32) for r in range(world)]
    whole = torch.cat(plain)
    forms = {
        "transposed": plain[rank].transpose(1, 2).contiguous().transpose(1, 2),
        "strided": torch.stack([plain[rank], plain[rank]], -1)[..., 0],
        "channels last": plain[rank].to(memory_format=torch.channels_last),
        "offset": torch.cat([plain[rank], plain[rank]])[sizes[rank] :],
    }
    for name, x in forms.items():
        same(sheaf.all_gather(x).tensor, whole, name)
        assert sheaf.all_gather(x).tensor.is_contiguous()
    expanded = torch.full((1, 3), float(rank)).expand(sizes[rank], 3)
    same(
        sheaf.all_gather(expanded).tensor,
        torch.cat([torch.full((n, 3), float(r)) for r, n in enumerate(sizes)]),
        "expanded",
    )
    lazy = values(rank, (sizes[rank], 2), torch.complex64)
    same(
        sheaf.all_gather(lazy.conj()).tensor.resolve_conj(),  # alone, the result is the input
        torch.cat([values(r, (n, 2), torch.complex64).conj().resolve_conj() for r, n in enumerate(sizes)]),
        "conjugated view",
    )


@pytest.mark.parametrize("world", WORLDS)
def test_layouts(world):
    run(world, layouts)


def incoming_gradients(rank, world):
    sizes = patterns(world)[0]
    total = sum(sizes)
    forms = {
        "expanded": lambda r: torch.tensor(float(r + 2)).expand(total, 3),
        "transposed": lambda r: values(r, (3, total), torch.float32).t(),
        "strided": lambda r: values(r, (total, 3, 2), torch.float32)[..., 1],
        "channels last": lambda r: values(r, (total, 3, 2, 2), torch.float32).to(memory_format=torch.channels_last),
        "shared": lambda r: values(r, (total, 3), torch.float32),
    }
    for name, form in forms.items():
        for mode in MODES:
            x = torch.ones(sizes[rank], *form(rank).shape[1:], requires_grad=True)
            y, _ = sheaf.all_gather(x, grad=mode)
            incoming = form(rank)
            before = incoming.clone()
            y.backward(incoming)
            same(x.grad, expected_gradient(mode, [form(r).clone() for r in range(world)], sizes, rank, 0), name)
            same(incoming, before, f"{name}: the incoming gradient was written")
            assert x.grad.untyped_storage().data_ptr() != incoming.untyped_storage().data_ptr()


@pytest.mark.parametrize("world", WORLDS)
def test_incoming_gradients_are_read_only(world):
    run(world, incoming_gradients)


def partly_recorded(rank, world):
    for mode in ("sum", "mean"):
        x = torch.ones(rank + 1, 2, requires_grad=rank == 0)
        y, _ = sheaf.all_gather(x, grad=mode)
        assert y.requires_grad
        (y * (rank + 1)).sum().backward()
        total = sum(range(1, world + 1))
        if rank == 0:
            same(x.grad, torch.full((1, 2), total / world if mode == "mean" else float(total)), mode)
    x = torch.ones(2, requires_grad=rank == 0)
    assert sheaf.all_gather(x, grad="own").tensor.requires_grad == (rank == 0)
    assert not sheaf.all_gather(torch.ones(2)).tensor.requires_grad
    with torch.no_grad():
        assert not sheaf.all_gather(torch.ones(2, requires_grad=True)).tensor.requires_grad
    with torch.inference_mode():
        sheaf.all_gather(torch.ones(2))


@pytest.mark.parametrize("world", WORLDS)
def test_a_rank_that_needs_no_gradient_takes_part(world):
    run(world, partly_recorded)


def ordinary_result(rank, world):
    x = torch.ones(rank + 1, 2, requires_grad=True)
    y, sizes = sheaf.all_gather(x)
    y.mul_(3)
    y.sum().backward()
    same(x.grad, torch.full_like(x, 3.0 * world), "after a write in place")
    large = torch.ones(5000, 3)
    gathered, _ = sheaf.all_gather(large)
    large.zero_()
    assert gathered.sum() == world * 15000
    unused, _ = sheaf.all_gather(x)
    (unused.detach().sum() + x.sum()).backward()
    assert sheaf.split(y, sizes)[rank].shape[0] == rank + 1
    assert sheaf.offset(sizes) == sum(range(1, rank + 1))
    assert sheaf.gather_sizes(x).tolist() == [r + 1 for r in range(world)]
    for known in (sizes, sizes.tolist(), tuple(sizes.tolist()), sizes.to(torch.int32)):
        assert torch.equal(sheaf.all_gather(x, sizes=known).tensor, torch.ones(sum(sizes), 2))


@pytest.mark.parametrize("world", [2, 3])
def test_the_result_is_an_ordinary_tensor(world):
    run(world, ordinary_result)


@settings(max_examples=60, deadline=None)
@given(
    world=st.sampled_from([2, 3]),
    data=st.data(),
    ndim=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
    known=st.booleans(),
)
def test_any_shape(world, data, ndim, dtype, known):
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=world, max_size=world))
    other = data.draw(st.lists(st.integers(0, 4), min_size=ndim - 1, max_size=ndim - 1))
    dim = data.draw(st.integers(-ndim, ndim - 1))
    run(world, any_shape, sizes, other, dim, dtype, known)


def any_shape(rank, world, sizes, other, dim, dtype, known):
    position = dim % (len(other) + 1)
    parts = [values(r, (*other[:position], n, *other[position:]), dtype) for r, n in enumerate(sizes)]
    got = sheaf.all_gather(parts[rank], dim, sizes=sizes if known else None).tensor
    same(got, byte_cat(parts, position), "value")
