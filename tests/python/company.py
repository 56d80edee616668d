# SPDX-License-Identifier: MIT
"""One model for the tests of what Sheaf is used beside: every rank knows all batches, and what one process makes of
them."""

import torch

import sheaf
from truth import own_rows, values


def sizes_of(world, step=0):
    """Ragged, and one rank has no rows."""
    return [(3 * r + 2 + step) % 5 if r != 1 else 0 for r in range(world)]


def batches(world, step=0):
    sizes = sizes_of(world, step)
    return [values(50 * step + r, (rows, 4), torch.float64) / 4 for r, rows in enumerate(sizes)]


class Model(torch.nn.Module):
    """A gather between two layers: what comes after it sees all ranks' rows."""

    def __init__(self, grad="sum", group=None):
        super().__init__()
        torch.manual_seed(0)
        self.before = torch.nn.Linear(4, 3, dtype=torch.float64)
        self.gather = sheaf.nn.AllGather(grad=grad, group=group)
        self.after = torch.nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x):
        return self.after(self.gather(self.before(x).tanh()).tensor)


def loss(out, rank):
    """Differs by rank, and by row."""
    return (out.sin() * (torch.arange(out.shape[0])[:, None] + 2 * rank + 1)).sum()


class Together(torch.autograd.Function):
    """All ranks' gathers in one process: their blocks in, everybody's copy of the whole out."""

    @staticmethod
    def forward(ctx, mode, *blocks):
        ctx.mode, ctx.sizes = mode, [block.shape[0] for block in blocks]
        return tuple(torch.cat(blocks) for _ in blocks)

    @staticmethod
    def backward(ctx, *seen):
        told = sum(seen) / (len(seen) if ctx.mode == "mean" else 1)
        mine = [seen[r] if ctx.mode == "own" else told for r in range(len(seen))]
        return None, *[own_rows(whole, ctx.sizes, r, 0) for r, whole in enumerate(mine)]


def one_process(world, mode="sum", step=0, scale=1):
    """The output, and for each rank the gradients of its parameters: what its backward leaves there. Parameters are
    `scale` times those of a new model."""
    model, sizes = Model(), sizes_of(world, step)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    blocks = [model.before(x).tanh() for x in batches(world, step)]
    y = torch.cat([block.detach() for block in blocks]).requires_grad_()
    out = model.after(y)
    losses = [loss(out, rank) for rank in range(world)]
    seen = [torch.autograd.grad(each, y, retain_graph=True)[0] for each in losses]
    told = sum(seen) / (world if mode == "mean" else 1)
    before, after = list(model.before.parameters()), list(model.after.parameters())
    grads = []
    for rank in range(world):
        mine = own_rows(seen[rank] if mode == "own" else told, sizes, rank, 0)
        first = torch.autograd.grad(blocks[rank], before, mine, retain_graph=True)
        grads.append([*first, *torch.autograd.grad(losses[rank], after, retain_graph=True)])
    return out.detach(), grads


def average(grads):
    """Over ranks, as data parallel wrappers do."""
    return [sum(each) / len(grads) for each in zip(*grads, strict=True)]


def mean_of_losses(world, step=0):
    """The gradients of the mean of all ranks' losses, by plain autograd in one process."""
    model = Model()
    out = model.after(model.before(torch.cat(batches(world, step))).tanh())
    (sum(loss(out, rank) for rank in range(world)) / world).backward()
    return gradients(model)


def gradients(module):
    return [parameter.grad for parameter in module.parameters()]


def close(got, expected, what=""):
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12, msg=lambda text: f"{what}: {text}")
