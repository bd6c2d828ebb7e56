"""The main job on a real Slurm: order by attained service, preempt by signal, requeue, resume."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in, toy_steps

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

POLL_S = 1.0


@pytest.fixture
def daemon(sandbox: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A running dlschedd on the shared cluster."""
    with schedd_in(sandbox, short_directory) as place:
        place.start()
        yield place


class Watch:
    """What Slurm said of one job's runs while the test looked: (start, end) by restart count."""

    def __init__(self, daemon: Schedd, job: str) -> None:
        self.daemon, self.job = daemon, job
        self.start: dict[int, float] = {}
        self.end: dict[int, float] = {}

    def look(self) -> str:
        """Look once; the job's state."""
        state, restarts, start, end, submit = self.daemon.job(
            self.job, "JobState", "Restarts", "StartTime", "EndTime", "SubmitTime"
        )
        run = int(restarts)
        if state in ("RUNNING", "COMPLETED"):
            self.start[run] = _epoch(start)
        if state == "COMPLETED":
            self.end[run] = _epoch(end)
        # A requeue is a new submission; while the job is completing the old time is still shown.
        if run and run - 1 not in self.end and state != "COMPLETING":
            self.end[run - 1] = _epoch(submit)
        return state

    def seconds(self) -> float:
        """Sum over the runs."""
        assert set(self.start) == set(self.end)
        return sum(self.end[run] - self.start[run] for run in self.start)


def _epoch(slurm_time: str) -> float:
    return dt.datetime.fromisoformat(slurm_time).astimezone().timestamp()


def test_a_large_job_gives_way_to_small_ones_and_resumes(daemon: Schedd) -> None:
    """16 GPUs against twelve small jobs: cross, signal, checkpoint, requeue, small, resume, end."""
    steps = 100
    big = daemon.toy(16, steps, "--checkpoint-every", "1000")
    watch = Watch(daemon, big)
    daemon.until("the large job to sink", lambda: watch.look() and _sank(daemon, big))
    small = []
    for _ in range(12):
        small.append(daemon.toy(1, 8))
        watch.look()

    daemon.until("the large job to be requeued", lambda: watch.look() == "PENDING")
    daemon.until(
        "the small jobs to end",
        lambda: watch.look() and all(daemon.state(s) == "COMPLETED" for s in small),
        90,
    )
    daemon.until("the large job to end", lambda: watch.look() == "COMPLETED", 90)

    order = [(a["action"], a["job"]) for a in daemon.audit(result="ok") if a["job"] == int(big)]
    actions = [action for action, _ in order]
    assert actions.index("signal") < actions.index("requeue") < actions.index("mark_gone")
    assert (
        actions.count("signal") == actions.count("requeue") == int(daemon.job(big, "Restarts")[0])
    )
    # Not one step twice, none left out: it went on exactly where it had stopped.
    assert toy_steps(daemon.home, big) == list(range(1, steps + 1))
    for job in small:
        assert _epoch(daemon.job(job, "EndTime")[0]) <= watch.end[max(watch.end)]
        assert daemon.job(job, "Restarts") == ["0"]
    daemon.until(
        "the ledger to agree with Slurm's start and end times",
        lambda: abs(daemon.attained_gpu_s(big) - 16 * watch.seconds()) <= 16 * POLL_S,
        5,
    )
    daemon.until("the reservations to go", lambda: not daemon.reservations(), 5)
    assert daemon.open_handovers() == 0


def _sank(daemon: Schedd, job: str) -> bool:
    return len(daemon.audit(action="set_site_factor", job=int(job), result="ok")) > 1


def _gone(daemon: Schedd) -> set[int]:
    return {entry["job"] for entry in daemon.audit(action="mark_gone", result="ok")}


