"""The audit log: one JSON line for everything that was done, by whom, to which job and why.

It stands apart from the log because it is kept, parsed and trusted: lines are only ever added,
each is written whole or marked as torn, and the daemon acts on nothing it could not write down.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.plan import ClearSteer, SetSteer

if TYPE_CHECKING:
    from slurm_dl.engine.cycle import AppliedAction
    from slurm_dl.model.plan import Action

DAEMON = "dlschedd"  # The actor of everything that nobody asked for
OK = "ok"
_TAIL_BYTES = 4 << 20  # So much of the end of the file is remembered from before the start
_REMEMBERED = 20_000  # Lines in memory, of all jobs; some 10 MB
_LINES_PER_JOB = 20
_BACKLOG = 10_000
_NO_DETOUR = os.O_NOFOLLOW | os.O_NONBLOCK  # No link is followed, and no FIFO waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One thing that was done, tried or asked for.

    Attributes:
        details: What else there is to know about this kind of action.
    """

    actor: str  # `DAEMON`, or ``user NAME (uid)``
    action: str  # What, in snake case: ``signal``, ``requeue``, ``pause``
    job: int | None = None  # The job it was done to; None for things about no single job
    reason: str = ""  # Why, for a person
    result: str = OK  # `OK`, or the error
    handover: int | None = None  # The hand-over it was a step of
    details: Mapping[str, Json] = field(default_factory=dict)
    at_s: float = field(default_factory=time.time)  # When, epoch seconds

    def as_json(self) -> JsonObject:
        """The line as it stands in the file."""
        moment = datetime.fromtimestamp(self.at_s, UTC)
        return {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "epoch_s": round(self.at_s, 3),
            "actor": self.actor,
            "action": self.action,
            "job": self.job,
            "reason": self.reason,
            "result": self.result,
            "handover": self.handover,
            "details": dict(self.details),
        }


def line_of(done: AppliedAction, now_s: float) -> AuditLine:
    """The line that says what became of an action of a plan."""
    action = done.action
    details = _details(action)
    reason = str(details.pop("why", ""))
    handover, job = details.pop("handover_id", None), details.get("job_id")
    for nested in ("handover", "run"):
        inside = details.get(nested)
        if isinstance(inside, dict):
            job = inside.get("job_id", job)
            handover = inside.get("handover_id", handover)
    details.pop("job_id", None)
    return AuditLine(
        actor=DAEMON,
        action=_snake(type(action).__name__),
        job=job if isinstance(job, int) else None,
        reason=reason,
        result=done.error or OK,
        handover=handover if isinstance(handover, int) else None,
        details=details,
        at_s=now_s,
    )


def _details(action: Action) -> dict[str, Json]:
    """The fields of *action*; nodes that a job is kept from as Slurm folds them.

    There may be thousands of them, and a line for each waiting job.
    """
    match action:
        case SetSteer(steer=steer, lift=lift):
            return {
                "job_id": action.job_id,
                "why": action.why,
                "handover_id": action.handover_id,
                "kind": steer.kind,
                "avoid": folded(steer.avoid),
                "own": folded(steer.own),
                "until_s": steer.until_s if math.isfinite(steer.until_s) else None,
                "not_before_s": steer.not_before_s or None,
                "lift": lift,
            }
        case ClearSteer(own=own):
            return {**_plain(dataclasses.replace(action, own=())), "own": folded(own)}
        case _:
            return _plain(action)


def _plain(action: Action) -> dict[str, Json]:
    fields: dict[str, Json] = json.loads(json.dumps(dataclasses.asdict(action)))
    return fields


def folded(names: Collection[str]) -> str:
    """A node list as Slurm folds it."""
    from slurm_dl.slurm.read.grammar import fold  # noqa: PLC0415 - ClusterShell is slow

    return fold(names) if names else ""


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


