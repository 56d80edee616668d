# SPDX-License-Identifier: MIT
"""Finds the shared library of the C++ side, checks that it was built for this torch, and loads it."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import torch

_FILE = "libsheaf.so"
_PACKAGE = Path(__file__).resolve().parent


class Library(NamedTuple):
    """A library on disk, and what the record beside it says it is."""

    path: Path
    version: str
    """Sheaf's own version."""
    torch: str
    """The torch that it was built for."""
    cuda: bool
    """Whether it carries CUDA tensors."""


def find() -> Library:
    """The file that SHEAF_LIBRARY names, else the one in the installed package, else the one in the build tree.

    Nothing is loaded. ImportError if there is none.
    """
    named = os.environ.get("SHEAF_LIBRARY")
    places = [Path(named)] if named else [_PACKAGE / "lib" / _FILE, _PACKAGE.parents[1] / "build" / _FILE]
    for path in places:
        record = path.with_name("libsheaf.json")
        if path.is_file() and record.is_file():
            built = json.loads(record.read_text())
            return Library(path, built["version"], built["torch"], built.get("cuda", False))
    looked = ", ".join(map(str, places))
    raise ImportError(
        f"Sheaf's C++ library was not found with its libsheaf.json (looked at {looked}). In a source tree run `make "
        "build`; otherwise install Sheaf again from its sources, or name the library in SHEAF_LIBRARY."
    )


def load() -> Library:
    """Loads the library into this process and registers its operators. ImportError on another torch minor."""
    library = find()
    here = str(torch.__version__)
    # torch keeps no binary interface from one minor version to the next: to load the library would crash, or worse.
    if _minor(here) != _minor(library.torch):
        raise ImportError(
            f"This Sheaf was built for torch {library.torch}, but torch {here} is installed. Install torch "
            f"{_minor(library.torch)}, or build Sheaf for this torch, in its sources: pip install --no-build-isolation "
            "--force-reinstall --no-deps ."
        )
    torch.ops.load_library(str(library.path))
    return library


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
