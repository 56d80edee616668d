# SPDX-License-Identifier: MIT
"""How the ops come by their lowerings: never before Inductor is there, always when it is, and not on other torches."""

import subprocess
import sys

import pytest

OPS = "[getattr(torch.ops.sheaf, n).default for n in ('gather_sizes', 'all_gather_sized', 'reduce_scatter_sized')]"
GATHER = "torch.ops.sheaf.all_gather_sized(x, torch.tensor([2]), 2, 0, 1, 'sum', '')"


def python(*lines):
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sheaf_does_not_import_inductor():
    python(
        "import sys, torch, sheaf",
        "assert not any(name.startswith('torch._inductor') for name in sys.modules)",
        "import torch._inductor.lowering as inductor",
        f"assert all(op in inductor.lowerings for op in {OPS})",
    )


@pytest.mark.slow
def test_inductor_may_be_imported_first():
    python(
        "import torch",
        "import torch._inductor.lowering as inductor",
        "import sheaf",
        f"assert all(op in inductor.lowerings for op in {OPS})",
    )


@pytest.mark.slow
def test_another_torch_is_refused():
    said = python(
        "import torch, sheaf",
        "torch.__version__ = '2.99.0'",
        "import torch._inductor.lowering",
        "try:",
        f"    torch.compile(lambda x: {GATHER}, fullgraph=True)(torch.ones(2, 3))",
        "except Exception as error:",
        "    print(error)",
    )
    assert "in order under Inductor of torch 2.11 to 2.13; on torch 2.99.0" in said
