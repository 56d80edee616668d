# SPDX-License-Identifier: MIT
"""Mistakes that ranks can see in each other's headers: the same error everywhere, and a group that works on."""

import pytest
import torch
import torch.distributed as dist

import sheaf
from agree import everyone_says, quantized, strange, works
from pool import run, run_raises

pytestmark = pytest.mark.usefixtures("engine")


def odd_rank_out(rank, world, name):
    odd = rank == 1
    x = torch.ones(2, 3)
    match name:
        case "dtype":
            sheaf.all_gather(x.int() if odd else x)
        case "ndim":
            sheaf.all_gather(x[0] if odd else x)
        case "other size":
            sheaf.all_gather(x[:, :2] if odd else x)
        case "dim":
            sheaf.all_gather(torch.ones(3, 3), 1 if odd else 0)
        case "mode":
            sheaf.all_gather(x, grad="own" if odd else "mean")
        case "mode of a sized call":
            sheaf.all_gather(x, sizes=[2] * world, grad="own" if odd else "mean")
        case "op":
            sheaf.gather_sizes(x) if odd else sheaf.all_gather(x)
        case "recording":
            with torch.set_grad_enabled(not odd):
                sheaf.all_gather(x.clone().requires_grad_())
        case "order":
            for first in (odd, not odd):
                sheaf.all_gather(torch.ones(2, 3, dtype=torch.int64) if first else x)
        case "order of ops":
            for first in (odd, not odd):
                sheaf.reduce_scatter(torch.ones(2 * world, 3), [2] * world) if first else sheaf.all_gather(x)


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dtype", "ranks disagree on dtype: float32 on rank"),
        ("ndim", "ranks disagree on ndim: 2 on rank"),
        ("other size", "ranks disagree on the size of dim 1: 3 on rank"),
        ("dim", "ranks disagree on dim: 0 on rank"),
        ("mode", "ranks disagree on gradient mode: mean on rank"),
        ("mode of a sized call", "ranks disagree on gradient mode: mean on rank"),
        ("op", "ranks disagree on op: all_gather on rank"),
        ("recording", "rank 1 is under no_grad while rank"),
        ("order", "ranks disagree on dtype: float32 on rank"),
        ("order of ops", "ranks disagree on op: all_gather on rank"),
    ],
)
def test_disagreement(world, name, text):
    # "order" leaves its second call undone on every rank alike: the first raises
    everyone_says(world, text, odd_rank_out, name)


def odd_rank_out_of_a_sum(rank, world, name):
    """Small tensors ride along with their headers, which are compared although sizes are given."""
    odd = rank == 1
    rows, sizes = 2 * world, [2] * world
    y = torch.ones(rows, rows)
    match name:
        case "dtype":
            sheaf.reduce_scatter(y.int() if odd else y, sizes)
        case "ndim":
            sheaf.reduce_scatter(y[:, 0] if odd else y, sizes)
        case "other size":
            sheaf.reduce_scatter(y[:, :3] if odd else y, sizes)
        case "dim":
            sheaf.reduce_scatter(y, sizes, -1 if odd else 0)
        case "sizes":
            sheaf.reduce_scatter(y, [rows, *[0] * (world - 1)] if odd else sizes)
        case "reduction":
            sheaf.reduce_scatter(y, sizes, op="mean" if odd else "sum")
        case "op":
            sheaf.gather_sizes(y) if odd else sheaf.reduce_scatter(y, sizes)
        case "order":
            for first in (odd, not odd):
                sheaf.reduce_scatter(y.long() if first else y, sizes)


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dtype", "ranks disagree on dtype: float32 on rank"),
        ("ndim", "ranks disagree on ndim: 2 on rank"),
        ("other size", "ranks disagree on the size of dim 1: "),
        ("dim", "ranks disagree on dim: 0 on rank"),
        ("sizes", "ranks disagree on sizes: [2, 2"),
        ("reduction", "ranks disagree on reduction: sum on rank"),
        ("op", "ranks disagree on op: reduce_scatter on rank"),
        ("order", "ranks disagree on dtype: float32 on rank"),
    ],
)
def test_disagreement_on_a_sum(world, name, text):
    everyone_says(world, text, odd_rank_out_of_a_sum, name)


BAD = {
    "0-d": (lambda x: torch.tensor(1.0), "pass x.reshape(1)"),
    "sparse": (lambda x: x.to_sparse(), "sparse tensors are not taken"),
    "quantized": (quantized, "quantized tensors are not taken"),
    "subclass": (strange, "tensor subclasses such as Strange are not taken"),
    "nested": (lambda x: torch.nested.nested_tensor([x, x]), "nested tensors are not taken"),
    "meta": (lambda x: x.to("meta"), "meta tensors hold no data"),
    "many dims": (lambda x: torch.ones((1,) * 9), "tensors have at most 8 dims, got 9"),
    "no tensor": (lambda x: [1.0], "a tensor is needed, got list"),
}


