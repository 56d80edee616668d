# SPDX-License-Identifier: MIT
"""Sheaf on CUDA tensors: the kernels beside one copy, local passes, and whole gathers of four ranks on one GPU beside
the padded way. Writes its section of docs/benchmarks.md: `make bench-gpu`."""

import argparse
from pathlib import Path

import torch

from benchmarks.gpu import kernels, local, whole

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- bench-gpu: begin -->", "<!-- bench-gpu: end -->"

KERNELS = """### Placing and packing

The blocks of eight ranks to their places along an inner dim (forward) and back (its adjoint): bandwidth as a share of
one device copy of N, beside `torch.cat` and one strided copy a rank.
"""
LOCAL = """### Local work

What a rank's device does beside the collective, eight ranks. Along dim 0 Sheaf copies its own block; along dim 1 its
kernel places all blocks. The padded way pads its own block, joins the padded ones and picks the rows that are real.
"""
WHOLE = """### Whole gathers, 4 ranks on one GPU

Over sockets, since ranks that share a GPU have no faster way. Ratios are times of the other way over Sheaf's.
"""


def section(device: str, library: str | None, quick: bool) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    parts = [f"## On a GPU\n\nMeasured on {name}, torch {torch.__version__}; medians of ways that take turns.\n"]
    if library:
        parts.append(KERNELS + "\n" + "\n".join(kernels.table(library)) + "\n")
    loaded = kernels.Kernels(library) if library else None
    passes = local.table(loaded, device, [1] if quick else [1, 64, 512], 3 if quick else 15)
    parts.append(LOCAL + "\n" + "\n".join(passes) + "\n")
    gathers = whole.table(device, 4, [1, 256] if quick else [1, 64, 1024, 64 * 1024], 3 if quick else 9)
    parts.append(WHOLE + "\n" + "\n".join(gathers) + "\n")
    return "\n".join(parts)


def write(text: str) -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before.rstrip()}\n\n{BEGIN}\n{text}{END}\n{after.lstrip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", help="the library of benchmarks/cuda/place.cu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="few and small, and nothing is written")
    parser.add_argument("--rank", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank, world, store, device, kibs, rounds = args.rank
        whole.rank_body(int(rank), int(world), store, device, [int(kib) for kib in kibs.split(",")], int(rounds))
        return
    text = section(args.device, args.kernels, args.quick)
    print(text)
    if not args.quick:
        write(text)


if __name__ == "__main__":
    main()
