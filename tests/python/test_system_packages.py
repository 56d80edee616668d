# SPDX-License-Identifier: MIT
"""Set-up without root: what is missing is named, with the command that installs it."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "system_packages.sh"


def asked(folder, step, **environment):
    """The script's outcome for a user who is not root."""
    (folder / "id").write_text("#!/bin/sh\necho 1000\n")
    (folder / "id").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        [SCRIPT, step], env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True, timeout=60
    )


def test_without_root_missing_packages_are_named(tmp_path):
    done = asked(tmp_path, "build", CXX="no-such-compiler", PYTHON="no-such-python")
    packages = "g++ python3 python3-venv"
    assert done.returncode == 1
    assert f"These system packages are missing: {packages}\n" in done.stderr
    assert f"sudo apt-get install -y --no-install-recommends {packages}\n" in done.stderr


def test_nothing_is_asked_where_nothing_is_missing(tmp_path):
    done = asked(tmp_path, "build")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
