# SPDX-License-Identifier: MIT
"""The figures Sheaf promises on a GPU, held against the tables of this run."""

from collections.abc import Callable

from benchmarks.must_show import Promise
from benchmarks.started import LATE_S

Row = list[str]


def rows_of(lines: list[str]) -> list[Row]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def number(cell: str) -> float:
    return float(cell.rstrip("x%").strip())


def at_least(claim: str, wanted: float, unit: str, rows: list[Row], value: Callable[[Row], float]) -> Promise:
    """`value` of the worst row, and how many fall short."""
    if not rows:
        return Promise(claim, f">= {wanted:g}{unit}", None, False)
    worst = min(rows, key=value)
    short = sum(value(row) < wanted for row in rows)
    measured = f"{value(worst):.3g}{unit} ({', '.join(worst[:4])})" + f"; {short} of {len(rows)} fall short" * bool(
        short
    )
    return Promise(claim, f">= {wanted:g}{unit}", measured, not short)


def placing(lines: list[str]) -> list[Promise]:
    rows = rows_of(lines)

    def share(row: Row) -> float:
        return min(number(row[5]), number(row[7]))

    aligned, others = [row for row in rows if row[2] == "yes"], [row for row in rows if row[2] == "no"]
    return [
        at_least("placing and packing, all multiples of 16 B, of one copy", 90, " %", aligned, share),
        at_least("placing and packing, otherwise, of one copy", 65, " %", others, share),
        at_least("placing, beside torch.cat", 1, "x", rows, lambda row: number(row[5]) / number(row[6])),
    ]


def local_work(lines: list[str]) -> list[Promise]:
    rows = [row for row in rows_of(lines) if row[6].endswith("x")]
    return [at_least("local work, beside the padded way's", 5, "x", rows, lambda row: number(row[6]))]


def whole_gathers(lines: list[str]) -> list[Promise]:
    rows = rows_of(lines)

    def gather(row: Row) -> float:
        return min(number(row[4]), number(row[5]))

    heavy = [row for row in rows if row[2] == "heavy"]
    even = [row for row in rows if row[2] == "even"]
    return [
        at_least("whole gather, beside the padded way", 0.95, "x", rows, gather),
        at_least("the same, one rank with nearly everything", 3, "x", heavy, gather),
        at_least(
            "`sum` backward, even, beside the padded way's all-reduce", 1.2, "x", even, lambda row: number(row[7])
        ),
    ]


def starts(lines: list[str]) -> list[Promise]:
    claim, most = f"start of a call, a peer {LATE_S:g} s late, slowest", 10.0
    slowest = max((number(row[2]) for row in rows_of(lines)), default=None)
    measured = None if slowest is None else f"{slowest:.2g} ms"
    return [Promise(claim, f"<= {most:g} ms", measured, slowest is not None and slowest <= most)]


def table(promised: list[Promise]) -> list[str]:
    rows = [("promise", "wanted", "measured, worst", "met"), ("---",) * 4]
    rows += [(one.claim, one.wanted, one.measured or "not measured", "yes" if one.met else "no") for one in promised]
    return [f"| {' | '.join(row)} |" for row in rows]
