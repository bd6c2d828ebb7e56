"""Whether a job would be put back and start again here, by what Slurm tells every user.

The words of ``scontrol show config``, ``show partition`` and ``show job``. Slurm accepts changes
that it does not honour and a site's plug-in may alter what is submitted, so a job is looked at.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

from slurm_dl.slurm.read.grammar import span_s
from slurm_dl.slurm.running_config import requeue_hold

NO_PREEMPTION: Final = frozenset({"", "preempt/none", "(null)"})
JOB_REQUEUE_OFF: Final = (
    "JobRequeue=0: only jobs submitted with --requeue can give way, as dlsubmit's are"
)
LONG_HOLD_S: Final = 120
_STOPPED = 75
"""Status of a training that has saved and is to run again; see `slurm_dl.job.exit_for_requeue`."""
_WORD = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)", re.ASCII)
_COMMENT = re.compile(r"^\s*Comment=(.*)$", re.MULTILINE)

Words = Mapping[str, str]
Level = Literal["ok", "warning", "no"]


class Fact(NamedTuple):
    """One thing that matters to a requeue, in words."""

    level: Level
    found: str
    advice: str = ""  # What the job's owner can do


def job_words(text: str) -> dict[str, str]:
    """The words of ``scontrol show job JOB``, the first of each, and the whole of its Comment.

    Who puts such words into a job's name fools only who asks for that job.
    """
    words: dict[str, str] = {}
    for key, value in _WORD.findall(_COMMENT.sub("", text)):
        words.setdefault(key, "" if value in {"(null)", "N/A"} else value)
    found = _COMMENT.search(text)
    return words | {"Comment": found[1] if found else ""}


def hold_told(hold_s: int, setting: str) -> str:
    """That a requeued job waits."""
    return f"a requeued job waits {hold_s} s before it may start ({setting})"


def slurm_mode(values: Words, partition: Words, qos_mode: str = "") -> str:
    """What Slurm itself does to those it preempts there, in capitals; empty: it preempts nobody."""
    plugin = values.get("PreemptType", "").lower()
    if plugin in NO_PREEMPTION:
        return ""
    mode = values.get("PreemptMode", "")
    if plugin.endswith("partition_prio"):
        mode = partition.get("PreemptMode") or mode
    elif qos_mode.lower() not in {"", "cluster"}:
        mode = qos_mode
    return ",".join(w for w in mode.upper().split(",") if w not in {"GANG", "WITHIN", "OFF"})


def particular(
    values: Words, partition: Words, job: Words, *, now_s: float, qos_mode: str = ""
) -> Iterator[Fact]:
    """What need not be so at most sites or with most jobs.

    Args:
        job: Empty: no job in particular.
        now_s: Epoch seconds.
        qos_mode: PreemptMode of the job's QOS; empty if not known.
    """
    if job:
        yield from _of_job(values, job, now_s)
    yield from _of_partition(partition, job)
    name, mode = partition["PartitionName"], slurm_mode(values, partition, qos_mode)
    if mode == "REQUEUE":
        yield Fact("ok", f"Slurm itself may preempt jobs of {name}, and requeues them")
    elif mode:
        yield Fact(
            "warning",
            f"Slurm itself may preempt jobs of {name} by PreemptMode={mode}: it requeues none",
            "ask the admin for PreemptMode=REQUEUE, or use another partition or QOS",
        )
    for key in ("RequeueExit", "RequeueExitHold"):
        holds = key == "RequeueExitHold"
        for status, what in ((0, "ends well"), (_STOPPED, "has saved to run again")):
            if _has(values.get(key, ""), status):
                yield Fact(
                    "warning" if holds or not status else "ok",
                    f"{key}={values[key]}: Slurm puts back{' and holds' if holds else ''} each job "
                    f"that {what} (status {status})",
                    f"ask the admin to take {status} out",
                )


def _of_job(values: Words, job: Words, now_s: float) -> Iterator[Fact]:
    number = job["JobId"]
    if job.get("BatchFlag") == "0":
        yield Fact("no", f"job {number} is no batch job", "submit it by dlsubmit or sbatch")
    if job.get("Requeue") == "0":
        yield Fact(
            "no",
            f"Slurm has Requeue=0 for job {number}",
            f"scontrol update JobId={number} Requeue=1, and dlctl can-requeue {number} again",
        )
    else:
        yield Fact("ok", f"Slurm has Requeue=1 for job {number}")
    deadline_s = job.get("Deadline", "")
    needed_s = requeue_hold(values)[0] + _limit_s(job["TimeLimit"])
    if deadline_s.isdigit() and int(deadline_s) < now_s + needed_s:
        yield Fact(
            "no",
            f"job {number} could not be over before its deadline if it started again (--deadline)",
            "give a shorter --time, or --by in place of --deadline",
        )


def _of_partition(partition: Words, job: Words) -> Iterator[Fact]:
    name, state = partition["PartitionName"], partition.get("State", "UP")
    if state not in {"UP", "DRAIN"}:
        yield Fact(
            "no",
            f"partition {name} is {state}: no job starts again there",
            "wait until it is up, or scontrol update JobId=JOB Partition=ANOTHER after the requeue",
        )
    else:
        drains = ": jobs start again there, new ones are refused" if state == "DRAIN" else ""
        yield Fact("ok", f"partition {name} is {state}{drains}")
    most = partition.get("MaxTime", "UNLIMITED")
    if job and _limit_s(job["TimeLimit"]) > _limit_s(most):
        yield Fact(
            "no",
            f"its time limit {job['TimeLimit']} is above MaxTime={most} of partition {name}",
            f"scontrol update JobId={job['JobId']} TimeLimit={most}",
        )


def _limit_s(text: str) -> float:
    """A time limit in seconds; inf if there is none."""
    limit = span_s(text)
    return math.inf if limit is None else limit


def _has(statuses: str, status: int) -> bool:
    """Whether a list such as ``1-5,75`` has *status*."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", statuses)
    return any(int(low) <= status <= int(high or low) for low, high in spans)


