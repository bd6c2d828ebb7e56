"""Dumps of accounting that a site made itself, read where there is no Slurm.

One without names of jobs has the columns that `slurm_dl.slurm.accounting.past_jobs` asks for, so
what comes out is the same as from a live cluster. Anything else in its header is refused: a job's
name may hold bars and line ends, and so could forge records. Several dumps may stand in one file;
what they tell twice counts once.

One with names tells of the jobs that are over, as policies learn from them::

    fields=JobID,User,Account,Submit,Start,End,State,ElapsedRaw,ReqTRES,AllocTRES,JobName
    sacct -aPX --duplicates --starttime=2026-01-01 --format=$fields > history.txt

With JobName as the last field bars in names do no harm. Comment, from which tags are read, may
stand before it: with a bar in it, it only changes its own job's name. Lines that are none, as after
a name with a line break, are left out and counted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.slurm.accounting.past_jobs import (
    OPEN,
    AccountedRun,
    FetchTally,
    StandIns,
    noted,
    past_of,
    readable,
    run_of,
)
from slurm_dl.slurm.accounting.query import FIELDS, NAMED_FIELDS, Record, arguments, between
from slurm_dl.slurm.read.grammar import tasks_in, tasks_of
from slurm_dl.slurm.read.vocabulary import epoch_s
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, Reason
from slurm_dl.traces.field_values import amount
from slurm_dl.traces.file_lines import numbered_lines, opened, words
from slurm_dl.traces.slurm.sacct import SACCT, TAKEN, jobs_into
from slurm_dl.traces.table_format import rows

PEOPLE: Final = ("User", "Account")  # Columns that a dump may lack

_PAST_LACKS: Final = ("Account", "ReqTRES")
_MOST_RUNS: Final = 2_000_000
_SHOWN: Final = 40


def sacct_command(begin_s: float, end_s: float, *, cluster: str = "", people: bool = True) -> str:
    """The command line that makes a dump without names, for a shell.

    Args:
        begin_s: Runs that ended before are left out; epoch seconds.
        end_s: What happens from here on is not asked about; epoch seconds.
        cluster: A cluster in the accounting; empty for the local one.
        people: With users and accounts.
    """
    asked = [name for name in FIELDS if people or name not in PEOPLE]
    argv = ["sacct", *arguments(asked, *between(begin_s, end_s), cluster=cluster)]
    argv.remove("--noheader")
    return f"TZ=UTC SLURM_TIME_FORMAT=standard {shlex.join(argv)}"


@dataclass(frozen=True, slots=True, eq=False)
class PastDump:
    """Content of a dump with names."""

    past: Past  # Jobs with GPUs that are over
    left_out: int  # Lines that could not be read
    has_names: bool  # Whether it tells the names of jobs


def read_past_dump(path: Path) -> PastDump:
    """The jobs in a dump with names, packed with gzip or not.

    Raises:
        ConfigError: It cannot be read, lacks a column, or tells of no job.
    """
    runs: dict[AccountedRun, None] = {}
    left_out = 0
    with opened(path) as stream:
        lines = numbered_lines(stream, str(path))
        known = {name.lower(): name for name in NAMED_FIELDS} | {"jobidraw": "JobID"}
        header = [known.get(word, word) for word in words(next(lines, (0, ""))[1] or "", "|")]
        if lacks := _lacks(header, _PAST_LACKS):
            asked = ",".join([*FIELDS, "JobName"])
            msg = f"{path}: {lacks}; make it with sacct -aPX --duplicates --format={asked}"
            raise ConfigError(msg)
        for _, line in lines:
            fields = (line or "").split("|", len(header) - 1)
            try:
                run = run_of(dict(zip(header, fields, strict=True)))
            except (ValueError, OverflowError):
                left_out += 1
                continue
            if run is not None:
                runs[run] = None
            if len(runs) > _MOST_RUNS:
                msg = f"{path}: more than {_MOST_RUNS:,} runs; cut the dump into parts"
                raise ConfigError(msg)
    if not runs:
        msg = f"{path}: no finished run with GPUs in it"
        raise ConfigError(msg)
    return PastDump(past_of(runs), left_out, "JobName" in header)


def read_dump(path: Path) -> Trace:
    """The jobs of a dump without names, as `read_trace` gives them.

    Raises:
        ConfigError: It cannot be read, its header is not that of `sacct_command`, or no job with
            GPUs that has ended is in it.
    """
    jobs = Gathering(str(path))
    records = dump_records(path, jobs, tally=FetchTally())
    jobs_into(jobs, ((line, tuple(record[name] for name in TAKEN)) for line, record in records))
    return jobs.trace(name=path.name.partition(".")[0], format_name=SACCT.name)


def dump_records(
    path: Path, jobs: Gathering, *, tally: FetchTally, stand_ins: StandIns | None = None
) -> Iterator[tuple[int, Record]]:
    """Each run of a dump with the number of its line; the run as `past_jobs.history` writes it.

    Args:
        jobs: Told what is left out.
        tally: Kept up to date but for its ``done``.
        stand_ins: Replaces users and accounts; None keeps them.

    Raises:
        ConfigError: It cannot be read, or its header is not that of `sacct_command`.
    """
    known = _Known()
    # What is wrong is told the second time.
    for _, record in _records(path, Gathering(str(path))):
        known.note(record)
    seen: set[int] = set()
    for line, record in _records(path, jobs):
        try:
            run = _checked(record, known, seen)
        except BadValue as bad:
            tally.unreadable += 1
            jobs.leave_out(line, bad)
        else:
            yield line, noted(run, tally, stand_ins)


def _records(path: Path, jobs: Gathering) -> Iterator[tuple[int, Record]]:
    """The records that can be read, in the order of `FIELDS`; a column that is not there is empty.

    Raises:
        ConfigError: The file cannot be read, or the header lacks a column or has one too many.
    """
    with opened(path) as stream:
        lines = numbered_lines(stream, jobs.file)
        first = words(next(lines, (0, ""))[1] or "", "|")
        known = {name.lower(): name for name in FIELDS}
        header = [known.get(word, word) for word in first]
        if wrong := _lacks(header, PEOPLE) or _is_too_much(header):
            how = "'dlsim history --sacct-command' tells how to make the dump"
            msg = f"{path}:1: {wrong}; {how}"
            raise ConfigError(msg)
        for row in rows(lines, jobs, "|", {len(header)}):
            fields = [word.strip() for word in row.fields]
            if [word.lower() for word in fields] == first:
                continue
            record = {**dict.fromkeys(FIELDS, ""), **dict(zip(header, fields, strict=True))}
            try:
                yield row.line, readable(record)
            except (ValueError, OverflowError):
                why = f"a time of job {shown(record['JobID'])} is none"
                jobs.leave_out(row.line, BadValue(Reason.TIME, why))


def _lacks(header: list[str], optional: tuple[str, ...]) -> str:
    lacks = [name for name in FIELDS if name not in (*header, *optional)]
    return f"no column {', '.join(lacks)}" if lacks else ""


def _is_too_much(header: list[str]) -> str:
    for name in header:
        if name not in FIELDS:
            return (
                f"column {shown(name[:_SHOWN])} is not taken, a text of a user could forge records"
            )
    twice = [name for name in FIELDS if header.count(name) > 1]
    return f"column {twice[0].lower()} is there twice" if twice else ""


@dataclass(slots=True)
class _Known:
    """What the whole dump tells, before any run of it is judged.

    Attributes:
        tasks: Labels of tasks of arrays that have a record of their own.
        left: By job, the last submission of which a run has ended.
    """

    tasks: set[str] = field(default_factory=set)
    over: set[int] = field(default_factory=set)  # Runs of which a record says that they ended
    left: dict[int, float] = field(default_factory=dict)

    def note(self, record: Record) -> None:
        label = record["JobID"]
        if "_" in label and "[" not in label:
            self.tasks.add(label)
        if _state(record) not in OPEN:
            self.over.add(_run(record))
            job = _job(record)
            self.left[job] = max(self.left.get(job, 0), epoch_s(record["Submit"]))


def _job(record: Record) -> int:
    return hash((record["JobID"], record["User"]))


def _run(record: Record) -> int:
    """One run of one job, however often it is told."""
    return hash(tuple(record[name] for name in ("JobID", "User", "Submit", "Start")))


def _state(record: Record) -> str:
    return record["State"].partition(" ")[0].rstrip("+").upper()


def _checked(record: Record, known: _Known, seen: set[int]) -> Record:
    """*record* under its own label; BadValue if it is no run, or one of those *seen*."""
    record = {**record, "JobID": _label(record, known)}
    same = hash(tuple(record.values()))
    if same in seen:
        msg = f"this run of job {record['JobID'][:_SHOWN]} was told before"
        raise BadValue(Reason.DUPLICATE, msg)
    seen.add(same)
    return record


def _label(record: Record, known: _Known) -> str:
    """The id of a run; of a record for many tasks that of the one that it is.

    Raises:
        BadValue: It is no run.
    """
    label, state = record["JobID"], _state(record)
    if "." in label:
        raise BadValue(Reason.STEP, "a step of a job")
    if state == "PENDING":
        # A job that is put back has a new submission, so one that ran since is known by that.
        if known.left.get(_job(record), -1) >= epoch_s(record["Submit"]):
            msg = f"a later record says that job {label[:_SHOWN]} waits no more"
            raise BadValue(Reason.DUPLICATE, msg)
        return label
    has_run = True
    if state not in OPEN:
        elapsed_s = amount(record["ElapsedRaw"] or "0", "ElapsedRaw")
        # One that is cancelled while it waits has its end for a start; others have run, if only
        # for less than a second.
        has_run = bool(elapsed_s) or state != "CANCELLED"
        if has_run and not epoch_s(record["Start"]):
            # Of 22.05 where slurmdbd was away when it started: how long it ran is not known.
            raise BadValue(Reason.TIME, f"job {shown(label)} ended and has no Start")
    elif _run(record) in known.over:
        msg = f"a later record says how this run of job {label[:_SHOWN]} ended"
        raise BadValue(Reason.DUPLICATE, msg)
    return _own_label(label, known.tasks) if has_run and "[" in label else label


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
        is_open = many > len(tasks) + 1
        listed = () if is_open else tasks_of(label)
        left = [task for task in listed if f"{array}_{task}" not in tasks]
    except ValueError as err:
        raise BadValue(Reason.NAME, f"the job id is {shown(label)}") from err
    if len(left) > 1 or is_open:
        msg = f"one record of a run for {many} tasks, {shown(label)}"
        raise BadValue(Reason.BROKEN, msg)
    if not left:
        msg = f"each task of {shown(label)} has a record of its own"
        raise BadValue(Reason.DUPLICATE, msg)
    return f"{array}_{left[0]}"
