# SPDX-License-Identifier: MIT
"""The timing engine: interleaved rounds, a barrier before each call, the slowest rank's time, every result checked."""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module

import torch
import torch.distributed as dist

from benchmarks import memory
from benchmarks.cases import Case, Plan
from benchmarks.launch import Report, run_ranks


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Candidate:
    """One way to do the job. `prepare` runs before the barrier, untimed: it restores inputs the call destroys."""

    name: str
    call: Callable[[], torch.Tensor]
    prepare: Callable[[], None] = nothing


@dataclass(frozen=True)
class Workload:
    """The candidates of one case on this rank, and the one result that all of them must give."""

    expected: torch.Tensor
    candidates: list[Candidate]


@dataclass(frozen=True)
class Timing:
    """Of the slowest rank in each round, in milliseconds; `wrong` counts wrong results over all rounds and ranks."""

    median_ms: float
    p99_ms: float
    wrong: int


@dataclass
class Result:
    case: Case
    rounds: int = 0
    timings: dict[str, Timing] = field(default_factory=dict[str, Timing])
    peaks: dict[str, memory.Peak] = field(default_factory=dict[str, memory.Peak])


def run(plan: Plan) -> Iterator[Result]:
    """Measures the plan, one group of processes after the other; yields each case as it is done."""
    for world in plan.worlds:
        yield from run_ranks(world, rank_body, plan)


def rank_body(rank: int, report: Report, plan: Plan) -> None:
    """One rank's part: the timed cases first, since the memory part changes how the allocator behaves."""
    world = dist.get_world_size()
    for case in (case for case in plan.cases if case.world == world):
        rounds, timings = measure(workload_of(case, rank, plan.candidates), plan.seconds, plan.rounds)
        if rank == 0:
            report(Result(case, rounds, timings=timings))
    for case in (case for case in plan.memory if case.world == world):
        work = workload_of(case, rank, plan.candidates)
        peaks = {each.name: memory.peak_of(each.call, each.prepare) for each in work.candidates}
        if rank == 0:
            report(Result(case, peaks=peaks))


def workload_of(case: Case, rank: int, wanted: tuple[str, ...] = ()) -> Workload:
    """The case's workload from the module named like the collective, less the candidates nobody asked for."""
    work: Workload = import_module(f"benchmarks.{case.collective}").workload(case, rank)
    kept = [each for each in work.candidates if not wanted or any(part in each.name for part in wanted)]
    return Workload(work.expected, kept)


def measure(work: Workload, seconds: float, bounds: tuple[int, int]) -> tuple[int, dict[str, Timing]]:
    """Called by every rank: all candidates in turn, round by round; the same numbers come back on every rank."""
    wrong = torch.zeros(len(work.candidates), dtype=torch.int64)
    one_round(work, 0, wrong)  # warm-up
    begin = time.perf_counter()
    first = one_round(work, 1, wrong)
    rounds = agree_on_rounds(seconds / (time.perf_counter() - begin), bounds)

    own = torch.stack([first, *(one_round(work, turn, wrong) for turn in range(2, rounds + 1))])
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    dist.all_reduce(wrong)
    columns: list[list[float]] = own.t().tolist()
    names = [each.name for each in work.candidates]
    return rounds, {name: summary(*column) for name, *column in zip(names, columns, wrong.tolist(), strict=True)}


def one_round(work: Workload, turn: int, wrong: torch.Tensor) -> torch.Tensor:
    """Every candidate once, the first one changing from round to round; this rank's times in milliseconds."""
    count = len(work.candidates)
    times = torch.zeros(count, dtype=torch.float64)
    for index in ((turn + step) % count for step in range(count)):
        each = work.candidates[index]
        each.prepare()
        dist.barrier()
        begin = time.perf_counter_ns()
        result = each.call()
        times[index] = (time.perf_counter_ns() - begin) / 1e6
        wrong[index] += not torch.equal(result, work.expected)
        result.fill_(math.nan)  # or the next candidate could be handed this right answer by the allocator
        del result
    return times


def agree_on_rounds(affordable: float, bounds: tuple[int, int]) -> int:
    """As many rounds as the slowest rank can afford within the bounds: all ranks must do the same number."""
    fewest, most = bounds
    rounds = torch.tensor([max(fewest, min(most, int(affordable)))])
    dist.all_reduce(rounds, op=dist.ReduceOp.MIN)
    return int(rounds.item())


def summary(times: list[float], wrong: int) -> Timing:
    """p99 by nearest rank: with fewer than a hundred rounds that is the slowest one."""
    ordered = sorted(times)
    return Timing(statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1], wrong)
