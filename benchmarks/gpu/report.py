# SPDX-License-Identifier: MIT
"""Tables of a run on a GPU, to and from JSON, and the generated section of docs/benchmarks.md."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.gpu import must_show
from benchmarks.must_show import Promise
from benchmarks.started import LATE_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- bench-gpu: begin -->", "<!-- bench-gpu: end -->"

PROMISES = """### What it must show

Each promise is judged by its worst case. Two are hard to keep here. Where one rank has nearly everything, each other
rank must receive N bytes, and the padded way brings it 3 N: so large results come about three times as fast at most,
and less where broadcasts move fewer bytes a second than an even gather. And sums of 1 KiB in a row wait for the
exchange of headers, which an all-reduce does not have.

Promised without a figure, and kept by tests (`make test-gpu`): along dim 0 a profile shows NCCL's kernels and the copy
of the own block alone, and memory peaks at the result, but where broadcasts are staged (see below); a captured graph is
replayed with ten patterns of sizes; with sizes given or learned nothing waits for the device.
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

Over sockets, since ranks that share a GPU have no faster way. They use it at the same time, by NVIDIA's multi-process
service, as ranks with a GPU each would. Ratios are times of the other way over Sheaf's.
"""
STARTED = f"""### Calls that are started

Two ranks that take turns on one GPU, one of which comes {LATE_S:g} s late: the slowest start of either, and when the
one that is not late has its result.
"""
CHOICES = """### Ways not taken, and taken

Four ranks as under "Whole gathers"; ratios are times of the other way over the first one's. Even blocks go by NCCL's
own collective. Uneven ones go directly, every block to every rank at once, up to 1 MiB in all, if no block is larger
than 256 KiB and no rank sends more than 3 MiB. All others go by one group of broadcasts, straight into place; from 256
KiB to 8 MiB, where a block begins at no multiple of 16 B, into memory where each does, and from there by a copy
(`staged`). `padded`: to the longest, and one even collective.

Sums go by all_to_all and in rank order; beside that, a group of NCCL's reduces, its all-reduce, and a gather of
everything and the own sum. Eight tensors in one call, packed, against eight calls.
"""


@dataclass
class Measured:
    """The tables of a run, as lines, and where they were measured; empty: not measured."""

    device: str
    torch: str
    quick: bool = False
    kernels: list[str] = field(default_factory=list)
    local: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    choices: list[list[str]] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        return [key for key, lines in asdict(self).items() if lines == []]


def begin(path: Path | None, device: str, quick: bool) -> Measured:
    """With the tables that the file has, if they were measured likewise."""
    here = Measured(torch.cuda.get_device_name() if device == "cuda" else "the CPU", torch.__version__, quick)
    if not path or not path.exists():
        return here
    there = load(path)
    return there if (there.device, there.torch, there.quick) == (here.device, here.torch, quick) else here


def save(path: Path | None, of: Measured) -> None:
    if not path:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(of), indent=1) + "\n")


def load(path: Path) -> Measured:
    try:
        return Measured(**json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise SystemExit(
            f"{path} has no tables of this benchmark ({error}): measure again, or name another file"
        ) from None


def promises(of: Measured) -> list[Promise]:
    promised = [*must_show.placing(of.kernels), *must_show.local_work(of.local)]
    return [*promised, *must_show.whole_gathers(of.whole), *must_show.starts(of.started)]


def section(of: Measured) -> str:
    how = "medians of ways that take turns, on the slowest rank"
    parts = [
        (f"## On a GPU\n\nMeasured on {of.device}, torch {of.torch}; {how}.\n", [[]]),
        (PROMISES, [must_show.table(promises(of))]),
        (KERNELS, [of.kernels]),
        (LOCAL, [of.local]),
        (WHOLE, [of.whole]),
        (STARTED, [of.started]),
        (CHOICES, of.choices),
    ]
    return "\n".join(
        block
        for text, tables in parts
        if text.startswith("## ") or any(tables)
        for block in [text, *("\n".join([*lines, ""]) for lines in tables if lines)]
    )
