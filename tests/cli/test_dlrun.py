"""dlrun as a real process, with scripts in place of scontrol and squeue.

Each case has a directory of its own with the two scripts, the job's comment as a file and the log
of all calls. Nothing waits without a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TOY = Path(__file__).parents[2] / "examples" / "train_toy.py"
DEADLINE_S = 30.0

SQUEUE = """#!/bin/sh
cd {base} || exit 9
( printf 'squeue'; printf '\\t%s' "$@"; echo ) >> calls
if [ -e down ]; then echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1; fi
if [ "$5" = PreemptTime:40 ]; then cat preempted 2>/dev/null || echo N/A; exit 0; fi
if [ "$5" = %N ]; then cat nodes; exit 0; fi
printf '%s %s %s\\n' "$(cat state)" "$(cat left)" "$(cat comment)"
"""

SCONTROL = """#!/bin/sh
cd {base} || exit 9
if [ $# = 0 ]; then
    IFS= read -r line
    set -- ${{line%% Comment=*}} "Comment=${{line#* Comment=}}"
fi
( printf 'scontrol'; printf '\\t%s' "$@"; echo ) >> calls
if [ -e down ]; then echo 'Unable to contact slurm controller' >&2; exit 1; fi
case $1 in
show) cat "$2" 2>/dev/null || exit 1;;
update)
    if [ -e refuse-update ]; then echo 'Access/permission denied' >&2; exit 1; fi
    printf '%s' "${{3#Comment=}}" > comment.new && mv comment.new comment;;
requeue)
    if [ -e refuse-requeue ]; then
        echo 'Requested operation is presently disabled' >&2; exit 1
    fi
    if [ -e ignore-requeue ]; then exit 0; fi
    echo COMPLETING > state
    kill -TERM "$PPID";;
esac
"""


def until(what: str, condition: Callable[[], object]) -> None:
    """Poll until *condition* holds; fail with *what* after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {DEADLINE_S:g} s: {what}")
        time.sleep(0.02)


class FakeJob:
    """A job in a fake Slurm, and the dlrun processes in it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.run_dir = base / "run"
        self.stderr = base / "stderr"
        self.processes: list[subprocess.Popen[bytes]] = []
        tools = base / "bin"
        tools.mkdir()
        for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
            (tools / name).write_text(text.format(base=base))
            (tools / name).chmod(0o755)
        self.write("state", "RUNNING")
        self.write("left", "UNLIMITED")
        self.write("comment", '{"slurm_dl":{"v":1,"sig":"USR1"},"mine":"a \\"b\\" \u00e9"}')
        self.environ = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(TOY.parents[1]),
            "SLURM_JOB_ID": "77",
            "SLURM_DL_RUN_DIR": str(self.run_dir),
            "SLURM_RESTART_COUNT": "2",
            "SLURM_DL_START_S": "6",
        }

    def write(self, name: str, text: str = "") -> None:
        """Write a file of the fake Slurm."""
        (self.base / name).write_text(text)

    def spread(self) -> None:
        """Let the job lie on three nodes of two switches, one rank for each of its GPUs."""
        self.environ |= {
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_TASKS_PER_NODE": "4(x3)",
            "SLURM_DL_RANKS": "gpu",
        }
        self.write("topology", "SwitchName=a Level=0 Nodes=n[1,3]\nSwitchName=b Level=0 Nodes=n2\n")
        self.write(
            "job",
            "     Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:a100:2(IDX:0-1)\n"
            "     Nodes=n[2-3] CPU_IDs=0 Mem=0 GRES=gpu:a100:1(IDX:3)\n",
        )

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        """Start dlrun with *argv*."""
        with self.stderr.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "slurm_dl.job.run", *argv],
                env=self.environ,
                cwd=self.base,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def asked(self, *argv: str, up: Callable[[], object] | None = None) -> subprocess.Popen[bytes]:
        """Start dlrun, and ask it to save once *up* holds: by default, once it trains."""
        process = self.start(*argv)
        until("the command is up", up or self.is_training)
        ask(process)
        return process

    def run(self, *argv: str) -> int:
        """Run dlrun to its end; its exit status."""
        return self.end_of(self.start(*argv))

    def end_of(self, process: subprocess.Popen[bytes]) -> int:
        """Exit status of *process*, which must end by itself."""
        try:
            return process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"dlrun did not end; its log:\n{self.log}")

    @property
    def log(self) -> str:
        """Everything dlrun and the command have printed."""
        return self.stderr.read_text(errors="replace")

    @property
    def calls(self) -> list[list[str]]:
        """All calls that change something, without the program's name."""
        path = self.base / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split("\t")[1:] for line in lines if line.startswith("scontrol")]

    @property
    def ours(self) -> dict[str, object]:
        """Our part of the job's comment."""
        comment = json.loads((self.base / "comment").read_text())
        assert comment["mine"] == 'a "b" \u00e9'
        part = comment["slurm_dl"]
        assert isinstance(part, dict)
        return part

    @property
    def steps(self) -> list[int]:
        """The steps the toy has logged."""
        path = self.run_dir / "loss.jsonl"
        return [json.loads(s)["step"] for s in path.read_text().splitlines()]

    @property
    def runs(self) -> list[int]:
        """The step each start of the toy began from."""
        path = self.run_dir / "runs.jsonl"
        return [json.loads(s)["from_step"] for s in path.read_text().splitlines()]

    def is_training(self, at_least: int = 3) -> bool:
        """True once the toy has logged some steps."""
        return (self.run_dir / "loss.jsonl").exists() and len(self.steps) >= at_least

    def says(self, text: str, times: int = 1) -> Callable[[], bool]:
        """A condition: *text* has been printed so often."""
        return lambda: self.log.count(text) >= times


