"""Circuit breakers: when each trips, what counts for it, what a trip stops, and how it ends."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import build
import numpy as np
import pytest
from fake_cluster import FakeCluster
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from superseding import supersede

from slurm_dl.config.preemption_section import BreakersSection
from slurm_dl.engine.circuit_breakers import (
    gpus_taken,
    managed_gpus,
    restarts_judged,
    tripped,
    trips,
)
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.past_reasons import moment
from slurm_dl.engine.settings import (
    Breakers,
    Defragment,
    External,
    Native,
    Placement,
    Preemption,
    Settings,
)
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import BREAKERS, Breaker, BreakerName, Fate, Restart, Taken
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover, Run, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.plan import (
    OpenHandover,
    Plan,
    Requeue,
    SetSiteFactor,
    Signal,
    TripBreaker,
)
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.discrete_las import DiscreteLas

NOW_S = build.NOW_S
POLICY = DiscreteLas(thresholds_gpu_s=(100.0,))
LIMITS = Preemption(
    beneficiaries="all", commitment="ignored", min_quantum_s=0, cooldown_s=0, limit_reserve_s=0
)
QOS = "dl"


def settings(*, mode: External | Native | None = None, **breakers: float) -> Settings:
    """Settings with these breakers and no other."""
    return Settings(
        partitions=frozenset({"gpu"}),
        preemption=LIMITS,
        mode=mode or External(),
        breakers=Breakers(**breakers),  # type: ignore[arg-type] # whole numbers are floats, too
    )


def taken(*gpus: float, ago_s: float = 60.0, handover: int = 1) -> tuple[Taken, ...]:
    """GPUs that were taken back so long ago."""
    return tuple(
        Taken(
            at_s=NOW_S - ago_s,
            job_id=JobId(1000 + i),
            gpus=n,
            notice_s=5.0,
            handover_id=HandoverId(handover),
        )
        for i, n in enumerate(gpus)
    )


def restart(
    job_id: int,
    fate: Fate = "open",
    *,
    ago_s: float = 60.0,
    handover: int = 1,
    **more: Any,  # noqa: ANN401
) -> Restart:
    """What became of a job, as was seen so long ago."""
    values = {"gpus": 1.0, "requeued_s": NOW_S - ago_s - 100, **more}
    return Restart(
        job_id=JobId(job_id),
        restarts=0,
        handover_id=HandoverId(handover),
        fate=fate,
        settled_s=0.0 if fate == "open" else NOW_S - ago_s,
        **values,
    )


def under_way(
    number: int, gpus: float, state: VictimState = VictimState.SIGNALLED, job: int = 1
) -> Handover:
    """A hand-over with one victim, for job 9."""
    run = Run(JobId(job), NOW_S - 5000, 0)
    victim = Victim(run=run, gpus=gpus, contract=Contract(), state=state, signalled_s=NOW_S - 5)
    return Handover(
        handover_id=HandoverId(number),
        opened_s=NOW_S - 10,
        beneficiaries=(JobId(9),),
        victims=(victim,),
        nodes=("n1",),
    )


def quiet(**more: Any) -> Snapshot:  # noqa: ANN401
    """Four nodes of 4 GPUs without a job."""
    return build.snapshot(build.observed([]), **more)


def contested(**more: Any) -> Snapshot:  # noqa: ANN401
    """Jobs 1 to 4 hold a node each and opted in; 11 to 14 wait for one each, and rank before."""
    rows = [build.running(i, 4) for i in range(1, 5)] + [build.pending(i, 4) for i in range(11, 15)]
    seen = build.observed(rows, held={i: {i - 1: 4} for i in range(1, 5)}, opted_in=[1, 2, 3, 4])
    old = dict.fromkeys(range(1, 5), 1000000.0)
    return build.snapshot(seen, memory={"attained_gpu_s": old, "ran_s": old}, **more)


def named(plan: Plan) -> list[BreakerName]:
    """The breakers that a plan trips."""
    return [a.breaker for a in plan.actions if isinstance(a, TripBreaker)]


def opened(plan: Plan) -> list[Handover]:
    """The hand-overs that a plan begins."""
    return [a.handover for a in plan.actions if isinstance(a, OpenHandover)]


# GPUs taken back within an hour.


@pytest.mark.parametrize(
    ("name", "bound"),
    [("gpus_per_hour", {"gpus_per_hour": 8}), ("cluster_share", {"cluster_share": 0.5})],
)
def test_it_trips_above_the_bound_and_not_at_it(name: str, bound: dict[str, float]) -> None:
    """8 of 16 GPUs are within the bound, a ninth is not."""
    at = quiet(taken=taken(4, 4))
    above = quiet(taken=taken(4, 4, 1))

    assert trips(at, settings(**bound)) == ()
    (trip,) = trips(above, settings(**bound))
    assert trip.breaker == name
    assert trip.at_s == NOW_S
    assert "9" in trip.why
    assert "above the bound of" in trip.why


def test_what_is_being_taken_back_counts_and_what_is_an_hour_ago_does_not() -> None:
    """Victims count from the begin of their hand-over, once each."""
    bound = settings(gpus_per_hour=8)
    going = quiet(taken=taken(4, 1), handovers=[under_way(2, 4)])
    gone = quiet(taken=taken(4, 4), handovers=[under_way(2, 4, VictimState.GONE)])
    old = quiet(taken=(*taken(100, ago_s=3600), *taken(8, ago_s=3599)))

    (victim,) = under_way(2, 4).victims
    shrinks = dataclasses.replace(
        under_way(2, 4), victims=(dataclasses.replace(victim, then=Shape(1, 1), gives=3.0),)
    )

    assert gpus_taken(quiet(handovers=[shrinks]), bound, "gpus_per_hour") == 3
    assert [t.breaker for t in trips(going, bound)] == ["gpus_per_hour"]
    assert trips(quiet(taken=taken(4, 1)), bound, [shrinks]) == ()
    assert trips(quiet(taken=taken(4, 2)), bound, [shrinks]) != ()
    assert trips(gone, bound) == ()
    assert trips(old, bound) == ()


def test_the_share_is_of_the_managed_partitions() -> None:
    """Nodes of others do not count, nodes that are down do."""
    node_in = np.array([[True, True, False, False], [False, True, True, True]])
    seen = build.observed([], node_in=node_in, columns={"up": [False] * 4})
    snap = build.snapshot(seen, taken=taken(5))

    assert managed_gpus(snap) == 8
    assert trips(snap, settings(cluster_share=0.625)) == ()
    assert [t.breaker for t in trips(snap, settings(cluster_share=0.6))] == ["cluster_share"]
    nothing = dataclasses.replace(snap, managed=np.zeros(2, dtype=np.bool_))
    assert trips(nothing, settings(cluster_share=0.1)) == ()


def test_a_bound_is_never_passed_by_what_is_begun() -> None:
    """The hand-over that would pass it is not begun, nor any other of that decision."""
    free = decide(contested(), POLICY, settings())
    within = decide(contested(), POLICY, settings(gpus_per_hour=16))
    passing = decide(contested(), POLICY, settings(gpus_per_hour=15))
    share = decide(contested(taken=taken(1)), POLICY, settings(cluster_share=1))

    assert len(opened(free)) == len(opened(within)) == 4
    assert named(within) == []
    assert (named(passing), opened(passing)) == (["gpus_per_hour"], [])
    assert "0 GPUs were taken back within an hour, and 16 more were to be" in _why(passing)
    assert (named(share), opened(share)) == (["cluster_share"], [])
    assert not [a for a in passing.actions if isinstance(a, Signal)]
    assert isinstance(passing.actions[0], TripBreaker), "it is to be written down first"


def _why(plan: Plan) -> str:
    return next(a.why for a in plan.actions if isinstance(a, TripBreaker))


def test_what_would_pass_a_bound_alone_trips_nothing() -> None:
    """One large job must not stop preemption for all others."""
    plan = decide(contested(), POLICY, settings(gpus_per_hour=3))

    assert (named(plan), opened(plan)) == ([], [])
    assert "a breaker allows 3 within an hour" in plan.notes[JobId(11)]


def test_breakers_that_are_off_change_nothing() -> None:
    """As in the simulator."""
    snap = contested(taken=taken(1000), restarts=tuple(restart(i, "failed") for i in range(50)))

    plan = decide(snap, POLICY, settings())

    assert named(plan) == []
    assert len(opened(plan)) == 4


# Restarts that fail.


def judged(bad: int, well: int, fate: Fate = "failed", **more: float) -> tuple[Restart, ...]:
    """So many of either kind."""
    return tuple(restart(100 + i, fate if i < bad else "well", **more) for i in range(bad + well))


def test_failed_restarts_trip_above_their_share_and_from_a_least_number_on() -> None:
    """Half is not more than half; three say nothing yet."""
    bound = settings(failed_share=0.5, failed_least=4)

    assert trips(quiet(restarts=judged(3, 3)), bound) == ()
    assert trips(quiet(restarts=judged(3, 0)), bound) == ()
    (trip,) = trips(quiet(restarts=judged(3, 2)), bound)
    assert trip.why == (
        "3 of 5 preempted jobs failed within 300 s of their restart: above the bound of 50%"
    )
    assert trip.jobs == (100, 101, 102)
    (trip,) = trips(quiet(restarts=judged(4, 0, "stuck")), bound)
    assert "were put aside by Slurm" in trip.why


def test_jobs_of_one_user_alone_do_not_trip_it() -> None:
    """Half of the least number count of each, the newest: it takes two users."""
    bound = settings(failed_share=0.5, failed_least=4)
    alone = judged(4, 0, uid=1001)
    good = tuple(restart(300 + i, "well", uid=1003 + i) for i in range(3))
    other = tuple(restart(200 + i, "failed", uid=1002) for i in range(2))

    assert trips(quiet(restarts=alone), bound) == ()
    assert trips(quiet(restarts=(*alone, *good)), bound) == ()
    (trip,) = trips(quiet(restarts=(*judged(2, 0, uid=1001), *other)), bound)
    assert trip.why.startswith("4 of 4 preempted jobs failed")
    assert trip.jobs == (100, 101, 200, 201)
    # 2 bad and 3 good: what a user's jobs did last counts, whichever way.
    came_back = tuple(restart(400 + i, "well", uid=1001, ago_s=30) for i in range(2))
    assert [r.job_id for r in restarts_judged(quiet(restarts=(*alone, *came_back)), bound)] == [
        400,
        401,
    ]
    assert trips(quiet(restarts=(*came_back, *alone, *other)), bound) == ()


def test_a_least_number_of_one_needs_one_user() -> None:
    """Where all jobs are one account's an admin may want that."""
    bound = settings(failed_share=0.5, failed_least=1)

    (trip,) = trips(quiet(restarts=judged(3, 0, uid=1001)), bound)
    assert trip.why.startswith("1 of 1 preempted jobs failed")


