# SPDX-License-Identifier: MIT
"""The benchmark harness on tiny sizes: it measures, finds wrong results, writes its files. No speed is judged."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import sheaf
from benchmarks import __main__ as cli
from benchmarks import engine, groups, latency, launch, memory, report, started
from benchmarks.cases import (
    COLLECTIVES,
    KIB,
    MIB,
    PARTS,
    RAGGED,
    SKEWS,
    Case,
    Plan,
    full_plan,
    grid,
    other_dims,
    sizes_of,
)
from benchmarks.meeting import Meeting
from benchmarks.must_show import promises
from benchmarks.results import Result, Timing
from benchmarks.tables import tables_of

ANY_DIM = {"sheaf", "sheaf, c10d", "sheaf, sizes given", "padded", "memcpy of N"}
FORWARD = ANY_DIM | {"padded, even shortcut", "all_to_all_single", "broadcasts"}
BACKWARD = {"sheaf", "sheaf, c10d", "sheaf.reduce_scatter", "padded, all-reduce", "all_to_all_single", "reduces"}
READ = {"sheaf, and read", "padded, and read"}


def tiny_plan(parts: list[str]) -> Plan:
    cases = grid([part for part in parts if part in COLLECTIVES], [2], [8 * KIB], list(SKEWS))
    gathers = [part for part in parts if part == "all_gather"]
    large = tuple(Case(part, 2, 16 * MIB, "even") for part in gathers)
    cases = (*cases, *other_dims(gathers, 2, MIB), *large)
    return Plan(cases, cases[:1], (), (), seconds=0.02, rounds=(1, 2), blocks=(1, 1))


def candidates_of(case: Case) -> set[str]:
    if case.collective == "reduce_scatter":
        return BACKWARD
    return (FORWARD if case.dim == 0 else ANY_DIM) | (READ if case.nbytes == 16 * MIB else set())


@pytest.mark.parametrize("skew", [*SKEWS, RAGGED])
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
    assert sizes_of(RAGGED, 4, 2700) == [600, 700, 800, 600]


def test_full_plan_is_the_whole_grid() -> None:
    plan = full_plan(list(PARTS))
    assert len(plan.cases) == len(set(plan.cases)) == 2 * 5 * (4 + 3) + 2 + 1
    assert all(4 * math.prod(case.shape) == case.nbytes for case in plan.all)
    inner = {case: math.prod(case.shape[case.dim :][1:]) for case in plan.cases if case.dim}
    assert len(inner) == 2 and all(4 * min(case.sizes) * floats >= KIB for case, floats in inner.items())
    assert not full_plan(["latency"]).cases and full_plan(["latency"]).worlds == [2]


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
    assert len(timed) == 2 * 3 + 2 + 1
    for entry in timed:
        assert entry["timings"].keys() == candidates_of(Case(**entry["case"]))
        assert all(each["wrong"] == 0 and each["p99_ms"] >= each["median_ms"] > 0 for each in entry["timings"].values())
    (held,) = [entry for entry in content["results"] if entry["peaks"]]
    assert held["peaks"].keys() >= FORWARD
    assert all(entry["engines"].keys() == {"sheaf", "sheaf, c10d"} for entry in content["results"])

    shown = capsys.readouterr().out
    assert "one-heavy" in shown and "last dim" in shown and "c10d over gloo" in shown
    assert "some-empty" in docs.read_text().split(report.BEGIN)[1].split(report.END)[0]
    assert "Measured with torch" in readme.read_text().split(report.BEGIN)[1].split(report.END)[0]

    # The same tables come from the file, without measuring.
    before = docs.read_text()
    assert cli.main(["--from", str(numbers), "--write-docs"]) == 0
    assert docs.read_text() == before


PEAK = 16 * MIB


def check_peaks(rank: int, tell: launch.Report) -> None:
    """Candidates whose need of memory is known, and Sheaf's, which keeps what a dropped result took."""
    kept: list[torch.Tensor] = []

    def once() -> torch.Tensor:
        if not kept:
            kept.append(torch.ones(PEAK, dtype=torch.uint8))
        return kept[0]

    known = {
        "nothing": lambda: torch.ones(1),
        "N": lambda: torch.ones(PEAK, dtype=torch.uint8),
        "2 N": lambda: torch.ones(PEAK, dtype=torch.uint8).clone(),
        "N at first": once,
    }
    peaks = {name: memory.peak_of(call, engine.nothing).nbytes for name, call in known.items()}
    case = Case("all_gather", 2, PEAK, "even")
    made = groups.make_groups()
    engine.workload_of(case, rank, made, ("sheaf",)).candidates[0].call()  # in other groups: not theirs to reuse
    peaks |= {name: peak.nbytes for name, peak in engine.peaks_of(case, rank, made, ("sheaf", "memcpy")).items()}
    if rank == 0:
        tell(peaks)


