# SPDX-License-Identifier: MIT
"""What tests of compiled code ask on a rank: which calls ran, in which order, and how often torch compiled."""

import contextlib
import os
import re
import shutil

import torch
import torch._inductor.config  # for the patch below; costs nothing that compiling would not
from torch._C._profiler import _ExperimentalConfig
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

import sheaf
from truth import own_rows

HAS_COMPILER = any(map(shutil.which, ("g++", "c++", "clang++")))
RUNS_INDUCTOR = HAS_COMPILER and os.environ.get("SHEAF_TEST_INDUCTOR") == "1"
WHY_NOT = "Inductor takes minutes: SHEAF_TEST_INDUCTOR=1 runs all of its tests (with g++), make slow-test a short set"
BACKENDS = ["aot_eager", "inductor"]

SHORT = {
    "sheaf::gather_sizes": "sizes",
    "sheaf::all_gather": "learn and gather",
    "sheaf::all_gather_sized": "gather",
    "sheaf::reduce_scatter_sized": "scatter",
}
SEVERAL = {
    "sheaf::gather_sizes_coalesced": ("sizes of all", 1),
    "sheaf::all_gather_coalesced": ("learn and gather all", 2),
    "sheaf::all_gather_coalesced_sized": ("gather all", 3),
    "sheaf::reduce_scatter_coalesced_sized": ("scatter all", 3),
}
"""And where their dims are among the arguments."""


def ran(body):
    """The calls that the body makes, in the order in which they run, as (op, width): `("gather", 3)`; of several
    tensors as (op, dims): `("gather all", [0, 1])`.

    torch's dispatcher reports every op to its profiler, from compiled code as well. So compile before: a compiler's
    trace is reported, too. The number of calls is held against what the library itself counts.
    """
    return [told(event) for event in reported(body)]


def reported(body, *, everywhere=False):
    """What torch's profiler says of the calls that the body makes; `everywhere`: on other threads, too."""
    first = number()
    threads = _ExperimentalConfig(profile_all_threads=everywhere)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=threads) as seen:
        body()
    counted = number() - first - 1
    names = {*SHORT, *SEVERAL}
    outer = [event for event in seen.events() if event.name in names and not is_passed_on(event)]
    outer.sort(key=lambda event: event.time_range.start)
    assert counted == len(outer), f"the library counted {counted} calls, torch reported {[told(e) for e in outer]}"
    return outer


def is_passed_on(event):
    """An op that autograd or a dispatch mode passes on to the kernel is reported again, inside the first report."""
    above = event.cpu_parent
    while above and above.name != event.name:
        above = above.cpu_parent
    return above is not None


def told(event):
    if event.name in SHORT:
        return SHORT[event.name], event.input_shapes[0][1]
    name, dims = SEVERAL[event.name]
    return name, event.concrete_inputs[dims]


def number():
    """The number of the group's latest call, which is this one: every rank refuses it."""
    try:
        sheaf.all_gather(torch.ones(1), sizes=[-1] * torch.distributed.get_world_size())
    except ValueError as error:
        return int(re.match(r"all_gather #(\d+):", str(error))[1])
    raise AssertionError("negative sizes were taken")


@contextlib.contextmanager
def compiling():
    """Compiles anew, and in one process. Gives a function that says how many graphs have been compiled since."""
    torch._dynamo.reset()
    counters.clear()
    with (
        torch.compiler.config.patch(force_disable_caches=True),
        torch._inductor.config.patch(compile_threads=1),
    ):
        yield lambda: counters["stats"]["unique_graphs"]
    assert not counters["graph_break"], counters["graph_break"]


def one_process(inputs, sizes, mode, loss):
    """What one process makes of all ranks' inputs: the gathered tensor, and every rank's gradient. `loss(rank, y)` is
    that rank's loss."""
    y = torch.cat(inputs).requires_grad_()
    grads = [torch.autograd.grad(loss(rank, y), y)[0] for rank in range(len(inputs))]
    summed = sum(grads) / (len(inputs) if mode == "mean" else 1)
    mine = [own_rows(grads[r] if mode == "own" else summed, sizes, r, 0) for r in range(len(inputs))]
    return y.detach(), mine
