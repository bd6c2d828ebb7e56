"""What packages are made of: files that git tracks, as they lie in the checkout, and their time.

A checkout holds environments, notes and results beside them, and none of that belongs in a package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SHOWN = 5
"""Of the files that are left out this many are named."""


class BuildError(Exception):
    """The package cannot be built; says why and what to do."""


def run(*argv: str | Path, env: dict[str, str] | None = None) -> str:
    """Standard output of a command.

    Raises:
        BuildError: It failed or is not installed.
    """
    try:
        done = subprocess.run(
            [*map(str, argv)],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
    except FileNotFoundError:
        msg = (
            f"{argv[0]} is not installed; on Debian: apt-get install dpkg git lintian python3-venv"
        )
        raise BuildError(msg) from None
    if done.returncode:
        shown = " ".join(map(str, argv))
        msg = f"{shown}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}"
        raise BuildError(msg)
    return done.stdout


def epoch_s() -> int:
    """SOURCE_DATE_EPOCH, else the time of the last commit, else that of the changelog."""
    if text := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(text)
    if not _is_checkout():
        # An archive has it from who packed it.
        return int((ROOT / "CHANGELOG.md").stat().st_mtime)
    return int(run("git", "-C", ROOT, "log", "-1", "--format=%ct"))


def dated(now_s: int) -> dict[str, str]:
    """The environment for tools that write times into what they make: *now_s*, epoch seconds."""
    return {**os.environ, "SOURCE_DATE_EPOCH": str(now_s)}


def export(directory: Path) -> Path:
    """Where the sources lie alone: in *directory*, which must not be there yet.

    Of an unpacked source distribution, which git knows nothing of, it is that itself.

    Raises:
        BuildError: git cannot be asked.
    """
    if not _is_checkout():
        return ROOT
    for name in _git("ls-files"):
        source, target = ROOT / name, directory / name
        # What is deleted and still tracked is left out, as from any package built in place.
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    if stray := _git("ls-files", "--others", "--exclude-standard"):
        more = f" and {len(stray) - _SHOWN} more" if len(stray) > _SHOWN else ""
        named = ", ".join(map(ascii, stray[:_SHOWN]))
        print(f"left out, since git does not track it: {named}{more}", file=sys.stderr)
    return directory


def _is_checkout() -> bool:
    return (ROOT / ".git").exists()


def _git(*words: str) -> list[str]:
    return [name for name in run("git", "-C", ROOT, *words, "-z").split("\0") if name]
