"""Other Pythons than the one of the tests: training environments have older and newer ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

VERSIONS = ("3.8", "3.11", "3.13")


@cache
def _found(version: str) -> Path | None:
    if version == ".".join(map(str, sys.version_info[:2])):
        return Path(sys.executable)
    named = shutil.which(f"python{version}")
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    others = sorted(root.glob(f"versions/{version}.*/bin/python{version}"))
    for path in ([Path(named)] if named else []) + others:
        # A shim of pyenv's may be there for a Python that is not chosen.
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def python(version: str) -> Path:
    """The program of that version; without it the test is skipped."""
    path = _found(version)
    if path is None:
        pytest.skip(f"there is no python{version} on PATH or in pyenv")
    return path
