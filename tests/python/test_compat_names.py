# SPDX-License-Identifier: MIT
"""The drop-ins' names, their small functions, and what each does without a group or alone in one."""

from __future__ import annotations

import importlib
import itertools
import os
import pickle
import subprocess
import sys
import types

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pool import fresh, run, values

SHARED = ["exists", "default", "pad_dim_to", "all_gather_variable_dim", "torch", "F", "Function", "rearrange"]
NAMES = {
    "spear_tts": ["AllGather", "all_gather", "distributed"],
    "mirasol": ["AllGather", "all_gather", "get_is_distributed", "distributed", "cache"],
    "musiclm": ["AllGather", "AllGatherFunction", "all_gather_same_dim", "nn", "dist"],
    "st_moe": [
        *["AllGather", "AllGatherFunction", "all_gather_same_dim", "gather_sizes", "has_only_one_value"],
        *["divisible_by", "split_by_rank", "nn", "dist", "pack", "unpack"],
    ],
}


def module_of(name: str) -> types.ModuleType:
    return importlib.import_module(f"sheaf.compat.{name}")


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    pytest.importorskip("einops")
    for attribute in SHARED + NAMES[name]:
        assert hasattr(module_of(name), attribute), attribute
    assert not hasattr(module_of(name), "no_such_name")


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_put_in_place_of_its_original(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sheaf

    drop_in = getattr(sheaf.compat, name)
    monkeypatch.setitem(sys.modules, f"{name}_pytorch", types.ModuleType(f"{name}_pytorch"))
    monkeypatch.setitem(sys.modules, f"{name}_pytorch.distributed", drop_in)
    space: dict[str, object] = {}
    exec(f"from {name}_pytorch.distributed import AllGather, exists\n", space)
    exec(f"from {name}_pytorch.distributed import *\n", space)
    assert space["AllGather"] is drop_in.AllGather
    assert set(NAMES[name]) - {"pack", "unpack"} <= set(space)


def test_importing_sheaf_is_enough() -> None:
    program = "import sheaf, sys; sys.modules['a.b'] = sheaf.compat.spear_tts; print(sheaf.compat.st_moe.AllGather())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "AllGather()\n"), done.stderr


def test_functions_are_functions() -> None:
    for name, function in [("spear_tts", "AllGather"), ("mirasol", "AllGather")]:
        module = module_of(name)
        assert issubclass(getattr(module, function), torch.autograd.Function)
        assert module.all_gather == getattr(module, function).apply
    for name in ("musiclm", "st_moe"):
        assert issubclass(module_of(name).AllGatherFunction, torch.autograd.Function)
        assert issubclass(module_of(name).AllGather, torch.nn.Module)


@pytest.mark.parametrize("name", NAMES)
def test_small_functions(name: str) -> None:
    module = module_of(name)
    assert (module.exists(0), module.exists(None)) == (True, False)
    assert (module.default(0, 1), module.default(None, 1)) == (0, 1)
    x = torch.arange(6).view(2, 3)
    assert module.pad_dim_to(x, 3).tolist() == [[0, 1, 2], [3, 4, 5], [0, 0, 0]]
    assert module.pad_dim_to(x, 3, dim=-2).tolist() == [[0, 1, 2], [3, 4, 5], [0, 0, 0]]
    assert module.pad_dim_to(x, 4, 1).tolist() == [[0, 1, 2, 0], [3, 4, 5, 0]]
    assert module.pad_dim_to(x, 4, -1).tolist() == [[0, 1, 2, 0], [3, 4, 5, 0]]
    assert module.pad_dim_to(x > 2, 3).tolist() == [[False] * 3, [True] * 3, [False] * 3]
    y = torch.ones(2, 1, requires_grad=True)
    (module.pad_dim_to(y, 3) * 2).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [[2.0], [2.0]]


def test_small_functions_of_st_moe() -> None:
    st_moe = module_of("st_moe")
    assert (st_moe.divisible_by(6, 3), st_moe.divisible_by(7, 3)) == (True, False)
    for values_, wanted in [([2, 2, 2], True), ([2, 2, 3], False), ([0], True)]:
        found = st_moe.has_only_one_value(torch.tensor(values_))
        assert (found.shape, found.dtype, found.item()) == ((), torch.bool, wanted)


def check_alone(name: str) -> None:
    """Where there is nothing to gather, the input comes back and gradients pass."""
    module = module_of(name)
    x = torch.ones(3, 2, requires_grad=True)
    if name == "spear_tts":
        y, sizes = module.all_gather(x, 0, None)
    else:
        layer = module.AllGather(0)
        assert layer.is_distributed is False
        y, sizes = layer(x)
    assert sizes is None
    (y * 5).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[5.0] * 2] * 3


def test_without_a_group() -> None:
    assert not dist.is_initialized()
    x = torch.ones(3, 2)
    check_alone("spear_tts")
    check_alone("musiclm")
    mirasol = module_of("mirasol")
    assert mirasol.get_is_distributed() is False
    with pytest.raises(AssertionError):
        mirasol.all_gather(x, 0, None)
    st_moe = module_of("st_moe")
    for call in (st_moe.AllGather(), st_moe.split_by_rank, lambda x: st_moe.gather_sizes(x, dim=0)):
        with pytest.raises(ValueError, match="process group"):
            call(x)
    for name in NAMES:
        with pytest.raises(ValueError, match="process group"):
            module_of(name).all_gather_variable_dim(x)


