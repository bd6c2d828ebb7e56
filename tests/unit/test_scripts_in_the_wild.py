"""Scripts and environments of users in which the signal, or an option, goes astray."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from user_scripts import arguments, submitted, written

from slurm_dl.submit.user_files import find_defaults

DLRUN = Path(sys.executable).with_name("dlrun")
PYTHON = "/usr/bin/python3"
TRAIN = """import os, pathlib, signal, sys, time
name = sys.argv[1]
def save(*_):
    pathlib.Path(f"saved-{name}").touch()
    sys.exit()
signal.signal(signal.SIGUSR1, save)
pathlib.Path(f"up-{name}").touch()
time.sleep(20)
"""
SUPERUSER = pytest.mark.skipif(os.geteuid() != 0, reason="makes a setuid program")


def until(predicate: Callable[[], object], within_s: float = 10.0) -> bool:
    end_s = time.monotonic() + within_s
    while not predicate() and time.monotonic() < end_s:
        time.sleep(0.05)
    return bool(predicate())


def asked(desk: Path, script: str, **variables: str) -> tuple[bool, str]:
    """True if training a of *script* saved when dlrun was asked, and nothing followed; the log."""
    (desk / "train.py").write_text(TRAIN)
    (desk / "Makefile").write_text(f"train:\n\t{PYTHON} train.py a\n")
    (desk / "run").mkdir(mode=0o700)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    log = desk / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(DLRUN), "--grace", "5", "--", "bash", "-c", script],
            env={
                **environ, **variables,
                "SLURM_DL_RUN_DIR": str(desk / "run"), "SLURM_DL_SCRIPT_LEAD_S": "60",
            },
            cwd=desk, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        assert until((desk / "up-a").exists), log.read_text()
        process.send_signal(signal.SIGUSR1)
        saved = until((desk / "saved-a").exists, 4.0)
        until(lambda: "again in place" in log.read_text(), 8.0)
        return saved and not (desk / "after").exists(), log.read_text()
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize(
    "script",
    [
        "make train; true",
        f"echo a b | xargs -n1 {PYTHON} train.py; true",
        f'node -e \'child_process.spawnSync("{PYTHON}", ["train.py", "a"])\'; true',
    ],
    ids=["make", "xargs", "node"],
)
def test_a_launcher_with_a_handler_of_its_own_is_looked_through(
    tmp_path: Path, script: str
) -> None:
    """For make the signal means debug output, for xargs one more process, for node a debugger."""
    if not shutil.which(script.partition(" ")[0]):
        pytest.skip("not installed")
    saved, log = asked(tmp_path, script)

    assert saved, log
    assert not (tmp_path / "up-b").exists()
    assert "Debugger listening" not in log


def test_a_job_submitted_from_inside_is_left_alone(tmp_path: Path) -> None:
    """A job hands SLURM_DL_RUN_DIR and SLURM_DL_ATTEMPT on, also with --export=NONE."""
    names = ("SLURM_DL_RUN_DIR", "SLURM_DL_ATTEMPT")
    marks = " ".join(f'{name}="${name}"' for name in names)
    # What slurmd starts is no descendant of dlrun, and has its own job's id.
    other = f"(setsid env {marks} SLURM_JOB_ID=2 {PYTHON} train.py b & )"
    saved, log = asked(tmp_path, f"{other}; {PYTHON} train.py a; true", SLURM_JOB_ID="1")
    time.sleep(1)

    assert saved, log
    assert not (tmp_path / "saved-b").exists(), log


@pytest.mark.parametrize(
    "script",
    [
        f"{PYTHON} train.py a && touch after",
        f"bash -c '{PYTHON} train.py a; touch after'; touch after",
        f"trap 'touch after' USR2; {PYTHON} train.py a | cat; touch after",
        f"trap '' TERM; {PYTHON} train.py a; touch after",
        f"{PYTHON} train.py a > >(cat); touch after",
        f"{PYTHON} train.py a & wait; touch after",
    ],
)
def test_what_follows_a_training_that_saved_is_left_to_the_next_run(
    tmp_path: Path, script: str
) -> None:
    """A script would take the end of who was asked to save for the end of the work."""
    saved, log = asked(tmp_path, script)

    assert saved, log


@SUPERUSER
def test_a_process_that_may_not_be_signalled_does_not_end_dlrun(short_directory: Path) -> None:
    """As sudo, which has a handler: dlrun must go on to the training."""
    desk = short_directory / "desk"
    desk.mkdir()
    shutil.copy(os.path.realpath(PYTHON), desk / "as-root")
    shutil.copytree(Path(__file__).parents[2] / "slurm_dl" / "job", desk / "lib/slurm_dl/job")
    (desk / "lib/slurm_dl/__init__.py").write_text('__version__ = "0"\n')
    (desk / "as-root").chmod(0o4755)
    (desk / "root.py").write_text(
        "import os, signal, time\nos.setuid(0)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\ntime.sleep(15)\n"
    )
    (desk / "train.py").write_text(TRAIN)
    (desk / "run").mkdir(mode=0o700)
    for path in (desk, *desk.rglob("*")):
        if path.name != "as-root":
            os.chown(path, 65534, 65534)
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(desk / "lib")}
    script = f"./as-root root.py & sleep 1; {PYTHON} train.py a; true"
    with (desk / "log").open("wb") as out:
        process = subprocess.Popen(
            [PYTHON, "-m", "slurm_dl.job.run", "--grace", "5", "--", "bash", "-c", script],
            env={**environ, "SLURM_DL_RUN_DIR": str(desk / "run")},
            user=65534, group=65534, extra_groups=[], cwd=desk, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        assert until((desk / "up-a").exists), (desk / "log").read_text()
        process.send_signal(signal.SIGUSR1)
        assert until((desk / "saved-a").exists, 4.0), (desk / "log").read_text()
    finally:
        process.terminate()
        process.wait()


def test_a_first_run_is_no_restart(tmp_path: Path) -> None:
    """Slurm sets SLURM_RESTART_COUNT from the first restart on, and scripts ask whether it is."""
    script = submitted(written(tmp_path, "#!/bin/bash\ntrue\n")).script

    assert "export SLURM_RESTART_COUNT=" not in script


@pytest.mark.parametrize(
    "line",
    [
        'echo "to stop it: scontrol requeue $SLURM_JOB_ID"',
        "trap 'scontrol requeue $SLURM_JOB_ID' TERM",
    ],
)
def test_only_a_script_that_requeues_on_the_signal_does_so_itself(
    tmp_path: Path, line: str
) -> None:
    """Else its end with status 0 after the signal would be its last."""
    job = submitted(written(tmp_path, f"#!/bin/bash\n{line}\npython train.py\n"))

    assert "export SLURM_DL_STOPS_WITH=0\n" in job.script


def test_what_is_left_to_sbatch_stays(tmp_path: Path) -> None:
    """A line of which one option is left out keeps the others."""
    path = written(tmp_path, "#!/bin/bash\n#SBATCH --gres=gpu:1 --newer=5\ntrue\n")

    header = submitted(path, typed={"gpus": "2"}).script.partition("<<")[0]
    assert "--newer=5" in header


@pytest.mark.parametrize(
    ("usual", "lines"),
    [
        ("--mem=16G", "--mem-per-cpu=4G"),
        ("--cpus-per-gpu=4", "--cpus-per-task=2"),
        ("--gres=gpu:4", "--gpus=1"),
        ("--gres=gpu:4", "-N 1"),
        ("--requeue", "--no-requeue"),
    ],
)
def test_a_script_wins_over_defaults_that_exclude_its_options(
    tmp_path: Path, usual: str, lines: str
) -> None:
    """Sbatch refuses both, or the default would win as it is on the line."""
    path = written(tmp_path, f"#!/bin/bash\n#SBATCH {lines}\ntrue\n")

    assert usual not in submitted(path, usual_sbatch=[usual]).args


def test_a_default_name_counts(tmp_path: Path) -> None:
    """The name of the file is for jobs without one."""
    job = submitted(written(tmp_path, "#!/bin/bash\ntrue\n"), usual={"name": "mine"})

    assert arguments(job)["job-name"] == "mine"


def test_a_short_default_limit_has_room_for_the_signal(tmp_path: Path) -> None:
    """As one of the script's."""
    job = submitted(written(tmp_path, "#!/bin/bash\ntrue\n"), usual={"time": "1"})

    assert arguments(job)["signal"] == "B:USR1@30"


@pytest.mark.parametrize(
    ("line", "value"),
    [("time: 1:30:00", "1:30:00"), ("account: 0123", "0123"), ("name: 1.10", "1.10")],
)
def test_defaults_are_text(tmp_path: Path, line: str, value: str) -> None:
    """YAML 1.1 reads 1:30:00 as 5400, which is minutes to sbatch."""
    (tmp_path / ".slurm_dl.yaml").write_text(f"{line}\n")
    found, _ = find_defaults({}, tmp_path, {"time", "account", "name"})

    assert [default.value for default in found.values()] == [value]
