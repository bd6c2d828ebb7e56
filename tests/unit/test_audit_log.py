"""The audit log: whole lines, nothing lost to a full disk, a memory per job."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from slurm_dl.daemon import audit_log
from slurm_dl.daemon.audit_log import AuditLine, AuditLog, line_of
from slurm_dl.engine.cycle import AppliedAction
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Handover, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import OpenHandover, SetSiteFactor, Signal


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def entry(job: int, reason: str = "because") -> AuditLine:
    return AuditLine(actor="dlschedd", action="requeue", job=job, reason=reason, at_s=1.5)


def test_a_line_has_every_field_and_both_times(tmp_path: Path) -> None:
    """A line can be read without knowing the action: time, actor, action, job, reason, result."""
    log = AuditLog(tmp_path / "audit.jsonl")

    assert log.write(entry(7))

    assert lines(log.path) == [
        {
            "time": "1970-01-01T00:00:01.500Z",
            "epoch_s": 1.5,
            "actor": "dlschedd",
            "action": "requeue",
            "job": 7,
            "reason": "because",
            "result": "ok",
            "handover": None,
            "details": {},
        }
    ]
    log.close()


def test_hostile_text_stays_inside_its_line(tmp_path: Path) -> None:
    """A reason with line breaks, escapes or lone surrogates cannot forge a line."""
    log = AuditLog(tmp_path / "audit.jsonl")
    reason = 'x\n{"actor": "root"}\x1b[2J\u2028\ud800'

    log.write(entry(1, reason))
    log.close()

    raw = log.path.read_bytes()
    assert raw.count(b"\n") == 1
    assert b"\x1b" not in raw
    assert lines(log.path)[0]["reason"] == reason


def test_the_file_is_closed_to_others_and_only_appended_to(tmp_path: Path) -> None:
    """Mode 0640, and what is there stays there."""
    path = tmp_path / "audit.jsonl"
    old = os.umask(0)
    try:
        first = AuditLog(path)
        first.write(entry(1))
        first.close()
    finally:
        os.umask(old)
    second = AuditLog(path)
    second.write(entry(2))
    second.close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [line["job"] for line in lines(path)] == [1, 2]


def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    """After a crash in the middle of a line the next one begins on a line of its own."""
    path = tmp_path / "audit.jsonl"
    path.write_text('{"time": "19', "utf-8")

    log = AuditLog(path)
    log.write(entry(3))
    log.close()

    assert json.loads(path.read_text("utf-8").splitlines()[1])["job"] == 3


def test_a_full_disk_is_told_once_and_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines wait while the disk is full, one warning is given, and all are there afterwards."""
    warnings: list[str] = []
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, warn=warnings.append)

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", _full)
        assert not log.write(entry(1))
        assert not log.write(entry(2))
    assert not log.healthy
    assert "No space left" in log.error
    assert log.write(entry(3))

    assert [line["job"] for line in lines(path)] == [1, 2, 3]
    assert len(warnings) == 2
    assert "cannot be written" in warnings[0]
    assert "again" in warnings[1]
    log.close()


