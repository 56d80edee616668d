# SPDX-License-Identifier: MIT
"""A short set under Inductor, torch's default: what the other tests of compiled code ask with aot_eager."""

from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch._dynamo.utils import counters

import sheaf
import static_cases
import test_async
import test_coalesced_compile
import test_compile
import test_compile_order
import test_left_out
from compiled import HAS_COMPILER, compiling, ran
from pool import fresh, run, values

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_COMPILER, reason="Inductor needs a C++ compiler")]

BODIES = {
    "other sizes, learned": (test_compile.compilations, None),
    "other sizes, given": (test_compile.compilations, torch.tensor),
    "other sizes, in a list": (test_compile.compilations, list),
    "order, learned": (test_compile_order.independent, True),
    "order, given": (test_compile_order.independent, False),
    "a rank without use": (test_compile_order.keeps_in_step,),
    "a rank that leaves out a backward": (test_left_out.compiled_goes_on,),
    "static shapes": (static_cases.static_compiled, "cpu"),
    "several tensors": (test_coalesced_compile.in_order,),
    "several tensors, other sizes": (test_coalesced_compile.compiled_gather, None),
    "several sums, other sizes": (test_coalesced_compile.compiled_scatter, test_coalesced_compile.table),
}


WORLDS = {"order, learned": 3, "order, given": 3, "a rank that leaves out a backward": 3}
"""Where not of two."""


@pytest.mark.parametrize("name", BODIES)
def test_like_eager(name):
    body, *args = BODIES[name]
    run(WORLDS.get(name, 2), body, *args, "inductor", timeout=300)


def one_of_each(rank, world):
    test_compile.compiled_gather(rank, world, torch.tensor, "inductor", ["mean", "own"])
    test_compile.compiled_scatter(rank, world, "mean", torch.tensor, "inductor")
    test_compile.compiled_module(rank, world, "inductor")
    test_async.compiled(rank, world, "inductor")


def test_modes_sums_modules_and_started_calls():
    run(2, one_of_each, timeout=300)


def projected(a, b, wa, wb, known):
    ya, _ = sheaf.all_gather(a @ wa, sizes=known[0])
    yb, _ = sheaf.all_gather(b @ wb, sizes=known[1])
    return ya, yb


@contextmanager
def graphs():
    """Every graph that Inductor made, as it made it."""
    from torch._inductor.output_code import CompiledFxGraph

    made, finish = [], CompiledFxGraph.post_compile

    def keep(graph, *args, **keywords):
        made.append(graph)
        return finish(graph, *args, **keywords)

    with mock.patch.object(CompiledFxGraph, "post_compile", keep):
        yield made


def tempting(rank, world, learned):
    """Inductor would run the longer one's backward first, to save memory, and a longer one there is on each rank."""
    sizes = [[300, 2], [2, 300]]
    known = [None] * 2 if learned else sizes
    a, b = (torch.ones(rows[rank], 40, requires_grad=True) for rows in sizes)
    wa, wb = torch.ones(40, 20), torch.ones(40, 30)

    def step():
        ys = compiled(a, b, wa, wb, known)
        torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])

    with compiling(), graphs() as made:
        compiled = torch.compile(projected, fullgraph=True)
        step()
        calls = ran(step)
    # No CUDA graph may hold them: its replay would exchange no headers.
    assert len(made) == 2 and all("hears of other ranks" in graph.disabled_cudagraphs_reason for graph in made)
    both = [("sizes", 20), ("gather", 20), ("sizes", 30), ("gather", 30)]
    assert calls == [call for call in both if learned or call[0] == "gather"] + [("scatter", 30), ("scatter", 20)]
    assert a.grad.eq(2 * 20 * world).all() and b.grad.eq(2 * 30 * world).all()


@pytest.mark.parametrize("learned", [True, False], ids=["learned", "given"])
def test_backward_is_not_sorted_by_memory(learned):
    run(2, tempting, learned, timeout=240)


KEPT = {"torch.ops.higher_order.with_effects": torch.__version__}
"""torch 2.13 keeps graphs with our ops on disk only where it is told that it may, since calls in order are effects."""


def cached(rank, world):
    """How many graphs were found on disk, and how many were looked for in vain."""
    with torch._inductor.config.patch(unsafe_marked_cacheable_functions=KEPT):
        compiled = torch.compile(test_compile_order.three, fullgraph=True)
        if world == 1:  # nothing is called: only for the cache
            xs = [torch.ones(2, width, requires_grad=True) for width in test_compile_order.WIDTHS]
            sum(y.sum() for y in compiled(*xs, [None] * 3)).backward()
        else:
            test_compile_order.in_order(rank, world, True, True, compiled)
    return counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]


def test_graphs_cached_for_another_number_of_ranks(tmp_path):
    """Forward and backward are found where they were made for as many ranks, and nowhere else; then they make the same
    calls in the same order."""
    for world, hits, misses in ((1, 0, 0), (2, 0, 2), (3, 0, 2), (2, 2, 0)):
        found = values(fresh(world, cached, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}, timeout=200))
        assert found == [(hits, misses)] * world, (world, found)
