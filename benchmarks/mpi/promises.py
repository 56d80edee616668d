# SPDX-License-Identifier: MIT
"""What Sheaf promises beside MPI, held against what a run measured."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.cases import MIB
from benchmarks.mpi.results import INTO, MEMCPY, MPI, RETURNED, SCATTER, Line, Measured, geometric_mean
from benchmarks.must_show import Promise, size_text

NOISE = 0.95
MANY_CORES = 16


@dataclass(frozen=True)
class Claim:
    """`wanted` times as fast as `other` in every case covered, or in their geometric mean."""

    what: str
    wanted: float
    ours: str
    other: str = MPI
    covers: Callable[[Line], bool] = lambda line: True
    mean: bool = False
    alone: bool = False  # the call without the read
    only: str | None = None  # one MPI instead of the faster
    cores: int = 0  # at least so many

    def hold(self, measured: Measured) -> Promise:
        found = self._found(measured)
        wanted = f">= {self.wanted:g}x"
        if not found:
            return Promise(self.what, wanted, None, False)
        if self.mean:
            value = geometric_mean([ratio for ratio, _ in found])
            return Promise(self.what, wanted, f"{value:.2f}x ({len(found)} cases)", value >= self.wanted)
        value, line = min(found, key=lambda pair: pair[0])
        case = line.case
        where = f"{value:.2f}x (W = {case.world}, {size_text(case.nbytes)}, {case.skew})"
        return Promise(self.what, wanted, where, value >= self.wanted)

    def _found(self, measured: Measured) -> list[tuple[float, Line]]:
        if measured.cores < self.cores:
            return []
        pairs = [(self._ratio(line), line) for line in measured.lines if self.covers(line)]
        return [(ratio, line) for ratio, line in pairs if ratio is not None]

    def _ratio(self, line: Line) -> float | None:
        if self.only:
            return line.ratio(self.ours, self.only, self.other, alone=self.alone)
        return line.worst(self.ours, self.other, alone=self.alone)


def is_large(line: Line) -> bool:
    return line.case.nbytes >= MIB


def claims() -> list[Claim]:
    nowhere, mean = "nowhere slower than the faster MPI", "than the faster MPI, geometric mean"
    bound = "N bytes copied by every rank"
    return [
        Claim(f"gather, returned: {nowhere}", NOISE, RETURNED),
        Claim(f"gather, into the caller's buffer: {nowhere}", NOISE, INTO),
        Claim(f"reduce-scatter: {nowhere}", NOISE, SCATTER),
        Claim(f"gather, returned: faster {mean}", 2.0, RETURNED, mean=True),
        Claim(f"gather, into the caller's buffer: faster {mean}", 2.0, INTO, mean=True),
        Claim(f"reduce-scatter: faster {mean}", 4.0, SCATTER, mean=True),
        *(
            Claim(
                f"gather, returned, {MANY_CORES} cores, W = {world}: faster than Open MPI, geometric mean",
                2.5,
                RETURNED,
                covers=lambda line, world=world: line.case.world == world,  # type: ignore[misc]
                mean=True,
                only="Open MPI",
                cores=MANY_CORES,
            )
            for world in (8, 16)
        ),
        *(
            Claim(
                f"gather, returned{how}, {ranks}, 1 MiB and more: {bound}",
                wanted,
                RETURNED,
                MEMCPY,
                covers=lambda line, few=few: is_large(line) and (line.case.world == 2) is few,  # type: ignore[misc]
                alone=alone,
            )
            for ranks, few, wanted in (("W = 2", True, 0.9), ("W >= 4", False, 1.0))
            for how, alone in (("", False), (", the call alone", True))
        ),
        Claim(
            f"gather, returned, the call alone, {MANY_CORES} cores, W = 2, 256 MiB: memcpy on one thread",
            3.0,
            RETURNED,
            MEMCPY,
            covers=lambda line: (line.case.world, line.case.nbytes) == (2, 256 * MIB),
            alone=True,
            cores=MANY_CORES,
        ),
    ]


def promises(measured: Measured) -> list[Promise]:
    return [claim.hold(measured) for claim in claims()]
