"""The program that imports pyslurm: reads the queue on request and says it in squeue's words.

It is a process of its own and imports nothing of slurm_dl, for three reasons: pyslurm is
GPL-2.0, it ends or crashes the process it is in now and then, and it holds the interpreter's lock
while Slurm is silent. `worker_queue` starts it and reads its answers.

One JSON object a line on standard input is a request; an answer is its length in bytes on a line,
then so many bytes of JSON with the request's ``id``::

    {"id": 1, "do": "queue"}
    {"id": 1, "columns": {"JobID": ["7"], ...}, "unreadable": 0}

    {"id": 2, "do": "site_factor", "job": 7, "value": 10000}
    {"id": 2}

``"error"`` in an answer says that Slurm refused or is silent; the program goes on. It ends when its
input ends, and with the process that started it. ``--probe`` prints pyslurm's version and ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_LONGEST_REQUEST = 4096

Columns = dict[str, list[str]]


def _text(job: Any, attribute: str) -> str:  # noqa: ANN401 - pyslurm has no types
    """A text of *job*; empty if there is none. It may hold any bytes; see `Slurm.run`."""
    try:
        value = getattr(job, attribute)
    except UnicodeDecodeError as err:
        return err.object.decode("utf-8", errors="replace")
    return "" if value is None else str(value)


def _number(attribute: str, missing: str) -> Callable[[Any], str]:
    """Reads a number that pyslurm gives as None where it is not set."""

    def read(job: Any) -> str:  # noqa: ANN401 - see _text
        value = getattr(job, attribute)
        return missing if value is None else str(value)

    return read


def _word(attribute: str) -> Callable[[Any], str]:
    return lambda job: _text(job, attribute)


def _flag(attribute: str) -> Callable[[Any], str]:
    return lambda job: "1" if getattr(job, attribute) else "0"


def _label(job: Any) -> str:  # noqa: ANN401 - see _text
    """``7``, ``7_3``, ``7_[3-9%2]`` or ``7+1``."""
    array, het = job.array_id, job.heterogeneous_id
    if array:
        waiting = job.array_tasks_waiting
        if waiting:
            at_once = job.array_tasks_parallel
            return f"{array}_[{waiting}%{at_once}]" if at_once else f"{array}_[{waiting}]"
        if job.state == "CANCELLED" and job.id == array and not job.allocated_nodes:
            # What waited of it, as one; it has no tasks any more.
            return str(array)
        # 0 is told as None.
        return f"{array}_{job.array_task_id or 0}"
    return f"{het}+{job.heterogeneous_offset or 0}" if het else str(job.id)


def _limit(job: Any) -> str:  # noqa: ANN401 - see _text
    # "No limit" and "not set" are both told as None, and mean the same to us.
    minutes = job.time_limit
    return "UNLIMITED" if minutes is None else f"{minutes}:00"


def _end(job: Any) -> str:  # noqa: ANN401 - see _text
    # As squeue has it: without a limit Slurm counts on a year, which is no end.
    end_s = job.end_time
    if end_s is None:
        return "0"
    return "NONE" if job.time_limit is None and end_s > time.time() else str(end_s)


def _tres(job: Any) -> str:  # noqa: ANN401 - see _text
    tres = job.allocated_tres or job.requested_tres
    if tres is None:
        return ""
    items = [
        f"{name}={counted.count}" for name in ("cpu", "node") if (counted := getattr(tres, name))
    ]
    if tres.mem:
        items.append(f"mem={tres.mem.count}M")
    items += [f"gres/{name}={gres.count}" for name, gres in tres.gres.items()]
    return ",".join(items)


def _per_node(job: Any) -> str:  # noqa: ANN401 - see _text
    return ",".join(f"{name}:{count}" for name, count in job.gres_per_node.items())


_COLUMNS: dict[str, Callable[[Any], str]] = {
    "JobID": lambda job: str(job.id),
    "JobArrayID": _label,
    "HetJobID": _number("heterogeneous_id", "N/A"),
    "State": _word("state"),
    "Reason": _word("state_reason"),
    "Partition": _word("partition"),
    "UserID": _number("user_id", "0"),
    "Account": _word("account"),
    "QOS": _word("qos"),
    "NumNodes": _number("num_nodes", "0"),
    "NumTasks": _number("ntasks", "1"),
    "Sockets": _number("sockets_per_node", "*"),
    "NumCPUs": _number("cpus", "0"),
    "tres-alloc": _tres,
    "tres-per-node": _per_node,
    "NodeList": _word("allocated_nodes"),
    "SubmitTime": _number("submit_time", "0"),
    "StartTime": _number("start_time", "0"),
    "EndTime": _end,
    "EligibleTime": _number("eligible_time", "0"),
    "TimeLimit": _limit,
    "RestartCnt": _number("requeue_count", "0"),
    "Requeue": _flag("is_requeueable"),
    "BatchFlag": _flag("is_batch_job"),
    "OverSubscribe": _word("resource_sharing"),
    "PriorityLong": _number("priority", "0"),
    "Reservation": _word("reservation"),
    "ReqNodes": _word("required_nodes"),
    "Feature": lambda job: ",".join(job.constraints),
    "WCKey": _word("wckey"),
    "Name": _word("name"),
    "Comment": _word("comment"),
    "ExcNodes": _word("excluded_nodes"),
}
"""By squeue's names. pyslurm does not tell requests by job, task and socket as they are."""


