"""Facts on whether a job would be put back and start again, by what Slurm tells every user.

The words of ``scontrol show config``, ``show partition`` and ``show job``. Slurm accepts changes
that it does not honour and a site's plug-in may alter what is submitted, so a job is looked at.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

from slurm_dl.slurm.controller import requeue_hold
from slurm_dl.slurm.read.grammar import span_s

NO_PREEMPTION: Final = frozenset({"", "preempt/none", "(null)"})
JOB_REQUEUE_OFF: Final = (
    "JobRequeue=0: only jobs submitted with --requeue can give way, as dlsubmit's are"
)
LONG_HOLD_S: Final = 120
_ENDS: Final = ((0, "ends well"), (75, "has saved to run again"))
_WORD = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)", re.ASCII)
_COMMENT = re.compile(r"^\s*Comment=(.*)$", re.MULTILINE)
_NOTHING = frozenset({"", "(null)", "none", "n/a"})

Words = Mapping[str, str]


class Fact(NamedTuple):
    """One thing that matters to a requeue, and what the job's owner can do."""

    level: Literal["ok", "warning", "no"]
    found: str
    advice: str = ""


def job_words(text: str) -> dict[str, str]:
    """The words of ``scontrol show job JOB``, the first of each, and the whole of its Comment.

    Who puts such words into a job's name fools only who asks for that job.
    """
    found = _COMMENT.search(text)
    words = {"Comment": found[1] if found else ""}
    for key, value in _WORD.findall(text):
        words.setdefault(key, "" if value.lower() in _NOTHING else value)
    return words


def hold_told(hold_s: int, setting: str) -> str:
    """That a requeued job waits."""
    return f"a requeued job waits {hold_s} s before it may start ({setting})"


def particular(
    values: Words, partition: Words, job: Words, *, now_s: float, qos_mode: str = ""
) -> Iterator[Fact]:
    """Facts that most sites and most jobs do not have.

    Args:
        job: Empty: no job in particular.
        now_s: Epoch seconds.
        qos_mode: PreemptMode of the job's QOS; empty if not known.
    """
    if job:
        yield from _of_job(values, job, now_s)
    yield from _of_partition(partition, job)
    name, mode = partition["PartitionName"], _slurm_mode(values, partition, qos_mode)
    if mode == "REQUEUE":
        yield Fact("ok", f"Slurm itself may preempt jobs of {name}, and requeues them")
    elif mode:
        told = f"Slurm itself may preempt jobs of {name} by PreemptMode={mode}: it requeues none"
        advice = "ask the admin for PreemptMode=REQUEUE, or use another partition or QOS"
        yield Fact("warning", told, advice)
    for key, does in (("RequeueExit", "puts back"), ("RequeueExitHold", "puts back and holds")):
        for status, what in _ENDS:
            if _has(values.get(key, ""), status):
                told = f"{key}={values[key]}: Slurm {does} each job that {what} (status {status})"
                is_fine = status and key == "RequeueExit"
                advice = "" if is_fine else f"ask the admin to take {status} out"
                yield Fact("ok" if is_fine else "warning", told, advice)


def _slurm_mode(values: Words, partition: Words, qos_mode: str) -> str:
    """Slurm's own way with jobs that it preempts there, in capitals; empty: it preempts none."""
    plugin = values.get("PreemptType", "").lower()
    mode = "" if plugin in NO_PREEMPTION else values.get("PreemptMode", "")
    if plugin.endswith("partition_prio"):
        mode = partition.get("PreemptMode") or mode
    elif plugin.endswith("qos") and qos_mode.lower() not in {"", "cluster"}:
        mode = qos_mode
    return ",".join(w for w in mode.upper().split(",") if w not in {"GANG", "WITHIN", "OFF"})


def _of_job(values: Words, job: Words, now_s: float) -> Iterator[Fact]:
    number = job["JobId"]
    if job.get("BatchFlag") == "0":
        yield Fact("no", f"job {number} is no batch job", "submit it by dlsubmit or sbatch")
    if job.get("Requeue") == "0":
        advice = f"scontrol update JobId={number} Requeue=1, and dlctl can-requeue {number} again"
        yield Fact("no", f"Slurm has Requeue=0 for job {number}", advice)
    deadline_s = job.get("Deadline", "")
    needed_s = requeue_hold(values)[0] + _limit_s(job.get("TimeLimit", ""))
    if deadline_s.isdigit() and int(deadline_s) < now_s + needed_s:
        told = f"job {number} could not be over before its deadline if it started again"
        yield Fact("no", told, "give a shorter --time, or --by in place of --deadline")


