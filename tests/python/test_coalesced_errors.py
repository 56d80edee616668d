# SPDX-License-Identifier: MIT
"""Sums of several tensors, and calls without headers, that go wrong: the same error on every rank, and a group that
works on."""

import itertools

import pytest
import torch
import torch.distributed as dist

import sheaf
from agree import everyone_gives_up, everyone_says
from pool import run
from test_coalesced import divided
from truth import DTYPES, FLOATS, INTEGERS, own_rows, patterns, rank_sum, same, values

SMALL, LARGE = 3, 30_000
"""Rows that ride along with headers, and such that come without one on the group's own backend."""


def odd_rank_out(rank, world, name, width, later, timeout=None, group=None):
    """With a timeout, no header shows what is wrong."""
    odd = rank == world - 1
    y, z, square = torch.ones(2 * world, width), torch.ones(2 * world), torch.ones(2 * world, 2 * world)
    sizes = [2] * world
    options = {"async_op": later, "timeout": timeout, "group": group}

    def done(result):
        return result.wait() if later else result

    def scatter(*given, **more):
        return done(sheaf.reduce_scatter_coalesced(*given, **more, **options))

    def gather(tensors, known=None, **more):
        return done(sheaf.all_gather_coalesced(tensors, sizes=known, **more, **options))

    def in_turn(said, *calls):
        """The other way round on the odd rank; what is said of the second call is left to the caller."""
        first, second = reversed(calls) if odd else calls
        with pytest.raises(dist.DistBackendError if timeout else ValueError, match="" if timeout else said):
            first()
        second()

    match name:
        case "number":
            scatter([y] if odd else [y, z], sizes)
        case "op":
            done(sheaf.reduce_scatter(y, sizes, **options)) if odd else scatter([y], sizes)
        case "gather":
            gather([y, z]) if odd else scatter([y, z], sizes)
        case "dtype":
            scatter([y, z.double() if odd else z], sizes)
        case "dim":
            scatter([y, square], sizes, dim=[0, 1 if odd else 0])
        case "other size":
            scatter([z, y[:, 1:] if odd else y], sizes)
        case "reduction":
            scatter([z, y], sizes, op=["sum", "mean" if odd else "sum"])
        case "sizes":
            scatter([z, y], [sizes, [1, 3, *sizes[2:]] if odd else sizes])
        case "order":
            said = "ranks disagree on op: reduce_scatter_coalesced on rank"
            in_turn(said, lambda: scatter([y, z], sizes), lambda: gather([z, y]))
        case "order of gathers":
            said = "ranks disagree on ndim of tensor 0: 2 on rank"
            in_turn(said, lambda: gather([y, z]), lambda: gather([z, y]))
        case "order of sums":
            said = "ranks disagree on ndim of tensor 0: 2 on rank"
            in_turn(said, lambda: scatter([y, z], sizes), lambda: scatter([z, y], sizes))
        case "sized gather":
            gather([y[:2]], sizes) if odd else scatter([y], sizes)
        case "op of a sized gather":
            done(sheaf.all_gather(y[:2], sizes=sizes, **options)) if odd else gather([y[:2]], sizes)
        case "dtype of a sized gather":
            gather([y[:2], z[:2].double() if odd else z[:2]], sizes)
        case "dim of a sized gather":
            gather([y[:2], square[:2, :2]], sizes, dim=[0, 1 if odd else 0])
        case "other size of a sized gather":
            gather([z[:2], y[:2, 1:] if odd else y[:2]], sizes)
        case "mode of a sized gather":
            gather([z[:2], y[:2]], sizes, grad=["sum", "mean" if odd else "sum"])
        case "sizes of a sized gather":
            gather([z[:2], y[:2]], [sizes, [3, *sizes[1:]] if odd else sizes])
        case "order of sized gathers":
            said = "ranks disagree on ndim of tensor 0: 2 on rank"
            in_turn(said, lambda: gather([y[:2], z[:2]], sizes), lambda: gather([z[:2], y[:2]], sizes))