def test_peak_memory_counts_what_a_call_takes() -> None:
    (peaks,) = launch.run_ranks(2, check_peaks)
    times = {name: nbytes / PEAK for name, nbytes in peaks.items()}
    assert times.keys() >= {"nothing", "N", "2 N", "N at first", "memcpy of N", "sheaf, c10d", "sheaf, and read"}
    assert times["nothing"] < 0.1 and times["2 N"] == pytest.approx(2.0, abs=0.15), times
    for name in ("N", "N at first", "memcpy of N", "sheaf, c10d"):
        assert times[name] == pytest.approx(1.0, abs=0.15), times
    for name in ("sheaf", "sheaf, sizes given", "sheaf, and read"):  # in shared memory, a page may be mapped twice
        assert 0.9 < times[name] < 2.15, times


def check_wrong_results(rank: int, tell: launch.Report) -> None:
    """Rank 1 alone gets a wrong element from one candidate, and no answer that was right once may pass again."""
    expected = torch.arange(6.0)
    answers = [torch.full((6,), math.nan)]

    def right() -> torch.Tensor:
        answers.append(expected.clone())
        return answers[-1]

    def previous() -> torch.Tensor:
        right()
        return answers[-2]

    candidates = [
        engine.Candidate("right", right),
        engine.Candidate("handed on", lambda: answers[-1]),  # from the candidate before it, in the same round
        engine.Candidate("previous", previous),
        engine.Candidate("spoiled", lambda: expected + (torch.arange(6) == 5) * rank),
        engine.Candidate("short", lambda: expected[:5].clone()),
    ]

    def refresh() -> None:
        expected.add_(1)

    work = engine.Workload(expected, candidates, refresh)
    rounds, timings = engine.measure(work, seconds=0, bounds=(3, 3))
    if rank == 0:
        tell((rounds, {name: timing.wrong for name, timing in timings.items()}))


def test_wrong_results_of_any_rank_are_counted() -> None:
    ((rounds, wrong),) = launch.run_ranks(2, check_wrong_results)
    calls = rounds + 1  # the round that warms up is checked as well
    assert rounds == 3
    assert wrong == {"right": 0, "handed on": 2 * calls, "previous": 2 * calls, "spoiled": calls, "short": 2 * calls}


def check_refreshing(rank: int, tell: launch.Report) -> None:
    """Every element of every expected result changes; a candidate that kept its answer is then wrong everywhere."""
    made = groups.make_groups()
    for name in COLLECTIVES:
        work = engine.workload_of(Case(name, 2, 64 * KIB, "even"), rank, made, ("sheaf",))
        before = work.expected.clone()
        work.refresh()
        tell(bool((before != work.expected).all()))


@pytest.mark.slow
def test_refreshing_changes_every_element() -> None:
    assert list(launch.run_ranks(2, check_refreshing)) == [True] * 4


def check_settings(rank: int, tell: launch.Report) -> None:
    """The setting in the environment reaches the group where Sheaf chooses, and only that one."""
    world = dist.group.WORLD
    os.environ[groups.SETTING] = "nonsense"
    try:
        groups.make_groups()
    except ValueError as error:
        tell(str(error))
    tell(sheaf.gather_sizes(torch.zeros(3), group=world).tolist())
    del os.environ[groups.SETTING]
    made = groups.make_groups()
    tell((made.c10d is world, made.chosen is world, sorted(made.engines()), groups.SETTING in os.environ))


