"""What dlrun reads from Slurm and writes to it, and what it makes of the end of its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_dl.job import controller
from slurm_dl.job.command_end import judge
from slurm_dl.job.controller import (
    CallFailedError,
    JobController,
    JobStatus,
    find_controller,
    job_label,
    preemptions_in,
    time_left_s,
    with_ack,
    with_preemption,
)
from slurm_dl.job.options import parse_options
from slurm_dl.job.run_files import RunId


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:05", 5),
        ("9:55", 595),
        ("1:00:00", 3600),
        ("2-03:04:05", ((2 * 24 + 3) * 60 + 4) * 60 + 5),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("INVALID", None),
        ("", None),
        ("-1:00", None),
        ("\u0661:00", None),
    ],
)
def test_time_left_is_read_as_slurm_writes_it(text: str, seconds: float | None) -> None:
    """Days, hours, minutes and seconds; words mean that it is not known."""
    assert time_left_s(text) == seconds


@pytest.mark.parametrize(
    ("environ", "label"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "12"}, "12"),
        ({"SLURM_JOB_ID": "12;rm"}, None),
        ({"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}, "12_3"),
        ({"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": ""}, "14"),
    ],
)
def test_an_array_task_is_named_by_array_and_task(
    environ: dict[str, str], label: str | None
) -> None:
    """Its bare id may be the whole array's."""
    assert job_label(environ) == label


def test_an_ack_changes_nothing_else_in_the_comment() -> None:
    """Other people's keys, their order and their characters stay."""
    comment = '{"a":"\u00e9 \\"q\\" \\\\ |,=","slurm_dl":{"v":1,"sig":"USR1"},"z":[1,2.5,null]}'
    acked = with_ack(comment, 3)

    assert acked == comment.replace('"USR1"', '"USR1","ack":3')
    assert with_ack(acked, None) == comment
    assert with_ack(acked, 4) == acked.replace('"ack":3', '"ack":4')


def test_a_comment_that_needs_no_change_is_the_same_text() -> None:
    """So that no call is made for it."""
    spaced = '{ "slurm_dl": {"ack": 3} }'
    assert with_ack(spaced, 3) is spaced
    without = '{ "slurm_dl": {} }'
    assert with_ack(without, None) is without


@pytest.mark.parametrize(
    "comment", ["", "(null)", "text", "[]", "{}", '{"slurm_dl":1}', "[" * 9999]
)
def test_a_comment_of_somebody_else_is_not_ours_to_change(comment: str) -> None:
    """None means: leave it alone."""
    assert with_ack(comment, 1) is None


def fake(tmp_path: Path, script: str) -> JobController:
    for name in ("scontrol", "squeue"):
        (tmp_path / name).write_text("#!/bin/sh\n" + script)
        (tmp_path / name).chmod(0o755)
    found, why = find_controller(
        {"SLURM_JOB_ID": "5", "PATH": f"{tmp_path}:/usr/bin:/bin"}, lambda: None
    )
    assert found is not None, why
    return found


def test_standing_is_state_time_and_the_whole_comment(tmp_path: Path) -> None:
    """The comment comes last: whatever it holds, it cannot forge the other two."""
    comment = '{"slurm_dl":{},"x":" RUNNING 1:00  |"}'
    found = fake(tmp_path, f"printf '%s\\n' 'RUNNING 1:30 {comment}'").standing()

    assert found == JobStatus("RUNNING", 90.0, comment)
    assert not found.is_ending
    assert JobStatus("COMPLETING", None, "").is_ending


def test_bytes_that_are_not_text_survive_the_change(tmp_path: Path) -> None:
    """A comment in another encoding keeps its value, as dlrun and the daemon read it."""
    seen = tmp_path / "seen"
    made = fake(
        tmp_path,
        f"case $1 in '') cat > {seen};; "
        '*) printf \'RUNNING 1:30 {"slurm_dl":{},"x":"\\377"}\\n\';; esac',
    )
    assert made.set_ack(made.standing(), 1)

    _, _, written = seen.read_text("utf-8").partition(" Comment=")
    assert json.loads(written) == {"slurm_dl": {"ack": 1}, "x": "\udcff"}


@pytest.mark.parametrize("output", ["", "\\n", "RUNNING\\n", "RUNNING 1:00\\n"])
def test_an_answer_that_is_not_whole_is_no_answer(tmp_path: Path, output: str) -> None:
    """Never act on half a line."""
    with pytest.raises(CallFailedError, match="squeue says nothing of job 5"):
        fake(tmp_path, f"printf '{output}'").standing()


