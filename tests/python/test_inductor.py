# SPDX-License-Identifier: MIT
"""A short set under Inductor, torch's default: what the other tests of compiled code ask with aot_eager."""

import pytest
import torch

import test_async
import test_coalesced_compile
import test_compile
import test_compile_order
from compiled import RUNS_INDUCTOR, WHY_NOT
from pool import run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not RUNS_INDUCTOR, reason=WHY_NOT)]

BODIES = {
    "other sizes, learned": (test_compile.compilations, None),
    "other sizes, given": (test_compile.compilations, torch.tensor),
    "order, learned": (test_compile_order.independent, True),
    "order, given": (test_compile_order.independent, False),
    "several tensors": (test_coalesced_compile.in_order,),
}


@pytest.mark.parametrize("name", BODIES)
def test_inductor(name):
    body, *args = BODIES[name]
    run(2, body, *args, "inductor", timeout=300)


def one_of_each(rank, world):
    test_compile.compiled_gather(rank, world, torch.tensor, "inductor", ["mean", "own"])
    test_compile.compiled_scatter(rank, world, "mean", torch.tensor, "inductor")
    test_compile.compiled_module(rank, world, "inductor")
    test_async.compiled(rank, world, "inductor")


def test_modes_sums_modules_and_started_calls():
    run(2, one_of_each, timeout=300)
