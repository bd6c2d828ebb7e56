"""What sacct is asked, by windows of time or by ids, and the records in its answer.

A cluster may have no slurmdbd, or no sacct where we run. Then there is nothing to be told, which is
an error of its own, and nothing else depends on it. slurmctld is not asked at all.

Bars separate fields of which users can write none. The names and comments of jobs, in which they
write what they like, whole records among it, are asked for with a word drawn anew for each call
behind each field (see `slurm_dl.slurm.read.record_parser`), and first: a line that begins in a name
cannot pass for the end of a record. Comments are there with AccountingStoreFlags=job_comment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.read.record_parser import new_nonce
from slurm_dl.slurm.tool_runner import Slurm

FIELDS: Final = (
    *("JobID", "User", "Account", "Submit", "Start", "End", "State"),
    *("ElapsedRaw", "ReqTRES", "AllocTRES"),
)
"""JobID, not JobIDRaw: where it names the components of a heterogeneous job they are one job."""

NAMED_FIELDS: Final = ("JobName", "Comment", *FIELDS)

WINDOW_S: Final = 86_400.0
SHORTEST_S: Final = 900.0  # A window that slurmdbd does not answer in time is halved, down to this

Record = Mapping[str, str]  # A record's texts by the names of its fields

_NO_ANSWER: Final = "no answer in"
_DISABLED: Final = "accounting storage is disabled"
_WHOLE: Final = re.compile(r"[0-9]{1,12}")
_T = TypeVar("_T")


class NoAccountingError(ClusterError):
    """There is no accounting to ask; asking again soon is of no use."""


def ask(slurm: Slurm, *args: str, within_s: float = math.inf) -> str:
    """The output of sacct.

    Args:
        within_s: Wait no longer than this, seconds.

    Raises:
        NoAccountingError: This cluster has none, or sacct is not installed.
        ClusterError: It did not answer.
    """
    if not slurm.has("sacct"):
        msg = "sacct is not installed"
        raise NoAccountingError(msg)
    try:
        return slurm.run("sacct", *args, within_s=within_s)
    except ClusterError as err:
        if _DISABLED in str(err):
            msg = "Slurm's accounting storage is disabled"
            raise NoAccountingError(msg) from None
        raise


def arguments(
    fields: Sequence[str], *which: str, nonce: str = "", cluster: str = ""
) -> tuple[str, ...]:
    """Arguments for sacct that list *fields* of every run of *which* jobs.

    ``--allusers``, because without it an Operator sees only jobs of its own.

    Args:
        which: Arguments too: see `between`.
        nonce: Ends each field; empty: bars stand between them.
        cluster: A cluster in the accounting; empty for the local one.
    """
    # With --parsable a separator also ends each record.
    form = ("--parsable", f"--delimiter={nonce}") if nonce else ("--parsable2",)
    where = (f"--clusters={cluster}",) if cluster else ()
    return (
        *("--allusers", "--duplicates", "--allocations", "--noheader", *form, *where),
        f"--format={','.join(fields)}",
        *which,
    )


def between(begin_s: float, end_s: float) -> tuple[str, str]:
    """Which jobs: those that were there between two instants, epoch seconds."""
    # Slurm's commands run in UTC here.
    return f"--starttime={clock(begin_s)}", f"--endtime={clock(end_s)}"


def clock(when_s: float) -> str:
    """Epoch seconds as sacct writes a time without a format of its own, in UTC."""
    return datetime.fromtimestamp(when_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def parse(
    text: str, fields: Sequence[str], read: Callable[[Record], _T], *, nonce: str = ""
) -> tuple[list[_T], int]:
    """What *read* makes of each record in sacct's output, and how many records cannot be read.

    Args:
        read: Raises ValueError or OverflowError for what is no record.

    Raises:
        ClusterError: The output is cut short, or nothing in it can be read.
    """
    if nonce:
        # By their number: a comment may begin with a line break, as what follows a record does.
        words = text.split(nonce)
        records = [words[i : i + len(fields)] for i in range(0, len(words) - 1, len(fields))]
        for later in records[1:]:
            later[0] = later[0].removeprefix("\n")
        is_whole = words[-1] == ("\n" if records else "")
        is_whole &= all(len(record) == len(fields) for record in records)
    else:
        records = [line.split("|") for line in text.split("\n")]
        is_whole = records.pop() == [""]
    if not is_whole:
        msg = "sacct's output stops in the middle of a record; nothing of it is used"
        raise ClusterError(msg)
    found = []
    for record in records:
        try:
            found.append(read(dict(zip(fields, record, strict=True))))
        except (ValueError, OverflowError):
            continue
    if records and not found:
        msg = f"none of {len(records)} records of sacct can be read; is this Slurm supported?"
        raise ClusterError(msg)
    return found, len(records) - len(found)


def windows(
    run: Callable[..., str],
    fields: Sequence[str],
    read: Callable[[Record], _T],
    span_s: tuple[float, float],
    *,
    cluster: str = "",
) -> Iterator[tuple[float, float, list[_T], int]]:
    """What accounting has of a time, one window after the other: its bounds, and see `parse`.

    Args:
        run: Runs sacct with arguments.
        fields: Asked for.
        read: See `parse`.
        span_s: From when to when, epoch seconds.
        cluster: A cluster in the accounting; empty for the local one.

    Raises:
        ClusterError: Accounting does not answer, or not readably.
    """
    begin_s, until_s = span_s
    width_s = WINDOW_S
    while begin_s < until_s:
        end_s = min(begin_s + width_s, until_s)
        nonce = new_nonce() if "JobName" in fields else ""
        which = between(begin_s, end_s)
        try:
            text = run(*arguments(fields, *which, nonce=nonce, cluster=cluster))
        except ClusterError as err:
            if _NO_ANSWER not in str(err) or width_s <= SHORTEST_S:
                raise
            width_s /= 2
            continue
        yield begin_s, end_s, *parse(text, fields, read, nonce=nonce)
        begin_s = end_s


def whole(text: str) -> int:
    """A whole number; ValueError if it is none."""
    if not _WHOLE.fullmatch(text):
        msg = f"{text[:40]!r} is no whole number"
        raise ValueError(msg)
    return int(text)
