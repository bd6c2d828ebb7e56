"""A job that the policy bars is put off on a real Slurm; it starts by itself without a daemon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import MakeSandbox
from patience import PATIENCE
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxSpec

pytestmark = pytest.mark.slurm

PATIENT = Path(__file__).parents[1] / "patient_policy.py"
HURRY = {"poll_s": 1, "fast_poll_s": 0.5}


def bar_for(place: Schedd, wait_s: float) -> None:
    """Go on with a policy that bars each job for so long."""
    order = f"{PATIENT}:Patient"
    place.configure(
        daemon={**HURRY, "shadow": False},
        policy={"order": order, "parameters": {"wait_s": wait_s}},
        placement={"settle_s": 5},
    )


def test_a_barred_job_waits_beside_free_gpus(sandbox: Sandbox, short_directory: Path) -> None:
    """Sixteen are free: it waits 40 s and runs; the next runs though the daemon was killed."""
    with schedd_in(sandbox, short_directory) as place:
        bar_for(place, 40)
        place.start()
        begun_s = time.monotonic()
        job = place.toy(2, 4)
        place.until("it to be put off", lambda: place.job(job, "Reason") == ["BeginTime"])
        place.until("more cycles", lambda: time.monotonic() > begun_s + 35)
        assert place.state(job) == "PENDING"
        assert "patient" in place.ask("dlqueue", "why", job).stdout
        assert len(place.audit(action="set_steer")) <= 7
        place.until_state(job, "RUNNING", "COMPLETED", within_s=60)
        assert time.monotonic() - begun_s >= 40

        place.kill()
        bar_for(place, 1e6)
        place.start()
        job = place.toy(2, 4)
        put_off = f"put off job {job}"
        cycles = place.cycles()
        place.until(put_off, lambda: place.cycles() > cycles + 12)
        assert place.state(job) == "PENDING"
        place.kill()
        killed_s = time.monotonic()
        place.until_state(job, "RUNNING", "COMPLETED", within_s=60)
        assert time.monotonic() - killed_s < 40 * PATIENCE


RIGHT = {"F", "C"}
"""F uses a GPU that the first job leaves over, C ends before that starts; B does neither."""


BUILTIN = SandboxSpec(slurm_conf_extra=("SchedulerType=sched/builtin",))


@pytest.mark.full("half a minute each; the others show that the case can fail")
@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        ("easy_backfill", RIGHT),
        ("fifo", {"C"}),
        ("fifo_skip", {"F", "B"}),
        ("discrete_las", {"F", "B"}),
        ("", {"C"}),  # Slurm's own backfill, without a daemon.
    ],
)
def test_each_fills_the_gaps_that_its_rule_allows(
    sandbox: Sandbox, short_directory: Path, policy: str, starts: set[str]
) -> None:
    """Four GPUs, two of them in use for six minutes at most; the first job wants three.

    S behind it wants four, so Slurm's own backfill, which reserves for both, starts no job that
    lasts longer than those. EASY reserves for the first alone: one GPU is left over. fifo_skip
    reserves for none and starts what fits in the order of arrival.
    """
    with schedd_in(sandbox, short_directory) as place:
        assert gaps_filled(place, policy, starts) == starts


@pytest.mark.full("half a minute each; the others show that the case can fail")
@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        ("conservative_backfill", {"C"}),
        ("fifo", set()),
        ("las", {"F", "B"}),
        ("static_priority", {"F", "B"}),
        ("", set()),
    ],
)
def test_conservative_backfill_reserves_for_all_where_slurm_has_no_backfill(
    make_sandbox: MakeSandbox, short_directory: Path, policy: str, starts: set[str]
) -> None:
    """It fills the gaps as Slurm's backfill does, on a Slurm that goes by priority alone."""
    with schedd_in(make_sandbox(BUILTIN), short_directory) as place:
        assert gaps_filled(place, policy, starts) == starts


def gaps_filled(place: Schedd, policy: str, starts: set[str]) -> set[str]:
    """The jobs of the case that start, while H and S wait."""
    order = {"order": policy or "fifo", "parameters": {}}
    place.configure(policy=order, ranking={"pass_s": 0})
    place.start()

    def sleeps(gpus: int, minutes: int, *more: str) -> str:
        limit = [f"--time={minutes}", "--no-preempt", *more]
        return place.submit(gpus, "sleep", "600", options=limit)

    place.until_state(sleeps(12, 600), "RUNNING")
    place.until_state(sleeps(2, 6), "RUNNING")
    if not policy:
        place.stop()
    waits = {"H": sleeps(3, 20), "S": sleeps(4, 20)}
    may = {"F": sleeps(1, 60), "B": sleeps(1, 60)}
    if policy:
        # On a busy machine Slurm's backfill would start C before the daemon has seen the others.
        seen = place.cycles()
        place.until("two cycles", lambda: place.cycles() > seen + 2)
    may["C"] = sleeps(1, 3)
    running = {name for name, job in may.items() if place.state(job) == "RUNNING"}
    deadline_s = time.monotonic() + 45
    while time.monotonic() < deadline_s and not running >= starts:
        running = {name for name, job in may.items() if place.state(job) == "RUNNING"}
        time.sleep(0.5)
    time.sleep(5 if starts else 20)  # One more would have started by now: a GPU may be free.
    running |= {name for name, job in may.items() if place.state(job) == "RUNNING"}

    assert [place.state(job) for job in waits.values()] == ["PENDING", "PENDING"]
    return running