def test_freed_nodes_go_to_nobody_else(daemon: Schedd) -> None:
    """Nodes that come free one by one wait for their beneficiary though others would fit."""
    # A wall of jobs that nobody may touch on two nodes, two victims on the others, of which the
    # second takes its time.
    walls = [daemon.toy(4, 400, options=["--no-preempt"]) for _ in range(2)]
    quick = daemon.toy(4, 400)
    slow = daemon.toy(4, 400, "--save-s", "8", options=["--grace", "30"])
    jobs = [*walls, quick, slow]
    daemon.until("four jobs to run", lambda: all(daemon.state(j) == "RUNNING" for j in jobs))
    daemon.until("the victims to sink", lambda: _sank(daemon, quick) and _sank(daemon, slow))

    beneficiary = daemon.toy(8, 8, options=["--nodes", "2"])
    others = [daemon.toy(1, 8, options=["--time", "5"]) for _ in range(6)]
    daemon.until("the quick victim to go", lambda: daemon.state(quick) == "PENDING", 30)
    assert daemon.state(slow) == "RUNNING"
    daemon.until("the beneficiary to run", lambda: daemon.state(beneficiary) != "PENDING", 60)

    began = _epoch(daemon.job(beneficiary, "StartTime")[0])
    for other in [*others, quick, slow]:
        state, start = daemon.job(other, "JobState", "StartTime")
        assert state == "PENDING" or _epoch(start) >= began, f"{other} was let in at {start}"
    daemon.until("both victims to be booked", lambda: _gone(daemon) == {int(quick), int(slow)}, 10)
    requeued = [a["epoch_s"] for a in daemon.audit(action="requeue", result="ok")]
    assert max(requeued) - min(requeued) > 3, "the test needs nodes that come free one by one"


def test_who_did_not_opt_in_is_left_alone(daemon: Schedd) -> None:
    """No signal, no requeue, whatever waits; the user is told why nothing happens."""
    big = daemon.toy(16, 120, options=["--no-preempt"])
    daemon.until("it to sink", lambda: _sank(daemon, big))
    small = daemon.toy(1, 4)
    daemon.until(
        "the reason to be told",
        lambda: "opted in" in daemon.ask("dlqueue", "why", small, check=False).stdout,
    )
    daemon.until_state(big, "COMPLETED", within_s=90)

    assert not daemon.audit(action="signal")
    assert not daemon.audit(action="requeue")
    assert daemon.job(big, "Restarts") == ["0"]
    daemon.until_state(small, "COMPLETED", within_s=60)


def test_a_job_that_ignores_the_signal_goes_after_its_grace_and_not_before(daemon: Schedd) -> None:
    """Grace is a promise to the user, and its end a promise to those who wait."""
    grace_s = 8
    big = daemon.toy(
        16,
        200,
        "--ignore-signal",
        "--checkpoint-every",
        "10",
        options=["--grace", str(grace_s)],
    )
    daemon.until("it to sink", lambda: _sank(daemon, big))
    small = daemon.toy(1, 4)
    daemon.until(
        "it to be requeued",
        lambda: (
            daemon.job(big, "Restarts") == ["1"] and daemon.state(big) in ("PENDING", "RUNNING")
        ),
        60,
    )

    [asked] = daemon.audit(action="signal", result="ok")
    requeued = _epoch(daemon.job(big, "SubmitTime")[0])
    assert requeued - asked["epoch_s"] >= grace_s - 1  # Slurm's times are whole seconds.
    assert "grace" in daemon.audit(action="requeue", result="ok")[0]["reason"]
    daemon.until_state(small, "COMPLETED")


def test_a_job_that_finishes_during_its_grace_stays_completed(daemon: Schedd) -> None:
    """What is done is never run again."""
    big = daemon.toy(16, 40, "--ignore-signal", options=["--grace", "50"])
    daemon.until("it to sink", lambda: _sank(daemon, big))
    small = daemon.toy(1, 4)
    daemon.until("it to be signalled", lambda: daemon.audit(action="signal", result="ok"))
    daemon.until_state(big, "COMPLETED")
    daemon.until_state(small, "COMPLETED")
    daemon.until("the hand-over to be closed", lambda: daemon.open_handovers() == 0)

    assert daemon.state(big) == "COMPLETED"
    assert daemon.job(big, "Restarts") == ["0"]
    assert not daemon.audit(action="requeue")
    assert toy_steps(daemon.home, big) == list(range(1, 41))
