# SPDX-License-Identifier: MIT
"""Draws docs/images/ragged.png: what the padded way moves and keeps for ragged blocks, and what Sheaf does."""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

SIZES = [2, 6, 1, 3]
COLORS = ["#3b6ea5", "#d98c3f", "#5a9e6f", "#9a6aa8"]
PADDING = "#f2f2f2"
INK = "#222222"
ROW, WIDE = 0.36, 1.3  # height and width of a row
OUT = Path(__file__).parent / "images" / "ragged.png"


def draw_row(ax: Axes, x: float, y: float, owner: int | None) -> None:
    """A row of rank `owner`, or a row of padding; `y` counts rows downwards."""
    color, hatch = (PADDING, "////") if owner is None else (COLORS[owner], "")
    ax.add_patch(
        Rectangle(
            (x, -(y + 1) * ROW), WIDE, ROW, facecolor=color, hatch=hatch, edgecolor="#999999", linewidth=0.6, zorder=2
        )
    )


def draw_column(ax: Axes, x: float, owners: list[int | None], title: str, first: float = 0) -> None:
    """Rows below one another under a title."""
    for number, owner in enumerate(owners):
        draw_row(ax, x, first + number, owner)
    ax.text(x + WIDE / 2, 0.35, title, ha="center", va="bottom", fontsize=8.5, color=INK, linespacing=1.25)


def draw_blocks(ax: Axes, x: float, longest: int, title: str) -> None:
    """One block per rank, padded to `longest` rows (0: as it is), with a gap between blocks."""
    y = 0.0
    for rank, rows in enumerate(SIZES):
        for number in range(max(rows, longest)):
            draw_row(ax, x, y + number, rank if number < rows else None)
        middle = -(y + max(rows, longest) / 2) * ROW
        ax.text(x - 0.15, middle, f"rank {rank}", ha="right", va="center", fontsize=8, color=INK)
        y += max(rows, longest) + 0.5
    ax.text(x + WIDE / 2, 0.35, title, ha="center", va="bottom", fontsize=8.5, color=INK, linespacing=1.25)


def draw_arrow(ax: Axes, start: float, end: float, label: str) -> None:
    arrow = FancyArrowPatch((start, -2.2), (end, -2.2), arrowstyle="-|>", mutation_scale=14, color=INK, linewidth=1.2)
    ax.add_patch(arrow)
    ax.text((start + end) / 2, -2.05, label, ha="center", va="bottom", fontsize=8, color=INK)


def finish(ax: Axes, title: str, caption: str, right: float) -> None:
    ax.set_title(title, fontsize=12, fontweight="bold", loc="left", color=INK, pad=14)
    ax.text(-0.9, -9.7, caption, ha="left", va="top", fontsize=9.5, color=INK, linespacing=1.4)
    ax.set_xlim(-1, right)
    ax.set_ylim(-11.2, 1.3)
    ax.set_aspect("equal")
    ax.axis("off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    out: Path = parser.parse_args().out

    total, longest, world = sum(SIZES), max(SIZES), len(SIZES)
    padded = [rank if number < rows else None for rank, rows in enumerate(SIZES) for number in range(longest)]
    exact: list[int | None] = [rank for rank, rows in enumerate(SIZES) for _ in range(rows)]
    here = SIZES[0]

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 6.4), width_ratios=[11, 6.2])
    draw_blocks(left, 0, longest, "blocks,\npadded")
    draw_arrow(left, 1.45, 2.65, "gather")
    draw_column(left, 2.8, padded, "a tensor\na rank")
    draw_arrow(left, 4.25, 5.45, "join")
    draw_column(left, 5.6, padded, "joined")
    draw_arrow(left, 7.05, 8.25, "select")
    draw_column(left, 8.4, exact, "result")
    finish(
        left,
        "The padded way",
        f"rank 0 receives {(world - 1) * longest} rows, {(world - 1) * longest - (total - here)} of them padding,\n"
        f"and keeps {longest} + {world * longest} + {world * longest} + {total} = "
        f"{longest + 2 * world * longest + total} rows until it is done",
        10,
    )
    draw_blocks(right, 0, 0, "blocks")
    draw_arrow(right, 1.45, 3.25, "into place")
    draw_column(right, 3.4, exact, "result")
    finish(right, "Sheaf", f"rank 0 receives {total - here} rows\nand keeps {total}", 5.2)
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, facecolor="white")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
