# SPDX-License-Identifier: MIT
"""CUDA tensors over NCCL, several ranks on one GPU: `make test-gpu`. Skipped where there is no GPU."""

import pytest
import torch

import async_cases
import device_cases
import gpu
import missed_cases
import sheaf
import static_cases
import test_cpp_on_gloo
from pool import run

WORLDS = [2, 3, 4]

pytestmark = gpu.TESTS


def described(rank, world):
    return sheaf.engine().cuda


def test_the_build_carries_cuda_tensors():
    assert set(run(2, described)) == {"collectives of nccl (the group's backend for CUDA tensors)"}


@pytest.mark.parametrize("case", [*device_cases.EVERY, *static_cases.EVERY], ids=lambda case: case.__name__)
@pytest.mark.parametrize("world", WORLDS)
def test_like_one_process(world, case):
    run(world, case, "cuda", timeout=240)


@pytest.mark.parametrize(
    "case", [device_cases.gathers, device_cases.coalesced, async_cases.every_call, static_cases.static_shapes]
)
def test_a_group_of_one(case):
    run(1, case, "cuda")


def test_sums_are_shared_out():
    run(4, device_cases.heavy_gathers, "cuda", timeout=120)


@pytest.mark.parametrize("case", async_cases.EVERY, ids=lambda case: case.__name__)
@pytest.mark.parametrize("world", WORLDS)
def test_started_calls(world, case):
    run(world, case, "cuda", timeout=240)


@pytest.mark.parametrize("case", async_cases.OF_TWO, ids=lambda case: case.__name__)
def test_starts_wait_for_nobody(case):
    run(2, case, "cuda", timeout=120)


def cpp_cases(rank, world, kinds):
    """The C++ cases of these kinds, with tensors on the GPU; their number."""
    library = test_cpp_on_gloo.cases()
    chosen = [name for name in test_cpp_on_gloo.names() if name.split("/")[0] in kinds]
    library.sheaf_cases_on(b"cuda")
    try:
        for name in chosen:
            test_cpp_on_gloo.perform(rank, world, name)
    finally:
        library.sheaf_cases_on(b"cpu")
    return len(chosen)


KINDS = [
    ("all_gather", "reduce_scatter", "layouts"),
    ("gradient", "second_derivative"),
    ("coalesced", "async"),
    ("async_coalesced", "valid"),
]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("kinds", KINDS, ids=" and ".join)
def test_from_cpp(kinds, world):
    assert run(world, cpp_cases, kinds, timeout=240)[0] >= len(kinds)


@pytest.mark.parametrize("world", WORLDS)
def test_disagreements_are_told_to_every_rank(world):
    said = run(world, device_cases.disagreements, "cuda")
    assert all(texts == said[0] for texts in said)
    for text, expected in zip(said[0], ("size of dim 1", "dtype", "on dim", f"rank {world - 1} refuses"), strict=True):
        assert expected in text, said[0]


@pytest.mark.parametrize("world", WORLDS)
def test_disagreements_with_sizes_given_are_told_to_every_rank(world):
    said = run(world, device_cases.sized_disagreements, "cuda")
    assert all(texts == said[0] for texts in said)
    for text, expected in zip(said[0], device_cases.SIZED, strict=True):
        assert expected in text, said[0]


@pytest.mark.parametrize("world", WORLDS)
def test_mistakes_with_static_shapes(world):
    for texts in run(world, static_cases.static_mistakes, "cuda"):
        for text, expected in zip(texts, static_cases.MISTAKES, strict=True):
            assert expected in text, texts


@pytest.mark.parametrize("case", missed_cases.MISSED, ids=lambda case: case.__name__)
def test_ranks_that_missed_a_call_of_several_steps_are_in_step_at_the_next(case):
    run(3, case, "cuda", timeout=240)


def one_device(rank, world):
    """Device types differ by rank: told before anything moves."""
    return device_cases.told(lambda: sheaf.all_gather(torch.ones(2, device="cuda" if rank else "cpu")))


def test_devices_must_agree():
    said = run(2, one_device)
    assert said[0] == said[1] and "device" in said[0], said
