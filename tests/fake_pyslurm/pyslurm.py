"""Stands in for pyslurm in tests of the worker: its classes as far as the worker uses them.

FAKE_PYSLURM says how it behaves: a file of jobs (JSON, one object of attributes each), or one of
the words below. The file FAKE_PYSLURM_LOADING, if any, is made as soon as the queue is asked for.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BEHAVES = os.environ["FAKE_PYSLURM"]

__version__ = "25.11.2"

if BEHAVES == "fatal":
    # As libslurm does without a slurm.conf: no exception, the process ends.
    os.write(2, b"fatal: Unable to process configuration file\n")
    os._exit(1)
if BEHAVES == "slow import":
    time.sleep(3600)

ATTRIBUTES: dict[str, Any] = {
    "array_id": None,
    "array_task_id": None,
    "array_tasks_waiting": None,
    "array_tasks_parallel": None,
    "heterogeneous_id": None,
    "heterogeneous_offset": None,
    "state": "PENDING",
    "state_reason": "Priority",
    "partition": "gpu",
    "user_id": 0,
    "account": None,
    "qos": "normal",
    "num_nodes": 1,
    "ntasks": 1,
    "sockets_per_node": None,
    "cpus": 1,
    "gres_per_node": {},
    "allocated_nodes": None,
    "submit_time": 100,
    "start_time": None,
    "end_time": None,
    "eligible_time": 100,
    "time_limit": 60,
    "requeue_count": 0,
    "is_requeueable": True,
    "is_batch_job": True,
    "resource_sharing": "OK",
    "priority": 5,
    "reservation": None,
    "required_nodes": None,
    "constraints": [],
    "wckey": None,
    "name": "train",
    "comment": None,
    "excluded_nodes": None,
    "allocated_tres": None,
    "requested_tres": None,
}


class PyslurmError(Exception):
    """As in pyslurm."""


class RPCError(PyslurmError):
    """As in pyslurm."""


class Job:
    """One job; attributes that are given as lists of numbers are bytes that are no UTF-8."""

    def __init__(self, job_id: int, **given: object) -> None:
        self.id = job_id
        self._given = ATTRIBUTES | given

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of all types
        if name not in self._given:
            raise AttributeError(name)
        value = self._given[name]
        if name in {"name", "comment"} and isinstance(value, list):
            return bytes(value).decode("utf-8")
        if name.endswith("_tres") and value is not None:
            return tres(value)
        return value

    def modify(self, changes: JobSubmitDescription) -> None:
        """Remember it in the job's file, or refuse."""
        if self.id == 13:
            msg = "Access/permission denied"
            raise RPCError(msg)
        with Path(BEHAVES).with_suffix(".changes").open("a", encoding="ascii") as stream:
            stream.write(f"{self.id} {changes.site_factor}\n")


class JobSubmitDescription:
    """What is to be changed."""

    def __init__(self, *, site_factor: int) -> None:
        self.site_factor = site_factor


def tres(counts: dict[str, int]) -> SimpleNamespace:
    """Resources as pyslurm counts them."""
    counted = {name: SimpleNamespace(count=count) for name, count in counts.items()}
    gres = {name[5:]: value for name, value in counted.items() if name.startswith("gres/")}
    return SimpleNamespace(
        **{name: counted.get(name) for name in ("cpu", "mem", "node")}, gres=gres
    )


class Jobs:
    """The whole queue."""

    @staticmethod
    def load() -> dict[int, Job]:
        """The jobs of the file, or trouble."""
        sys.stdout.write("libslurm says something on standard output\n")
        sys.stdout.flush()
        if mark := os.environ.get("FAKE_PYSLURM_LOADING"):
            Path(mark).touch()
        match BEHAVES:
            case "hang":
                time.sleep(3600)
            case "crash":
                os.write(2, b"free(): invalid pointer\n")
                os.abort()
            case "refuse":
                msg = "Unable to contact slurm controller (connect failure)"
                raise RPCError(msg)
        jobs = json.loads(Path(BEHAVES).read_text(encoding="utf-8"))
        return {job["id"]: Job(job.pop("id"), **job) for job in jobs}
