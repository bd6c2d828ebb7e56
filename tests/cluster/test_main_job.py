"""The main job on a real Slurm: order by attained service, preempt by signal, requeue, resume."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in, toy_steps
from victims import sank

from slurm_dl.sandbox import Sandbox, SandboxSpec

pytestmark = pytest.mark.slurm

POLL_S = 1.0


@pytest.fixture
def daemon(sandbox: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A running dlschedd on the shared cluster."""
    with schedd_in(sandbox, short_directory) as place:
        place.start()
        yield place


@pytest.fixture
def recorded(
    make_sandbox: Callable[[SandboxSpec], Sandbox], short_directory: Path, tmp_path: Path
) -> Iterator[Schedd]:
    """A running dlschedd on a cluster that writes each run that ends into "completions"."""
    extra = ("JobCompType=jobcomp/filetxt", f"JobCompLoc={tmp_path / 'completions'}")
    with schedd_in(make_sandbox(SandboxSpec(slurm_conf_extra=extra)), short_directory) as place:
        place.start()
        yield place


def runs_of(log: Path, job: str) -> list[tuple[float, float]]:
    """Start and end of each run of the job, from Slurm's completion log."""
    lines = [line for line in log.read_text("utf-8").splitlines() if f"JobId={job} " in line]
    times = [dict(re.findall(r"(StartTime|EndTime)=(\S+)", line)) for line in lines]
    return [(_epoch(t["StartTime"]), _epoch(t["EndTime"])) for t in times]


def toys(daemon: Schedd, count: int, *, options: Sequence[str] = ()) -> list[str]:
    """Submit trainings of one GPU and eight steps at the same time; the job ids."""
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(daemon.toy, 1, 8, options=options) for _ in range(count)]
        return [job.result() for job in asked]


def _epoch(slurm_time: str) -> float:
    return dt.datetime.fromisoformat(slurm_time).astimezone().timestamp()


def test_a_large_job_gives_way_to_small_ones_and_resumes(recorded: Schedd, tmp_path: Path) -> None:
    """16 GPUs against twelve small jobs: cross, signal, checkpoint, requeue, small, resume, end."""
    daemon, log = recorded, tmp_path / "completions"
    end = daemon.home / "end"
    big = daemon.toy(16, 1, "--until", str(end), "--checkpoint-every", "1000000")
    daemon.until("the large job to sink", lambda: sank(daemon, big))
    small = toys(daemon, 12)
    daemon.until(
        "the small jobs to end", lambda: all(daemon.state(s) == "COMPLETED" for s in small), 120
    )
    before = len(toy_steps(daemon.home, big))
    daemon.until("the large job to go on", lambda: len(toy_steps(daemon.home, big)) > before)
    end.touch()
    daemon.until_state(big, "COMPLETED")

    order = [(a["action"], a["job"]) for a in daemon.audit(result="ok") if a["job"] == int(big)]
    actions = [action for action, _ in order]
    assert actions.index("signal") < actions.index("requeue") < actions.index("mark_gone")
    restarts = int(daemon.job(big, "Restarts")[0])
    assert actions.count("signal") == actions.count("requeue") == restarts
    # Not one step twice, none left out: it went on exactly where it had stopped.
    steps = toy_steps(daemon.home, big)
    assert steps == list(range(1, steps[-1] + 1))
    runs = runs_of(log, big)
    assert len(runs) == restarts + 1
    for job in small:
        [(began, ended)] = runs_of(log, job)
        assert runs[0][1] <= began
        assert ended <= runs[-1][0]
    seconds = sum(ended - began for began, ended in runs)
    daemon.until(
        "the ledger to agree with Slurm's start and end times",
        lambda: abs(daemon.attained_gpu_s(big) - 16 * seconds) <= 16 * POLL_S,
        30,
    )
    daemon.until("the reservations to go", lambda: not daemon.reservations(), 30)
    assert daemon.open_handovers() == 0


def _gone(daemon: Schedd) -> set[int]:
    return {entry["job"] for entry in daemon.audit(action="mark_gone", result="ok")}


