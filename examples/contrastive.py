# SPDX-License-Identifier: MIT
"""Four processes train a two-tower contrastive model on ragged batches: `python examples/contrastive.py`.
Every rank's pairs meet every other rank's, and the gradients equal those of one process with the whole batch."""

import argparse
import sys
from copy import deepcopy
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import sheaf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the plain file runs, too

from benchmarks.launch import Report, run_ranks
from examples.contrastive_report import Check, Show, measure_skew

WORLD, STEPS, CHECK_EVERY = 4, 160, 10
LATENT, INPUT, FEATURE = 8, 32, 16


class TwoTowers(nn.Module):
    """One tower for each side of a pair; both end on the unit sphere of one feature space."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (
            nn.Sequential(nn.Linear(INPUT, 64), nn.GELU(), nn.Linear(64, FEATURE)) for _ in range(2)
        )
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pairs: Tensor) -> Tensor:
        """Pairs (n, 2, INPUT) to features (n, 2, FEATURE)."""
        features = torch.stack([self.left(pairs[:, 0]), self.right(pairs[:, 1])], dim=1)
        return normalize(features, dim=-1)


def loss_of(own: Tensor, everyone: Tensor, first: int, scale: Tensor) -> Tensor:
    """The own rows' part of the loss: each side must find its partner, row `first + i`, among everyone's."""
    labels = torch.arange(len(own)) + first
    there = cross_entropy(scale * own[:, 0] @ everyone[:, 1].T, labels, reduction="sum")
    back = cross_entropy(scale * own[:, 1] @ everyone[:, 0].T, labels, reduction="sum")
    return (there + back) / (2 * len(everyone))  # the ranks' parts add up to the mean over the whole batch


def ragged_loss(model: TwoTowers, pairs: Tensor) -> Tensor:
    """This is the whole use of Sheaf: gather the features, ask where the own rows begin.

    grad="sum", because every rank's part of the loss depends on every rank's features: the own features must hear
    from all of them. An own slice alone would leave out that they are the negatives in the other ranks' parts.
    A rank without pairs calls this as well: its part is 0, and it takes part in both directions.
    """
    own = model(pairs)
    everyone, sizes = sheaf.all_gather(own, dim=0, grad="sum")
    return loss_of(own, everyone, sheaf.offset(sizes), model.log_scale.exp())


def whole_batch(step: int) -> tuple[list[Tensor], list[int]]:
    """All ranks' blocks, whoever asks: two noisy views of one latent a row. Every third step one rank has none."""
    rng = torch.Generator().manual_seed(step)
    sizes: list[int] = torch.randint(1, 60, (WORLD,), generator=rng).tolist()
    if step % 3 == 0:
        sizes[(step // 3) % WORLD] = 0
    views = torch.randn(2, LATENT, INPUT, generator=torch.Generator().manual_seed(0))
    latent = torch.randn(sum(sizes), LATENT, generator=rng)
    pairs = torch.einsum("nl,vli->nvi", latent, views)
    pairs += 0.3 * torch.randn(pairs.shape, generator=rng)
    return list(pairs.split(sizes)), sizes


def largest_difference(model: TwoTowers, blocks: list[Tensor]) -> float:
    """Of the model's gradients from those one process finds for the whole batch, relative to the largest entry."""
    alone = deepcopy(model)
    alone.zero_grad()
    features = alone(torch.cat(blocks))
    loss_of(features, features, 0, alone.log_scale.exp()).backward()
    truth = {name: parameter.grad for name, parameter in alone.named_parameters()}
    errors = ((p.grad - truth[name]).abs().max() / truth[name].abs().max() for name, p in model.named_parameters())
    return max(float(error) for error in errors)


def train(rank: int, report: Report, steps: int) -> None:
    """One rank's program."""
    torch.manual_seed(0)  # the same parameters everywhere
    model = TwoTowers()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        blocks, sizes = whole_batch(step)
        optimizer.zero_grad()
        loss = ragged_loss(model, blocks[rank])
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # parts of the loss add up, so their gradients do, too
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            checked = step % CHECK_EVERY == 0
            report(Check(step, sizes, float(total), largest_difference(model, blocks) if checked else None))
        optimizer.step()


def rank_main(rank: int, report: Report, steps: int, nbytes: int) -> None:
    train(rank, report, steps)
    measure_skew(rank, report, nbytes)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--mib", type=int, default=16, help="size of the gathered tensor in the timed part")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture")
    options = parser.parse_args(argv)
    with Show(options.steps) as show:
        for message in run_ranks(WORLD, rank_main, options.steps, options.mib << 20):
            show.take(message)
    return show.finish(options.out / "contrastive.png")


if __name__ == "__main__":
    sys.exit(main())
