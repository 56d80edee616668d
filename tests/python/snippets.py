# SPDX-License-Identifier: MIT
"""The fenced blocks of the documents, and how the Python and C++ ones are run.
The word after the fence is the language; what follows says how: `ranks=3`, `torchrun=3`, `setup`, `slow`,
`SHEAF_CHECK=1`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from pool import Outcome, fresh, run, values

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCE = re.compile(r"^```(.*)$")
PRINTS = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)
SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Snippet:
    """One fenced block."""

    document: str  # relative to the root
    line: int  # of its first line of text
    language: str
    options: dict[str, str]
    text: str

    @property
    def name(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def ranks(self) -> int:
        return int(self.options.get("ranks", 0))

    @property
    def prints(self) -> list[str]:
        """What the comments behind its print calls promise, in order, of rank 0."""
        return PRINTS.findall(self.text)


def blocks(document: Path) -> list[Snippet]:
    """Every fenced block of a document, in order."""
    found: list[Snippet] = []
    info, first, lines = None, 0, []
    for number, line in enumerate(document.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if fence and info is None:
            info, first, lines = fence[1].strip(), number + 1, []
        elif fence:
            assert info is not None
            language, *words = info.split() or [""]
            options = {name: value for name, _, value in (word.partition("=") for word in words)}
            text = "\n".join(lines) + "\n"
            found.append(Snippet(str(document.relative_to(ROOT)), first, language, options, text))
            info = None
        else:
            lines.append(line)
    assert info is None, f"{document}: a fence is not closed"
    return found


def all_blocks(*languages: str) -> list[Snippet]:
    """Of all documents. A block of setup stands before every later block of its document that runs on ranks."""
    found: list[Snippet] = []
    for document in DOCUMENTS:
        setup = ""
        for each in blocks(document):
            if "setup" in each.options:
                setup += each.text
            elif each.language == "python" and each.ranks:
                found.append(dataclasses.replace(each, text=setup + each.text))
            else:
                found.append(each)
    return [each for each in found if not languages or each.language in languages]


def perform(rank: int, world: int, text: str, name: str) -> list[str]:
    """Runs a block on one rank, and returns the lines it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(text, name, "exec"), {"__name__": "__main__"})
    if dist.is_initialized():
        dist.barrier()  # a rank that a block leaves behind is this block's fault, not the next one's
    return said.getvalue().splitlines()


def run_python(snippet: Snippet, folder: Path) -> None:
    """Runs it as its options say, and compares what rank 0 printed with what its comments promise."""
    if "torchrun" in snippet.options:
        said = run_by_torchrun(snippet, folder)
    elif snippet.ranks == 0:
        said = perform(0, 1, snippet.text, snippet.name)
    else:
        said = run_on_ranks(snippet)[0]
    assert said == snippet.prints, f"{snippet.name} prints {said}, but says that it prints {snippet.prints}"


def run_on_ranks(snippet: Snippet) -> list[list[str]]:
    environment = {name: value for name, value in snippet.options.items() if name.isupper()}
    if not environment:
        lines: list[list[str]] = run(snippet.ranks, perform, snippet.text, snippet.name, timeout=SECONDS)
        return lines
    outcomes: list[Outcome] = fresh(
        snippet.ranks, perform, snippet.text, snippet.name, env=environment, timeout=SECONDS
    )
    return values(outcomes)


def run_by_torchrun(snippet: Snippet, folder: Path) -> list[str]:
    """A whole program, started as a user would."""
    program = folder / "program.py"
    program.write_text(snippet.text)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, f"--nproc-per-node={snippet.options['torchrun']}", str(program)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{snippet.name}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def cpp_program(snippets: list[Snippet]) -> str:
    """One program that runs every block: a whole program as it is, any other as every rank of a group of threads."""
    includes: list[str] = ["#include <sheaf/sheaf.hpp>", "#include <cstdio>"]
    parts, calls = [], []
    for number, snippet in enumerate(snippets):
        lines = snippet.text.splitlines()
        includes += [line for line in lines if line.startswith("#include")]
        body = "\n".join("" if line.startswith("#include") else line for line in lines)
        where = f'\n#line {snippet.line} "{snippet.document}"\n'
        space = f"snippet_{number}"
        calls.append(f'  std::puts("{snippet.name}");')
        if "int main()" in body:
            parts.append(f"namespace {space} {{{where}{body.replace('int main()', 'void run()')}\n}}")
            calls.append(f"  {space}::run();")
        else:
            assert snippet.ranks > 0, f"{snippet.name}: a block that is no whole program needs ranks="
            argument = "[[maybe_unused]] const sheaf::group& group"
            parts.append(f"namespace {space} {{\nvoid run({argument}) {{{where}{body}\n}}\n}}")
            calls.append(f"  sheaf::spawn({snippet.ranks}, {space}::run);")
    return "\n".join([*dict.fromkeys(includes), *parts, "int main() {", *calls, "}", ""])


def run_cpp(snippets: list[Snippet], folder: Path, library: Path) -> str:
    """Compiles all blocks into one program against the library, runs it, and returns what it said."""
    source, program = folder / "snippets.cpp", folder / "snippets"
    source.write_text(cpp_program(snippets))
    torch_root = Path(torch.__file__).parent
    headers = [torch_root / "include", torch_root / "include" / "torch" / "csrc" / "api" / "include"]
    folders = [library.parent, torch_root / "lib"]
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{ROOT / 'include'}"]
    command += [part for header in headers for part in ("-isystem", str(header))]
    command += [str(source), "-o", str(program)]
    command += [part for where in folders for part in (f"-L{where}", f"-Wl,-rpath,{where}")]
    command += ["-lsheaf", "-ltorch_cpu", "-lc10", "-pthread"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"after {done.stdout}\n{done.stderr}"
    return done.stdout
