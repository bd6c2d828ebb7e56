"""Class of a failure, by the exit status and the last lines of a command's log.

The log belongs to the user: 64 kB of it are read at most, and texts are searched for as they are,
so the time is linear in that. The first row of the table that matches counts. GPUs and file systems
that fail come before errors of the program, and these before errors of communication, which the
other ranks of a job report when one of them has failed.

Source: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads",
ATC 2019, section 4 (failures and their retries).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

FILE_VARIABLE = "SLURM_DL_FAILURE_FILE"
DEFAULT_FILE = "/etc/slurm_dl/failures.yaml"  # Rows of the site, on the nodes where jobs run
TAIL_BYTES = 64 * 1024
_LONGEST_LINE = 200
_ROW = re.compile(
    r"-[ \t]+(user|infrastructure|unknown):[ \t]+"
    r"""(?:status[ \t]+(\d{1,3})|"([^"]+)"|'([^']+)'|([^'"\s#].*?))(?:[ \t]+#.*)?"""
)
_NUMBERS = re.compile(rb"0x[0-9a-fA-F]+|[0-9]+")


class Row(NamedTuple):
    """One row of the table; ``unknown`` leaves the job as it ended."""

    kind: str  # ``user``, ``infrastructure`` or ``unknown``
    text: str = ""  # A text of the log; empty: the row goes by the status
    status: int = 0  # An exit status, as a shell has it


class FailureFound(NamedTuple):
    """The class of one failure."""

    kind: str
    mark: str  # Equal for equal failures: a digest of the line without its numbers, or the status
    why: str  # The line, or the status


def _rows(kind: str, texts: str) -> tuple[Row, ...]:
    return tuple(Row(kind, text) for text in texts.split("|"))


BUILT_IN: tuple[Row, ...] = (
    *_rows("infrastructure", "NVRM: Xid|ECC error|fallen off the bus|Bus error|Stale file handle"),
    *_rows("user", "ModuleNotFoundError:|ImportError:|SyntaxError:|IndentationError:|NameError:"),
    *_rows("user", "TypeError:|AttributeError:|KeyError:|IndexError:|ValueError:|AssertionError"),
    *_rows("user", "FileNotFoundError:|ZeroDivisionError:|CUDA out of memory|MemoryError"),
    *_rows("infrastructure", "NCCL error|ncclSystemError|ncclRemoteError|ncclUnhandledCudaError"),
    *_rows("infrastructure", "collective operation timeout|Connection reset|Input/output error"),
    *_rows("infrastructure", "no CUDA-capable device|device(s) is/are busy or unavailable"),
    *(Row("user", status=status) for status in (2, 126, 127)),  # Bad usage; no such command
    Row("infrastructure", status=128 + 7),  # SIGBUS
)


def site_rows(text: str) -> tuple[list[Row], list[int]]:
    """Rows of a site's file, and the numbers of the lines that are none.

    A list in YAML: lines ``- CLASS: TEXT`` or ``- CLASS: status N``, blank lines and comments.
    """
    rows: list[Row] = []
    wrong: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if found := _ROW.fullmatch(said):
            kind, code, *texts = found.groups("")
            rows.append(Row(kind, "".join(texts), int(code or 0)))
        elif said and not said.startswith("#"):
            wrong.append(number)
    return rows, wrong


def table(environ: Mapping[str, str]) -> tuple[list[Row], str]:
    """The site's rows before the built-in ones, and what is wrong with its file; or nothing."""
    path = environ.get(FILE_VARIABLE) or DEFAULT_FILE
    try:
        # A FIFO must not keep the job from its end.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
            rows, wrong = site_rows(file.read(TAIL_BYTES).decode())
    except FileNotFoundError:
        return [*BUILT_IN], ""
    except (OSError, ValueError, TypeError) as err:
        return [*BUILT_IN], f"{path} is not used: {err}"
    bad = f"{path}: line {wrong[0]} is no '- CLASS: TEXT' or '- CLASS: status N'" if wrong else ""
    return [*rows, *BUILT_IN], bad


def classify(status: int, log: bytes, rows: Iterable[Row]) -> FailureFound:
    """Class of a command that ended with *status* and this end of its log."""
    text = b"\n".join(li for li in log.splitlines() if not li.startswith(b"dlrun: "))
    for row in rows:
        at = text.rfind(row.text.encode()) if row.text else -1
        if at >= 0:
            line = text[text.rfind(b"\n", 0, at) + 1 :].split(b"\n", 1)[0][:_LONGEST_LINE]
            mark = hashlib.sha256(_NUMBERS.sub(b"0", line)).hexdigest()[:8]
            return FailureFound(row.kind, mark, line.decode("utf-8", "replace"))
        if not row.text and row.status == status:
            return FailureFound(row.kind, f"status {status}", f"status {status}")
    return FailureFound("unknown", "", "")


def failure_of(
    status: int, log_tail: bytes, environ: Mapping[str, str], log: Callable[[str], None]
) -> FailureFound | None:
    """`classify` by the table of the node, with a line in the log; None: the class is unknown."""
    rows, trouble = table(environ)
    if trouble:
        log(trouble)
    found = classify(status, log_tail, rows)
    if found.kind == "unknown":
        return None
    log(f"failure of class {found.kind}: {found.why}")
    return found


class OwnLog:
    """Standard output and error from now on, as far as they are plain files."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        for fd in (1, 2):
            with contextlib.suppress(OSError):
                status = os.fstat(fd)
                if stat.S_ISREG(status.st_mode):
                    self._before[fd] = status.st_size

    def tail(self) -> bytes:
        """The end of it, `TAIL_BYTES` of each file at most; empty if it cannot be read."""
        parts: dict[tuple[int, int], bytes] = {}
        for fd, before in self._before.items():
            # By the open file, not by its name; the descriptor may be for writing alone.
            with contextlib.suppress(OSError), open(f"/proc/self/fd/{fd}", "rb") as file:  # noqa: PTH123
                now = os.fstat(file.fileno())
                # Shorter than before: somebody has emptied it.
                since = before if now.st_size >= before else 0
                file.seek(max(since, now.st_size - TAIL_BYTES))
                parts.setdefault((now.st_dev, now.st_ino), file.read(TAIL_BYTES))
        return b"\n".join(parts.values())
