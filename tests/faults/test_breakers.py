"""Each circuit breaker trips on a real Slurm, says why, and re-arms or is reset by an admin."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from patience import PATIENCE
from schedd import Schedd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("two tests of up to 40 s: jobs fail until a breaker trips"),
]

CLAIM = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 1, "by": "daemon"}})
HEEDLESS = "trap '' USR1; exec sleep 600"
BROKEN = "trap '' USR1; [ ${SLURM_RESTART_COUNT:-0} -eq 0 ] || exit 1; sleep 600"
"""It fails as soon as it is restarted."""
AS_NOBODY = """
import os, pwd, sys
from slurm_dl.cli.dlctl import command, daemon_tables
nobody = pwd.getpwnam("nobody")
os.setgroups([])
os.setresgid(*[nobody.pw_gid] * 3)
os.setresuid(*[nobody.pw_uid] * 3)
command.main()
"""
"""Python itself may be where that user cannot read."""


def start(daemon: Schedd, **breakers: float) -> None:
    """Start a daemon with these breakers and no other; jobs of 4 GPUs sink within seconds."""
    daemon.configure(breakers=breakers, policy={"parameters": {"thresholds_gpu_s": [20, 100_000]}})
    daemon.start()


def submit(daemon: Schedd, script: str, *options: str) -> str:
    """A job of one node's GPUs."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--nodes=1", "--gres=gpu:4", "--requeue"]
    done = daemon.box.run([*argv, *options, f"--wrap={script}"])
    return str(done.stdout).strip()


def fill(daemon: Schedd, script: str, others: int = 2, another: str = "root") -> list[str]:
    """Two nodes' jobs that opted in and have sunk, and *others* that did not; the former.

    One is root's, one is of the user *another*.
    """
    opted = [
        submit(daemon, script, f"--comment={CLAIM}", f"--uid={user}", "--chdir=/")
        for user in ("root", another)
    ]
    for job in [*opted, *(submit(daemon, HEEDLESS) for _ in range(others))]:
        daemon.until_state(job, "RUNNING")
    for job in opted:
        daemon.until(f"job {job} to sink", lambda job=job: tier(daemon, job) == 1)
    return opted


def tier(daemon: Schedd, job: str) -> object:
    """The job's tier by the daemon's last look."""
    rows = json.loads(daemon.ask("dlqueue", "--json").stdout)["jobs"]
    return next((row["tier"] for row in rows if row["job"] == job), None)


def tripped(daemon: Schedd) -> dict[str, dict[str, Any]]:
    """The breakers that have tripped, by name."""
    status = json.loads(daemon.ask("dlctl", "status", "--json").stdout)
    return {b["breaker"]: b for b in status["breakers"] if b["tripped_s"] is not None}


def preempted(daemon: Schedd) -> int:
    """Hand-overs that were begun."""
    return len(daemon.audit(action="open_handover", result="ok"))


def stays_stopped(daemon: Schedd, job: str) -> None:
    """Look three times more: *job* waits, is told why, and no hand-over is begun."""
    begun, upto = preempted(daemon), daemon.cycles() + 3
    daemon.until("three more looks", lambda: daemon.cycles() >= upto)
    assert preempted(daemon) == begun
    assert daemon.state(job) == "PENDING"
    assert "preemption is stopped by the breaker" in daemon.ask("dlqueue", "why", job).stdout


