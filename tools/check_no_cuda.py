# SPDX-License-Identifier: MIT
"""Checks that a build without CUDA has no trace of it: neither a library that it needs nor a symbol."""

import re
import subprocess
import sys
from pathlib import Path


def traces(library: Path) -> list[str]:
    """The lines that tell of CUDA or NCCL, among the libraries that it needs and its dynamic symbols."""
    told = ""
    for command in (["readelf", "-d"], ["nm", "-DC"]):
        told += subprocess.run([*command, library], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" in told and "sheaf" in told, f"{library}: readelf and nm say nothing of it"
    return re.findall(r".*(?:cuda|nccl).*", told, re.IGNORECASE)


if __name__ == "__main__":
    found = traces(Path(sys.argv[1]))
    print("\n".join(found))
    sys.exit(f"a build without CUDA has {len(found)} lines of it" if found else 0)
