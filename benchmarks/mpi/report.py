# SPDX-License-Identifier: MIT
"""The runs beside MPI to and from JSON, and their part of docs/benchmarks.md."""

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.mpi.promises import MANY_CORES, promises
from benchmarks.mpi.results import Measured, merge
from benchmarks.mpi.tables import draw, missing_text, tables_of
from benchmarks.page import fill

DOCS = Path(__file__).parents[2] / "docs" / "benchmarks.md"

Runs = list[tuple[str, dict[str, Any]]]


def save(path: Path, runs: Runs) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    promised = [asdict(each) for each in promises(merge(runs))]
    path.write_text(json.dumps({"system": system(), "runs": runs, "promised": promised}, indent=1) + "\n")


def load(path: Path) -> tuple[Runs, str]:
    content = json.loads(path.read_text())
    return [(name, run) for name, run in content["runs"]], content["system"]


def system() -> str:
    return f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}"


def markers(many_cores: bool) -> tuple[str, str]:
    """Where the part of a machine with few or many cores begins and ends."""
    what = f"measured beside MPI, {'many' if many_cores else 'few'} cores"
    return f"<!-- {what}: begin -->", f"<!-- {what}: end -->"


def write_docs(measured: Measured, on: str, page: Path = DOCS) -> None:
    """The part for such a machine."""
    many = measured.cores >= MANY_CORES
    image = page.parent / "images" / ("mpi_many_cores.png" if many else "mpi.png")
    begin, end = markers(many)
    picture = (
        [f"![Gather and one full read beside MPI](images/{image.name})"]
        if draw(measured, image, world=8 if many else 4)
        else []
    )
    versions = " and ".join(measured.versions.values())
    head = f"Measured beside {versions} on {on}, {measured.cores} cores. {missing_text(measured)}".strip()
    tables = [table.markdown() for table in reversed(tables_of(measured))]
    fill(page, begin, end, "\n\n".join([head, *picture, *tables]))
