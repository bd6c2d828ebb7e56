"""``dlctl test-signal --local`` on real processes: what works, and each thing that does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import eventually

from slurm_dl.job.child import SESSION, members
from slurm_dl.model.contract import Contract
from slurm_dl.signal_test.local_trial import JOB_ID, LocalJob

ROOT = Path(__file__).parents[2]
Batch = Callable[..., str]
TOY = ROOT / "examples" / "train_toy.py"

HANDLER = """
import json, os, signal, sys, time
saved = os.path.join(os.environ["SLURM_DL_RUN_DIR"], "saved")
name = sys.argv[1]
def handler(number, frame):
    with open(saved + ".tmp", "w") as out:
        out.write("state")
    os.replace(saved + ".tmp", saved)
    if "requeue" in sys.argv:
        os.system("scontrol requeue $SLURM_JOB_ID")
    elif "stop" in sys.argv:
        sys.exit(0)
signal.signal(getattr(signal, "SIG" + name), handler)
if os.path.exists(saved) and "forget" not in sys.argv:
    open(saved).read()
while True:
    time.sleep(0.05)
"""


def dlctl(cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``dlctl test-signal --local``."""
    code = "from slurm_dl.cli.dlctl.command import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "test-signal", "--local", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(cwd)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def facts(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The facts of a trial with --json."""
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["works"] == (done.returncode == 0), answer
    return answer


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    """Make a batch script around the training with a handler of its own."""
    (tmp_path / "train.py").write_text(HANDLER)

    def make(last: str, first: str = "") -> str:
        path = tmp_path / "job.sh"
        path.write_text(f"#!/bin/bash\n#SBATCH --gpus=1\n{first}\n{last}\n")
        return str(path)

    return make


def test_a_script_that_asks_for_checkpoints_works(tmp_path: Path) -> None:
    """The toy training: acknowledged, recorded, and gone on right behind the checkpoint."""
    done = dlctl(tmp_path, "--json", str(TOY), "--steps", "9999", "--step-s", "0.02")
    answer = facts(done)
    seen = answer["facts"]

    assert answer["works"], done.stderr
    assert seen["dlrun_took_it"]
    assert seen["acked_s"] < 30
    assert seen["back"]["first_step"] > seen["checkpoint"]["step"]
    assert not list(tmp_path.glob("dlctl-test-signal-*"))


def test_a_shell_that_was_not_replaced_dies(tmp_path: Path, batch: Batch) -> None:
    """Without exec the signal ends the batch script, and the training never hears of it."""
    script = batch(f"{sys.executable} train.py USR1")
    done = dlctl(tmp_path, "--after", "0.5", script)

    assert done.returncode == 1
    assert "The batch shell got USR1 and died of it" in done.stdout
    assert "exec dlrun" in done.stdout


def test_a_framework_that_waits_for_another_signal_is_named(tmp_path: Path, batch: Batch) -> None:
    """Submitit's USR2 against a contract of USR1."""
    dlrun = f"exec {sys.executable} -m slurm_dl.job.run --"
    script = batch(f"{dlrun} {sys.executable} train.py USR2", "trap '' USR1")
    done = dlctl(tmp_path, "--after", "1", "--grace", "1", script)

    assert done.returncode == 1
    assert "catches USR2 and not USR1: submit it with --signal USR2" in done.stdout


def test_a_job_that_requeues_itself_works(tmp_path: Path, batch: Batch) -> None:
    """As Lightning and submitit do; scontrol is pretended, and what it wrote is read again."""
    script = batch(f"exec {sys.executable} train.py USR2 requeue")
    options = ("--signal", "USR2", "--requeued-by", "job", "--after", "1", "--json")
    answer = facts(dlctl(tmp_path, *options, script))
    seen = answer["facts"]

    assert seen["requeued_itself"]
    assert seen["checkpoint"]["files"] == ["saved"]
    # A file system without access times cannot tell.
    assert answer["works"] or seen["back"]["read"] is None, answer


def test_a_job_that_starts_over_is_found(tmp_path: Path, batch: Batch) -> None:
    """It saved and requeued itself, and did not read what it had saved."""
    script = batch(f"exec {sys.executable} train.py USR2 requeue forget")
    options = ("--signal", "USR2", "--requeued-by", "job", "--after", "1", "--json")
    answer = facts(dlctl(tmp_path, *options, script))

    assert not answer["works"]
    assert answer["facts"]["back"]["read"] in {False, None}


def test_a_job_that_ends_with_status_0_is_told_so(tmp_path: Path, batch: Batch) -> None:
    """Slurm would take it for done."""
    script = batch(f"exec {sys.executable} train.py USR1 stop")
    done = dlctl(tmp_path, "--after", "1", script)

    assert done.returncode == 1
    assert "status 0 means that the job is done" in done.stdout


