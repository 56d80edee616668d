# SPDX-License-Identifier: MIT
"""CUDA tensors: placement beside one device copy, the padded way's local passes beside it, and whole gathers of several
ranks on one GPU beside the padded way. Writes its section of docs/benchmarks.md: `make bench-gpu`."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.functional import pad

import sheaf

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- bench-gpu: begin -->", "<!-- bench-gpu: end -->"
MIB = 1 << 20
ROW = 1024
"""Elements in a row."""

Body = Callable[[], object]


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(body: Body, device: str, calls: int) -> float:
    """Milliseconds a call, of calls that follow each other."""
    wait(device)
    begin = time.perf_counter()
    for _ in range(calls):
        body()
    wait(device)
    return (time.perf_counter() - begin) * 1e3 / calls


def in_turns(
    bodies: dict[str, Body], device: str, rounds: int, calls: int, meet: Body | None = None
) -> dict[str, float]:
    """Medians over rounds in which every way has its turn."""
    times: dict[str, list[float]] = {name: [] for name in bodies}
    for turn in range(-2, rounds):
        for name, body in bodies.items():
            if meet:
                meet()
            spent = timed(body, device, calls)
            if turn >= 0:
                times[name].append(spent)
    return {name: median(spent) for name, spent in times.items()}


def sizes_of(pattern: str, rows: int, world: int) -> list[int]:
    """Rows a rank, `rows` in all: even, one with twice its share, one with nearly everything."""
    if pattern == "even":
        return [rows // world] * world
    first = 2 * rows // world if pattern == "skew 2" else rows - world + 1
    rest = (rows - first) // (world - 1)
    return [first, *[rest] * (world - 1)]


def padded_local(padded: list[torch.Tensor], own: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """What the padded way does on the device beside its collective, which left `padded`; sizes being known."""
    longest = max(sizes)
    pad(own, (0, 0, 0, longest - own.shape[0]))
    real = torch.arange(longest, device=own.device) < torch.tensor(sizes, device=own.device).unsqueeze(1)
    return torch.cat(padded).index_select(0, real.flatten().nonzero().squeeze(1))


def local(device: str, mibs: list[int], rounds: int) -> list[str]:
    """One process, the blocks of eight ranks: local passes against one copy of the result."""
    lines = [
        "| N | pattern | one copy, ms | padded way's local passes | W copies | torch.cat |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for mib in mibs:
        for pattern in ("skew 2", "heavy"):
            sizes = sizes_of(pattern, mib * MIB // (4 * ROW), 8)
            blocks = [torch.rand(rows, ROW, device=device) for rows in sizes]
            padded = [pad(block, (0, 0, 0, max(sizes) - block.shape[0])) for block in blocks]
            whole, again = torch.cat(blocks), torch.empty(sum(sizes), ROW, device=device)

            def copies(
                again: torch.Tensor = again, blocks: list[torch.Tensor] = blocks, sizes: list[int] = sizes
            ) -> None:
                for part, block in zip(again.split(sizes), blocks, strict=True):
                    part.copy_(block)

            ways: dict[str, Body] = {
                "copy": lambda whole=whole, again=again: again.copy_(whole),
                "padded": lambda padded=padded, own=blocks[0], sizes=sizes: padded_local(padded, own, sizes),
                "copies": copies,
                "cat": lambda blocks=blocks: torch.cat(blocks),
            }
            ms = in_turns(ways, device, rounds, 10)
            ratios = [f"{ms[name] / ms['copy']:.2f}" for name in ("padded", "copies", "cat")]
            lines.append(f"| {mib} MiB | {pattern} | {ms['copy']:.3f} | {' | '.join(ratios)} |")
    return lines


def padded_gather(x: torch.Tensor, world: int) -> torch.Tensor:
    """The padded way on the device, sizes exchanged and all."""
    own = torch.tensor([x.shape[0]], device=x.device)
    heard = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(heard, own)
    sizes = torch.cat(heard).tolist()
    longest = max(sizes)
    padded = pad(x, (0, 0, 0, longest - x.shape[0]))
    blocks = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(blocks, padded)
    real = torch.arange(longest, device=x.device) < torch.tensor(sizes, device=x.device).unsqueeze(1)
    return torch.cat(blocks).index_select(0, real.flatten().nonzero().squeeze(1))


def rank_body(rank: int, world: int, store: str, device: str, kibs: list[int], rounds: int) -> None:
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
    for kib in kibs:
        for pattern in ("even", "skew 2", "heavy"):
            row = min(ROW, max(1, kib * 1024 // (4 * 4 * world)))
            sizes = sizes_of(pattern, kib * 1024 // (4 * row), world)
            x = torch.rand(sizes[rank], row, device=device)
            upstream = torch.rand(sum(sizes), row, device=device)
            truth = padded_gather(x, world)
            assert torch.equal(sheaf.all_gather(x).tensor, truth), "the ways differ"
            ways: dict[str, Body] = {
                "padded": lambda x=x: padded_gather(x, world),
                "learned": lambda x=x: sheaf.all_gather(x),
                "given": lambda x=x, sizes=sizes: sheaf.all_gather(x, sizes=sizes),
                "all-reduce": lambda upstream=upstream: dist.all_reduce(upstream.clone()),
                "scatter": lambda upstream=upstream, sizes=sizes: sheaf.reduce_scatter(upstream, sizes),
            }
            ms = in_turns(ways, device, rounds, 1 if kib > 1024 else 10, dist.barrier)
            if rank == 0:
                cells = [f"{ms['padded']:.2f}", *(f"{ms['padded'] / ms[name]:.2f}" for name in ("learned", "given"))]
                cells += [f"{ms['all-reduce']:.2f}", f"{ms['all-reduce'] / ms['scatter']:.2f}"]
                print(f"| {kib} KiB | {pattern} | {' | '.join(cells)} |", flush=True)
    dist.destroy_process_group()


def whole(device: str, world: int, kibs: list[int], rounds: int) -> list[str]:
    """Ranks as processes on one device; NCCL must take them for hosts of their own."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(world):
            env = {**os.environ, "NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
            given = [rank, world, f"{folder}/store", device, ",".join(map(str, kibs)), rounds]
            command = [sys.executable, "-m", "benchmarks.gpu", "--rank", *map(str, given)]
            ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE if rank == 0 else None, text=True))
        lines, _ = ranks[0].communicate(timeout=600)
        if any(each.wait(60) for each in ranks):
            raise SystemExit("a rank failed")
    head = "| N | pattern | padded way, ms | sheaf, learned | sheaf, given | all-reduce, ms | sheaf's backward |"
    return [head, "| --- " * 7 + "|", *lines.splitlines()]


