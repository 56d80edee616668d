# SPDX-License-Identifier: MIT
"""`sum` backward: rank r gets its rows of the sum of all ranks' gradients; sizes are known from forward."""

import torch
import torch.distributed as dist

from benchmarks.cases import Case
from benchmarks.engine import Candidate, Workload
from benchmarks.groups import OURS, OURS_C10D, Groups


def workload(case: Case, rank: int, groups: Groups) -> Workload:
    import sheaf

    sizes = case.sizes
    # Whole numbers small enough that every order of summation gives the same bits, and different on every rank.
    base = torch.arange(case.nbytes // 4, dtype=torch.float32).remainder_(1021).view(case.shape)
    total = sum(range(1, case.world + 1))
    expected = base.split(sizes)[rank] * total
    grad = base.mul_(rank + 1)

    x = torch.zeros_like(expected, requires_grad=True)
    gathered = sheaf.all_gather(x, group=groups.chosen).tensor
    by_c10d = sheaf.all_gather(x, group=groups.c10d).tensor
    scratch = torch.empty_like(grad)

    def refresh() -> None:
        grad.add_(rank + 1)
        expected.add_(total)

    def refill() -> None:
        scratch.copy_(grad)

    return Workload(
        expected,
        [
            Candidate(OURS, lambda: torch.autograd.grad(gathered, x, grad, retain_graph=True)[0]),
            Candidate(OURS_C10D, lambda: torch.autograd.grad(by_c10d, x, grad, retain_graph=True)[0]),
            Candidate("sheaf.reduce_scatter", lambda: sheaf.reduce_scatter(grad, sizes, group=groups.chosen)),
            Candidate("padded, all-reduce", lambda: all_reduced_slice(scratch, sizes), refill),
            Candidate("all_to_all_single", lambda: by_all_to_all(grad, sizes)),
            Candidate("reduces", lambda: by_reduces(scratch, sizes), refill),
        ],
        refresh,
        case.calls,
    )


def all_reduced_slice(grad: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """What the padded way does for a summed gradient: all-reduce the whole of it in place, keep the own rows."""
    dist.all_reduce(grad)
    own: torch.Tensor = grad.split(sizes)[dist.get_rank()]
    return own


def by_all_to_all(grad: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Everyone's rows go to their owner, who sums what came."""
    own, world = sizes[dist.get_rank()], len(sizes)
    parts = grad.new_empty(world * own, *grad.shape[1:])
    dist.all_to_all_single(parts, grad, [own] * world, sizes)
    return parts.view(world, own, *grad.shape[1:]).sum(0)


def by_reduces(grad: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """One reduce a rank, rooted at the owner, all at once; it writes into the gradient on every rank."""
    blocks: tuple[torch.Tensor, ...] = grad.split(sizes)
    pending = [dist.reduce(block, dst, async_op=True) for dst, block in enumerate(blocks) if len(block)]
    for each in pending:
        assert each is not None
        each.wait()
    return blocks[dist.get_rank()]
