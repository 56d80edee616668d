# SPDX-License-Identifier: MIT
"""The C++ benchmark, built once for each MPI of this machine and run under its mpirun."""

import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUILDS = ROOT / "build-mpi"
TARGET = "against_mpi"


@dataclass(frozen=True)
class Mpi:
    """One MPI by the names that Debian gives its commands."""

    name: str
    compilers: tuple[str, ...]
    starters: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def compiler(self) -> str | None:
        return first_command(self.compilers, self.name)

    @property
    def starter(self) -> str | None:
        return first_command(self.starters, self.name)

    @property
    def is_installed(self) -> bool:
        return bool(self.compiler and self.starter)


# Ranks keep to cores of their own by themselves: a launcher that binds each to one would take its threads' cores.
MPIS = (
    Mpi(
        "Open MPI",
        ("mpicxx.openmpi", "mpicxx"),
        ("mpirun.openmpi", "mpirun"),
        ("--oversubscribe", "--allow-run-as-root", "--bind-to", "none"),
    ),
    Mpi("MPICH", ("mpicxx.mpich", "mpicxx"), ("mpirun.mpich", "mpirun")),
)


def first_command(names: tuple[str, ...], mpi: str) -> str | None:
    """The first that is there; a command without a suffix must say itself whose it is."""
    for name in names:
        found = shutil.which(name)
        if found and ("." in name or mpi in whose(found)):
            return found
    return None


def whose(command: str) -> str:
    """ "Open MPI", "MPICH" or "": what a compiler's or a starter's own words tell."""
    for flag in ("--version", "-show"):
        said = subprocess.run([command, flag], capture_output=True, text=True, timeout=30, check=False).stdout.lower()
        if "open mpi" in said or "openrte" in said or "openmpi" in said:
            return "Open MPI"
        if "mpich" in said or "hydra" in said:
            return "MPICH"
    return ""


def build(mpi: Mpi) -> Path:
    """The program for this MPI, built where it is not up to date."""
    folder = BUILDS / mpi.name.lower().replace(" ", "")
    configure = ["cmake", "-S", str(ROOT / "benchmarks" / "cpp"), "-B", str(folder)]
    subprocess.run([*configure, f"-DMPI_CXX_COMPILER={mpi.compiler}"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(folder), "--target", TARGET], check=True, stdout=subprocess.DEVNULL)
    return folder / TARGET


def run(mpi: Mpi, program: Path, world: int, arguments: list[str], seconds: float) -> dict[str, Any]:
    """What one run of `world` ranks wrote. Raises where it fails, is wrong or takes longer than `seconds`."""
    out = program.parent / f"{world}.json"
    out.unlink(missing_ok=True)
    command = [str(mpi.starter), *mpi.flags, "-n", str(world), str(program), "--json", str(out), *arguments]
    # A session of its own, so that all ranks can be ended together.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        status = process.wait(seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)  # mpirun ends its ranks
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        raise
    if status == 1 and out.is_file():
        raise RuntimeError(f"wrong results beside {mpi.name} at W = {world}: see {out}")
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {status}")
    content: dict[str, Any] = json.loads(out.read_text())
    return content
