# SPDX-License-Identifier: MIT
"""`python -m benchmarks`: measures, shows progress and tables, and writes JSON and documents where asked."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import report
from benchmarks.cases import COLLECTIVES, Plan, full_plan, quick_plan
from benchmarks.engine import Result, run
from benchmarks.must_show import promises, size_text
from benchmarks.tables import tables_of


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two sizes, four ranks, few rounds: under 40 seconds")
    parser.add_argument("--only", choices=COLLECTIVES, help="one collective instead of both")
    parser.add_argument("--candidates", default="", help="comma-separated parts of names; default: every candidate")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all numbers to this file")
    parser.add_argument("--from", type=Path, dest="source", metavar="JSON", help="measure nothing, show an earlier run")
    parser.add_argument("--write-docs", action="store_true", help="rewrite the tables of docs/benchmarks.md")
    return parser.parse_args(argv)


def measure(plan: Plan, console: Console) -> list[Result]:
    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting ranks", total=len(plan.cases) + len(plan.memory))
        for result in run(plan):
            results.append(result)
            case = result.case
            done = f"{case.collective} W={case.world} {size_text(case.nbytes)} {case.skew}"
            progress.update(task, advance=1, description=f"{done:<40}")
    return results


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    # Wide enough for the widest table where nobody looks at a terminal (a log, a pipe).
    console = Console() if sys.stdout.isatty() else Console(width=200)
    if options.source:
        results, where = report.load(options.source)
    else:
        collectives = [options.only] if options.only else list(COLLECTIVES)
        plan = quick_plan(collectives) if options.quick else full_plan(collectives)
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