def test_silence_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scontrol waits minutes for a dead controller; dlrun does not."""
    monkeypatch.setattr(controller, "CALL_LIMIT_S", 0.2)
    with pytest.raises(CallFailedError, match=r"squeue did not answer within 0\.2 s"):
        fake(tmp_path, "exec sleep 60").standing()


def test_a_refusal_carries_slurms_last_line(tmp_path: Path) -> None:
    """The reader sees what Slurm said, and which tool it was."""
    made = fake(tmp_path, "echo first >&2; echo 'Access/permission denied' >&2; exit 1")
    with pytest.raises(CallFailedError, match="scontrol failed with status 1: Access/permission"):
        made.requeue()


def test_tools_are_found_once_and_named_absolutely(tmp_path: Path) -> None:
    """Without them there is no controller, and the reason says what to do."""
    found, why = find_controller({"SLURM_JOB_ID": "5", "PATH": str(tmp_path)}, lambda: None)
    assert found is None
    assert "not on PATH" in why
    found, why = find_controller({"PATH": "/usr/bin"}, lambda: None)
    assert found is None
    assert why == "not in a Slurm job"


RUN = RunId(2, 0)


class Case(NamedTuple):
    """How a command ends, and what is to come of it."""

    code: int
    asked: bool
    options: tuple[str, ...]
    environ: dict[str, str]
    stopped: bool
    said: str
    heard: bool = True


@pytest.mark.parametrize(
    "case",
    [
        Case(0, True, (), {}, False, "--stops-with 0"),
        Case(0, True, ("--stops-with", "0"), {}, True, "stopped for requeue"),
        Case(0, True, ("--stops-with", "0"), {}, False, "COMPLETED", heard=False),
        Case(0, True, (), {"SLURM_DL_STOPS_WITH": "3,0"}, True, "stopped for requeue"),
        Case(0, True, ("--stops-with", "3"), {"SLURM_DL_STOPS_WITH": "0"}, False, "COMPLETED"),
        Case(0, False, ("--stops-with", "0"), {}, False, ""),
        Case(3, True, ("--stops-with", "0,3"), {}, True, "stopped for requeue"),
        Case(3, True, (), {}, False, "job.should_checkpoint()"),
        Case(3, False, (), {}, False, ""),
        Case(75, True, (), {}, True, "stopped for requeue"),
        Case(93, True, (), {}, False, "final"),
        Case(93, False, (), {}, False, "final"),
        Case(93, True, ("--stops-with", "93"), {}, False, "final"),
        Case(93, True, ("--stops-with", "93", "--never-requeue", ""), {}, True, "stopped"),
        Case(75, True, ("--never-requeue", "75,93"), {}, False, "final"),
        Case(4, True, ("--stops-with", "4"), {"SLURM_DL_NEVER_REQUEUE": "4"}, False, "final"),
        Case(93, True, ("--stops-with", "93"), {"SLURM_DL_NEVER_REQUEUE": ""}, True, "stopped"),
    ],
    ids=str,
)
def test_what_a_status_means(case: Case, tmp_path: Path) -> None:
    """A run is requeued for a status that says so, and never for one that is final."""
    told: list[str] = []
    environ = {**case.environ, "SLURM_DL_RUN_DIR": str(tmp_path)}
    known = parse_options([*case.options, "--", "train"], environ)

    end = judge(case.code, known, RUN, asked=case.asked, heard=case.heard, log=told.append)

    assert (end.stopped, end.may_requeue, end.code) == (case.stopped, case.stopped, case.code)
    assert case.said in " ".join(told)


def test_a_final_status_wins_over_exit_for_requeue(tmp_path: Path) -> None:
    """A launcher ends with 93 although the script had said that it stops to be run again."""
    (tmp_path / "slurm_dl.stopped").write_text('{"v": 1, "restart": 2, "attempt": 0}')
    (tmp_path / "slurm_dl.stopped").chmod(0o600)
    known = parse_options(["--", "train"], {"SLURM_DL_RUN_DIR": str(tmp_path)})

    ends = [judge(code, known, RUN, asked=True, heard=True, log=lambda _: None) for code in (1, 93)]

    assert [end.stopped for end in ends] == [True, False]


@pytest.mark.parametrize("text", ["-1", "256", "0,,3", "a", "0;3", "\u0663"])
def test_a_list_of_statuses_is_checked(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt list is an error of use, not a list without that entry."""
    with pytest.raises(SystemExit, match="2"):
        parse_options([f"--stops-with={text}", "--", "train"], {})
    assert "--stops-with" in capsys.readouterr().err


OURS = '{"slurm_dl":{"v":1,"sig":"USR1"}}'


@pytest.mark.parametrize(
    ("comment", "restarts", "expected"),
    [
        (OURS, 5, 0),
        ('{"slurm_dl":{"preempted":[3,2]}}', 3, 3),
        # It was asked, let go again, and is still that run.
        ('{"slurm_dl":{"preempted":[3,2]}}', 2, 2),
        ('{"slurm_dl":{"preempted":[3,2]}}', 7, 3),
        # A copy of another job's comment.
        ('{"slurm_dl":{"preempted":[3,2]}}', 0, 0),
        ('{"slurm_dl":{"preempted":[900,0]}}', 4, 4),
        ('{"slurm_dl":{"preempted":[-4,0]}}', 4, 0),
        ('{"slurm_dl":{"preempted":[true,0]}}', 4, 0),
        ('{"slurm_dl":{"preempted":[1]}}', 4, 0),
        ('{"slurm_dl":{"preempted":1}}', 4, 0),
        ('{"slurm_dl":1}', 4, 0),
        ("[1]", 4, 0),
        ("(null)", 4, 0),
        ("[" * 5000, 4, 0),
    ],
)
def test_preemptions_before_a_run(comment: str, restarts: int, expected: int) -> None:
    """Never below 0, never more than the restarts, whatever the comment says."""
    assert preemptions_in(comment, restarts) == expected


def test_what_is_written_is_what_is_read() -> None:
    """The daemon writes before it asks run 4; run 5 reads it."""
    written = with_preemption(OURS, 2, 4)

    assert written is not None
    assert (preemptions_in(written, 4), preemptions_in(written, 5)) == (1, 2)
