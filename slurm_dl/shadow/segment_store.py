"""Where the lines lie: files of a few MiB in the state directory, the oldest dropped first.

Written by one daemon, read by anybody who may read the directory. No line is forced to the disk: a
crash of the host costs the last seconds. A torn line, a file that somebody cut or a full disk
costs the lines concerned, and the report says how many.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slurm_dl.files import replace_file
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.shadow.records import (
    LARGEST,
    LONGEST_NAME,
    UNSEEN,
    EndedJobRecord,
    Line,
    Lookout,
    WishedHandover,
    parsed,
    written,
)

SEGMENT_BYTES = 4 << 20
KEEP_SEGMENTS = 32
"""So 128 MiB at most: two weeks of a site with 100,000 jobs a day."""

DIRECTORY = "shadow"
STANDING = "standing.npz"
OPEN = "wishes.jsonl"
_MOST_STANDING = 2_000_000
_MOST_OPEN_BYTES = 64 << 20

_LEFT = re.compile(rf"\.({re.escape(STANDING)}|{re.escape(OPEN)})\.[0-9a-f]{{8}}")
_LEFT_S = 3600.0
_SEGMENT = re.compile(r"[0-9]{12}\.jsonl")
_MODE = 0o640

JOB = np.dtype(
    [
        ("job_id", np.int64),
        ("uid", np.int64),
        ("account", np.int32),
        ("gpus", np.float64),
        ("tasks", np.int32),
        ("submit_s", np.float64),
        ("start_s", np.float64),
        ("ran_s", np.float64),
        ("running", np.bool_),
        ("opted_in", np.bool_),
    ]
)
"""One unfinished job: `account` indexes a list of names, `start_s` is its first start or 0."""


class ShadowError(SlurmDlError):
    """What was kept of shadow mode cannot be read."""


@dataclass(frozen=True, slots=True, eq=False)
class UnfinishedJobs:
    """The unfinished jobs at one look."""

    now_s: float  # The look, epoch seconds
    jobs: npt.NDArray[np.void]  # ``(n,)`` of `JOB`, sorted by ``job_id``
    accounts: tuple[str, ...]  # What ``account`` indexes


@dataclass(frozen=True, slots=True)
class OpenHandovers:
    """The wishes that were open at one look."""

    now_s: float  # The look, epoch seconds
    wishes: tuple[WishedHandover, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """All that was kept of a time, or before it.

    Attributes:
        lines: In the order in which they were written.
        standing: The unfinished jobs, some minutes old; None if they cannot be read.
        bad: Lines that were left out.
    """

    lines: tuple[Line, ...]
    standing: UnfinishedJobs | None
    bad: int


class SegmentStore:
    """The writer. All methods by one thread.

    Args:
        directory: Made if it is missing.
        segment_bytes: A file that has become so long is followed by a new one.
        keep: Files that are kept.
    """

    def __init__(
        self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES, keep: int = KEEP_SEGMENTS
    ) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._keep = keep

    def tidy(self) -> None:
        """Remove what a daemon that was killed in the middle of `stand` or `hold` has left."""
        with contextlib.suppress(OSError):
            for path in self._directory.iterdir():
                if _LEFT.fullmatch(path.name) and time.time() - path.stat().st_mtime > _LEFT_S:
                    path.unlink(missing_ok=True)

    def append(self, lines: Iterable[bytes]) -> None:
        """Add *lines*, each with its line feed.

        Raises:
            OSError: They are not there, or not all of them.
        """
        content = b"".join(lines)
        if not content:
            return
        self._directory.mkdir(mode=0o750, exist_ok=True)
        path = self._current()
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _MODE)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            if path.stat().st_size and not _ends_whole(path):
                content = b"\n" + content  # What was torn costs its own line alone.
            while content:
                content = content[file.write(content) :]

    def stand(self, standing: UnfinishedJobs) -> None:
        """Replace what is known of the unfinished jobs.

        Raises:
            OSError: What was known before still stands.
        """
        self._directory.mkdir(mode=0o750, exist_ok=True)
        with replace_file(self._directory / STANDING, mode=_MODE) as file:
            np.savez(
                file,
                now_s=np.float64(standing.now_s),
                jobs=standing.jobs,
                accounts=np.array(standing.accounts or ("",), dtype=f"U{LONGEST_NAME}"),
            )

    def standing(self) -> UnfinishedJobs | None:
        """The unfinished jobs as they were last; None if nobody knows."""
        return read_standing(self._directory / STANDING)

    def hold(self, now_s: float, wishes: Iterable[WishedHandover]) -> None:
        """Replace what is known of the open wishes.

        Args:
            now_s: The look, epoch seconds.

        Raises:
            OSError: What was known before still stands.
        """
        lines = [written(wish) for wish in wishes]
        self._directory.mkdir(mode=0o750, exist_ok=True)
        with replace_file(self._directory / OPEN, mode=_MODE) as file:
            file.write(json.dumps(["open", round(now_s, 1), len(lines)]).encode("ascii") + b"\n")
            file.writelines(lines)

    def open_wishes(self) -> tuple[tuple[WishedHandover, ...], float]:
        """The wishes that are open, and the last look that is known of, epoch seconds."""
        path = self._directory / OPEN
        held = read_open(path)
        if held is None:
            return (), -math.inf
        try:
            kept = read_kept(self._directory, path.stat().st_mtime)
        except (OSError, ShadowError):
            return held.wishes, held.now_s
        looks_s = [line.to_s for line in kept.lines if isinstance(line, Lookout)]
        wishes = (line for line in kept.lines if isinstance(line, WishedHandover) and not line.end)
        return tuple(wishes), max([held.now_s, *looks_s])

    def _current(self) -> Path:
        there = _segments(self._directory)
        if there and there[-1].stat().st_size < self._segment_bytes:
            return there[-1]
        number = int(there[-1].stem) + 1 if there else 1
        for old in there[: max(0, len(there) + 1 - self._keep)]:
            old.unlink(missing_ok=True)
        return self._directory / f"{number:012}.jsonl"


def read_kept(directory: Path, since_s: float) -> Kept:
    """What is kept of the time since *since_s*, epoch seconds; something of before may be in it.

    Raises:
        ShadowError: There is nothing, or it may not be read.
    """
    lines: list[Line] = []
    bad = 0
    # Before the lines: what is begun meanwhile is later than the look of the open wishes.
    held = read_open(directory / OPEN)
    try:
        segments = [p for p in _segments(directory) if p.stat().st_mtime >= since_s]
        for segment in segments:
            with segment.open("rb") as file:
                # Not splitlines(): a line ends with a line feed and with nothing else.
                for raw in filter(None, file.read(4 * SEGMENT_BYTES).split(b"\n")):
                    line = parsed(raw)
                    bad += line is None
                    if line is not None:
                        lines.append(line)
    except PermissionError:
        msg = f"no permission to read {directory}: be root, or of the group of dlschedd's account"
        raise ShadowError(msg) from None
    except OSError as err:
        msg = f"{directory}: {err.strerror or err}; has dlschedd run in shadow mode?"
        raise ShadowError(msg) from None
    if held is not None:
        lines += held.wishes
    found = tuple(_merged(lines))
    if held is not None:
        still = {wish.key for wish in held.wishes}
        found = tuple(_known(line, still, held.now_s) for line in found)
    return Kept(found, read_standing(directory / STANDING), bad)


def _known(line: Line, still: AbstractSet[str], now_s: float) -> Line:
    """*line*; of a wish that should be among those *still* open at *now_s*, nobody saw the end."""
    if (
        not isinstance(line, WishedHandover)
        or line.end
        or line.begin_s > now_s
        or line.key in still
    ):
        return line
    return dataclasses.replace(line, end=UNSEEN)


def _merged(lines: Iterable[Line]) -> Iterator[Line]:
    """Each job and each wish once: a daemon that is started again may say them again."""
    once: dict[object, Line] = {}
    for line in lines:
        match line:
            case EndedJobRecord():
                # One that was gone after a restart may have been seen to end before it.
                if line.how != "V" or (line.job_id, line.submit_s) not in once:
                    once[line.job_id, line.submit_s] = line
            case WishedHandover():
                before = once.get(line.key)
                once[line.key] = (
                    joined(before, line) if isinstance(before, WishedHandover) else line
                )
            case Lookout():
                # The first look of some minutes is said at once, and again with the others.
                once["looks", line.from_s] = line
    yield from once.values()


_MISSED = frozenset({"gone", UNSEEN})
"""Ends of a wish whose job was not there."""


def joined(a: WishedHandover, b: WishedHandover) -> WishedHandover:
    """Two lines about one wish: begun as the earlier has it, ended as the later has it.

    A job that one look missed is back at the next: its wish is begun anew and goes on.
    """
    first, last = (a, b) if a.begin_s <= b.begin_s else (b, a)
    is_back = first.end in _MISSED and last.begin_s > first.last_s
    ended = last if is_back else b if b.end or not a.end else a
    return dataclasses.replace(
        first,
        last_s=max(a.last_s, b.last_s),
        others=max(first.others, last.others),
        end=ended.end,
        started_s=ended.started_s,
    )


def read_open(path: Path) -> OpenHandovers | None:
    """The open wishes in *path*; None if it is not there or is not what it should be.

    One that cannot be read costs itself alone.
    """
    try:
        with path.open("rb") as file:
            first, *rest = file.read(_MOST_OPEN_BYTES).split(b"\n")
        word, now_s, count = json.loads(first)
        wishes = [line for raw in rest if raw and isinstance(line := parsed(raw), WishedHandover)]
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    if word != "open" or type(now_s) not in {int, float} or type(count) is not int:
        return None
    if count and not wishes:
        return None  # It is torn.
    return OpenHandovers(float(now_s), tuple(wishes)) if 0 <= now_s < LARGEST else None


def read_standing(path: Path) -> UnfinishedJobs | None:
    """The unfinished jobs in *path*; None if it is not there or is not what it should be."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            jobs, accounts, now_s = found["jobs"], found["accounts"], found["now_s"]
            if jobs.dtype != JOB or jobs.ndim != 1 or len(jobs) > _MOST_STANDING:
                return None
            if accounts.dtype.kind != "U" or accounts.ndim != 1 or now_s.shape != ():
                return None
            names = tuple(str(a)[:LONGEST_NAME] for a in accounts)
            standing = UnfinishedJobs(float(now_s), np.sort(jobs, order="job_id"), names)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        MemoryError,
        NotImplementedError,
        RuntimeError,
        SyntaxError,
        zipfile.BadZipFile,
        zlib.error,
    ):
        return None
    return standing if _is_sane(standing) else None


def _is_sane(standing: UnfinishedJobs) -> bool:
    jobs = standing.jobs
    numbers = ("gpus", "submit_s", "start_s", "ran_s")
    return bool(
        np.isfinite(standing.now_s)
        and all(np.isfinite(jobs[name]).all() and (jobs[name] >= 0).all() for name in numbers)
        and (jobs["account"] >= 0).all()
        and (jobs["account"] < len(standing.accounts)).all()
    )


def _segments(directory: Path) -> list[Path]:
    """The files of lines, oldest first."""
    if not directory.is_dir():
        raise FileNotFoundError(2, "no such directory", str(directory))
    return sorted(p for p in directory.iterdir() if _SEGMENT.fullmatch(p.name))


def _ends_whole(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
    return False