def test_freed_nodes_go_to_nobody_else(daemon: Schedd) -> None:
    """Nodes that come free one by one wait for their beneficiary though others would fit."""
    # A wall of jobs that nobody may touch on two nodes, two victims on the others, of which the
    # second saves until the test lets it stop.
    saved = daemon.home / "saved"
    endless = ["--until", str(daemon.home / "never")]
    walls = [daemon.toy(4, 1, *endless, options=["--no-preempt"]) for _ in range(2)]
    quick = daemon.toy(4, 1, *endless)
    slow = daemon.toy(4, 1, *endless, "--save-until", str(saved), options=["--grace", "140"])
    jobs = [*walls, quick, slow]
    daemon.until("four jobs to run", lambda: all(daemon.state(j) == "RUNNING" for j in jobs))
    daemon.until("the victims to sink", lambda: sank(daemon, quick) and sank(daemon, slow))

    beneficiary = daemon.toy(8, 8, options=["--nodes", "2"])
    others = toys(daemon, 6, options=["--time", "5"])
    daemon.until_state(quick, "PENDING")
    free = daemon.job(quick, "SubmitTime")[0]
    daemon.until(
        "Slurm to look at the others while a node is free",
        lambda: all(daemon.job(j, "LastSchedEval")[0] > free for j in others),
    )
    assert {daemon.state(j) for j in [*others, beneficiary]} == {"PENDING"}
    assert daemon.state(slow) == "RUNNING"
    requeued = daemon.audit(action="requeue", result="ok")
    assert [a["job"] for a in requeued] == [int(quick)], "one node is free and the other is not"
    saved.touch()
    daemon.until("the beneficiary to run", lambda: daemon.state(beneficiary) != "PENDING", 60)

    began = _epoch(daemon.job(beneficiary, "StartTime")[0])
    for other in [*others, quick, slow]:
        state, start = daemon.job(other, "JobState", "StartTime")
        assert state == "PENDING" or _epoch(start) >= began, f"{other} was let in at {start}"
    daemon.until("both victims to be booked", lambda: _gone(daemon) == {int(quick), int(slow)}, 30)


def test_who_did_not_opt_in_is_left_alone(daemon: Schedd) -> None:
    """No signal, no requeue, whatever waits; the user is told why nothing happens."""
    end = daemon.home / "end"
    big = daemon.toy(16, 1, "--until", str(end), options=["--no-preempt"])
    daemon.until("it to sink", lambda: sank(daemon, big))
    small = daemon.toy(1, 4)
    daemon.until(
        "the reason to be told",
        lambda: "opted in" in daemon.ask("dlqueue", "why", small, check=False).stdout,
    )
    end.touch()
    daemon.until_state(big, "COMPLETED")

    assert not daemon.audit(action="signal")
    assert not daemon.audit(action="requeue")
    assert daemon.job(big, "Restarts") == ["0"]
    daemon.until_state(small, "COMPLETED", within_s=60)


def test_a_job_that_ignores_the_signal_goes_after_its_grace_and_not_before(daemon: Schedd) -> None:
    """Grace is a promise to the user, and its end a promise to those who wait."""
    grace_s = 8
    big = daemon.toy(
        16,
        1,
        "--until",
        str(daemon.home / "never"),
        "--ignore-signal",
        "--checkpoint-every",
        "10",
        options=["--grace", str(grace_s)],
    )
    daemon.until("it to sink", lambda: sank(daemon, big))
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
    end = daemon.home / "end"
    big = daemon.toy(16, 1, "--until", str(end), "--ignore-signal", options=["--grace", "140"])
    daemon.until("it to sink", lambda: sank(daemon, big))
    small = daemon.toy(1, 4)
    daemon.until("it to be signalled", lambda: daemon.audit(action="signal", result="ok"))
    signalled = len(toy_steps(daemon.home, big))
    daemon.until("it to train on", lambda: len(toy_steps(daemon.home, big)) > signalled + 8)
    end.touch()
    daemon.until_state(big, "COMPLETED")
    daemon.until_state(small, "COMPLETED")
    daemon.until("the hand-over to be closed", lambda: daemon.open_handovers() == 0)

    assert daemon.state(big) == "COMPLETED"
    assert daemon.job(big, "Restarts") == ["0"]
    assert not daemon.audit(action="requeue")
    steps = toy_steps(daemon.home, big)
    assert steps == list(range(1, steps[-1] + 1))
