"""Policies on a real Slurm: what starts first, what gives way, and the same plans once more."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE, eventually
from schedd import BIN, Schedd, schedd_in, toy_steps
from situations import made

from slurm_dl.engine.decide import decide
from slurm_dl.model.jobs import PENDING, RUNNING
from slurm_dl.recording.cycles_file import RecordedCycle, Recording
from slurm_dl.recording.replay_report import plan_bytes
from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

REPLAYED = ("discrete_las", "allox", "easy_backfill", "gavel_max_min", "karuna", "themis")
"""Of each kind of order one: tiers, barred jobs, reservations, shares, deadlines, an auction."""

PARAMETERS: dict[str, dict[str, Any]] = {
    "discrete_las": {"thresholds_gpu_s": [60, 5000]},
}


THE_TIME = "date +%s.%N"
HURRY: dict[str, float] = {"poll_s": 0.5, "fast_poll_s": 0.25}


@pytest.fixture(scope="module")
def place(sandbox: Sandbox, module_directory: Path) -> Iterator[Schedd]:
    """One daemon, whose policy is changed by reloading its configuration."""
    with schedd_in(sandbox, module_directory) as daemon:
        daemon.configure(daemon=HURRY)
        daemon.start()
        yield daemon


@pytest.fixture(scope="module")
def recording(place: Schedd) -> Iterator[Path]:
    """Everything that the daemon sees and plans, under all its policies, in one file."""
    path = place.home / "recording.jsonl"
    process = subprocess.Popen(
        [str(BIN / "dlctl"), "record", str(path), "--for", "1d"],
        env=place.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        begun = "the recording to begin"
        place.until(begun, lambda: path.exists() and path.stat().st_size > 0, 120)
        yield path
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode in {0, 130}, said.decode()


def switch(
    place: Schedd, policy: str, parameters: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> None:
    """Let the daemon go on with another policy."""
    given = parameters or PARAMETERS.get(policy, {})
    place.configure(daemon=HURRY, policy={"order": policy, "parameters": given}, **sections)
    place.ask("dlctl", "reload")


def queue(place: Schedd, gpus: int, command: str, *more: str) -> int:
    """A job on so many GPUs of each of the four nodes; its id."""
    argv = ["sbatch", "--parsable", "-N4", f"--gres=gpu:{gpus}", "-o", f"{place.home}/%j.said"]
    return int(place.box.run([*argv, *more, "--wrap", command]).stdout.strip())


def began(place: Schedd, job: int) -> float:
    """When a job that tells the time has begun, in seconds; Slurm's own are whole ones."""
    place.until_state(str(job), "COMPLETED", within_s=120)
    return float((place.home / f"{job}.said").read_text(encoding="ascii"))


def cycles_since(path: Path, begin: int, policy: str) -> list[RecordedCycle]:
    """The cycles in which *policy* ordered, of what is in a recording from its byte *begin* on."""
    whole = path.read_bytes()
    *before, last = whole[:begin].splitlines(keepends=True) or [b""]
    if last.endswith(b"\n"):
        before.append(last)
        last = b""
    # What was in force by then; the first line says it of the beginning.
    in_force = [line for line in before[1:] if line.startswith(b'{"setup":')][-1:]
    part = path.with_name("part.jsonl")
    part.write_bytes(b"".join([*before[:1], *in_force, last, whole[begin:]]))
    with Recording(part) as recording:
        return [cycle for cycle in recording if cycle.setup.policy == policy]


def is_ordered(cycle: RecordedCycle, job: int) -> bool:
    """Whether the job waits, and an earlier plan has been written to it."""
    row = cycle.snapshot.jobs.row_of().get(job)
    return _waits(cycle, job) and cycle.snapshot.memory.site_factor[row] > 0


