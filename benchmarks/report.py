# SPDX-License-Identifier: MIT
"""Results to and from JSON, and the generated part of docs/benchmarks.md."""

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import Case
from benchmarks.launch import cores
from benchmarks.memory import Peak
from benchmarks.must_show import promises
from benchmarks.page import fill
from benchmarks.plot import TITLE, draw
from benchmarks.results import Result, Timing
from benchmarks.tables import summary_table, tables_of

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def environment() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}",
        "cores": cores(),
    }


def save(path: Path, results: list[Result], where: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    promised = [asdict(each) for each in promises(results)]
    content = {"environment": where, "results": [as_json(each) for each in results], "promised": promised}
    path.write_text(json.dumps(content, indent=1) + "\n")


def as_json(result: Result) -> dict[str, Any]:
    return {**asdict(result), "sizes": result.case.sizes}


def load(path: Path) -> tuple[list[Result], dict[str, Any]]:
    content = json.loads(path.read_text())
    return [from_json(each) for each in content["results"]], content["environment"]


def from_json(entry: dict[str, Any]) -> Result:
    return Result(
        Case(**entry["case"]),
        entry["rounds"],
        {name: Timing(**each) for name, each in entry["timings"].items()},
        {name: Peak(**each) for name, each in entry["peaks"].items()},
        entry["engines"],
    )


def write_docs(results: list[Result], where: dict[str, Any]) -> None:
    """The tables of docs/benchmarks.md and README.md, and the picture."""
    image = DOCS.parent / "images" / "benchmarks.png"
    picture = [f"![{TITLE}](images/{image.name})"] if draw(results, image) else []
    tables = [table.markdown() for table in reversed(tables_of(results, promises(results)))]
    fill(DOCS, BEGIN, END, "\n\n".join([measured_on(where), *picture, *tables]))
    fill(README, BEGIN, END, "\n\n".join([summary_table(results).markdown(), measured_on(where)]))


def measured_on(where: dict[str, Any]) -> str:
    machine = f"{where['system']}, {where['cores']} cores"
    return f"Measured with torch {where['torch']} and Python {where['python']} on {machine}."
