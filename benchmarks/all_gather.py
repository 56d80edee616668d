# SPDX-License-Identifier: MIT
"""Forward: every rank's block into one tensor on all ranks, sizes unknown beforehand."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.cases import MIB, Case
from benchmarks.engine import Candidate, Workload
from benchmarks.groups import OURS, OURS_C10D, Groups
from benchmarks.padded import learn_sizes, padded_gather

PERIOD = 999_983  # a prime: no block's data are another's
READ_FROM = 16 * MIB  # where a first read of the result costs as much as the call


def workload(case: Case, rank: int, groups: Groups) -> Workload:
    import sheaf

    # Whole numbers that float32 holds exactly, before and after all refreshing.
    expected = torch.arange(case.nbytes // 4, dtype=torch.float32).remainder_(PERIOD).view(case.shape)
    dim, sizes = case.dim, case.sizes
    x = expected.split(sizes, dim)[rank].clone(memory_format=torch.contiguous_format)

    def refresh() -> None:
        x.add_(1)
        expected.add_(1)

    def ours() -> torch.Tensor:
        return sheaf.all_gather(x, dim, group=groups.chosen).tensor

    def padded() -> torch.Tensor:
        return padded_gather(x, dim)

    candidates = [
        Candidate(OURS, ours),
        Candidate(OURS_C10D, lambda: sheaf.all_gather(x, dim, group=groups.c10d).tensor),
        Candidate("sheaf, sizes given", lambda: sheaf.all_gather(x, dim, sizes=sizes, group=groups.chosen).tensor),
        Candidate("padded", padded),
        Candidate("memcpy of N", expected.clone),
    ]
    if case.nbytes >= READ_FROM:
        candidates += [Candidate("sheaf, and read", and_read(ours)), Candidate("padded, and read", and_read(padded))]
    if dim == 0:
        candidates += [
            Candidate("padded, even shortcut", lambda: padded_gather(x, even_shortcut=True)),
            Candidate("all_to_all_single", lambda: by_all_to_all(x)),
            Candidate("broadcasts", lambda: by_broadcasts(x)),
        ]
    return Workload(expected, candidates, refresh, case.calls)


def and_read(call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The call, and one pass over all bytes of its result: what is only mapped until then is paid for here."""

    def both() -> torch.Tensor:
        result = call()
        result.sum()
        return result

    return both


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