@pytest.fixture
def job(tmp_path: Path) -> Iterator[FakeJob]:
    found = FakeJob(tmp_path)
    yield found
    for process in found.processes:
        if process.poll() is None:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            process.kill()
            process.wait()
            for group in children.split():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(int(group), signal.SIGKILL)
    for pid_file in tmp_path.glob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


def toy(steps: int, *options: str, step_s: float = 0.02) -> list[str]:
    fixed = ["--steps", str(steps), "--step-s", str(step_s), "--checkpoint-every", "1000"]
    return ["--", sys.executable, str(TOY), *fixed, *options]


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def writes_pid(base: Path, name: str) -> str:
    """Python code that tells its pid in a whole file."""
    path = str(base / name)
    return f"import os; open({path!r}+'.t','w').write(str(os.getpid())); os.replace({path!r}+'.t',{path!r}+'.pid')"  # noqa: E501


def ask(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGUSR1)


# --- how often it was preempted


@pytest.mark.parametrize(
    ("comment", "down", "told"),
    [
        ('{"slurm_dl":{"v":1,"preempted":[1,1]}}', "", "1 1 2"),
        ('{"slurm_dl":{"v":1,"preempted":[2,1]}}', "", "2 0 2"),
        ('{"slurm_dl":{"v":1,"sig":"USR1"}}', "", "0 2 2"),
        ("lunch", "", "0 2 2"),
        ('{"slurm_dl":{"v":1,"preempted":[1,1]}}', "down", "0 2 2"),
    ],
    ids=["one of two", "both", "none", "another comment", "Slurm is down"],
)
def test_a_run_is_told_its_preemptions_and_its_failures(
    job: FakeJob, comment: str, down: str, told: str
) -> None:
    """Under dlrun, and in a script of the user's own by --env; the restart count stays."""
    job.write("comment", comment)
    if down:
        job.write("down")
    say = 'echo "$SLURM_DL_PREEMPTIONS $SLURM_DL_FAILURES $SLURM_RESTART_COUNT"'
    job.environ |= {"SLURM_DL_PREEMPTIONS": "7", "SLURM_DL_FAILURES": "7"}

    assert job.run("--", "sh", "-c", f"{say} > under") == 0
    by_env = f'eval "$({sys.executable} -m slurm_dl.job.run --env)"; {say}'
    script = subprocess.run(
        ["/bin/sh", "-c", by_env], env=job.environ, capture_output=True, text=True, check=True
    )

    assert ((job.base / "under").read_text().strip(), script.stdout.strip()) == (told, told)
    assert ("is not known" in job.log) == bool(down)


# --- ends without a requeue


def test_a_command_that_finishes_ends_with_its_status_and_no_call_to_slurm(job: FakeJob) -> None:
    """Nothing is asked of Slurm for a job that just runs and was never restarted."""
    job.environ["SLURM_RESTART_COUNT"] = "0"
    assert job.run(*toy(5)) == 0

    assert job.steps == [1, 2, 3, 4, 5]
    assert not (job.base / "calls").exists()


def test_the_command_gets_the_run_directory_and_restart_count(job: FakeJob) -> None:
    """What the command sees is what the API reads; all else is passed on."""
    job.environ["OTHER"] = "kept"
    names = "SLURM_DL_RUN_DIR SLURM_DL_RESTART_COUNT SLURM_DL_ATTEMPT SLURM_DL_SIGNAL OTHER"

    assert job.run(*python(f"import os; print([os.environ[n] for n in '{names}'.split()])")) == 0

    assert str([str(job.run_dir), "2", "0", "USR1", "kept"]) in job.log


def test_the_default_run_directory_is_named_by_the_array_task(job: FakeJob) -> None:
    """Every restart finds the same directory, and no two tasks share one."""
    del job.environ["SLURM_DL_RUN_DIR"]
    job.environ |= {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}

    assert job.run("--", "true") == 0

    assert (job.base / "slurm_dl-70_3").is_dir()


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + 9)],
)
def test_any_other_end_is_passed_on(job: FakeJob, code: str, status: int) -> None:
    """A failing job fails with its own status, 128+n for signals."""
    assert job.run(*python(code)) == status
    assert job.calls == []


def test_a_command_that_cannot_be_started_says_so(job: FakeJob) -> None:
    """127 and one line, as a shell does."""
    assert job.run("--", "/nonexistent/train\nnow") == 127
    assert "cannot start /nonexistent/train\\nnow" in job.log


def test_a_job_that_finishes_after_the_request_is_not_requeued(job: FakeJob) -> None:
    """Exit 0 at any time is the end of the job, and nothing is acknowledged."""
    process = job.asked(*toy(60, "--ignore-signal"))

    assert job.end_of(process) == 0
    assert job.steps == list(range(1, 61))
    assert job.calls == []


ENDS = {
    "exit 0": "trap 'exit 0' USR1; echo up; while :; do sleep 0.05; done",
    "exit 4": "trap 'exit 4' USR1; echo up; while :; do sleep 0.05; done",
    "unasked": "echo up",
}