@pytest.mark.parametrize("fate", ["open", "unknown"])
def test_what_is_not_known_is_neither_good_nor_bad(fate: Fate) -> None:
    """Who waits for its turn or was cancelled moves the share in no direction."""
    bound = settings(failed_share=0.5, failed_least=4)
    others = tuple(restart(i, fate) for i in range(200, 220))

    assert trips(quiet(restarts=others), bound) == ()
    assert trips(quiet(restarts=(*others, *judged(3, 2))), bound) != ()
    assert trips(quiet(restarts=(*others, *judged(3, 3))), bound) == ()


def test_what_became_known_before_the_window_does_not_count() -> None:
    """Nor does what somebody else put back."""
    bound = settings(failed_share=0.5, failed_least=4, failed_window_s=600)

    assert trips(quiet(restarts=judged(4, 0, ago_s=599)), bound) != ()
    assert trips(quiet(restarts=judged(4, 0, ago_s=600)), bound) == ()
    assert trips(quiet(restarts=judged(4, 0, handover=0)), bound) == ()


# What a trip stops.

TRIPPED = Breaker(name="failed_restarts", tripped_s=NOW_S - 900, why="4 of 6 preempted jobs failed")


def test_while_one_has_tripped_nothing_new_is_begun() -> None:
    """Whatever the bounds say by then; and who waits is told."""
    plan = decide(contested(breakers=(TRIPPED,)), POLICY, settings())

    assert opened(plan) == []
    assert plan.notes[JobId(11)] == (
        "preemption is stopped by the breaker failed_restarts: 4 of 6 preempted jobs failed"
    )
    assert [a for a in plan.actions if isinstance(a, SetSiteFactor)], "the order goes on"


