# SPDX-License-Identifier: MIT
"""One picture of a run: time against size, a line for each way to gather."""

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.must_show import WORLD, size_text
from benchmarks.results import Result

TITLE = f"Forward, {WORLD} ranks, even: median of the slowest rank"


def lines_of(results: list[Result]) -> dict[str, list[tuple[int, float]]]:
    """(N, milliseconds) in order of N, by candidate."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for each in sorted(results, key=lambda result: result.case.nbytes):
        case = each.case
        if (case.collective, case.world, case.skew, case.dim) == ("all_gather", WORLD, "even", 0):
            for name, timing in each.timings.items():
                lines.setdefault(name, []).append((case.nbytes, timing.median_ms))
    return lines


def draw(results: list[Result], path: Path) -> bool:
    """Writes the picture; without a case to show it writes none, and says so."""
    return draw_lines(lines_of(results), TITLE, "ms", path)


def draw_lines(lines: dict[str, list[tuple[int, float]]], title: str, unit: str, path: Path) -> bool:
    """Time against size, log-log, Sheaf's lines whole and the others' broken; without a line it writes nothing."""
    if not lines:
        return False
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    ax = figure.subplots()
    for number, (name, points) in enumerate(lines.items()):
        ours = name.startswith("sheaf")
        ax.plot(
            [nbytes for nbytes, _ in points],
            [time for _, time in points],
            "osDv^<>PX*"[number % 10] + ("-" if ours else "--"),
            color=f"C{number % 10}",
            linewidth=2.2 if ours else 1.2,
            markersize=5,
            label=name,
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    sizes = sorted({nbytes for points in lines.values() for nbytes, _ in points})
    ax.set_xticks(sizes, [size_text(nbytes) for nbytes in sizes])
    ax.set(title=title, xlabel="N, bytes of the result", ylabel=unit)
    ax.grid(color="#dddddd", linewidth=0.6)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, facecolor="white")
    return True
