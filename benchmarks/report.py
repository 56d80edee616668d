# SPDX-License-Identifier: MIT
"""Results to and from JSON, and the generated part of docs/benchmarks.md."""

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import Case
from benchmarks.engine import Result, Timing
from benchmarks.launch import cores
from benchmarks.memory import Peak
from benchmarks.must_show import promises
from benchmarks.tables import tables_of

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
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
    )


def write_docs(results: list[Result], where: dict[str, Any]) -> None:
    """Replaces what lies between the two markers; the rest of the page is written by hand."""
    before, rest = DOCS.read_text().split(BEGIN)
    _, after = rest.split(END)
    DOCS.write_text(f"{before}{BEGIN}\n\n{markdown(results, where)}\n\n{END}{after}")


def markdown(results: list[Result], where: dict[str, Any]) -> str:
    measured_on = f"Measured with torch {where['torch']} and Python {where['python']} on {where['system']},"
    tables = reversed(tables_of(results, promises(results)))
    return "\n\n".join([f"{measured_on} {where['cores']} cores.", *(table.markdown() for table in tables)])