def test_a_breaker_that_has_tripped_does_not_trip_again() -> None:
    """One line in the ledger and in the audit log."""
    snap = quiet(restarts=judged(9, 0), taken=taken(99), breakers=(TRIPPED,))

    found = trips(snap, settings(failed_share=0.5, gpus_per_hour=8))

    assert [t.breaker for t in found] == ["gpus_per_hour"]


def test_a_hand_over_that_signalled_nobody_is_undone_and_one_that_did_goes_on() -> None:
    """As with preemption switched off."""
    acked = {JobId(1): Claim(contract=Contract(), acked_run=0)}
    for state, does in ((VictimState.CHOSEN, "undone"), (VictimState.SIGNALLED, "goes on")):
        rows = [build.running(1, 4), build.pending(9, 4)]
        seen = build.observed(rows, held={1: {0: 4}}, claims=acked)
        handover = under_way(3, 4, state)
        old = {"attained_gpu_s": {1: 1e6}, "ran_s": {1: 1e6}}
        snap = build.snapshot(seen, memory=old, handovers=[handover], breakers=(TRIPPED,))
        free = decide(dataclasses.replace(snap, breakers=()), POLICY, settings())
        assert "CloseHandover" not in {type(a).__name__ for a in free.actions}, state
        plan = decide(snap, POLICY, settings())
        kinds = {type(a).__name__ for a in plan.actions if a.__class__ is not SetSiteFactor}

        assert ("CloseHandover" in kinds) == (does == "undone"), state
        assert (Requeue.__name__ in kinds) == (does == "goes on"), state
        assert Signal.__name__ not in kinds


