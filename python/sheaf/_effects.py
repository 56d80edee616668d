# SPDX-License-Identifier: MIT
"""Tells compilers that the ops must neither be dropped nor change places: other ranks wait for them, in order."""

import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from sheaf import _inductor


def register() -> None:
    # all_gather itself has a size that only its run can tell, which ordered effects do not take; compiled code calls
    # gather_sizes and all_gather_sized instead.
    names = [
        "gather_sizes",
        "all_gather_sized",
        "reduce_scatter_sized",
        "gather_sizes_coalesced",
        "all_gather_coalesced_sized",
        "reduce_scatter_coalesced_sized",
        "numbered",  # of the call before it
        "prepare_valid",
        "clamped",  # leaves word for a later call
    ]
    ops = [getattr(torch.ops.sheaf, name).default for name in names]
    for op in ops:
        _register_effectful_op(op, _EffectType.ORDERED)
    _inductor.register(ops)
