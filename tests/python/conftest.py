# SPDX-License-Identifier: MIT
"""Ends the standing workers of pool.py with the session, and starts them for one engine after the other."""

from collections.abc import Iterator

import pytest

import gpu
import pool


@pytest.fixture(scope="session", autouse=True)
def _workers() -> Iterator[None]:
    yield
    pool.close_all()


@pytest.fixture(scope="session", params=["shm", "c10d"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """A test that uses this runs once on each engine of a CPU group; others run on what a user gets by default."""
    pool.close_all()  # workers take their engine from the environment they start in
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEAF_ENGINE", request.param)
        yield request.param
        pool.close_all()


@pytest.fixture(scope="session")
def on_gpu() -> Iterator[None]:
    """Workers of tests that use this have a backend for CUDA tensors, too."""
    pool.close_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(pool.BACKEND, gpu.BOTH)
        yield
        pool.close_all()


LONG = (
    "test_compat",
    "test_compile",
    "test_compile_order",
    "test_compile_uses",
    "test_cpp_on_gloo",
    "test_deadlines",
    "test_left_out",
)
"""What takes long on each engine: `make test` runs it on c10d, `make slow-test` on the other."""


def pytest_itemcollected(item: pytest.Item) -> None:
    chosen = (
        item.callspec.params.get("engine") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
    )
    if chosen == "shm" and item.path.stem in LONG:
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one engine in a row, after those of none: workers start once."""
    items.sort(key=lambda item: "engine" in getattr(item, "fixturenames", ()))