def test_moves_and_splits_stop_too() -> None:
    """A job of a whole node would fit if two others moved together."""
    rows = [build.running(1, 2), build.running(2, 2), build.pending(9, 4)]
    rows += [build.running(3, 4)]
    seen = build.observed(
        rows, held={1: {0: 2}, 2: {1: 2}, 3: {2: 4}}, opted_in=[1, 2], nodes=(4, 4, 4)
    )
    how = dataclasses.replace(
        settings(), defragment=Defragment(enabled=True, after_s=0, max_moves=8)
    )

    assert [h.purpose for h in opened(decide(build.snapshot(seen), POLICY, how))] == ["defragment"]
    stopped = build.snapshot(seen, breakers=(TRIPPED,))
    assert opened(decide(stopped, POLICY, how)) == []


# How a trip ends by itself.

HOUR_S = 3600.0
BOUND: dict[BreakerName, dict[str, float]] = {
    "gpus_per_hour": {"gpus_per_hour": 8},
    "cluster_share": {"cluster_share": 0.5},
    "failed_restarts": {"failed_share": 0.5},
}


def tripped_ago(name: BreakerName, ago_s: float, rearm_s: float) -> Breaker:
    """A breaker that tripped so long ago, with a window of *rearm_s*."""
    return Breaker(name=name, tripped_s=NOW_S - ago_s, why="so", rearm_s=rearm_s)


@pytest.mark.parametrize(
    ("breaker", "evidence", "trips_again"),
    [
        (tripped_ago("gpus_per_hour", 3599, HOUR_S), {}, None),
        (tripped_ago("failed_restarts", 599, 600), {}, None),
        (tripped_ago("cluster_share", 99_999, 0), {}, None),
        (tripped_ago("gpus_per_hour", 3600, HOUR_S), {}, False),
        (tripped_ago("cluster_share", 3600, HOUR_S), {}, False),
        (tripped_ago("failed_restarts", 600, 600), {}, False),
        # What came after the trip and before the breaker re-armed does not count either.
        (tripped_ago("gpus_per_hour", 3660, HOUR_S), {"taken": taken(9, ago_s=60)}, False),
        (tripped_ago("cluster_share", 3660, HOUR_S), {"taken": taken(9, ago_s=60)}, False),
        (tripped_ago("failed_restarts", 630, 600), {"restarts": judged(4, 0, ago_s=30)}, False),
        (tripped_ago("gpus_per_hour", 3660, HOUR_S), {"taken": taken(9, ago_s=59)}, True),
        (tripped_ago("cluster_share", 3660, HOUR_S), {"taken": taken(9, ago_s=59)}, True),
        (tripped_ago("failed_restarts", 630, 600), {"restarts": judged(4, 0, ago_s=29)}, True),
    ],
)
def test_a_breaker_re_arms_once_its_window_has_passed(
    breaker: Breaker,
    evidence: dict[str, Any],
    trips_again: bool | None,  # noqa: FBT001 - None: it has not re-armed
) -> None:
    """Not before, never where the site wants a reset; then only what came later trips it."""
    snap = contested(breakers=(breaker,), **evidence)

    assert bool(tripped(snap)) == (trips_again is None)
    found = trips(snap, settings(**BOUND[breaker.name]))
    assert [t.breaker for t in found] == [breaker.name] * bool(trips_again)
    assert bool(opened(decide(snap, POLICY, settings()))) == (trips_again is not None)


@pytest.mark.parametrize(("rearms", "windows"), [(True, (3600, 3600, 1200)), (False, (0, 0, 0))])
def test_a_trip_tells_when_it_ends(rearms: bool, windows: tuple[float, ...]) -> None:  # noqa: FBT001
    """An hour for GPUs, the window of the fates for those; who waits is told the time."""
    how = settings(
        gpus_per_hour=8,
        cluster_share=0.5,
        failed_share=0.5,
        failed_window_s=1200,
        rearms=rearms,
    )
    snap = contested(taken=taken(9), restarts=judged(4, 0))

    assert tuple(t.rearm_s for t in trips(snap, how)) == windows
    note = decide(snap, POLICY, how).notes[JobId(11)]
    assert note.endswith(f"; it re-arms at {moment(NOW_S + HOUR_S)}") == rearms, note


