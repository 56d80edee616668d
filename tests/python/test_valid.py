# SPDX-License-Identifier: MIT
"""Static shapes, `valid=`, on what a CPU group gets: the same as on a GPU. Each engine, and without a group."""

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import missed_cases
import sheaf
import static_cases
from pool import fresh, run, values


@pytest.mark.parametrize(
    "case", [static_cases.static_shapes, static_cases.static_second_derivatives, static_cases.static_layouts]
)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_like_one_process(engine, world, case):
    run(world, case, "cpu")


@pytest.mark.parametrize(
    "case", [static_cases.static_clamped, static_cases.static_compiled, static_cases.static_partly_compiled]
)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_compiled_and_clamped(engine, world, case):
    run(world, case, "cpu")


@pytest.mark.parametrize(
    "case", [static_cases.static_counts, static_cases.static_among_calls, static_cases.static_in_inference_mode]
)
@pytest.mark.parametrize("world", [2, 3])
def test_counts_and_groups(engine, world, case):
    run(world, case, "cpu")


@pytest.mark.parametrize("world", [2, 3, 5])
def test_mistakes(engine, world):
    for texts in run(world, static_cases.static_mistakes, "cpu"):
        for text, expected in zip(texts, static_cases.MISTAKES, strict=True):
            assert expected in text, texts


def test_alone():
    x = torch.arange(10.0).view(5, 2).requires_grad_()
    y, sizes = sheaf.all_gather(x, valid=torch.tensor(3))
    truth = torch.cat([x.detach()[:3], torch.zeros(2, 2)])
    assert torch.equal(y, truth) and sizes.tolist() == [3]
    y.backward(torch.ones(5, 2) * 7)
    assert x.grad is not None and torch.equal(x.grad, torch.tensor([[7.0, 7.0]] * 3 + [[0.0, 0.0]] * 2))

    clamped = sheaf.all_gather(x, valid=torch.tensor(9))
    assert torch.equal(clamped.tensor, x) and clamped.sizes.tolist() == [5]
    with pytest.raises(ValueError, match="was clamped"):
        sheaf.all_gather(x, valid=torch.tensor(3))
    assert sheaf.all_gather(x, valid=torch.tensor(0)).tensor.eq(0).all(), "once is enough"
    with pytest.raises(ValueError, match="timeout must be a positive number"):
        sheaf.all_gather(x, valid=torch.tensor(3), timeout=-1)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_alone_and_compiled(backend):
    """No op is left there that would say what is wrong."""

    def refused(body):
        torch.compiler.reset()
        with pytest.raises(Exception, match=r"dim must be from -2 to 1, got 5|cannot both be given"):
            torch.compile(body, backend=backend)(torch.ones(4, 2))

    refused(lambda x: sheaf.all_gather(x, 5, valid=torch.tensor(2)).tensor.sum())
    refused(lambda x: sheaf.all_gather(x, 5).tensor.sum())
    refused(lambda x: sheaf.all_gather_coalesced([x, x], [0, 5])[0].tensor.sum())
    refused(lambda x: sheaf.reduce_scatter(x, [4], 5).sum())
    refused(lambda x: sheaf.all_gather(x, valid=torch.tensor(2), async_op=True).wait().tensor.sum())


@pytest.mark.parametrize("op", ["compact", "spread"])
def test_tangents_are_not_lost(op):
    with forward_ad.dual_level(), pytest.raises(ValueError, match="forward-mode AD is not supported"):
        getattr(torch.ops.sheaf, op)(forward_ad.make_dual(torch.ones(4), torch.ones(4)), torch.tensor([1, 2]), 0)


@pytest.mark.parametrize("case", missed_cases.MISSED)
def test_ranks_that_missed_a_call_are_in_step_at_the_next(engine, case):
    run(3, case, "cpu", timeout=120)


def interrupted(rank, world):
    """A call of several steps behind one that was started, to which rank 1 comes late."""
    x, count = torch.ones(1), torch.tensor(1)
    sheaf.all_gather(x, valid=count)
    dist.barrier()
    if rank == 1:
        time.sleep(4)
        return sheaf.all_gather(x, async_op=True).wait().tensor.numel()
    handle = sheaf.all_gather(x, async_op=True)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    since = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sheaf.all_gather(x, valid=count)
    assert time.monotonic() - since < 2
    return handle.wait().tensor.numel()


def test_ctrl_c_does_not_wait_for_what_is_given_up():
    assert values(fresh(2, interrupted, timeout=60)) == [2, 2]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("op", ["compact", "spread"])
def test_rows_move_to_any_order_of_derivative(op, dim):
    sizes = torch.tensor([2, 0, 3])
    x = torch.randn(9, 9, dtype=torch.float64, requires_grad=True)

    def body(x):
        return getattr(torch.ops.sheaf, op)(x, sizes, dim)

    assert gradcheck(body, x) and gradgradcheck(body, x)


@pytest.mark.parametrize("op", [torch.ops.sheaf.compact, torch.ops.sheaf.spread])
def test_what_rows_cannot_be_moved_by(op):
    x, sizes = torch.ones(6, 4), torch.tensor([1, 2])
    for bad in (
        lambda: op(x, sizes, -1),
        lambda: op(x, sizes, 2),
        lambda: op(x, sizes[:0], 0),
        lambda: op(x, torch.tensor([1, 2, 3, 4]), 0),
        lambda: op(x, sizes.int(), 0),
        lambda: op(x, torch.tensor(1), 0),
    ):
        with pytest.raises(ValueError, match=r"compact: |spread: "):
            bad()
