# SPDX-License-Identifier: MIT
"""Ways that take turns, timed on a device."""

import time
from collections.abc import Callable
from statistics import median

import torch

MIB = 1 << 20
Body = Callable[[], object]


def calls_of(kib: int) -> int:
    """How many calls of so much follow each other in a round: of small ones enough that its end counts little."""
    return 1 if kib > 4096 else 20


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(body: Body, device: str, calls: int) -> float:
    """Milliseconds a call, of calls that follow each other."""
    wait(device)
    begin = time.perf_counter()
    for _ in range(calls):
        body()
    wait(device)
    return (time.perf_counter() - begin) * 1e3 / calls


def in_turns(
    bodies: dict[str, Body], device: str, rounds: int, calls: int, meet: Body | None = None
) -> dict[str, float]:
    """Medians over rounds in which every way has its turn."""
    times: dict[str, list[float]] = {name: [] for name in bodies}
    for turn in range(-2, rounds):
        for name, body in bodies.items():
            if meet:
                meet()
            spent = timed(body, device, calls)
            if turn >= 0:
                times[name].append(spent)
    return {name: median(spent) for name, spent in times.items()}


def sizes_of(pattern: str, rows: int, world: int) -> list[int]:
    """Rows a rank, `rows` or a few less in all: even, one with so many times its share, one with nearly everything."""
    if pattern == "even":
        return [rows // world] * world
    first = rows - world + 1 if pattern == "heavy" else int(pattern.removeprefix("skew ")) * rows // world
    rest = (rows - first) // (world - 1)
    return [first, *[rest] * (world - 1)]
