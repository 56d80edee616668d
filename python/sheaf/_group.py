# SPDX-License-Identifier: MIT
"""From what a user calls a group to the name, rank and size that the ops take."""

from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch.compiler import is_compiling
from torch.distributed.device_mesh import DeviceMesh

Group: TypeAlias = dist.ProcessGroup | str | DeviceMesh | tuple[DeviceMesh, int | str] | None
"""A process group, its name, a 1-D mesh, one dim of a mesh, or None for the default group."""


_NO_RANK = "this process is not a rank of the group: call only where it is"


class Ranks(NamedTuple):
    """A group as the ops know it. The name "" is this process alone."""

    name: str
    rank: int
    world: int


class Engine(NamedTuple):
    """What carries a tensor of a group, and why, by the tensor's device."""

    cpu: str
    cuda: str


def ranks(group: Group) -> Ranks:
    """Asked at every call: nothing is cached about being distributed."""
    found = dist.group.WORLD
    if not found:  # torch 2.11 takes `is None` for false here when it compiles
        if group is not None:
            raise ValueError("a group was given, but torch.distributed is not initialized: call init_process_group")
        return Ranks("", 0, 1)
    if isinstance(group, str) and is_compiling():
        return Ranks(group, *_rank_and_size(group))
    if group is not None:
        found = process_group(group)
    rank = found.rank()
    if rank < 0:
        raise ValueError(_NO_RANK)
    return Ranks(found.group_name, rank, found.size())


def _rank_and_size(name: str) -> tuple[int, int]:
    """Of a group, as constants: a compiler cannot follow from a name to its group."""
    found = ranks(process_group(name))
    return found.rank, found.world


_rank_and_size._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler's way would import a lot


def process_group(group: object) -> dist.ProcessGroup:
    if group is None:
        world = dist.group.WORLD
        assert world is not None
        return world
    if isinstance(group, str):
        try:
            return dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type, attr-defined]
        except RuntimeError:
            why = f'there is no process group "{group}": was it destroyed, or never made?'
            raise ValueError(why) from None
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"a mesh of {group.ndim} dims is no group: pass (mesh, dim)")
        return group.get_group()
    if isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], DeviceMesh):
        return group[0].get_group(group[1])
    if isinstance(group, dist.ProcessGroup):
        return group
    if isinstance(group, int) and group == dist.GroupMember.NON_GROUP_MEMBER:  # what new_group() gives to all others
        raise ValueError(_NO_RANK)
    kind = type(group).__name__
    raise ValueError(
        f"a group is a process group, its name, a 1-D DeviceMesh or (mesh, dim), got a value of type {kind}"
    )


def engine(group: Group = None) -> Engine:
    """What carries a CPU and a CUDA tensor of this group, and why. Never communicates: before the group's first call,
    which settles it, it says what there is to choose from.

    >>> sheaf.engine().cpu  # doctest: +ELLIPSIS
    'shm (all 2 ranks are processes of one host; ...)'
    """
    return Engine(*torch.ops.sheaf.engine(ranks(group).name))
