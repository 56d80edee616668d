# SPDX-License-Identifier: MIT
"""Every block of every document does what it says, every name and path in them exists, and docstrings hold."""

import doctest
import io
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

import sheaf
from pool import run
from snippets import DOCUMENTS, ROOT, Snippet, all_blocks, blocks, cpp_program, run_cpp, run_python
from tools import check_doc_paths

LANGUAGES = {"python", "cpp", "cmake", "sh", "text"}
COMMANDS = {"cmake", "ctest", "git", "make", "pip", "python", "torchrun", ".ci/run", ".venv/bin/python"}
CODE = (
    "".join(
        path.read_text()
        for folder in ("include", "src", "python", "cmake")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".hpp", ".cpp", ".py", ".cmake")
    )
    + (ROOT / "CMakeLists.txt").read_text()
)


def named(snippet: Snippet) -> str:
    return snippet.name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_names_a_language_that_is_tested(document: Path) -> None:
    for each in blocks(document):
        assert each.language in LANGUAGES, f"{each.name}: {each.language or 'no language'}: one of {LANGUAGES}"


def by_pace(snippet: Snippet) -> object:
    return pytest.param(snippet, marks=pytest.mark.slow) if "slow" in snippet.options else snippet


@pytest.mark.parametrize("snippet", [*map(by_pace, all_blocks("python"))], ids=named)
def test_python(snippet: Snippet, tmp_path: Path) -> None:
    run_python(snippet, tmp_path)


def test_cpp(tmp_path: Path) -> None:
    snippets = all_blocks("cpp")
    said = run_cpp(snippets, tmp_path, sheaf.LIBRARY.path)
    assert [line for line in said.splitlines() if ".md:" in line] == [each.name for each in snippets]


def test_a_cpp_block_keeps_its_place() -> None:
    text = cpp_program([Snippet("README.md", 7, "cpp", {"ranks": "2"}, "#include <vector>\nint one = 1;\n")])
    assert '#line 7 "README.md"\n\nint one = 1;' in text and "sheaf::spawn(2, snippet_0::run);" in text


@pytest.mark.parametrize("snippet", all_blocks("cmake"), ids=named)
def test_cmake_is_what_the_consumer_builds(snippet: Snippet) -> None:
    built = (ROOT / "tests" / "consumer" / "CMakeLists.txt").read_text()
    built_lines = {line.strip() for line in built.splitlines()}
    for line in snippet.text.split("\n"):
        assert not line.strip() or line.strip() in built_lines, f"{snippet.name}: {line}"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def presets() -> set[str]:
    return {each["name"] for each in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}


def check_command(words: list[str]) -> None:
    """A command line names what is there: make targets, presets, modules, files, settings."""
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        assert words.pop(0).split("=")[0] in CODE
    assert words[0] in COMMANDS, words
    if words[0] == "make":
        assert {word for word in words[1:] if "=" not in word} <= make_targets(), words
    if "--preset" in words:
        assert words[words.index("--preset") + 1] in presets(), words
    if "-m" in words:
        module = words[words.index("-m") + 1]
        known = module == "pytest" or any((root / module / "__main__.py").exists() for root in (ROOT, ROOT / "python"))
        assert known, words
    for word in words[1:]:
        if word.endswith((".py", ".sh")) and "/" in word:
            assert (ROOT / word).exists(), words
    help_text = "".join(path.read_text() for path in [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py")])
    if "benchmarks" in words:
        assert all(word in help_text for word in words if word.startswith("--")), words


@pytest.mark.parametrize("snippet", all_blocks("sh"), ids=named)
def test_shell_commands_exist(snippet: Snippet) -> None:
    for line in snippet.text.splitlines():
        for command in re.split(r"&&|\|", line):
            words = shlex.split(command, comments=True)
            if words:
                check_command(words)


def test_a_command_that_does_not_exist_is_found() -> None:
    for command in ("make everything", "cmake --preset fastest", "SHEAF_SPEED=1 python x", "python -m sheave"):
        with pytest.raises(AssertionError):
            check_command(command.split())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_exist(document: Path) -> None:
    text = document.read_text()
    for name in set(re.findall(r"SHEAF_[A-Z_]+\b", text)):
        assert name in CODE, name
    for dotted in set(re.findall(r"`(sheaf(?:\.[A-Za-z_]\w*)+)", text)):
        found = sheaf
        for part in dotted.split(".")[1:]:
            assert hasattr(found, part), dotted
            found = getattr(found, part)
    for name in set(re.findall(r"sheaf::(?:compat::|nn::)?([a-z_A-Z]\w*)", text)):
        assert re.search(rf"\b{name}\b", CODE), name


def test_schemas_are_the_registered_ones() -> None:
    (text,) = [each.text for each in all_blocks("text") if "all_gather_sized(Tensor" in each.text]
    written = re.sub(r"\n +", " ", text).splitlines()
    assert len(written) == 13
    for line in written:
        schema = torch._C.parse_schema(f"sheaf::{line}")
        assert schema == getattr(torch.ops.sheaf, line.split("(")[0]).default._schema, line


def test_paths_exist() -> None:
    assert check_doc_paths.main() == 0


def test_picture_is_made_by_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["picture.py", "--out", str(tmp_path / "ragged.png")])
    runpy.run_path(str(ROOT / "docs" / "picture.py"), run_name="__main__")
    assert (tmp_path / "ragged.png").read_bytes().startswith(b"\x89PNG")
    assert (ROOT / "docs" / "images" / "ragged.png").stat().st_size < 200_000


def hold_docstrings(rank: int, world: int) -> int:
    """Runs the examples of the docstrings, for which rank 0 holds 2 rows and rank 1 holds 3; how many there were."""
    rows = 2 + rank
    x, sizes = torch.full((rows, 4), float(rank)), torch.tensor([2, 3])
    given = {"torch": torch, "sheaf": sheaf, "rank": rank, "x": x, "y": torch.zeros(5, 4), "sizes": sizes}
    objects = [sheaf.all_gather, sheaf.gather_sizes, sheaf.split, sheaf.offset, sheaf.reduce_scatter, sheaf.engine]
    objects += [sheaf.all_gather_coalesced, sheaf.reduce_scatter_coalesced]
    tests = [(found, given) for each in objects for found in doctest.DocTestFinder().find(each, each.__name__)]
    across = {**given, "x": torch.zeros(4, rows)}
    tests += [(found, across) for found in doctest.DocTestFinder().find(sheaf.nn.AllGather, "AllGather")]
    count = 0
    for test, names in tests:
        said = io.StringIO()
        test.globs = dict(names)
        runner = doctest.DocTestRunner(verbose=False)
        assert runner.run(test, out=said.write).failed == 0, said.getvalue()
        count += len(test.examples)
    return count


def test_docstrings() -> None:
    assert run(2, hold_docstrings) == [15, 15]
    collectives = [sheaf.all_gather, sheaf.reduce_scatter, sheaf.gather_sizes, sheaf.nn.AllGather]
    for each in [*collectives, sheaf.all_gather_coalesced, sheaf.reduce_scatter_coalesced]:
        said = " ".join((each.__doc__ or "").split())
        assert "Shapes: " in said and "ranks must agree on" in said, each
