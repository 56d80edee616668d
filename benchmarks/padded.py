# SPDX-License-Identifier: MIT
"""The padded way, as many models carry it: pad to the longest, gather, concatenate, take the padding out again."""

import torch
import torch.distributed as dist
from torch.nn.functional import pad


def learn_sizes(x: torch.Tensor, dim: int = 0) -> list[int]:
    """Every rank's rows, by one gather of one number: what all ways but Sheaf's need first."""
    own = torch.tensor([x.shape[dim]], device=x.device)
    sizes = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, own)
    return torch.cat(sizes).tolist()


def gather_even(x: torch.Tensor) -> list[torch.Tensor]:
    """All blocks have one shape: each is gathered into a tensor of its own."""
    blocks = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, x)
    return blocks


def padded_to(x: torch.Tensor, longest: int, dim: int) -> torch.Tensor:
    dims_after = x.ndim - 1 - dim % x.ndim
    return pad(x, (*(0, 0) * dims_after, 0, longest - x.shape[dim]))


def without_padding(blocks: list[torch.Tensor], sizes: list[int], dim: int) -> torch.Tensor:
    """All blocks, padded to one length, in one tensor, and of that the rows that are real."""
    gathered = torch.cat(blocks, dim)
    device = gathered.device
    real = torch.arange(max(sizes), device=device) < torch.tensor(sizes, device=device).unsqueeze(1)
    return gathered.index_select(dim, real.flatten().nonzero().squeeze(1))


def padded_gather(x: torch.Tensor, dim: int = 0, *, even_shortcut: bool = False) -> torch.Tensor:
    """Gathers blocks of different lengths along `dim`; with the shortcut, equal lengths are not taken apart again."""
    sizes = learn_sizes(x, dim)
    longest = max(sizes)
    if even_shortcut and min(sizes) == longest:
        return torch.cat(gather_even(x), dim)
    padded = padded_to(x, longest, dim)
    blocks = gather_even(padded)  # held until the end, as the originals hold theirs: it counts in peak memory
    return without_padding(blocks, sizes, dim)
