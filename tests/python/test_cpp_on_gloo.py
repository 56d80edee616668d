# SPDX-License-Identifier: MIT
"""The C++ cases of tests/cpp on a Gloo group, carried by its messages and by shared memory.

Ranks are processes that load the library which holds the cases.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from pool import RankError, fresh, run, values

ROOM = 1 << 16  # for what a case says
CASES_S = 240.0  # for all cases in one go


def cases() -> ctypes.CDLL:
    """The cases, beside the libsheaf.so that this process uses."""
    from sheaf import _library

    path: Path = _library.find().path.parent / "tests" / "libcpp_cases.so"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: build the C++ tests first, by `make cpp-test` or by cmake with -DSHEAF_TESTS=ON"
        )
    library = ctypes.CDLL(str(path))
    library.sheaf_case_name.restype = ctypes.c_char_p
    library.sheaf_run_case.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    library.sheaf_digest.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    library.sheaf_digest_of_threads.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
    return library


def names() -> list[str]:
    library = cases()
    found: list[str] = []
    while (name := library.sheaf_case_name(len(found))) is not None:
        found.append(name.decode())
    return found


def names_on_a_rank(rank: int, world: int) -> list[str]:
    return names()


def perform(rank: int, world: int, name: str) -> None:
    text = ctypes.create_string_buffer(ROOM)
    if cases().sheaf_run_case(name.encode(), b"0", text, ROOM) != 0:
        raise AssertionError(f"{name}: {text.value.decode()}")


def perform_most(rank: int, world: int) -> int:
    """All cases but those that wait for deadlines, which settings change nothing of."""
    chosen = [name for name in names() if not name.startswith("deadline/")]
    for name in chosen:
        perform(rank, world, name)
    return len(chosen)


def digests(rank: int, world: int) -> tuple[str, str]:
    """What the sums give here, and on a group of as many threads."""
    texts = []
    library = cases()
    for call in (
        lambda text: library.sheaf_digest(b"0", text, ROOM),
        lambda text: library.sheaf_digest_of_threads(world, text, ROOM),
    ):
        text = ctypes.create_string_buffer(ROOM)
        if call(text) != 0:
            raise AssertionError(text.value.decode())
        texts.append(text.value.decode())
    return texts[0], texts[1]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_case(world: int) -> None:
    failed = []
    listed = run(world, names_on_a_rank)[0]
    assert len(listed) > 50
    for name in listed:
        try:
            run(world, perform, name)
        except RankError as error:
            failed.append(f"=== {name}\n{error}")
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["SHEAF_MESSAGE_BYTES=1000", "SHEAF_CHECK=1", "SHEAF_ENGINE=collectives"])
def test_every_case_with(setting: str) -> None:
    name, value = setting.split("=")
    counts = values(fresh(3, perform_most, env={"SHEAF_ENGINE": "c10d", name: value}, timeout=CASES_S))
    assert counts[0] > 50


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_sums_have_the_same_bits_on_gloo_and_on_threads(world: int) -> None:
    assert len({digest for pair in run(world, digests) for digest in pair}) == 1
