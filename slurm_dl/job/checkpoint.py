"""What a training script asks and tells about checkpoints.

The question comes in two ways, a signal to the process and a file in the run directory. The file
reaches every rank on every node and does no harm to processes that do not expect it; the signal
is only faster.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from slurm_dl.job.run_files import (
    LISTENING_FILE,
    REQUEST_FILE,
    SIGNAL_VARIABLE,
    STATE_FILE,
    STOPPED_FILE,
    close_to_others,
    is_first_rank,
    is_marked,
    read_object,
    run_dir,
    sync_to_disk,
    this_run,
    write_mark,
    write_whole,
)

EXIT_REQUEUE = 75  # Exit status for "checkpoint saved, run me again" (sysexits.h: EX_TEMPFAIL)

LOOK_EVERY_S = 0.5
"""Least time between two looks at the request file; a stat costs a shared file system some."""

KEPT = 4  # Checkpoints remembered: the newest, and those to fall back to

# TERM, INT and HUP end a job; a script that caught them would sit there until it is killed.
_CATCHABLE = ("USR1", "USR2", "CONT")


class _Watch:
    """Whether this process has been asked to stop, and when it looks again."""

    def __init__(self) -> None:
        self.asked = False
        self.installed = False
        self.look_again_s = 0.0
        self.seen: tuple[int, int] | None = None
        """Inode and time of a request file that was read and is not for this run."""

    def install(self, directory: Path) -> None:
        self.installed = True
        name = os.environ.get(SIGNAL_VARIABLE, "USR1")
        if name in _CATCHABLE:
            self._catch(signal.Signals["SIG" + name])
        if is_first_rank():
            write_mark(directory / LISTENING_FILE, this_run())

    def _catch(self, signum: signal.Signals) -> None:
        before = signal.getsignal(signum)
        chained: Callable[[int, FrameType | None], object] | None = (
            before if callable(before) else None
        )

        def handler(number: int, frame: FrameType | None) -> None:
            self.asked = True
            if chained is not None:
                chained(number, frame)

        try:
            signal.signal(signum, handler)
        except ValueError:
            # Not the main thread: Python allows no handler here. The file is enough.
            return

    def look(self, directory: Path) -> None:
        path = directory / REQUEST_FILE
        try:
            found = path.stat()
        except OSError:
            return
        if not stat.S_ISREG(found.st_mode) or self.seen == (found.st_ino, found.st_mtime_ns):
            return
        if is_marked(path, this_run()):
            self.asked = True
        else:
            self.seen = (found.st_ino, found.st_mtime_ns)


_watch = _Watch()


def install() -> None:
    """Begin to listen for the checkpoint request. The first `should_checkpoint` does it too.

    Call it at the top of a script that starts worker processes or takes long until its first
    step: processes forked afterwards inherit the handler and survive the signal.
    """
    directory = run_dir()
    if directory is None or _watch.installed:
        return
    try:
        _watch.install(directory)
    except (OSError, ValueError) as err:
        _say(f"cannot announce in {directory} that this job listens: {err}")


def should_checkpoint() -> bool:
    """True once this run has been asked to save a checkpoint and stop; it stays true.

    Cheap enough for every step, and it never raises. Ranks may see the request some steps apart:
    where all of them must save together, let rank 0 ask and broadcast its answer.
    """
    if _watch.asked:
        return True
    directory = run_dir()
    if directory is None:
        return False
    if not _watch.installed:
        install()
    now_s = time.monotonic()
    if now_s >= _watch.look_again_s:
        _watch.look_again_s = now_s + LOOK_EVERY_S
        _watch.look(directory)
    return _watch.asked


def checkpoint_saved(
    path: str | os.PathLike[str], step: int | None = None, *, save_s: float | None = None
) -> None:
    """Record that a whole checkpoint lies at *path*; the next run gets it from `resume_from`.

    Call it after the file or directory has been written under its final name. Checkpoint and
    record are on disk when this returns. On ranks above 0 it does nothing.

    Args:
        save_s: Seconds that writing it took, for the model's profile; None: not measured.

    Raises:
        FileNotFoundError: There is nothing at *path*.
        OSError: The checkpoint or the record cannot be written to disk.
        ValueError: *save_s* is negative or not finite.
    """
    if save_s is not None and not (math.isfinite(save_s) and save_s >= 0):
        msg = f"checkpoint_saved: save_s must be 0 or more (got {save_s})"
        raise ValueError(msg)
    directory = run_dir()
    if directory is None or not is_first_rank():
        return
    checkpoint = Path(os.path.abspath(path))  # noqa: PTH100 -- a link such as "latest" stays one
    if not checkpoint.exists():
        msg = f"checkpoint_saved: {checkpoint} does not exist; call this after it is written"
        raise FileNotFoundError(msg)
    began_s = time.monotonic()
    size_b = _sync_tree(checkpoint)
    sync_s = time.monotonic() - began_s
    newest: dict[str, object] = {
        "path": str(checkpoint),
        "step": step,
        "time_s": time.time(),
        "restart": this_run().restart,
        "attempt": this_run().attempt,
        "size_b": size_b,
        "save_s": None if save_s is None else round(save_s + sync_s, 6),
    }
    older = [c for c in recorded(directory) if c["path"] != newest["path"]]
    write_whole(directory / STATE_FILE, {"v": 1, "checkpoints": [newest, *older][:KEPT]})


def resume_from() -> Path | None:
    """The last recorded checkpoint that still exists; None means start from the beginning.

    Raises:
        OSError: Others can write to the run directory, and its mode cannot be changed.
        ValueError: The record is unreadable, or may be somebody else's. To start over silently
            would lose the work.
    """
    directory = run_dir()
    if directory is None:
        return None
    if directory.exists():
        close_to_others(directory)
    checkpoints = [Path(str(c["path"])) for c in recorded(directory)]
    for checkpoint in checkpoints:
        if checkpoint.exists():
            return checkpoint
        _say(f"recorded checkpoint {checkpoint} is gone, trying the one before it")
    if checkpoints:
        _say("no recorded checkpoint is left, starting from the beginning")
    return None


def exit_for_requeue() -> NoReturn:
    """End this process with status 75: "checkpoint saved, run me again".

    Every rank should call it. It raises `SystemExit`, so ``finally`` blocks run.
    """
    directory = run_dir()
    if directory is not None and not is_marked(directory / STOPPED_FILE, this_run()):
        try:
            write_mark(directory / STOPPED_FILE, this_run())
        except OSError as err:
            _say(f"cannot write {directory / STOPPED_FILE}: {err}")
    raise SystemExit(EXIT_REQUEUE)


def recorded(directory: Path) -> list[dict[str, object]]:
    """The checkpoints recorded in *directory*, newest first.

    Raises:
        ValueError: The record is there and unreadable, or it belongs to somebody else:
            a checkpoint may run code where it is loaded.
    """
    path = directory / STATE_FILE
    try:
        content = read_object(path, must_be_ours=True)
        if content is None:
            return []
        checkpoints = content.get("checkpoints")
        if not isinstance(checkpoints, list):
            msg = "no list of checkpoints"
            raise ValueError(msg)  # noqa: TRY004, TRY301 -- one error for all bad content
        for entry in checkpoints:
            if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
                msg = "an entry without a path"
                raise ValueError(msg)  # noqa: TRY004, TRY301
    except (OSError, ValueError) as err:
        msg = f"{path}: unreadable ({err}); mend it, or remove it to start from the beginning"
        raise ValueError(msg) from err
    return checkpoints


def _sync_tree(path: Path) -> int:
    """Bring all of it to disk; the bytes of its files."""
    size_b = 0
    if path.is_dir():
        for here, _, names in os.walk(path):
            for name in names:
                size_b += _sync_file(Path(here, name))
            sync_to_disk(Path(here))
    else:
        size_b = _sync_file(path)
    sync_to_disk(path.parent)
    return size_b


def _sync_file(path: Path) -> int:
    # Pipes and devices have nothing to sync, and opening a pipe would wait for its writer.
    if not path.is_file():
        return 0
    sync_to_disk(path)
    return path.stat().st_size


def _say(text: str) -> None:
    # stderr may be closed, or None under some launchers; a remark is not worth an exception.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"slurm_dl.job: {text}\n")