@pytest.mark.parametrize(("end", "told"), [("exit 0", True), ("exit 4", False), ("unasked", False)])
def test_whoever_ends_with_0_when_asked_is_told_what_that_means(
    job: FakeJob, end: str, *, told: bool
) -> None:
    """Most people write ``trap 'save; exit 0'``, and the job is over at step 47 of 700."""
    process = job.start("--", "bash", "-c", ENDS[end])
    until("the command is up", job.says("up\n"))
    if end != "unasked":
        ask(process)
    job.end_of(process)

    assert ("does not run it again" in job.log) is told
    assert ("status 75" in job.log) is told


HANDLES = "import signal,sys,time; signal.signal(10, lambda *a: sys.exit(75)); print('up', flush=True); time.sleep(60)"  # noqa: E501
BEHIND = f'{sys.executable} -c "{HANDLES}"; exit $?'
PLAIN = "import time; print('up', flush=True); time.sleep(60)"
IGNORES = "import signal; signal.signal(10, signal.SIG_IGN); " + PLAIN


@pytest.mark.parametrize(
    ("argv", "asks", "words"),
    [
        # It is seen while there is time to mend it.
        (["bash", "-c", f'{sys.executable} -c "{PLAIN}"; true'], False, ["that bash has started"]),
        (["bash", "-c", "echo up; sleep 60; true"], True, ["that bash has started"]),
        ([sys.executable, "-c", PLAIN], True, ["python", "has no handler for USR1"]),
        ([sys.executable, "-c", IGNORES], True, ["python", "ignores USR1"]),
    ],
)
def test_a_command_that_takes_no_signal_is_reported(
    job: FakeJob, argv: list[str], words: list[str], *, asks: bool
) -> None:
    """In the job's log, and in the comment, there as an answer if asked; it is not killed by it."""
    comment = (job.base / "comment").read_text()
    job.write("comment", comment.replace('"v":1', '"v":1,"preempted":[4,2]'))
    process = job.start("--", *argv)
    until("the command is up", job.says("up\n"))
    if asks:
        ask(process)
    word = [4, 2] if asks else 2
    until("the scheduler is told", lambda: job.ours.get("unhandled") == word)

    said = ("has no handler for USR1", "has a handler for USR1", "ignores USR1")
    assert sum(map(job.log.count, said)) == 1
    assert all(word in job.log for word in words), job.log
    assert process.poll() is None
    assert "ack" not in job.ours


@pytest.mark.parametrize(
    "argv",
    [
        [sys.executable, "-c", HANDLES],
        ["bash", "-c", BEHIND],
        ["bash", "-c", f"{sys.executable} {TOY} --steps 9000 --step-s 0.02; exit $?"],
    ],
    ids=["handler", "handler behind a shell", "request file"],
)
def test_nothing_is_reported_of_a_command_that_is_told(job: FakeJob, argv: list[str]) -> None:
    """By its handler or by the request file, behind a shell too."""
    process = job.start("--", *argv)
    until("the command is up", lambda: job.says("up\n")() or job.is_training())
    time.sleep(6)  # One look at the processes after the start.
    ask(process)
    until("ack", lambda: job.ours.get("ack") == 2)

    assert "unhandled" not in job.ours
    assert "no handler" not in job.log


def test_a_script_that_may_look_for_the_request_later_is_not_called_unhandled(job: FakeJob) -> None:
    """It has imported slurm_dl.job, and looks once an epoch."""
    job.environ["SLURM_DL_START_S"] = "1"
    job.asked(*python(f"import slurm_dl.job; {PLAIN}"), up=job.says("up\n"))
    until("the hint", job.says("so far the command"))
    time.sleep(2)  # Two looks at the processes.

    assert "unhandled" not in job.ours


WORKER = """import os, signal, time
open('worker.pid', 'w').write(str(os.getpid()))
while not os.path.exists('late'): time.sleep(0.05)
signal.signal(10, print)
time.sleep(60)"""
START = "import subprocess, sys, time; subprocess."
STARTS = f"{START}Popen([sys.executable, '-c', {WORKER!r}], start_new_session=True)"
# slurmstepd starts the tasks of an srun: they are nobody's children here.
STARTS_AWAY = f"{START}run([sys.executable, '-c', {STARTS!r}])"


@pytest.mark.parametrize(("launcher", "code"), [("torchrun", STARTS), ("srun", STARTS_AWAY)])
def test_what_a_launcher_starts_is_looked_at(job: FakeJob, launcher: str, code: str) -> None:
    """Workers without a handler are reported unasked; a handler that comes late is no less good."""
    job.start("--launcher", launcher, *python(f"{code}; time.sleep(60)"))
    until("the scheduler is told", lambda: job.ours.get("unhandled") == 2)
    assert f"nothing that {launcher} has started here has a handler for USR1" in job.log
    assert (job.base / "worker.pid").read_text() in job.log

    job.write("late")

    until("it to be taken back", lambda: "unhandled" not in job.ours)
    assert job.log.count("has started here") == 1


def test_a_final_status_is_told_unasked_and_again_if_slurm_refuses(job: FakeJob) -> None:
    """The daemon may have asked, and dlrun not have heard of it yet."""
    job.write("refuse-update")
    running = job.start("--never-requeue", "17", *python("raise SystemExit(17)"))
    until("a refusal", job.says("not told that this is final"))
    (job.base / "refuse-update").unlink()

    assert job.end_of(running) == 17
    assert job.ours["final"] == 2


