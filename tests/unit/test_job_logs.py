"""dlctl logs: which file, whose, what is shown of it, and where its runs ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_dl.cli.dlctl import logs as module
from slurm_dl.cli.dlctl.logs import Log, output_of
from slurm_dl.daemon.control.client import DaemonError
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.slurm.tool_runner import Slurm

JOB = """\
JobId=7 JobName=train
   UserId=ann(1000) GroupId=lab(100) MCS_label=N/A
   Comment={"slurm_dl":{"v":1}}
   StdErr=/home/ann/e.log
   StdOut=/home/ann/a b-7.log
"""


class Tools(Slurm):
    """A scontrol that says what the test has it say."""

    def __init__(self, told: str) -> None:
        self.told = told

    def run(self, tool: str, *args: str, **_: float) -> str:
        """The answer of scontrol."""
        assert (tool, *args[:2]) == ("scontrol", "show", "job")
        return self.told


@pytest.mark.parametrize(
    ("job", "told", "expected"),
    [
        ("7", JOB, (Path("/home/ann/a b-7.log"), 1000)),
        ("7_1", JOB, (Path("/home/ann/a b-7.log"), 1000)),
        ("7;ls", JOB, "is no job id"),
        ("--all", JOB, "is no job id"),
        ("\x1b[2J", JOB, r"'\\x1b[2J' is no job id"),
        ("7", JOB + JOB.replace("-7", "-8"), "several jobs"),
        ("7", JOB.replace("train", "x\n   UserId=root(0)"), "several jobs"),
        ("7", JOB.replace("train", "x\n   StdOut=/etc/shadow"), "several jobs"),
        ("7", JOB.replace("StdOut=/home/ann/a b-7.log", ""), "not a batch job"),
        ("7", JOB.replace("StdOut=/home", "StdOut=home"), "not a batch job"),
    ],
)
def test_the_file_is_the_one_that_slurm_names(
    job: str, told: str, expected: tuple[Path, int] | str
) -> None:
    """One file and one owner, or an error: a name with a line break cannot add its own."""
    if isinstance(expected, tuple):
        assert output_of(Tools(told), job) == expected
        return
    with pytest.raises(SlurmDlError) as err:
        output_of(Tools(told), job)
    assert expected in str(err.value)


def gave_way(at_s: float, signal: str = "USR1") -> dict[str, Any]:
    """One hand-over of a job's past."""
    return {"at_s": at_s, "purpose": "preempt", "signal": signal, "handover": 1}


def started(run: int, at: str) -> str:
    """The line with which dlrun announces a run."""
    return f"dlrun: {at} run {run} of python in /x\n"


def silent() -> JsonObject:
    """A daemon that does not answer."""
    msg = "not running"
    raise DaemonError(msg)


RUNS = (
    started(0, "1970-01-01T00:01:40+0000")
    + "step 1\n"
    + started(1, "1970-01-01T00:03:20+0000")
    + "step 2\n"
    + started(2, "1970-01-01T00:05:00+0000")
    + "step 3"
)
FIRST = "--- dlctl: run 0 ended: {}; run 1 follows ---"
SECOND = "--- dlctl: run 1 ended: {}; run 2 follows ---"
UNKNOWN = "it is not known why"
GAVE, OTHERS = "gave way (preempt, USR1)", "put back, not by slurm_dl"


@pytest.mark.parametrize(
    ("past", "marks"),
    [
        (None, (UNKNOWN, UNKNOWN)),
        ({"gave_way": []}, (OTHERS, OTHERS)),
        ({"gave_way": [gave_way(180.0)]}, (GAVE, OTHERS)),
        ({"gave_way": [gave_way(290.0)]}, (OTHERS, GAVE)),
        ({"gave_way": [gave_way(50.0), gave_way(180.0), gave_way(290.0)]}, (GAVE, GAVE)),
    ],
)
def test_marks_stand_where_a_run_ended(
    past: Any,  # noqa: ANN401
    marks: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before dlrun's first line of the next run, with what the daemon did in between."""
    path = tmp_path / "o.log"
    path.write_text(RUNS)

    Log(path, os.geteuid(), lambda: {"job": {"state": "R"}, "past": past}, as_it_is=False).once()

    shown = capsys.readouterr().out.split("\n")
    assert [shown[2], shown[5]] == [FIRST.format(marks[0]), SECOND.format(marks[1])]
    assert "\n".join(line for line in shown if not line.startswith("---")) == RUNS


@pytest.mark.parametrize(
    ("content", "as_it_is", "expected"),
    [
        (b"a\tb\xc3\xa9\n", False, b"a\tb\xc3\xa9\n"),
        (b"\x1b[2J\r50%\x07\n", False, rb"\x1b[2J\r50%\x07" + b"\n"),
        (b"\x1b[2J\r50%\x07\xff\n", True, b"\x1b[2J\r50%\x07\xff\n"),
        (b"\xc2\x9b2J\xff\n", False, b"\\x9b2J\xef\xbf\xbd\n"),
        (b"dlrun: never run 1 of x\n", False, b"dlrun: never run 1 of x\n"),
        (b"no end", False, b"no end"),
    ],
)
def test_control_characters_reach_only_the_owners_terminal(
    content: bytes,
    as_it_is: bool,  # noqa: FBT001
    expected: bytes,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Elsewhere they are written out; without the daemon's answer it is shown all the same."""
    path = tmp_path / "o.log"
    path.write_bytes(content)

    Log(path, os.geteuid(), silent, as_it_is=as_it_is).once()

    assert capfdbinary.readouterr().out == expected


def a_fifo(path: Path) -> None:
    """A FIFO, at which a reader would wait."""
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "owner", "message"),
    [
        (lambda _: None, 0, "does not exist"),
        (Path.touch, 1, "no regular file of the job's owner"),
        (Path.mkdir, 0, "Is a directory"),
        (a_fifo, 0, "no regular file of the job's owner"),
        (lambda path: path.symlink_to("/etc/passwd"), 1, "no regular file of the job's owner"),
        (lambda path: path.symlink_to(path), 0, "symbolic links"),
    ],
)
def test_what_is_not_the_owners_file_is_not_shown(
    make: Callable[[Path], None], owner: int, message: str, tmp_path: Path
) -> None:
    """A job may name any path as its log, also one that only an admin may read."""
    path = tmp_path / "o.log"
    make(path)

    with pytest.raises(SlurmDlError) as err:
        Log(path, os.geteuid() + owner, silent, as_it_is=False).once()

    assert message in str(err.value)


def test_it_follows_over_a_restart_until_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file comes late, is cut, goes on in the next run; then the job is over."""
    path = tmp_path / "o.log"

    def row(state: str, restarts: int, ending: str = "") -> JsonObject:
        return {"job": {"state": state, "restarts": restarts, "ending": ending}, "past": None}

    def writes(text: str, mode: str = "a") -> None:
        with path.open(mode) as file:
            file.write(text)

    answers = [
        lambda: row("PD", 1),
        lambda: writes("one\n") or row("R", 1),
        silent,
        lambda: writes("t", "w") or row("R", 1),
        lambda: writes("wo\n") or row("PD", 2),
        lambda: writes("three\n") or row("F", 2, "timeout"),
    ]
    looks = iter(answers)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)

    def ask() -> JsonObject:
        return next(looks)()

    Log(path, os.geteuid(), ask, as_it_is=False).follow()

    assert capsys.readouterr().out == (
        "one\n--- dlctl: the file was cut; from its beginning ---\ntwo\n"
        "--- dlctl: run 1 ended: it is not known why; run 2 follows ---\n"
        "three\n--- dlctl: job over: timeout ---\n"
    )
