# SPDX-License-Identifier: MIT
"""The runs beside MPI as tables, and one picture: time against size."""

from pathlib import Path

from benchmarks.mpi.programs import MPIS
from benchmarks.mpi.promises import promises
from benchmarks.mpi.results import INTO, MEMCPY, MPI, RETURNED, SCATTER, SHARED, Line, Measured
from benchmarks.must_show import size_text
from benchmarks.plot import draw_lines
from benchmarks.tables import Table, promise_table

TITLES = {
    INTO: ("all_gather", "Gather into the caller's buffer, and one full read of it"),
    RETURNED: ("all_gather", "Gather with a returned result, and one full read of it"),
    SCATTER: ("reduce_scatter", "Reduce-scatter, and one full read of the own rows"),
}


BOUNDS = {
    INTO: {MEMCPY: "memcpy of N"},
    RETURNED: {MEMCPY: "memcpy of N", SHARED: SHARED},
    SCATTER: {MEMCPY: "memcpy of N"},
}


def tables_of(measured: Measured) -> list[Table]:
    timed = [timing_table(measured, ours) for ours in TITLES]
    return [table for table in (*timed, promise_table(promises(measured))) if table.rows]


def timing_table(measured: Measured, ours: str) -> Table:
    collective, title = TITLES[ours]
    lines = [line for line in measured.lines if line.case.collective == collective]
    names = [mpi.name for mpi in MPIS if mpi.name in measured.versions]
    columns = ["W", "N", "skew", "sheaf µs", *(measured.versions[name] for name in names)]
    columns += [*(["faster of both"] if len(names) > 1 else []), *BOUNDS[ours].values(), "correct"]
    return Table(title, columns, [timing_row(line, ours, names) for line in lines])


def timing_row(line: Line, ours: str, names: list[str]) -> list[str]:
    case = line.case
    times = [run[ours].total_us for run in line.runs.values() if ours in run]
    ratios = [ratio_text(line.ratio(ours, name)) for name in names]
    both = [ratio_text(line.worst(ours))] if len(names) > 1 else []
    wrong = sum(run[name].wrong for run in line.runs.values() for name in (ours, MPI) if name in run)
    where = [str(case.world), size_text(case.nbytes), case.skew, time_text(times)]
    bounds = [ratio_text(line.worst(ours, bound)) for bound in BOUNDS[ours]]
    return [*where, *ratios, *both, *bounds, f"{wrong} WRONG" if wrong else "all"]


def time_text(times: list[float]) -> str:
    """The slower of the runs."""
    longest = max(times, default=0.0)
    return f"{longest:.3g}" if longest < 100 else f"{longest:.0f}"


def ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def missing_text(measured: Measured) -> str:
    """What was left out, and why; empty where nothing was."""
    missing = [mpi.name for mpi in MPIS if mpi.name not in measured.versions]
    return f"{' and '.join(missing)} is not installed there and left out." if missing else ""


def draw(measured: Measured, path: Path, world: int) -> bool:
    """Even gathers with one full read: a line for each candidate. Writes nothing where the run has none."""
    points: dict[str, list[tuple[int, float]]] = {}
    for line in sorted(measured.lines, key=lambda each: each.case.nbytes):
        case = line.case
        if (case.collective, case.world, case.skew) == ("all_gather", world, "even"):
            for name, total in totals_of(line, measured).items():
                points.setdefault(name, []).append((case.nbytes, total))
    title = f"Gather and one full read, {world} ranks, even: median of the slowest rank"
    return draw_lines(points, title, "µs", path)


def totals_of(line: Line, measured: Measured) -> dict[str, float]:
    """Every MPI by its name; what is in each run as the first one has it."""
    totals: dict[str, float] = {}
    for mpi, run in line.runs.items():
        for name, timing in run.items():
            totals.setdefault(measured.versions[mpi] if name == MPI else name, timing.total_us)
    return totals
