# SPDX-License-Identifier: MIT
"""What a gather by collectives asks of a backend that, as NCCL does, makes one operation of several: on CPU tensors,
by a backend that remembers what it was asked for."""

import ctypes

import pytest
import torch

import device_cases
import sheaf
import static_cases
from pool import fresh, values
from test_cpp_on_gloo import cases
from truth import same

pytestmark = pytest.mark.slow

ROOM = 1 << 20
BY_COLLECTIVES = {"SHEAF_ENGINE": "collectives"}
KIB = 256
"""Floats."""


def group_operations():
    cases().sheaf_group_operations(b"0")


def asked():
    """Since it was called last."""
    text = ctypes.create_string_buffer(ROOM)
    cases().sheaf_asked_of_groupings(text, ctypes.c_size_t(ROOM))
    return text.value.decode().splitlines()


# Floats a rank has of a dim that is joined, and of all others together; what a gather along dim 0 and along dim 1 asks
# for. Blocks of whole vectors, but for those with an odd number of floats.
WAYS = {
    "even": ([40, 40, 40], 1, ["all_gather"]),
    "even, large": ([400 * KIB] * 3, 1, ["all_gather"]),
    "small": ([40, 8, 4], 1, ["lists"]),
    "one row": ([1, 3, 2], 1, ["lists"]),
    "an empty rank": ([0, 8, 4], 2, ["lists"]),
    "one has it all": ([0, 256 * KIB, 0], 1, ["lists"]),
    "one has it all, larger": ([0, 256 * KIB + 16, 0], 1, ["group of 1"]),
    "large": ([400 * KIB, 40, 900 * KIB], 1, ["group of 3"]),
    "large, an empty rank": ([400 * KIB, 0, 900 * KIB], 1, ["group of 2"]),
    "large, begins anywhere": ([400 * KIB + 1, 401, 900 * KIB], 1, ["group of 3"]),
    "huge, begins anywhere": ([3000 * KIB + 1, 401, 900 * KIB], 1, ["group of 3"]),
}


def ways(rank, world):
    group_operations()
    sheaf.all_gather(torch.ones(1))
    assert "collectives of grouping" in sheaf.engine().cpu
    for name, (rows, other, expected) in WAYS.items():
        for dim in (0, 1):
            shapes = [(n, other) if dim == 0 else (other, n) for n in rows]
            parts = [torch.randn(shape, generator=torch.Generator().manual_seed(r)) for r, shape in enumerate(shapes)]
            x = parts[rank].requires_grad_()
            asked()
            y, sizes = sheaf.all_gather(x, dim)
            assert asked() == expected, (name, dim)
            same(y, torch.cat(parts, dim), name)
            assert sizes.tolist() == rows
            y.backward(torch.full(y.shape, float(rank + 1)))
            assert set(asked()) == {"all_to_all"}, (name, dim)
            same(x.grad, torch.full(x.shape, world * (world + 1) / 2), name)
    together = sheaf.all_gather_coalesced([torch.full((rank + 1,), rank), torch.ones(rank, 2)])
    assert asked() == ["lists"], "packed"
    assert together[0].tensor.tolist() == [0, 1, 1, 2, 2, 2] and together[1].tensor.shape == (3, 2)


def test_which_operations_carry_a_gather():
    values(fresh(3, ways, env=BY_COLLECTIVES, timeout=120))


def two_ranks(rank, world):
    group_operations()
    for floats, expected in ((256 * KIB, "lists"), (257 * KIB, "group of 2")):
        rows = [floats - 16, 16]
        y = sheaf.all_gather(torch.full((rows[rank],), float(rank))).tensor
        same(y, torch.tensor([0.0] * rows[0] + [1.0] * rows[1]), expected)
        assert asked()[-1] == expected


def test_two_ranks():
    values(fresh(2, two_ranks, env=BY_COLLECTIVES, timeout=60))


def like_one_process(rank, world, case):
    group_operations()
    case(rank, world, "cpu")


@pytest.mark.parametrize(
    "case",
    [
        device_cases.gathers,
        device_cases.large_gathers,
        device_cases.dtypes,
        device_cases.coalesced,
        device_cases.started,
        static_cases.static_shapes,
    ],
    ids=lambda case: case.__name__,
)
def test_like_one_process(case):
    """`started`: nothing makes a second backend of this kind, so calls are made where they are started."""
    values(fresh(4, like_one_process, case, env=BY_COLLECTIVES, timeout=120))
