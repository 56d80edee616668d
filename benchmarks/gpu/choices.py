# SPDX-License-Identifier: MIT
"""Other ways that Sheaf's collectives on a device could have gone, by torch.distributed alone: what its choices and
thresholds rest on."""

import torch
import torch.distributed as dist

import sheaf
from benchmarks.gpu.ranks import lines_of, slowest_in_turns
from benchmarks.gpu.timing import Body, calls_of, sizes_of

GRAINS = (16, 4, 2, 1)
"""What blocks begin at a multiple of, in bytes: a device moves so many at once."""
GRAIN = GRAINS[0]

EVEN = ["| N | blocks begin | one collective, ms | sheaf | staged | direct |", "| --- " * 6 + "|"]
GATHER = ["| N | pattern | blocks begin | broadcasts, ms | padded | staged | direct |", "| --- " * 7 + "|"]
BACK = ["| N | pattern | all_to_all and own sum, ms | reduces | all-reduce | gather and own sum |", "| --- " * 6 + "|"]
SEVERAL = ["| N of each | pattern | one call, ms | eight calls |", "| --- " * 4 + "|"]


def broadcasts(x: torch.Tensor, sizes: list[int], slots: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One grouped operation into views of one memory, `slots` bytes apart."""
    whole = x.new_empty(sum(slots))
    views = [slot[:size] for slot, size in zip(whole.split(slots), sizes, strict=True)]
    dist.all_gather(views, x)
    return whole, views


def staged(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """The same into aligned memory, and from there to the places."""
    return torch.cat(broadcasts(x, sizes, [-(-size // GRAIN) * GRAIN for size in sizes])[1])


def in_one(x: torch.Tensor, world: int) -> torch.Tensor:
    """Even blocks, by one collective straight into place."""
    whole = x.new_empty(world * x.numel())
    dist.all_gather_into_tensor(whole, x)
    return whole


def padded(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """One even collective of whole vectors, and from there to the places."""
    slot = -(-max(sizes) // GRAIN) * GRAIN
    staging = x.new_empty(len(sizes), slot)
    mine = staging[dist.get_rank()]
    mine[: x.numel()].copy_(x)
    dist.all_gather_into_tensor(staging.view(-1), mine)
    return torch.cat([row[:size] for row, size in zip(staging, sizes, strict=True)])


def direct(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Every rank's block from it to every other, in one step."""
    whole = x.new_empty(sum(sizes))
    dist.all_to_all(list(whole.split(sizes)), [x] * len(sizes))
    return whole


def gathered(whole: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """All that every rank has to every other, and the own rows' sum there."""
    rank, world = dist.get_rank(), dist.get_world_size()
    staging = whole.new_empty(world, whole.numel())
    dist.all_gather_into_tensor(staging.view(-1), whole)
    return staging.split(sizes, 1)[rank].sum(0)


def all_reduced(whole: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """The sum of everything, and of that the own rows."""
    total = whole.clone()
    dist.all_reduce(total)
    return total.split(sizes)[dist.get_rank()]


def reduces(whole: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Every rank's rows to it, by a reduce each, in one grouped operation."""
    blocks = list(whole.split(sizes))
    own = torch.empty_like(blocks[dist.get_rank()])
    dist.reduce_scatter(own, blocks)
    return own


def compared(ms: dict[str, float]) -> list[str]:
    """The first way's milliseconds, and how many times as long the others take."""
    first, *others = ms.values()
    return [f"{first:.3f}", *(f"{other / first:.2f}" for other in others)]


def compare_gathers(kib: int, device: str, rounds: int, calls: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for pattern in ("skew 2", "heavy"):
        for grain in GRAINS:
            odd = grain < GRAIN
            # The large block comes last, where others decide what it begins at.
            sizes = [(size | odd) * grain for size in reversed(sizes_of(pattern, kib * 1024 // grain, world))]
            x = torch.randint(0, 255, (sizes[rank],), dtype=torch.uint8, device=device)
            ways: dict[str, Body] = {
                "broadcasts": lambda x=x, sizes=sizes: broadcasts(x, sizes, sizes)[0],
                "padded": lambda x=x, sizes=sizes: padded(x, sizes),
                "staged": lambda x=x, sizes=sizes: staged(x, sizes),
                "direct": lambda x=x, sizes=sizes: direct(x, sizes),
            }
            truth = sheaf.all_gather(x, sizes=sizes).tensor
            assert all(torch.equal(way(), truth) for way in ways.values()), "the ways differ"
            ms = slowest_in_turns(ways, device, rounds, calls)
            if rank == 0:
                begin = f"at multiples of {grain} B"
                print(f"gather | {kib} KiB | {pattern} | {begin} | {' | '.join(compared(ms))} |", flush=True)


def compare_even(kib: int, device: str, rounds: int, calls: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for grain in GRAINS:
        sizes = [(kib * 1024 // (grain * world) | (grain < GRAIN)) * grain] * world
        x = torch.randint(0, 255, (sizes[rank],), dtype=torch.uint8, device=device)
        ways: dict[str, Body] = {
            "in one": lambda x=x: in_one(x, world),
            "sheaf": lambda x=x, sizes=sizes: sheaf.all_gather(x, sizes=sizes),
            "staged": lambda x=x, sizes=sizes: padded(x, sizes),
            "direct": lambda x=x, sizes=sizes: direct(x, sizes),
        }
        truth = sheaf.all_gather(x, sizes=sizes).tensor
        assert all(torch.equal(way(), truth) for name, way in ways.items() if name != "sheaf"), "the ways differ"
        ms = slowest_in_turns(ways, device, rounds, calls)
        if rank == 0:
            print(f"even | {kib} KiB | at multiples of {grain} B | {' | '.join(compared(ms))} |", flush=True)


def compare_sums(kib: int, device: str, rounds: int, calls: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for pattern in ("even", "skew 2", "heavy"):
        sizes = sizes_of(pattern, kib * 1024 // 4, world)
        whole = torch.rand(sum(sizes), device=device)
        ways: dict[str, Body] = {
            "sheaf": lambda whole=whole, sizes=sizes: sheaf.reduce_scatter(whole, sizes),
            "reduces": lambda whole=whole, sizes=sizes: reduces(whole, sizes),
            "all-reduce": lambda whole=whole, sizes=sizes: all_reduced(whole, sizes),
        }
        if kib <= 1024:
            ways["gather"] = lambda whole=whole, sizes=sizes: gathered(whole, sizes)
        truth = sheaf.reduce_scatter(whole, sizes)
        assert all(torch.allclose(way(), truth) for way in ways.values()), "the ways differ"
        ms = slowest_in_turns(ways, device, rounds, calls)
        if rank == 0:
            cells = [*compared(ms), *["-"] * ("gather" not in ways)]
            print(f"back | {kib} KiB | {pattern} | {' | '.join(cells)} |", flush=True)


def compare_several(kib: int, device: str, rounds: int, calls: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for pattern in ("even", "skew 2"):
        sizes = sizes_of(pattern, kib * 1024 // 4, world)
        tensors = [torch.rand(sizes[rank], device=device) for _ in range(8)]
        ways: dict[str, Body] = {
            "at once": lambda tensors=tensors: sheaf.all_gather_coalesced(tensors),
            "one by one": lambda tensors=tensors: [sheaf.all_gather(x) for x in tensors],
        }
        ms = slowest_in_turns(ways, device, rounds, calls)
        if rank == 0:
            print(f"several | {kib} KiB | {pattern} | {' | '.join(compared(ms))} |", flush=True)


def rank_body(device: str, kibs: list[int], rounds: int) -> None:
    for kib in kibs:
        calls = calls_of(kib)
        if device == "cuda":  # Gloo has no uneven lists
            compare_even(kib, device, rounds, calls)
            compare_gathers(kib, device, rounds, calls)
            compare_sums(kib, device, rounds, calls)
        if kib <= 1024:
            compare_several(kib, device, rounds, calls)


def tables(device: str, world: int, kibs: list[int], rounds: int) -> list[list[str]]:
    """Those of them that the part has."""
    found = {"even": list(EVEN), "gather": list(GATHER), "back": list(BACK), "several": list(SEVERAL)}
    for line in lines_of("choices", device, world, kibs, rounds):
        one, _, row = line.partition(" ")
        found[one].append(row)
    return [lines for lines in found.values() if len(lines) > 2]
