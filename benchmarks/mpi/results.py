# SPDX-License-Identifier: MIT
"""The runs beside each MPI, put together case by case."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cases import Case

INTO, RETURNED, SCATTER, MPI, MEMCPY = "sheaf, into buffer", "sheaf, returned", "sheaf", "mpi", "memcpy"
SHARED = "shared copy"


@dataclass(frozen=True)
class Timing:
    """Microseconds, median of the slowest rank: of the call alone, and with one full read and the result's release."""

    call_us: float
    total_us: float
    wrong: int


@dataclass
class Line:
    """One case: `runs[mpi][candidate]`, each run measured side by side in the same processes."""

    case: Case
    runs: dict[str, dict[str, Timing]] = field(default_factory=dict[str, dict[str, Timing]])

    def ratio(self, ours: str, mpi: str, other: str = MPI, *, alone: bool = False) -> float | None:
        """How many times as long as Sheaf the other takes, with one full read or the call alone."""
        timings = self.runs.get(mpi, {})
        if ours not in timings or other not in timings:
            return None
        if alone:
            return timings[other].call_us / timings[ours].call_us
        return timings[other].total_us / timings[ours].total_us

    def worst(self, ours: str, other: str = MPI, *, alone: bool = False) -> float | None:
        """Against the faster MPI: the lowest of the ratios, each from its own run."""
        found = [self.ratio(ours, mpi, other, alone=alone) for mpi in self.runs]
        return min((ratio for ratio in found if ratio is not None), default=None)


@dataclass
class Measured:
    """Everything that a run of all MPIs and numbers of ranks found."""

    cores: int
    versions: dict[str, str]  # by MPI; one that is not installed is not there
    lines: list[Line]

    @property
    def wrong(self) -> int:
        return sum(each.wrong for line in self.lines for run in line.runs.values() for each in run.values())


def merge(runs: Iterable[tuple[str, dict[str, Any]]]) -> Measured:
    """From the JSON of the C++ program, each with the name of its MPI."""
    found: dict[Case, Line] = {}
    versions: dict[str, str] = {}
    cores = 0
    for mpi, content in runs:
        cores, versions[mpi] = content["cores"], content["mpi"]
        for entry in content["results"]:
            case = Case(entry["collective"], content["world"], entry["bytes"], entry["skew"])
            line = found.setdefault(case, Line(case))
            line.runs[mpi] = {name: Timing(**each) for name, each in entry["timings"].items()}
    return Measured(cores, versions, list(found.values()))


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))
