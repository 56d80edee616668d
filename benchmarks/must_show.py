# SPDX-License-Identifier: MIT
"""The figures Sheaf promises, held against what this run measured: over c10d with Gloo, and as users get it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.cases import COALESCED, KIB, LATENCY, MIB, RAGGED, STARTED
from benchmarks.groups import OURS, OURS_C10D
from benchmarks.latency import NOOP, RECORDED
from benchmarks.results import Result
from benchmarks.started import LATE_S

WORLD = 4
EACH, ONE_C10D = "eight calls", "one tensor, c10d"
PADDED, SHORTCUT, ALL_REDUCE, READ = "padded", "padded, even shortcut", "padded, all-reduce", "sheaf, and read"


@dataclass(frozen=True)
class Promise:
    """`measured` of the worst case that the claim covers; None where the run has no such case."""

    claim: str
    wanted: str
    measured: str | None
    met: bool


@dataclass(frozen=True)
class Ratio:
    """One way against others: how many times as long they must take in every case covered (None: any)."""

    what: str
    wanted: float
    collective: str
    against: tuple[str, ...]
    nbytes: int | None = None
    skew: str | None = None
    dim: int = 0
    world: int = WORLD
    ours: str = OURS_C10D

    @property
    def claim(self) -> str:
        return f"{self.ours}, W = {self.world}: {self.what}"

    def hold(self, results: list[Result]) -> Promise:
        found = [(ratio, result.case) for result in results for ratio in self._ratios(result)]
        if not found:
            return Promise(self.claim, f">= {self.wanted:g}x", None, False)
        worst, case = min(found, key=lambda pair: pair[0])
        where = f"{worst:.2f}x ({size_text(case.nbytes)}, {case.layout})"
        return Promise(self.claim, f">= {self.wanted:g}x", where, worst >= self.wanted)

    def _ratios(self, result: Result) -> Iterator[float]:
        case = result.case
        covered = (case.world, case.collective, case.dim) == (self.world, self.collective, self.dim)
        covered = covered and self.nbytes in (None, case.nbytes) and self.skew in (None, case.skew)
        if covered and self.ours in result.timings:
            yield from (speedup(result, name, self.ours) for name in self.against if name in result.timings)


FORWARD, BACKWARD = "all_gather", "reduce_scatter"
RATIOS = (
    Ratio("forward 64 MiB, even, always padding", 3.0, FORWARD, (PADDED,), 64 * MIB, "even"),
    Ratio("forward 64 MiB, even, even shortcut", 2.0, FORWARD, (SHORTCUT,), 64 * MIB, "even"),
    Ratio("forward 64 MiB, one-heavy, both padded ways", 8.0, FORWARD, (PADDED, SHORTCUT), 64 * MIB, "one-heavy"),
    Ratio("forward 1 KiB, every skew, both padded ways", 2.0, FORWARD, (PADDED, SHORTCUT), KIB),
    Ratio("sum backward 64 MiB, even, all-reduce", 1.5, BACKWARD, (ALL_REDUCE,), 64 * MIB, "even"),
    Ratio("sum backward 64 MiB, every skew, all-reduce", 0.95, BACKWARD, (ALL_REDUCE,), 64 * MIB),
    Ratio("sum backward, every size and skew, all-reduce", 0.95, BACKWARD, (ALL_REDUCE,)),
    Ratio("forward 64 MiB, even, always padding", 30.0, FORWARD, (PADDED,), 64 * MIB, "even", ours=OURS),
    Ratio("forward 64 MiB, one-heavy, always padding", 80.0, FORWARD, (PADDED,), 64 * MIB, "one-heavy", ours=OURS),
    Ratio("forward 64 MiB, dim 1, always padding", 10.0, FORWARD, (PADDED,), 64 * MIB, RAGGED, 1, ours=OURS),
    Ratio("forward 64 MiB, last dim, always padding", 10.0, FORWARD, (PADDED,), 64 * MIB, RAGGED, -1, ours=OURS),
    Ratio("forward 1 KiB, even, always padding", 80.0, FORWARD, (PADDED,), KIB, "even", world=2, ours=OURS),
    Ratio("sum backward 64 MiB, even, all-reduce", 6.0, BACKWARD, (ALL_REDUCE,), 64 * MIB, "even", ours=OURS),
    Ratio("eight tensors of 1 KiB at once, one of them", 0.67, COALESCED, (ONE_C10D,), KIB, world=2),
    Ratio("eight tensors of 1 KiB at once, one by one", 2.5, COALESCED, (EACH,), KIB, world=2, ours=OURS),
)


def promises(results: list[Result]) -> list[Promise]:
    ratios = [ratio.hold(results) for ratio in RATIOS]
    calls = [hold_latency(results, "", 3.0), hold_latency(results, RECORDED, 4.0)]
    starts = [hold_start(results, ours) for ours in (OURS, OURS_C10D)]
    return [*ratios, hold_growth(results), *calls, *starts, hold_memory(results, OURS_C10D)]


def hold_growth(results: Iterable[Result]) -> Promise:
    """How much longer call and first read take when one rank holds nearly everything."""
    claim, most = f"{READ}, W = {WORLD}: forward 64 MiB, one-heavy to even", 2.0
    times = {
        result.case.skew: result.timings[READ].median_ms
        for result in results
        if (result.case.world, result.case.nbytes, result.case.dim) == (WORLD, 64 * MIB, 0) and READ in result.timings
    }
    if not times.keys() >= {"even", "one-heavy"}:
        return Promise(claim, f"<= {most:g}x", None, False)
    growth = times["one-heavy"] / times["even"]
    return Promise(claim, f"<= {most:g}x", f"{growth:.2f}x", growth <= most)


def hold_latency(results: Iterable[Result], how: str, most: float) -> Promise:
    """A small call against an op that does nothing."""
    claim = f"{OURS}, W = 2: a call of 1 KiB{how}, to a no-op"
    for result in results:
        if result.case.collective == LATENCY:
            times = 1 / speedup(result, NOOP + how, OURS + how)
            return Promise(claim, f"<= {most:g}x", f"{times:.2f}x", times <= most)
    return Promise(claim, f"<= {most:g}x", None, False)


def hold_start(results: Iterable[Result], ours: str) -> Promise:
    """The slowest start of all, while a peer is late."""
    claim, most_ms = f"{ours}, W = 2: start of a call, a peer {LATE_S * 1e3:g} ms late, slowest", 10.0
    starts = [each.timings[ours].p99_ms for each in results if each.case.collective == STARTED]
    if not starts:
        return Promise(claim, f"<= {most_ms:g} ms", None, False)
    return Promise(claim, f"<= {most_ms:g} ms", f"{max(starts):.2g} ms", max(starts) <= most_ms)


def hold_memory(results: Iterable[Result], ours: str) -> Promise:
    """The input is there before the call, so `N` and the own block together leave the call `N` and 1 MiB more."""
    claim, wanted = f"{ours}, W = {WORLD}: forward peak memory, every skew", "<= N + own block + 1 MiB"
    over = {
        result.case.skew: result.peaks[ours].nbytes - result.case.nbytes
        for result in results
        if result.case.world == WORLD and ours in result.peaks
    }
    if not over:
        return Promise(claim, wanted, None, False)
    skew = max(over, key=lambda name: over[name])
    return Promise(claim, wanted, f"N + own block {over[skew] / MIB:+.2f} MiB ({skew})", over[skew] <= MIB)


def speedup(result: Result, name: str, ours: str = OURS) -> float:
    """How many times as long as ours the other way's median is."""
    return result.timings[name].median_ms / result.timings[ours].median_ms


def size_text(nbytes: int) -> str:
    for unit, least in (("MiB", MIB), ("KiB", KIB)):
        if nbytes >= least:
            return f"{nbytes // least} {unit}"
    return f"{nbytes} B"
