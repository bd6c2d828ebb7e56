"""Policies that promise deadlines on a real Slurm, beside those that promise nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeSandbox
from resized import SETTINGS, held
from schedd import Schedd, schedd_in

from slurm_dl.model.promise import Promise
from slurm_dl.sandbox import Sandbox
from slurm_dl.sandbox.spec import SandboxNodes, SandboxSpec

pytestmark = [pytest.mark.slurm, pytest.mark.sixth]

ONE = SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=4, gpu_type="a100"),), nodes_per_leaf=0)

RIGID = ("--no-preempt", "--signal=USR1@10")
SHARES = {"share": 1, "account_share": 1}
SCALES = 'sleep "$(({} / SLURM_GPUS_ON_NODE))"'
"""A job of so many seconds on one GPU."""


def answer(place: Schedd, job: str) -> Promise:
    """The answer to the deadline of *job*, as soon as there is one."""
    place.until("an answer", lambda: job in place.promises())
    return place.promises()[job]


def at(due_s: float) -> str:
    """The option for this deadline, whole epoch seconds."""
    return time.strftime("--by=%Y-%m-%dT%H:%M:%S", time.localtime(due_s))


def end_s(place: Schedd, job: str) -> float:
    """End of a job that is over, epoch seconds; inf if it is not."""
    if place.state(job) != "COMPLETED":
        return float("inf")
    return time.mktime(time.strptime(place.job(job, "EndTime")[0], "%Y-%m-%dT%H:%M:%S"))


# --- one refusal, three promises, a dead node ---------------------------------------------------

LEASE_S = 45
"""The jobs with promises need two of them, and so the whole time from the next one on."""

ADMITTING: dict[str, dict[str, Any]] = {
    "chronus": {"lease_length_s": LEASE_S, "restart_s": 0, "margin": 0},
    "elasticflow": {"slot_s": LEASE_S},
}
OTHERS: dict[str, dict[str, Any]] = {"edf": {"admits": False}, "fifo": {}}


@pytest.mark.full("waits for a deadline, two to three minutes for each policy")
@pytest.mark.parametrize("policy", [*ADMITTING, *OTHERS])
def test_who_refuses_one_deadline_keeps_three_when_a_node_dies(
    sandbox: Sandbox, short_directory: Path, policy: str
) -> None:
    """Preemptible jobs hold all nodes. Three jobs want a node each, then one three, due first.

    Under EDF without admission the last one starts at once: the other three share a node until it
    is too late for two of them. FIFO takes no GPUs back.
    """
    with schedd_in(sandbox, short_directory) as place:
        place.configure(
            policy={"order": policy, "parameters": ADMITTING.get(policy) or OTHERS[policy]},
            deadlines={**SHARES, "lead_s": 15},
            ranking={"overdue_share": 0},
            daemon={"nodes_every_s": 1},
        )
        toys = [place.toy(4, 5000, options=["--time=10"]) for _ in range(4)]
        for toy in toys:
            place.until_state(toy, "RUNNING")
        place.until("a lease", lambda: time.time() % LEASE_S < 1)
        due_s = (int(time.time()) // LEASE_S + 3) * LEASE_S
        asks = [at(due_s), "--time=1", *RIGID]
        three = [place.submit(4, "sleep", "45", options=asks) for _ in range(3)]
        asks = [at(due_s - 1), "--time=2", *RIGID]
        large = place.submit(12, "sleep", "100", options=asks)
        place.start()
        if policy in ADMITTING:
            told = [answer(place, job).says for job in (*three, large)]
            assert told == ["yes", "yes", "yes", "no"]

        place.until("the node", lambda: time.time() > due_s - 85, 100)
        runs = [job for job in three if place.state(job) == "RUNNING"]
        dead = place.job(runs[0], "NodeList")[0] if runs else "n1"
        place.box.kill_daemon(f"slurmd-{dead}")
        place.box.run(["scontrol", "update", f"NodeName={dead}", "State=DOWN", "Reason=test"])
        place.until("the deadline", lambda: time.time() > due_s, 100)

        kept = [end_s(place, job) <= due_s for job in three]
        if policy not in ADMITTING:
            assert not all(kept)
            return
        assert kept == [True] * 3
        assert len(runs) == 3
        assert [place.job(job, "Restarts")[0] for job in runs] == ["1", "0", "0"]


# --- elasticflow: sizes -----------------------------------------------------------------------


def elastic(place: Schedd, due_s: float, work_s: int, minutes: int, *options: str) -> str:
    """A job of one, two or four GPUs with a deadline; its id."""
    sizes = ["--sizes=1,2,4", f"--time={minutes}", at(due_s), *options]
    return place.submit(1, "sh", "-c", SCALES.format(work_s), options=sizes)


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    with schedd_in(make_sandbox(ONE), short_directory) as daemon:
        yield daemon


def flow(place: Schedd, lead_s: int, **parameters: float) -> None:
    """Start a daemon under ElasticFlow."""
    place.configure(
        **SETTINGS,
        policy={"order": "elasticflow", "parameters": parameters},
        deadlines={**SHARES, "lead_s": lead_s},
        ranking={"overdue_share": 0},
    )
    place.start()


def test_an_earlier_deadline_gets_a_larger_size(place: Schedd) -> None:
    """Two jobs of a minute on one GPU, and preemptible ones on all four: one, and two, give way."""
    flow(place, 10, slot_s=1)
    toys = [place.toy(1, 5000, options=["--time=60"]) for _ in range(4)]
    for toy in toys:
        place.until_state(toy, "RUNNING")
    now_s = int(time.time())
    due_s = {gpus: now_s + ahead_s for gpus, ahead_s in ((1, 80), (2, 50))}
    jobs = {gpus: elastic(place, at_s, 24, 1, *RIGID) for gpus, at_s in due_s.items()}
    for gpus, job in jobs.items():
        promise = answer(place, job)
        assert (promise.says, promise.gpus) == ("yes", gpus)
        assert held(place, job) == (0, 0)
    for gpus, job in jobs.items():
        place.until("it to run", lambda: any(held(place, job)))  # noqa: B023
        assert held(place, job) == (1, gpus)
    for gpus, job in jobs.items():
        place.until_state(job, "COMPLETED")
        assert end_s(place, job) <= due_s[gpus]


@pytest.mark.full("waits for two deadlines")
def test_sizes_change_for_a_promise_and_all_are_in_time(place: Schedd) -> None:
    """A job alone has more GPUs than its plan, until half of them are another's."""
    flow(place, 10, once=False, slot_s=15)
    due_s = int(time.time()) + 120
    grown = place.toy(1, 360, options=["--sizes=1,2,4", "--time=2", at(due_s + 120)])
    assert answer(place, grown).says == "yes"
    place.until("all GPUs", lambda: held(place, grown) == (1, 4), 90)
    due = place.submit(2, "sleep", "45", options=[at(due_s), "--time=1", *RIGID])
    assert answer(place, due).says == "yes"
    place.until_state(due, "RUNNING", within_s=90)
    place.until("what is left", lambda: held(place, grown)[1] in (1, 2), 30)
    place.until_state(due, "COMPLETED", within_s=60)
    assert end_s(place, due) <= due_s
    place.until("all GPUs again", lambda: held(place, grown) == (1, 4), 60)
    place.until_state(grown, "COMPLETED", within_s=120)
    assert end_s(place, grown) <= due_s + 120
    assert place.job(grown, "Restarts") == ["2"]
