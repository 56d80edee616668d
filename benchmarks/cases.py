# SPDX-License-Identifier: MIT
"""What is measured: result sizes, how the rows lie on the ranks, and the two plans, full and quick."""

from dataclasses import dataclass
from itertools import pairwise

KIB, MIB = 1 << 10, 1 << 20

SKEWS = ("even", "2", "one-heavy", "some-empty")
RAGGED = "ragged"
COLLECTIVES = ("all_gather", "reduce_scatter")
COALESCED = "all_gather_coalesced"
LATENCY, STARTED = "latency", "started"
PARTS = (*COLLECTIVES, COALESCED, LATENCY, STARTED)


def sizes_of(skew: str, world: int, rows: int) -> list[int]:
    """Rows on each rank. The heavy rank is the last, never the root of anybody's tree."""
    if skew == "even":
        return share(rows, world)
    if skew == "2":
        heavy = min(rows, 2 * rows // world)
        return [*share(rows - heavy, world - 1), heavy]
    if skew == "one-heavy":
        return [1] * (world - 1) + [rows - world + 1]
    if skew == "some-empty":
        holders = share(rows, (world + 1) // 2)
        return [holders[rank // 2] if rank % 2 == 0 else 0 for rank in range(world)]
    if skew == RAGGED:
        weights = [6 + rank % 3 for rank in range(world)]
        bounds = [rows * sum(weights[:rank]) // sum(weights) for rank in range(world + 1)]
        return [end - begin for begin, end in pairwise(bounds)]
    raise ValueError(f"skew must be one of {', '.join((*SKEWS, RAGGED))}, got {skew!r}")


def share(rows: int, ranks: int) -> list[int]:
    """`rows` over `ranks` as evenly as they go."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


@dataclass(frozen=True)
class Case:
    """One line of the table: `nbytes` of float32 gathered along `dim` (0, 1 or -1) over `world` ranks."""

    collective: str
    world: int
    nbytes: int
    skew: str
    dim: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result. Along dim 0 a row has 256 bytes, or 16 where the result is tiny: every rank shall have rows.
        Along dim 1 there are 1024 chunks of such rows, along the last one chunks of 8 KiB over all ranks."""
        floats = self.nbytes // 4
        if self.dim == 1:
            return 1024, floats // (1024 * 64), 64
        if self.dim == -1:
            return floats // 2048, 2048
        width = 4 if self.nbytes <= 4 * KIB else 64
        return floats // width, width

    @property
    def calls(self) -> int:
        """At least so many in a row for one round: a small one alone would be lost in how ranks start."""
        return 10 if self.nbytes <= 64 * KIB else 1

    @property
    def patience(self) -> int:
        """How many times the usual time this case may take: small calls vary most, several of them more."""
        return 5 if self.collective == COALESCED else 3 if self.nbytes <= 4 * KIB else 1

    @property
    def sizes(self) -> list[int]:
        return sizes_of(self.skew, self.world, self.shape[self.dim])

    @property
    def layout(self) -> str:
        """How the rows lie, in words."""
        return self.skew if self.dim == 0 else f"{self.skew}, {'last dim' if self.dim < 0 else f'dim {self.dim}'}"


@dataclass(frozen=True)
class Plan:
    """Everything one run measures; `seconds` is the time a case may take, within the bounds of `rounds`.

    `blocks` are those of the latency cases, and the calls in each.
    """

    cases: tuple[Case, ...]
    memory: tuple[Case, ...]
    latency: tuple[Case, ...]
    started: tuple[Case, ...]
    seconds: float
    rounds: tuple[int, int]
    blocks: tuple[int, int]
    candidates: tuple[str, ...] = ()

    @property
    def worlds(self) -> list[int]:
        return sorted({case.world for case in self.all})

    @property
    def all(self) -> tuple[Case, ...]:
        return (*self.cases, *self.memory, *self.latency, *self.started)


def grid(collectives: list[str], worlds: list[int], nbytes: list[int], skews: list[str]) -> tuple[Case, ...]:
    """The cross product, less skew 2 at two ranks: there it is the same as some-empty."""
    return tuple(
        Case(collective, world, size, skew)
        for world in worlds
        for collective in collectives
        for size in nbytes
        for skew in skews
        if not (skew == "2" and world == 2)
    )


def full_plan(parts: list[str]) -> Plan:
    sizes = [KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB]
    collectives, gathers, small = split_parts(parts)
    return Plan(
        cases=(*grid(collectives, [2, 4], sizes, list(SKEWS)), *other_dims(gathers, 4, 64 * MIB), *coalesced(parts)),
        memory=grid(gathers, [4], [64 * MIB], list(SKEWS)),
        latency=small,
        started=started(parts),
        seconds=2.0,
        rounds=(7, 101),
        blocks=(41, 100),
    )


def quick_plan(parts: list[str]) -> Plan:
    collectives, gathers, small = split_parts(parts)
    return Plan(
        cases=(
            *grid(collectives, [4], [KIB, 4 * MIB], list(SKEWS)),
            *other_dims(gathers, 4, 4 * MIB),
            *coalesced(parts),
        ),
        memory=grid(gathers, [4], [16 * MIB], ["even", "one-heavy"]),
        latency=small,
        started=started(parts),
        seconds=0.6,
        rounds=(3, 51),
        blocks=(11, 50),
    )


def split_parts(parts: list[str]) -> tuple[list[str], list[str], tuple[Case, ...]]:
    """The collectives asked for, the gather if it is among them, and the latency cases."""
    collectives = [name for name in COLLECTIVES if name in parts]
    small = (Case(LATENCY, 2, KIB, "even"),) if LATENCY in parts else ()
    return collectives, [name for name in collectives if name == "all_gather"], small


def other_dims(collectives: list[str], world: int, nbytes: int) -> tuple[Case, ...]:
    return tuple(Case(name, world, nbytes, RAGGED, dim) for name in collectives for dim in (1, -1))


def started(parts: list[str]) -> tuple[Case, ...]:
    """Calls that are started while a peer is late."""
    return tuple(Case(STARTED, 2, nbytes, "even") for nbytes in (KIB, 16 * MIB)) if STARTED in parts else ()


def coalesced(parts: list[str]) -> tuple[Case, ...]:
    """Several tensors in one call; `nbytes` are those of each."""
    return (Case(COALESCED, 2, KIB, "even"),) if COALESCED in parts else ()
