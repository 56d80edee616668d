# SPDX-License-Identifier: MIT
"""What a run finds out about a case."""

import math
import statistics
from dataclasses import dataclass, field

from benchmarks.cases import Case
from benchmarks.memory import Peak


@dataclass(frozen=True)
class Timing:
    """Of the slowest rank in each round, in milliseconds; `wrong` counts wrong results over all rounds and ranks."""

    median_ms: float
    p99_ms: float
    wrong: int


@dataclass
class Result:
    """`timings` and `peaks` by candidate; `engines` says what carried the candidates that are Sheaf."""

    case: Case
    rounds: int = 0
    timings: dict[str, Timing] = field(default_factory=dict[str, Timing])
    peaks: dict[str, Peak] = field(default_factory=dict[str, Peak])
    engines: dict[str, str] = field(default_factory=dict[str, str])


def summary(times: list[float], wrong: int) -> Timing:
    """p99 by nearest rank: with fewer than a hundred rounds that is the slowest one."""
    ordered = sorted(times)
    return Timing(statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1], wrong)
