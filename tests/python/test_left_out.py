# SPDX-License-Identifier: MIT
"""Ranks whose loss does not use the result: who is named, when, and what keeps such a rank in step."""

import pytest
import torch
import torch.distributed as dist

import sheaf
from agree import works
from company import close
from compiled import compiling, number
from pool import run
from truth import own_rows, values

pytestmark = pytest.mark.usefixtures("engine")
WORLD = 3
SIZES = [2, 1, 3]
WIDTHS = [2, 3000]
"""Gradients that ride along with their headers, and such that come without one on the group's own backend."""
WAYS = ["plain", "async", "coalesced", "async coalesced"]
SLOW_WAYS = [WAYS[0], *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[1:])]
"""Where each waits for its deadline."""


def gather(x, way, sizes=None, **options):
    """The gathered x, alone or beside ids that need no gradient."""
    later = way.startswith("async")
    if "coalesced" in way:
        ids = torch.arange(x.shape[0])
        got = sheaf.all_gather_coalesced([x, ids], sizes=sizes, async_op=later, **options)
        return (got.wait() if later else got)[0].tensor
    got = sheaf.all_gather(x, sizes=sizes, async_op=later, **options)
    return (got.wait() if later else got).tensor


def gathered(rank, width, group, way, **options):
    x = torch.ones(SIZES[rank], width, requires_grad=True)
    return x, gather(x, way, group=group, **options)


def backward_of(way):
    return "reduce_scatter_coalesced" if "coalesced" in way else "reduce_scatter"


def stays_away(rank, world, way):
    """Rank 1 leaves out the backward and makes no other call: the others name it at the deadline."""
    for width, known in zip(WIDTHS * 2, [None, SIZES, SIZES, None], strict=True):
        group = dist.new_group()
        works(rank, world)
        _, y = gathered(rank, width, group, way, sizes=known, timeout=0.6)
        if rank != 1:
            with pytest.raises(dist.DistBackendError, match=r"no answer from rank 1 within 0\.6 s") as caught:
                y.sum().backward()
            said = str(caught.value)
            assert "rank 1 never came" in said and "differentiates #1" in said, said
            assert f"{backward_of(way)} #2" in said, said
        dist.barrier()


@pytest.mark.parametrize("way", SLOW_WAYS)
def test_a_rank_that_stays_away_is_named_at_the_deadline(way):
    run(WORLD, stays_away, way)


def next_call(kind, x, y, other, group, way, timeout=None):
    if kind == "all_gather":
        gather(x, way, group=group)
    elif kind == "gather_sizes":
        sheaf.gather_sizes(x, group=group)
    elif kind == "reduce_scatter":
        sheaf.reduce_scatter(y.detach(), SIZES, group=group, timeout=timeout)
    elif kind == "all_gather, sized":
        sheaf.all_gather(x.detach(), sizes=SIZES, group=group, timeout=timeout)
    else:  # the backward of another call, of the same shape
        other.sum().backward()


def without_headers(kind, width):
    """Neither side sends one, or a device's collectives do across hosts, but in backwards: they end at the deadline."""
    if sheaf.engine().cpu.startswith("collectives"):
        return kind in ("reduce_scatter", "all_gather, sized")
    return (
        kind in ("reduce_scatter", "all_gather, sized", "backward")
        and width > 2
        and sheaf.engine().cpu.startswith("c10d")
    )


def goes_on_without_headers(rank, world, way):
    """Rank 1 leaves out the backward of #2 and goes on with a call that is no match: all are told at the deadline."""
    kinds = [kind for kind in ("reduce_scatter", "all_gather, sized", "backward") if without_headers(kind, WIDTHS[1])]
    assert len(kinds) > 1
    for kind in kinds:
        group = dist.new_group()
        _, other = gathered(rank, WIDTHS[1], group, way, timeout=1.0)
        x, y = gathered(rank, WIDTHS[1], group, way, timeout=1.0)
        with pytest.raises(dist.DistBackendError) as caught:  # rank 1 waits longer: a backend that gives up hangs up
            y.sum().backward() if rank != 1 else next_call(kind, x, y, other, group, way, timeout=2.5)
        said = str(caught.value)
        assert rank == 1 or f"{backward_of(way)} #3: no answer from rank" in said, said
        assert rank == 1 or ("rank 1" in said and "differentiates #2" in said), said
        dist.barrier()


@pytest.mark.parametrize("way", SLOW_WAYS)
def test_a_rank_that_goes_on_without_headers_is_named_at_the_deadline(way, engine):
    if engine == "shm":
        pytest.skip("headers are always compared there")
    run(WORLD, goes_on_without_headers, way, timeout=50)


def goes_on(rank, world, way):
    """Rank 1 leaves out the backward of #2 and goes on: all raise the same at once, and the group works on."""
    for width in WIDTHS:
        for kind in ("all_gather", "gather_sizes", "reduce_scatter", "backward"):
            if without_headers(kind, width):
                continue
            group = dist.new_group()
            _, other = gathered(rank, width, group, way)
            x, y = gathered(rank, width, group, way, timeout=60)
            with pytest.raises(ValueError, match="ranks disagree on") as caught:
                y.sum().backward() if rank != 1 else next_call(kind, x, y, other, group, way)
            said = str(caught.value)
            assert f"{backward_of(way)} #3" in said, said
            if kind == "backward":
                assert "the call it differentiates: #2 on ranks 0, 2; #1 on rank 1" in said, said
            else:
                assert "rank 1 has left out the backward of #2" in said, said
            assert sheaf.all_gather(torch.ones(rank), group=group).sizes.tolist() == [0, 1, 2]


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_goes_on_is_named_at_once(way):
    run(WORLD, goes_on, way, timeout=50)  # before the calls' own deadline


