# SPDX-License-Identifier: MIT
"""Differentiable ragged collectives: tensors of different sizes from every rank, in one tensor.

The work is done in C++; this package names it. `python -m sheaf` says what was built and what carries it here.
"""

from sheaf import _library

LIBRARY = _library.load()
__version__ = LIBRARY.version

from sheaf import _effects, _fake, compat, nn  # noqa: E402
from sheaf._arguments import Sizes, Timeout  # noqa: E402
from sheaf._group import Engine, Group, engine  # noqa: E402
from sheaf._handle import Handle  # noqa: E402
from sheaf.all_gather import Gathered, Gradient, all_gather, gather_sizes, offset, split  # noqa: E402
from sheaf.all_gather_coalesced import all_gather_coalesced  # noqa: E402
from sheaf.reduce_scatter import Reduction, reduce_scatter  # noqa: E402
from sheaf.reduce_scatter_coalesced import reduce_scatter_coalesced  # noqa: E402

_fake.register()
_effects.register()

__all__ = [
    "Engine",
    "Gathered",
    "Gradient",
    "Group",
    "Handle",
    "Reduction",
    "Sizes",
    "Timeout",
    "all_gather",
    "all_gather_coalesced",
    "compat",
    "engine",
    "gather_sizes",
    "nn",
    "offset",
    "reduce_scatter",
    "reduce_scatter_coalesced",
    "split",
]
