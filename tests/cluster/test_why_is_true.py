"""Sentences of `dlqueue why` in each state of a job, held against Slurm's own facts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in
from victims import sank

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("needs the database, which `make test` does not install"),
]

CONTRACT = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 20, "by": "daemon"}})
SLOW_S, GRACE_S, CLOCK_S = 20, 25, 1.5
OF_THE_LIVING = ("If it is preempted", "It reports", "It has rank", "would cost", "moves to tier")
TIME = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)Z"


@pytest.fixture
def place(short_directory: Path) -> Iterator[Schedd]:
    """Three nodes of four GPUs and a database; the daemon looks every 20 s at first."""
    spec = SandboxSpec(groups=(SandboxNodes(nodes=3),), accounting=True)
    box = Sandbox.up(short_directory / "box", spec)
    try:
        with schedd_in(box, short_directory) as daemon:
            daemon.configure(daemon={"poll_s": SLOW_S, "fast_poll_s": SLOW_S})
            daemon.start()
            yield daemon
    finally:
        box.down(remove=True)


def submit(place: Schedd, script: str, *options: str) -> str:
    """A job of five minutes at most without dlsubmit; its id."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--time=5", "--gres=gpu:4", *options]
    return place.box.run([*argv, f"--wrap={script}"]).stdout.strip()


def why(place: Schedd, job: str) -> str:
    """The sentences, after what must be true of them in each state."""
    said = place.ask("dlqueue", "why", job, check=False).stdout
    assert not re.search(r"\d{4}-\d\d-\d\dT", said), said
    assert not re.search(r"Z: \w+_\w+:", said), said
    if " is over." in said:
        assert not [words for words in OF_THE_LIVING if words in said], said
    assert not ("No process of its run" in said and "asked to save" in said), said
    return said


def until_said(place: Schedd, job: str, *words: str, within_s: float = 30.0) -> str:
    """The sentences once *words* are in them."""
    last = [""]

    def is_said() -> bool:
        last[0] = why(place, job)
        return all(w in last[0] for w in words)

    try:
        place.until(f"{words} of job {job}", is_said, within_s)
    except Exception as err:
        err.add_note(f"last said:\n{last[0]}")
        raise
    return last[0]


def at(text: str) -> float:
    """Epoch seconds of a time of ours, in UTC."""
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


def slurms(text: str) -> float:
    """Epoch seconds of a time of Slurm's, in local time."""
    return datetime.fromisoformat(text).timestamp()


def told_at(said: str, words: str) -> float:
    """The time that stands behind *words*."""
    found = re.search(words + TIME, said)
    assert found, said
    return at(found[1])


def accounted(place: Schedd, job: str) -> list[list[str]]:
    """State, exit status, start, end and seconds of each run, by sacct."""
    argv = ["sacct", "-DXnPj", job, "-o", "State,ExitCode,Start,End,ElapsedRaw"]
    return [line.split("|") for line in place.box.run(argv).stdout.splitlines()]


def ended(place: Schedd, job: str, *words: str) -> str:
    """The sentences of a job that is over; its end is that of sacct."""
    said = until_said(place, job, f"Job {job} ", " is over.", *words)
    place.until("sacct to know", lambda: accounted(place, job)[-1][3] != "Unknown")
    assert told_at(said, "It ended at ") == slurms(accounted(place, job)[-1][3])
    return said