@pytest.mark.parametrize("policy", REPLAYED)
def test_slurm_starts_first_what_the_policy_puts_first(
    place: Schedd, recording: Path, policy: str
) -> None:
    """Two jobs that do not fit together wait for a full cluster: a larger one, and a shorter one.

    Both need every node, so that which of them starts first is not a matter of which is free first.

    Which of them starts first is what the last plan said before, and every plan is made again, byte
    for byte, from the snapshot that was recorded.
    """
    begin = recording.stat().st_size
    blocker = queue(place, 4, "sleep 600")
    switch(place, policy)
    place.until_state(str(blocker), "RUNNING", within_s=120)
    larger = queue(place, 4, THE_TIME, "-t", "50")
    shorter = queue(place, 3, THE_TIME, "-t", "5")

    def while_both_wait() -> list[RecordedCycle]:
        """Since both have been told their places by this policy."""
        return [
            c
            for c in cycles_since(recording, begin, policy)
            if is_ordered(c, larger) and is_ordered(c, shorter) and _runs(c, blocker)
        ]

    # What records may be some looks behind.
    place.until("a plan of both to be recorded", while_both_wait, 120)
    place.box.run(["scancel", str(blocker)])
    started = {job: began(place, job) for job in (larger, shorter)}

    # An order that changes at that moment may not have been written yet: then the one before holds.
    last = while_both_wait()[-1]
    # Jobs that the policy put off start by the order that it has once the GPUs are free.
    lasts = [last] + [
        c
        for c in cycles_since(recording, begin, policy)
        if last.plan.held
        and _waits(c, larger)
        and _waits(c, shorter)
        and not _runs(c, blocker)
        and c.snapshot.now_s > last.snapshot.now_s
    ]
    orders = [
        sorted((larger, shorter), key=lambda job: keys[c.snapshot.jobs.row_of()[job]])
        for c in lasts
        for keys in (c.plan.rank, -c.snapshot.memory.site_factor)
    ]
    assert sorted(started, key=lambda job: started[job]) in orders
    for cycle in cycles_since(recording, begin, policy):
        again = decide(
            cycle.snapshot, made(cycle.setup.policy, cycle.setup.parameters), cycle.setup.settings
        )
        assert plan_bytes(again) == plan_bytes(cycle.plan)


def _state(cycle: RecordedCycle, job: int) -> int:
    jobs = cycle.snapshot.jobs
    row = jobs.row_of().get(job)
    return -1 if row is None else int(jobs.state[row])


def _waits(cycle: RecordedCycle, job: int) -> bool:
    return _state(cycle, job) == PENDING


def _runs(cycle: RecordedCycle, job: int) -> bool:
    return _state(cycle, job) == RUNNING


def test_the_shortest_job_goes_first_although_it_came_last(place: Schedd, recording: Path) -> None:
    """What Slurm would not do by itself."""
    begin = recording.stat().st_size
    blocker = queue(place, 4, "sleep 600")
    switch(place, "srtf")
    place.until_state(str(blocker), "RUNNING", within_s=120)
    jobs = [queue(place, 4, THE_TIME, "-t", str(minutes)) for minutes in (50, 30, 10)]
    place.until(
        "a plan of all three to be written",
        lambda: any(
            all(is_ordered(cycle, job) for job in jobs)
            for cycle in cycles_since(recording, begin, "srtf")
        ),
        120,
    )
    place.box.run(["scancel", str(blocker)])

    started = [began(place, job) for job in jobs]
    assert started == sorted(started, reverse=True)


@pytest.mark.parametrize("policy", ["gavel_max_min", "gavel_proportional"])
@pytest.mark.full("turns of a lease take a minute")
def test_two_trainings_share_a_cluster_in_turns_of_a_lease(place: Schedd, policy: str) -> None:
    """Equal shares of time: each gives way at the end of its lease, and both lose no step."""
    switch(
        place,
        policy,
        {"lease_s": 8.0},
        preemption={"max_preemptions": 50, "checkpoint_cost_s": 1},
    )
    # Nobody begins, and is done, before the other one is there.
    blocker = queue(place, 4, "sleep 600")
    place.until_state(str(blocker), "RUNNING", within_s=120)
    jobs = [place.toy(16, 120, options=["--nodes", "4"]) for _ in range(2)]
    place.box.run(["scancel", str(blocker)])
    for job in jobs:
        place.until_state(job, "COMPLETED", within_s=240)

    for job in jobs:
        assert toy_steps(place.home, job) == list(range(1, 121))
    restarts = [int(place.job(job, "Restarts")[0]) for job in jobs]
    assert sum(restarts) >= 2
    # Nobody was stopped but at the end of a lease: in its window of 2 s, and a look later.
    signals = [e for e in place.audit(action="signal") if str(e["job"]) in jobs]
    assert signals
    assert all(entry["epoch_s"] % 8.0 <= 4.0 for entry in signals)


def test_the_daemon_is_well_after_all_this(place: Schedd) -> None:
    """No bug, no hand-over left open, no reservation left behind."""
    eventually(lambda: place.open_handovers() == 0, 30.0, what="hand-overs to close")
    log = (place.home / "schedd.log").read_text(encoding="utf-8")

    assert place.answers()
    assert "bug in a cycle" not in log
    assert not place.reservations()