def usual(values: Words, job: Words) -> Iterator[Fact]:
    """What is so at many sites, and bears on each requeue."""
    if not job and values.get("JobRequeue") == "0":
        yield Fact("warning", JOB_REQUEUE_OFF, "submit by dlsubmit, or by sbatch --requeue")
    hold_s, setting = requeue_hold(values)
    long = hold_s > LONG_HOLD_S
    yield Fact(
        "warning" if long else "ok",
        hold_told(hold_s, setting),
        "only the admin can shorten it" if long else "",
    )
    for keys, when in (
        (("Prolog", "PrologSlurmctld"), "before each run: if it fails, the job may be held"),
        (("Epilog", "EpilogSlurmctld"), "between the runs: a failing Epilog drains its node"),
    ):
        found = [f"{key}={values[key]}" for key in keys if _is_set(values, key)]
        if found:
            more = [f"PrologFlags={values['PrologFlags']}"] if "Prolog" in keys else []
            yield Fact("ok", f"{', '.join([*found, *more])} runs {when}")
    if not job and (plugins := submit_plugins(values)):
        yield Fact(
            "warning",
            f"{plugins} may change Requeue and the comment of a job when it is submitted",
            "look at the job then: dlsubmit does, and dlctl can-requeue JOB",
        )


def _is_set(values: Words, key: str) -> bool:
    return values.get(key, "").lower() not in {"", "(null)", "none"}


def submit_plugins(values: Words) -> str:
    """The plug-ins that may change what is submitted, as slurm.conf names them; empty if none."""
    keys = ("JobSubmitPlugins", "CliFilterPlugins")
    return " and ".join(f"{key}={values[key]}" for key in keys if _is_set(values, key))


def lost(job: Words, comment: str, values: Words) -> str:
    """What of a job just submitted with --requeue and *comment* is not as it was sent.

    Args:
        job: As Slurm has it.
    """
    sent, has = (_ours(text) for text in (comment, job.get("Comment", "")))
    plugins = submit_plugins(values)
    by = "something at this site" + (f", such as {plugins}," if plugins else "")
    number = job["JobId"]
    if job.get("Requeue") == "0":
        never = "is never preempted, and " if "sig" in sent else ""
        return (
            f"Slurm has Requeue=0 for job {number}: {by} changed it; the job {never}does not start "
            f"again after a failed node; try scontrol update JobId={number} Requeue=1"
        )
    if any(has.get(key) != value for key, value in sent.items()):
        return (
            f"the comment of job {number} is not the one that was sent: {by} changed it, and with "
            "it what dlschedd goes by; without its contract the job is never preempted"
        )
    return ""


def _ours(comment: str) -> dict[str, object]:
    try:
        ours = json.loads(comment)["slurm_dl"]
    except (ValueError, LookupError, TypeError):
        return {}
    return ours if isinstance(ours, dict) else {}
