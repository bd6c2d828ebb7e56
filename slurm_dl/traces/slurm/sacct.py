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
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_dl.model.trace import Ending
from slurm_dl.slurm.accounting.past_jobs import FAILED, GOES_ON, AccountedRun, gpus_in, whole_job
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, JobLine, Reason
from slurm_dl.traces.field_values import lasting_s, moment_s, name
from slurm_dl.traces.file_lines import Head, opened, read_head
from slurm_dl.traces.formats.philly_json import entries
from slurm_dl.traces.table_format import Columns

_ENDINGS: Final = {
    "COMPLETED": Ending.COMPLETED,
    "CANCELLED": Ending.CANCELLED,
    **dict.fromkeys((*FAILED, "PREEMPTED"), Ending.FAILED),
}
_ID: Final = re.compile(r"(\d{1,20}(?:_(?:\d{1,10}|\[.*\]))?)(?:\+(\d{1,10}))?(\..+)?")
TAKEN: Final = (
    *("JobID", "Submit", "State", "ElapsedRaw", "AllocTRES"),
    *("ReqTRES", "User", "Account", "Start"),
)
"""The columns of `SACCT`, in the order in which they are picked."""

_NO_TIME: Final = frozenset({"", "Unknown", "None", "NONE"})
_BEFORE_JOBS: Final = re.compile(r'"jobs"\s*:\s*(?=\[)')


def jobs_into(jobs: Gathering, told: Iterable[tuple[int, object]]) -> dict[str, list[AccountedRun]]:
    """The jobs of lines of sacct into *jobs*, and the runs of each by its id there.

    Args:
        jobs: Told also of what is left out.
        told: Lines, in any order, each with its number: its words in the order of `TAKEN`, or an
            object of ``--json``.
    """
    # Ids can be used again, by another user.
    first: dict[tuple[str, str], int] = {}
    runs: defaultdict[tuple[str, str], list[AccountedRun]] = defaultdict(list)
    seen: set[int] = set()
    for line, words in told:
        try:
            run = _run(words if isinstance(words, tuple) else _of_json(words), seen)
        except BadValue as bad:
            jobs.leave_out(line, bad)
            continue
        job = run.job, run.user
        first.setdefault(job, line)
        runs[job].append(run)
    given: dict[str, list[AccountedRun]] = {}
    used: set[str] = set()
    for (job_id, owner), of_job in runs.items():
        unique = f"{job_id} of {owner}" if job_id in used else job_id
        try:
            found = _job(unique, of_job)
        except BadValue as bad:
            jobs.leave_out(first[job_id, owner], bad)
        else:
            used.add(job_id)
            given[unique] = of_job
            jobs.add(first[job_id, owner], found)
    return given


def _run(fields: Sequence[str], seen: set[int]) -> AccountedRun:
    given_id, submit, state, elapsed, alloc, requested, user, account, start = fields
    found = _ID.fullmatch(given_id.strip())
    if found is None:
        raise BadValue(Reason.NAME, f"the job id is {shown(given_id)}")
    job, component, step = found.groups(default="")
    if step:
        raise BadValue(Reason.STEP, "a step of a job")
    words = state.split()
    state = words[0].rstrip("+") if words else ""
    if state not in _ENDINGS and state not in GOES_ON:
        raise BadValue(Reason.STATE, f"State is {shown(state)}")
    if submit.strip() in _NO_TIME:
        raise BadValue(Reason.TIME, f"Submit is {shown(submit)}")
    run = AccountedRun(
        submit_s=moment_s(submit, "Submit"),
        ran_s=lasting_s(elapsed or "0", "Elapsed"),
        gpus=_gpus(alloc) or _gpus(requested),
        user=name(user, "User") or name(account, "Account"),
        account=name(account, "Account"),
        job=job,
        component=int(component or 0),
        state=state,
        start_s=_start_s(start),
    )
    same = hash((given_id, user, submit, start, state, elapsed))
    if same in seen:
        raise BadValue(Reason.DUPLICATE, f"this run of job {job} was told before")
    seen.add(same)
    return run


def _job(job_id: str, runs: Sequence[AccountedRun]) -> JobLine:
    job, goes_on = whole_job(runs)
    if goes_on:
        raise BadValue(Reason.NOT_ENDED, f"State is {job.state}")
    if not job.gpus:
        raise BadValue(Reason.NO_GPU, "no GPUs allocated")
    if not job.ran_s and job.state == "CANCELLED":
        raise BadValue(Reason.NEVER_RAN, "cancelled while it waited")
    return JobLine(
        job_id=job_id,
        submit_s=job.submit_s,
        duration_s=job.ran_s,
        gpus=job.gpus,
        user=job.user,
        account=next((run.account for run in reversed(runs) if run.account), ""),
        ending=_ENDINGS[job.state],
    )


def _start_s(text: str) -> float:
    """Seconds; NaN if it is not known."""
    try:
        return moment_s(text, "Start")
    except BadValue:
        return float("nan")


def _gpus(tres: str) -> float:
    try:
        return gpus_in(tres)
    except (ValueError, OverflowError) as err:
        msg = f"TRES is {shown(tres)}"
        raise BadValue(Reason.NUMBER, msg) from err


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctFormat(Columns):
    """Columns between bars, named by the header that ``-P`` prints; or the JSON of ``--json``."""

    about: str

    def recognizes(self, head: Head) -> bool:
        """Whether *head* begins with the columns needed, or with such JSON."""
        return _is_json(head) or Columns.recognizes(self, head)

    def read(self, path: Path, jobs: Gathering) -> None:
        """Every job with GPUs that has ended into *jobs*.

        Raises:
            ConfigError: A column is missing.
        """
        self.runs(path, jobs)

    def runs(self, path: Path, jobs: Gathering) -> dict[str, list[AccountedRun]]:
        """The same, and the runs of each by its id in *jobs*."""
        with opened(path) as stream:
            told: Iterable[tuple[int, object]]
            if _is_json(read_head(path)):
                told = entries(stream, jobs, _BEFORE_JOBS)
            else:
                told = ((line, fields) for line, _, fields in self.rows(stream, jobs))
            return jobs_into(jobs, told)


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
    parts = [
        f"gres/{name}={_word(one, 'count') or 0}"
        for one in (listed if isinstance(listed, list) else ())
        if _word(one, "type") == "gres" and (name := _word(one, "name")).partition(":")[0] == "gpu"
    ]
    return ",".join(parts)