def refused_sums(rank, world):
    """What all_gather refuses, and why, as the last rank's mistake in a sum; all ranks' texts of every case."""
    odd, sizes = rank == world - 1, [2] * world
    y = torch.ones(2 * world, 3)
    calls = {name: lambda bad=bad: sheaf.reduce_scatter(bad(y) if odd else y, sizes) for name, (bad, _) in BAD.items()}
    calls["dim"] = lambda: sheaf.reduce_scatter(y, sizes, 7 if odd else 0)
    calls["type of dim"] = lambda: sheaf.reduce_scatter(y, sizes, 0.5 if odd else 0)
    calls["timeout"] = lambda: sheaf.reduce_scatter(y, sizes, timeout=-1 if odd else None)
    said = {}
    for name, call in calls.items():
        sheaf.gather_sizes(y)  # in step from here
        with pytest.raises(ValueError, match=f"rank {world - 1} refuses: ") as caught:
            call()
        said[name] = str(caught.value)
    works(rank, world)
    return said


@pytest.mark.parametrize("world", [2, 3, 5])
def test_refusal_of_a_sum(world):
    expected = {name: why for name, (_, why) in BAD.items()}
    expected |= {"dim": "dim must be from -2 to 1, got 7", "type of dim": "dim must be an integer, got 0.5"}
    expected |= {"timeout": "timeout must be a positive number of seconds"}
    said = run(world, refused_sums)
    assert said == [said[0]] * world, said
    assert said[0].keys() == expected.keys()
    for name, why in expected.items():
        assert why in said[0][name] and said[0][name].startswith("reduce_scatter #"), said[0][name]


def without_a_backend(rank, world):
    """A group whose only backend is for another device."""
    group = dist.new_group(backend="cuda:gloo")
    x = torch.ones(2, 3)
    said = []
    for call in (
        lambda: sheaf.all_gather(x, group=group, timeout=20),
        lambda: sheaf.all_gather(x, sizes=[2] * world, group=group, timeout=20),
        lambda: sheaf.reduce_scatter(x, [1] * world, group=group, timeout=20),
    ):
        with pytest.raises(ValueError, match="the process group has no backend for CPU tensors") as caught:
            call()
        said.append(str(caught.value))
    works(rank, world)
    return said


def test_a_device_with_no_backend_in_the_group():
    said = run(2, without_a_backend)
    if sheaf.LIBRARY.cuda:  # headers go by the store, those of calls with sizes given do not: who refuses may differ
        said = [[text.split(": ", 2)[::2] for text in texts] for texts in said]
    assert said[0] == said[1], said


def refused(rank, world, name, everywhere):
    odd = everywhere or rank == world - 1
    x, sizes = torch.ones(2, 3), [2] * world
    y = torch.ones(2 * world)
    sheaf.gather_sizes(x)  # in step from here
    match name:
        case _ if name in BAD:
            sheaf.all_gather(BAD[name][0](x) if odd else x)
        case "meta of a sized call":
            sheaf.all_gather(x.to("meta") if odd else x, sizes=sizes)
        case "range":
            sheaf.all_gather(x, 7 if odd else 0)
        case "mode":
            sheaf.all_gather(x, grad="median" if odd else "sum")
        case "mode of a sized call":
            sheaf.all_gather(x, sizes=sizes, grad="median" if odd else "sum")
        case "type of dim":
            sheaf.all_gather(x, 0.5 if odd else 0)
        case "type of sizes":
            sheaf.reduce_scatter(y, 5 if odd else sizes)
        case "shape of sizes":
            sheaf.reduce_scatter(y, torch.ones(world, 1, dtype=torch.int64) if odd else sizes)
        case "huge sizes":
            sheaf.all_gather(x, sizes=[*sizes[1:], 2**62] if odd else sizes)
        case "sizes beyond 63 bits":
            sheaf.all_gather(x, sizes=[2**62, 2**62, *sizes[2:]] if odd else sizes)
        case "a tensor of sizes beyond 63 bits":
            sheaf.all_gather(x, sizes=torch.tensor([2**62, 2**62, *sizes[2:]] if odd else sizes))
        case "two rows of sizes":
            sheaf.all_gather(x, sizes=torch.tensor([sizes]) if odd else torch.tensor(sizes))
        case "a number for sizes":
            sheaf.all_gather(x, sizes=torch.tensor(4) if odd else torch.tensor(sizes))
        case "sizes of several beyond 63 bits":
            sheaf.all_gather_coalesced([x, x], sizes=torch.tensor([2**62, 2**62, *sizes[2:]] if odd else sizes))
        case "long text":
            sheaf.all_gather(x, grad="median" * 200 if odd else "sum")
        case "forward mode":
            with torch.autograd.forward_ad.dual_level():
                sheaf.all_gather(torch.autograd.forward_ad.make_dual(x, x) if odd else x)
        case "op":
            sheaf.reduce_scatter(y, sizes, op="own" if odd else "sum")
        case "op of several":
            sheaf.reduce_scatter_coalesced([y] * 2, sizes, op=["sum", "own"] if odd else "sum")
        case "timeout":
            sheaf.all_gather(x, timeout=-1 if odd else None)