DISAGREEMENTS = {
    "number": "ranks disagree on the number of tensors: 2 on rank",
    "op": "ranks disagree on op: reduce_scatter_coalesced on rank",
    "gather": "ranks disagree on op: reduce_scatter_coalesced on rank",
    "dtype": "ranks disagree on dtype of tensor 1: float32 on rank",
    "dim": "ranks disagree on dim of tensor 1: 0 on rank",
    "other size": "ranks disagree on the size of dim 1 of tensor 1: ",
    "reduction": "ranks disagree on reduction of tensor 1: sum on rank",
    "sizes": "ranks disagree on sizes of tensor 1: [2, 2",
    "order": "ranks disagree on op: all_gather_coalesced on rank",
    "order of gathers": "ranks disagree on ndim of tensor 0: 1 on rank",
    "order of sums": "ranks disagree on ndim of tensor 0: 1 on rank",
    "sized gather": "ranks disagree on op: reduce_scatter_coalesced on rank",
    "op of a sized gather": "ranks disagree on op: all_gather_coalesced on rank",
    "dtype of a sized gather": "ranks disagree on dtype of tensor 1: float32 on rank",
    "dim of a sized gather": "ranks disagree on dim of tensor 1: 0 on rank",
    "other size of a sized gather": "ranks disagree on the size of dim 1 of tensor 1: ",
    "mode of a sized gather": "ranks disagree on gradient mode of tensor 1: sum on rank",
    "sizes of a sized gather": "ranks disagree on sizes of tensor 1: [2, 2",
    "order of sized gathers": "ranks disagree on ndim of tensor 0: 1 on rank",
}
WITH_HEADERS = ["gather", "order", "order of gathers"]
"""Where one side of the disagreement says what it does, whatever it brings."""


@pytest.mark.parametrize("later", [False, True], ids=["plain", "started"])
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_disagreement(name, later, engine):
    everyone_says(2, DISAGREEMENTS[name], odd_rank_out, name, SMALL, later)
    if engine == "shm" or name in WITH_HEADERS:
        everyone_says(3, DISAGREEMENTS[name], odd_rank_out, name, LARGE, later)
    else:
        everyone_gives_up(3, odd_rank_out, name, LARGE, later, 0.3)


