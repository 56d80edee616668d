# SPDX-License-Identifier: MIT
"""`python -m sheaf`: what was built, for which torch, and what carries tensors on this host."""

import platform

import torch
import torch.distributed as dist

import sheaf


def main() -> None:
    backends = [name for name in ("gloo", "nccl", "mpi", "ucc") if getattr(dist, f"is_{name}_available")()]
    print(f"sheaf {sheaf.__version__}, built for torch {sheaf.LIBRARY.torch}, at {sheaf.LIBRARY.path}")
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print("engines:")
    print(f"  c10d     CPU tensors over a process group's backend; torch has {', '.join(backends) or 'none'}")
    print("  threads  CPU tensors between threads of one process, for C++ programs")
    if sheaf.LIBRARY.cuda:
        print("  collectives  CUDA tensors over a process group's backend for them, such as nccl")
    print("missing:")
    if not sheaf.LIBRARY.cuda:
        print("  CUDA tensors are refused: this build carries CPU tensors; build Sheaf with a torch that has CUDA")
    if "gloo" not in backends:
        print("  this torch has no gloo: make groups with another backend that sends and receives CPU tensors")


if __name__ == "__main__":
    main()
