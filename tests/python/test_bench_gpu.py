# SPDX-License-Identifier: MIT
"""The GPU's benchmarks: their tables, their promises and their section of the document, on the CPU and on made-up
figures. No speed is judged."""

import os
import shutil
import time
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as cli
from benchmarks.gpu import must_show, ranks, report
from benchmarks.gpu.report import Measured
from benchmarks.page import fill

HEAD = "| N | dim | pattern | padded way, ms | sheaf, learned | sheaf, given | all-reduce, ms | sheaf's backward |"
RULE = "| --- " * 8 + "|"


def whole(*rows: str) -> list[str]:
    return [HEAD, RULE, *rows]


def test_the_worst_row_is_what_counts() -> None:
    lines = whole(
        "| 1 KiB | 0 | even | 1.00 | 2.00 | 0.97 | 1.00 | 1.30 |",
        "| 1 KiB | 0 | heavy | 1.00 | 3.50 | 2.90 | 1.00 | 0.10 |",
        "| 64 KiB | 0 | heavy | 1.00 | 3.50 | 3.40 | 1.00 | 0.10 |",
    )
    gather, heavy, back = must_show.whole_gathers(lines)
    assert gather.met and gather.measured == "0.97x (1 KiB, 0, even, 1.00)"
    assert not heavy.met and heavy.measured == "2.9x (1 KiB, 0, heavy, 1.00); 1 of 2 fall short"
    assert back.met and back.measured is not None and back.measured.startswith("1.3x"), "of even rows alone"
    gather, _, back = must_show.whole_gathers([*lines[:2], lines[-1]])
    assert gather.met and back.measured is None and not back.met, "no row is no promise kept"


def test_placing_is_judged_by_alignment() -> None:
    kernels = [
        "| case | row | all multiples of 16 B | N | copy, GB/s | place | torch.cat | pack | W copies |",
        RULE,
        "| a | 1024 B | yes | 64 MiB | 4000 | 93 % | 80 % | 89 % | 40 % |",
        "| b | 1026 B | no | 64 MiB | 4000 | 70 % | 71 % | 80 % | 40 % |",
    ]
    aligned, others, cat = must_show.placing(kernels)
    assert not aligned.met and aligned.measured is not None and aligned.measured.startswith("89 %")
    assert others.met and others.measured is not None and others.measured.startswith("70 %")
    assert not cat.met, "behind torch.cat"


def measured(**tables: list[str]) -> Measured:
    return Measured("a GPU", "2.13.0", **tables)  # type: ignore[arg-type]


def test_tables_survive_and_grow(tmp_path: Path) -> None:
    numbers = tmp_path / "deep" / "gpu.json"
    here = report.begin(None, "cpu", quick=True)
    here.whole = whole("| 1 KiB | 0 | even | 1.00 | 2.00 | 0.97 | 1.00 | 1.30 |")
    report.save(numbers, here)
    assert report.load(numbers) == here == report.begin(numbers, "cpu", quick=True)
    assert not report.begin(numbers, "cpu", quick=False).whole, "fewer and smaller"
    report.save(numbers, measured(whole=here.whole))
    assert not report.begin(numbers, "cpu", quick=True).whole, "of another device"
    assert report.load(numbers).missing == ["kernels", "local", "started", "choices"]


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    numbers = tmp_path / "gpu.json"
    for text in ("not JSON", "[]", '{"device": "a GPU", "torch": "2.13.0", "more": []}'):
        numbers.write_text(text)
        with pytest.raises(SystemExit, match="no tables of this benchmark"):
            report.load(numbers)


def test_without_the_service_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = measured()
    with pytest.raises(SystemExit, match=r"multi-process service.*--only kernels local started"):
        cli.measure(found, "cuda", None, ["local", "whole"], lambda: None)
    assert not found.local


def service(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """A program that stands in for it."""
    control = folder / "nvidia-cuda-mps-control"
    control.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_service_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on in the background, where it holds what was open, until it is told to quit."""
    pid, told = tmp_path / "pid", tmp_path / "told"
    service(
        tmp_path,
        monkeypatch,
        f'if [ "$1" = -d ]; then sleep 25 & echo $! > {pid}',
        f"else cat > {told}; kill $(cat {pid}); fi",
    )
    before, since = dict(os.environ), time.monotonic()
    with ranks.at_once("cuda"):
        assert time.monotonic() - since < 15 and Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
        assert not told.exists()
    assert told.read_text() == "quit\n" and dict(os.environ) == before


def test_a_service_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service(tmp_path, monkeypatch, "echo no GPU >&2", "exit 3")
    before = dict(os.environ)
    with pytest.raises(SystemExit, match=r"does not start \(exit 3\): no GPU"), ranks.at_once("cuda"):
        pytest.fail("nobody is to come here")
    assert dict(os.environ) == before


def test_a_section_has_what_was_measured() -> None:
    text = report.section(measured(whole=whole("| 1 KiB | 0 | even | 1.00 | 2.00 | 0.97 | 1.00 | 1.30 |")))
    assert text.startswith("## On a GPU\n\nMeasured on a GPU, torch 2.13.0;")
    assert "### What it must show" in text and "### Whole gathers" in text and "0.97" in text
    assert "### Local work" not in text and "Ways not taken" not in text


def page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    docs = folder / "benchmarks.md"
    shutil.copy(report.PAGE, docs)
    monkeypatch.setattr(report, "PAGE", docs)
    return docs


def test_the_document_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = page(tmp_path, monkeypatch)
    before = docs.read_text()
    fill(docs, report.BEGIN, report.END, "## On a GPU\n\nanother run\n")
    after = docs.read_text()
    assert after.split(report.BEGIN)[0] == before.split(report.BEGIN)[0]
    assert after.split(report.END)[1] == before.split(report.END)[1]
    assert after.split(report.BEGIN)[1].split(report.END)[0] == "\n\n## On a GPU\n\nanother run\n\n"


@pytest.mark.slow
def test_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks on the CPU: all parts but the kernels, and of `choices` what Gloo can do."""
    docs, numbers = page(tmp_path, monkeypatch), tmp_path / "gpu.json"
    before = docs.read_text()
    quick = ["--device", "cpu", "--quick", "--json", str(numbers)]
    assert cli.main([*quick, "--only", "whole", "started"]) == 0
    assert cli.main([*quick, "--only", "local", "choices", "--write-docs"]) == 1
    said = capsys.readouterr()
    assert "left as it is; not measured: kernels" in said.err and docs.read_text() == before
    for part in ("### Local work", "### Whole gathers", "### Calls that are started", "eight calls"):
        assert part in said.out
    found = report.load(numbers)
    assert len(found.whole) == 2 + 2 * 2 * 3 and len(found.started) == 2 + 2
    assert cli.main(["--from", str(numbers)]) == 0
    assert capsys.readouterr().out.splitlines() == said.out.splitlines()[-len(report.section(found).splitlines()) - 1 :]
