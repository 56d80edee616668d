# SPDX-License-Identifier: MIT
"""Two process groups of the same ranks: one whose tensors Sheaf sends over c10d, one where it chooses for itself."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

SETTING = "SHEAF_ENGINE"
OURS, OURS_C10D = "sheaf", "sheaf, c10d"


@dataclass(frozen=True)
class Groups:
    """`chosen` is what users get: SHEAF_ENGINE as it was found, or `auto`."""

    c10d: dist.ProcessGroup
    chosen: dist.ProcessGroup

    def engines(self) -> dict[str, str]:
        """What carries CPU tensors, by the name of the candidate."""
        import sheaf

        return {OURS: sheaf.engine(self.chosen).cpu, OURS_C10D: sheaf.engine(self.c10d).cpu}


def make_groups() -> Groups:
    """Called by every rank. Sheaf reads its settings at a group's first call, which is made here."""
    world = dist.group.WORLD
    assert world is not None
    return Groups(settled(world, "c10d"), settled(dist.new_group(), chosen_setting()))


@contextmanager
def new_groups() -> Iterator[Groups]:
    """The same, both of them new: with them goes what Sheaf keeps of a group's results."""
    made = Groups(settled(dist.new_group(), "c10d"), settled(dist.new_group(), chosen_setting()))
    yield made
    for group in (made.c10d, made.chosen):
        dist.destroy_process_group(group)


def settled(group: object, setting: str) -> dist.ProcessGroup:
    import sheaf

    assert isinstance(group, dist.ProcessGroup)
    with engine_setting(setting):
        sheaf.gather_sizes(torch.zeros(1), group=group)
    return group


def chosen_setting() -> str:
    return os.environ.get(SETTING, "auto")


@contextmanager
def engine_setting(value: str) -> Iterator[None]:
    before = os.environ.get(SETTING)
    os.environ[SETTING] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[SETTING]
        else:
            os.environ[SETTING] = before
