"""``dlctl test-signal --local`` on real processes: what works, and what does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import eventually

from slurm_dl.job.child import SESSION, members
from slurm_dl.model.contract import Contract
from slurm_dl.signal_test.local_trial import JOB_ID, LocalJob

ROOT = Path(__file__).parents[2]
Batch = Callable[..., str]
TOY = ROOT / "examples" / "train_toy.py"
MAIN = [
    # Where the tests run under nohup SIGHUP is ignored.
    *("/usr/bin/env", "--default-signal=HUP,INT,TERM", sys.executable, "-c"),
    "from slurm_dl.cli.dlctl.command import main; main()",
    "test-signal",
]
DLRUN = f"exec {sys.executable} -m slurm_dl.job.run -- {sys.executable}"

HANDLER = """
import os, signal, sys, time
from slurm_dl import job
os.makedirs("saved", exist_ok=True)
name, words = sys.argv[1], sys.argv[2:]
def handler(number, frame):
    if "save" in words:
        with open("saved/state", "w") as out:
            out.write(str(step))
    if "requeue" in words:
        os.system("scontrol requeue $SLURM_JOB_ID")
    elif "stop" in words:
        sys.exit(0)
signal.signal(getattr(signal, "SIG" + name), handler)
step = 0
if os.path.exists("saved/state") and "forget" not in words:
    step = int(open("saved/state").read())
while True:
    step += 1
    if "quiet" not in words:
        job.report(step)
    time.sleep(0.05)
