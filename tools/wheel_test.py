# SPDX-License-Identifier: MIT
"""Installs the wheel by `pip install --no-build-isolation .` into an environment of its own and imports it there:
once as it is, once as if it had been built for another torch, where the import must fail and say why."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build-wheel"
PYTHON = str(WORK / "venv" / "bin" / "python")


def make_environment() -> Path:
    """A bare environment that sees this one's torch, but not the sources of Sheaf. Returns its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(WORK / "venv")], check=True)
    command = [PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    # Path files in a folder that a path file names are not read, so the sources stay out of sight.
    (site / "torch-from-outside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return site


def install() -> None:
    """Builds and installs; the CMake build is kept, so that a second run is quick."""
    pip = [sys.executable, "-m", "pip", "--python", PYTHON, "--disable-pip-version-check", "install", "-v"]
    options = ["--no-build-isolation", "--no-deps", "--no-index", "-C", f"build-dir={WORK / 'cmake'}"]
    with subprocess.Popen(
        [*pip, *options, str(ROOT)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Building CXX" in line or "Linking CXX" in line:
                print(line.strip(), flush=True)
    if process.returncode:
        sys.exit("".join(lines) + "wheel: pip install failed")


def run_import(code: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` away from the sources."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SHEAF_LIBRARY")}
    return subprocess.run([PYTHON, "-c", code], cwd=WORK, env=environment, capture_output=True, text=True, check=False)


def main() -> None:
    """Runs both imports and says what it saw."""
    WORK.mkdir(exist_ok=True)
    site = make_environment()
    install()

    good = run_import("import sheaf, torch; print(sheaf.__file__); torch.ops.sheaf.all_gather")
    if good.returncode or not good.stdout.startswith(str(site)):
        sys.exit(f"wheel: import failed\n{good.stdout}{good.stderr}")

    record = site / "sheaf" / "lib" / "libsheaf.json"
    built = json.loads(record.read_text())
    record.write_text(json.dumps({**built, "torch": "2.99.1"}))
    bad = run_import("import sheaf")
    record.write_text(json.dumps(built))
    here = run_import("import torch; print(torch.__version__)").stdout.strip()
    sentence = f"ImportError: This Sheaf was built for torch 2.99.1, but torch {here} is installed."
    if not bad.returncode or sentence not in bad.stderr:
        sys.exit(f"wheel: another torch minor was not refused with '{sentence}'\n{bad.stdout}{bad.stderr}")
    print("wheel: 2 imports passed, one of them refused as it should be")


if __name__ == "__main__":
    main()
