"""Slurm preempts by itself: the SiteFactors that make it do so for a better tier, and only then."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
from fake_cluster import FakeCluster
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from native_qos import NativeQos, WithinCluster

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide, engine_of
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.settings import External, Native, Preemption, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.plan import Plan, Requeue, Reserve, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy, Preempts
from slurm_dl.policies.discrete_las import DiscreteLas
from tests.build import cycle, observed, pending, running, snapshot, texts

B = 1000
EDGES_GPU_S = (100.0, 200.0)
POLICY = DiscreteLas(thresholds_gpu_s=EDGES_GPU_S)
LIMITS = Preemption(min_quantum_s=10, cooldown_s=10, limit_reserve_s=600, max_preemptions=3)
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    band_width=B,
    preemption=LIMITS,
    mode=Native("dl"),
)


class Patient(DiscreteLas):
    """Orders by tiers and preempts nobody."""

    preempts: ClassVar[Preempts] = "never"


OFF = dataclasses.replace(SETTINGS, preemption=dataclasses.replace(LIMITS, enabled=False))
HIGHEST = 3 * B + B // 2


def queue(
    rows: Sequence[JobRow],
    *,
    attained: Mapping[int, float] | None = None,
    written: Mapping[int, int] | None = None,
    outside: Sequence[int] = (),
    strangers: Sequence[int] = (),
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """*rows* in QOS dl but for those *outside*; all have opted in but for *strangers*.

    Priorities are the written SiteFactors, as Slurm would have them.
    """
    factors = {r.job_id: 0 for r in rows} | dict(written or {})
    rows = [
        r if r.priority != 1 else dataclasses.replace(r, priority=1 + factors[r.job_id])
        for r in rows
    ]
    ids = [r.job_id for r in rows]
    qos = texts(qos={j: "normal" if j in outside else "dl" for j in ids})
    seen = observed(rows, opted_in=[j for j in ids if j not in strangers], texts=qos)
    return snapshot(seen, memory={"attained_gpu_s": attained or {}, "site_factor": factors}, **more)


def writes(plan: Plan) -> dict[int, int]:
    """The SiteFactors of a plan, in its order."""
    return {a.job_id: a.value for a in plan.actions if isinstance(a, SetSiteFactor)}


def test_running_jobs_have_half_a_band_more() -> None:
    """Waiting and running jobs of each tier, by the table in the module."""
    snap = queue(
        [pending(1), running(2), pending(3), running(4), running(5)],
        attained={3: 150, 4: 150, 5: 250},
    )

    assert writes(decide(snap, POLICY, SETTINGS)) == {
        1: 3 * B,
        2: 3 * B + B // 2,
        3: 2 * B,
        4: 2 * B + B // 2,
        5: B + B // 2,
    }


def test_a_job_outside_the_qos_has_its_tier_alone() -> None:
    """Slurm does not preempt it, so nothing is written for its protection."""
    snap = queue([running(1), running(2)], outside=[1])

    assert writes(decide(snap, POLICY, SETTINGS))[1] == 3 * B


@pytest.mark.parametrize(
    ("row", "more", "because"),
    [
        (running(1), {"strangers": [1]}, "not opted in"),
        (running(1, requeueable=False), {}, "may not requeue"),
        (running(1, restarts=3), {}, "3 times or more"),
    ],
)
def test_who_is_protected_is_exceeded_by_nobody(
    row: JobRow, more: dict[str, Any], because: str
) -> None:
    """A limit that Slurm does not know of is kept by a SiteFactor above all that wait."""
    snap = queue([row, pending(2)], attained={1: 500}, **more)

    cycle = cycle_of(snap)

    write = next(a for a in cycle.actions if isinstance(a, SetSiteFactor) and a.job_id == 1)
    assert write.value == HIGHEST
    assert because in write.why


@pytest.mark.parametrize("state", [JobState.CONFIGURING, JobState.SUSPENDED])
@pytest.mark.parametrize("strangers", [[], [1]])
def test_who_holds_gpus_and_does_not_run_is_exceeded_by_nobody(
    state: JobState, strangers: list[int]
) -> None:
    """Slurm preempts suspended and configuring jobs too, whether they have opted in or not."""
    held = dataclasses.replace(running(1), state=state)
    snap = queue([held, pending(2)], attained={1: 500}, strangers=strangers)

    assert writes(cycle_of(snap))[1] == HIGHEST


def cycle_of(snap: Snapshot, settings: Settings = SETTINGS, policy: Policy = POLICY) -> Plan:
    """The plan for *snap* as the loop makes it."""
    return decide(engine_of(settings).recount(snap), policy, settings)


def test_a_cooldown_longer_than_the_quantum_is_kept() -> None:
    """Slurm's own exempt time is the minimum quantum; beyond that the SiteFactor protects."""
    longer = dataclasses.replace(LIMITS, cooldown_s=100)
    settings = dataclasses.replace(SETTINGS, preemption=longer)
    young = queue([running(1, ran_s=50, restarts=1)], attained={1: 500})
    old = queue([running(1, ran_s=150, restarts=1)], attained={1: 500})

    assert writes(cycle_of(young, settings)) == {1: HIGHEST}
    assert writes(cycle_of(young)) == {1: B + B // 2}
    assert writes(cycle_of(old, settings)) == {1: B + B // 2}


@pytest.mark.parametrize(
    ("settings", "policy"),
    [(OFF, POLICY), (SETTINGS, Patient(thresholds_gpu_s=EDGES_GPU_S))],
    ids=["off", "never"],
)
def test_nobody_is_exceeded_where_nobody_may_be_preempted(
    settings: Settings, policy: Policy
) -> None:
    """With preemption off, or a policy that preempts nobody."""
    snap = queue([running(1), running(2), pending(3)], attained={1: 500})
    plan = decide(snap, policy, settings)

    found = writes(plan)
    assert min(found[1], found[2]) >= found[3] + B // 2
    assert {found[1], found[2]} == {HIGHEST}


def test_notes_say_what_slurm_may_do() -> None:
    """For each waiting job, as far as we know."""
    rows = [pending(1), pending(2), pending(3), running(4), pending(5, 0)]
    snap = queue(rows, attained={3: 500, 4: 150}, outside=[2])
    plan = decide(snap, POLICY, SETTINGS)

    assert "may preempt for it any of 1 running" in plan.notes[JobId(1)]
    assert "jobs of QOS dl only" in plan.notes[JobId(2)]
    assert "no job that it may displace" in plan.notes[JobId(3)]
    assert "no GPU" in plan.notes[JobId(5)]
    assert "switched off" in decide(snap, POLICY, OFF).notes[JobId(1)]


def test_why_speaks_of_slurm() -> None:
    """A restart may be the job's own doing, and outside the QOS nobody takes anything."""
    snap = queue([running(1, restarts=2), running(2)], outside=[2])
    plan = cycle_of(snap)
    cycle = Cycle(
        dataclasses.replace(
            snap, memory=dataclasses.replace(snap.memory, preemptions=snap.jobs.restarts)
        ),
        plan,
        acting=True,
        settings=SETTINGS,
    )

    assert "It has been put back into the queue 2 times." in why(cycle, POLICY, JobId(1))
    assert any("not in QOS dl" in s for s in why(cycle, POLICY, JobId(2)))


JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "waits": st.booleans(),
            "attained": st.sampled_from([0.0, 50.0, 150.0, 250.0]),
            "inside": st.booleans(),
            "opted": st.sampled_from([True, True, False]),
            "restarts": st.sampled_from([0, 0, 1, 3]),
            "written": st.sampled_from([0, B, B + B // 2, 2 * B, 3 * B, 3 * B + B // 2]),
        }
    ),
    min_size=1,
    max_size=12,
)
Drawn = list[dict[str, Any]]


def drawn(jobs: Drawn) -> Snapshot:
    """A snapshot of drawn jobs."""
    numbered = list(enumerate(jobs, start=1))
    return queue(
        [
            pending(i, restarts=j["restarts"]) if j["waits"] else running(i, restarts=j["restarts"])
            for i, j in numbered
        ],
        attained={i: j["attained"] for i, j in numbered},
        written={i: j["written"] for i, j in numbered},
        outside=[i for i, j in numbered if not j["inside"]],
        strangers=[i for i, j in numbered if not j["opted"]],
    )


def tier_of(job: Mapping[str, Any]) -> int:
    """The tier by the paper's rule, not by our code."""
    return sum(job["attained"] >= edge for edge in EDGES_GPU_S)


def may_displace(waiting: Mapping[str, Any], held: Mapping[str, Any]) -> bool:
    """Whether Slurm may preempt *held* for *waiting*."""
    may_give_way = held["opted"] and held["restarts"] < LIMITS.max_preemptions
    return bool(waiting["opted"] and may_give_way and tier_of(waiting) < tier_of(held))


def pairs(jobs: Drawn) -> list[tuple[int, int]]:
    """Ids of a waiting and a running job, both inside the QOS."""
    numbered = list(enumerate(jobs, start=1))
    return [
        (p, r)
        for p, one in numbered
        for r, other in numbered
        if one["waits"] and not other["waits"] and one["inside"] and other["inside"]
    ]


@hypothesis_settings(deadline=None, max_examples=200)
@given(jobs=JOBS, data=st.data())
def test_only_a_better_tier_exceeds_a_running_job(jobs: Drawn, data: st.DataObject) -> None:
    """Whatever the other factors add, short of half a band."""
    factors = {i: j["written"] for i, j in enumerate(jobs, start=1)}
    factors |= writes(cycle_of(drawn(jobs)))
    others = data.draw(st.lists(st.integers(0, B // 2 - 1), min_size=12, max_size=12))

    for p, r in pairs(jobs):
        exceeds = factors[p] + others[p - 1] > factors[r] + others[r - 1]
        assert exceeds == may_displace(jobs[p - 1], jobs[r - 1])


@hypothesis_settings(deadline=None, max_examples=200)
@given(jobs=JOBS)
def test_no_write_lets_a_wrong_job_be_displaced(jobs: Drawn) -> None:
    """Slurm may look between any two writes, and the writes may end after any of them."""
    factors = {i: j["written"] for i, j in enumerate(jobs, start=1)}
    states = [factors]
    for job_id, value in writes(cycle_of(drawn(jobs))).items():
        states.append(states[-1] | {job_id: value})
    wrong = [
        {
            (p, r)
            for p, r in pairs(jobs)
            if state[p] > state[r] and not may_displace(jobs[p - 1], jobs[r - 1])
        }
        for state in states
    ]

    assert all(after <= before for before, after in pairwise(wrong))


@hypothesis_settings(deadline=None, max_examples=100)
@given(jobs=JOBS)
def test_nothing_is_written_twice(jobs: Drawn) -> None:
    """Once all is as it should be there is no write."""
    after = [dict(j) for j in jobs]
    for job_id, value in writes(cycle_of(drawn(jobs))).items():
        assert value != jobs[job_id - 1]["written"]
        after[job_id - 1]["written"] = value

    assert writes(cycle_of(drawn(after))) == {}


def test_what_must_fall_falls_outside_the_window_too() -> None:
    """A requeued job brings the SiteFactor of a running one back into the queue."""
    one = dataclasses.replace(SETTINGS, window=1)
    snap = queue([pending(1), pending(2), pending(3)], written={3: 3 * B + B // 2})

    assert list(writes(decide(snap, POLICY, one))) == [3, 1]


def test_a_lost_ledger_is_noticed_by_the_priority() -> None:
    """What we do not remember having written and Slurm counts all the same is taken back."""
    one = dataclasses.replace(SETTINGS, window=1)
    rows = [pending(1), pending(2), pending(3, priority=3 * B + B // 2)]

    assert list(writes(decide(queue(rows), POLICY, one))) == [3, 1]


# With a cluster that preempts by itself, over time.

SHARE = Contract(grace_s=20)


def daemon(cluster: FakeCluster, settings: Settings, ledger: Ledger, policy: Policy) -> Cycle:
    """One cycle that acts."""
    return cycle(cluster, ledger, policy, settings)


@pytest.mark.parametrize("on_signal", ["save", "ignore", "requeue_itself"])
def test_a_whole_life(on_signal: Any) -> None:  # noqa: ANN401
    """Slurm preempts for better tiers alone, outside the quantum, and service is counted right."""
    cluster = WithinCluster(nodes=2, gpus=4, within=NativeQos(exempt_s=12, most_age=B // 2 - 1))
    policy = DiscreteLas(thresholds_gpu_s=(100.0, 400.0))
    ledger = Ledger(MemoryStore())
    wrote = 0
    for look in range(280):
        if look % 10 == 0 and look < 60:
            cluster.submit(4, work_s=40 + look, contract=SHARE, qos="dl", on_signal=on_signal)
        cluster.advance(2)
        wrote += len(daemon(cluster, SETTINGS, ledger, policy).done)

    assert cluster.displaced
    assert {type(a) for a in cluster.applied} == {SetSiteFactor}
    assert all(d.ran_s >= 12 for d in cluster.displaced)
    runs = 0
    for job in cluster.jobs.values():
        assert job.state is JobState.COMPLETED or on_signal == "ignore"
        row = int(ledger.service.rows_of(np.array([job.job_id]))[0])
        if job.state is JobState.COMPLETED:
            assert ledger.service.attained_gpu_s[row] == pytest.approx(job.gpu_s, abs=0.01)
        runs += len(job.runs)
    # Up when it starts, down when it waits again, and its two changes of tier.
    assert wrote <= 3 * runs + 4 * len(cluster.jobs)


def test_equals_never_displace_each_other() -> None:
    """Jobs of one tier do not thrash, however long some of them have waited."""
    cluster = WithinCluster(nodes=1, gpus=4, within=NativeQos(exempt_s=5, most_age=B // 2 - 1))
    ledger = Ledger(MemoryStore())
    for _ in range(3):
        cluster.submit(4, work_s=200, contract=SHARE, qos="dl")
    for _ in range(320):
        cluster.advance(2)
        daemon(cluster, SETTINGS, ledger, DiscreteLas(thresholds_gpu_s=(1e9,)))

    assert cluster.displaced == []
    assert all(len(j.runs) == 1 for j in cluster.jobs.values())


def test_without_half_a_band_they_would() -> None:
    """The cluster does what Slurm does: the test above can fail."""
    cluster = WithinCluster(nodes=1, gpus=4, within=NativeQos(exempt_s=5))
    for _ in range(3):
        cluster.submit(4, work_s=200, contract=SHARE, qos="dl")
    cluster.advance(60)

    assert cluster.displaced


def test_somebody_else_reset_them() -> None:
    """After 'release-all' running jobs are put right before any waiting one is raised."""
    cluster = WithinCluster(nodes=1, gpus=4, within=NativeQos(exempt_s=5, age_per_s=0))
    ledger = Ledger(MemoryStore())
    first = cluster.submit(4, work_s=500, contract=SHARE, qos="dl")
    policy = DiscreteLas(thresholds_gpu_s=(1e9,))
    for _ in range(4):
        cluster.advance(2)
        daemon(cluster, SETTINGS, ledger, policy)
    cluster.jobs[first].site_factor = 0
    late = cluster.submit(4, work_s=10, contract=SHARE, qos="dl")
    cluster.applied.clear()

    daemon(cluster, SETTINGS, ledger, policy)

    assert [a.job_id for a in cluster.applied if isinstance(a, SetSiteFactor)] == [first, late]


@pytest.mark.parametrize("signalled", [False, True])
def test_hand_overs_come_to_their_end_after_a_switch(*, signalled: bool) -> None:
    """Nobody signalled: undone. Somebody signalled: gone through with, and nothing new begun."""
    cluster = FakeCluster(nodes=1, gpus=4)
    ledger = Ledger(MemoryStore())
    external = dataclasses.replace(
        SETTINGS,
        mode=External(),
        preemption=dataclasses.replace(LIMITS, limit_reserve_s=0),
    )
    old = cluster.submit(4, work_s=900, contract=SHARE, qos="dl")
    for _ in range(60):
        cluster.advance(2)
        daemon(cluster, external, ledger, POLICY)
    new = cluster.submit(4, work_s=20, contract=SHARE, qos="dl")
    cluster.advance(2)
    if not signalled:
        cluster.fail = [Reserve]
    daemon(cluster, external, ledger, POLICY)
    assert [h.signalled for h in ledger.handovers] == [signalled]
    # Its place is the hand-over's, until that is over.
    lowered = cluster.jobs[old].site_factor
    daemon(cluster, SETTINGS, ledger, POLICY)
    assert cluster.jobs[old].site_factor == lowered == 0

    for _ in range(40):
        cluster.advance(2)
        daemon(cluster, SETTINGS, ledger, POLICY)

    assert ledger.handovers == ()
    assert cluster.reservations == {}
    assert any(isinstance(a, Requeue) for a in cluster.applied) is signalled
    assert cluster.jobs[old].restarts == signalled
    assert cluster.jobs[new].state is (JobState.COMPLETED if signalled else JobState.PENDING)
    assert cluster.jobs[old].site_factor == B + B // 2
