# SPDX-License-Identifier: MIT
"""reduce_scatter_coalesced, the adjoint of all_gather_coalesced."""

from collections.abc import Sequence
from typing import Literal

import torch

from sheaf._arguments import Sizes, Timeout, alone, seconds
from sheaf._call import call
from sheaf._coalesced import Each
from sheaf._group import Group, ranks

Reduction = Literal["sum", "mean"]


def reduce_scatter_coalesced(
    tensors: Sequence[torch.Tensor],
    sizes: Sizes | Sequence[Sizes],
    dim: int | Sequence[int] = 0,
    *,
    op: Reduction | Sequence[Reduction] = "sum",
    group: Group = None,
    timeout: Timeout = None,
) -> tuple[torch.Tensor, ...]:
    """Sums the ranks' tensors, several in one call; each rank keeps its own rows of each sum, to the bit as
    `reduce_scatter` gives them. The backward is one collective, too, for those tensors that need a gradient.

    Args:
        tensors: what to sum, a list or a tuple: any dtypes but bool; for the mean, no integers either.
        sizes: how many rows each rank receives: one row for all tensors, or a list with a row for each.
        dim: where the rows lie: one for all tensors, or a list with one for each.
        op: "sum" or "mean": one for all tensors, or a list with one for each.
        group: a process group, its name, a 1-D DeviceMesh or (mesh, dim); None is the default group.
        timeout: how long to wait for other ranks, in seconds or as a timedelta; None is the group's timeout.

    Example, where rank 0 receives 2 rows of each and rank 1 receives 3:
        >>> a, b = sheaf.reduce_scatter_coalesced([torch.ones(5, 4), torch.ones(5)], [2, 3])
        >>> a[0, 0], b[0]
        (tensor(2.), tensor(2.))
    """
    where = ranks(group)
    each = Each("reduce_scatter_coalesced", tensors, dim, sizes, op, timeout, where)
    if not each.sized:
        each.refuse("sizes must be given for every tensor")
    if where.world == 1:
        each.alone()
        return tuple(map(alone, each.tensors))
    mine = call(
        torch.ops.sheaf.reduce_scatter_coalesced_sized,
        each.tensors,
        each.table(),
        each.own(),
        each.dims,
        where.world,
        each.modes,
        where.name,
        timeout=seconds(timeout),
    )
    return tuple(mine)
