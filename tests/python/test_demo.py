# SPDX-License-Identifier: MIT
"""The contrastive example, shortened: its gradient check holds, can fail, and decides the exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sheaf
from benchmarks.launch import Report, run_ranks
from examples import contrastive
from examples.contrastive_report import TOLERANCE, Check, Gather, Show

ROOT = Path(__file__).resolve().parents[2]


def test_demo_runs_and_writes_its_picture(tmp_path: Path) -> None:
    command = [sys.executable, "examples/contrastive.py", "--steps", "11", "--mib", "1", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rows per rank  0 49" in done.stdout  # a rank without pairs took part
    assert "equal to rounding" in done.stdout
    picture = tmp_path / "contrastive.png"
    assert f"picture: {picture}" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def difference_in_mode(rank: int, mode: str) -> float:
    """Step 0 of the example, where rank 0 has no pairs, with any gradient mode."""
    torch.manual_seed(0)
    model = contrastive.TwoTowers()
    blocks, sizes = contrastive.whole_batch(0)
    assert sizes[0] == 0
    own = model(blocks[rank])
    everyone, learned = sheaf.all_gather(own, grad=mode)
    contrastive.loss_of(own, everyone, sheaf.offset(learned), model.log_scale.exp()).backward()
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
    return contrastive.largest_difference(model, blocks)


def differences(rank: int, report: Report) -> None:
    found = {mode: difference_in_mode(rank, mode) for mode in ("sum", "mean", "own")}
    if rank == 0:
        report(found)


def test_only_summed_gradients_equal_one_process() -> None:
    (found,) = run_ranks(contrastive.WORLD, differences)
    assert found["sum"] <= TOLERANCE
    assert found["mean"] > 100 * TOLERANCE
    assert found["own"] > 100 * TOLERANCE


@pytest.mark.parametrize(("difference", "wrong", "code"), [(1e-7, 0, 0), (1e-2, 0, 1), (1e-7, 1, 1)])
def test_exit_code_is_the_verdict(tmp_path: Path, difference: float, wrong: int, code: int) -> None:
    with Show(steps=2) as show:
        show.take(Check(0, [1, 0], 1.0, difference))
        show.take(Check(1, [1, 0], 1.0, None))
        show.take(Gather(1.0, 1.0, 2.0, wrong))
    assert show.finish(tmp_path / "contrastive.png") == code
