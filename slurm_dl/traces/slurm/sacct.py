"""Slurm's own accounting: the history of the reader's own cluster, from sacct.

::

    fields=JobIDRaw,User,Account,Submit,Start,End,State,ElapsedRaw,ReqTRES,AllocTRES
    sacct -aP --duplicates --starttime=2026-01-01 --format=$fields > history.txt

With ``--duplicates`` a requeued job has a line for each run: they are one job, submitted when the
first was, as long as all together, ended as the last did. A line that stands there twice, as where
exports overlap, counts once; jobs of two users under one id, as after a reset of ids, are two jobs.
Job steps are passed over. GPUs are those of the last run, as allocated, or asked for where none are
recorded as allocated; Slurm records them only if AccountingStorageTRES lists gres/gpu. With JobID
in place of JobIDRaw the components of a heterogeneous job are one job too; JobIDRaw does not tell
that they belong together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from slurm_dl.model.trace import Ending
from slurm_dl.slurm.read.tres import parse_gres
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, JobLine
from slurm_dl.traces.field_values import lasting_s, moment_s, name
from slurm_dl.traces.file_lines import Head, opened, read_head
from slurm_dl.traces.formats.philly_json import entries
from slurm_dl.traces.skipped_lines import Reason
from slurm_dl.traces.table_format import Columns

_ENDINGS: Final = {
    "COMPLETED": Ending.COMPLETED,
    "CANCELLED": Ending.CANCELLED,
    **dict.fromkeys(
        ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED"),
        Ending.FAILED,
    ),
}
_NOT_ENDED: Final = frozenset(
    {
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "REQUEUED",
        "REQUEUE_HOLD",
        "RESIZING",
        "COMPLETING",
        "CONFIGURING",
    }
)
_ID: Final = re.compile(r"(\d{1,20}(?:_(?:\d{1,10}|\[.*\]))?)(?:\+(\d{1,10}))?(\..+)?")
_NO_TIME: Final = frozenset({"", "Unknown", "None", "NONE"})
_BEFORE_JOBS: Final = re.compile(r'"jobs"\s*:\s*(?=\[)')
_MAX_TRES: Final = 1000
"""Characters; a list of all resources of a job is shorter."""


@dataclass(slots=True)
class _Runs:
    """All runs of one component of a job: the job itself, or a part of a heterogeneous one."""

    line: int
    submit_s: float
    last_submit_s: float
    state: str
    user: str
    elapsed_s: float = 0.0
    gpus: float = 0.0


class RunLine(NamedTuple):
    """A run of a job as its line tells it."""

    job: tuple[str, str]  # The job's id and its user: ids can be used again
    component: str  # Of a heterogeneous job; empty for others
    start: str  # When it started, in sacct's words; empty if the file does not say
    elapsed_s: float  # How long it ran
    gpus: float  # GPUs it held; 0 if none are known


def _unwatched(_: RunLine) -> None:
    pass


class SacctHistory:
    """Lines of sacct as jobs; lines of one job may stand anywhere.

    Args:
        watch: Told of every run.
    """

    def __init__(self, watch: Callable[[RunLine], None] = _unwatched) -> None:
        self._watch = watch
        self._jobs: dict[tuple[str, str], dict[str, _Runs]] = {}
        self._accounts: dict[tuple[str, str], str] = {}
        self._seen: set[int] = set()

    def take_all(self, path: Path, jobs: Gathering) -> None:
        """Every line of *path*; those that tell of no run are left out in *jobs*.

        Raises:
            ConfigError: A column is missing.
        """
        with opened(path) as stream:
            for line, told in SACCT.entries(path, stream, jobs):
                try:
                    self.take(line, told if isinstance(told, tuple) else _of_json(told))
                except BadValue as bad:
                    jobs.leave_out(line, bad)

    def take(self, line: int, fields: Sequence[str]) -> None:
        """One line.

        Raises:
            BadValue: It tells of no run of a job.
        """
        given_id, submit, state, elapsed, alloc, requested, user, account, start = fields
        found = _ID.fullmatch(given_id.strip())
        if found is None:
            raise BadValue(Reason.NAME, f"the job id is {shown(given_id)}")
        job, component, step = found.groups(default="")
        if step:
            raise BadValue(Reason.STEP, "a step of a job")
        words = state.split()
        state = words[0].rstrip("+") if words else ""
        if state not in _ENDINGS and state not in _NOT_ENDED:
            raise BadValue(Reason.STATE, f"State is {shown(state)}")
        if submit.strip() in _NO_TIME:
            raise BadValue(Reason.TIME, f"Submit is {shown(submit)}")
        submit_s = moment_s(submit, "Submit")
        elapsed_s = lasting_s(elapsed or "0", "Elapsed")
        gpus = _gpus(alloc) or _gpus(requested)
        whose, account = name(user, "User"), name(account, "Account")
        run = hash((given_id, user, submit, start, state, elapsed))
        if run in self._seen:
            raise BadValue(Reason.DUPLICATE, f"this run of job {job} was told before")
        self._seen.add(run)
        owner = whose or account
        parts = self._jobs.setdefault((job, owner), {})
        runs = parts.setdefault(component, _Runs(line, submit_s, submit_s, state, owner))
        if account:
            self._accounts[job, owner] = account
        runs.elapsed_s += elapsed_s
        runs.submit_s = min(runs.submit_s, submit_s)
        if submit_s >= runs.last_submit_s:
            runs.last_submit_s, runs.state = submit_s, state
            runs.gpus = gpus or runs.gpus
        else:
            runs.gpus = runs.gpus or gpus
        self._watch(RunLine((job, owner), component, start, elapsed_s, gpus))

    def give(self, jobs: Gathering) -> dict[tuple[str, str], str]:
        """All jobs into *jobs*; the id each has there, by its id here and its user."""
        ids = {}
        used: set[str] = set()
        for (job_id, owner), parts in self._jobs.items():
            line = min(runs.line for runs in parts.values())
            try:
                unique = f"{job_id} of {owner}" if job_id in used else job_id
                found = _job(unique, [parts[component] for component in sorted(parts, key=_place)])
                found = found._replace(account=self._accounts.get((job_id, owner), ""))
            except BadValue as bad:
                jobs.leave_out(line, bad)
            else:
                used.add(job_id)
                ids[job_id, owner] = unique
                jobs.add(line, found)
        return ids


def _place(component: str) -> int:
    return int(component or 0)


def _job(job_id: str, parts: list[_Runs]) -> JobLine:
    """The components of one job, the leader first, together."""
    leader = parts[0]
    if any(runs.state in _NOT_ENDED for runs in parts):
        raise BadValue(Reason.NOT_ENDED, f"State is {leader.state}")
    gpus = sum(runs.gpus for runs in parts)
    if not gpus:
        raise BadValue(Reason.NO_GPU, "no GPUs allocated")
    elapsed_s = max(runs.elapsed_s for runs in parts)
    if not elapsed_s and leader.state == "CANCELLED":
        raise BadValue(Reason.NEVER_RAN, "cancelled while it waited")
    return JobLine(
        job_id=job_id,
        submit_s=min(runs.submit_s for runs in parts),
        duration_s=elapsed_s,
        gpus=gpus,
        user=leader.user,
        ending=_ENDINGS[leader.state],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctFormat(Columns):
    """Columns between bars, named by the header that ``-P`` prints; or the JSON of ``--json``."""

    about: str

    def recognizes(self, head: Head) -> bool:
        """Whether *head* begins with the columns needed, or with such JSON."""
        return _is_json(head) or Columns.recognizes(self, head)

    def entries(
        self, path: Path, stream: BinaryIO, jobs: Gathering
    ) -> Iterator[tuple[int, object]]:
        """Each run with its line: a tuple of fields in the order of the columns, or its object.

        Raises:
            ConfigError: A column is missing.
        """
        if _is_json(read_head(path)):
            return entries(stream, jobs, _BEFORE_JOBS)
        return ((line, fields) for line, _, fields in self.rows(stream, jobs))

    def read(self, path: Path, jobs: Gathering) -> None:
        """Every job with GPUs that has ended into *jobs*.

        Raises:
            ConfigError: A column is missing.
        """
        history = SacctHistory()
        history.take_all(path, jobs)
        history.give(jobs)


SACCT: Final = SacctFormat(
    name="sacct",
    about="Slurm accounting: sacct -aP --duplicates --format=JobIDRaw,User,Submit,...; or --json",
    columns=(
        ("jobidraw", "jobid"),
        ("submit",),
        ("state",),
        ("elapsedraw", "elapsed"),
        ("alloctres",),
    ),
    optional=(("reqtres",), ("user",), ("account",), ("start",)),
    delimiters="|",
)


def _is_json(head: Head) -> bool:
    text = head.text.lstrip()
    return text.startswith("{") and _BEFORE_JOBS.search(text) is not None and '"tres"' in text


def _of_json(job: object) -> tuple[str, ...]:
    """A job of ``--json`` in the words of the columns.

    From 23.11 on a number may be an object with ``set`` and ``number``, and a state is a list.

    Raises:
        BadValue: It is no object.
    """
    if not isinstance(job, dict):
        raise BadValue(Reason.BROKEN, f"{shown(job)} is no job")
    given_id = _word(job, "job_id")
    array, task = _word(job, "array", "job_id"), _word(job, "array", "task_id")
    leader, part = _word(job, "het", "job_id"), _word(job, "het", "job_offset")
    if array.strip("0") and task:
        given_id = f"{array}_{task}"
    elif leader.strip("0") and part:
        given_id = f"{leader}+{part}"
    return (
        given_id,
        _clock(_word(job, "time", "submission")),
        _word(job, "state", "current"),
        _word(job, "time", "elapsed"),
        _tres(_at(job, "tres", "allocated")),
        _tres(_at(job, "tres", "requested")),
        _word(job, "user") or _word(job, "association", "user"),
        _word(job, "account") or _word(job, "association", "account"),
        _clock(_word(job, "time", "start")),
    )


def _at(value: object, *keys: str) -> object:
    """The value under *keys*, one in the other; None if it is not there, or is a number not set."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, dict):
        return value.get("number") if value.get("set") is True else None
    return value


def _word(job: object, *keys: str) -> str:
    value = _at(job, *keys)
    if isinstance(value, list):
        return " ".join(word for word in value if isinstance(word, str))
    return "" if value is None else str(value)


def _clock(epoch: str) -> str:
    """Seconds since 1970; empty where it is 0, which is no time."""
    return epoch if epoch.strip("0") else ""


def _tres(listed: object) -> str:
    """The GPUs of a list of TRES as sacct prints them."""
    parts = [
        f"gres/{name}={_word(one, 'count') or 0}"
        for one in (listed if isinstance(listed, list) else ())
        if _word(one, "type") == "gres" and (name := _word(one, "name")).partition(":")[0] == "gpu"
    ]
    return ",".join(parts)


def _gpus(tres: str) -> float:
    """GPUs in a TRES string, 0 if it lists none.

    Raises:
        BadValue: It is no TRES string.
    """
    try:
        return parse_gres(tres[:_MAX_TRES]).gpus
    except (ValueError, OverflowError) as err:
        msg = f"TRES is {shown(tres)}"
        raise BadValue(Reason.NUMBER, msg) from err
