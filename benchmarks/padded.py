# SPDX-License-Identifier: MIT
"""The padded way, as many models carry it: pad to the longest, gather, concatenate, take the padding out again."""

import torch
import torch.distributed as dist
from torch.nn.functional import pad


def learn_sizes(x: torch.Tensor) -> list[int]:
    """Every rank's rows, by one gather of one number: what all ways but Sheaf's need first."""
    own = torch.tensor([x.shape[0]])
    sizes = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, own)
    return torch.cat(sizes).tolist()


def gather_even(x: torch.Tensor) -> torch.Tensor:
    """All blocks have one shape: the blocks are gathered into tensors of their own, then joined by a copy."""
    blocks = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, x)
    return torch.cat(blocks)


def padded_gather(x: torch.Tensor, *, even_shortcut: bool = False) -> torch.Tensor:
    """Gathers blocks of different lengths along dim 0; with the shortcut, equal lengths are not taken apart again."""
    sizes = learn_sizes(x)
    longest = max(sizes)
    if even_shortcut and min(sizes) == longest:
        return gather_even(x)
    no_padding = (0, 0) * (x.ndim - 1)
    gathered = gather_even(pad(x, (*no_padding, 0, longest - x.shape[0])))
    starts = range(0, longest * len(sizes), longest or 1)
    kept = torch.cat([torch.arange(start, start + rows) for start, rows in zip(starts, sizes, strict=False)])
    return gathered.index_select(0, kept)
