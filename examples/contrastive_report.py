# SPDX-License-Identifier: MIT
"""The rest of the contrastive example: timing the gather beside the padded way, progress, verdict and picture."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import sheaf
from benchmarks.engine import Candidate, Workload, measure
from benchmarks.launch import Report
from benchmarks.padded import padded_gather

SKEWS = (1.0, 1.5, 2.0, 3.0, 4.0)
TOLERANCE = 1e-4  # float32 sums in another order; a missing or doubled part of the gradient is off by far more
WIDTH = 64


@dataclass(frozen=True)
class Check:
    """One step of training; `difference` where the gradients were compared."""

    step: int
    sizes: list[int]
    loss: float
    difference: float | None


@dataclass(frozen=True)
class Gather:
    """Milliseconds of the slowest rank at one skew, medians."""

    skew: float
    sheaf: float
    padded: float
    wrong: int


def measure_skew(rank: int, report: Report, nbytes: int) -> None:
    """Rank 0 holds `skew` times the mean, the others share the rest; no two results are the same."""
    world, rows = dist.get_world_size(), nbytes // (4 * WIDTH)
    expected = torch.arange(rows * WIDTH, dtype=torch.float32).view(rows, WIDTH)
    for skew in SKEWS:
        heavy = round(rows * skew / world)
        sizes = [heavy] + [(rows - heavy) // (world - 1)] * (world - 1)
        x = expected.narrow(0, sum(sizes[:rank]), sizes[rank]).clone()

        def refresh(own: torch.Tensor = x) -> None:
            expected.add_(1)
            own.add_(1)

        work = Workload(expected[: sum(sizes)], both_ways(x), refresh)
        _, timings = measure(work, seconds=1.5, bounds=(3, 21))
        wrong = sum(each.wrong for each in timings.values())
        if rank == 0:
            report(Gather(skew, timings["sheaf"].median_ms, timings["padded"].median_ms, wrong))


def both_ways(x: torch.Tensor) -> list[Candidate]:
    return [
        Candidate("sheaf", lambda: sheaf.all_gather(x).tensor),
        Candidate("padded", lambda: padded_gather(x)),
    ]


class Show:
    """Takes what the ranks report: progress while they run, then the verdict and the picture."""

    def __init__(self, steps: int) -> None:
        self.console = Console()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=self.console)
        self.training = self.progress.add_task("training", total=steps)
        self.timing = self.progress.add_task("timing the gather", total=len(SKEWS))
        self.steps: list[Check] = []
        self.gathers: list[Gather] = []

    def __enter__(self) -> "Show":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def take(self, message: Check | Gather) -> None:
        if isinstance(message, Check):
            self.steps.append(message)
            self.progress.advance(self.training)
            if message.difference is not None:
                sizes = " ".join(f"{rows:>2}" for rows in message.sizes)
                text = f"step {message.step:>3}   rows per rank {sizes}   loss {message.loss:.3f}"
                self.progress.print(f"{text}   gradients differ by {message.difference:.1e}", highlight=False)
        else:
            self.gathers.append(message)
            self.progress.advance(self.timing)
            text = f"skew {message.skew:<4} sheaf {message.sheaf:6.1f} ms   padded {message.padded:6.1f} ms"
            self.progress.print(f"{text}   {message.padded / message.sheaf:.1f} times", highlight=False)

    def finish(self, picture: Path) -> int:
        """0 if all gradients and all gathered results were right."""
        worst = max(each.difference for each in self.steps if each.difference is not None)
        held = worst <= TOLERANCE
        verdict = "equal to rounding" if held else f"DIFFERENT (allowed {TOLERANCE:.0e})"
        self.console.print(
            f"gradients of 4 ragged ranks and of one process: {verdict}, largest relative difference {worst:.1e}"
        )
        wrong = sum(each.wrong for each in self.gathers)
        if wrong:
            self.console.print(f"{wrong} gathered results were WRONG")
        draw(picture, self.steps, self.gathers)
        print(f"picture: {picture}")
        return 0 if held and not wrong else 1


def draw(path: Path, steps: list[Check], gathers: list[Gather]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    left.plot([each.step for each in steps], [each.loss for each in steps])
    left.set(title="contrastive loss, four ragged ranks", xlabel="step", ylabel="loss")
    skews = [each.skew for each in gathers]
    right.plot(skews, [each.padded for each in gathers], "s--", label="padded way")
    right.plot(skews, [each.sheaf for each in gathers], "o-", label="sheaf.all_gather")
    right.set(title="gathering the same bytes", xlabel="skew: longest block / mean block", ylabel="ms, slowest rank")
    right.set_ylim(bottom=0)
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)
    plt.close(figure)
