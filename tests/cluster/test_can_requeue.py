"""Answers on whether a requeue will happen, by a real Slurm before and after a submission."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_dl.sandbox import Sandbox, SandboxSpec

pytestmark = pytest.mark.slurm

BIN = Path(sys.executable).parent
SBATCH = '#!/bin/sh\nexec /usr/bin/sbatch "$@" {more}\n'
"""In place of a job_submit plug-in: it changes what is submitted."""


class Desk:
    """A user before a controller without nodes that are up, where JobRequeue=0."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.bin = box.jobs_directory / "bin"
        self.bin.mkdir()
        (self.bin / "train.py").touch()

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """One of our commands."""
        environ = {"SLURM_DL_CLIENT": "/dev/null", "PATH": f"{self.bin}:/usr/bin:/bin"}
        words = [str(BIN / argv[0]), *argv[1:]]
        return self.box.run(words, cwd=self.bin, env=environ, check=False)

    def submit(self, *options: str, changed: str = "") -> tuple[str, str]:
        """The job id, and what dlsubmit says on standard error."""
        (self.bin / "sbatch").write_text(SBATCH.format(more=changed))
        (self.bin / "sbatch").chmod(0o755)
        words = ("--gpus=1", "--parsable", "--no-check", "--time=60", *options)
        done = self.run("dlsubmit", *words, "--", "/bin/true")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr

    def verdict(self, *words: str) -> tuple[int, str]:
        """Exit status and last line of can-requeue."""
        done = self.run("dlctl", "can-requeue", *words)
        return done.returncode, done.stdout.splitlines()[-1]


@pytest.fixture
def desk(make_sandbox: Callable[[SandboxSpec], Sandbox]) -> Desk:
    return Desk(
        make_sandbox(
            SandboxSpec(start_slurmd=False, slurm_conf_extra=("JobRequeue=0", "Epilog=/bin/true"))
        )
    )


def test_what_keeps_a_job_from_starting_again_is_told(desk: Desk) -> None:
    """By dlsubmit once Slurm has the job, and by can-requeue whenever it is asked."""
    box = desk.box
    job, said = desk.submit()
    assert "warning" not in said
    assert desk.verdict(job) == (0, "yes")
    status, line = desk.verdict()
    assert (status, line.partition(":")[0]) == (0, "yes, but")
    assert "JobRequeue=0" in line
    facts = json.loads(desk.run("dlctl", "can-requeue", job, "--json").stdout)["facts"]
    assert any("Epilog=/bin/true runs between the runs" in fact["found"] for fact in facts)

    plain = box.run(["sbatch", "--parsable", "-o/dev/null", "--wrap=true"]).stdout.strip()
    assert desk.verdict(plain) == (1, f"no: Slurm has Requeue=0 for job {plain}")
    box.run(["scontrol", "update", f"JobId={plain}", "Requeue=1"])
    assert desk.verdict(plain)[1].startswith(f"yes, but: job {plain} has no contract")

    late = [f"--deadline=now+{minutes}minutes" for minutes in (60, 240)]
    soon, said = desk.submit(late[0])
    assert f"warning: job {soon} could not be over before its deadline" in said
    assert "warning" not in desk.submit(late[1])[1]

    box.run(["scontrol", "create", "PartitionName=two", "Nodes=n1"])
    both = desk.submit("--partition=gpu,two")[0]
    for change, why in (
        ("MaxTime=59", "its time limit 01:00:00 is above MaxTime=00:59:00 of partition gpu"),
        ("MaxTime=60 State=DOWN", "partition gpu is DOWN: no job starts again there"),
        ("State=DRAIN", ""),
        ("State=UP", ""),
    ):
        box.run(["scontrol", "update", "PartitionName=gpu", *change.split()])
        assert desk.verdict(job) == ((1, f"no: {why}") if why else (0, "yes"))
        assert desk.verdict(both) == (0, f"yes, but: {why}" if why else "yes")
        if "DRAIN" not in change:
            assert why in desk.submit()[1]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ("", ""),
        ("--no-requeue", "warning: Slurm has Requeue=0 for job {job}: something at this site"),
        ("--comment=theirs", "warning: the comment of job {job} is not as it was sent"),
    ],
)
def test_what_a_site_changes_at_submission_is_seen(desk: Desk, changed: str, why: str) -> None:
    """The job is looked at, not what sbatch was asked for; --quiet asks nothing."""
    job, said = desk.submit(changed=changed)
    assert why.format(job=job) in said
    assert said.count("warning") == bool(why)
    assert not desk.submit("--quiet", changed=changed)[1]
    script = desk.bin / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --gres=gpu:1 --time=60\npython train.py\n")
    done = desk.run("dlsubmit", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning") == bool(why)
