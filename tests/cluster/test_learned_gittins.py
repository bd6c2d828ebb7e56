"""On a real Slurm learned_gittins first starts what accounting says is short, though it came last.

Accounting is a program in place of sacct; a daemon and a Slurm as everywhere else.
"""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox
from slurm_dl.slurm.accounting.query import NAMED_FIELDS

pytestmark = pytest.mark.slurm

SACCT = """#!/bin/sh
for word; do case $word in --delimiter=*) by=${word#*=};; esac; done
exec sed "s/|/$by/g" "$(dirname "$0")/records"
"""
RAN_S = {"short": 120, "long": 36_000}
"""Run time of the jobs of each name that are over."""


def records() -> str:
    """Forty jobs of each name, of this user, on all GPUs of the cluster."""
    now_s, lines = int(time.time()), []
    for i in range(80):
        name = ("short", "long")[i % 2]
        end_s, ran_s = now_s - 60 * (i + 1), RAN_S[name] + i
        values = {
            "JobName": name,
            "Comment": "",
            "JobID": str(1000 + i),
            "User": pwd.getpwuid(os.getuid()).pw_name,
            "Account": "root",
            "Submit": str(end_s - ran_s),
            "Start": str(end_s - ran_s),
            "End": str(end_s),
            "State": "COMPLETED",
            "ElapsedRaw": str(ran_s),
            "ReqTRES": "gres/gpu=16",
            "AllocTRES": "gres/gpu=16",
        }
        lines.append("".join(f"{values[field]}|" for field in NAMED_FIELDS))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def place(sandbox: Sandbox, module_directory: Path) -> Iterator[Schedd]:
    """A daemon that reads this history under each of its policies."""
    tools = module_directory / "tools"
    tools.mkdir()
    (tools / "records").write_text(records(), encoding="utf-8")
    (tools / "sacct").write_text(SACCT, encoding="utf-8")
    (tools / "sacct").chmod(0o755)
    with schedd_in(sandbox, module_directory) as daemon:
        daemon.configure(estimates={"history_days": 2})
        daemon.start(PATH=f"{tools}:{daemon.env['PATH']}")
        yield daemon


def submit(place: Schedd, name: str, command: str) -> str:
    """A job with all GPUs of the cluster."""
    argv = ["sbatch", "--parsable", "-J", name, "-N4", "--gres=gpu:4", "-o", "/dev/null"]
    return place.box.run([*argv, "--wrap", command]).stdout.strip()


def line(place: Schedd) -> list[str]:
    """Names of the jobs that wait, by RANK, once Slurm is told their places."""
    told = json.loads(place.ask("dlqueue", "--json").stdout)["jobs"]
    waiting = sorted((job for job in told if job["state"] == "PD"), key=lambda job: job["rank"])
    said = place.box.run(["squeue", "-ht", "PD", "--sort=-p", "-o", "%j"]).stdout.split()
    names = [str(job["name"]) for job in waiting]
    return names if names == said else []


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        ("learned_gittins", "short"),
        ("fifo", "long"),
        ("las", "long"),
        ("fewest_gpus", "long"),
    ],
)
def test_what_is_expected_to_be_short_starts_first(place: Schedd, policy: str, first: str) -> None:
    """Both have no time limit of their own and need all nodes; the long one came first."""
    place.configure(estimates={"history_days": 2}, policy={"order": policy, "parameters": {}})
    place.ask("dlctl", "reload")
    blocker = submit(place, "blocker", "sleep 600")
    place.until_state(blocker, "RUNNING")
    jobs = {name: submit(place, name, "sleep 600") for name in ("long", "short")}
    second = "short" if first == "long" else "long"
    place.until("both to have their places", lambda: line(place) == [first, second])
    place.box.run(["scancel", blocker])
    try:
        place.until_state(jobs[first], "RUNNING")
        assert place.state(jobs[second]) == "PENDING"
    finally:
        place.box.run(["scancel", *jobs.values()])
        for job in jobs.values():
            place.until_state(job, "CANCELLED")
