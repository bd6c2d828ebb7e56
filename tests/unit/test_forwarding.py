"""Receivers of the checkpoint signal under dlrun: real processes behind shells and launchers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from patience import eventually

from slurm_dl.job.child import SESSION, Process, members
from slurm_dl.job.forwarding import ALL_TASKS_S, Forwarding

ROOT = Path(__file__).parents[2]

TRAIN = """import os, signal, sys, time
name, starts_s, workers = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
def save(number, frame):
    with open(f"got-{name}", "a") as out:
        out.write(f"{os.getpid()}\\n")
    time.sleep(2)  # Loader workers stay meanwhile.
    os._exit(0)
time.sleep(starts_s)
signal.signal(signal.SIGUSR1, save)
for _ in range(workers):
    if os.fork() == 0:
        time.sleep(4)
        os._exit(0)
open(f"up-{name}", "w").write(str(os.getpid()))
time.sleep(60)
"""
AGENT = """import subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, "train.py", name, starts_s, "0"], start_new_session=True)
    for name, starts_s in (("a", "0"), ("b", "1.5"))
]
print([rank.wait() for rank in ranks])
open("agent lives", "w").close()
"""
RELAY = """import signal, subprocess, sys
for number in set(range(1, 65)) - {9, 19, 17, 32, 33}:
    signal.signal(number, lambda *_: open("relay", "w").close())
subprocess.run([sys.executable, "train.py", "a", "0", "0"])
"""


def train(name: str = "a", starts_s: float = 0.0, workers: int = 0) -> str:
    """A shell's command."""
    return f"{sys.executable} train.py {name} {starts_s} {workers}"


class Shape(NamedTuple):
    """A command, the file that is there before the request, and the files that are there later."""

    argv: list[str]
    up: str
    files: list[str]


