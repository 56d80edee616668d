# SPDX-License-Identifier: MIT
"""Where tests of CUDA tensors run, and with which backends."""

import pytest
import torch
import torch.distributed as dist

BOTH = "cpu:gloo,cuda:nccl"


def obstacle() -> str:
    """Why these tests cannot run; empty: they can."""
    if not torch.cuda.is_available():
        return "no GPU"
    if not dist.is_nccl_available():
        return "this torch has no NCCL"
    return ""


TESTS = [
    pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "nothing is in the way"),
    pytest.mark.usefixtures("on_gpu"),
]
