"""Carbyne: the fair world, who yields, and that nobody ends much later than in the fair world."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

import build
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pasts import past_columns
from policy_runs import Work, run

from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.carbyne import Carbyne, FairWorld, fair_world

NOW_S = build.NOW_S


def fair_ends(works: Sequence[Work], gpus: float) -> dict[int, float]:
    """When each ends if GPUs can be divided: every tenant as much, as far as its jobs want it."""
    left = {w.job_id: w.size_s for w in works}
    ends: dict[int, float] = {}
    now_s = 0.0
    while len(ends) < len(works):
        live = [w for w in works if w.submit_s <= now_s + 1e-9 and w.job_id not in ends]
        wants: dict[str, float] = {}
        for w in live:
            wants[w.account] = wants.get(w.account, 0.0) + w.gpus
        room, part = gpus, {}
        for i, account in enumerate(sorted(wants, key=lambda a: wants[a])):
            gets = min(wants[account], room / (len(wants) - i))
            part[account] = gets / wants[account]
            room -= gets
        coming = [w.submit_s for w in works if w.submit_s > now_s + 1e-9]
        step_s = min([s - now_s for s in coming] + [left[w.job_id] / part[w.account] for w in live])
        now_s += step_s
        for w in live:
            left[w.job_id] -= part[w.account] * step_s
            if left[w.job_id] < 1e-6:
                ends[w.job_id] = now_s
    return ends


def world(works: Sequence[Work], gpus: float, now_s: float) -> FairWorld:
    """The fair world of *works* at *now_s*."""
    return fair_world(
        np.array([[w.gpus / gpus] for w in works]),
        np.array(["ab".index(w.account) for w in works]),
        np.array([w.submit_s for w in works]),
        np.array([w.size_s for w in works]),
        weight=np.ones(2),
        now_s=now_s,
        grain_s=1e-3,
    )


@settings(max_examples=60)
@given(
    jobs=st.lists(
        st.tuples(
            st.integers(0, 50), st.integers(1, 100), st.sampled_from([1, 2]), st.sampled_from("ab")
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_fair_world_equals_a_plain_one(jobs: list[tuple[int, int, int, str]]) -> None:
    """At the last arrival, when nobody is to come: within the steps that are taken together."""
    works = [
        Work(job_id=i, submit_s=float(s), size_s=float(p), gpus=g, account=a)
        for i, (s, p, g, a) in enumerate(jobs)
    ]
    found = world(works, 4.0, max(w.submit_s for w in works))
    ends = fair_ends(works, 4.0)

    for w in works:
        begun = found.finish_s[w.job_id] - w.submit_s
        assert begun == pytest.approx(ends[w.job_id] - w.submit_s, rel=0.06, abs=1.0)


def test_the_fair_world_knows_how_far_everybody_is() -> None:
    """One GPU, two tenants: the first alone for 10 s, then halves for 20 s."""
    works = [
        Work(job_id=0, submit_s=0.0, size_s=100.0, account="a"),
        Work(job_id=1, submit_s=10.0, size_s=30.0, account="b"),
    ]
    found = world(works, 1.0, 30.0)

    assert found.served_s.tolist() == pytest.approx([20.0, 10.0])
    assert found.part.tolist() == pytest.approx([0.5, 0.5])
    # The second ends after 40 s more, the first then has 60 s left to itself.
    assert found.finish_s.tolist() == pytest.approx([130.0, 70.0])


def test_many_events_are_taken_together_and_little_is_lost() -> None:
    """Three hundred jobs one second apart are gone through in few steps."""
    works = [Work(job_id=i, submit_s=float(i), size_s=3.0, account="ab"[i % 2]) for i in range(300)]
    found, ends = world(works, 2.0, 299.0), fair_ends(works, 2.0)
    off = [abs(found.finish_s[i] - ends[i]) for i in range(300)]
    assert max(off) < 0.06 * 300


# ---- the order --------------------------------------------------------------------------------


def snapshot(left_s: Sequence[float], waited_s: float, *, gpus: float = 1.0) -> Snapshot:
    """Waiting jobs of one tenant on one node of one GPU, submitted *waited_s* ago."""
    rows = [build.pending(i, gpus) for i in range(1, len(left_s) + 1)]
    memory = {"first_submit_s": {r.job_id: NOW_S - waited_s for r in rows}}
    snap = build.snapshot(build.observed(rows, nodes=[1.0]), memory=memory)
    return dataclasses.replace(snap, left_s=np.array(left_s))


POLICY = Carbyne(lease_s=10.0, left_tiers_s=(50.0, 150.0))


def test_those_that_need_all_gpus_together_press_first_due_first() -> None:
    """Shares of a third: with 40, 100 and 200 s left they end after 120, 240 and 340 s.

    None has to run now, but together they need the GPU from the first second on.
    """
    order = POLICY.order(snapshot([200.0, 40.0, 100.0], 0.0))
    assert order.tier.tolist() == [6, 6, 6]
    assert np.argsort(order.key).tolist() == [1, 2, 0]


def test_with_room_to_spare_the_nearest_to_completion_go_first() -> None:
    """Beside a tenant that is over and had more than its share, there is slack for all."""
    snap = snapshot([200.0, 40.0, 100.0], 1.0)
    past = past_columns([400.0] * 9, submit_s=NOW_S - 2, end_s=NOW_S - 0.5, accounts=("elsewhere",))
    snap = dataclasses.replace(snap, past=past)
    order = POLICY.order(snap)
    assert order.tier.tolist() == [9, 7, 8]
    assert np.argsort(order.key).tolist() == [1, 2, 0]
    # A lease may have to end first: none waits longer than to a lease before it must run.
    assert (Carbyne(lease_s=100_000.0).order(snap).tier < 7).all()


def test_a_job_without_an_estimate_yields_nothing() -> None:
    """It presses while it is behind its fair share, and no more when it has had it."""
    behind = snapshot([math.inf], 100.0)
    ahead_memory = dataclasses.replace(behind.memory, ran_s=np.array([150.0]))
    ahead = dataclasses.replace(behind, memory=ahead_memory)

    # Ten leases behind; then fifty seconds ahead of a fair part of 1: 50 s until it has waited.
    assert POLICY.order(behind).tier.tolist() == [0]
    order = POLICY.order(ahead)
    assert order.tier.tolist() == [9]
    assert POLICY.next_change_s(ahead, order, np.zeros(1, np.bool_)) == pytest.approx(NOW_S + 50)


def test_of_equally_near_jobs_the_one_that_packs_best_goes_first() -> None:
    """Nearly all GPUs are taken and no memory: who asks for memory uses what is free."""
    rows = [
        build.running(1, 3, mem_mb=0),
        build.pending(2, 1, mem_mb=10),
        build.pending(3, 1, mem_mb=900),
    ]
    snap = build.snapshot(build.observed(rows, nodes=[4.0]))
    order = POLICY.order(snap)
    assert order.tie[2] < order.tie[1]
    # By hand: 1/4 x 1/4 of the GPUs, 1/64 x 63/64 of the CPUs, .9 x 1 of the memory.
    assert order.tie[2] == pytest.approx(-(1 / 16 + 63 / 64**2 + 0.9))


def test_no_jobs_and_no_gpus_are_no_trouble() -> None:
    """An order of nobody; and one of jobs that can run nowhere."""
    assert len(POLICY.order(build.snapshot(build.observed([]))).key) == 0
    nowhere = POLICY.order(snapshot([10.0], 5.0, gpus=2.0))
    assert nowhere.tier.tolist() == [9]
    assert nowhere.key.tolist() == [math.inf]


# ---- whole runs -------------------------------------------------------------------------------


def single_gpu_jobs(seed: int) -> list[Work]:
    """Eight jobs of one GPU of two tenants."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    works, at_s = [], 1.0
    for i in range(1, 9):
        at_s += draw.expovariate(1 / 40)
        size_s = draw.choice([40.0, 80.0, 160.0, 400.0])
        works.append(Work(job_id=i, submit_s=at_s, size_s=size_s, account=draw.choice("ab")))
    return works


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_no_job_ends_more_than_a_lease_later_than_in_the_fair_world(seed: int) -> None:
    """Jobs of one GPU on three: what can be divided can nearly be had."""
    policy = Carbyne(lease_s=20.0, left_tiers_s=(60.0, 120.0, 240.0))
    ends = fair_ends(single_gpu_jobs(seed), 3.0)
    for w in run(policy, single_gpu_jobs(seed), 3.0):
        assert w.end_s <= ends[w.job_id] + 20.0 + 2.0


def test_on_one_gpu_jobs_are_done_sooner_on_average_than_in_the_fair_world() -> None:
    """Equal jobs that come together: not all at the end, at 401 s."""
    works = [Work(job_id=i, submit_s=1.0, size_s=100.0, account="a") for i in (1, 2, 3, 4)]
    done = run(Carbyne(lease_s=10.0, left_tiers_s=(50.0,)), works, 1.0)

    assert np.mean([w.end_s for w in done]) < 300
    assert max(w.end_s for w in done) == pytest.approx(401.0)
