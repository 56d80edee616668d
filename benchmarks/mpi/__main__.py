# SPDX-License-Identifier: MIT
"""`python -m benchmarks.mpi`: builds and runs the C++ benchmark beside every MPI of this machine, and reports."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.launch import cores
from benchmarks.mpi import report
from benchmarks.mpi.programs import MPIS, build, run
from benchmarks.mpi.promises import MANY_CORES
from benchmarks.mpi.results import merge
from benchmarks.mpi.tables import missing_text, tables_of

RUN_SECONDS = 600.0


def default_worlds() -> str:
    return "2,4,8,16" if cores() >= MANY_CORES else "2,4,8"


def arguments(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The options, and those that are the C++ program's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mpi", description=__doc__, epilog="Others go to C++.")
    parser.add_argument("--worlds", default=default_worlds(), help="numbers of ranks, comma-separated")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all numbers to this file")
    parser.add_argument("--from", type=Path, dest="source", metavar="JSON", help="measure nothing, show an earlier run")
    parser.add_argument("--write-docs", action="store_true", help="rewrite the part of docs/benchmarks.md beside MPI")
    return parser.parse_known_args(argv)


def measure(worlds: list[int], passed_on: list[str], console: Console) -> report.Runs:
    runs: report.Runs = []
    for mpi in MPIS:
        if not mpi.is_installed:
            console.print(f"{mpi.name} is not installed: left out")
            continue
        console.print(f"building for {mpi.name}")
        program = build(mpi)
        runs += [(mpi.name, run(mpi, program, world, passed_on, RUN_SECONDS)) for world in worlds]
    return runs


def main(argv: list[str] | None = None) -> int:
    options, passed_on = arguments(argv)
    console = Console() if sys.stdout.isatty() else Console(width=200)
    if options.source:
        runs, on = report.load(options.source)
    else:
        worlds = [int(word) for word in options.worlds.split(",")]
        runs, on = measure(worlds, passed_on, console), report.system()
    if not runs:
        console.print("no MPI was found: `tools/system_packages.sh mpi` installs what is needed")
        return 2
    measured = merge(runs)
    for table in tables_of(measured):
        table.print(console)
    if missing := missing_text(measured):
        console.print(missing)
    if options.json:
        report.save(options.json, runs)
        console.print(f"wrote {options.json}")
    if options.write_docs:
        report.write_docs(measured, on)
        console.print("wrote docs/benchmarks.md")
    return int(measured.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