def test_a_failure_after_the_request_stays_a_failure(job: FakeJob) -> None:
    """Only status 75 and the signal's own death mean requeue."""
    code = "import signal,time; signal.signal(10, lambda *a: exit(4)); print('up'); time.sleep(60)"
    process = job.asked("--", sys.executable, "-uc", code, up=job.says("up\n"))

    assert job.end_of(process) == 4
    assert job.calls == []


def test_status_75_out_of_the_blue_without_checkpoint_does_not_loop(job: FakeJob) -> None:
    """A command that always ends with 75 would otherwise be requeued for ever."""
    assert job.run(*python("raise SystemExit(75)")) == 75
    assert job.calls == []


# --- asked, saved, acknowledged


def test_a_saved_checkpoint_is_acknowledged_with_the_restart_count(job: FakeJob) -> None:
    """The comment gets the number of this run, and dlrun waits to be ended."""
    process = job.asked(*toy(10_000))
    until("ack", lambda: job.ours.get("ack") == 2)

    assert job.ours == {"v": 1, "sig": "USR1", "ack": 2}
    assert [c[:2] for c in job.calls] == [["update", "JobId=77"]]
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert job.end_of(process) == 128 + 15


def test_an_array_task_changes_its_own_record(job: FakeJob) -> None:
    """The bare job id of a task may name the whole array."""
    job.environ |= {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}
    job.asked(*toy(10_000))
    until("ack", lambda: "ack" in job.ours)

    assert [c[:2] for c in job.calls] == [["update", "JobId=77_3"]]


def test_the_next_run_resumes_where_the_last_one_stopped(job: FakeJob) -> None:
    """No step is lost and none is logged twice."""
    process = job.asked(*toy(80))
    until("ack", lambda: "ack" in job.ours)
    stopped_at = job.steps[-1]
    process.send_signal(signal.SIGTERM)
    job.end_of(process)
    job.environ["SLURM_RESTART_COUNT"] = "3"

    assert job.run(*toy(80)) == 0
    assert job.runs == [0, stopped_at]
    assert job.steps == list(range(1, 81))


def test_a_training_that_was_killed_after_its_last_step_still_finishes(job: FakeJob) -> None:
    """A run that resumes at the end has nothing to do, and that is no error."""
    command = [*toy(20), "--checkpoint-every", "20"]
    assert job.run(*command) == 0
    assert job.run(*command) == 0

    assert job.runs == [0, 20]
    assert job.steps == list(range(1, 21))


def test_repeated_signals_are_one_request(job: FakeJob) -> None:
    """Whoever signals twice gets one checkpoint and one acknowledgement."""
    process = job.start(*toy(10_000))
    until("training", job.is_training)
    for _ in range(5):
        ask(process)
    until("ack", lambda: "ack" in job.ours)
    ask(process)
    process.send_signal(signal.SIGTERM)

    assert job.end_of(process) == 128 + 15
    assert len(job.calls) == 1
    assert len(job.runs) == 1


@pytest.mark.parametrize("comment", ["", "my notes", "[1]", '{"slurm_dl":3}', "[" * 50_000])
def test_a_comment_that_is_not_ours_is_left_alone(job: FakeJob, comment: str) -> None:
    """A user's own comment is never overwritten; the daemon then waits out the grace."""
    job.write("comment", comment)
    job.asked(*toy(10_000))
    until("notice", job.says("the job's comment is not slurm_dl's"))

    assert job.calls == []
    assert (job.base / "comment").read_text() == comment


def test_a_controller_that_is_down_is_tried_again(job: FakeJob) -> None:
    """The acknowledgement is made as soon as slurmctld is back within the grace."""
    job.write("down")
    job.asked(*toy(10_000))
    until("a failed try", job.says("acknowledgement failed"))
    (job.base / "down").unlink()

    until("ack", lambda: "ack" in job.ours)


def test_a_job_that_slurm_itself_preempts_requeues_itself_at_once(job: FakeJob) -> None:
    """Slurm would keep its GPUs idle for the rest of the grace, and not requeue it if it ended."""
    job.write("preempted", "2026-11-20T21:42:47 \n")
    process = job.asked("--ack-wait", "600", *toy(5000))

    assert job.end_of(process) == 128 + signal.SIGTERM
    assert job.calls == [["requeue", "Incomplete", "77"]]
    assert "preempted by Slurm" in job.log


def test_without_a_checkpoint_slurm_s_own_requeue_is_waited_for(job: FakeJob) -> None:
    """The grace is Slurm's to end: without saved work a requeue of our own gains nothing."""
    job.write("preempted", "2026-11-20T21:42:47 \n")
    code = "import signal,time; signal.signal(10, signal.SIG_DFL); print('up'); time.sleep(60)"
    process = job.asked(
        "--forward", "USR1", "--ack-wait", "600", *python(code), up=job.run_dir.exists
    )
    until("the acknowledgement", lambda: job.ours.get("ack") == 2)

    process.terminate()
    assert job.end_of(process) == 128 + signal.SIGTERM
    assert [c[0] for c in job.calls] == ["update"]