def _of_partition(partition: Words, job: Words) -> Iterator[Fact]:
    name, state = partition["PartitionName"], partition.get("State", "UP")
    if state in {"UP", "DRAIN"}:
        new = ", which refuses new jobs alone" if state == "DRAIN" else ""
        yield Fact("ok", f"partition {name} is {state}{new}: jobs start again there")
    else:
        told = f"partition {name} is {state}: no job starts again there"
        yield Fact("no", told, "wait until it is up, or ask the admin")
    limit, most = job.get("TimeLimit", ""), partition.get("MaxTime", "")
    if job and _limit_s(limit) > _limit_s(most):
        told = f"its time limit {limit} is above MaxTime={most} of partition {name}"
        yield Fact("no", told, f"scontrol update JobId={job['JobId']} TimeLimit={most}")


def _limit_s(text: str) -> float:
    """A time limit in seconds; inf if there is none."""
    limit = span_s(text)
    return math.inf if limit is None else limit


def _has(statuses: str, status: int) -> bool:
    """True if a list such as ``1-5,75`` has *status*."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", statuses)
    return any(int(low) <= status <= int(high or low) for low, high in spans)


def usual(values: Words, job: Words) -> Iterator[Fact]:
    """Facts of many sites that bear on each requeue."""
    if not job and values.get("JobRequeue") == "0":
        yield Fact("warning", JOB_REQUEUE_OFF, "submit by dlsubmit, or by sbatch --requeue")
    hold_s, setting = requeue_hold(values)
    if hold_s > LONG_HOLD_S:
        yield Fact("warning", hold_told(hold_s, setting), "only the admin can shorten it")
    else:
        yield Fact("ok", hold_told(hold_s, setting))
    if before := _set(values, "Prolog", "PrologSlurmctld"):
        flags = f" (PrologFlags={values.get('PrologFlags')})"
        yield Fact("ok", f"{before}{flags} runs before each run: if it fails the job may be held")
    if after := _set(values, "Epilog", "EpilogSlurmctld"):
        yield Fact("ok", f"{after} runs between the runs: a failing Epilog drains its node")
    if not job and (plugins := _submit_plugins(values)):
        told = f"{plugins} may change Requeue and the comment of a job when it is submitted"
        advice = "look at the job then: dlsubmit does, and dlctl can-requeue JOB"
        yield Fact("warning", told, advice)


def _set(values: Words, *keys: str) -> str:
    """Those of *keys* that are set, as slurm.conf has them; empty if none is."""
    there = (key for key in keys if values.get(key, "").lower() not in _NOTHING)
    return " and ".join(f"{key}={values[key]}" for key in there)


def _submit_plugins(values: Words) -> str:
    return _set(values, "JobSubmitPlugins", "CliFilterPlugins")


def lost(job: Words, comment: str, values: Words) -> str:
    """The part of a job just submitted with --requeue and *comment* that is not as it was sent."""
    sent, has = (_ours(text) for text in (comment, job["Comment"]))
    plugins, number = _submit_plugins(values), job["JobId"]
    by = "something at this site" + (f", such as {plugins}," if plugins else "")
    if job.get("Requeue") == "0":
        never = "it is never preempted, and " if "sig" in sent else ""
        return (
            f"Slurm has Requeue=0 for job {number}: {by} changed it; {never}it does not start "
            f"again after a failed node; try scontrol update JobId={number} Requeue=1"
        )
    if any(has.get(key) != value for key, value in sent.items()):
        return (
            f"the comment of job {number} is not as it was sent: {by} changed it; without its "
            "contract the job is never preempted"
        )
    return ""


def _ours(comment: str) -> dict[str, object]:
    try:
        return dict(json.loads(comment)["slurm_dl"])
    except (ValueError, LookupError, TypeError):
        return {}