def as_nobody(daemon: Schedd, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run ``dlctl`` as an ordinary user."""
    socket = daemon.home / "run" / "dlschedd.sock"
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *argv, "--socket", str(socket)],
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )


def test_jobs_that_do_not_come_back_stop_preemption(place: Schedd) -> None:
    """Two of two fail at once; a new daemon changes nothing, a reset does.

    They are two users' jobs: one user's alone do not trip it.
    """
    start(place, failed_share=0.5, failed_least=2)
    victims = fill(place, BROKEN, another="nobody")
    short = [submit(place, "sleep 1", f"--comment={CLAIM}") for _ in range(2)]
    for job in (*short, *victims):
        place.until_state(job, "COMPLETED", "FAILED", within_s=90)
    assert [place.state(job) for job in victims] == ["FAILED", "FAILED"]
    place.until("the breaker to trip", lambda: tripped(place), 15)

    breaker = tripped(place)["failed_restarts"]
    assert sorted(breaker["jobs"]) == sorted(map(int, victims))
    said = place.ask("dlctl", "status").stdout
    assert "STOPPED by the breaker failed_restarts since" in said
    assert "2 of 2 preempted jobs failed within 300 s of their restart" in said
    assert ", or 'dlctl breakers reset failed_restarts' once the cause is mended" in said
    assert breaker["rearms_at_s"] - breaker["tripped_s"] == 14_400
    (line,) = place.audit(action="trip_breaker")
    assert (line["actor"], line["details"]["breaker"]) == ("dlschedd", "failed_restarts")

    fill(place, HEEDLESS, others=0)
    waiting = submit(place, "sleep 1", f"--comment={CLAIM}")
    stays_stopped(place, waiting)
    place.kill()
    place.start()
    assert tripped(place)["failed_restarts"]["tripped_s"] == breaker["tripped_s"]
    stays_stopped(place, waiting)
    place.ask("dlctl", "reload")
    denied = as_nobody(place, "breakers", "reset", "failed_restarts")
    assert denied.returncode == 1
    assert "control.admins" in denied.stderr
    stays_stopped(place, waiting)
    assert tripped(place)
    done = place.ask("dlctl", "breakers", "reset", "failed_restarts")
    assert "2 of 2 preempted jobs" in done.stdout
    place.until_state(waiting, "COMPLETED")
    assert not tripped(place)
    (line,) = place.audit(action="reset_breaker")
    assert line["actor"] == "user root (0)"
    log = (place.home / "schedd.log").read_text(encoding="utf-8")
    assert log.count("a breaker stops preemption") == 2, "once in each life"


def test_gpus_taken_back_stop_preemption(place: Schedd) -> None:
    """4 GPUs an hour and a quarter of 16 are within the bounds, the next 4 are not.

    One of the breakers is reset; the other re-arms, after the ledger's past was moved by an hour.
    """
    start(place, gpus_per_hour=5, cluster_share=0.25, cluster_least=0)
    fill(place, HEEDLESS)
    first = submit(place, HEEDLESS, f"--comment={CLAIM}")
    place.until_state(first, "RUNNING")
    assert not tripped(place)
    second = submit(place, "sleep 1", f"--comment={CLAIM}")
    place.until("both breakers to trip", lambda: len(tripped(place)) == 2, 30)

    found = tripped(place)
    assert found["gpus_per_hour"]["why"] == (
        "4 GPUs were taken back within an hour, and 4 more were to be: above the bound of 5"
    )
    assert found["cluster_share"]["why"] == (
        "4 of 16 managed GPUs were taken back within an hour, and 4 more were to be: "
        "above the bound of 25%"
    )
    assert preempted(place) == 1
    place.ask("dlctl", "breakers", "reset", "gpus_per_hour")
    assert place.ask("dlctl", "breakers").stdout.count("tripped 2") == 1
    stays_stopped(place, second)
    at_s = found["cluster_share"]["rearms_at_s"]
    again = f"re-arms at {datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%SZ}"
    for argv in (("dlctl", "breakers"), ("dlctl", "status"), ("dlqueue", "why", second)):
        assert again in " ".join(place.ask(*argv).stdout.split()), argv
    place.kill()
    with closing(sqlite3.connect(place.home / "state" / "ledger.sqlite")) as db, db:
        db.execute("UPDATE breaker SET tripped_s = tripped_s - 3600 WHERE tripped_s > 0")
        db.execute("UPDATE taken SET at_s = at_s - 3600")
    place.start()
    assert not tripped(place)
    assert "ok, re-armed 2" in place.ask("dlctl", "breakers").stdout
    place.until_state(second, "COMPLETED")
    assert preempted(place) == 2
    assert not tripped(place)
