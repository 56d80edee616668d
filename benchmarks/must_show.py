# SPDX-License-Identifier: MIT
"""The figures Sheaf promises on Gloo with four ranks, held against what this run measured."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.cases import KIB, MIB
from benchmarks.engine import Result

WORLD = 4
PADDED, SHORTCUT, ALL_REDUCE = "padded", "padded, even shortcut", "padded, all-reduce"


@dataclass(frozen=True)
class Promise:
    """`measured` of the worst case that the claim covers; None where the run has no such case."""

    claim: str
    wanted: str
    measured: str | None
    met: bool


@dataclass(frozen=True)
class Ratio:
    """Sheaf against other ways: how many times as long as Sheaf they must take in every case covered (None: any)."""

    claim: str
    wanted: float
    collective: str
    against: tuple[str, ...]
    nbytes: int | None = None
    skew: str | None = None

    def hold(self, results: list[Result]) -> Promise:
        found = [(ratio, result.case) for result in results for ratio in self._ratios(result)]
        if not found:
            return Promise(self.claim, f">= {self.wanted:g}x", None, False)
        worst, case = min(found, key=lambda pair: pair[0])
        where = f"{worst:.2f}x ({size_text(case.nbytes)}, {case.skew})"
        return Promise(self.claim, f">= {self.wanted:g}x", where, worst >= self.wanted)

    def _ratios(self, result: Result) -> Iterator[float]:
        case = result.case
        covered = case.world == WORLD and case.collective == self.collective
        covered = covered and self.nbytes in (None, case.nbytes) and self.skew in (None, case.skew)
        if covered and "sheaf" in result.timings:
            yield from (speedup(result, name) for name in self.against if name in result.timings)


RATIOS = (
    Ratio("forward 64 MiB, even, always padding", 3.0, "all_gather", (PADDED,), 64 * MIB, "even"),
    Ratio("forward 64 MiB, even, even shortcut", 2.0, "all_gather", (SHORTCUT,), 64 * MIB, "even"),
    Ratio("forward 64 MiB, one-heavy, both padded ways", 8.0, "all_gather", (PADDED, SHORTCUT), 64 * MIB, "one-heavy"),
    Ratio("forward 1 KiB, every skew, both padded ways", 2.0, "all_gather", (PADDED, SHORTCUT), KIB),
    Ratio("sum backward 64 MiB, even, all-reduce", 1.5, "reduce_scatter", (ALL_REDUCE,), 64 * MIB, "even"),
    Ratio("sum backward 64 MiB, every skew, all-reduce", 0.95, "reduce_scatter", (ALL_REDUCE,), 64 * MIB),
    Ratio("sum backward, every size and skew, all-reduce", 0.95, "reduce_scatter", (ALL_REDUCE,)),
)


def promises(results: list[Result]) -> list[Promise]:
    return [*(ratio.hold(results) for ratio in RATIOS), hold_memory(results)]


def hold_memory(results: Iterable[Result]) -> Promise:
    """The input is there before the call, so `N` and the own block together leave the call `N` and 1 MiB more."""
    claim, wanted = "forward peak memory, every skew", "<= N + own block + 1 MiB"
    over = {
        result.case.skew: result.peaks["sheaf"].nbytes - result.case.nbytes
        for result in results
        if result.case.world == WORLD and "sheaf" in result.peaks
    }
    if not over:
        return Promise(claim, wanted, None, False)
    skew = max(over, key=lambda name: over[name])
    return Promise(claim, wanted, f"N + own block {over[skew] / MIB:+.2f} MiB ({skew})", over[skew] <= MIB)


def speedup(result: Result, name: str) -> float:
    """How many times as long as Sheaf's the other way's median is."""
    return result.timings[name].median_ms / result.timings["sheaf"].median_ms


def size_text(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"
