# SPDX-License-Identifier: MIT
"""The timing engine: interleaved rounds, a meeting before each call, the slowest rank's time, every result checked."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import latency, memory, started
from benchmarks.cases import KIB, Case, Plan
from benchmarks.groups import Groups, make_groups, new_groups
from benchmarks.launch import Report, meet, run_ranks
from benchmarks.results import Result, Timing, summary

SMALL = 64 * KIB  # sent apart from its header, as large results are
FULL_ROUND, MOST_CALLS = 5.0, 400  # milliseconds, and calls in them


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Candidate:
    """One way to do the job. `prepare` runs before each call, untimed: it restores inputs the call destroys. `is_right`
    compares what a call returned with what it should have, likewise untimed."""

    name: str
    call: Callable[[], Any]
    prepare: Callable[[], None] = nothing
    is_right: Callable[[Any, torch.Tensor], bool] = torch.equal


@dataclass(frozen=True)
class Workload:
    """The candidates of one case on this rank, and the one result that all of them must give.

    `refresh` runs before every round, untimed: it changes every element of the inputs and, in place, of `expected`. So
    no earlier answer is right again, neither a candidate's own nor one that the allocator hands on in freed memory.
    `calls` calls in a row, with the same inputs, are one round. Where that is more than one, it is the least, and more
    of them may fill a round: a single small one would be lost in how ranks start, and in what the caches hold by then.
    """

    expected: torch.Tensor
    candidates: list[Candidate]
    refresh: Callable[[], None]
    calls: int = 1


def run(plan: Plan) -> Iterator[Result]:
    """Measures the plan, one group of processes after the other; yields each case as it is done."""
    for world in plan.worlds:
        yield from run_ranks(world, rank_body, plan)


def rank_body(rank: int, report: Report, plan: Plan) -> None:
    """One rank's part: the timed cases first, since the memory part changes how the allocator behaves."""
    groups = make_groups()
    engines = groups.engines()
    for result in results_of(rank, groups, plan):
        if rank == 0:
            report(replace(result, engines=engines))


def results_of(rank: int, groups: Groups, plan: Plan) -> Iterator[Result]:
    world = dist.get_world_size()
    for case in (case for case in plan.latency if case.world == world):
        yield latency.measure(case, rank, groups.chosen, plan.blocks)
    for case in (case for case in plan.started if case.world == world):
        yield started.measure(case, rank, groups, max(3, plan.rounds[0]))
    for case in (case for case in plan.cases if case.world == world):
        rounds, timings = measure(
            workload_of(case, rank, groups, plan.candidates), plan.seconds * case.patience, plan.rounds
        )
        yield Result(case, rounds, timings=timings)
    for case in (case for case in plan.memory if case.world == world):
        yield Result(case, peaks=peaks_of(case, rank, groups, plan.candidates))


def peaks_of(case: Case, rank: int, groups: Groups, wanted: tuple[str, ...]) -> dict[str, memory.Peak]:
    """Each candidate's first call of this size, in groups that carried only a small one: connections and threads stay,
    and are no one call's; memory that a call leaves for the next is its own."""
    peaks: dict[str, memory.Peak] = {}
    count = len(workload_of(case, rank, groups, wanted).candidates)
    for number in range(count):
        with new_groups() as made:
            for small in workload_of(replace(case, nbytes=SMALL), rank, made, wanted).candidates:
                small.prepare()
                small.call()
            one = workload_of(case, rank, made, wanted).candidates[number]
            peaks[one.name] = memory.peak_of(one.call, one.prepare)
    return peaks


def workload_of(case: Case, rank: int, groups: Groups, wanted: tuple[str, ...] = ()) -> Workload:
    """The case's workload from the module named like the collective, less the candidates nobody asked for."""
    work: Workload = import_module(f"benchmarks.{case.collective}").workload(case, rank, groups)
    kept = [each for each in work.candidates if not wanted or any(part in each.name for part in wanted)]
    return replace(work, candidates=kept)


def measure(work: Workload, seconds: float, bounds: tuple[int, int]) -> tuple[int, dict[str, Timing]]:
    """Called by every rank: all candidates in turn, round by round; the same numbers come back on every rank."""
    wrong = torch.zeros(len(work.candidates), dtype=torch.int64)
    calls = [work.calls] * len(work.candidates)
    one_round(work, 0, calls, wrong)  # warm-up
    if work.calls > 1:
        calls = calls_that_fill(one_round(work, 0, calls, wrong), work.calls)
    begin = time.perf_counter()
    first = one_round(work, 1, calls, wrong)
    rounds = agree_on_rounds(seconds / (time.perf_counter() - begin), bounds)

    own = torch.stack([first, *(one_round(work, turn, calls, wrong) for turn in range(2, rounds + 1))])
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    dist.all_reduce(wrong)
    columns: list[list[float]] = own.t().tolist()
    names = [each.name for each in work.candidates]
    return rounds, {name: summary(*column) for name, *column in zip(names, columns, wrong.tolist(), strict=True)}


def calls_that_fill(times: torch.Tensor, fewest: int) -> list[int]:
    """How many calls of each candidate fill a round, from the milliseconds of one; the same on every rank."""
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return [max(fewest, min(MOST_CALLS, int(FULL_ROUND / each))) for each in times.tolist()]


def one_round(work: Workload, turn: int, calls: list[int], wrong: torch.Tensor) -> torch.Tensor:
    """Every candidate in turn, the first one changing from round to round; this rank's milliseconds a call."""
    count = len(work.candidates)
    times = torch.zeros(count, dtype=torch.float64)
    for index in ((turn + step) % count for step in range(count)):
        each = work.candidates[index]
        work.refresh()
        meet()
        spent, results = 0, []
        for _ in range(calls[index]):
            each.prepare()
            begin = time.perf_counter_ns()
            results.append(each.call())
            spent += time.perf_counter_ns() - begin
        times[index] = spent / calls[index] / 1e6
        wrong[index] += sum(not each.is_right(result, work.expected) for result in results)
        del results  # and nobody has written into them: it may be memory that the ranks share
    return times


def agree_on_rounds(affordable: float, bounds: tuple[int, int]) -> int:
    """As many rounds as the slowest rank can afford within the bounds: all ranks must do the same number."""
    fewest, most = bounds
    rounds = torch.tensor([max(fewest, min(most, int(affordable)))])
    dist.all_reduce(rounds, op=dist.ReduceOp.MIN)
    return int(rounds.item())