def _full(_descriptor: int, _data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("kind", ["link", "dangling link", "FIFO"])
def test_no_file_but_a_regular_one_is_written_to(tmp_path: Path, kind: str) -> None:
    """What a link leads to stays as it was, and nothing waits; without it lines are written."""
    path, other = tmp_path / "audit.jsonl", tmp_path / "other"
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    if kind == "link":
        other.write_text("content", "utf-8")
    log = AuditLog(path, warn=lambda _: None)

    assert not log.write(entry(1))
    assert log.history(2) == ()
    assert not other.exists() or other.read_text("utf-8") == "content"
    path.unlink()
    assert log.write(entry(2))
    assert [line["job"] for line in lines(path)] == [1, 2]
    log.close()


def test_a_rotated_file_is_left_for_a_new_one(tmp_path: Path) -> None:
    """Logrotate may move the file away at any time; nothing needs to be told."""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write(entry(1))
    path.rename(tmp_path / "audit.jsonl.1")
    log.write(entry(2))
    log.close()

    assert [line["job"] for line in lines(tmp_path / "audit.jsonl.1")] == [1]
    assert [line["job"] for line in lines(path)] == [2]


def test_history_survives_a_restart_and_keeps_jobs_apart(tmp_path: Path) -> None:
    """`why` tells what an earlier daemon did to the job, oldest first, and to no other job."""
    path = tmp_path / "audit.jsonl"
    first = AuditLog(path)
    for job, reason in ((1, "a"), (2, "b"), (1, "c")):
        first.write(entry(job, reason))
    first.close()
    with path.open("a", encoding="utf-8") as file:
        file.write("no json\n[]\n")

    log = AuditLog(path)

    assert [line["reason"] for line in log.history(1)] == ["a", "c"]
    assert log.history(9) == ()
    log.close()


def test_history_goes_back_thousands_of_lines_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs do not push each other out at once; memory is bounded, in a start as well."""
    log = AuditLog(tmp_path / "audit.jsonl")
    for job, reason in ((1, "a"), (1, "b"), *((n, "") for n in range(2, 10_000)), (1, "c")):
        log.write(entry(job, reason))

    assert [line["reason"] for line in log.history(1)] == ["a", "b", "c"]
    assert log.history(10_001) == ()
    log.close()
    monkeypatch.setattr(audit_log, "_REMEMBERED", 5)
    again = AuditLog(log.path)
    assert [line["reason"] for line in again.history(1)] == ["c"]
    assert [len(again.history(job)) for job in (9_995, 9_996)] == [0, 1]
    monkeypatch.setattr(audit_log, "_TAIL_BYTES", 400)
    assert [len(AuditLog(log.path).history(job)) for job in (9_997, 9_999, 1)] == [0, 1, 1]


def test_memory_is_bounded_for_each_job(tmp_path: Path) -> None:
    """A job that is acted on for ever keeps its last lines only."""
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(100):
        log.write(entry(1, str(number)))

    kept = [line["reason"] for line in log.history(1)]

    assert kept[-1] == "99"
    assert len(kept) < 50
    log.close()


def test_threads_do_not_mix_lines(tmp_path: Path) -> None:
    """The loop and the control threads write at the same time; every line stays whole."""
    log = AuditLog(tmp_path / "audit.jsonl")

    def write(job: int) -> None:
        for _ in range(50):
            log.write(entry(job, "x" * 200))

    threads = [threading.Thread(target=write, args=(job,)) for job in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()

    assert sorted(str(line["job"]) for line in lines(log.path)) == sorted("0123" * 50)


RUN = Run(JobId(11), 5.0, 2)


@pytest.mark.parametrize(
    ("done", "action", "job", "handover", "result"),
    [
        (
            AppliedAction(SetSiteFactor(job_id=JobId(4), value=10, why="w")),
            "set_site_factor",
            4,
            None,
            "ok",
        ),
        (
            AppliedAction(
                Signal(handover_id=HandoverId(3), run=RUN, signal="USR1", target="batch", why="w"),
                "refused",
            ),
            "signal",
            11,
            3,
            "refused",
        ),
    ],
)
def test_an_action_becomes_a_line(
    done: AppliedAction, action: str, job: int, handover: int | None, result: str
) -> None:
    """Job, hand-over, reason and result stand at the top whatever kind of action it was."""
    line = line_of(done, 1.0)

    assert (line.action, line.job, line.handover, line.result) == (action, job, handover, result)
    assert line.reason == "w"
    assert "why" not in line.details


def test_opening_a_handover_is_in_the_history_of_all_its_jobs(tmp_path: Path) -> None:
    """Victims and beneficiaries alike can be told of the hand-over they are part of."""
    victim = Victim(run=RUN, gpus=4.0, contract=Contract())
    handover = Handover(
        handover_id=HandoverId(3),
        opened_s=1.0,
        beneficiaries=(JobId(21), JobId(22)),
        victims=(victim,),
        nodes=("n1",),
    )
    log = AuditLog(tmp_path / "audit.jsonl")

    log.write(line_of(AppliedAction(OpenHandover(handover=handover, why="w")), 1.0))

    assert [len(log.history(job)) for job in (11, 21, 22, 23)] == [1, 1, 1, 0]
    assert lines(log.path)[0]["handover"] == 3
    log.close()
