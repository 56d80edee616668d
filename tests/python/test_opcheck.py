# SPDX-License-Identifier: MIT
"""Every op of the library is held against opcheck by some test, or there is a reason why it is not."""

from unittest import mock

import torch

import test_async
import test_coalesced_compile
import test_compile
from pool import run

BODIES = [test_compile.opcheck, test_coalesced_compile.opcheck, test_async.opcheck_of_starts]
NEVER_RETURN = {"sheaf::refuse"}


def checked(rank, world):
    """The ops that these tests check. What they are given is made, and not checked once more."""
    names = set()
    with mock.patch.object(torch.library, "opcheck", lambda op, args, **_: names.add(op.name())):
        for body in BODIES:
            body(rank, world)
    return names


def test_every_op_is_checked():
    every = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("sheaf::")}
    for names in run(2, checked):
        assert names.isdisjoint(NEVER_RETURN) and names | NEVER_RETURN == every
