"""A call of a function as a file, its run on a node, and its result as a file.

A pickle runs code where it is loaded. So these files are written with mode 0600, and none is
loaded that anybody else could have written. `slurm_dl.job` is imported where it is needed and not
before: its import tells dlrun that the script may look for a request.
"""

from __future__ import annotations

import errno
import os
import pickle
import signal
import stat
import sys
import traceback
from io import BytesIO
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Callable

CALL, RESULT = "_call.pkl", "_result.pkl"
"""Ends of the names of a job's files: the call, written by the submitter and by a run that saves
its state; the result, whether it returned, its value or exception, and the traceback."""

_INSTALL = "put it into a module of its own, or install cloudpickle"
_REFUSED = (
    "{} is not loaded, because a pickle runs code: it must be a regular file of your own that "
    "nobody else can write to"
)


class SubmitError(RuntimeError):
    """A job was not submitted, or a file of it is not to be trusted."""


class JobFailedError(RuntimeError):
    """A job ended without a result."""


class DelayedSubmission:
    """A call to be made later; what ``checkpoint(...)`` of a callable returns for the next run."""

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self.function = function
        self.args = args
        self.kwargs = kwargs


class _Pickler(pickle.Pickler):
    """For environments without cloudpickle; it refuses names that a node cannot import."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 -- as pickle has it
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            msg = f"{value.__qualname__} is defined in the script itself"
            raise pickle.PicklingError(msg)
        return NotImplemented


def pickled(call: DelayedSubmission) -> bytes:
    """The directories that the script imports from, and the call.

    Raises:
        SubmitError: It cannot be pickled.
    """
    installed = tuple(os.path.join(prefix, "") for prefix in (sys.prefix, sys.base_prefix))  # noqa: PTH118
    places = [os.path.abspath(p) for p in sys.path if not p.startswith(installed)]  # noqa: PTH100
    try:
        return pickle.dumps(places) + _dumps(call)
    except (pickle.PicklingError, TypeError, AttributeError) as err:
        msg = f"{call.function!r} or an argument cannot be pickled: {err}; {_INSTALL}"
        raise SubmitError(msg) from err


def write(path: Path, content: bytes) -> None:
    """Put *content* at *path* as a whole, on disk, readable by this user alone."""
    scratch = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(scratch, flags, 0o600), "wb") as out:  # noqa: PTH123 -- of a descriptor
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    scratch.replace(path)


def is_closed(status: os.stat_result) -> bool:
    """True if it belongs to this user, and nobody else can write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def load(path: Path, *, places: bool = False) -> Any:  # noqa: ANN401
    """The object in the file at *path*, after the *places* to import from if it begins with them.

    Raises:
        FileNotFoundError: There is none.
        SubmitError: Somebody else could have written it.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as err:
        if err.errno != errno.ELOOP:  # a symbolic link
            raise
        raise SubmitError(_REFUSED.format(path)) from err
    with open(descriptor, "rb") as file:  # noqa: PTH123 -- of a descriptor
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not is_closed(status):
            raise SubmitError(_REFUSED.format(path))
        if places:
            sys.path += [p for p in pickle.load(file) if p not in sys.path]  # noqa: S301
        return pickle.load(file)  # noqa: S301 -- ours, as was just seen


def run(base: str) -> int:
    """Make the call and write its result; 0 if it returned, 1 if it raised.

    Whatever ends the process before, as `slurm_dl.job.exit_for_requeue` does, leaves no result.
    """
    call: DelayedSubmission = load(Path(base + CALL), places=True)
    if hasattr(call.function, "checkpoint"):
        _listen(call, Path(base + CALL))
    try:
        outcome = (True, call.function(*call.args, **call.kwargs), "")
        content = _dumps(outcome)
    except Exception as err:  # noqa: BLE001 -- whatever it is, the submitter gets it
        text = traceback.format_exc()
        sys.stderr.write(text)
        outcome = (False, err, text)
        try:
            content = _dumps(outcome)
            pickle.loads(content)  # noqa: S301 -- some exceptions do not come back
        except Exception:  # noqa: BLE001
            content = pickle.dumps((False, None, text))
    from slurm_dl.job.run_files import is_first_rank  # noqa: PLC0415

    if is_first_rank():
        write(Path(base + RESULT), content)
    return int(not outcome[0])


def _listen(call: DelayedSubmission, path: Path) -> None:
    """On the checkpoint signal, replace the call by what its function's ``checkpoint`` returns."""
    from slurm_dl import job  # noqa: PLC0415
    from slurm_dl.job.run_files import SIGNAL_VARIABLE, is_first_rank  # noqa: PLC0415

    number = signal.Signals["SIG" + os.environ.get(SIGNAL_VARIABLE, "USR1")]

    def save(_number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        following = call.function.checkpoint(*call.args, **call.kwargs)  # type: ignore[attr-defined]
        if not isinstance(following, DelayedSubmission):
            msg = f"checkpoint() returned {type(following).__name__}, not a DelayedSubmission"
            raise TypeError(msg)
        if is_first_rank():
            write(path, pickled(following))
        job.exit_for_requeue()

    signal.signal(number, save)


def _dumps(value: object) -> bytes:
    try:
        import cloudpickle  # noqa: PLC0415
    except ImportError:
        out = BytesIO()
        _Pickler(out).dump(value)
        return out.getvalue()
    content: bytes = cloudpickle.dumps(value)
    return content