def checked(rank, world):
    """A group with SHEAF_CHECK=1: what it says of every disagreement on large tensors, after which it works."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEAF_CHECK", "1")
        group = dist.new_group()
        sheaf.gather_sizes(torch.ones(1), group=group)  # settings are read in a group's first call
    said = {}
    for name, later in itertools.product(DISAGREEMENTS, (False, True)):
        with pytest.raises(ValueError, match="_coalesced #") as caught:
            odd_rank_out(rank, world, name, LARGE, later, group=group)
        said[name, later] = str(caught.value)
        assert sheaf.all_gather(torch.ones(rank + 1), group=group).sizes.tolist() == [1, 2, 3], "the group works on"
    dist.destroy_process_group(group)
    return said


@pytest.mark.parametrize("engine", ["c10d"], indirect=True)  # shm always has headers
@pytest.mark.usefixtures("engine")
def test_headers_of_sized_calls():
    said = run(3, checked)
    assert said == [said[0]] * 3, said
    for (name, later), text in said[0].items():
        assert DISAGREEMENTS[name] in text, (name, later, text)


def refused(rank, world, name, width, everywhere, later):
    """The last rank, or every one, gives what it can see is wrong; others wait for data that never comes."""
    odd = everywhere or rank == world - 1
    y, z = torch.ones(2 * world, width), torch.ones(2 * world)
    sizes = [2] * world
    sheaf.gather_sizes(z)  # in step from here

    def done(handle):
        return handle.wait() if later else handle

    def scatter(tensors, sizes=sizes, **options):
        return done(sheaf.reduce_scatter_coalesced(tensors, sizes, async_op=later, **options))

    def gather(tensors, sizes, **options):
        return done(sheaf.all_gather_coalesced(tensors, sizes=sizes, async_op=later, **options))

    match name:
        case "none":
            scatter([] if odd else [y])
        case "no list":
            scatter(y if odd else [y, y])
        case "many":
            scatter([y] * (65 if odd else 3))
        case "bool":
            scatter([y, z.bool() if odd else z])
        case "mean":
            scatter([y, z.long() if odd else z], op="mean")
        case "own":
            scatter([y, z], op=["sum", "own" if odd else "sum"])
        case "total":
            scatter([y, z[1:] if odd else z])
        case "no sizes":
            scatter([y, z], [sizes, None if odd else sizes])
        case "range":
            scatter([y, z], dim=[0, 1 if odd else 0])
        case "0-d":
            scatter([y, torch.tensor(1.0) if odd else z])
        case "dim of a gather":
            gather([y[:2], z[:2]], sizes, dim=[0, 1 if odd else 0])
        case "mode of a gather":
            gather([y[:2], z[:2]], sizes, grad=["sum", "max" if odd else "sum"])


REFUSED = {
    "none": "no tensors were given",
    "no list": "a list or a tuple of tensors is needed, got Tensor",
    "many": "one call takes at most 64 tensors, got 65",
    "bool": "tensor 1: bool tensors have no sum",
    "mean": "tensor 1: integer tensors have no mean",
    "own": 'tensor 1: op is "sum" or "mean", got \'own\'',
    "total": "tensor 1: sizes [2, 2, 2] add up to 6, but the tensor has 5",
    "no sizes": "sizes must be given for every tensor",
    "range": "tensor 1: dim must be from -1 to 0, got 1",
    "0-d": "tensor 1: a 0-d tensor has no dim",
    "dim of a gather": "tensor 1: dim must be from -1 to 0, got 1",
    "mode of a gather": 'tensor 1: a gradient is "sum", "mean" or "own", got "max"',
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name, engine):
    if engine == "shm":  # elsewhere a rank that refuses a call with sizes given listens to nobody
        everyone_says(3, REFUSED[name], refused, name, SMALL, True, False)
    for width in (SMALL, LARGE):
        everyone_says(3, REFUSED[name], refused, name, width, False, False)


@pytest.mark.parametrize("name", ["bool", "no list", "dim of a gather"])
@pytest.mark.usefixtures("engine")
def test_refusal_of_a_started_call(name):
    for width in (SMALL, LARGE):
        everyone_says(3, REFUSED[name], refused, name, width, False, True)


def every_dtype(rank, world, later):
    kinds = [kind for kind in DTYPES if kind != torch.bool]
    for sizes in (patterns(world)[0], patterns(world)[2]):
        wholes = [[values(100 * i + r, (sum(sizes), 3), kind) for r in range(world)] for i, kind in enumerate(kinds)]
        for op in ("sum", "mean"):
            which = [i for i, kind in enumerate(kinds) if op == "sum" or kind not in INTEGERS]
            inputs = [wholes[i][rank].clone() for i in which]
            recorded = [x.requires_grad_() for x in inputs if x.dtype in FLOATS or x.is_complex()]
            mine = sheaf.reduce_scatter_coalesced(inputs, sizes, op=op, async_op=later)
            mine = mine.wait() if later else mine
            for i, got in zip(which, mine, strict=True):
                if kinds[i] in INTEGERS:
                    total = sum(part.to(torch.int64) for part in wholes[i]).to(kinds[i])  # wraps as the type does
                else:
                    total = rank_sum(wholes[i], mean=op == "mean")
                same(got, own_rows(total, sizes, rank, 0), f"{kinds[i]} {op}")
            ends = [got for got in mine if got.requires_grad]
            assert len(ends) == len(recorded)
            up = [[values(50 + r, (n, 3), end.dtype) for r, n in enumerate(sizes)] for end in ends]
            torch.autograd.backward(ends, [parts[rank] for parts in up])
            for y, parts in zip(recorded, up, strict=True):
                expected = [divided(part, world) if op == "mean" else part for part in parts]
                same(y.grad, torch.cat(expected), f"gradient, {y.dtype} {op}")


@pytest.mark.parametrize("later", [False, True], ids=["plain", "started"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.usefixtures("engine")
def test_sums_of_every_dtype(world, later):
    run(world, every_dtype, later)