def check_one_rank(rank: int, world: int) -> None:
    check_alone("spear_tts")
    check_alone("musiclm")
    mirasol = module_of("mirasol")
    with pytest.raises(AssertionError):
        mirasol.AllGather.apply(torch.ones(1), 0, None)
    inputs = [torch.arange(6.0).view(3, 2), torch.arange(6.0).view(2, 3).t()]
    for name, x in itertools.product(NAMES, inputs):
        y, sizes = module_of(name).all_gather_variable_dim(x, dim=-1)
        assert (y.tolist(), sizes.tolist(), sizes.dtype) == (x.tolist(), [2], torch.int64)
        y.zero_()
        assert x.sum() == 15, "the result is the caller's to write"
    st_moe = module_of("st_moe")
    for call in (st_moe.AllGather(dim=1), lambda x: st_moe.AllGatherFunction.apply(x, 1, None)):
        x = torch.ones(3, 2, requires_grad=True)
        y, sizes = call(x)
        assert (sizes.tolist(), sizes.dtype) == ([2], torch.int64)
        (y * 5).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [[5.0] * 2] * 3
    assert st_moe.gather_sizes(torch.ones(4, 2), dim=0).tolist() == [4]


def test_alone_in_a_group() -> None:
    run(1, check_one_rank)


def check_groups_come_and_go(rank: int, world: int, path: str) -> None:
    # The group is taken away before modules are made, and is there again when they are called.
    mirasol, musiclm = module_of("mirasol"), module_of("musiclm")
    dist.destroy_process_group()
    layer = musiclm.AllGather(0)
    x = torch.full((rank, 1), float(rank))
    assert layer(x) == (x, None)
    assert (layer.is_distributed, mirasol.get_is_distributed()) == (False, False)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    assert (layer.is_distributed, mirasol.get_is_distributed()) == (True, True)
    assert layer(x)[1].tolist() == mirasol.all_gather(x, 0, None)[1].tolist() == list(range(world))


def test_being_distributed_is_asked_at_each_call(tmp_path: object) -> None:
    values(fresh(2, check_groups_come_and_go, f"{tmp_path}/store"))


def check_switch(rank: int, world: int) -> None:
    musiclm, mirasol = module_of("musiclm"), module_of("mirasol")
    layer = pickle.loads(pickle.dumps(musiclm.AllGather(0)))
    x = torch.ones(1, 1)
    assert layer.is_distributed is True
    layer.is_distributed = False
    assert layer(x) == (x, None)
    layer.is_distributed = None
    assert layer(x)[1].tolist() == [1] * world
    mirasol.get_is_distributed.cache_clear()
    assert mirasol.get_is_distributed() is True


def test_a_module_can_be_switched_off() -> None:
    run(2, check_switch)


def check_plain_functions(rank: int, world: int) -> None:
    for name in NAMES:
        module = module_of(name)
        x = torch.full((2, rank), float(rank), requires_grad=True)
        y, sizes = module.all_gather_variable_dim(x, dim=1)
        assert not y.requires_grad
        assert y.tolist() == [[float(r) for r in range(world) for _ in range(r)]] * 2
        z, kept = module.all_gather_variable_dim(x > 0, 1, sizes)
        assert kept is sizes
        assert torch.equal(z, y > 0)
    for name in ("musiclm", "st_moe"):
        gather: list[Tensor] = module_of(name).all_gather_same_dim(torch.full((2, 3), float(rank), requires_grad=True))
        assert [block.tolist() for block in gather] == [[[float(r)] * 3] * 2 for r in range(world)]
        assert not any(block.requires_grad for block in gather)
        gather[0].fill_(-1)
        assert world == 1 or gather[1].eq(1).all()
        assert [block.item() for block in module_of(name).all_gather_same_dim(torch.tensor(rank))] == list(range(world))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_plain_functions(world: int) -> None:
    run(world, check_plain_functions)


def check_experts(rank: int, world: int) -> None:
    # Rank r holds r + 1 rows of r: gathered, split by rank and taken apart again.
    st_moe = module_of("st_moe")
    x = torch.full((rank + 1, 2), float(rank))
    sizes = st_moe.gather_sizes(x, dim=-2)
    assert (sizes.tolist(), sizes.dtype) == (list(range(1, world + 1)), torch.int64)
    y, _ = st_moe.AllGather()(x, sizes)
    own, rows = st_moe.split_by_rank(y.split(sizes.tolist()))
    assert torch.equal(own, x)
    assert torch.equal(rows, sizes)
    even, rows = st_moe.split_by_rank(torch.arange(world * 6).view(world, 3, 2))
    assert even.tolist() == torch.arange(rank * 6, rank * 6 + 6).view(3, 2).tolist()
    assert (rows.tolist(), rows.dtype) == ([3] * world, torch.int64)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_experts_by_rank(world: int) -> None:
    run(world, check_experts)