FATES: tuple[Fate, ...] = ("open", "well", "failed", "stuck", "unknown")


@st.composite
def situations(draw: st.DrawFn) -> Snapshot:
    """Any small cluster with waiting and running jobs, hand-overs and a past."""
    n_nodes = draw(st.integers(1, 4))
    rows: list[JobRow] = []
    held: dict[int, dict[int, float]] = {}
    opted: list[int] = []
    service: dict[int, float] = {}
    for node in range(n_nodes):
        for part in range(draw(st.integers(0, 2))):
            job = 1 + 2 * node + part
            rows.append(build.running(job, 2, ran_s=draw(st.sampled_from([5.0, 5000.0]))))
            held[job] = {node: 2.0}
            service[job] = draw(st.sampled_from([0.0, 1e6]))
            if draw(st.booleans()):
                opted.append(job)
    rows += [
        build.pending(50 + i, draw(st.sampled_from([1, 2, 4, 8])))
        for i in range(draw(st.integers(0, 4)))
    ]
    chosen = [j for j in opted if draw(st.booleans())][:2]
    handovers = [
        dataclasses.replace(
            under_way(i + 1, 2, draw(st.sampled_from(list(VictimState))), job=job),
            beneficiaries=(JobId(50),),
        )
        for i, job in enumerate(chosen)
    ]
    texts = build.texts(qos={r.job_id: QOS for r in rows})
    seen = build.observed(rows, nodes=(4,) * n_nodes, held=held, opted_in=opted, texts=texts)
    return build.snapshot(
        seen,
        memory={"attained_gpu_s": service, "ran_s": service},
        handovers=handovers,
        taken=taken(*draw(st.lists(st.sampled_from([1.0, 4.0]), max_size=4))),
        restarts=tuple(
            restart(200 + i, f) for i, f in enumerate(draw(st.lists(st.sampled_from(FATES))))
        ),
    )


@given(
    snap=situations(),
    names=st.sets(st.sampled_from(BREAKERS), min_size=1),
    bounds=st.fixed_dictionaries(
        {
            "gpus_per_hour": st.sampled_from([0, 1, 8]),
            "cluster_share": st.sampled_from([0, 0.1, 1]),
            "failed_share": st.sampled_from([0, 0.5]),
        }
    ),
)
@hypothesis_settings(max_examples=100, deadline=None)
def test_a_tripped_breaker_lets_nobody_be_told_to_go(
    snap: Snapshot, names: set[BreakerName], bounds: dict[str, float]
) -> None:
    """No hand-over is opened and nobody gets a first signal, whatever the snapshot."""
    breakers = tuple(Breaker(name=n, tripped_s=NOW_S - 1, why="so") for n in sorted(names))
    how = dataclasses.replace(
        settings(**bounds),
        defragment=Defragment(enabled=True, after_s=0, free_nodes=1),
        placement=Placement(pack=True),
    )
    plan = decide(dataclasses.replace(snap, breakers=breakers), POLICY, how)

    told = {v.run.job_id for h in snap.handovers if h.signalled for v in h.victims}
    assert opened(plan) == []
    assert {a.run.job_id for a in plan.actions if isinstance(a, Signal)} <= told
    assert {a.run.job_id for a in plan.actions if isinstance(a, Requeue)} <= told


@given(
    snap=situations(),
    share=st.sampled_from([0.0, 0.3, 0.6]),
    gpus=st.sampled_from([0, 4, 9]),
    least=st.sampled_from([0, 6]),
)
@hypothesis_settings(max_examples=100, deadline=None)
def test_no_decision_goes_past_a_bound(snap: Snapshot, share: float, gpus: int, least: int) -> None:
    """What was taken, what is being taken and what is begun stay within both, or it trips."""
    how = settings(gpus_per_hour=gpus, cluster_share=share, cluster_least=least)
    plan = decide(snap, POLICY, how)

    begun = sum(v.gpus for h in opened(plan) for v in h.victims)
    if begun:
        assert named(plan) == []
        before = gpus_taken(snap, how, "gpus_per_hour")
        assert not gpus or before + begun <= gpus
        assert not share or before + begun <= max(least, share * managed_gpus(snap))


