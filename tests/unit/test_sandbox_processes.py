from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from patience import eventually

from slurm_dl.model.errors import ConfigError
from slurm_dl.sandbox import process_control
from slurm_dl.sandbox.process_control import Process

SLEEP = ["/usr/bin/sleep", "60"]
DEAF = [
    sys.executable,
    "-Sc",
    "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()",
]


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Processes to be ended after the test, whatever it did."""
    found: list[Process] = []
    yield found
    for process in found:
        process_control.send(process, signal.SIGKILL)
    assert process_control.wait_gone(found, 5.0) == ()


def spawn(started: list[Process], tmp_path: Path, argv: list[str] = SLEEP) -> Process:
    process = process_control.spawn(
        "probe", argv, env={"A": "1"}, output=tmp_path / "out", record=tmp_path / "record.json"
    )
    started.append(process)
    return process


def test_a_spawned_process_is_on_its_own(started: list[Process], tmp_path: Path) -> None:
    """A daemon has its own session, no foreign directory, environment or ignored signal."""
    process = spawn(started, tmp_path)
    proc = Path(f"/proc/{process.pid}")
    eventually(lambda: (proc / "comm").read_text() == "sleep\n", 5.0, 0.01)

    assert process_control.is_alive(process)
    assert process_control.read_record(tmp_path / "record.json") == process
    assert os.getsid(process.pid) == process.pid
    assert (proc / "cwd").readlink() == Path("/")
    assert (proc / "environ").read_bytes() == b"A=1\0"
    ignored = (proc / "status").read_text().partition("SigIgn:")[2].split()[0]
    # Signals 32 and 33 are glibc's own; posix_spawn leaves them ignored.
    assert int(ignored, 16) & (2**31 - 1) == 0


def test_a_reused_pid_is_neither_alive_nor_signalled(
    started: list[Process], tmp_path: Path
) -> None:
    """A process that merely has the recorded pid is somebody else's."""
    process = spawn(started, tmp_path)
    for stale in (
        replace(process, start_ticks=process.start_ticks - 1),
        replace(process, boot_id="00000000-0000-0000-0000-000000000000"),
    ):
        assert not process_control.is_alive(stale)
        assert not process_control.send(stale, signal.SIGKILL)
        assert process_control.end((stale,), term_s=0.0) == ()

    assert process_control.is_alive(process)


def test_end_says_which_processes_lived(started: list[Process], tmp_path: Path) -> None:
    """A process that has ended already is not counted as ended by us."""
    process = spawn(started, tmp_path)

    assert process_control.end((process,), term_s=5.0) == (process,)
    assert not process_control.is_alive(process)
    assert process_control.end((process,), term_s=5.0) == ()


def test_a_process_deaf_to_sigterm_is_killed(started: list[Process], tmp_path: Path) -> None:
    """SIGKILL follows when the time for SIGTERM is over."""
    process = spawn(started, tmp_path, DEAF)
    eventually(lambda: (tmp_path / "out").read_text() == "deaf\n", 10.0, 0.01)

    assert process_control.end((process,), term_s=0.1) == (process,)
    assert not process_control.is_alive(process)


def test_a_zombie_is_not_alive() -> None:
    """A process that ended and was not reaped by its parent does not hold anything any more."""
    with subprocess.Popen(["/usr/bin/sleep", "60"]) as child:  # its parent: this test
        process = process_control.find("sleep", child.pid)
        assert process is not None
        child.kill()

        eventually(lambda: not process_control.is_alive(process), 5.0, 0.01)
        assert process_control.find("sleep", child.pid) is None


def test_a_program_that_is_missing_is_seen_as_ended(started: list[Process], tmp_path: Path) -> None:
    """A daemon that cannot even be executed leaves its reason in its output."""
    process = spawn(started, tmp_path, ["/nonexistent/daemon"])

    eventually(lambda: not process_control.is_alive(process), 5.0, 0.01)
    assert "/nonexistent/daemon" in (tmp_path / "out").read_text()


def test_only_slurms_own_programs_count_as_holders(started: list[Process], tmp_path: Path) -> None:
    """Somebody who reads a log of the sandbox is not one of its daemons."""
    reader = tmp_path / "tail"
    reader.write_bytes(Path("/usr/bin/sleep").read_bytes())
    daemon = tmp_path / "slurmd-wlm"
    daemon.write_bytes(Path("/usr/bin/sleep").read_bytes())
    for path in (reader, daemon):
        path.chmod(0o755)
    logs = tmp_path / "log"
    logs.mkdir()
    found = {}
    for path in (reader, daemon):
        process = process_control.spawn(
            path.name,
            [str(path), "60"],
            env={},
            output=logs / f"{path.name}.out",
            record=tmp_path / f"{path.name}.json",
        )
        started.append(process)
        eventually(partial(is_running, process.pid, path), 5.0, 0.01)
        found[path.name] = process

    assert process_control.daemons_holding([logs]) == (found["slurmd-wlm"],)
    assert process_control.daemons_holding([logs / "slurmd-wlm.out"]) == (found["slurmd-wlm"],)
    assert process_control.daemons_holding([logs / "slurmd-wlm"]) == ()
    assert process_control.daemons_holding([tmp_path / "lo"]) == ()


def test_descendants_are_found_through_all_generations(
    started: list[Process], tmp_path: Path
) -> None:
    """Children of children belong to a job too."""
    code = "import os, signal; os.fork(); os.fork(); signal.pause()"
    process = spawn(started, tmp_path, [sys.executable, "-Sc", code])

    def three() -> tuple[Process, ...]:
        below = process_control.descendants((process,))
        return below if len(below) == 3 else ()

    below = eventually(three, 10.0, 0.02)
    started.extend(below)

    assert process not in below


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    """The message says which file to delete; a missing record is no error."""
    path = tmp_path / "record.json"
    assert process_control.read_record(path) is None
    path.write_text('{"name": "x", "pid": "many"}')

    with pytest.raises(ConfigError, match=str(path)):
        process_control.read_record(path)


def is_running(pid: int, program: Path) -> bool:
    return Path(f"/proc/{pid}/exe").readlink() == program
