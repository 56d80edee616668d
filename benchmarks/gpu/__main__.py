# SPDX-License-Identifier: MIT
"""Sheaf on CUDA tensors: the kernels beside one copy, local passes, and whole gathers of four ranks on one GPU beside
the padded way. Writes its section of docs/benchmarks.md: `make bench-gpu`."""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.gpu import choices, kernels, local, must_show, ranks, started, whole
from benchmarks.must_show import Promise
from benchmarks.started import LATE_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- bench-gpu: begin -->", "<!-- bench-gpu: end -->"

PARTS = ["kernels", "local", "whole", "choices", "started"]
LARGEST = 64 * 1024
"""KiB of the largest whole gather."""

PROMISES = """### What it must show

Each by the worst case that it covers, of all that are measured. Where it is not met: Of large results, what one rank
has nearly alone goes whole through every other rank, N bytes in and N out, where the padded way takes 3 N each; ranks
that use the GPU at once can be three times as fast at most. Results of 1 MiB go directly, from every rank to every
other, since that is faster in turns; at once, one with nearly everything sends it three times. Larger ones go round by
round, since that is faster at once; in turns, they take one each round. And of 1 KiB an all-reduce of NCCL's takes less
than the one all_to_all that sums in rank order need.
"""
KERNELS = """### Placing and packing

The blocks of eight ranks to their places along an inner dim (forward) and back (its adjoint): bandwidth as a share of
one device copy of N, beside `torch.cat` and one strided copy per rank.
"""
LOCAL = """### Local work

What a rank's device does beside the collective, eight ranks. Along dim 0 Sheaf copies its own block; along dim 1 its
kernel places all blocks. The padded way pads its own block, joins the padded ones and picks the rows that are real,
after torch has copied each padded block from where NCCL left them to a tensor of its own.
"""
WHOLE = """### Whole gathers, 4 ranks on one GPU

Over sockets, since ranks that share a GPU have no faster way. Ratios are times of the other way over Sheaf's.
"""
AT_ONCE = """They use it at the same time, by NVIDIA's multi-process service, as ranks with a GPU each would.
"""
IN_TURNS = """The GPU is one rank's at a time, for some milliseconds: what small tensors wait for is not the sockets
but their turns, and all that counts is how many steps there are.
"""
TURNS = """### The same without the service

Ratios are times of the other way over Sheaf's.
"""
STARTED = f"""### Calls that are started

Two ranks on one GPU, one of which comes {LATE_S:g} s late: the slowest start of either, and when the one that is not
late has its result.
"""
CHOICES = """### Ways not taken, and taken

Ratios are times of the other way over the first one's. Even blocks go by NCCL's own collective wherever they begin;
uneven ones by one group of broadcasts straight into place. Up to 1 MiB in all they go directly, from every rank to
every other at once, as long as none sends more than 3 MiB so (between two ranks up to 256 KiB); and up to 8 MiB they
are staged where they begin at no multiple of 16 B: by the group into memory where they do, and a copy from there.
`padded` is to pad to the longest and one even collective, `relayed` to send each other rank a part of the largest
block, which hands it on. Sums go by all_to_all and in rank order; beside that, a group of NCCL's reduces, its
all-reduce, and a gather of everything and the own sum. Eight tensors in one call, packed, against eight calls.
"""


def say(part: str) -> None:
    print(f"== {part}", file=sys.stderr, flush=True)


@dataclass
class Measured:
    """The tables of one run, as lines; empty: not asked for."""

    together: bool = False
    kernels: list[str] = field(default_factory=list)
    local: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    whole_in_turns: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    choices: list[list[str]] = field(default_factory=list)
    choices_in_turns: list[list[str]] = field(default_factory=list)


def measure(device: str, library: str | None, only: list[str], quick: bool) -> Measured:
    found = Measured()
    if library and "kernels" in only:
        say("placing and packing")
        found.kernels = kernels.table(library)
    if "local" in only:
        say("local work")
        loaded = kernels.Kernels(library) if library else None
        found.local = local.table(loaded, device, [1] if quick else [1, 64, 512], 3 if quick else 15)
    sizes = [1, 256] if quick else [1, 64, 1024, 4096, LARGEST]
    with ranks.at_once(device) as found.together:
        if "whole" in only:
            say(f"whole gathers, four ranks {'at once' if found.together else 'in turns'}")
            found.whole = whole.table(device, 4, sizes, 3 if quick else 9)
        if "choices" in only:
            say("other ways")
            kibs = [1, 64] if quick else [1, 16, 64, 256, 1024, 4096, 16384, 65536]
            found.choices = choices.tables(device, 4, kibs, 3 if quick else 9)
    if found.together and not quick and "whole" in only:
        say("whole gathers, four ranks in turns")
        found.whole_in_turns = whole.table(device, 4, sizes, 5, "in turns")
    if found.together and not quick and "choices" in only:
        say("other ways, in turns")
        found.choices_in_turns = choices.tables(device, 4, [1024, 4096, 16384], 5, "choices in turns")
    if "started" in only:
        say("calls that are started")
        found.started = started.table(device, 2, [1] if quick else [1, 64 * 1024], 2 if quick else 5)
    return found


def promises(of: Measured) -> list[Promise]:
    promised = [*must_show.placing(of.kernels), *must_show.local_work(of.local), *must_show.starts(of.started)]
    if of.whole_in_turns:
        largest = f"{LARGEST} KiB"
        promised += must_show.whole_gathers(of.whole_in_turns, ", in turns, 64 MiB", lambda n: n == largest)
        promised += must_show.whole_gathers(of.whole_in_turns, ", in turns, less than that", lambda n: n != largest)
    return promised + must_show.whole_gathers(of.whole, ", at once" if of.together else ", in turns")


def section(device: str, of: Measured) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    how = "medians of ways that take turns, on the slowest rank"
    shared = AT_ONCE if of.together else IN_TURNS
    parts = [
        (f"## On a GPU\n\nMeasured on {name}, torch {torch.__version__}; {how}.\n", [[]]),
        (PROMISES, [must_show.table(promises(of))]),
        (KERNELS, [of.kernels]),
        (LOCAL, [of.local]),
        (f"{WHOLE}\n{shared}", [of.whole]),
        (f"{TURNS}\n{IN_TURNS}", [of.whole_in_turns] if of.whole_in_turns else []),
        (STARTED, [of.started]),
        (f"{CHOICES}\n{shared}", of.choices),
        (f"The same ways, in turns.\n\n{IN_TURNS}", of.choices_in_turns),
    ]
    return "\n".join(
        block
        for text, tables in parts
        if tables
        for block in [text, *("\n".join([*lines, ""]) for lines in tables if lines)]
    )


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
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts, and nothing is written")
    parser.add_argument("--rank", nargs=7, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        part, rank, world, store, device, kibs, rounds = args.rank
        ranks.join(int(rank), int(world), store, device)
        bodies = {
            "whole": whole.rank_body,
            "in turns": whole.in_turns_body,
            "started": started.rank_body,
            "choices": choices.rank_body,
            "choices in turns": choices.in_turns_body,
        }
        bodies[part](device, [int(kib) for kib in kibs.split(",")], int(rounds))
        dist.destroy_process_group()
        return
    text = section(args.device, measure(args.device, args.kernels, args.only or PARTS, args.quick))
    print(text)
    if not args.quick and not args.only:
        write(text)


if __name__ == "__main__":
    main()
