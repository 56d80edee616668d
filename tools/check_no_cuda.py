# SPDX-License-Identifier: MIT
"""Checks that a build without CUDA has no trace of it: neither a library that it needs nor a symbol, hidden ones among
them where the file still has them."""

import re
import subprocess
import sys
from pathlib import Path


def traces(library: Path) -> list[str]:
    """The lines that tell of CUDA or NCCL, among the libraries that it needs and its symbols."""

    def told(*command: str) -> str:
        return subprocess.run([*command, library], capture_output=True, text=True, check=True).stdout

    needed = [line for line in told("readelf", "-d").splitlines() if "(NEEDED)" in line]
    symbols = [*told("nm", "-DC").splitlines(), *told("nm", "-C").splitlines()]
    if not needed or not any(" T " in line for line in symbols):
        raise ValueError(f"{library}: readelf and nm say nothing of it")
    # describe_cuda() tells users of such a build what it lacks.
    return [line for line in needed + symbols if re.search("(?<!describe_)cuda|nccl", line, re.IGNORECASE)]


if __name__ == "__main__":
    found = traces(Path(sys.argv[1]))
    print(*found, sep="\n", end="\n" * bool(found))
    sys.exit(f"a build without CUDA has {len(found)} lines of it" if found else 0)