# Where Slurm itself preempts.


def test_in_native_mode_a_trip_shields_who_runs_and_every_requeue_counts() -> None:
    """Slurm does not say whom it put back: whoever opted in and was put back counts."""
    native = settings(mode=Native(QOS), gpus_per_hour=8)
    back = tuple(restart(i, handover=0, gpus=3.0) for i in range(3))
    rows = [build.running(1, 4), build.pending(9, 4)]
    texts = build.texts(qos={1: QOS, 9: QOS})
    seen = build.observed(rows, held={1: {0: 4}}, opted_in=[1], texts=texts, nodes=(4,))
    old = {"attained_gpu_s": {1: 1e6}, "ran_s": {1: 1e6}}
    snap = build.snapshot(seen, memory=old, restarts=back)

    plan = decide(snap, POLICY, native)

    assert named(plan) == ["gpus_per_hour"]
    writes = {a.job_id: a.value for a in plan.actions if isinstance(a, SetSiteFactor)}
    assert writes[JobId(1)] > writes[JobId(9)]
    assert plan.notes[JobId(9)].startswith("preemption is stopped by the breaker gpus_per_hour")
    free = decide(dataclasses.replace(snap, restarts=()), POLICY, native)
    assert named(free) == []
    writes = {a.job_id: a.value for a in free.actions if isinstance(a, SetSiteFactor)}
    assert writes[JobId(1)] < writes[JobId(9)], "it may be displaced otherwise"


def test_in_native_mode_a_job_counts_once_however_often_it_is_put_back() -> None:
    """Its owner may requeue it as often as they like."""
    native = settings(mode=Native(QOS), cluster_share=0.5)
    again = tuple(
        dataclasses.replace(restart(300, handover=0, gpus=2.0, ago_s=60.0 + i), restarts=9 - i)
        for i in range(5)
    )
    others = tuple(restart(i, handover=0, gpus=2.0) for i in range(4))

    assert gpus_taken(quiet(restarts=again), native, "cluster_share") == 2
    assert trips(quiet(restarts=again), native) == ()
    assert trips(quiet(restarts=(*again, *others[:3])), native) == ()
    (trip,) = trips(quiet(restarts=(*again, *others)), native)
    assert trip.why.startswith("10 of 16 managed GPUs")


