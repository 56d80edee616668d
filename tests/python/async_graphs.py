# SPDX-License-Identifier: MIT
"""Started calls in graphs that differ by rank: their backwards have one order on all ranks all the same, that of the
plain calls. Ranks that differ are told that they disagree on the call that is differentiated, or wait in vain."""

import torch
from torch.utils.checkpoint import checkpoint

import sheaf
from truth import same


def gathered(x, started):
    call = sheaf.all_gather(x, async_op=started)
    return (call.wait() if started else call).tensor


def leaf(rank, device, scale, width=3):
    return torch.full((rank + 1, width), float(scale), device=device, requires_grad=True)


def like_the_plain_calls(program):
    """program(started) returns gradients. torch numbers the first node of a thread 0: none here is that one."""
    torch.ones(1, requires_grad=True).exp().exp()
    for number, (got, truth) in enumerate(zip(program(True), program(False), strict=True)):
        assert truth.abs().min() > 0
        same(got.cpu(), truth.cpu(), f"gradient {number}")


def cut_off_on_one_rank(rank, world, device):
    """The third call is made of the second one's result; the last rank sees no gradient through it."""

    def program(started):
        a, b = leaf(rank, device, 2), leaf(rank, device, 3)
        first, second = gathered(a, started), gathered(b, started)
        x = second * 2
        third = gathered(x.detach() if rank == world - 1 else x, started)
        ((first + second) * third.mean() * (rank + 1)).sum().backward()
        return a.grad, b.grad

    like_the_plain_calls(program)


def started_by_one_rank(rank, world, device):
    """One graph on all ranks, of plain calls but for the last one, which one rank starts."""

    def program(started):
        a, b = leaf(rank, device, 2), leaf(rank, device, 3)
        first, second = gathered(a, False), gathered(b, False)
        third = gathered(second * 2, started and rank == 0)
        (first.sum() + (third * (rank + 1)).sum()).backward()
        return a.grad, b.grad

    like_the_plain_calls(program)


def chains_of(stage, rank, world, device):
    """Two, of two stages each, and on the last rank something else: torch breaks ties by what else there is."""

    def program(started):
        a, b, other = (leaf(rank, device, scale) for scale in (2, 3, 0.5))
        first, second = stage(a, started), stage(b, started)
        beside = [other.exp() for _ in range(3)] if rank == world - 1 else []
        third, fourth = gathered(first * 2, started), gathered(second * 2, started)
        (third.sum() + 3 * fourth.sum() + sum(one.exp().sum() for one in beside)).backward()
        return a.grad, b.grad

    like_the_plain_calls(program)


def two_chains(rank, world, device):
    chains_of(gathered, rank, world, device)


class Gather(torch.autograd.Function):
    """A program's own, with a call in its backward."""

    @staticmethod
    def forward(ctx, x):
        y, ctx.sizes = sheaf.all_gather(x)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return sheaf.reduce_scatter(gradient, ctx.sizes)


def behind_nodes_of_pythons(rank, world, device):
    """Calls that are made in a node's backward, or again there, and that no graph shows."""
    chains_of(lambda x, _: Gather.apply(x), rank, world, device)
    chains_of(lambda x, _: checkpoint(gathered, x, False, use_reentrant=True), rank, world, device)

    def with_sizes(x):
        return (x * sheaf.gather_sizes(x)[-1]).exp()

    chains_of(lambda x, _: checkpoint(with_sizes, x, use_reentrant=False), rank, world, device)


def through_sums_and_several(rank, world, device):
    """Calls of every kind behind each other; the last rank sees no gradient through one of them."""
    sizes = [r + 1 for r in range(world)]

    def program(started):
        a, b = leaf(rank, device, 2), leaf(rank, device, 3)
        calls = []

        def called(function, *given):
            calls.append(function(*given, async_op=started))
            return calls[-1].wait() if started else calls[-1]

        first = called(sheaf.all_gather, a).tensor
        second, third = (one.tensor for one in called(sheaf.all_gather_coalesced, [b, b * 2]))
        mine = called(sheaf.reduce_scatter, second * (third.detach() if rank == world - 1 else third), sizes)
        last, _ = called(sheaf.reduce_scatter_coalesced, [first * mine.sum(), third * mine.sum()], sizes)
        ((last + mine) * (rank + 1)).sum().backward()
        return a.grad, b.grad

    like_the_plain_calls(program)


def in_a_checkpoint(rank, world, device):
    """Only one rank's input needs a gradient: what makes the call again in its backward does so on all of them."""

    def program(started):
        x = leaf(rank, device, 2).requires_grad_(rank == 0)

        def body(x):
            return gathered(x, started).sum() + x.exp().sum()

        (checkpoint(body, x, use_reentrant=False) * (rank + 1)).backward()
        return (x.grad,) if rank == 0 else ()

    like_the_plain_calls(program)


def several_in_a_checkpoint(rank, world, device):
    """Tensors of one call whose gradients go by nodes of their own."""
    for modes in (["own", "own"], ["sum", "own"]):

        def program(started, modes=modes):
            a, b = leaf(rank, device, 2), leaf(rank, device, 3)

            def body(a, b):
                call = sheaf.all_gather_coalesced([a, b * 2], grad=modes, async_op=started)
                (first, _), (second, _) = call.wait() if started else call
                return (first * second).exp().sum()

            (checkpoint(body, a, b, use_reentrant=False) * (rank + 1)).backward()
            return a.grad, b.grad

        like_the_plain_calls(program)


def waited_for_in_a_checkpoint(rank, world, device):
    """What was started before it is not made again, and is waited for again."""

    def program(started):
        x, weight = leaf(rank, device, 2), leaf(0, device, 3, width=1)
        call = sheaf.all_gather(x, async_op=started)

        def body(weight):
            return ((call.wait() if started else call).tensor * weight).exp().sum()

        (checkpoint(body, weight, use_reentrant=False) * (rank + 1)).backward()
        return x.grad, weight.grad

    like_the_plain_calls(program)


EVERY = [
    cut_off_on_one_rank,
    started_by_one_rank,
    two_chains,
    behind_nodes_of_pythons,
    through_sums_and_several,
    in_a_checkpoint,
    several_in_a_checkpoint,
    waited_for_in_a_checkpoint,
]
