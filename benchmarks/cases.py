# SPDX-License-Identifier: MIT
"""What is measured: result sizes, how the rows lie on the ranks, and the two plans, full and quick."""

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20

SKEWS = ("even", "2", "one-heavy", "some-empty")
COLLECTIVES = ("all_gather", "reduce_scatter")


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
    raise ValueError(f"skew must be one of {', '.join(SKEWS)}, got {skew!r}")


def share(rows: int, ranks: int) -> list[int]:
    """`rows` over `ranks` as evenly as they go."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


@dataclass(frozen=True)
class Case:
    """One line of the table: `nbytes` of float32 gathered along dim 0 over `world` ranks."""

    collective: str
    world: int
    nbytes: int
    skew: str

    @property
    def width(self) -> int:
        """Floats a row: 16 bytes where the result is tiny, so that every rank still has rows; else 256 bytes."""
        return 4 if self.nbytes <= 4 * KIB else 64

    @property
    def rows(self) -> int:
        return self.nbytes // (4 * self.width)

    @property
    def sizes(self) -> list[int]:
        return sizes_of(self.skew, self.world, self.rows)


@dataclass(frozen=True)
class Plan:
    """Everything one run measures; `seconds` is the time a case may take, within the bounds of `rounds`."""

    cases: tuple[Case, ...]
    memory: tuple[Case, ...]
    seconds: float
    rounds: tuple[int, int]
    candidates: tuple[str, ...] = ()

    @property
    def worlds(self) -> list[int]:
        return sorted({case.world for case in (*self.cases, *self.memory)})


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


def full_plan(collectives: list[str]) -> Plan:
    sizes = [KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB]
    gathers = [name for name in collectives if name == "all_gather"]
    return Plan(
        cases=grid(collectives, [2, 4], sizes, list(SKEWS)),
        memory=grid(gathers, [4], [64 * MIB], list(SKEWS)),
        seconds=2.0,
        rounds=(7, 101),
    )


def quick_plan(collectives: list[str]) -> Plan:
    gathers = [name for name in collectives if name == "all_gather"]
    return Plan(
        cases=grid(collectives, [4], [KIB, 4 * MIB], list(SKEWS)),
        memory=grid(gathers, [4], [16 * MIB], ["even", "one-heavy"]),
        seconds=0.6,
        rounds=(3, 51),
    )
