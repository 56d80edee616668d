# SPDX-License-Identifier: MIT
"""The benchmark harness on tiny sizes: it measures, finds wrong results, writes its files. No speed is judged."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as cli
from benchmarks import engine, launch, report
from benchmarks.cases import KIB, SKEWS, Case, Plan, full_plan, grid, sizes_of
from benchmarks.must_show import promises

FORWARD = {"sheaf", "sheaf, sizes given", "padded", "padded, even shortcut", "all_to_all_single", "broadcasts"}
BACKWARD = {"sheaf", "sheaf.reduce_scatter", "padded, all-reduce", "all_to_all_single", "reduces"}


def tiny_plan(collectives: list[str]) -> Plan:
    cases = grid(collectives, [2], [KIB, 8 * KIB], list(SKEWS))
    return Plan(cases, cases[:1], seconds=0.02, rounds=(1, 2))


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_sizes_hold_all_rows(skew: str, world: int) -> None:
    sizes = sizes_of(skew, world, 64)
    assert len(sizes) == world
    assert sum(sizes) == 64
    assert min(sizes) >= 0


def test_sizes_have_the_skew_of_their_name() -> None:
    assert sizes_of("even", 4, 64) == [16, 16, 16, 16]
    assert max(sizes_of("2", 4, 64)) == 2 * 16
    assert sizes_of("one-heavy", 4, 64) == [1, 1, 1, 61]
    assert sizes_of("some-empty", 4, 64) == [32, 0, 32, 0]


def test_full_plan_is_the_whole_grid() -> None:
    cases = full_plan(["all_gather", "reduce_scatter"]).cases
    assert len(cases) == len(set(cases)) == 2 * 5 * (4 + 3)


def test_harness_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, readme, numbers = tmp_path / "benchmarks.md", tmp_path / "README.md", tmp_path / "deep" / "bench.json"
    shutil.copy(report.DOCS, docs)
    shutil.copy(report.README, readme)
    monkeypatch.setattr(report, "DOCS", docs)
    monkeypatch.setattr(report, "README", readme)
    monkeypatch.setattr(cli, "quick_plan", tiny_plan)

    assert cli.main(["--quick", "--json", str(numbers), "--write-docs"]) == 0

    content = json.loads(numbers.read_text())
    timed = [entry for entry in content["results"] if entry["timings"]]
    assert len(timed) == 2 * 2 * 3
    for entry in timed:
        wanted = FORWARD | {"memcpy of N"} if entry["case"]["collective"] == "all_gather" else BACKWARD
        assert entry["timings"].keys() == wanted
        assert all(each["wrong"] == 0 and each["p99_ms"] >= each["median_ms"] > 0 for each in entry["timings"].values())
    (held,) = [entry for entry in content["results"] if entry["peaks"]]
    assert held["peaks"].keys() >= FORWARD

    shown = capsys.readouterr().out
    assert "one-heavy" in shown
    assert "some-empty" in docs.read_text().split(report.BEGIN)[1].split(report.END)[0]
    assert "Measured with torch" in readme.read_text().split(report.BEGIN)[1].split(report.END)[0]

    # The same tables come from the file, without measuring.
    before = docs.read_text()
    assert cli.main(["--from", str(numbers), "--write-docs"]) == 0
    assert docs.read_text() == before


def check_wrong_results(rank: int, tell: launch.Report) -> None:
    """Rank 1 alone gets a wrong element from one candidate, and recycled memory must not hide an idle one."""
    expected = torch.arange(6.0)
    spoiled = expected + (torch.arange(6) == 5) * rank
    recycled = expected.clone()
    candidates = [
        engine.Candidate("right", expected.clone),
        engine.Candidate("spoiled", spoiled.clone),
        engine.Candidate("short", lambda: expected[:5].clone()),
        engine.Candidate("idle", lambda: recycled),
    ]
    rounds, timings = engine.measure(engine.Workload(expected, candidates), seconds=0, bounds=(3, 3))
    if rank == 0:
        tell((rounds, {name: timing.wrong for name, timing in timings.items()}))


def test_wrong_results_of_any_rank_are_counted() -> None:
    ((rounds, wrong),) = launch.run_ranks(2, check_wrong_results)
    calls = rounds + 1  # the round that warms up is checked as well
    assert rounds == 3
    assert wrong == {"right": 0, "spoiled": calls, "short": 2 * calls, "idle": 2 * (calls - 1)}


def fail_on_rank_1(rank: int, _tell: launch.Report) -> None:
    if rank == 1:
        raise RuntimeError("rank 1 has had enough")
    torch.distributed.barrier()


def exit_on_rank_1(rank: int, _tell: launch.Report) -> None:
    if rank == 1:
        raise SystemExit(3)
    torch.distributed.barrier()


@pytest.mark.parametrize(("body", "text"), [(fail_on_rank_1, "has had enough"), (exit_on_rank_1, "SystemExit: 3")])
def test_a_failing_rank_is_named(body: Callable[..., None], text: str) -> None:
    with pytest.raises(RuntimeError, match=rf"(?s)rank 1 failed.*{text}"):
        list(launch.run_ranks(2, body))


def sleep_long(_rank: int, _tell: launch.Report) -> None:
    time.sleep(60)


def test_silence_ends_at_the_deadline() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0\]"):
        list(launch.run_ranks(1, sleep_long, silence=0.5))


def result(collective: str, nbytes: int, skew: str, **median_ms: float) -> engine.Result:
    names = {"padded": "padded", "shortcut": "padded, even shortcut", "reduced": "padded, all-reduce"}
    timings = {names.get(name, name): engine.Timing(ms, ms, 0) for name, ms in median_ms.items()}
    return engine.Result(Case(collective, 4, nbytes, skew), 1, timings)


def test_promises_judge_the_worst_case() -> None:
    found = promises(
        [
            result("all_gather", KIB, "even", sheaf=1.0, padded=5.0, shortcut=4.0),
            result("all_gather", KIB, "2", sheaf=1.0, padded=1.9, shortcut=4.0),
            result("reduce_scatter", 64 << 20, "even", sheaf=2.0, reduced=4.0),
        ]
    )
    verdicts = {each.claim: (each.measured, each.met) for each in found}
    assert verdicts["forward 1 KiB, every skew, both padded ways"] == ("1.90x (1 KiB, 2)", False)
    assert verdicts["sum backward 64 MiB, even, all-reduce"] == ("2.00x (64 MiB, even)", True)
    assert verdicts["forward 64 MiB, even, always padding"] == (None, False)
