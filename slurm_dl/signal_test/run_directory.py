"""What a job leaves in its run directory and below ``--watch DIR``, seen from outside.

All of it is the user's: a file that is broken, missing or a device says nothing, and is no error.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from slurm_dl.job.checkpoint import recorded
from slurm_dl.job.run_files import LISTENING_FILE, PROGRESS_FILE, REQUEST_FILE, read_object
from slurm_dl.signal_test.verdict import SavedCheckpoint

_LAST_WORDS_BYTES = 2000


class Traces(NamedTuple):
    """What there is of checkpoints at one instant.

    Attributes:
        record: The newest entry of one run in the list of `slurm_dl.job`; empty if none.
        newest: Of each watched directory the time (ns) and path of its newest file; 0 if none.
    """

    record: Mapping[str, object]
    newest: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The run directory of a job, and the directories that are watched for checkpoints."""

    directory: Path
    watched: tuple[Path, ...] = ()

    def step(self, run: int) -> int | None:
        """The step that run *run* last reported; None if it has reported none."""
        content = self._object(PROGRESS_FILE)
        step = content.get("step")
        return step if content.get("restart") == run and type(step) is int else None

    def listens(self, run: int, mark: str = LISTENING_FILE) -> bool:
        """The script of run *run* asks whether it should stop; or has left another *mark*."""
        return self._object(mark).get("restart") == run

    def is_asked(self, run: int) -> bool:
        """Dlrun has taken the signal in run *run*."""
        return self._object(REQUEST_FILE).get("restart") == run

    def traces(self, run: int) -> Traces:
        """The checkpoints of run *run*, to be compared with later ones."""
        try:
            entries = recorded(self.directory)
        except ValueError:
            entries = []
        record = next((entry for entry in entries if entry.get("restart") == run), {})
        return Traces(record, tuple(map(_newest, self.watched)))

    def written(self, before: Traces, run: int) -> SavedCheckpoint:
        """What has been recorded and written since *before*."""
        now = self.traces(run)
        is_new = now.record != before.record
        step = now.record.get("step")
        pairs = zip(before.newest, now.newest, strict=True)
        return SavedCheckpoint(
            recorded=str(now.record["path"]) if is_new and now.record else None,
            step=step if is_new and type(step) is int else None,
            file=next((new[1] for old, new in pairs if new[0] > old[0]), None),
        )

    def _object(self, name: str) -> Mapping[str, object]:
        try:
            return read_object(self.directory / name) or {}
        except (OSError, ValueError):
            return {}


def last_words(log: Path) -> str:
    """The end of *log*; empty if it cannot be read."""
    try:
        with log.open("rb") as text:
            text.seek(max(0, text.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
            return text.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _newest(top: Path) -> tuple[int, str]:
    """Time and path of the newest regular file below *top* with content; no link is followed."""
    newest = (0, "")
    for here, _, names in os.walk(top):
        for name in names:
            path = os.path.join(here, name)  # noqa: PTH118 -- many files
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                if stat.S_ISREG(found.st_mode) and found.st_size:
                    newest = max(newest, (found.st_mtime_ns, path))
    return newest