REFUSED = {name: why for name, (_, why) in BAD.items()} | {
    "range": "dim must be from -2 to 1, got 7",
    "mode": 'got "median"',
    "type of dim": "dim must be an integer, got 0.5",
    "forward mode": "forward-mode AD is not supported",
    "timeout": "timeout must be a positive number of seconds",
    "long text": 'got "medianmedian',
}
REFUSED_WITH_SIZES = {  # each rank that refuses raises at once, in its own name
    "mode of a sized call": 'got "median"',
    "meta of a sized call": "meta tensors hold no data",
    "op": """op is "sum" or "mean", got 'own'""",
    "op of several": """tensor 1: op is "sum" or "mean", got 'own'""",
    "type of sizes": "sizes must be a tensor, a list or a tuple, got int",
    "shape of sizes": "sizes must be one row of integers",
    "huge sizes": "give this rank",
    "sizes beyond 63 bits": "sizes must add up to what 63 bits hold",
    "a tensor of sizes beyond 63 bits": "sizes",
    "two rows of sizes": "sizes must be one row of integers",
    "a number for sizes": "sizes must be one row of integers",
    "sizes of several beyond 63 bits": "tensor 0: sizes",
}


@pytest.mark.parametrize("everywhere", [False, True], ids=["one rank", "all ranks"])
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_refusal(world, name, everywhere):
    everyone_says(world, REFUSED[name], refused, name, everywhere)


@pytest.mark.parametrize("name", REFUSED_WITH_SIZES)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_refusal_of_sizes(world, name):
    everyone_says(world, REFUSED_WITH_SIZES[name], refused, name, False)


def own_under_no_grad(rank, world):
    """Gradients that stay on the rank need nobody else's."""
    for sizes in (None, [2] * world):
        with torch.set_grad_enabled(rank != 1):
            sheaf.all_gather(torch.ones(2, requires_grad=True), sizes=sizes, grad="own")


def test_own_under_no_grad():
    run(2, own_under_no_grad)


def unknown_group(rank, world):
    sheaf.all_gather(torch.ones(1), group="nobody")


def test_unknown_group():
    for kind, text in run_raises(2, unknown_group):
        assert kind == "ValueError" and 'there is no process group "nobody"' in text, (kind, text)
    run(2, works)


def not_a_member(rank, world):
    group = dist.new_group([0, 1])
    if rank < 2:
        assert sheaf.all_gather(torch.ones(1), group=group).sizes.tolist() == [1, 1]
        return
    with pytest.raises(ValueError, match="not a rank of the group"):
        sheaf.all_gather(torch.ones(1), group=group)
    return


def test_a_process_outside_the_group():
    run(3, not_a_member)


def unsummable(rank, world):
    with pytest.raises(ValueError, match="bool tensors have no sum"):
        sheaf.reduce_scatter(torch.ones(world, dtype=torch.bool), [1] * world)
    with pytest.raises(ValueError, match="integer tensors have no mean"):
        sheaf.reduce_scatter(torch.ones(world, dtype=torch.int64), [1] * world, op="mean")
    with pytest.raises(ValueError, match=f"add up to {world}, but the tensor has {world + 1}"):
        sheaf.reduce_scatter(torch.ones(world + 1), [1] * world)
    for op in ("own", "median"):
        with pytest.raises(ValueError, match=f"""op is "sum" or "mean", got '{op}'"""):
            sheaf.reduce_scatter(torch.ones(world), [1] * world, op=op)
        with pytest.raises(ValueError, match=f"""tensor 0: op is "sum" or "mean", got '{op}'"""):
            sheaf.reduce_scatter_coalesced([torch.ones(world)], [1] * world, op=op)
    works(rank, world)


@pytest.mark.parametrize("world", [1, 2])
def test_sums_that_mean_nothing(world):
    run(world, unsummable)
