# SPDX-License-Identifier: MIT
"""CPU tensors carried as CUDA tensors are, by the collectives of a group's backend: SHEAF_ENGINE=collectives."""

from collections.abc import Iterator

import pytest

import device_cases
import pool
import sheaf
from pool import run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _by_collectives() -> Iterator[None]:
    pool.close_all()  # workers take their engine from the environment they start in
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEAF_ENGINE", "collectives")
        yield
        pool.close_all()


@pytest.mark.parametrize("case", device_cases.EVERY, ids=lambda case: case.__name__)
def test_like_one_process(case):
    run(3, case, "cpu")


def test_two_ranks():
    run(2, device_cases.gathers, "cpu")


def test_sums_are_shared_out():
    run(4, device_cases.heavy_gathers, "cpu")


def test_disagreements_are_told_to_every_rank():
    said = run(3, device_cases.disagreements, "cpu")
    assert said[0] == said[1] == said[2]
    for text, expected in zip(said[0], ("size of dim 1", "dtype", "on dim", "rank 2 refuses"), strict=True):
        assert expected in text, said[0]


def described(rank, world):
    return sheaf.engine().cpu


def test_engine_says_so():
    assert set(run(3, described)) == {"collectives of gloo (SHEAF_ENGINE=collectives)"}


def test_mistakes_with_static_shapes():
    said = run(3, device_cases.static_mistakes, "cpu")
    for texts in said:
        for text, expected in zip(texts, device_cases.MISTAKES, strict=True):
            assert expected in text, texts
