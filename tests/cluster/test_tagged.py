"""On a real Slurm tagged starts first what the tag alone says is short; the names are the same.

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
from slurm_dl.slurm.read.comment_claims import tag_in

pytestmark = pytest.mark.slurm

SACCT = """#!/bin/sh
for word; do case $word in --delimiter=*) by=${word#*=};; esac; done
exec sed "s/|/$by/g" "$(dirname "$0")/records"
"""
RAN_S = {"short": 120, "long": 36_000}
"""Run time of the jobs of each script that are over."""

HISTORY = {"estimates": {"history_days": 2}}


def records(tags: dict[str, str]) -> str:
    """Twenty jobs of each script and one name, of this user, on all GPUs of the cluster."""
    now_s, lines = int(time.time()), []
    for i in range(40):
        script = ("short", "long")[i % 2]
        end_s, ran_s = now_s - 60 * (i + 1), RAN_S[script]
        values = {
            "JobName": "train",
            "Comment": json.dumps({"slurm_dl": {"tag": tags[script]}}),
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


def submit(place: Schedd, script: str) -> str:
    """A script with all GPUs of the cluster; all have one name and one time limit."""
    path = place.home / f"{script}.sh"
    path.write_text(f"# {script}\nexec sleep 600\n", encoding="utf-8")
    options = ["--name=train", "--time=60", "--no-preempt"]
    return place.submit(16, "sh", str(path), options=options)


@pytest.fixture(scope="module")
def place(sandbox: Sandbox, module_directory: Path) -> Iterator[Schedd]:
    """A daemon that reads this history, by the tags that dlsubmit gives the two scripts."""
    tools = module_directory / "tools"
    tools.mkdir()
    (tools / "sacct").write_text(SACCT, encoding="utf-8")
    (tools / "sacct").chmod(0o755)
    with schedd_in(sandbox, module_directory) as daemon:
        tags = {}
        for script in RAN_S:
            job = submit(daemon, script)
            tags[script] = tag_in(daemon.job(job, "Comment")[0])
            daemon.box.run(["scancel", job])
            daemon.until_state(job, "CANCELLED")
        assert all(tags.values())
        assert len(set(tags.values())) == len(tags)
        (tools / "records").write_text(records(tags), encoding="utf-8")
        daemon.configure(**HISTORY)
        daemon.start(PATH=f"{tools}:{daemon.env['PATH']}")
        yield daemon


def line(place: Schedd) -> list[str]:
    """Ids of the jobs that wait, by RANK, once Slurm is told their places."""
    told = json.loads(place.ask("dlqueue", "--json").stdout)["jobs"]
    waiting = sorted((job for job in told if job["state"] == "PD"), key=lambda job: job["rank"])
    said = place.box.run(["squeue", "-ht", "PD", "--sort=-p", "-o", "%i"]).stdout.split()
    ids = [str(job["job_id"]) for job in waiting]
    return ids if ids == said else []


def without_tag(place: Schedd, job: str) -> None:
    """Take the tag out of the job's comment."""
    comment = json.loads(place.job(job, "Comment")[0])
    comment["slurm_dl"].pop("tag")
    place.box.run(["scontrol", "update", f"job={job}", f"comment={json.dumps(comment)}"])
    place.until("no tag", lambda: tag_in(place.job(job, "Comment")[0]) == "")


@pytest.mark.parametrize(
    ("policy", "tagged", "first"),
    [
        ("tagged", "by tag", "short"),
        *(
            pytest.param(policy, tagged, "long", marks=pytest.mark.full("shows that it can fail"))
            for policy, tagged in (
                ("tagged", ""),
                ("fifo", "by tag"),
                ("las", "by tag"),
                ("fewest_gpus", "by tag"),
            )
        ),
    ],
)
def test_the_script_that_was_short_starts_first(
    place: Schedd, policy: str, tagged: str, first: str
) -> None:
    """Name, GPUs and limit are the same, and the long one came first."""
    place.configure(**HISTORY, policy={"order": policy, "parameters": {}})
    place.ask("dlctl", "reload")
    blocker = submit(place, "blocker")
    place.until_state(blocker, "RUNNING")
    jobs = {script: submit(place, script) for script in ("long", "short")}
    if not tagged:
        for job in jobs.values():
            without_tag(place, job)
    second = "short" if first == "long" else "long"
    expected = [jobs[first], jobs[second]]
    place.until("both to have their places", lambda: line(place) == expected)
    place.box.run(["scancel", blocker])
    try:
        place.until_state(jobs[first], "RUNNING")
        assert place.state(jobs[second]) == "PENDING"
    finally:
        place.box.run(["scancel", *jobs.values()])
        for job in jobs.values():
            place.until_state(job, "CANCELLED")