@pytest.mark.slow
def test_each_group_gets_its_setting() -> None:
    told = list(launch.run_ranks(2, check_settings))
    assert sum("SHEAF_ENGINE=nonsense" in each for each in told if isinstance(each, str)) == 2
    assert told.count([3, 3]) == 2
    assert told.count((True, False, ["sheaf", "sheaf, c10d"], False)) == 2
    assert len(told) == 6


def come_late_or_never(rank: int, tell: launch.Report, meeting: Meeting) -> None:
    """Rank r comes r * 10 ms late to every other meeting, and in the opposite order to the rest; rank 1 misses one."""
    for turn in range(6):
        time.sleep(0.01 * (rank if turn % 2 else 2 - rank))
        came = time.monotonic_ns()
        meeting.wait(rank)
        tell((turn, came, time.monotonic_ns()))
    if rank == 1:
        return
    try:
        meeting.wait(rank, seconds=0.2)
    except TimeoutError as error:
        tell(str(error))


@pytest.mark.slow
def test_a_meeting_waits_for_all_and_names_who_is_missing() -> None:
    meeting = Meeting(3)
    told = list(launch.run_ranks(3, come_late_or_never, meeting))
    meeting.close()
    for turn in range(6):
        came, left = zip(*(each[1:] for each in told if each[0] == turn), strict=True)
        assert len(came) == 3 and max(came) <= min(left)
    assert told.count("ranks [1] did not come to meeting 7") == 2


def say_pid_and_sleep(_rank: int, tell: launch.Report) -> None:
    tell(os.getpid())
    time.sleep(60)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
def test_ranks_end_when_their_parent_is_killed() -> None:
    code = "import test_benchmarks as t\nfor pid in t.launch.run_ranks(2, t.say_pid_and_sleep): print(pid, flush=True)"
    path = os.pathsep.join(filter(None, [str(report.ROOT), str(Path(__file__).parent), *sys.path]))
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    assert all(running(pid) for pid in pids)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while any(running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(running(pid) for pid in pids)


def check_started(rank: int, tell: launch.Report) -> None:
    found = started.measure(Case("started", 2, KIB, "even"), rank, groups.make_groups(), 2)
    if rank == 0:
        tell(found)


def test_starting_while_a_peer_is_late() -> None:
    (found,) = launch.run_ranks(2, check_started)
    assert not any(timing.wrong for timing in found.timings.values())
    late_ms = started.LATE_S * 1e3
    for name in (groups.OURS, groups.OURS_C10D):
        assert found.timings[name].p99_ms < late_ms / 2 < found.timings[name + started.AND_WAIT].median_ms
    text = "\n".join(table.markdown() for table in tables_of([found], promises([found])))
    assert "start of a call" in text and "start and wait" in text


def check_latency(rank: int, tell: launch.Report) -> None:
    found = latency.measure(Case("latency", 2, KIB, "even"), rank, groups.make_groups().chosen, (2, 3))
    if rank == 0:
        tell(found)


@pytest.mark.slow
@pytest.mark.skipif(not latency.library().is_file(), reason="the target sheaf_noop is not built")
def test_latency_beside_a_noop() -> None:
    (found,) = launch.run_ranks(2, check_latency)
    assert found.rounds == 2
    assert found.timings.keys() == {"sheaf", "no-op", "sheaf, recorded", "no-op, recorded"}
    assert all(each.wrong == 0 and each.median_ms > 0 for each in found.timings.values())


def fail_on_rank_1(rank: int, _tell: launch.Report) -> None:
    if rank == 1:
        raise RuntimeError("rank 1 has had enough")
    torch.distributed.barrier()


def exit_on_rank_1(rank: int, _tell: launch.Report) -> None:
    if rank == 1:
        raise SystemExit(3)
    torch.distributed.barrier()


@pytest.mark.slow
@pytest.mark.parametrize(("body", "text"), [(fail_on_rank_1, "has had enough"), (exit_on_rank_1, "SystemExit: 3")])
def test_a_failing_rank_is_named(body: Callable[..., None], text: str) -> None:
    with pytest.raises(RuntimeError, match=rf"(?s)rank 1 failed.*{text}"):
        list(launch.run_ranks(2, body))


def sleep_long(_rank: int, _tell: launch.Report) -> None:
    time.sleep(60)


@pytest.mark.slow
def test_silence_ends_at_the_deadline() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0\]"):
        list(launch.run_ranks(1, sleep_long, silence=0.5))