SHELL = " ".join(toy(10_000)[1:])
SLEEPS = ("--", "sleep", "300")
STOPPED: dict[str, tuple[tuple[str, ...], str, str]] = {
    # Who has only periodic checkpoints gives its GPUs back at once.
    "killed by the signal": (("--forward", "USR1", *SLEEPS), "of sleep in", "138, no checkpoint"),
    # Trainers that save on TERM get TERM.
    "killed by TERM": (("--forward", "SIGTERM", *SLEEPS), "of sleep in", "143"),
    "status lost in a pipe": (("--", "sh", "-c", f"{SHELL} | cat"), "", "137, checkpoint"),
    # Without a handler it is not signalled; the script sees the request file too.
    "behind a shell": (("--", "sh", "-c", f"{SHELL}; exit $?"), "", "137, checkpoint"),
}


@pytest.mark.parametrize(("argv", "up", "status"), STOPPED.values(), ids=STOPPED)
def test_an_end_on_request_is_acknowledged(
    job: FakeJob, argv: tuple[str, ...], up: str, status: str
) -> None:
    """Whatever killed the command, and whatever status the shell around it makes of that."""
    job.asked(*argv, up=job.says(up) if up else None)
    until("ack", lambda: "ack" in job.ours)

    assert f"stopped for requeue with status {status}" in job.log


# --- who gets the signal


def test_the_signal_waits_until_the_command_has_a_handler(job: FakeJob) -> None:
    """A Python that is still importing would die of it."""
    go = job.base / "go"
    code = (
        "import signal,time,os\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "signal.signal(10, lambda *a: exit(75))\n"
        "time.sleep(60)"
    )
    job.asked(*python(code), up=job.says("run 2 of"))
    until("request", (job.run_dir / "slurm_dl.request").exists)
    go.touch()

    until("ack", lambda: "ack" in job.ours)
    assert "sent USR1 to the command" in job.log


HANDLER = """
import signal, time, sys
from slurm_dl import job
signal.signal(signal.SIGUSR1, lambda *a: print('SIGNALLED', flush=True))
print('up', flush=True)
LISTEN
while not job.should_checkpoint(): time.sleep(0.01)
open(job.run_dir() / 'c', 'w').close()
job.checkpoint_saved(job.run_dir() / 'c')
try:
    job.exit_for_requeue()
finally:
    sys.stdout.flush()
"""


def test_torchrun_gets_no_signal_and_its_own_exit_status_still_means_requeue(job: FakeJob) -> None:
    """Torchrun's agent dies of USR1, and turns a worker's status 75 into 1."""
    code = HANDLER.replace("LISTEN", "") + "\n"
    worker = (
        "import signal,subprocess,sys\n"
        "signal.signal(10, lambda *a: print('SIGNALLED', flush=True))\n"
        f"subprocess.run([sys.executable, '-c', {code!r}])\n"
        "sys.exit(1)"
    )
    job.asked("--launcher", "torchrun", *python(worker), up=job.says("up\n"))
    until("ack", lambda: "ack" in job.ours)

    assert "stopped for requeue with status 1, checkpoint" in job.log
    assert "SIGNALLED" not in job.log
    assert "sent USR1" not in job.log


@pytest.mark.parametrize(("listen", "signalled"), [("", True), ("job.install()", False)])
def test_srun_is_signalled_unless_the_script_reads_the_request_file(
    job: FakeJob, listen: str, *, signalled: bool
) -> None:
    """Srun signals every process of its tasks; loader workers would die of it."""
    code = HANDLER.replace("LISTEN", listen + "\nprint('ready', flush=True)\n")
    if signalled:  # an own handler alone, as Lightning has it
        code = code.split("LISTEN")[0].split("while not")[0] + "\nsignal.pause(); sys.exit(75)"
    job.asked("--launcher", "srun", *python(code), up=job.says("ready\n"))
    until("ack", lambda: "ack" in job.ours)

    assert ("SIGNALLED" in job.log) is signalled
    assert ("sent USR1" in job.log) is signalled


def test_nothing_is_forwarded_with_forward_none(job: FakeJob) -> None:
    """The file alone is enough for a script that looks at it."""
    job.asked("--forward", "none", *python(HANDLER.replace("LISTEN", "")), up=job.says("up\n"))
    until("ack", lambda: "ack" in job.ours)

    assert "SIGNALLED" not in job.log


def test_a_stale_request_of_an_earlier_run_is_ignored_and_removed(job: FakeJob) -> None:
    """A run never stops for a request that an earlier one got."""
    job.run_dir.mkdir()
    stale = job.run_dir / "slurm_dl.request"
    stale.write_text('{"v":1,"restart":2,"attempt":0}')

    assert job.run(*toy(40)) == 0
    assert job.steps == list(range(1, 41))
    assert not stale.exists()


# --- ended from outside


def test_a_sigterm_for_dlrun_alone_reaches_the_command(job: FakeJob) -> None:
    """Slurm still says RUNNING: the signal was for the batch process only."""
    process = job.start("--", "sleep", "300")
    until("start", job.says("of sleep in"))
    process.send_signal(signal.SIGTERM)

    assert job.end_of(process) == 128 + 15
    assert job.calls == []


COUNT_TERMS = """
import signal, time
signal.signal(15, lambda *a: print('TERM', flush=True))
print('up', flush=True)
for _ in range(SECONDS * 10): time.sleep(0.1)
raise SystemExit(5)
"""


