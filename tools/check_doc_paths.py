# SPDX-License-Identifier: MIT
"""Checks that every path named in a document exists: links, and whatever looks like a file or folder of this project.

A path may be relative to the root, to the document, or to where includes and imports are looked up.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = "c|cpp|hpp|h|py|pyi|md|txt|toml|json|cmake|in|sh|png|svg"
# Made by a build or a run, so not there in a fresh clone.
GENERATED = re.compile(r"^(\./)?(build[\w-]*|out|dist|\.venv|\.stamps)(/|$)|libsheaf\.json$|^sheafConfig\.cmake$")

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
SPAN = re.compile(rf"`<?([\w./*-]+(?:\.(?:{SUFFIXES})|/))>?`")
INCLUDE = re.compile(r'#include [<"](sheaf/[\w./]+)[>"]')


def tree_paths() -> re.Pattern[str]:
    """Anything that begins with a folder of the root, in running text and in code, too."""
    folders = [entry.name for entry in ROOT.iterdir() if entry.is_dir() and not GENERATED.match(entry.name)]
    names = "|".join(re.escape(name) for name in sorted(folders) if name not in (".git",))
    return re.compile(rf"(?<![\w./-])((?:{names})/[\w./*-]*\w)")


def named_in(text: str, tree: re.Pattern[str]) -> set[str]:
    """The paths that a document names."""
    text = re.sub(r"https?://[^\s)>\]]+", "", text)
    found = {match for pattern in (LINK, SPAN, INCLUDE, tree) for match in pattern.findall(text)}
    return {name for name in found if not GENERATED.search(name) and not name.startswith(("mailto:", "/"))}


def exists(name: str, document: Path) -> bool:
    """Whether a path, which may hold `*`, is there under any of the roots."""
    roots = [ROOT, document.parent, ROOT / "include", ROOT / "src", ROOT / "python", ROOT / "python" / "sheaf"]
    if "*" in name:
        return any(next(root.glob(name), None) for root in roots)
    return any((root / name).exists() for root in roots)


def main() -> int:
    """Prints what is missing; 1 if anything is."""
    tree = tree_paths()
    documents = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    named = [(document, name) for document in documents for name in sorted(named_in(document.read_text(), tree))]
    missing = [(document, name) for document, name in named if not exists(name, document)]
    for document, name in missing:
        print(f"{document.relative_to(ROOT)}: no such path: {name}", file=sys.stderr)
    print(f"{len(named)} paths in {len(documents)} documents, {len(missing)} missing")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
