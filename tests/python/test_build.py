# SPDX-License-Identifier: MIT
"""What a build for a torch without CUDA is, and refuses to be."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sheaf
from tools.check_no_cuda import traces

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sheaf.LIBRARY.cuda, reason="this build carries CUDA tensors")
def test_it_has_no_trace_of_cuda() -> None:
    assert traces(sheaf.LIBRARY.path) == []


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_cuda_cannot_be_insisted_on(tmp_path: Path) -> None:
    command = ["cmake", "-S", ROOT, "-B", tmp_path, "-DSHEAF_CUDA=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0 and "SHEAF_CUDA=ON, but the torch at" in done.stderr, done.stderr


@pytest.mark.parametrize(("torchs", "compilers", "refused"), [(99, 13, True), (13, 99, True), (13, 13, False)])
def test_a_toolkit_of_another_cuda_than_torchs_is_refused(
    tmp_path: Path, torchs: int, compilers: int, refused: bool
) -> None:
    """Both are pretended. The compiler that is named counts, not what else is there."""
    real, pretended = Path(torch.__file__).parent, tmp_path / "torch"
    (pretended / "lib").mkdir(parents=True)
    (pretended / "include").symlink_to(real / "include")
    for name in ("libtorch_cpu.so", "libc10.so"):
        (pretended / "lib" / name).symlink_to(real / "lib" / name)
    (pretended / "lib" / "libc10_cuda.so").write_bytes(b"\0libcudart-1a2b.so.%d\0" % torchs)
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho Cuda compilation tools, release {compilers}.1, V{compilers}.1.2\n")
    nvcc.chmod(0o755)
    options = ["-DSHEAF_CUDA=ON", f"-DSHEAF_TORCH_ROOT={pretended}", f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    command = ["cmake", "-S", ROOT, "-B", tmp_path / "build", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    told = " ".join(done.stderr.split())
    assert done.returncode != 0  # no such compiler compiles
    assert (f"was built for CUDA {torchs}, but {nvcc} is of CUDA {compilers}:" in told) == refused, done.stderr
