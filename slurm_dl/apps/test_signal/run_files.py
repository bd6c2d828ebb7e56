"""What a job leaves in its run directory, seen from outside: progress, checkpoints, reading them.

All of it is the user's: a file that is broken, missing or a device says nothing, and is no error.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_dl.apps.test_signal.facts import Checkpoint
from slurm_dl.job.checkpoint import recorded
from slurm_dl.job.run_files import (
    LISTENING_FILE,
    PROGRESS_FILE,
    REQUEST_FILE,
    read_object,
)

MOST_FILES = 5000
"""So many are looked at in all; a run directory with more is not walked to its end."""

_LARGEST = 1_000_000
"""Bytes; our own files are far smaller."""

_OURS = ("slurm_dl.", ".slurm_dl.")


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells whether a file is another one, or was only appended to."""

    inode: int
    size_b: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The places that a job writes to.

    Attributes:
        directory: Its run directory.
        more: Further directories that are watched.
        not_these: Files that are no checkpoints, such as its log.
    """

    directory: Path
    more: tuple[Path, ...] = ()
    not_these: frozenset[Path] = field(default_factory=frozenset)

    def step(self, run: int) -> int | None:
        """The step that run *run* last reported; None if it has reported none."""
        content = _object(self.directory / PROGRESS_FILE)
        step = content.get("step")
        return step if content.get("restart") == run and type(step) is int else None

    def listens(self, run: int) -> bool:
        """The script of run *run* asks whether it should stop."""
        return _object(self.directory / LISTENING_FILE).get("restart") == run

    def is_asked(self, run: int) -> bool:
        """Dlrun has taken the signal in run *run*."""
        return _object(self.directory / REQUEST_FILE).get("restart") == run

    def stamps(self) -> dict[Path, Stamp]:
        """All files that could be checkpoints."""
        found: dict[Path, Stamp] = {}
        for top in (self.directory, *self.more):
            for here, _, names in os.walk(top):
                for name in names:
                    path = Path(here, name)
                    if name.startswith(_OURS) or path in self.not_these:
                        continue
                    with contextlib.suppress(OSError):
                        is_now = path.lstat()
                        if stat.S_ISREG(is_now.st_mode):
                            found[path] = Stamp(is_now.st_ino, is_now.st_size, is_now.st_mtime_ns)
                    if len(found) >= MOST_FILES:
                        return found
        return found

    def written(self, before: dict[Path, Stamp], run: int, since_s: float) -> Checkpoint:
        """What has been written since the files were as *before*, at epoch *since_s*.

        A file of which only the end is new counts as a log.
        """
        changed = tuple(
            path
            for path, stamp in sorted(self.stamps().items())
            if _is_another(before.get(path), stamp)
        )
        path, step = self._recorded(run, since_s)
        return Checkpoint(recorded=path, step=step, files=tuple(map(self._shown, changed)))

    def _recorded(self, run: int, since_s: float) -> tuple[str | None, int | None]:
        try:
            entries = recorded(self.directory)
        except ValueError:
            return None, None
        for entry in entries:
            time_s, step = entry.get("time_s"), entry.get("step")
            # A file system's clock may differ from ours a little.
            if (
                entry.get("restart") == run
                and isinstance(time_s, int | float)
                and time_s >= since_s - 1
            ):
                return str(entry["path"]), step if type(step) is int else None
        return None, None

    def _shown(self, path: Path) -> str:
        for top in (self.directory, *self.more):
            if path.is_relative_to(top):
                return str(path.relative_to(top))
        return str(path)

    def paths(self, checkpoint: Checkpoint) -> list[Path]:
        """The files of *checkpoint* that are there."""
        found = [
            top / name
            for name in checkpoint.files
            for top in (self.directory, *self.more)
            if (top / name).is_file()
        ]
        if checkpoint.recorded is not None:
            whole = Path(checkpoint.recorded)
            inside = sorted(whole.rglob("*"))[:MOST_FILES] if whole.is_dir() else [whole]
            found += [path for path in inside if path.is_file()]
        return found


class Reading:
    """Whether files are read from now on, by the time of their last access.

    The times are set back first, so that a file system with ``relatime`` notes the next read too.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._before: dict[Path, int] = {}
        for path in dict.fromkeys(paths):
            with contextlib.suppress(OSError):
                times = path.lstat()
                if not stat.S_ISREG(times.st_mode):
                    continue
                earlier = (times.st_mtime_ns - 10**9, times.st_mtime_ns)
                os.utime(path, ns=earlier, follow_symlinks=False)
                self._before[path] = path.stat().st_atime_ns
        self._is_kept = any(_keeps_access_times(path) for path in self._before)

    def happened(self) -> bool | None:
        """True if one of them was read; None if the file system does not tell."""
        for path, before_ns in self._before.items():
            with contextlib.suppress(OSError):
                if path.stat().st_atime_ns != before_ns:
                    return True
        return False if self._is_kept else None


def _keeps_access_times(path: Path) -> bool:
    try:
        return not os.statvfs(path).f_flag & os.ST_NOATIME
    except OSError:
        return False


def _is_another(before: Stamp | None, now: Stamp) -> bool:
    if before is None or before.inode != now.inode:
        return now.size_b > 0
    return before.mtime_ns != now.mtime_ns and now.size_b <= before.size_b


def _object(path: Path) -> dict[str, object]:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return {}
        return read_object(path) or {}
    except (OSError, ValueError):
        return {}