FORWARDS = f"trap 'echo trap >trapped; kill -USR1 $!' USR1; {train()} & wait $!; wait $!"
SHAPES = {
    "bash": Shape(["bash", "-c", f"{train()}; touch after"], "up-a", ["after", "got-a"]),
    "dash": Shape(["dash", "-c", f"{train()}; touch after"], "up-a", ["after", "got-a"]),
    "zsh": Shape(["zsh", "-c", f"{train()}; touch after"], "up-a", ["after", "got-a"]),
    "two shells": Shape(
        ["bash", "-c", f'sh -c "{train()}; true"; touch after'], "up-a", ["after", "got-a"]
    ),
    "set -e": Shape(
        ["bash", "-ec", f"cd .; {train()} | cat; touch after"], "up-a", ["after", "got-a"]
    ),
    "trap that forwards": Shape(["bash", "-c", FORWARDS], "up-a", ["got-a", "trapped"]),
    "workers": Shape(["bash", "-c", f"{train(workers=2)}; sleep 3; true"], "up-a", ["got-a"]),
    "prefix programs": Shape(
        ["env", "A=1", "nice", "timeout", "50", *train().split()], "up-a", ["got-a"]
    ),
    "late handler": Shape(
        ["bash", "-c", f"touch up-x; {train('a', 1.5)}; true"], "up-x", ["got-a"]
    ),
    "two ranks": Shape(
        ["bash", "-c", f"{sys.executable} agent.py; true"],
        "up-a",
        ["agent lives", "got-a", "got-b"],
    ),
    "relay": Shape([sys.executable, "relay.py"], "up-a", ["got-a"]),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in (("train.py", TRAIN), ("agent.py", AGENT), ("relay.py", RELAY)):
        (tmp_path / name).write_text(text)
    return tmp_path


def started(place: Path, *argv: str) -> subprocess.Popen[bytes]:
    """Dlrun around a command, outside Slurm, in a session of its own."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")}
    environ = {**kept, "PYTHONPATH": str(ROOT), "SLURM_DL_RUN_DIR": str(place / "run")}
    environ["SLURM_DL_HOLD"] = "no"
    with (place / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "slurm_dl.job.run", "--", *argv],
            cwd=place,
            env=environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def ended(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of its session."""
    for pid in members(SESSION, process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("shape", SHAPES)
def test_each_topmost_handler_gets_the_signal_once(place: Path, shape: str) -> None:
    """Wrappers live, loader workers hear nothing, and a handler that comes late is served too."""
    argv, up, files = SHAPES[shape]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"no {argv[0]} here")
    process = started(place, *argv)
    try:
        eventually((place / up).exists, 30, what="the training to be up")
        process.send_signal(signal.SIGUSR1)
        process.wait(30)
    finally:
        ended(process)

    log = (place / "log").read_text()
    left = {p.name for p in place.iterdir() if not p.name.startswith("up-")}
    assert sorted(left - {"log", "run", "train.py", "agent.py", "relay.py"}) == files, log
    for path in place.glob("got-*"):
        [pid] = path.read_text().split()
        assert pid == (place / path.name.replace("got", "up")).read_text()


def test_a_shell_without_any_handler_lives_and_is_told_so(place: Path) -> None:
    """The request stands in the file, and the log says what is missing."""
    process = started(
        place, "bash", "-c", f"touch up; {sys.executable} -c 'import time\ntime.sleep(60)'"
    )
    try:
        eventually((place / "up").exists, 30, what="the shell to be up")
        process.send_signal(signal.SIGUSR1)
        log = place / "log"
        eventually(lambda: "handler for USR1" in log.read_text(), 30, what="the hint")
        assert process.poll() is None
        assert "sent USR1" not in log.read_text()
    finally:
        ended(process)


def p(pid: int, parent: int, program: str = "python3", *, takes: bool = False) -> Process:
    """A process; Slurm's daemon, parent of tasks, has the number 500."""
    return Process(pid, program, takes, "", is_fork=False, parent=parent)


BASH, SRUN, STEPD = p(1, 0, "bash"), p(2, 1, "srun", takes=True), 500
DEAF, HEARS = p(11, STEPD), p(11, STEPD, takes=True)
WRAPPED = [p(12, STEPD, "bash"), p(13, 12, takes=True), p(14, 13, takes=True)]


@pytest.mark.parametrize(
    ("looks", "by_srun", "sent"),
    [
        ([(0, [SRUN])], True, [[]]),
        ([(0, [SRUN, HEARS])], False, [[11]]),
        ([(0, [SRUN, HEARS]), (1, [SRUN, HEARS, p(15, 11, takes=True)])], True, [[2], []]),
        ([(0, [SRUN, HEARS, *WRAPPED]), (1, [SRUN, HEARS, *WRAPPED])], True, [[11, 13], []]),
        (
            [
                (0, [SRUN, DEAF, p(12, STEPD, takes=True)]),
                (1, [SRUN, HEARS, p(12, STEPD, takes=True)]),
            ],
            True,
            [[], [2]],
        ),
        (
            [
                (ALL_TASKS_S, [SRUN, DEAF, p(12, STEPD, takes=True)]),
                (ALL_TASKS_S + 1, [SRUN, HEARS, p(12, STEPD, takes=True)]),
            ],
            True,
            [[12], [11]],
        ),
        (
            [(0, [p(3, 1, takes=True), p(4, 3, takes=True)]), (1, [p(4, 500, takes=True)])],
            False,
            [[3], []],
        ),
    ],
    ids=[
        *("no task here", "one node", "all tasks", "a task in a shell", "tasks start one by one"),
        *("a task without handler", "a worker that outlives its parent"),
    ],
)
def test_srun_gets_it_only_where_all_its_tasks_can_bear_it(
    looks: list[tuple[float, list[Process]]], sent: list[list[int]], *, by_srun: bool
) -> None:
    """Else the processes that have a handler, each once."""
    forwarding = Forwarding(1)
    told = [
        [x.pid for x in forwarding.receivers([BASH, *family], by_srun=by_srun, asked_s=at_s)]
        for at_s, family in looks
    ]

    assert told == sent