def test_one_busy_user_does_not_trip_the_share_as_it_is_set_at_first() -> None:
    """Their new jobs may take every GPU once; what is beyond that waits like any other."""
    rows = [build.running(i, 1, uid=100 + i) for i in range(1, 9)]
    rows += [build.running(100 + i, 1, ran_s=10, uid=666) for i in range(8)]
    rows += [build.pending(200 + i, 1, uid=666) for i in range(4)]
    held = {i: {(i - 1) // 4: 1.0} for i in range(1, 9)}
    held |= {100 + i: {2 + i // 4: 1.0} for i in range(8)}
    seen = build.observed(rows, held=held, opted_in=range(1, 9))
    old = dict.fromkeys(range(1, 9), 5000.0)
    snap = build.snapshot(seen, memory={"attained_gpu_s": old, "ran_s": old}, taken=taken(*[1] * 8))

    plan = decide(snap, POLICY, settings(cluster_share=BreakersSection().cluster_share))

    assert named(plan) == []
    assert opened(plan)
    assert named(decide(snap, POLICY, settings(cluster_share=0.5))) == ["cluster_share"]


@pytest.mark.parametrize(("before", "trips_now"), [(16, False), (48, False), (49, True)])
def test_on_a_small_cluster_the_share_has_a_floor(before: int, *, trips_now: bool) -> None:
    """The second time that all 16 GPUs change hands is no cause; above 64 within an hour is."""
    usual = Breakers(**BreakersSection().model_dump())
    how = dataclasses.replace(settings(), breakers=usual)
    plan = decide(contested(taken=taken(before)), POLICY, how)
    first = decide(
        contested(),
        POLICY,
        dataclasses.replace(how, breakers=dataclasses.replace(usual, cluster_share=0.1)),
    )

    assert (named(plan), bool(opened(plan))) == (["cluster_share"] * trips_now, not trips_now)
    assert not trips_now or _why(plan).endswith("above the bound of 64 GPUs")
    assert opened(first), "one hand-over is above the share, and below the floor"


# On disk, over restarts and resets.


def trip(name: BreakerName = "failed_restarts") -> TripBreaker:
    """A trip."""
    return TripBreaker(breaker=name, at_s=NOW_S, why="4 of 6", jobs=(JobId(4), JobId(7)))


def standing(ledger: Ledger) -> tuple[Breaker, ...]:
    """The breakers that have tripped, by the ledger's snapshot."""
    return tripped(ledger.snapshot(build.observed([]), frozenset({"gpu"})))


def test_a_trip_is_on_disk_before_anything_else_is_done(path: Path) -> None:
    """A daemon that is killed right after finds it on its next start, as does another's."""
    ledger = Ledger(SqliteStore(path, generation=supersede(path)))
    ledger.begin(trip())

    there = {"tripped_s": NOW_S, "why": "4 of 6", "jobs": (JobId(4), JobId(7))}
    found = standing(Ledger(SqliteStore(path)))
    assert found == standing(ledger) == (Breaker(name="failed_restarts", **there),)
    assert standing(Ledger(SqliteStore(path, generation=supersede(path)))) == found


def test_a_reset_is_on_disk_and_leaves_the_others(path: Path) -> None:
    """Who did it and when is kept."""
    ledger = Ledger(SqliteStore(path))
    for name in BREAKERS:
        ledger.begin(trip(name))
    was = ledger.reset("cluster_share", by="user root (0)", now_s=NOW_S + 5)
    assert was.why == "4 of 6"

    next_id = ledger.snapshot(build.observed([]), frozenset({"gpu"})).next_handover_id
    again = Ledger(SqliteStore(path))
    assert [b.name for b in standing(again)] == ["failed_restarts", "gpus_per_hour"]
    snap = again.snapshot(build.observed([]), frozenset({"gpu"}))
    (reset,) = (b for b in snap.breakers if b.name == "cluster_share")
    assert (reset.reset_by, reset.reset_s, reset.why) == ("user root (0)", NOW_S + 5, "")
    assert reset.counts_from == next_id, "what is under way was counted before"


def test_after_a_reset_only_what_comes_later_counts() -> None:
    """What was taken back by hand-overs of before, and what became known before."""
    reset = Breaker(
        name="gpus_per_hour", reset_s=NOW_S - 30, reset_by="root", counts_from=HandoverId(5)
    )
    bound = settings(gpus_per_hour=8)
    before = [under_way(4, 8)]
    old = quiet(taken=taken(9, ago_s=10, handover=3), handovers=before, breakers=(reset,))
    new = quiet(taken=taken(9, ago_s=10, handover=5), handovers=before, breakers=(reset,))
    assert trips(old, bound) == ()
    assert [t.breaker for t in trips(new, bound)] == ["gpus_per_hour"]

    reset = Breaker(name="failed_restarts", reset_s=NOW_S - 30, reset_by="root")
    bound = settings(failed_share=0.5)
    old = quiet(restarts=judged(9, 0, ago_s=30), breakers=(reset,))
    new = quiet(restarts=judged(9, 0, ago_s=29), breakers=(reset,))
    assert trips(old, bound) == ()
    assert [t.breaker for t in trips(new, bound)] == ["failed_restarts"]


def test_a_trip_and_its_end_outlive_the_daemon(path: Path) -> None:
    """A new one knows when it ends; what tripped after that is a trip of its own."""
    rearming = dataclasses.replace(trip(), rearm_s=600.0)
    Ledger(SqliteStore(path)).begin(rearming)

    def after(age_s: float) -> Snapshot:
        seen = build.observed([], now_s=NOW_S + age_s)
        return Ledger(SqliteStore(path)).snapshot(seen, frozenset({"gpu"}))

    assert [b.rearms_at_s for b in tripped(after(599))] == [NOW_S + 600]
    assert tripped(after(600)) == ()
    Ledger(SqliteStore(path)).begin(dataclasses.replace(rearming, at_s=NOW_S + 700))
    (again,) = tripped(after(700))
    assert (again.reset_s, again.reset_by) == (NOW_S + 600, "")
    was = Ledger(SqliteStore(path)).reset("failed_restarts", by="root", now_s=NOW_S + 1300)
    assert not was.tripped_s, "it had re-armed by itself"


def test_a_clock_that_is_set_back_does_not_blind_a_breaker(path: Path) -> None:
    """What came after a reset counts, even if the reset is now in the future."""
    ledger = Ledger(SqliteStore(path))
    ledger.reset("failed_restarts", by="root", now_s=NOW_S + 86_400)
    ledger.clock_was_set(NOW_S)

    for known in (ledger, Ledger(SqliteStore(path))):
        (breaker,) = known.snapshot(build.observed([]), frozenset({"gpu"})).breakers
        assert breaker.reset_s == NOW_S


# The whole loop, on a fake cluster.


class Life:
    """A daemon's loop on a fake: one node of 4 GPUs, jobs that opted in, one that waits."""

    def __init__(self, **breakers: float) -> None:
        self.cluster = FakeCluster(nodes=1, gpus=4, hold_s=2)
        self.ledger = Ledger(MemoryStore())
        self.settings = dataclasses.replace(
            settings(**breakers),
            preemption=dataclasses.replace(LIMITS, max_preemptions=99, start_margin_s=10),
        )
        self.plans: list[Plan] = []

    def cycle(self) -> Cycle:
        """One look and what comes of it."""
        cycle = build.cycle(self.cluster, self.ledger, POLICY, self.settings)
        self.plans.append(cycle.plan)
        return cycle

    def run(self, seconds: int) -> None:
        """Let time pass, with a look each second."""
        for _ in range(seconds):
            self.cluster.advance(1)
            self.cycle()

    def preempt_one(self) -> JobId:
        """Have a job displaced by a short one and come back; the job."""
        cluster = self.cluster
        victim = cluster.submit(4, work_s=100_000, contract=Contract())
        self.run(40)
        assert cluster.jobs[victim].state is JobState.RUNNING
        cluster.submit(4, work_s=3)
        for _ in range(60):
            self.run(1)
            job = cluster.jobs[victim]
            if job.restarts and job.state is JobState.RUNNING:
                return victim
            if tripped(self.ledger.snapshot(cluster.observe(), frozenset({"gpu"}))):
                break
        msg = f"job {victim} was not preempted and restarted"
        raise AssertionError(msg)

    def fate(self, job: JobId) -> Fate:
        """What is known of a job that was put back."""
        snap = self.ledger.snapshot(self.cluster.observe(), frozenset({"gpu"}))
        return next(r.fate for r in snap.restarts if r.job_id == job)


def test_a_job_that_fails_after_its_restart_trips_the_breaker() -> None:
    """It is followed from the requeue on; nobody is preempted afterwards."""
    life = Life(failed_share=0.5, failed_least=1)
    job = life.preempt_one()
    assert life.fate(job) == "open"
    life.cluster.crash(job)
    life.run(2)

    assert life.fate(job) == "failed"
    assert [named(p) for p in life.plans if named(p)] == [["failed_restarts"]]
    stays = life.cluster.submit(4, work_s=100_000, contract=Contract())
    life.run(40)
    life.cluster.submit(4, work_s=3)
    life.run(60)
    assert life.cluster.jobs[stays].restarts == 0

    life.ledger.reset("failed_restarts", by="root", now_s=life.cluster.now_s)
    life.run(60)
    assert life.cluster.jobs[stays].restarts == 1, "preemption goes on after the reset"


def test_preemption_goes_on_by_itself_after_the_window() -> None:
    """The same restarts do not trip it once more."""
    life = Life(failed_share=0.5, failed_least=1, failed_window_s=600)
    life.cluster.crash(life.preempt_one())
    life.run(2)
    stays = life.cluster.submit(4, work_s=100_000, contract=Contract())
    life.run(40)
    life.cluster.submit(4, work_s=3)
    life.run(500)
    assert life.cluster.jobs[stays].restarts == 0

    life.run(200)
    assert life.cluster.jobs[stays].restarts == 1
    assert len([p for p in life.plans if named(p)]) == 1


@pytest.mark.parametrize(
    ("what", "fate"), [("cancelled", "unknown"), ("completed", "well"), ("runs on", "well")]
)
def test_what_is_no_failure(what: str, fate: Fate) -> None:
    """Its user's wish, its end, five minutes of work."""
    life = Life(failed_share=0.5, failed_least=1)
    job = life.preempt_one()
    match what:
        case "cancelled":
            life.cluster.cancel(job)
        case "completed":
            life.cluster.jobs[job].work_s = 0
        case _:
            life.run(300)
    life.run(2)

    assert life.fate(job) == fate
    assert not any(named(p) for p in life.plans)


def test_gpus_taken_back_trip_it_in_time() -> None:
    """The second preemption of 4 GPUs would pass the bound of 7."""
    life = Life(gpus_per_hour=7)
    first = life.preempt_one()
    life.cluster.cancel(first)
    with pytest.raises(AssertionError, match="was not preempted"):
        life.preempt_one()

    (trip,) = (a for p in life.plans for a in p.actions if isinstance(a, TripBreaker))
    assert trip.why == (
        "4 GPUs were taken back within an hour, and 4 more were to be: above the bound of 7"
    )
    assert len([h for p in life.plans for h in opened(p)]) == 1
