"""What a job leaves in its run directory, seen from outside: progress, checkpoints, reading them.

All of it is the user's: a file that is broken, missing or a device says nothing, and is no error.
Where root looks, it does so with the rights of the job's owner.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from slurm_dl.job.checkpoint import recorded
from slurm_dl.job.run_files import (
    LISTENING_FILE,
    PROGRESS_FILE,
    REQUEST_FILE,
    read_object,
)
from slurm_dl.signal_test.observations import MOST_FILES, SavedCheckpoint
from slurm_dl.signal_test.owner_rights import rights_of

CLOCKS_S = 1.0
"""A file system's clock may differ from ours so much."""

_OURS = ("slurm_dl.", ".slurm_dl.")


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells whether a file is another one, or was only appended to."""

    inode: int
    size_b: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Stamps:
    """The files that could be checkpoints.

    Attributes:
        files: Each with its stamp.
        incomplete: There are more, beyond `MOST_FILES` of one place.
    """

    files: dict[Path, Stamp]
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The places that a job writes to.

    Attributes:
        directory: Its run directory.
        more: Further directories that are watched.
        not_these: Files that are no checkpoints, such as its log.
        owner: Account whose rights are used, if we are root; None: ours.

    Raises:
        ConfigError: In each method, if *owner* has no account here.
    """

    directory: Path
    more: tuple[Path, ...] = ()
    not_these: frozenset[Path] = field(default_factory=frozenset)
    owner: int | None = None

    def step(self, run: int) -> int | None:
        """The step that run *run* last reported; None if it has reported none."""
        content = self._object(PROGRESS_FILE)
        step = content.get("step")
        return step if content.get("restart") == run and type(step) is int else None

    def listens(self, run: int) -> bool:
        """The script of run *run* asks whether it should stop."""
        return self._object(LISTENING_FILE).get("restart") == run

    def is_asked(self, run: int) -> bool:
        """Dlrun has taken the signal in run *run*."""
        return self._object(REQUEST_FILE).get("restart") == run

    def _object(self, name: str) -> dict[str, object]:
        with rights_of(self.owner):
            return _object(self.directory / name)

    def stamps(self) -> Stamps:
        """All files that could be checkpoints, as far as they are looked at."""
        found: dict[Path, Stamp] = {}
        incomplete = False
        with rights_of(self.owner):
            for top in (self.directory, *self.more):
                entries = _entries(top)
                for path in islice(entries, MOST_FILES):
                    if path.name.startswith(_OURS) or path in self.not_these:
                        continue
                    with contextlib.suppress(OSError):
                        is_now = path.lstat()
                        if stat.S_ISREG(is_now.st_mode):
                            found[path] = Stamp(is_now.st_ino, is_now.st_size, is_now.st_mtime_ns)
                incomplete = incomplete or next(entries, None) is not None
        return Stamps(found, incomplete)

    def written(self, before: Stamps, run: int, since_s: float) -> SavedCheckpoint:
        """What has been written since the files were as *before*, at epoch *since_s*.

        A file of which only the end is new counts as a log. If not all were looked at before,
        one that was not counts only if it was changed since then, by its own time.
        """
        now = self.stamps()
        changed = tuple(
            path
            for path, stamp in sorted(now.files.items())
            if _is_another(before.files.get(path), stamp)
            and (
                path in before.files
                or not before.incomplete
                or stamp.mtime_ns >= (since_s - CLOCKS_S) * 1e9
            )
        )
        with rights_of(self.owner):
            path, step = self._recorded(run, since_s)
        return SavedCheckpoint(
            recorded=path,
            step=step,
            files=tuple(map(self._shown, changed)),
            incomplete=before.incomplete or now.incomplete,
        )

    def _recorded(self, run: int, since_s: float) -> tuple[str | None, int | None]:
        try:
            entries = recorded(self.directory)
        except ValueError:
            return None, None
        for entry in entries:
            time_s, step = entry.get("time_s"), entry.get("step")
            if (
                entry.get("restart") == run
                and isinstance(time_s, int | float)
                and time_s >= since_s - CLOCKS_S
            ):
                return str(entry["path"]), step if type(step) is int else None
        return None, None

    def _shown(self, path: Path) -> str:
        for top in (self.directory, *self.more):
            if path.is_relative_to(top):
                return str(path.relative_to(top))
        return str(path)

    def paths(self, checkpoint: SavedCheckpoint) -> list[Path]:
        """The files of *checkpoint* that are there."""
        with rights_of(self.owner):
            found = [
                top / name
                for name in checkpoint.files
                for top in (self.directory, *self.more)
                if os.path.isfile(top / name)  # noqa: PTH113 -- no error
            ]
            if checkpoint.recorded is not None:
                whole = Path(checkpoint.recorded)
                inside = islice(_entries(whole), MOST_FILES) if os.path.isdir(whole) else [whole]  # noqa: PTH112
                found += [path for path in inside if os.path.isfile(path)]  # noqa: PTH113
        return found


class FileReads:
    """Whether files are read from now on, by the time of their last access.

    The times are set back first, so that a file system with ``relatime`` notes the next read too.
    Of another user's job only his own files are changed.

    Args:
        owner: The job's, None: we; with his rights, if we are root.

    Raises:
        ConfigError: *owner* has no account here.
    """

    def __init__(self, paths: Sequence[Path], owner: int | None = None) -> None:
        self._owner = owner
        self._before: dict[Path, int] = {}
        with rights_of(owner):
            for path in dict.fromkeys(paths):
                with contextlib.suppress(OSError):
                    times = path.lstat()
                    if not stat.S_ISREG(times.st_mode) or (owner or times.st_uid) != times.st_uid:
                        continue
                    earlier = (times.st_mtime_ns - 10**9, times.st_mtime_ns)
                    os.utime(path, ns=earlier, follow_symlinks=False)
                    self._before[path] = path.stat().st_atime_ns
            self._is_kept = any(_keeps_access_times(path) for path in self._before)

    def happened(self) -> bool | None:
        """True if one of them was read; None if the file system does not tell."""
        with rights_of(self._owner):
            for path, before_ns in self._before.items():
                with contextlib.suppress(OSError):
                    if path.stat().st_atime_ns != before_ns:
                        return True
        return False if self._is_kept else None


def _entries(top: Path) -> Iterator[Path]:
    """Directories and files below *top*, no link followed; what cannot be read is left out."""
    for here, _, names in os.walk(top):
        yield Path(here)
        yield from (Path(here, name) for name in sorted(names))


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
        return read_object(path) or {}
    except (OSError, ValueError):
        return {}
