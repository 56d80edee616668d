# SPDX-License-Identifier: MIT
"""reduce_scatter against one process: the same bits for every dtype, and gradients of every order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sheaf
from pool import fresh, run
from truth import COMPLEX, FLOAT8, FLOATS, INTEGERS, blocks, own_rows, patterns, rank_sum, same, shape_with, values

pytestmark = pytest.mark.usefixtures("engine")

WORLDS = [1, 2, 3, 5]
OPS = ["sum", "mean"]
DIMS = [0, 1, -1]


def scatter_and_differentiate(rank, world, sizes, dim, op):
    inputs = [values(20 + r, shape_with(sum(sizes), dim), torch.float64) for r in range(world)]
    y = inputs[rank].clone().requires_grad_()
    mine = sheaf.reduce_scatter(y, sizes, dim, op=op)
    same(mine, own_rows(rank_sum(inputs, mean=op == "mean"), sizes, rank, dim), "value")
    assert mine.is_contiguous()
    upstream = blocks(sizes, dim, seed=9)
    mine.backward(upstream[rank])
    whole = torch.cat([part / world if op == "mean" else part for part in upstream], dim)
    same(y.grad, whole, "gradient")
    same(y.detach(), inputs[rank], "the input was written")


def all_patterns(rank, world, dim, op):
    for sizes in patterns(world):
        scatter_and_differentiate(rank, world, sizes, dim, op)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("world", WORLDS)
def test_values_and_gradients(world, dim, op):
    run(world, all_patterns, dim, op)


def second_derivative(rank, world, op):
    sizes = patterns(world)[0]
    inputs = [values(20 + r, (sum(sizes), 3), torch.float64) for r in range(world)]
    directions = [values(60 + r, (sum(sizes), 3), torch.float64) for r in range(world)]
    factor = 1 / world if op == "mean" else 1.0
    y = inputs[rank].clone().requires_grad_()
    mine = sheaf.reduce_scatter(y, sizes, op=op)
    (first,) = torch.autograd.grad((mine**3).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad((directions[rank] * first).sum(), y)

    leaves = [part.clone().requires_grad_() for part in inputs]
    # The losses of all ranks together are one function of the sum over ranks.
    firsts = torch.autograd.grad(((factor * sum(leaves)) ** 3).sum(), leaves, create_graph=True)
    both = sum((v * first).sum() for v, first in zip(directions, firsts, strict=True))
    torch.testing.assert_close(second, torch.autograd.grad(both, leaves)[rank], rtol=1e-12, atol=0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("world", WORLDS)
def test_second_derivative(world, op):
    run(world, second_derivative, op)


def every_dtype(rank, world, dim):
    sizes = patterns(world)[0]
    for dtype in [*INTEGERS, *FLOATS, *COMPLEX, *FLOAT8]:
        inputs = [values(r, shape_with(sum(sizes), dim), dtype) for r in range(world)]
        for op in OPS if dtype.is_floating_point or dtype.is_complex else ["sum"]:
            mine = sheaf.reduce_scatter(inputs[rank], sizes, dim, op=op)
            if dtype in INTEGERS:
                total = sum(part.to(torch.int64) for part in inputs).to(dtype)  # wraps as the type does
            else:
                total = rank_sum(inputs, mean=op == "mean")
            same(mine, own_rows(total.contiguous(), sizes, rank, dim).contiguous(), f"{dtype} {op}")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("world", WORLDS)
def test_every_dtype(world, dim):
    run(world, every_dtype, dim)


FORMS = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "strided": lambda x: torch.stack([x, x + 1], -1)[..., 0],
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "offset": lambda x: torch.cat([x[:1], x])[1:],
    "expanded": lambda x: x[..., :1].expand(x.shape),
}


def layouts(rank, world):
    """Inputs and incoming gradients of every form: the values of plain ones, and nobody writes into them."""
    sizes = patterns(world)[0]
    wholes = [values(r, (sum(sizes), 4, 3, 2), torch.float32) for r in range(world)]
    grads = [values(40 + r, (n, 4, 3, 2), torch.float32) for r, n in enumerate(sizes)]
    for name, form in FORMS.items():
        for op in OPS:
            y = form(wholes[rank]).detach().requires_grad_()
            mine = sheaf.reduce_scatter(y, sizes, op=op)
            total = rank_sum([form(whole).contiguous() for whole in wholes], mean=op == "mean")
            same(mine, own_rows(total, sizes, rank, 0), name)
            assert mine.is_contiguous()
            incoming = form(grads[rank])
            before = incoming.clone()
            mine.backward(incoming)
            upstream = torch.cat([form(grad) for grad in grads]).contiguous()
            same(y.grad.contiguous(), upstream / world if op == "mean" else upstream, f"gradient of {name}")
            same(incoming, before, f"{name}: the incoming gradient was written")
            same(y.detach(), form(wholes[rank]), f"{name}: the input was written")
            assert y.grad.untyped_storage().data_ptr() != incoming.untyped_storage().data_ptr()


@pytest.mark.parametrize("world", WORLDS)
def test_layouts(world):
    run(world, layouts)


def rounded_once(rank, world):
    """1 + 2⁻⁹ + 2⁻⁹ is 1 + 2⁻⁸ in float32, and 1 when bfloat16 rounds after each step."""
    term = torch.tensor([1.0 if rank == 0 else 2.0**-8 * 0.5] * world, dtype=torch.bfloat16)
    got = sheaf.reduce_scatter(term, [1] * world)
    assert got.item() == torch.tensor(1.0 + (world - 1) * 2.0**-9).to(torch.bfloat16).item()


def test_half_types_are_rounded_once():
    run(5, rounded_once)


def many_pieces(rank, world):
    for sizes in ([70_000, 5, 0], [9, 9, 300_000], [100_000, 100_000, 100_000]):
        inputs = [values(r, (sum(sizes), 2), torch.float32) for r in range(world)]
        got = sheaf.reduce_scatter(inputs[rank], sizes)
        same(got, own_rows(rank_sum(inputs), sizes, rank, 0), str(sizes))
        across = [part.t().contiguous() for part in inputs]
        got = sheaf.reduce_scatter(across[rank], sizes, 1)
        same(got, own_rows(rank_sum(across), sizes, rank, 1), f"{sizes} along dim 1")
        parts = [values(r, (n, 2), torch.float32) for r, n in enumerate(sizes)]
        same(sheaf.all_gather(parts[rank]).tensor, torch.cat(parts), str(sizes))
        same(sheaf.all_gather(parts[rank].t(), 1).tensor, torch.cat(parts).t().contiguous(), str(sizes))


def test_large_tensors():
    run(3, many_pieces)


def test_messages_are_split():
    outcomes = fresh(3, many_pieces, env={"SHEAF_MESSAGE_BYTES": "100000"}, timeout=120)
    assert all(outcome.error is None and outcome.answered for outcome in outcomes), outcomes


@settings(max_examples=40, deadline=None)
@given(world=st.sampled_from([2, 3]), data=st.data(), dtype=st.sampled_from([*FLOATS, *COMPLEX, torch.int32]))
def test_any_shape(world, data, dtype):
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=world, max_size=world))
    dim = data.draw(st.integers(-3, 2))
    run(world, any_shape, sizes, dim, dtype)


def any_shape(rank, world, sizes, dim, dtype):
    inputs = [values(r, shape_with(sum(sizes), dim), dtype) for r in range(world)]
    same(sheaf.reduce_scatter(inputs[rank], sizes, dim), own_rows(rank_sum(inputs), sizes, rank, dim), "value")
