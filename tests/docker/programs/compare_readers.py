"""Runs inside the cluster: the whole queue by both readers, field by field; prints JSON.

Exit status 0: they agree. A cluster moves, so a difference counts only if squeue said the same
before and after pyslurm was asked. Arguments are running jobs that take their time to end: one
after the other is cancelled, until one has been compared while it was completing.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from typing import Any

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, Jobs, JobState
from slurm_dl.model.snapshot import Observed
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.pyslurm.worker_process import PyslurmProcess, environment
from slurm_dl.slurm.pyslurm.worker_queue import PyslurmQueue
from slurm_dl.slurm.tool_runner import Slurm

TRIES = 10


def said(seen: Observed) -> dict[str, dict[str, Any]]:
    """All that was observed, by job id and name; neither listing nor index order shows."""
    by_job: dict[str, dict[str, Any]] = {}
    for row, job_id in enumerate(seen.jobs.job_id.tolist()):
        job = by_job[str(job_id)] = {
            field.name: getattr(seen.jobs, field.name)[row].item()
            for field in dataclasses.fields(Jobs)
        }
        job["state"] = JobState(job["state"]).name
        job["held"] = Held(job["held"]).name
        job["gpu_type"] = seen.gpu_types[job["gpu_type"]] if job["gpu_type"] >= 0 else ""
        job["partition"] = seen.partitions[job["partition"]] if job["partition"] >= 0 else ""
        key = JobId(job_id)
        job["text"] = dataclasses.asdict(seen.texts[key])
        job["claim"] = repr(seen.claims.get(key))
        job["also_in"] = [seen.partitions[p] for p in seen.also_in.get(key, ())]
        job["reserved"] = seen.reserved.get(key)
        may = seen.choices.get(key)
        job["choices"] = None if may is None else sorted(_names(seen, may.nonzero()[0].tolist()))
        without = seen.excluded.get(key)
        names = [] if without is None else _names(seen, without.nonzero()[0].tolist())
        job["excluded"] = sorted(names)
        mine = seen.held.job == row
        job["holds"] = {
            seen.nodes.name[node]: [gpus, cpus, mem_mb]
            for node, gpus, cpus, mem_mb in zip(
                *(getattr(seen.held, n)[mine].tolist() for n in ("node", "gpus", "cpus", "mem_mb")),
                strict=True,
            )
        }
    return by_job | {"": {"now_s": seen.now_s, "unreadable": seen.unreadable}}


def _names(seen: Observed, rows: list[int]) -> list[str]:
    return [seen.nodes.name[row] for row in rows]


def differences(cli: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> list[str]:
    """Where the two differ, one line each."""
    lines = [f"job {job}: only pyslurm lists it" for job in other.keys() - cli.keys()]
    for job, fields in cli.items():
        if job not in other:
            lines.append(f"job {job}: pyslurm does not list it")
            continue
        lines += [
            f"job {job} ({fields.get('text', {}).get('name')}): {name} is {value!r} by squeue, "
            f"{other[job][name]!r} by pyslurm"
            for name, value in fields.items()
            if other[job][name] != value
        ]
    return sorted(lines)


def main() -> int:
    """Compare until the cluster stands still for long enough."""
    now_s = time.time()

    def clock() -> float:
        return now_s

    slurm = Slurm()
    queue = PyslurmQueue(slurm, PyslurmProcess(environment(slurm.slurm_conf), timeout_s=30))
    by_cli = SlurmCluster(slurm, max_grace_s=86400, clock=clock)
    by_pyslurm = SlurmCluster(slurm, max_grace_s=86400, clock=clock, queue=queue)
    stubborn = sys.argv[1:]
    states: set[str] = set()
    found = ["the cluster never stood still"]
    try:
        for _ in range(TRIES):
            if stubborn and "COMPLETING" not in states:
                cancel(stubborn.pop())
            now_s = float(int(time.time()))
            before, between, after = (read(c) for c in (by_cli, by_pyslurm, by_cli))
            found = differences(before, between)
            if found and before != after:
                continue
            states |= {job["state"] for job in before.values() if "state" in job}
            if found or not stubborn or "COMPLETING" in states:
                break
    finally:
        by_pyslurm.close()
    print(  # noqa: T201
        json.dumps({"jobs": len(before) - 1, "states": sorted(states), "differences": found})
    )
    return 1 if found else 0


def cancel(job: str) -> None:
    """Cancel and wait for Slurm to have begun with it."""
    subprocess.run(["/usr/bin/scancel", job], check=True)
    show = ["/usr/bin/squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
    end_s = time.monotonic() + 4
    while "RUNNING" in subprocess.run(show, check=True, capture_output=True, text=True).stdout:
        if time.monotonic() > end_s:
            return
        time.sleep(0.05)


def read(cluster: SlurmCluster) -> dict[str, dict[str, Any]]:
    """What one reader says now."""
    return said(cluster.observe())


if __name__ == "__main__":
    sys.exit(main())
