"""Records what a real Slurm's accounting prints about a few jobs, for the tests of its reader.

Run it against a cluster with slurmdbd, ``AccountingStorageTRES=gres/gpu``, at least 8 free GPUs and
a short ``cred_expire``. What is given is put before each command, so that it is run where the
cluster is, as root or SlurmUser::

    python tests/data/record_sacct.py docker exec CONTAINER

It submits the jobs of `CASES`, requeues, suspends and cancels them, and writes the output of the
reader's own command to ``tests/data/slurm-<year>.<month>/sacct.txt``, that of the history's to
``history.txt`` beside it, and to ``sacct.json`` what squeue said meanwhile of the same jobs: their
ids, and of each run when it began and ended. At the end its jobs are cancelled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from slurm_dl.sandbox.process_control import eventually
from slurm_dl.slurm.accounting.job_runs import run_arguments
from slurm_dl.slurm.accounting.past_jobs import HEADER
from slurm_dl.slurm.accounting.query import FIELDS, arguments, between
from slurm_dl.slurm.releases import parse_release

HERE = Path(__file__).parent
PATIENCE_S = 240.0
ENV = ("env", "LC_ALL=C", "TZ=UTC", "SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=0")
SQUEUE = ("JobID", "State", "RestartCnt", "SubmitTime", "StartTime", "UserID")

FAKE = "a|b\n7|0|1|1|1|9|COMPLETED|8|00:00:00|gres/gpu=9\n"
"""A job name that would be a record of its own if it were ever printed."""

SLEEP = "--wrap=sleep 900"
CASES: dict[str, list[str]] = {
    "done": ["--gres=gpu:1", "--wrap=true"],
    "failed": ["--gres=gpu:1", "--wrap=false"],
    "cancelled": ["-H", "--gres=gpu:1", SLEEP],
    "stopped": ["--gres=gpu:1", SLEEP],
    "twice": ["--gres=gpu:2", f"-J{FAKE}", f"--comment={FAKE}", SLEEP],
    "slept": ["--gres=gpu:1", SLEEP],
    "array": ["--array=0-2", "--gres=gpu:1", SLEEP],
    "plain": [SLEEP],
    "waiting": ["-H", "--gres=gpu:4", SLEEP],
}
"""Options of sbatch by what becomes of the job. GPUs that run at once: 8."""


class Recorder:
    """One cluster, and what was seen of its jobs."""

    def __init__(self, prefix: Sequence[str]) -> None:
        self.prefix = tuple(prefix)
        self.ids: dict[str, str] = {}
        self.runs: dict[str, list[list[float]]] = {}

    def run(self, *argv: str) -> bytes:
        """Standard output of one command on the cluster."""
        whole = [*self.prefix, *ENV, *argv]
        return subprocess.run(whole, capture_output=True, check=True, timeout=60).stdout

    def submit(self, name: str) -> None:
        """Queue the job of one case."""
        argv = ("sbatch", "--parsable", "--chdir=/tmp", "-o/dev/null", *CASES[name])
        self.ids[name] = self.run(*argv).decode().strip().partition(";")[0]

    def seen(self) -> dict[str, dict[str, str]]:
        """Every job of ours as squeue has it, by its raw id."""
        form = ",".join(f"{name}:_|" for name in SQUEUE)
        text = self.run("squeue", "--noheader", "--array", "--states=all", f"--Format={form}")
        rows = [
            dict(zip(SQUEUE, line.split("_|"), strict=False)) for line in text.decode().split("\n")
        ]
        return {row["JobID"]: row for row in rows if len(row) == len(SQUEUE)}

    def until(self, job_id: str, *states: str, restarts: int = 0) -> dict[str, str]:
        """The job, as soon as it is in one of *states* after that many restarts."""

        def there() -> bool:
            row = self.seen().get(job_id, {})
            return row.get("State") in states and row.get("RestartCnt") == str(restarts)

        eventually(there, PATIENCE_S, what=f"job {job_id} to be {' or '.join(states)}")
        return self.seen()[job_id]

    def requeue(self, job_id: str, restarts: int) -> None:
        """Requeue a running job and wait for its next run."""
        before = self.until(job_id, "RUNNING", restarts=restarts)
        self.run("scontrol", "requeue", "Incomplete", job_id)
        after = self.until(job_id, "RUNNING", restarts=restarts + 1)
        span = [float(before["StartTime"]), float(after["SubmitTime"])]
        self.runs.setdefault(job_id, []).append(span)

    def fill(self) -> None:
        """Make the jobs be what their names say."""
        for name in CASES:
            self.submit(name)
        self.run("scancel", self.ids["cancelled"])
        self.until(self.ids["stopped"], "RUNNING")
        self.until(self.ids["twice"], "RUNNING")
        time.sleep(5)  # How long they run is what is recorded.
        self.run("scancel", self.ids["stopped"])
        self.requeue(self.ids["twice"], 0)
        array = next(j for j, row in self.seen().items() if j == self.ids["array"])
        tasks = [j for j in self.tasks() if j != array]
        self.requeue(tasks[0], 0)
        self.until(self.ids["slept"], "RUNNING")
        self.run("scontrol", "suspend", self.ids["slept"])
        time.sleep(5)  # How long it is suspended is what is recorded.
        self.requeue(self.ids["twice"], 1)
        self.run("scontrol", "resume", self.ids["slept"])
        self.until(self.ids["slept"], "RUNNING")
        self.run("scontrol", "suspend", self.ids["slept"])
        self.until(self.ids["failed"], "FAILED")

    def tasks(self) -> list[str]:
        """Raw ids of the array's tasks that run."""
        text = self.run("squeue", "-h", "-r", f"-j{self.ids['array']}", "-trunning", "-o%A")
        return text.decode().split()

    def write(self) -> None:
        """Ask accounting, and write down what it says."""
        # What slurmctld tells slurmdbd, it tells it in its own time.
        time.sleep(10)
        now = datetime.now(UTC).replace(microsecond=0)
        rows = {j: row for j, row in self.seen().items() if int(j) >= int(self.ids["done"])}
        ids = sorted(int(j) for j in rows)
        runs = self.run("sacct", *run_arguments(ids))
        begin, end = now - timedelta(hours=1), now + timedelta(hours=1)
        dump = self.run("sacct", *arguments(FIELDS, *between(begin.timestamp(), end.timestamp())))
        told: dict[str, Any] = {
            "now_s": now.timestamp(),
            "begin_s": begin.timestamp(),
            "end_s": end.timestamp(),
            "header": HEADER,
            "ids": self.ids,
            "jobs": rows,
            "runs": self.runs,
        }
        release = parse_release(self.run("scontrol", "show", "config").decode())
        folder = HERE / f"slurm-{release.major}.{release.minor:02}"
        folder.mkdir(exist_ok=True)
        (folder / "sacct.txt").write_bytes(runs)
        (folder / "history.txt").write_bytes(dump)
        text = json.dumps(told, indent=1, sort_keys=True)
        (folder / "sacct.json").write_text(text + "\n", encoding="utf-8")
        sys.stdout.write(f"{folder}\n")


def main() -> None:
    """Fill a cluster, write down what it says, and empty it again."""
    recorder = Recorder(sys.argv[1:])
    try:
        recorder.fill()
        recorder.write()
    finally:
        if recorder.ids:
            recorder.run("scancel", *recorder.ids.values())


if __name__ == "__main__":
    main()