def scattered(rank, width, group, way, **options):
    """The own rows of a sum, alone or beside another that needs no gradient."""
    y, later = torch.ones(sum(SIZES), width, requires_grad=True), way.startswith("async")
    if "coalesced" in way:
        got = sheaf.reduce_scatter_coalesced([y, y.detach()], SIZES, group=group, async_op=later, **options)
        return (got.wait() if later else got)[0]
    got = sheaf.reduce_scatter(y, SIZES, group=group, async_op=later, **options)
    return got.wait() if later else got


def leaves_out_a_sum(rank, world, way):
    """The same of sums, whose backward is a gather: rank 1 goes on, and then only stays away."""
    backward = "all_gather_coalesced" if "coalesced" in way else "all_gather"
    for width in WIDTHS:
        group = dist.new_group()
        mine = scattered(rank, width, group, way, timeout=60)
        with pytest.raises(ValueError, match="ranks disagree on op") as caught:
            mine.sum().backward() if rank != 1 else sheaf.gather_sizes(torch.ones(1), group=group)
        said = str(caught.value)
        assert f"{backward} (differentiates #1) on ranks 0, 2; gather_sizes on rank 1" in said, said
        assert "rank 1 has left out the backward of #1" in said, said
        mine = scattered(rank, width, group, way, timeout=0.6)
        if rank != 1:
            with pytest.raises(dist.DistBackendError, match=r"no answer from rank 1 within 0\.6 s") as caught:
                mine.sum().backward()
            assert "differentiates #3" in str(caught.value), str(caught.value)
        dist.barrier()


@pytest.mark.parametrize("way", SLOW_WAYS)
def test_a_rank_that_leaves_out_the_backward_of_a_sum_is_named(way):
    run(WORLD, leaves_out_a_sum, way, timeout=50)


def compiled_goes_on(rank, world, backend):
    """The same of compiled code, whose backward learns when it runs which call it differentiates."""
    bodies = {
        "reduce_scatter": lambda x: sheaf.all_gather(x, sizes=SIZES).tensor,
        "all_gather": lambda y: sheaf.reduce_scatter(y, SIZES),
        "reduce_scatter_coalesced": lambda x: sheaf.all_gather_coalesced([x], sizes=SIZES)[0].tensor,
        "all_gather_coalesced": lambda y: sheaf.reduce_scatter_coalesced([y], SIZES)[0],
    }
    for op, body in bodies.items():
        x = torch.ones(SIZES[rank] if op.startswith("reduce") else sum(SIZES), 2, requires_grad=True)
        with compiling():
            compiled = torch.compile(body, fullgraph=True, backend=backend)
            (compiled(x).sum() * 2).backward()
            skipped = number() + 1
            y = compiled(x)
            with pytest.raises(ValueError, match="ranks disagree on op") as caught:
                y.sum().backward() if rank != 1 else sheaf.gather_sizes(x)
        said = str(caught.value)
        assert f"{op} (differentiates #{skipped}) on ranks 0, 2; gather_sizes on rank 1" in said, said
        assert f"rank 1 has left out the backward of #{skipped}" in said, said


def test_a_rank_that_leaves_out_a_compiled_backward_is_named():
    run(WORLD, compiled_goes_on, "aot_eager", timeout=60)


def partly_compiled(rank, world):
    """Compiled code and eager code name the same call, so that they go together, with headers and without."""

    def body(y):
        return sheaf.reduce_scatter(y, SIZES)

    with compiling():
        compiled = torch.compile(body, fullgraph=True, backend="aot_eager")
        for width in WIDTHS:
            y = torch.ones(sum(SIZES), width, requires_grad=True)
            mine = body(y) if rank == 1 else compiled(y)
            (mine.sum() * (rank + 1)).backward()
            assert y.grad[:, 0].tolist() == [r + 1.0 for r, rows in enumerate(SIZES) for _ in range(rows)]


def test_a_rank_may_run_sums_eagerly_beside_compiled_ones():
    run(WORLD, partly_compiled)


def in_step(rank, world, way):
    """The documented way, with values that a product with zero would spoil; alone in the loss, and beside others."""
    for width in WIDTHS:
        for mode in ("sum", "mean"):
            parts = [values(r, (rows, width), torch.float64) for r, rows in enumerate(SIZES)]
            parts[0][0, 0] = torch.inf
            x = parts[rank].clone().requires_grad_()
            y = gather(x, way, grad=mode)
            loss = {0: (y * 2).sum(), 1: y[:0].sum(), 2: (x * 5).sum() + y[:0].sum()}[rank]
            loss.backward()
            told = own_rows(torch.full_like(y, 2.0), SIZES, rank, 0) / (world if mode == "mean" else 1)
            close(x.grad, told + 5 if rank == 2 else told, (width, mode))


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_that_uses_no_row_keeps_in_step(way):
    run(WORLD, in_step, way)
