# SPDX-License-Identifier: MIT
"""`python -m benchmarks`: measures, shows progress and tables, and writes JSON and documents where asked."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import latency, report
from benchmarks.cases import LATENCY, PARTS, Plan, full_plan, quick_plan
from benchmarks.engine import run
from benchmarks.must_show import promises, size_text
from benchmarks.results import Result
from benchmarks.tables import tables_of


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two sizes, four ranks, few rounds: under a minute")
    parser.add_argument("--only", choices=PARTS, help="one part instead of all")
    parser.add_argument("--candidates", default="", help="comma-separated parts of names; default: every candidate")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all numbers to this file")
    parser.add_argument("--from", type=Path, dest="source", metavar="JSON", help="measure nothing, show an earlier run")
    parser.add_argument("--write-docs", action="store_true", help="rewrite tables and picture of the documents")
    return parser.parse_args(argv)


def measure(plan: Plan, console: Console) -> list[Result]:
    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting ranks", total=len(plan.all))
        for result in run(plan):
            results.append(result)
            case = result.case
            done = f"{case.collective} W={case.world} {size_text(case.nbytes)} {case.layout}"
            progress.update(task, advance=1, description=f"{done:<40}")
    return results


def wanted_parts(only: str | None, console: Console) -> list[str]:
    """The part asked for, or all; without the library of the no-op all but the latency."""
    if only or latency.library().is_file():
        return [only] if only else list(PARTS)
    console.print("latency is left out: `cmake --build build --target sheaf_noop` makes what it needs, as `make bench`")
    return [part for part in PARTS if part != LATENCY]


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    # Wide enough for the widest table where nobody looks at a terminal (a log, a pipe).
    console = Console() if sys.stdout.isatty() else Console(width=260)
    if options.source:
        results, where = report.load(options.source)
    else:
        parts = wanted_parts(options.only, console)
        plan = quick_plan(parts) if options.quick else full_plan(parts)
        wanted = tuple(part.strip() for part in options.candidates.split(",") if part.strip())
        results, where = measure(replace(plan, candidates=wanted), console), report.environment()
    for table in tables_of(results, promises(results)):
        table.print(console)
    if options.json:
        report.save(options.json, results, where)
        console.print(f"wrote {options.json}")
    if options.write_docs:
        report.write_docs(results, where)
        console.print("wrote docs/benchmarks.md")
    return int(any(timing.wrong for each in results for timing in each.timings.values()))


if __name__ == "__main__":
    sys.exit(main())