def columns_of(jobs: Any) -> tuple[Columns, int]:  # noqa: ANN401 - see _text
    """The readable ones of *jobs* as columns of one length, and how many others there are."""
    readers = tuple(_COLUMNS.values())
    rows = []
    unreadable = 0
    for job in jobs.values():
        try:
            rows.append([read(job) for read in readers])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            unreadable += 1
    told = zip(*rows, strict=True) if rows else ([] for _ in readers)
    columns = {name: list(column) for name, column in zip(_COLUMNS, told, strict=True)}
    names: dict[str, str] = {}
    for uid in set(columns["UserID"]):
        try:
            names[uid] = pwd.getpwuid(int(uid)).pw_name
        except (KeyError, OverflowError):
            names[uid] = uid
    columns["UserName"] = [names[uid] for uid in columns["UserID"]]
    return columns, unreadable


def _answer(pyslurm: Any, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - see _text
    try:
        if request["do"] == "queue":
            columns, unreadable = columns_of(pyslurm.Jobs.load())
            return {"columns": columns, "unreadable": unreadable}
        if request["do"] == "site_factor":
            changes = pyslurm.JobSubmitDescription(site_factor=request["value"])
            pyslurm.Job(request["job"]).modify(changes)
            return {}
    except pyslurm.PyslurmError as err:
        return {"error": str(err)}
    return {"error": f"nobody knows how to do {request['do']!r}"}


def _serve(out: int, pyslurm: Any) -> None:  # noqa: ANN401 - see _text
    while line := sys.stdin.buffer.readline(_LONGEST_REQUEST):
        request = json.loads(line)
        answer = {"id": request["id"], **_answer(pyslurm, request)}
        payload = json.dumps(answer, separators=(",", ":")).encode("ascii")
        with os.fdopen(os.dup(out), "wb") as stream:
            stream.write(b"%d\n" % len(payload))
            stream.write(payload)


def _end_with(parent: int) -> None:
    """Have the kernel end this process when *parent* does, in whatever call it hangs."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that wanted an answer is gone")


def main(argument: str) -> None:
    """Serve the process of id *argument*, or say which pyslurm this is (``--probe``)."""
    # What libslurm or anybody else prints must not get between the answers.
    out = os.dup(1)
    os.dup2(2, 1)
    if argument != "--probe":
        _end_with(int(argument))
    import pyslurm  # noqa: PLC0415 - it may end the process; above is done first

    if argument == "--probe":
        os.write(out, str(pyslurm.__version__).encode("ascii", errors="replace"))
    else:
        _serve(out, pyslurm)


if __name__ == "__main__":
    main(sys.argv[1])