NAMES = {"shortcut": "padded, even shortcut", "reduced": "padded, all-reduce", "c10d": "sheaf, c10d"}
NAMES |= {"read": "sheaf, and read", "noop": "no-op", "recorded": "sheaf, recorded", "noop_recorded": "no-op, recorded"}


def result(collective: str, nbytes: int, skew: str, *, world: int = 4, dim: int = 0, **median_ms: float) -> Result:
    timings = {NAMES.get(name, name): Timing(ms, ms, 0) for name, ms in median_ms.items()}
    return Result(Case(collective, world, nbytes, skew, dim), 1, timings)


def verdicts(*results: Result) -> dict[str, tuple[str | None, bool]]:
    return {each.claim: (each.measured, each.met) for each in promises(list(results))}


def test_promises_judge_the_worst_case() -> None:
    found = verdicts(
        result("all_gather", KIB, "even", c10d=1.0, padded=5.0, shortcut=4.0, sheaf=0.01),
        result("all_gather", KIB, "2", c10d=1.0, padded=1.9, shortcut=4.0),
        result("all_gather", 64 * MIB, "even", c10d=1.0, sheaf=0.1, padded=2.9),
        result("reduce_scatter", 64 * MIB, "even", c10d=2.0, reduced=4.0, sheaf=0.5),
    )
    assert found["sheaf, c10d, W = 4: forward 1 KiB, every skew, both padded ways"] == ("1.90x (1 KiB, 2)", False)
    assert found["sheaf, c10d, W = 4: sum backward 64 MiB, even, all-reduce"] == ("2.00x (64 MiB, even)", True)
    assert found["sheaf, W = 4: sum backward 64 MiB, even, all-reduce"] == ("8.00x (64 MiB, even)", True)
    assert found["sheaf, W = 4: forward 64 MiB, even, always padding"] == ("29.00x (64 MiB, even)", False)
    assert found["sheaf, W = 2: forward 1 KiB, even, always padding"] == (None, False)  # these had four ranks


def test_promises_of_other_dims_growth_and_latency() -> None:
    found = verdicts(
        result("all_gather", 64 * MIB, RAGGED, dim=1, sheaf=1.0, padded=11.0),
        result("all_gather", 64 * MIB, RAGGED, dim=-1, sheaf=1.0, padded=9.0),
        result("all_gather", 64 * MIB, "even", read=1.0),
        result("all_gather", 64 * MIB, "one-heavy", read=2.5),
        result("latency", KIB, "even", world=2, sheaf=2.9, noop=1.0, recorded=4.1, noop_recorded=1.0),
    )
    assert found["sheaf, W = 4: forward 64 MiB, dim 1, always padding"] == ("11.00x (64 MiB, ragged, dim 1)", True)
    last = ("9.00x (64 MiB, ragged, last dim)", False)
    assert found["sheaf, W = 4: forward 64 MiB, last dim, always padding"] == last
    assert found["sheaf, and read, W = 4: forward 64 MiB, one-heavy to even"] == ("2.50x", False)
    assert found["sheaf, W = 2: a call of 1 KiB, to a no-op"] == ("2.90x", True)
    assert found["sheaf, W = 2: a call of 1 KiB, recorded, to a no-op"] == ("4.10x", False)
    assert found["sheaf, W = 4: forward 64 MiB, even, always padding"] == (None, False)


def test_the_picture_shows_four_even_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "benchmarks.md"
    for name, page in {"DOCS": docs, "README": tmp_path / "README.md"}.items():
        page.write_text(f"{report.BEGIN}\n{report.END}\n")
        monkeypatch.setattr(report, name, page)
    image = tmp_path / "images" / "benchmarks.png"
    two = result("all_gather", KIB, "even", world=2, sheaf=0.1)
    report.write_docs([two], report.environment())
    assert not image.exists() and "benchmarks.png" not in docs.read_text()

    four = [result("all_gather", nbytes, "even", sheaf=0.1, padded=1.0) for nbytes in (KIB, MIB)]
    report.write_docs([two, *four], report.environment())
    assert image.read_bytes().startswith(b"\x89PNG")
    assert "](images/benchmarks.png)" in docs.read_text()
