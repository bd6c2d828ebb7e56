"""A dump of accounting that the site made itself: its runs, read where there is no Slurm.

The columns are those that `slurm_dl.slurm.accounting.site_history` asks for, so what comes out is
the same as from a live cluster. Anything else in the header is refused: a job's name may hold bars
and line ends, and so could forge records. Several dumps may stand in one file; what they tell twice
counts once.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.slurm.accounting.site_history import (
    FIELDS,
    HEADER,
    FetchTally,
    StandIns,
    is_readable,
    window_arguments,
    written,
)
from slurm_dl.slurm.read.job_labels import tasks_in, tasks_of
from slurm_dl.slurm.read.vocabulary import epoch_s
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering
from slurm_dl.traces.field_values import amount
from slurm_dl.traces.file_lines import numbered_lines, opened, words
from slurm_dl.traces.skipped_lines import LeftOutLine, LeftOutLines, Reason
from slurm_dl.traces.slurm.sacct import SACCT
from slurm_dl.traces.table_format import rows

PEOPLE: Final = frozenset({"User", "Account"})
"""Columns that a dump may lack."""

_WAITS: Final = "PENDING"
_OPEN: Final = frozenset({_WAITS, "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "RESIZING"})
_SUBMIT: Final = FIELDS.index("Submit")
_KNOWN: Final = {name.lower(): name for name in FIELDS}
_SHOWN: Final = 40


class LeftOutOfDump(Gathering):
    """What is no run of the dump; the jobs are gathered later."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self._left_out = LeftOutLines(file)

    @property
    def told(self) -> tuple[LeftOutLine, ...]:
        """Everything left out so far, in the order of lines."""
        return self._left_out.all()


@dataclass(slots=True)
class _Known:
    """What the whole dump tells, before any run of it is judged.

    Attributes:
        tasks: Labels of tasks of arrays that have a record of their own.
        over: Runs of which a record says that they ended.
        left: By job, the last submission of which a run has ended.
    """

    tasks: set[str] = field(default_factory=set)
    over: set[int] = field(default_factory=set)
    left: dict[int, float] = field(default_factory=dict)


def sacct_command(
    since: datetime, until: datetime, *, cluster: str = "", people: bool = True
) -> str:
    """The command line that makes a dump, for a shell.

    Args:
        since: Runs that ended before are left out; with a time zone.
        until: What happens from here on is not asked about; with a time zone.
        cluster: A cluster in the accounting; empty for the local one.
        people: With users and accounts.
    """
    asked = [name for name in FIELDS if people or name not in PEOPLE]
    words_of = [
        f"--format={','.join(asked)}" if word.startswith("--format=") else word
        for word in window_arguments(since, until, cluster)
        if word != "--noheader"
    ]
    return f"TZ=UTC SLURM_TIME_FORMAT=standard {shlex.join(['sacct', *words_of])}"


def dump_runs(
    path: Path, jobs: Gathering, *, tally: FetchTally, stand_ins: StandIns | None = None
) -> Iterator[tuple[int, str]]:
    """Each run of a dump with the number of its line; the run as `site_history` writes it.

    Args:
        jobs: Told what is left out.
        tally: Kept up to date but for its ``done``.
        stand_ins: Replaces users and accounts; None keeps them.

    Raises:
        ConfigError: It cannot be read, or its header is not that of `sacct_command`.
    """
    known = _Known()
    # What is wrong is told the second time.
    for _, record in _records(path, LeftOutOfDump(str(path))):
        _note(record, known)
    seen: set[int] = set()
    for line, record in _records(path, jobs):
        try:
            _check(record, known)
            _refuse_twice(record, seen)
        except BadValue as bad:
            tally.unreadable += 1
            jobs.leave_out(line, bad)
            continue
        yield line, written(record, tally, stand_ins)


def read_dump(path: Path) -> Trace:
    """The jobs of a dump, as `read_trace` gives them; what is left out has the dump's own lines.

    Raises:
        ConfigError: It cannot be read, its header is not that of `sacct_command`, or no job with
            GPUs that has ended is in it.
    """
    jobs = Gathering(str(path))
    with tempfile.TemporaryDirectory(prefix="slurm_dl-") as directory:
        plain = Path(directory) / "history.txt"
        with plain.open("wb") as file:
            file.write(f"{HEADER}\n".encode())
            at = 1
            for line, text in dump_runs(path, jobs, tally=FetchTally()):
                # The same number of the line as in the dump.
                file.write(b"\n" * (line - at - 1) + text.encode())
                at = line
        SACCT.read(plain, jobs)
    return jobs.trace(name=path.name.partition(".")[0], format_name=SACCT.name)


def _records(path: Path, jobs: Gathering) -> Iterator[tuple[int, list[str]]]:
    """The records that can be read, in the order of `FIELDS`; a column that is not there is empty.

    Raises:
        ConfigError: The file cannot be read, or the header lacks a column or has one too many.
    """
    with opened(path) as stream:
        yield from _in_order(stream, path, jobs)


