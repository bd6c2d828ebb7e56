"""Builds the site of docs/ for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of *checkout* as ``make docs`` does."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=checkout,
        # A notice about a later release of mkdocs.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