def test_a_sigterm_that_slurm_sent_to_all_is_not_sent_twice(job: FakeJob) -> None:
    """A second TERM would break the checkpoint that the first one began."""
    process = job.start(*python(COUNT_TERMS.replace("SECONDS", "4")))
    until("handler", job.says("up\n"))
    job.write("state", "COMPLETING")
    process.send_signal(signal.SIGTERM)

    assert job.end_of(process) == 5
    assert "\nTERM\n" not in job.log


def test_a_second_sigterm_is_passed_on_at_once(job: FakeJob) -> None:
    """Whoever insists is heard, with or without slurmctld."""
    job.write("down")
    process = job.start(*python(COUNT_TERMS.replace("SECONDS", "300")))
    until("handler", job.says("up\n"))
    process.send_signal(signal.SIGTERM)
    until("notice", job.says("not passing on TERM"))
    assert "\nTERM\n" not in job.log
    process.send_signal(signal.SIGTERM)
    until("signal", job.says("\nTERM\n"))


def test_a_script_that_saves_on_sigterm_is_not_requeued_by_dlrun(job: FakeJob) -> None:
    """Whoever sent SIGTERM wants an end; only Slurm knows whether there is a next run."""
    code = (
        "import signal,time\n"
        "from slurm_dl import job\n"
        "def save(*_):\n"
        "    (job.run_dir() / 'c').touch()\n"
        "    job.checkpoint_saved(job.run_dir() / 'c')\n"
        "    job.exit_for_requeue()\n"
        "signal.signal(15, save)\n"
        "print('up', flush=True)\n"
        "time.sleep(300)"
    )
    process = job.start(*python(code))
    until("handler", job.says("up\n"))
    process.send_signal(signal.SIGTERM)

    assert job.end_of(process) == 75
    assert job.calls == []