def _in_order(stream: BinaryIO, path: Path, jobs: Gathering) -> Iterator[tuple[int, list[str]]]:
    lines = numbered_lines(stream, jobs.file)
    _, first = next(lines, (0, ""))
    header = words(first or "", "|")
    place = _places(header, path)
    for row in rows(lines, jobs, "|", {len(header)}):
        if [word.strip().lower() for word in row.fields] == header:
            continue
        record = [row.fields[at].strip() if at >= 0 else "" for at in place]
        if is_readable(record):
            yield row.line, record
        else:
            bad = BadValue(Reason.TIME, f"a time of job {shown(record[0])} is none")
            jobs.leave_out(row.line, bad)


def _places(header: Sequence[str], path: Path) -> list[int]:
    """Where each of `FIELDS` stands; -1: nowhere."""
    place = [header.index(name) if name in header else -1 for name in _KNOWN]
    lacks = [name for name, at in zip(FIELDS, place, strict=True) if at < 0 and name not in PEOPLE]
    more = [word[:_SHOWN] for word in header if word not in _KNOWN]
    twice = [word for word in _KNOWN if header.count(word) > 1]
    if lacks:
        wrong = f"no column {', '.join(lacks)}"
    elif more:
        wrong = f"column {shown(more[0])} is not taken, a text of a user could forge records"
    elif twice:
        wrong = f"column {twice[0]} is there twice"
    else:
        return place
    msg = f"{path}:1: {wrong}; 'dlsim history --sacct-command' tells how to make the dump"
    raise ConfigError(msg)


def _note(record: Sequence[str], known: _Known) -> None:
    label = record[0]
    if "_" in label and "[" not in label:
        known.tasks.add(label)
    if _state(record) not in _OPEN:
        known.over.add(_run(record))
        job = hash((label, record[1]))
        known.left[job] = max(known.left.get(job, 0), epoch_s(record[_SUBMIT]))


def _run(record: Sequence[str]) -> int:
    """One run of one job, however often it is told."""
    label, user, _, submit, start, *_ = record
    return hash((label, user, submit, start))


def _state(record: Sequence[str]) -> str:
    state = record[FIELDS.index("State")].partition(" ")[0]
    return state.rstrip("+").upper()


def _check(record: list[str], known: _Known) -> None:
    """Refuse what is no run, and give a record for many tasks the label of the one that it is.

    Raises:
        BadValue: It is no run.
    """
    label, state = record[0], _state(record)
    if "." in label:
        raise BadValue(Reason.STEP, "a step of a job")
    if state == _WAITS:
        # A job that is put back has a new submission, so one that ran since is known by that.
        if known.left.get(hash((label, record[1])), -1) >= epoch_s(record[_SUBMIT]):
            msg = f"a later record says that job {label[:_SHOWN]} waits no more"
            raise BadValue(Reason.DUPLICATE, msg)
        return
    if state in _OPEN:
        if _run(record) in known.over:
            msg = f"a later record says how this run of job {label[:_SHOWN]} ended"
            raise BadValue(Reason.DUPLICATE, msg)
        if "[" in label:
            record[0] = _own_label(label, known.tasks)
        return
    elapsed_s = amount(record[FIELDS.index("ElapsedRaw")] or "0", "ElapsedRaw")
    has_start = bool(epoch_s(record[FIELDS.index("Start")]))
    if not has_start and (elapsed_s or state != "CANCELLED"):
        # Of Slurm 22.05 where slurmdbd was away when it started: how long it ran is not known.
        raise BadValue(Reason.TIME, f"job {shown(label)} ended and has no Start")
    # One that is cancelled while it waits has its end for a start; others have run, if only for
    # less than a second.
    if "[" in label and (elapsed_s or state != "CANCELLED"):
        record[0] = _own_label(label, known.tasks)


def _refuse_twice(record: Sequence[str], seen: set[int]) -> None:
    same = hash(tuple(record))
    if same in seen:
        raise BadValue(Reason.DUPLICATE, f"this run of job {record[0][:_SHOWN]} was told before")
    seen.add(same)


def _own_label(label: str, tasks: set[str]) -> str:
    """The task that a record for many stands for: the one that has no record of its own.

    Measured on 22.05: an array's last task keeps the record of all, if slurmdbd was away when it
    started.

    Raises:
        BadValue: It is none, or nobody can say which.
    """
    array, _, _ = label.partition("_")
    try:
        many = tasks_in(label)
        # Not all are listed where more are left than one: a label may name millions.
        left = (
            [task for task in tasks_of(label) if f"{array}_{task}" not in tasks]
            if many <= len(tasks) + 1
            else []
        )
    except ValueError as err:
        raise BadValue(Reason.NAME, f"the job id is {shown(label)}") from err
    if len(left) > 1 or many > len(tasks) + 1:
        msg = f"one record of a run for {many} tasks, {shown(label)}"
        raise BadValue(Reason.BROKEN, msg)
    if not left:
        msg = f"each task of {shown(label)} has a record of its own"
        raise BadValue(Reason.DUPLICATE, msg)
    return f"{array}_{left[0]}"