def test_each_sentence_is_true(place: Schedd) -> None:
    """One job after the other: not seen, waiting for this and that, asked, back, and over."""
    held = submit(place, "sleep 600", "--nodelist=n1")
    refused = place.ask("dlqueue", "why", held, check=False)
    assert place.state(held) in {"PENDING", "RUNNING"}
    assert "no longer" not in refused.stderr
    (next_s,) = re.findall(r"not looked at yet; the next look is in (\d+) s", refused.stderr)
    assert int(next_s) <= SLOW_S
    place.configure(policy={"parameters": {"thresholds_gpu_s": [8, 100_000]}})
    place.ask("dlctl", "reload")
    until_said(place, held, "has been running on 4 GPUs")

    saved, over = place.home / "saved", place.home / "over"
    toy = ["--until", str(over), "--save-until", str(saved)]
    victim = place.toy(4, 1, *toy, options=[f"--grace={GRACE_S}", "--time=5", "-w", "n2"])
    place.until_state(victim, "RUNNING")
    after = submit(place, "true", f"--dependency=afterok:{victim}")
    array = submit(place, "sleep 600", "--array=1-3%1", "--gres=gpu:1", "--nodelist=n3")
    until_said(place, after, "it waits for another job (dependency)")
    assert place.job(after, "Reason") == ["Dependency"]
    said = until_said(place, f"{array}_2", "its array has as many tasks running")
    assert "of its account" not in said

    big = submit(place, "true", "--nodes=3")
    until_said(place, big, "Slurm plans to start it at", "; slurm_dl expects it at ")
    # Slurm's backfill keeps the nodes for it, and the daemon leaves it alone.
    place.box.run(["scontrol", "update", f"JobId={big}", "Priority=4000000000"])
    small = submit(place, "true", "--gres=gpu:1", "--time=60")
    said = until_said(place, small, "there is room for it by", "Slurm plans to start it at ")
    assert "in its next pass" not in said
    for job in (big, small):
        place.until(
            "its plan",
            lambda job=job: (
                told_at(why(place, job), "Slurm plans to start it at ")
                == slurms(place.job(job, "StartTime")[0])
            ),
        )
    for kept in (after, array):
        assert f"first {kept}" not in said, "who waits for a dependency or a limit is not ahead"
    place.box.run(["scancel", big, small])

    asked_and_back(place, victim, saved)
    until_said(place, victim, "has been running on 4 GPUs", "since its last checkpoint")
    over.touch()
    place.until_state(victim, "COMPLETED")
    said = ended(place, victim, "completed, with status 0", "It ran 2 times", "preempted 1 time")
    runs = accounted(place, victim)
    assert [run[0] for run in runs] == ["REQUEUED", "COMPLETED"]
    hours = float(re.findall(r"It received ([\d.]+) GPU-hours", said)[0])
    assert hours == pytest.approx(4 * sum(int(run[4]) for run in runs) / 3600, abs=0.011)
    assert "It last reported a checkpoint at" in said
    assert "does not run it again" not in said

    ends_otherwise(place)


def asked_and_back(place: Schedd, victim: str, saved: Path) -> None:
    """It is asked and has fewer and fewer seconds; then it is back in the queue."""
    place.until("it to sink", lambda: sank(place, victim))
    said = why(place, victim)
    assert f"it gets USR1 and up to {GRACE_S} s" in said
    place.submit(4, "sleep", "3", options=["--time=5"])
    until_said(place, victim, "it was sent USR1 and has ")
    (entry,) = place.audit(action="signal", job=int(victim))
    end_s, last = entry["epoch_s"] + GRACE_S, GRACE_S + 1
    for _ in range(3):
        before_s = time.time()
        said = why(place, victim)
        left = int(re.findall(r"has (\d+) s left to save", said)[0])
        assert end_s - time.time() - CLOCK_S <= left <= end_s - before_s + CLOCK_S
        assert left < last
        assert "If it is preempted" not in said
        last = left
        time.sleep(1.2)
    saved.touch()
    place.until("its requeue", lambda: place.job(victim, "Restarts") == ["1"])
    said = until_said(place, victim, "(it has run before)", "Slurm does not start it before")
    assert told_at(said, "not start it before ") == slurms(place.job(victim, "EligibleTime")[0])
    place.until_state(victim, "RUNNING")
    said = until_said(place, victim, "has been running on 4 GPUs")
    assert place.job(victim, "Restarts") == ["1"]
    assert "It has been preempted 1 time." in said
    assert "has reported no checkpoint)" not in said


def ends_otherwise(place: Schedd) -> None:
    """By us, by its user, and by itself without success."""
    trapped = "trap 'exit 0' USR1; while :; do sleep 0.2; done"
    by_us = submit(place, trapped, f"--comment={CONTRACT}", "--requeue", "--nodelist=n2")
    place.until("it to sink", lambda: sank(place, by_us))
    place.submit(4, "true", options=["--time=5"])
    place.until_state(by_us, "COMPLETED")
    ended(place, by_us, "with status 0", "was asked to save by USR1", "does not run it again")
    assert accounted(place, by_us)[-1][:2] == ["COMPLETED", "0:0"]

    waits = submit(place, "true", "--hold")
    until_said(place, waits, "it is held by its user")
    place.box.run(["scancel", waits])
    said = ended(place, waits, ": cancelled", "It never ran.")
    assert "with status" not in said
    failing = submit(place, "sleep 3; exit 3", f"--comment={CONTRACT}", "--requeue", "--gres=gpu:1")
    ended(place, failing, ": failed (NonZeroExitCode), with status 3", "It ran once")
    assert accounted(place, failing)[-1][:2] == ["FAILED", "3:0"]
