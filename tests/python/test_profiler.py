# SPDX-License-Identifier: MIT
"""torch's profiler around calls: its sessions end, and Sheaf's messages may outlive them."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import sheaf
from pool import fresh, values

pytestmark = pytest.mark.usefixtures("engine")


def calls(x):
    sheaf.all_gather(x).tensor.sum().backward()
    for _ in range(3):
        sheaf.all_gather(x.detach())  # what it leaves behind to receive the next one is not received in this session


def sessions(rank, world):
    """Memory that a session gave back is taken for zeros: nobody may write there any more. Says what was seen of the
    ops, and how many blocks are no longer zero."""
    x = torch.ones(rank + 2, 3, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as session:
        calls(x)
    seen = {event.name for event in session.events() if event.name.startswith("sheaf::")}
    spoilt, kept = 0, []
    for _ in range(60):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True):
            calls(x)
        kept = [*kept[-2:], [bytearray(bytes(size)) for size in (1_000, 30_000, 60_000, 120_000) for _ in range(20)]]
        spoilt += sum(any(block) for blocks in kept for block in blocks)
    return sorted(seen), spoilt


def test_sessions_that_end():
    for seen, spoilt in values(fresh(2, sessions, timeout=100)):
        assert {"sheaf::all_gather", "sheaf::reduce_scatter_sized"} <= set(seen), seen
        assert spoilt == 0
