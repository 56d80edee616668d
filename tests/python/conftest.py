# SPDX-License-Identifier: MIT
"""Ends the standing workers of pool.py with the session."""

from collections.abc import Iterator

import pytest

import pool


@pytest.fixture(scope="session", autouse=True)
def _workers() -> Iterator[None]:
    yield
    pool.close_all()