def test_no_process_of_the_command_outlives_it(job: FakeJob) -> None:
    """Workers that were left behind are ended, those that ignore TERM too."""
    keep = f"import signal,time; signal.signal(15, signal.SIG_IGN); {writes_pid(job.base, 'left')}; time.sleep(300)"  # noqa: E501
    code = (
        "import subprocess,sys,os,time\n"
        f"subprocess.Popen([sys.executable, '-c', {keep!r}])\n"
        f"while not os.path.exists({str(job.base / 'left.pid')!r}): time.sleep(0.01)"
    )
    assert job.run(*python(code)) == 0

    pid = int((job.base / "left.pid").read_text())
    until("the end of the worker", lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_with_term_as_the_checkpoint_signal_the_second_one_ends_the_job(job: FakeJob) -> None:
    """The first TERM asks, the next one is Slurm's."""
    job.environ["SLURM_DL_SIGNAL"] = "TERM"
    process = job.start(*toy(10_000))
    until("training", job.is_training)
    process.send_signal(signal.SIGTERM)
    until("ack", lambda: "ack" in job.ours)
    process.send_signal(signal.SIGTERM)

    assert job.end_of(process) == 128 + 15
    assert "checkpoint asked for by TERM" in job.log


def test_with_term_as_the_checkpoint_signal_a_deaf_command_still_ends(job: FakeJob) -> None:
    """The second TERM is passed on even if the first one could not be."""
    job.environ["SLURM_DL_SIGNAL"] = "TERM"
    process = job.start("--", "sleep", "300")
    until("start", job.says("of sleep in"))
    process.send_signal(signal.SIGTERM)
    until("request", job.says("asked for by TERM"))
    process.send_signal(signal.SIGTERM)

    assert job.end_of(process) == 128 + 15
    assert job.calls == []


def test_a_job_that_slurm_is_ending_is_not_acknowledged(job: FakeJob) -> None:
    """With TERM as checkpoint signal a cancel looks like a request; it must stay a cancel."""
    job.environ["SLURM_DL_SIGNAL"] = "TERM"
    job.write("state", "COMPLETING")
    process = job.start(*python(f"{writes_pid(job.base, 'train')}; import time; time.sleep(300)"))
    until("start", (job.base / "train.pid").exists)
    process.send_signal(signal.SIGTERM)
    os.kill(int((job.base / "train.pid").read_text()), signal.SIGTERM)

    assert job.end_of(process) == 128 + 15
    assert "stopped for requeue" in job.log
    assert job.calls == []


# --- nobody requeues


def test_without_a_daemon_the_job_requeues_itself(job: FakeJob) -> None:
    """After the wait it does what the daemon would have done, with the same command."""
    process = job.asked("--ack-wait", "1", *toy(10_000))

    assert job.end_of(process) == 128 + 15
    assert [c[0] for c in job.calls] == ["update", "requeue"]
    assert job.calls[1] == ["requeue", "Incomplete", "77"]
    assert len(job.runs) == 1


def test_a_refused_requeue_ends_in_a_restart_in_place_without_ack(job: FakeJob) -> None:
    """Nothing is lost if the daemon died and Slurm refuses: the work goes on here."""
    job.write("refuse-requeue")
    process = job.asked("--ack-wait", "1", *toy(80))

    assert job.end_of(process) == 0
    assert [c[0] for c in job.calls] == ["update", *["requeue"] * 3, "update"]
    assert "ack" not in job.ours
    assert len(job.runs) == 2
    assert job.runs[1] > 0
    assert job.steps == list(range(1, 81))


def test_an_accepted_requeue_that_does_not_happen_ends_in_a_restart_in_place(job: FakeJob) -> None:
    """Effects count, not exit codes."""
    job.write("ignore-requeue")
    process = job.asked("--ack-wait", "1", *toy(80))

    assert job.end_of(process) == 0
    assert "ack" not in job.ours
    assert job.steps == list(range(1, 81))


def test_the_command_does_not_start_again_while_its_ack_stands(job: FakeJob) -> None:
    """A daemon that comes back would requeue the working job on the strength of an old ack."""
    job.write("refuse-requeue")
    process = job.asked("--ack-wait", "1", *toy(80))
    until("ack", lambda: "ack" in job.ours)
    job.write("down")
    until("failed withdrawals", job.says("cannot take the acknowledgement back yet", 2))

    assert len(job.runs) == 1
    (job.base / "down").unlink()
    assert job.end_of(process) == 0
    assert "ack" not in job.ours
    assert len(job.runs) == 2


def test_near_the_time_limit_the_job_requeues_itself_before_it(job: FakeJob) -> None:
    """Slurm's own warning looks like a preemption, and nobody requeues a job that timed out."""
    job.write("left", "0:16")
    process = job.asked(*toy(10_000))

    assert job.end_of(process) == 128 + 15
    assert [c[0] for c in job.calls] == ["update", "requeue"]


@pytest.mark.parametrize(
    ("left", "calls"), [("UNLIMITED", ["update"] * 2), ("0:16", ["update", "requeue"])]
)
def test_on_fewer_nodes_the_command_starts_again(job: FakeJob, left: str, calls: list[str]) -> None:
    """Near the limit it does not: Slurm warns once in each run, and that is over."""
    job.write(
        "comment", (job.base / "comment").read_text().replace('"USR1"', '"USR1","in_place":1')
    )
    job.environ["SLURM_JOB_NODELIST"] = "n[1-3]"
    job.write("nodes", "n1")
    job.write("left", left)
    code = job.end_of(job.asked(*toy(80)))

    assert [c[0] for c in job.calls if c[0] != "show"] == calls
    assert (code, len(job.runs)) == ((0, 2) if left == "UNLIMITED" else (128 + 15, 1))


def test_near_the_limit_a_job_without_checkpoint_does_not_requeue_itself(job: FakeJob) -> None:
    """It would start over with a fresh limit for ever and get nowhere."""
    job.write("left", "0:16")
    job.asked(
        "--forward", "USR1", "--ack-wait", "1", "--", "sleep", "300", up=job.says("of sleep in")
    )
    until("restart in place", job.says("starting the command again in place"))

    assert [c[0] for c in job.calls] == ["update", "update"]
    assert "ack" not in job.ours


def test_a_script_may_ask_to_be_run_again_by_itself(job: FakeJob) -> None:
    """With a checkpoint of this run it is requeued at once; nobody waits for an ack."""
    code = (
        "from slurm_dl import job\n"
        "open(job.run_dir() / 'c', 'w').close()\n"
        "job.checkpoint_saved(job.run_dir() / 'c')\n"
        "job.exit_for_requeue()"
    )
    assert job.run(*python(code)) == 128 + 15
    assert job.calls == [["requeue", "Incomplete", "77"]]


def test_a_checkpoint_of_an_earlier_run_does_not_excuse_a_loop(job: FakeJob) -> None:
    """Only progress of this run earns another one."""
    job.run_dir.mkdir()
    (job.run_dir / "c").touch()
    entry = {"path": str(job.run_dir / "c"), "step": 1, "restart": 1, "attempt": 0}
    (job.run_dir / "slurm_dl.state.json").write_text(json.dumps({"checkpoints": [entry]}))

    assert job.run(*python("raise SystemExit(75)")) == 75
    assert job.calls == []


def test_a_checkpoint_before_a_restart_in_place_does_not_excuse_a_loop(job: FakeJob) -> None:
    """Each start within one allocation counts as a run of its own."""
    del job.environ["SLURM_JOB_ID"]
    code = (
        "import os\n"
        "from slurm_dl import job\n"
        "if os.environ['SLURM_DL_ATTEMPT'] == '0':\n"
        "    (job.run_dir() / 'c').touch()\n"
        "    job.checkpoint_saved(job.run_dir() / 'c')\n"
        "raise SystemExit(75)"
    )
    assert job.run(*python(code)) == 75
    assert job.log.count("starting the command again in place") == 1


def test_without_slurm_tools_the_job_waits_and_goes_on(job: FakeJob) -> None:
    """Inside a container without scontrol nothing can be acknowledged; nothing is lost either."""
    job.environ["PATH"] = "/nonexistent"
    process = job.asked("--ack-wait", "1", *toy(60))

    assert job.end_of(process) == 0
    assert "scontrol and squeue are not on PATH" in job.log
    assert job.steps == list(range(1, 61))


def test_outside_slurm_the_signal_shows_the_whole_cycle(job: FakeJob) -> None:
    """A user can try checkpoint and resume on a laptop."""
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_DL_RUN_DIR"):
        del job.environ[name]
    job.run_dir = job.base / "slurm_dl-local"
    process = job.asked(*toy(60))

    assert job.end_of(process) == 0
    assert len(job.runs) == 2
    assert job.steps == list(range(1, 61))
    assert job.calls == []


# --- the command line and the environment


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no command given"),
        (["--"], "no command given"),
        (["--grace", "0", "--", "true"], "--grace: '0' is not a number of seconds above 0"),
        (["--grace", "nan", "--", "true"], "'nan' is not a number of seconds above 0"),
        (["--ack-wait", "x", "--", "true"], "--ack-wait: 'x' is not"),
        (["--forward", "KILL", "--", "true"], "--forward: 'KILL' is not one of USR1"),
        (["--launcher", "mpirun", "--", "true"], "invalid choice: 'mpirun'"),
    ],
)
def test_a_wrong_command_line_is_one_error_and_status_2(
    job: FakeJob, argv: list[str], words: str
) -> None:
    """The user reads what is wrong; nothing is started."""
    assert job.run(*argv) == 2
    assert words in job.log
    assert not job.run_dir.exists()


