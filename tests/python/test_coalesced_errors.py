# SPDX-License-Identifier: MIT
"""Sums of several tensors, and calls without headers, that go wrong: the same error on every rank, and a group that
works on."""

import pytest
import torch

import sheaf
from agree import everyone_says
from pool import run
from test_coalesced import divided
from truth import DTYPES, FLOATS, INTEGERS, own_rows, patterns, rank_sum, same, values

SMALL, LARGE = 3, 30_000
"""Rows that ride along with headers, and such that come without one on the group's own backend."""


def odd_rank_out(rank, world, name, width, later):
    odd = rank == world - 1
    y, z = torch.ones(2 * world, width), torch.ones(2 * world)
    sizes = [2] * world

    def done(result):
        return result.wait() if later else result

    def scatter(*given, **options):
        return done(sheaf.reduce_scatter_coalesced(*given, **options, async_op=later))

    def gather(tensors):
        return done(sheaf.all_gather_coalesced(tensors, async_op=later))

    match name:
        case "number":
            scatter([y] if odd else [y, z], sizes)
        case "op":
            done(sheaf.reduce_scatter(y, sizes, async_op=later)) if odd else scatter([y], sizes)
        case "gather":
            gather([y, z]) if odd else scatter([y, z], sizes)
        case "dtype":
            scatter([y, z.double() if odd else z], sizes)
        case "dim":
            square = torch.ones(2 * world, 2 * world)
            scatter([y, square], sizes, dim=[0, 1 if odd else 0])
        case "other size":
            scatter([z, y[:, 1:] if odd else y], sizes)
        case "reduction":
            scatter([z, y], sizes, op=["sum", "mean" if odd else "sum"])
        case "sizes":
            scatter([z, y], [sizes, [1, 3, *sizes[2:]] if odd else sizes])
        case "order":
            calls = [lambda: scatter([y, z], sizes), lambda: gather([z, y])]
            first, second = reversed(calls) if odd else calls
            with pytest.raises(ValueError, match="ranks disagree on op: reduce_scatter_coalesced on rank"):
                first()
            second()
        case "order of gathers":
            calls = [lambda: gather([y, z]), lambda: gather([z, y])]
            first, second = reversed(calls) if odd else calls
            with pytest.raises(ValueError, match="ranks disagree on ndim of tensor 0: 2 on rank"):
                first()
            second()
        case "order of sums":
            calls = [lambda: scatter([y, z], sizes), lambda: scatter([z, y], sizes)]
            first, second = reversed(calls) if odd else calls
            with pytest.raises(ValueError, match="ranks disagree on ndim of tensor 0: 2 on rank"):
                first()
            second()


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
}
WITH_HEADERS = ["gather", "order", "order of gathers"]
"""Where one side of the disagreement says what it does, whatever it brings."""


@pytest.mark.parametrize("later", [False, True], ids=["plain", "started"])
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_disagreement(name, later, engine):
    everyone_says(2, DISAGREEMENTS[name], odd_rank_out, name, SMALL, later)
    if engine == "shm" or name in WITH_HEADERS:
        everyone_says(3, DISAGREEMENTS[name], odd_rank_out, name, LARGE, later)


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
