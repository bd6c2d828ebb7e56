"""What dlrun reads from and writes to Slurm: comments, time left, names, silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_dl.job import controller
from slurm_dl.job.controller import (
    CallFailedError,
    JobController,
    JobStatus,
    find_controller,
    job_label,
    time_left_s,
    with_ack,
)


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
