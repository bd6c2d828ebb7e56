"""Stands in for pyslurm in tests of the worker: its classes as far as the worker uses them.

FAKE_PYSLURM is a JSON file of jobs, one object of attributes each.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

JOBS = Path(os.environ["FAKE_PYSLURM"])

__version__ = os.environ.get("FAKE_VERSION", "25.11.2")

ATTRIBUTES: dict[str, Any] = {
    "array_id": None,
    "array_task_id": None,
    "array_tasks_waiting": None,
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
    "allocated_tres": None,
    "requested_tres": None,
}


class PyslurmError(Exception):
    """As in pyslurm."""


class Job:
    """One job; a name or comment given as a list of numbers is bytes that are no UTF-8."""

    def __init__(self, job_id: int, **given: object) -> None:
        self.id = job_id
        self._given = ATTRIBUTES | given

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of all types
        value = self._given[name]
        if name in {"name", "comment"} and isinstance(value, list):
            return bytes(value).decode("utf-8")
        return tres(value) if name.endswith("_tres") and value is not None else value

    def modify(self, changes: SimpleNamespace) -> None:
        """Remember it beside the file of jobs; job 13 may not be changed."""
        if self.id == 13:
            msg = "Access/permission denied"
            raise PyslurmError(msg)
        with JOBS.with_suffix(".changes").open("a", encoding="ascii") as stream:
            stream.write(f"{self.id} {changes.site_factor}\n")


JobSubmitDescription = SimpleNamespace


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
        """The jobs of the file, which may be missing."""
        os.write(1, b"libslurm says something on standard output\n")
        if not JOBS.exists():
            msg = "Unable to contact slurm controller (connect failure)"
            raise PyslurmError(msg)
        jobs = json.loads(JOBS.read_text(encoding="utf-8"))
        return {job["id"]: Job(job.pop("id"), **job) for job in jobs}
