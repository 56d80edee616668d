# SPDX-License-Identifier: MIT
"""The drop-ins' gathers against one process that holds every block, and against the padded way they replace."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pool import run

pytestmark = pytest.mark.usefixtures("engine")

WAYS = ["spear_tts", "mirasol", "st_moe", "st_moe function", "musiclm", "musiclm function"]
SUMMED = ["musiclm all_reduce_grads", "musiclm function all_reduce_grads"]
DIMS = [0, 1, 2, -1, -2, -3]


def gather_by(way: str, x: Tensor, dim: int, sizes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    import sheaf.compat as compat

    summed = way in SUMMED
    by_name: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
        "spear_tts": lambda: compat.spear_tts.all_gather(x, dim, sizes),
        "mirasol": lambda: compat.mirasol.all_gather(x, dim, sizes),
        "st_moe": lambda: compat.st_moe.AllGather(dim=dim)(x, sizes),
        "st_moe function": lambda: compat.st_moe.AllGatherFunction.apply(x, dim, sizes),
        "musiclm": lambda: compat.musiclm.AllGather(dim, all_reduce_grads=summed)(x, sizes),
        "musiclm function": lambda: compat.musiclm.AllGatherFunction.apply(x, dim, sizes, summed),
    }
    return by_name[way.removesuffix(" all_reduce_grads")]()


def patterns(world: int) -> list[list[int]]:
    """Even; ragged; one rank idle; the last rank holds all; nobody holds any."""
    return [
        [3] * world,
        [2 * r + 1 for r in range(world)],
        [0 if r == 1 else r + 2 for r in range(world)],
        [5 if r == world - 1 else 0 for r in range(world)],
        [0] * world,
    ]


def noise(seed: int, shape: list[int], dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype) * 100
    return torch.randint(-(2**40), 2**40, shape, generator=generator).to(dtype if dtype != torch.bool else torch.int64)


def block_of(rank: int, sizes: list[int], dim: int, dtype: torch.dtype = torch.float64) -> Tensor:
    shape = [2, 3, 4]
    shape[dim] = sizes[rank]
    block = noise(rank, shape, dtype)
    return block % 2 == 0 if dtype == torch.bool else block


def padded_gather(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """What the helpers do: everybody sends as many rows as the longest has, the filler is cut out again."""
    world = dist.get_world_size()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(lengths, torch.tensor([x.size(dim)]))
    sizes = torch.cat(lengths)
    shape = list(x.shape)
    shape[dim] = int(sizes.max())
    mine = x.new_zeros(shape)
    mine.narrow(dim, 0, x.size(dim)).copy_(x)
    blocks = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(blocks, mine)
    return torch.cat([b.narrow(dim, 0, n) for b, n in zip(blocks, sizes.tolist(), strict=True)], dim), sizes


def same(found: Tensor, wanted: Tensor) -> bool:
    return found.dtype == wanted.dtype and found.shape == wanted.shape and torch.equal(found, wanted)


def check_values(rank: int, world: int, way: str, dtype: torch.dtype) -> None:
    for sizes in patterns(world):
        for dim in DIMS:
            x = block_of(rank, sizes, dim, dtype)
            truth = torch.cat([block_of(r, sizes, dim, dtype) for r in range(world)], dim)
            y, learned = gather_by(way, x, dim)
            assert same(y, truth), (sizes, dim)
            assert same(learned, torch.tensor(sizes)), (sizes, dim, learned)
            assert learned.device == x.device
            assert y.is_contiguous()
            again, kept = gather_by(way, x, dim, learned)
            assert same(again, truth), (sizes, dim)
            assert kept.data_ptr() == learned.data_ptr(), "the given sizes come back"
            if sum(sizes) > 0:
                y, learned = padded_gather(x, dim)
                assert same(y, truth)
                assert same(learned, torch.tensor(sizes))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("way", WAYS + SUMMED)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_values(world: int, way: str, dtype: torch.dtype) -> None:
    run(world, check_values, way, dtype)


def truths(way: str, rank: int, sizes: list[int], dim: int) -> tuple[Tensor, Tensor]:
    """First and second derivative for the own block, from one process that knows all blocks and losses."""
    world = len(sizes)
    blocks = [block_of(r, sizes, dim).requires_grad_() for r in range(world)]
    y = torch.cat(blocks, dim)
    # In `own` mode a rank differentiates its own loss by its own block; summed, all losses by all blocks.
    ranks = range(world) if way in SUMMED else [rank]
    loss = sum((loss_of(r, y) for r in ranks), torch.zeros((), dtype=y.dtype))
    first = torch.autograd.grad(loss, blocks, create_graph=True)
    curvature = sum((first[r] * direction_of(r, sizes, dim)).sum() for r in ranks)
    second = torch.autograd.grad(curvature, blocks)
    return first[rank].detach(), second[rank]


def loss_of(rank: int, y: Tensor) -> Tensor:
    return (noise(1000 + rank, list(y.shape)) * y**3).sum()


def direction_of(rank: int, sizes: list[int], dim: int) -> Tensor:
    return noise(2000 + rank, list(block_of(rank, sizes, dim).shape))


def check_gradients(rank: int, world: int, way: str) -> None:
    for sizes in patterns(world):
        for dim in DIMS:
            first, second = truths(way, rank, sizes, dim)
            x = block_of(rank, sizes, dim).requires_grad_()
            learned = None
            for _ in range(2):  # with sizes learned, then given
                y, learned = gather_by(way, x, dim, learned)
                (got,) = torch.autograd.grad(loss_of(rank, y), x, create_graph=True)
                (again,) = torch.autograd.grad((got * direction_of(rank, sizes, dim)).sum(), x)
                torch.testing.assert_close(got, first, rtol=1e-12, atol=0)
                torch.testing.assert_close(again, second, rtol=1e-12, atol=1e-6)
                if way not in SUMMED:
                    assert same(got.detach(), first), "the own slice is exact"


@pytest.mark.parametrize("way", WAYS + SUMMED)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_first_and_second_gradients(world: int, way: str) -> None:
    run(world, check_gradients, way)


def check_other_branch(rank: int, world: int, way: str) -> None:
    # The gradient that reaches the gather is also another leaf's, and it is expanded from one element.
    x = torch.full((rank + 1, 2), 3.0, requires_grad=True)
    y, _ = gather_by(way, x, 0)
    other = torch.zeros_like(y, requires_grad=True)
    ((rank + 1) * (y + other).sum()).backward()
    factor = sum(range(1, world + 1)) if way in SUMMED else rank + 1
    assert torch.equal(x.grad, torch.full_like(x, factor))
    assert torch.equal(other.grad, torch.full_like(y, rank + 1))


@pytest.mark.parametrize("way", WAYS + SUMMED)
def test_incoming_gradients_are_left_alone(way: str) -> None:
    run(3, check_other_branch, way)


def check_constant_rank(rank: int, world: int) -> None:
    # Rank 0 has nothing to train, yet its loss is part of the others' gradients.
    x = torch.full((rank + 1, 2), 1.0, requires_grad=rank > 0)
    y, _ = gather_by("musiclm all_reduce_grads", x, 0)
    ((rank + 1) * y).sum().backward()
    assert x.grad is None if rank == 0 else torch.equal(x.grad, torch.full_like(x, sum(range(1, world + 1))))


def test_a_rank_without_gradients_takes_part_in_the_sum() -> None:
    run(3, check_constant_rank)


def check_inputs(rank: int, world: int, way: str) -> None:
    sizes = [r + 1 for r in range(world)]
    whole = torch.cat([block_of(r, sizes, 1) for r in range(world)], 1)
    x = block_of(rank, sizes, 1)
    for given in (x.transpose(0, 2).contiguous().transpose(0, 2), torch.nn.Parameter(x)):
        y, _ = gather_by(way, given, 1)
        assert same(y.detach(), whole)
    expanded, _ = gather_by(way, torch.full((1, 1), float(rank)).expand(2, rank + 1), -1)
    assert expanded.tolist() == [[float(r) for r in range(world) for _ in range(r + 1)]] * 2
    for some in ([0] * world, sizes):  # a list was never accepted by the helpers, here it is
        y, learned = gather_by(way, x.narrow(1, 0, some[rank]), 1, some)
        assert y.shape[1] == sum(some)
        assert same(learned, torch.tensor(some))


@pytest.mark.parametrize("way", WAYS + SUMMED)
def test_layouts_parameters_and_lists(way: str) -> None:
    run(3, check_inputs, way)


def check_copied_modules(rank: int, world: int) -> None:
    from sheaf.compat import musiclm, st_moe

    x = torch.full((rank, 2), float(rank))
    for module in (musiclm.AllGather(0), musiclm.AllGather(-2, all_reduce_grads=True), st_moe.AllGather(dim=0)):
        twin = copy.deepcopy(torch.nn.Sequential(module))[0]
        (y, sizes), (z, same_sizes) = module(x), twin(x)
        assert torch.equal(y, z)
        assert sizes.tolist() == same_sizes.tolist() == list(range(world))
        assert (twin.dim, vars(twin).get("all_reduce_grads")) == (module.dim, vars(module).get("all_reduce_grads"))


def test_modules_survive_deepcopy() -> None:
    run(3, check_copied_modules)
