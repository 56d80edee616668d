# SPDX-License-Identifier: MIT
"""`sum` backward: rank r gets its rows of the sum of all ranks' gradients; sizes are known from forward."""

import torch
import torch.distributed as dist

from benchmarks.cases import Case
from benchmarks.engine import Candidate, Workload


def workload(case: Case, rank: int) -> Workload:
    import sheaf

    sizes = case.sizes
    # Whole numbers small enough that every order of summation gives the same bits, and different on every rank.
    base = (torch.arange(case.rows * case.width, dtype=torch.float32) % 1021).view(case.rows, case.width)
    grad = base * (rank + 1)
    expected = base.split(sizes)[rank] * sum(range(1, case.world + 1))

    x = torch.zeros(sizes[rank], case.width, requires_grad=True)
    gathered = sheaf.all_gather(x, grad="sum").tensor
    scratch = torch.empty_like(grad)

    def refill() -> None:
        scratch.copy_(grad)

    return Workload(
        expected,
        [
            Candidate("sheaf", lambda: torch.autograd.grad(gathered, x, grad, retain_graph=True)[0]),
            Candidate("sheaf.reduce_scatter", lambda: sheaf.reduce_scatter(grad, sizes)),
            Candidate("padded, all-reduce", lambda: all_reduced_slice(scratch, sizes), refill),
            Candidate("all_to_all_single", lambda: by_all_to_all(grad, sizes)),
            Candidate("reduces", lambda: by_reduces(scratch, sizes), refill),
        ],
    )


def all_reduced_slice(grad: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """What the padded way does for a summed gradient: all-reduce the whole of it in place, keep the own rows."""
    dist.all_reduce(grad)
    return grad.split(sizes)[dist.get_rank()]


def by_all_to_all(grad: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Everyone's rows go to their owner, who sums what came."""
    own, world = sizes[dist.get_rank()], len(sizes)
    parts = grad.new_empty(world * own, *grad.shape[1:])
    dist.all_to_all_single(parts, grad, [own] * world, sizes)
    return parts.view(world, own, *grad.shape[1:]).sum(0)


def by_reduces(grad: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """One reduce a rank, rooted at the owner, all at once; it writes into the gradient on every rank."""
    blocks = grad.split(sizes)
    pending = [dist.reduce(block, dst, async_op=True) for dst, block in enumerate(blocks) if len(block)]
    for each in pending:
        assert each is not None
        each.wait()
    return blocks[dist.get_rank()]
