"""The program that imports pyslurm: reads the queue on request and says it in squeue's words.

pyslurm is GPL-2.0, and may end or block the process it is in: this is a program of its own that
imports nothing of slurm_dl. A line of JSON on standard input is a request, one on standard output
the answer; the end of its input is its end::

    {"do": "version"}                            {"version": "25.11.2"}
    {"do": "queue", "fields": ["JobID", ...]}    {"jobs": [["7", ...], ...], "unreadable": [8]}
    {"do": "site_factor", "job": 7, "value": 5}  {}

``{"error": ...}`` says that Slurm refused or is silent.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

_WORDS = {
    "JobID": "id",
    "State": "state",
    "Reason": "state_reason",
    "Partition": "partition",
    "UserID": "user_id",
    "Account": "account",
    "QOS": "qos",
    "Sockets": "sockets_per_node",
    "NodeList": "allocated_nodes",
    "OverSubscribe": "resource_sharing",
    "Reservation": "reservation",
    "ReqNodes": "required_nodes",
    "WCKey": "wckey",
    "Name": "name",
    "Comment": "comment",
}
_NUMBERS = {
    "HetJobID": "heterogeneous_id",
    "NumNodes": "num_nodes",
    "NumTasks": "ntasks",
    "NumCPUs": "cpus",
    "SubmitTime": "submit_time",
    "StartTime": "start_time",
    "EligibleTime": "eligible_time",
    "RestartCnt": "requeue_count",
    "Requeue": "is_requeueable",
    "BatchFlag": "is_batch_job",
    "PriorityLong": "priority",
}


def _word(attribute: str, job: Any) -> str:  # noqa: ANN401 - pyslurm has no types
    try:
        value = getattr(job, attribute)
    except UnicodeDecodeError as err:  # Names and comments may hold any bytes.
        return err.object.decode("utf-8", errors="replace")
    return "" if value is None else str(value)


def _number(attribute: str, job: Any) -> str:  # noqa: ANN401
    return str(int(getattr(job, attribute) or 0))


def _label(job: Any) -> str:  # noqa: ANN401
    """``7``, ``7_3``, ``7_[3-9]`` or ``7+1``."""
    array, het = job.array_id, job.heterogeneous_id
    if not array:
        return f"{het}+{job.heterogeneous_offset or 0}" if het else str(job.id)
    if waiting := job.array_tasks_waiting:
        return f"{array}_{waiting}" if waiting.isdigit() else f"{array}_[{waiting}]"
    # pyslurm has None for task 0.
    return f"{array}_{job.array_task_id or 0}"


def _limit(job: Any) -> str:  # noqa: ANN401
    return "UNLIMITED" if job.time_limit is None else f"{job.time_limit}:00"


def _end(job: Any) -> str:  # noqa: ANN401
    end_s = job.end_time or 0
    # Without a limit Slurm counts on a year, which is no end.
    return "0" if job.time_limit is None and end_s > time.time() else str(end_s)


def _tres(job: Any) -> str:  # noqa: ANN401
    tres = job.allocated_tres or job.requested_tres
    if tres is None:
        return ""
    items = [f"mem={tres.mem.count}M"] if tres.mem else []
    items += [f"{name}={told.count}" for name in ("cpu", "node") if (told := getattr(tres, name))]
    return ",".join(items + [f"gres/{name}={gres.count}" for name, gres in tres.gres.items()])


_READERS: dict[str, Callable[[Any], str]] = {
    **{name: partial(_word, attribute) for name, attribute in _WORDS.items()},
    **{name: partial(_number, attribute) for name, attribute in _NUMBERS.items()},
    "JobArrayID": _label,
    "TimeLimit": _limit,
    "EndTime": _end,
    "tres-alloc": _tres,
    "tres-per-node": lambda job: ",".join(f"{k}:{n}" for k, n in job.gres_per_node.items()),
    "Feature": lambda job: ",".join(job.constraints),
}
"""By squeue's names."""


def _queue(pyslurm: Any, fields: list[str]) -> dict[str, Any]:  # noqa: ANN401
    readers = [_READERS[name] for name in fields]
    jobs, unreadable = [], []
    for job in pyslurm.Jobs.load().values():
        try:
            jobs.append([read(job) for read in readers])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            unreadable.append(job.id)
    return {"jobs": jobs, "unreadable": unreadable}


def _answer(pyslurm: Any, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    try:
        if request["do"] == "queue":
            return _queue(pyslurm, request["fields"])
        if request["do"] == "site_factor":
            changes = pyslurm.JobSubmitDescription(site_factor=request["value"])
            pyslurm.Job(request["job"]).modify(changes)
            return {}
    except pyslurm.PyslurmError as err:
        return {"error": str(err)}
    return {"version": pyslurm.__version__}


def main() -> None:
    """Answer until there is nothing more to read."""
    # What libslurm prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    import pyslurm  # noqa: PLC0415 - it may print, too

    for line in sys.stdin:
        answers.write(json.dumps(_answer(pyslurm, json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