"""


def environment(cwd: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(cwd)}


def dlctl(cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``dlctl test-signal``."""
    return subprocess.run(
        [*MAIN, *args],
        cwd=cwd,
        env=environment(cwd),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    """Make a batch script around the training with a handler of its own."""
    (tmp_path / "train.py").write_text(HANDLER)

    def make(last: str, first: str = "") -> str:
        path = tmp_path / "job.sh"
        path.write_text(f"#!/bin/bash\n#SBATCH --gpus=1\n{first}\n{last}\n")
        return str(path)

    return make


def is_gone(pid: str) -> bool:
    """Nobody may be there to reap it: a zombie has no command line any more."""
    line = Path("/proc", pid, "cmdline")
    return not line.exists() or b"sleep" not in line.read_bytes()


def test_a_script_that_asks_for_checkpoints_works(tmp_path: Path) -> None:
    """The toy training: acknowledged, recorded, and gone on right behind the checkpoint."""
    done = dlctl(tmp_path, "--local", "--json", str(TOY), "--steps", "9999", "--step-s", "0.02")
    answer = json.loads(done.stdout)
    seen = answer["facts"]

    assert (done.returncode, answer["works"], answer["advice"]) == (0, True, []), done.stderr
    assert seen["dlrun_took_it"]
    assert seen["acked_s"] < 30
    assert seen["back"]["first_step"] > seen["checkpoint"]["step"]
    assert not list(tmp_path.glob("dlctl-test-signal-*"))


BY_JOB = ("--signal", "USR2", "--requeued-by", "job", "--watch", "saved")


@pytest.mark.parametrize(
    ("last", "options", "said"),
    [
        (f"exec {sys.executable} train.py USR2 save requeue", BY_JOB, "It works."),
        (f"exec {sys.executable} train.py USR2 save requeue forget", BY_JOB, "It started over."),
        (f"exec {sys.executable} train.py USR2 requeue", BY_JOB, "No checkpoint was seen"),
        (f"exec {sys.executable} train.py USR2 save requeue quiet", BY_JOB, "cannot be seen"),
        (f"exec {sys.executable} train.py USR1 save stop", (), "Status 0 means"),
        (f"{sys.executable} train.py USR1", (), "The batch shell got USR1 and died of it"),
        (f"{DLRUN} train.py USR2", ("--grace", "1"), "catches USR2 and not USR1"),
        ("printf 'no \\033[2Jmodel\\n'; exit 3", (), "  log: no [2Jmodel\n"),
    ],
    ids=[
        *("requeues itself", "starts over", "saves nothing", "reports nothing", "ends with 0"),
        *("shell dies", "another signal", "its log without escapes"),
    ],
)
def test_what_is_said_of_a_script(
    tmp_path: Path, batch: Batch, last: str, options: tuple[str, ...], said: str
) -> None:
    """Status 0 for the one that works, 1 and something to do for each of the others."""
    done = dlctl(tmp_path, "--local", "--after", "1", *options, batch(last))

    works = said == "It works."
    assert said in done.stdout, done
    assert (done.returncode == 0, "To do: " not in done.stdout) == (works, works)


DEAF = "import time; time.sleep(60)"
RANKS = (
    f"import subprocess as s, sys; s.run([sys.executable, '-c', {DEAF!r}], start_new_session=True)"
)


@pytest.mark.parametrize(
    "argv",
    [
        ("deaf.py",),
        ("env", "SEED=1", "nice", sys.executable, "deaf.py"),
        ("ranks.py",),
        ("job.sh",),
    ],
    ids=["a script", "a command", "ranks in sessions of their own", "a shell under dlrun"],
)
def test_a_missing_handler_is_named_soon(
    tmp_path: Path, batch: Batch, argv: tuple[str, ...]
) -> None:
    """Once no program has loaded anything for a while."""
    (tmp_path / "deaf.py").write_text(DEAF)
    (tmp_path / "ranks.py").write_text(RANKS)
    batch(f"{DLRUN.removesuffix(sys.executable)} bash -c '{sys.executable} deaf.py; true'")
    done = dlctl(tmp_path, "--local", "--start", "2", "--grace", "20", *argv)

    assert "Nothing has a handler for USR1 (python" in done.stdout, done
    assert "install a handler for USR1" in done.stdout
    assert done.returncode == 1


LATE = """import ctypes, glob, time
began, paths = time.monotonic(), glob.glob("/usr/lib/*/lib[a-z]*.so.?")
while time.monotonic() < began + 4:
    try:
        ctypes.CDLL(paths.pop())  # As an import does.
    except OSError:
        continue
    time.sleep(0.2)
import sys
sys.argv[1:] = ["USR1", "save", "requeue"]
exec(open("train.py").read())
"""


def test_a_program_that_still_loads_is_not_taken_to_have_no_handler(
    tmp_path: Path, batch: Batch
) -> None:
    """However long its imports take."""
    batch("true")
    (tmp_path / "late.py").write_text(LATE)
    options = ("--start", "2", "--requeued-by", "job", "--watch", "saved")
    done = dlctl(tmp_path, "--local", *options, sys.executable.rpartition("/")[2], "late.py")

    assert "It works." in done.stdout, done


def test_nobody_is_left(tmp_path: Path, batch: Batch) -> None:
    """Also processes in groups of their own that the training has left behind."""
    pids = tmp_path / "pids"
    script = batch(f"exec {sys.executable} train.py USR1 stop", f"sleep 500 & echo $! $$ > {pids}")
    dlctl(tmp_path, "--local", "--after", "1", script)

    sleeper, session = pids.read_text().split()
    assert members(SESSION, int(session)) == []
    assert is_gone(sleeper)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_trial_that_is_stopped_leaves_nothing(
    tmp_path: Path, batch: Batch, number: signal.Signals
) -> None:
    """Neither processes nor its directory, also where a second stop comes meanwhile."""
    pids = tmp_path / "pids"
    script = batch(f"echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait", "sleep 500 &")
    process = subprocess.Popen(
        [*MAIN, "--local", script],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(pids.exists, 60, what="the script to run")
        process.send_signal(number)
        process.send_signal(number)
        out, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    sleeper, session = pids.read_text().split()

    assert (process.returncode, out) == (1, "")
    assert said.endswith("dlctl: stopped\n")
    assert members(SESSION, int(session)) == []
    assert is_gone(sleeper)
    assert not list(tmp_path.glob("dlctl-test-signal-*"))


@pytest.mark.parametrize(
    ("command", "end", "killed_by"),
    [
        ("exit 3", "it ended with status 3", ""),
        ("kill -15 $$", "it died of TERM", "TERM"),
        ("kill -40 $$", "it died of 40", "40"),
    ],
)
def test_the_first_process_keeps_its_number_until_the_end(
    tmp_path: Path, command: str, end: str, killed_by: str
) -> None:
    """It is the session's: as long as others may be left in it, nobody else may get it."""
    job = LocalJob(["/bin/sh", "-c", f"echo $$; {command}"], Contract(), place=tmp_path)
    eventually(lambda: job.look().state == "over", 60, what="its end")
    look = job.look()
    process = Path("/proc", job.last_words().strip())

    assert (look.end, look.killed_by) == (end, killed_by)
    assert process.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"
    job.end()
    assert not process.exists()
    assert job.look().end == end


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--local", "nothing.py"), "nothing.py: no such file"),
        (("--local", "12"), "a JOB runs already"),
        (("--local", "--launcher", "srun", "x.py"), "srun needs a real job"),
        (("--local", "--submit=--time=1", "x.py"), "--submit is for a job of Slurm"),
        (("--local", "--run-dir", "x", "x.py"), "--run-dir is for a JOB"),
        (("12",), "add --yes"),
        (("--submit=--array=0-9", "job.sh"), "an array; test one task"),
        (("--submit=-a", "--submit=0-9", "job.sh"), "an array; test one task"),
        (("array.sh",), "an array; test one task"),
        (("short.sh",), "an array; test one task"),
    ],
)
def test_wrong_calls_are_refused(
    tmp_path: Path, batch: Batch, args: tuple[str, ...], said: str
) -> None:
    """Status 2, one line, nothing started."""
    batch("true")
    (tmp_path / "array.sh").write_text("#!/bin/bash\n#SBATCH --array=0-99\ntrue\n")
    (tmp_path / "short.sh").write_text("#!/bin/bash\n#SBATCH -J x -a 0-9\ntrue\n")
    (tmp_path / "slurm_dl.yaml").write_text("manage: {partitions: [gpu]}")
    done = dlctl(tmp_path, "--config", "slurm_dl.yaml", *args)

    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_the_pretended_job_is_none_of_a_real_slurm() -> None:
    """Its id is above MaxJobId, whatever a site sets that to, and fits Slurm's 32 bits."""
    assert 0x03FF_FFFF < JOB_ID < 0xFFFF_FFFE
