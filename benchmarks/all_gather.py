# SPDX-License-Identifier: MIT
"""Forward: every rank's block into one tensor on all ranks, rows along dim 0, sizes unknown beforehand."""

import torch
import torch.distributed as dist

from benchmarks.cases import Case
from benchmarks.engine import Candidate, Workload
from benchmarks.padded import learn_sizes, padded_gather


def workload(case: Case, rank: int) -> Workload:
    import sheaf

    # Element i of the result is i: float32 holds every whole number this table needs exactly.
    expected = torch.arange(case.rows * case.width, dtype=torch.float32).view(case.rows, case.width)
    sizes = case.sizes
    x = expected.split(sizes)[rank].clone()
    return Workload(
        expected,
        [
            Candidate("sheaf", lambda: sheaf.all_gather(x).tensor),
            Candidate("sheaf, sizes given", lambda: sheaf.all_gather(x, sizes=sizes).tensor),
            Candidate("padded", lambda: padded_gather(x)),
            Candidate("padded, even shortcut", lambda: padded_gather(x, even_shortcut=True)),
            Candidate("all_to_all_single", lambda: by_all_to_all(x)),
            Candidate("broadcasts", lambda: by_broadcasts(x)),
            Candidate("memcpy of N", expected.clone),
        ],
    )


def by_all_to_all(x: torch.Tensor) -> torch.Tensor:
    """The same block sent to everyone; the call wants a copy of it for each receiver."""
    sizes = learn_sizes(x)
    result = x.new_empty(sum(sizes), *x.shape[1:])
    copies = x.repeat(len(sizes), *[1] * (x.ndim - 1))
    dist.all_to_all_single(result, copies, sizes, [x.shape[0]] * len(sizes))
    return result


def by_broadcasts(x: torch.Tensor) -> torch.Tensor:
    """Each rank broadcasts its block into its place in the result, all at once; empty blocks send nothing."""
    sizes = learn_sizes(x)
    result = x.new_empty(sum(sizes), *x.shape[1:])
    blocks = result.split(sizes)
    blocks[dist.get_rank()].copy_(x)
    pending = [dist.broadcast(block, src, async_op=True) for src, block in enumerate(blocks) if len(block)]
    for each in pending:
        assert each is not None
        each.wait()
    return result