def test_the_log_of_a_script_that_fails_is_shown_without_its_escapes(
    tmp_path: Path, batch: Batch
) -> None:
    """The user's text must not move a terminal."""
    done = dlctl(tmp_path, batch("printf 'no \\033[2Jmodel\\n'; exit 3"))

    assert done.returncode == 1
    assert "It ended with status 3 before it trained" in done.stdout
    assert "log: no [2Jmodel" in done.stdout


def test_nobody_is_left(tmp_path: Path, batch: Batch) -> None:
    """Also processes that ignore SIGTERM's usual end, in groups of their own."""
    pids = tmp_path / "pids"
    script = batch(f"exec {sys.executable} train.py USR1 stop", f"sleep 500 & echo $! $$ > {pids}")
    dlctl(tmp_path, "--after", "1", script)

    sleeper, session = pids.read_text().split()
    assert members(SESSION, int(session)) == []
    # Nobody may be there to reap it: a zombie has no command line any more.
    line = Path("/proc", sleeper, "cmdline")
    assert not line.exists() or b"sleep" not in line.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_trial_that_is_stopped_leaves_nothing(
    tmp_path: Path, batch: Batch, number: signal.Signals
) -> None:
    """Neither processes nor its directory, also where the terminal goes away."""
    pids = tmp_path / "pids"
    script = batch(f"echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait", "sleep 500 &")
    code = "from slurm_dl.cli.dlctl.command import main; main()"
    # Where the tests run under nohup SIGHUP is ignored.
    env = ["/usr/bin/env", "--default-signal=HUP,TERM"]
    process = subprocess.Popen(
        [*env, sys.executable, "-c", code, "test-signal", "--local", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(pids.exists, 60, what="the script to run")
        process.send_signal(number)
        out, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    sleeper, session = pids.read_text().split()

    assert (process.returncode, out) == (1, "")
    assert said.endswith("dlctl: stopped\n")
    assert members(SESSION, int(session)) == []
    line = Path("/proc", sleeper, "cmdline")
    assert not line.exists() or b"sleep" not in line.read_bytes()
    assert not list(tmp_path.glob("dlctl-test-signal-*"))


def test_the_first_process_keeps_its_number_until_the_end(tmp_path: Path) -> None:
    """It is the session's: as long as others may be left in it, nobody else may get it."""
    place = tmp_path / "place"
    place.mkdir()
    job = LocalJob(["/bin/sh", "-c", "exit 3"], Contract(), comment="", place=place, environ={})
    job.start()
    eventually(lambda: job.look().state == "over", 60, what="its end")
    look = job.look()
    state = Path(f"/proc/{job._session.pid}/stat").read_text().rpartition(")")[2].split()[0]

    assert (look.end, state) == ("it ended with status 3", "Z")
    job.end()
    assert not Path(f"/proc/{job._session.pid}").exists()
    assert job.look().end == "it ended with status 3"


@pytest.mark.parametrize(("number", "name"), [(15, "TERM"), (40, "40")])
def test_a_death_by_any_signal_has_a_name(tmp_path: Path, number: int, name: str) -> None:
    """Most real-time signals have none."""
    place = tmp_path / "place"
    place.mkdir()
    argv = ["/bin/sh", "-c", f"kill -{number} $$"]
    job = LocalJob(argv, Contract(), comment="", place=place, environ={})
    job.start()
    eventually(lambda: job.look().state == "over", 60, what="its end")
    look = job.look()
    job.end()

    assert (look.killed_by, look.end) == (name, f"it died of {name}")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("nothing.py",), "nothing.py: no such file"),
        (("12",), "a JOB runs already"),
        (("--launcher", "srun", "x.py"), "srun needs a real job"),
        (("--submit=--time=1", "x.py"), "--submit is for a job of Slurm"),
        (("--run-dir", "x", "x.py"), "--run-dir is for a JOB"),
    ],
)
def test_wrong_calls_are_refused(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    """Status 2, one line, nothing started."""
    done = dlctl(tmp_path, *args)

    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_running_job_is_not_signalled_without_yes(tmp_path: Path) -> None:
    """It may end it."""
    code = "from slurm_dl.cli.dlctl.command import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "test-signal", "12"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert "add --yes" in done.stderr


def test_the_pretended_job_is_none_of_a_real_slurm() -> None:
    """Its id is above MaxJobId, whatever a site sets that to, and fits Slurm's 32 bits."""
    assert 0x03FF_FFFF < JOB_ID < 0xFFFF_FFFE