@pytest.mark.parametrize("name", ["SLURM_DL_GRACE_S", "SLURM_DL_ACK_WAIT_S", "SLURM_DL_SIGNAL"])
def test_a_wrong_environment_variable_is_one_error_and_status_2(job: FakeJob, name: str) -> None:
    """The batch script's mistakes are named like the command line's."""
    job.environ[name] = "KILL"

    assert job.run("--", "true") == 2
    assert "'KILL' is not" in job.log


def test_output_options_of_the_user_do_not_reach_squeue(job: FakeJob) -> None:
    """SQUEUE_FORMAT and the like would change what dlrun reads."""
    tool = job.base / "bin" / "squeue"
    tool.write_text(tool.read_text().replace("cd ", "env > $0.env; cd ", 1))
    job.environ |= {"SQUEUE_FORMAT": "%i", "SLURM_TIME_FORMAT": "x", "SLURM_CONF": "/kept"}
    job.asked(*toy(10_000))
    until("ack", lambda: "ack" in job.ours)

    seen = (job.base / "bin" / "squeue.env").read_text()
    assert "SQUEUE_FORMAT" not in seen
    assert "SLURM_TIME_FORMAT" not in seen
    assert "SLURM_CONF=/kept\n" in seen


def test_a_batch_script_that_ignores_the_signal_does_not_disable_it(job: FakeJob) -> None:
    """The script may ignore it until dlrun is there; a shell below must be able to trap it."""
    inner = "trap 'exit 75' USR1; echo up; while :; do sleep 0.05; done"
    argv = [sys.executable, "-m", "slurm_dl.job.run", "--", "bash", "-c", inner]
    with job.stderr.open("ab") as log:
        process = subprocess.Popen(
            ["/bin/bash", "-c", "trap '' USR1; exec \"$@\"", "bash", *argv],
            env=job.environ,
            cwd=job.base,
            stdout=log,
            stderr=log,
        )
    job.processes.append(process)
    until("trap", job.says("up\n"))
    ask(process)

    until("ack", lambda: "ack" in job.ours)


# --- the order of ranks, and the rate


SHOWS = """
import os
for name in ("SLURM_HOSTFILE", "SLURM_NTASKS", "SLURM_DL_RANK_FILE"):
    print(name, os.environ.get(name))
"""


@pytest.mark.parametrize(
    ("launcher", "file", "tasks"),
    [("srun", "slurm_dl.ranks", "4"), ("torchrun", "slurm_dl.nodes", "3"), ("plain", None, None)],
)
def test_the_launcher_starts_ranks_in_the_order_of_switches(
    job: FakeJob, launcher: str, file: str | None, tasks: str | None
) -> None:
    """The files say it for all; srun is told where it starts the ranks."""
    job.spread()

    assert job.run("--launcher", launcher, *python(SHOWS)) == 0

    assert (job.run_dir / "slurm_dl.ranks").read_text().split() == ["n1", "n1", "n3", "n2"]
    assert (job.run_dir / "slurm_dl.nodes").read_text().split() == ["n1", "n3", "n2"]
    assert job.says(f"SLURM_HOSTFILE {job.run_dir / file if file else None}\n")()
    assert job.says(f"SLURM_NTASKS {tasks}\n")()
    assert job.says(f"SLURM_DL_RANK_FILE {job.run_dir / 'slurm_dl.ranks'}\n")()
    assert [call for call in job.calls if call[0] == "update"] == []


def test_a_job_whose_ranks_are_not_known_is_not_started(job: FakeJob) -> None:
    """Srun would start the wrong number; torchrun counts its own node, so it goes on."""
    job.spread()
    (job.base / "job").unlink()

    assert job.run("--launcher", "srun", *python("print('started')")) == 1
    assert not job.says("started\n")()
    assert job.says("which GPUs this job has is not known")()
    assert job.run("--launcher", "torchrun", *python("print('started')")) == 0
    assert job.says("started\n")()


def test_the_rate_of_a_job_that_shares_its_gpu_is_reported(job: FakeJob) -> None:
    """Steps a second, in the job's own comment, beside what stands there."""
    job.environ["SLURM_DL_RATE_EVERY_S"] = "1"
    process = job.start(*toy(100_000))

    until("the rate to be reported", lambda: "rate" in job.ours)
    ask(process)
    until("the acknowledgement", lambda: "ack" in job.ours)

    rate = job.ours["rate"]
    assert isinstance(rate, float)
    assert 0 < rate <= 50
    assert job.ours["sig"] == "USR1"


def test_nobody_else_s_rate_is_reported(job: FakeJob) -> None:
    """A job with GPUs of its own asks Slurm nothing while it runs."""
    job.environ["SLURM_RESTART_COUNT"] = "0"
    assert job.run(*toy(60)) == 0

    assert not (job.base / "calls").exists()