def section(device: str, kernels: str | None, quick: bool) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    parts = [
        f"## On a GPU\n\nMeasured on {name}, torch {torch.__version__}. Ratios are times of the other way over Sheaf's;"
        " those of local passes are over one copy.\n"
    ]
    if kernels:
        table = subprocess.run([kernels], check=True, capture_output=True, text=True, timeout=300).stdout
        parts.append("### Placing and packing, GB/s, beside one device copy\n\n```text\n" + table + "```\n")
    parts.append(
        "### Local passes\n\n" + "\n".join(local(device, [1] if quick else [1, 64, 512], 3 if quick else 15)) + "\n"
    )
    kibs = [1, 256] if quick else [1, 64, 1024, 64 * 1024]
    parts.append(
        "### Whole gathers, 4 ranks on one GPU\n\n" + "\n".join(whole(device, 4, kibs, 3 if quick else 9)) + "\n"
    )
    return "\n".join(parts)


def write(text: str) -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before.rstrip()}\n\n{BEGIN}\n{text}{END}\n{after.lstrip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", help="the program of benchmarks/cuda/place.cu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="few and small, and nothing is written")
    parser.add_argument("--rank", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank, world, store, device, kibs, rounds = args.rank
        rank_body(int(rank), int(world), store, device, [int(kib) for kib in kibs.split(",")], int(rounds))
        return
    text = section(args.device, args.kernels, args.quick)
    print(text)
    if not args.quick:
        write(text)


if __name__ == "__main__":
    main()
