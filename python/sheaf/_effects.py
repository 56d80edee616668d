# SPDX-License-Identifier: MIT
"""Tells compilers that the ops must neither be dropped nor change places: other ranks wait for them, in order."""

import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op


def register() -> None:
    # all_gather itself has a size that only its run can tell, which ordered effects do not take; compiled code calls
    # gather_sizes and all_gather_sized instead.
    for op in (torch.ops.sheaf.gather_sizes, torch.ops.sheaf.all_gather_sized, torch.ops.sheaf.reduce_scatter_sized):
        _register_effectful_op(op.default, _EffectType.ORDERED)
