# SPDX-License-Identifier: MIT
"""Sheaf on CUDA tensors: the kernels beside one copy, local passes, and whole gathers of four ranks on one GPU beside
the padded way. `make bench-gpu` measures all and writes the section of docs/benchmarks.md."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch.distributed as dist

from benchmarks.gpu import choices, kernels, local, ranks, report, started, whole
from benchmarks.gpu.report import Measured
from benchmarks.page import fill

PARTS = ["kernels", "local", "whole", "choices", "started"]
BODIES = {
    "whole": whole.rank_body,
    "started": started.rank_body,
    "choices": choices.rank_body,
}


def say(part: str) -> None:
    print(f"== {part}", file=sys.stderr, flush=True)


def measure(found: Measured, device: str, library: str | None, only: list[str], keep: Callable[[], None]) -> None:
    """Into `found`, part by part; each is kept before the next one begins."""
    quick = found.quick
    share = {"whole", "choices"} & set(only)
    if device == "cuda" and share:
        ranks.service()  # or say so now
    if library and "kernels" in only:
        say("placing and packing")
        found.kernels = kernels.table(library)
        keep()
    if "local" in only:
        say("local work")
        loaded = kernels.Kernels(library) if library else None
        found.local = local.table(loaded, device, [1] if quick else [1, 64, 512], 3 if quick else 15)
        keep()
    if share:
        with ranks.at_once(device):
            if "whole" in only:
                say("whole gathers, four ranks")
                kibs = [1, 256] if quick else [1, 64, 1024, 4096, 16384, 65536]
                found.whole = whole.table(device, 4, kibs, 3 if quick else 9)
                keep()
            if "choices" in only:
                say("other ways")
                kibs = [1, 64] if quick else [1, 16, 64, 256, 512, 1024, 4096, 16384, 65536]
                found.choices = choices.tables(device, 4, kibs, 3 if quick else 9)
                keep()
    if "started" in only:
        say("calls that are started")
        found.started = started.table(device, 2, [1] if quick else [1, 64 * 1024], 2 if quick else 5)
        keep()


def run_rank(part: str, rank: str, world: str, store: str, device: str, kibs: str, rounds: str) -> None:
    ranks.join(int(rank), int(world), store, device)
    BODIES[part](device, [int(kib) for kib in kibs.split(",")], int(rounds))
    dist.destroy_process_group()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--kernels", metavar="LIBRARY", help="the library of benchmarks/cuda/place.cu")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quick", action="store_true", help="few and small")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts, beside what the file of --json has")
    parser.add_argument("--json", type=Path, metavar="OUT", help="keep tables in this file, part by part")
    parser.add_argument("--from", type=Path, dest="source", metavar="JSON", help="measure nothing, show an earlier run")
    parser.add_argument("--write-docs", action="store_true", help="rewrite the section of docs/benchmarks.md")
    parser.add_argument("--rank", nargs=7, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.rank:
        run_rank(*args.rank)
        return 0
    if args.source:
        found = report.load(args.source)
    else:
        found = report.begin(args.json if args.only else None, args.device, args.quick)
        measure(found, args.device, args.kernels, args.only or PARTS, partial(report.save, args.json, found))
    text = report.section(found)
    print(text)
    if not args.write_docs:
        return 0
    if found.missing:
        print(f"docs/benchmarks.md is left as it is; not measured: {', '.join(found.missing)}", file=sys.stderr)
        return 1
    fill(report.PAGE, report.BEGIN, report.END, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
