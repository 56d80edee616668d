# SPDX-License-Identifier: MIT
"""Results as tables: built once as rows of text, shown by rich or written as Markdown into the documents."""

from dataclasses import dataclass

import rich.table
from rich.console import Console

from benchmarks.cases import COALESCED, LATENCY, STARTED
from benchmarks.groups import OURS, OURS_C10D
from benchmarks.latency import NOOP, RECORDED
from benchmarks.must_show import ALL_REDUCE, PADDED, SHORTCUT, WORLD, Promise, size_text, speedup
from benchmarks.results import Result, Timing
from benchmarks.started import AND_WAIT, LATE_S

TITLES = {
    "all_gather": "Forward: `sheaf.all_gather(x)`, sizes learned",
    "reduce_scatter": "`sum` backward of `sheaf.all_gather`",
    COALESCED: "Forward: eight tensors by `sheaf.all_gather_coalesced`, sizes learned",
}


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]

    def print(self, console: Console) -> None:
        shown = rich.table.Table(title=self.title.replace("`", ""), title_justify="left")
        for index, column in enumerate(self.columns):
            shown.add_column(column, justify="left" if index == 0 else "right")
        for row in self.rows:
            shown.add_row(*row)
        console.print(shown)

    def markdown(self) -> str:
        rule = ["---"] + ["---:"] * (len(self.columns) - 1)
        lines = [f"| {' | '.join(cells)} |" for cells in (self.columns, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines])


def tables_of(results: list[Result], promised: list[Promise]) -> list[Table]:
    """All tables that these results fill, in reading order."""
    timed = [timing_table(name, [each for each in results if each.case.collective == name]) for name in TITLES]
    calls = [latency_table(results), started_table(results)]
    found = [*timed, *calls, memory_table(results), promise_table(promised), engine_table(results)]
    return [table for table in found if table.rows]


def timing_table(collective: str, results: list[Result]) -> Table:
    timed = [each for each in results if each.timings]
    others = list(dict.fromkeys(name for each in timed for name in each.timings if name != OURS))
    columns = ["W", "N", "skew", "rounds", "sheaf ms", "p99", "GB/s", *others, "correct"]
    return Table(TITLES[collective], columns, [timing_row(each, others) for each in timed])


def timing_row(result: Result, others: list[str]) -> list[str]:
    case, sheaf = result.case, result.timings.get(OURS)
    own = [f"{sheaf.median_ms:.3g}", f"{sheaf.p99_ms:.3g}", f"{bandwidth(result, sheaf):.2f}"] if sheaf else ["-"] * 3
    compared = [compared_text(result, name) for name in others]
    return [str(case.world), size_text(case.nbytes), case.layout, str(result.rounds), *own, *compared, verdict(result)]


def verdict(result: Result) -> str:
    wrong = {name: timing.wrong for name, timing in result.timings.items() if timing.wrong}
    return "; ".join(f"{name}: {count} WRONG" for name, count in wrong.items()) or "all"


def compared_text(result: Result, name: str) -> str:
    """The ratio to Sheaf; without Sheaf in the run, the plain time."""
    if name not in result.timings:
        return "-"
    if OURS not in result.timings:
        return f"{result.timings[name].median_ms:.3g} ms"
    return f"{speedup(result, name):.2f}x"


def bandwidth(result: Result, timing: Timing) -> float:
    """GB/s of the bytes that must cross between ranks: (W - 1) / W of N on the average rank, whatever the skew."""
    case = result.case
    return (case.world - 1) / case.world * case.nbytes / (timing.median_ms * 1e6)


def summary_table(results: list[Result]) -> Table:
    """Few lines for the front page: the smallest and the largest of four ranks, even and one-heavy."""
    timed = [each for each in results if each.timings and each.case.world == WORLD and each.case.dim == 0]
    extremes = {min(each.case.nbytes for each in timed), max(each.case.nbytes for each in timed)} if timed else set()
    rows = []
    for each in timed:
        case = each.case
        if case.nbytes not in extremes or case.skew not in ("even", "one-heavy"):
            continue
        forward = case.collective == "all_gather"
        compared = [compared_text(each, name) for name in ((PADDED, SHORTCUT) if forward else (ALL_REDUCE, "-"))]
        what = "`all_gather`" if forward else "its `sum` backward"
        rows.append([f"{what}, {size_text(case.nbytes)}, {case.skew}", *compared])
    columns = ["four ranks", "the padded way takes", "with a shortcut for even sizes"]
    return Table("How many times as long as Sheaf", columns, rows)


def latency_table(results: list[Result]) -> Table:
    """A line for calls without gradients and one for those recorded, in microseconds."""
    rows = []
    for each in (each for each in results if each.case.collective == LATENCY):
        for how in ("", RECORDED):
            sheaf, noop = each.timings[OURS + how], each.timings[NOOP + how]
            times = [f"{sheaf.median_ms * 1e3:.3g}", f"{noop.median_ms * 1e3:.3g}"]
            gradient = how.removeprefix(", ") or "none"
            where = [str(each.case.world), size_text(each.case.nbytes), gradient]
            rows.append([*where, *times, f"{sheaf.median_ms / noop.median_ms:.2f}x", verdict(each)])
    columns = ["W", "N", "gradient", "sheaf µs", "no-op µs", "sheaf takes", "correct"]
    return Table("One call of `torch.ops.sheaf.all_gather`, many in a row", columns, rows)


def started_table(results: list[Result]) -> Table:
    """A line for each engine, in milliseconds."""
    rows = []
    for each in (each for each in results if each.case.collective == STARTED):
        for name in (OURS, OURS_C10D):
            start, done = each.timings[name], each.timings[name + AND_WAIT]
            times = [f"{start.median_ms:.2g}", f"{start.p99_ms:.2g}", f"{done.median_ms:.4g}"]
            rows.append([str(each.case.world), size_text(each.case.nbytes), name, *times, verdict(each)])
    columns = ["W", "N", "engine", "start ms", "slowest", "start and wait ms", "correct"]
    return Table(f"`async_op=True`, a peer comes {LATE_S * 1e3:g} ms late", columns, rows)


def engine_table(results: list[Result]) -> Table:
    found = dict.fromkeys(pair for each in results for pair in each.engines.items())
    return Table("What carried them", ["candidate", "engine"], [list(pair) for pair in found])


def memory_table(results: list[Result]) -> Table:
    held = [each for each in results if each.peaks]
    names = list(dict.fromkeys(name for each in held for name in each.peaks))
    rows = [
        [str(case.world), size_text(case.nbytes), case.skew]
        + [f"{each.peaks[name].nbytes / case.nbytes:.2f} N" for name in names]
        for each in held
        for case in [each.case]
    ]
    return Table("Forward: peak memory above the input, rank with most", ["W", "N", "skew", *names], rows)


def promise_table(promised: list[Promise]) -> Table:
    rows = [
        [each.claim, each.wanted, each.measured, "met" if each.met else "NOT MET"] for each in promised if each.measured
    ]
    return Table("Promised", ["what", "wanted", "measured (worst)", "verdict"], rows)
