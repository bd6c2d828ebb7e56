"""``dlctl test-signal`` on a real Slurm: a script that works, one that does not, a running job."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import eventually

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("jobs of several frameworks on a Slurm"),
    pytest.mark.timeout(900),
]

Lab = Any
"""The class Frameworks in conftest.py, which cannot be imported."""

TOY = Path(__file__).parents[2] / "examples" / "train_toy.py"


def test_a_python_script_is_submitted_stopped_and_brought_back(lab: Lab) -> None:
    """Its acknowledgement is in the comment, its checkpoint in the run directory; then it ends."""
    done = lab.dlctl("--json", str(TOY), "--steps", "9999", "--step-s", "0.1")
    answer = json.loads(done.stdout)
    seen = answer["facts"]

    assert answer["works"], (answer, done.stderr)
    assert done.returncode == 0
    assert seen["dlrun_took_it"]
    assert seen["acked_s"] is not None
    assert seen["back"]["first_step"] > seen["checkpoint"]["step"]
    eventually(lambda: not lab.tasks(0), 30, what="the job of the trial to be gone")


def test_a_batch_script_that_dies_of_the_signal_is_named(lab: Lab) -> None:
    """The commonest mistake: no exec, no trap."""
    script = lab.home / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=1\nsleep 600\n")
    done = lab.dlctl("--after", "2", str(script))

    assert done.returncode == 1, done.stderr
    assert "The batch shell got USR1 and died of it" in done.stdout
    assert "exec dlrun" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_trial_that_is_stopped_cancels_its_job(lab: Lab, number: signal.Signals) -> None:
    """It would wait for its second run, and take GPUs, with nobody to end it."""
    script = lab.home / "job.sh"
    script.write_text("#!/bin/bash\nsleep 600\n")
    with lab.dlctl_meanwhile("--after", "500", str(script)) as process:
        eventually(lambda: lab.tasks(1), 60, what="the job of the trial to run")
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]

    assert (process.returncode, said.splitlines()[-1]) == (1, "dlctl: stopped")
    eventually(lambda: not lab.tasks(0), 30, what="the job of the trial to be gone")
    assert not list(lab.home.glob("dlctl-test-signal-*"))


def test_a_running_job_is_tried_and_lives_on(lab: Lab) -> None:
    """By its own contract; afterwards it is in its second run and trains."""
    job = lab.submit(1, sys.executable, str(TOY), "--steps", "9999", "--step-s", "0.1")
    job.until_trains(0)
    done = lab.dlctl("--yes", job.job)

    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "After the requeue it trained again at step" in done.stdout
    assert job.now()[1].restarts == 1


def test_a_job_without_a_contract_is_left_alone(lab: Lab) -> None:
    """Nobody would signal it, so neither do we, unless a signal is named."""
    script = "#!/bin/bash\ntrap '' USR1\nsleep 600\n"
    job = lab.box.run(["sbatch", "--parsable"], stdin=script).stdout.strip()
    done = lab.dlctl("--yes", job)

    assert done.returncode == 2
    assert f"job {job} has no contract" in done.stderr


def test_a_job_of_another_user_is_left_to_its_owner(lab: Lab) -> None:
    """Also by root, who could signal it: it would open the owner's files."""
    job = lab.box.run(["sbatch", "--parsable", "--wrap=sleep 600"], user="nobody").stdout.strip()
    done = lab.dlctl("--yes", "--signal", "USR1", job)

    assert done.returncode == 2
    assert f"sudo -u nobody dlctl test-signal --yes {job}" in done.stderr
