# SPDX-License-Identifier: MIT
"""`python -m sheaf`: what was built, for which torch, and what carries tensors on this host."""

import fcntl
import os
import platform
import socket
from pathlib import Path

import torch
import torch.distributed as dist

import sheaf


def main() -> None:
    backends = [name for name in ("gloo", "nccl", "mpi", "ucc") if getattr(dist, f"is_{name}_available")()]
    forbidden = no_shared_memory()
    print(f"sheaf {sheaf.__version__}, built for torch {sheaf.LIBRARY.torch}, at {sheaf.LIBRARY.path}")
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print("engines:")
    if not forbidden:
        print("  shm      CPU tensors in shared memory, where all ranks of a group are on one host: the default there")
    print(f"  c10d     CPU tensors over a process group's backend; torch has {', '.join(backends) or 'none'}")
    print("  threads  CPU tensors between threads of one process, for C++ programs")
    if sheaf.LIBRARY.cuda:
        print("  collectives  CUDA tensors over a process group's backend for them, such as nccl")
    missing = []
    if forbidden:
        missing.append(f"shm: this host forbids it ({forbidden}): ranks of one host use c10d, which is slower")
    if not sheaf.LIBRARY.cuda:
        missing.append("CUDA tensors: this build carries CPU tensors; build Sheaf with a torch that has CUDA")
    if "gloo" not in backends:
        missing.append("this torch has no gloo: make groups with another backend that sends and receives CPU tensors")
    if missing:
        print("missing:", *missing, sep="\n  ")


def no_shared_memory() -> str | None:
    """Why this host has no memory that processes can share as shm does: sealed memory files, abstract sockets,
    /proc of its own processes."""
    tried = "memfd_create"
    try:
        file = os.memfd_create("sheaf", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            tried = "sealing a memfd"
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        finally:
            os.close(file)
        tried = "listening at a local socket"
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"\0sheaf-{os.getpid()}-{os.urandom(8).hex()}")
            one.listen()
        tried = "reading /proc/self"
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            return "/proc does not show its processes"
    except OSError as error:
        return f"{tried}: {error.strerror}"
    return None


if __name__ == "__main__":
    main()
