"""On a real Slurm the replicas of a service follow its rate, before batch jobs that came earlier.

One node of four GPUs. Batch jobs fill it and its queue. The service wants one replica at a low
rate and four at a high one. Without the section no order does that.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import bounded_arrays
import pytest
from bounded_arrays import MUTANTS, node_of_four, settle, submit, tasks, throttle
from rate_server import rate_server
from schedd import Schedd

pytestmark = pytest.mark.slurm

LOW, HIGH = 0.1, 3.0  # Requests per second: of one second each, they want 1 and 4 replicas
TERMS: Final = {
    "user": "root",
    "service_s": 1,
    "service_scv": 0,
    "sla_s": 30,
    "quantile": 0.9,
    "setup_s": 0,
    "most_replicas": 4,
}
place = node_of_four()


def put_in_force(place: Schedd, policy: str, *, rate: str = "") -> None:
    """Go on with this policy, without any job; with the service if there is a rate."""
    bounded_arrays.put_in_force(
        place,
        policy,
        preemption={"min_quantum_s": 0, "cooldown_s": 0, "max_preemptions": 50},
        replicas={"services": {"chat": {**TERMS, "rate": rate}} if rate else {}},
    )


def submit_batch(place: Schedd) -> list[str]:
    """Four jobs that agree to preemption run, two more wait."""
    jobs = [place.submit(1, "sleep", "3600", options=["--time=60"]) for _ in range(4)]
    for job in jobs:
        place.until_state(job, "RUNNING")
    return [*jobs, *(place.submit(1, "sleep", "3600", options=["--time=60"]) for _ in range(2))]


def submit_replicas(place: Schedd, *, name: str = "chat") -> str:
    """An array of 20 replicas; its job id."""
    return submit(place, "--gres=gpu:1", "--time=60", "--array=0-19", f"-J{name}")


def line(rate: float) -> str:
    """The rate of now."""
    return f"{time.time():.0f},{rate}\n"


def end_one(place: Schedd, array: str) -> None:
    """Cancel the replica that started last."""
    rows = place.box.run(["squeue", "-hrtR", "-SS", "-o%i", f"-j{array}"]).stdout.split()
    place.box.run(["scancel", rows[-1]])


@pytest.mark.parametrize("policy", MUTANTS)
def test_without_the_section_the_array_is_a_job_like_any_other(place: Schedd, policy: str) -> None:
    """It waits behind the batch jobs, or starts without a bound."""
    put_in_force(place, policy)
    submit_batch(place)
    array = submit_replicas(place)
    settle(place, 6)
    assert throttle(place, array) in ("", "0")
    assert tasks(place, array) == 0


@pytest.mark.full("a minute; units show the counts, test_throttle the throttle")
def test_replicas_follow_the_rate_of_a_file(place: Schedd, tmp_path: Path) -> None:
    """1, 4, then 1 again: surplus ones end, and no new ones start; batch jobs start again."""
    rate = tmp_path / "rate.csv"
    rate.write_text(line(LOW), encoding="utf-8")
    put_in_force(place, "fifo", rate=str(rate))
    batch = submit_batch(place)
    strange = submit_replicas(place, name="chats")
    array = submit_replicas(place)
    place.until("one replica", lambda: tasks(place, array) == 1, 120)
    settle(place, 6)
    assert (tasks(place, array), throttle(place, array)) == (1, "1")
    why = " ".join(place.ask("dlqueue", "why", array).stdout.split())
    assert "service chat wants 1 replica (0.1 requests/s)" in why

    rate.write_text(line(HIGH), encoding="utf-8")
    place.until("four replicas", lambda: tasks(place, array) == 4, 180)
    assert {place.state(job) for job in batch} == {"PENDING"}
    assert tasks(place, strange) == 0

    rate.unlink()
    settle(place, 6)
    assert (tasks(place, array), throttle(place, array)) == (4, "4")

    rate.write_text(line(LOW), encoding="utf-8")
    place.until("the throttle", lambda: throttle(place, array) == "1")
    for left in (3, 2, 1):
        end_one(place, array)
        place.until("its end", lambda left=left: tasks(place, array) == left)
    place.until(
        "batch jobs", lambda: [place.state(j) for j in batch].count("RUNNING") == 3, within_s=240
    )
    settle(place, 6)
    assert tasks(place, array) == 1


@pytest.mark.full("half a minute; units show who gives way, and how the web is read")
def test_surplus_replicas_give_way_at_a_rate_from_the_web(place: Schedd) -> None:
    """Those with a contract are preempted for jobs that have run for less (LAS); one stays."""
    answers = [line(HIGH).encode()]
    with rate_server(answers) as url:
        put_in_force(place, "las", rate=url)
        array = place.submit(
            1, "sleep", "3600", options=["--time=60", "--array=0-19", "--name=chat"]
        )
        place.until("four replicas", lambda: tasks(place, array) == 4)
        batch = [place.submit(1, "sleep", "3600", options=["--time=60"]) for _ in range(2)]
        settle(place, 6)
        assert tasks(place, array) == 4
        answers[0] = line(LOW).encode()
        place.until(
            "batch jobs", lambda: {place.state(j) for j in batch} == {"RUNNING"}, within_s=240
        )
        assert 1 <= tasks(place, array) <= 2
        assert throttle(place, array) == "1"
