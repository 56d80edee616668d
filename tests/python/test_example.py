# SPDX-License-Identifier: MIT
"""C++ programs without Python in their ranks, the example and the C++ cases: from torchrun, and from a shell that sets
the four variables."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parents[2] / "build"
PROGRAM, CASES = BUILD / "examples" / "two_towers", BUILD / "tests" / "from_env"
DEADLINE = 120

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built: run `make cpp-test`")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_under_torchrun() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "4"]
    done = subprocess.run(
        [*launcher, str(PROGRAM)], env=environment(), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 ranks, cpu: shm" in done.stdout


def from_a_shell(program: Path, world: int) -> list[str]:
    """What each rank said; each must end well."""
    where = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [program],
            env=environment(RANK=str(rank), **where),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=DEADLINE)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world, said
    return said


def test_from_a_shell() -> None:
    assert "3 ranks, cpu: shm" in from_a_shell(PROGRAM, 3)[0]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_every_case(world: int) -> None:
    """Rank 0 leaves a started call open, which nobody answers: within a second of its end the process is gone."""
    said = from_a_shell(CASES, world)
    ended = time.time()
    counts = [re.search(r"(\d+) cases, 0 failed, cpu: shm", one) for one in said]
    assert all(found and int(found[1]) > 50 for found in counts), said
    assert "open: 1" in said[0], said
    last = max(float(found) for one in said for found in re.findall(r"ends at ([0-9.]+)", one))
    assert ended - last < 2, said  # another second for who looks


def test_alone() -> None:
    where = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = subprocess.run(
        [PROGRAM], env=environment(**where), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 ranks, cpu: none (this process is alone)" in done.stdout


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ({}, "WORLD_SIZE is not set; torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2 means nothing: expected a number from 0 to 1"),
    ],
)
def test_variables_that_mean_nothing(where: dict[str, str], text: str) -> None:
    clean = {name: value for name, value in environment().items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [PROGRAM], env={**clean, **where}, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode != 0
    assert text in done.stderr