class AuditLog:
    """The audit file, and what its last lines said about each job.

    A line that cannot be written is kept, and `healthy` is False until it could be. All methods
    may be called from any thread.

    Args:
        path: The file; made with mode 0640 if missing.
        fsync: Force each line to the disk before going on.
        warn: Told once when writing starts to fail, and once when it works again.
    """

    def __init__(
        self, path: Path, *, fsync: bool = False, warn: Callable[[str], None] = lambda _: None
    ) -> None:
        self.path = path
        self.error = ""
        self._fsync = fsync
        self._warn = warn
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._inode = (0, 0)
        self._torn = False
        self._backlog: deque[bytes] = deque(maxlen=_BACKLOG)
        self._recent: deque[tuple[set[int], bytes]] = deque(maxlen=_REMEMBERED)
        for raw in _tail(path):
            self._remember(raw, _object(raw))

    @property
    def healthy(self) -> bool:
        """Everything so far is in the file."""
        return not self.error

    def why_not(self) -> str:
        """See `Precondition`."""
        return f"the audit log cannot be written: {self.error}" if self.error else ""

    def write(self, line: AuditLine) -> bool:
        """Add *line*; False if it, or one before it, could not be written yet."""
        content = line.as_json()
        raw = json.dumps(content).encode("ascii")
        with self._lock:
            self._remember(raw, content)
            self._backlog.append(raw + b"\n")
            return self.flush()

    def flush(self) -> bool:
        """Write what could not be written before; False if that still fails."""
        with self._lock:
            try:
                while self._backlog:
                    self._append(self._backlog[0])
                    self._backlog.popleft()
            except OSError as err:
                link = err.errno == errno.ELOOP
                why = "is a symbolic link: remove it" if link else err.strerror or err
                was_healthy, self.error = self.healthy, f"{self.path}: {why}"
                if was_healthy:
                    self._warn(f"audit log cannot be written: {self.error}")
                return False
            if self.error:
                self.error = ""
                self._warn(f"audit log can be written again: {self.path}")
            return True

    def history(self, job_id: int) -> tuple[JsonObject, ...]:
        """The last lines that concern a job, oldest first."""
        with self._lock:
            lines = [raw for jobs, raw in self._recent if job_id in jobs]
        return tuple(json.loads(raw) for raw in lines[-_LINES_PER_JOB:])

    def close(self) -> None:
        """Write what is left, if it can be, and close the file."""
        with self._lock:
            self.flush()
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _append(self, line: bytes) -> None:
        fd = self._opened()
        # A line cut short by a full disk or a crash must not swallow the next one.
        data = b"\n" + line if self._torn else line
        written = os.write(fd, data)
        if written < len(data):
            self._torn = True
            # The rest says why; if it fits after all, the line is whole.
            os.write(fd, data[written:])
        self._torn = False
        if self._fsync:
            os.fsync(fd)

    def _opened(self) -> int:
        """The file's descriptor; opened anew once logrotate has moved the file away."""
        if self._fd is not None:
            try:
                now = self.path.stat()
            except FileNotFoundError:
                now = None
            if now is not None and (now.st_dev, now.st_ino) == self._inode:
                return self._fd
            os.close(self._fd)
            self._fd = None
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _NO_DETOUR, 0o640)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is not a regular file")
        self._fd, self._inode = fd, (status.st_dev, status.st_ino)
        self._torn = status.st_size > 0 and os.pread(fd, 1, status.st_size - 1) != b"\n"
        return fd

    def _remember(self, raw: bytes, content: JsonObject) -> None:
        if jobs := _jobs_in(content):
            self._recent.append((jobs, raw))


def _tail(path: Path) -> list[bytes]:
    """The lines at the end of a file, oldest first; none of a file that cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | _NO_DETOUR), "rb") as file:  # noqa: PTH123
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).split(b"\n")
    except OSError:
        return []


def _object(raw: bytes) -> JsonObject:
    """The object in a line; empty if the line is torn, or not ours."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _jobs_in(content: JsonObject) -> set[int]:
    """Every job a line is about: the one it names, and those a hand-over opens for."""
    jobs: list[Json] = [content.get("job")]
    details = content.get("details")
    handover = details.get("handover") if isinstance(details, dict) else None
    if isinstance(handover, dict):
        beneficiaries, victims = handover.get("beneficiaries"), handover.get("victims")
        jobs += _items(beneficiaries)
        for victim in _items(victims):
            run = victim.get("run") if isinstance(victim, dict) else None
            if isinstance(run, dict):
                jobs.append(run.get("job_id"))
    return {j for j in jobs if isinstance(j, int)}


def _items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
