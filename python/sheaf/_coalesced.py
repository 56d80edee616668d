# SPDX-License-Identifier: MIT
"""What calls with several tensors take: one value for all of them, or one for each."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from sheaf._arguments import Sizes, Timeout, check_types, mode_argument, own, read_as_variables, refuse, rows, total
from sheaf._group import Ranks

ManySizes: TypeAlias = Sizes | Sequence[Sizes | None] | None

_PLAIN = {torch.Tensor}

NOT_GIVEN = -(2**63)
"""In the sizes that an op takes, of a tensor whose sizes are to be learned."""


class Each:
    """A call's arguments, one for each tensor, checked as far as one rank can see by types."""

    def __init__(
        self,
        op: str,
        tensors: Any,
        dim: object,
        sizes: Any,
        mode: object,
        timeout: Timeout,
        where: Ranks,
        *,
        learns: bool,
        later: bool,
    ) -> None:
        """`learns` says whether the op can learn sizes that are not given, `later` that the call is only started."""
        self.op = op
        self.where = where
        self.timeout = timeout
        self.later = later
        if isinstance(sizes, list | tuple):
            read_as_variables(sizes)
        is_whole = sizes is not None and not (isinstance(sizes, list | tuple) and any(one is None for one in sizes))
        self.sized = is_whole or not learns
        if not isinstance(tensors, list | tuple):
            self.refuse(f"a list or a tuple of tensors is needed, got {type(tensors).__name__}")
        if not tensors:
            self.refuse("no tensors were given")
        self.tensors: list[torch.Tensor] = list(tensors)
        self.shares_sizes = sizes is not None and _is_one_row(sizes)
        given = [sizes] * len(tensors) if self.shares_sizes else self._one_each("sizes", sizes)
        self.dims: list[int] = self._one_each("dim", dim)
        self.modes: list[str] = self._one_each(mode_argument(op), mode)
        self._check_types()
        if not is_whole and not learns:
            self.refuse("sizes must be given for every tensor")
        self.given: list[Any] = given
        self.rows: list[Any] = given if sizes is None else self._rows()

    def refuse(self, why: str) -> Any:
        refuse(self.op, why, self.where, sized=self.sized, timeout=self.timeout, later=self.later)

    def _check_types(self) -> None:
        for i, (x, dim, mode) in enumerate(zip(self.tensors, self.dims, self.modes, strict=True)):
            check_types(
                self.op,
                x,
                dim,
                self.where,
                sized=self.sized,
                mode=mode,
                timeout=self.timeout,
                of=f"tensor {i}: ",
                later=self.later,
            )

    def _one_each(self, what: str, value: Any) -> list[Any]:
        if isinstance(value, torch.Tensor) and value.dim() == 2:
            value = list(value.unbind(0))
        if not isinstance(value, list | tuple):
            return [value] * len(self.tensors)
        if len(value) != len(self.tensors):
            self.refuse(f"{what}: expected one for each of {len(self.tensors)} tensors, got {len(value)}")
        return list(value)

    def _rows(self) -> list[torch.Tensor | None]:
        if self.shares_sizes:
            return [self._row(0)] * len(self.tensors)
        return [None if one is None else self._row(i) for i, one in enumerate(self.given)]

    def _row(self, i: int) -> torch.Tensor:
        of = f"tensor {i}: "
        row = rows(self.op, self.given[i], self.where, of, sized=self.sized, timeout=self.timeout, later=self.later)
        if row.dim() != 1 or row.shape[0] != self.where.world:
            why = "sizes must be one row of integers, one per rank"
            if row.dim() == 1:
                why = f"sizes must have {self.where.world} entries, one per rank, got {row.shape[0]}"
            self.refuse(f"tensor {i}: {why}")
        return row

    def table(self) -> torch.Tensor | None:
        """Sizes as the ops take them, (tensors, ranks); None where none were given."""
        if not self.sized and all(row is None for row in self.rows):
            return None
        learned = torch.full((self.where.world,), NOT_GIVEN, dtype=torch.int64, device="cpu")
        return torch.stack([learned if row is None else row for row in self.rows])

    def totals(self) -> list[Any]:
        """Every tensor's rows in all, where all sizes are known."""
        return self._of_sizes(total)

    def own(self) -> list[Any]:
        """Every tensor's own rows, where all sizes were given."""
        return self._of_sizes(lambda sizes, given, *of: own(sizes, given, self.where, *of))

    def _of_sizes(self, number: Callable[..., Any]) -> list[Any]:
        if self.shares_sizes:
            return [number(self.given[0], self.rows[0], self.tensors, self.dims)] * len(self.tensors)
        every = zip(self.given, self.rows, self.tensors, self.dims, strict=True)
        return [number(sizes, given, [x], [dim]) for sizes, given, x, dim in every]

    def alone(self, timeout: float | None) -> list[torch.Tensor]:
        """In a group of one: all local checks, and every tensor's sizes."""
        first = self.tensors[0].device
        for i, x in enumerate(self.tensors):
            if x.device != first:
                self.refuse(f"tensor {i}: all tensors of one call must be on one device, got {first} and {x.device}")
        names = [f"{self.op}: tensor {i}" for i in range(len(self.tensors))]
        every = zip(self.tensors, self.rows, self.dims, names, self.modes, strict=True)
        return [torch.ops.sheaf.alone(*one, timeout=timeout) for one in every]


def are_plain(tensors: Any) -> bool:
    """Whether the op can be tried at once, as nearly always. What check_types may still object to never gets as far as
    an op, so the try fails before other ranks hear of it: see `reach_an_op`."""
    if type(tensors) not in (list, tuple) or set(map(type, tensors)) != _PLAIN:
        return False
    return torch._C._functorch.maybe_current_level() is None


def reach_an_op(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether torch calls a kernel of ours for them, and not one that is none of ours, or nothing."""
    return not any(x.is_meta or x.is_nested for x in tensors)


def _is_one_row(sizes: object) -> bool:
    if isinstance(sizes, torch.Tensor):
        return sizes.dim() != 2
    if not isinstance(sizes, list | tuple):
        return True
    return all(isinstance(size, int | torch.SymInt) for size in sizes)
