# SPDX-License-Identifier: MIT
"""The generated parts of pages that are otherwise written by hand."""

from pathlib import Path


def fill(page: Path, begin: str, end: str, text: str) -> None:
    """Replaces what lies between the two marks."""
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")
