"""Pairs that are slower together than taking turns: who leaves, and that it is remembered."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_dl.engine.decide import decide
from slurm_dl.engine.placing.gpu_sharing import with_shares
from slurm_dl.engine.placing.place_waiting import Placed
from slurm_dl.engine.preemption.unpack_pairs import Losing, losing_pairs
from slurm_dl.engine.settings import Placement, Preemption, Settings
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.nodes import SharedGpu
from slurm_dl.model.plan import OpenHandover, Requeue, Signal
from slurm_dl.model.profile import Load, Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.fifo import Fifo
from tests.build import observed, pending, running, snapshot

LIMITS = Preemption(beneficiaries="all", commitment="ignored", min_quantum_s=100, cooldown_s=100)


def profile(name: str, steps_per_s: float | None = 10.0) -> Profile:
    """A model with its speed alone on one GPU; twice that on a v100."""
    speeds = (
        ()
        if steps_per_s is None
        else (
            Speed(shape=Shape(1, 1), steps_per_s=steps_per_s, gpu_type="a100"),
            Speed(shape=Shape(1, 1), steps_per_s=2 * steps_per_s, gpu_type="v100"),
            Speed(shape=Shape(1, 2), steps_per_s=4 * steps_per_s),
        )
    )
    return Profile(name=name, label=0, load=Load(gpu_mem_mb=10_000), speeds=speeds)


PROFILES = {name: profile(name) for name in ("a", "b")} | {"new": profile("new", None)}
HOW = Placement(steer=True, pack=True, profiles=PROFILES, gpu_mem_mb={"a100": 40_000.0})
SETTINGS = Settings(partitions=frozenset({"gpu"}), preemption=LIMITS, placement=HOW)


def claim(model: str | None, rate: float | None, *, opted_in: bool = True) -> Claim:
    """What a job says of itself."""
    return Claim(contract=Contract() if opted_in else None, model=model, rate=rate)


def pair(one: Claim, other: Claim, **more: Any) -> Snapshot:  # noqa: ANN401
    """Job 2 came to job 1 on a GPU of n1; *more* goes to job 2."""
    values = {"ran_s": 400.0, **more}
    rows = [running(1, 0.5), running(2, 0.5, **values)]
    seen = observed(
        rows,
        held={1: {0: 0.5}, 2: {0: 0.5}},
        claims={JobId(1): one, JobId(2): other},
        shared=(SharedGpu(node=0, index=0, jobs=(JobId(1), JobId(2)), shares=(0.5, 0.5)),),
        sharable=np.ones(4, dtype=np.bool_),
    )
    return snapshot(seen)


def test_the_slower_of_a_losing_pair_leaves() -> None:
    """0.5 and 0.4 of their speeds alone are less than one.

    Not the later one: a job could then say so little of itself that an earlier neighbour who is a
    little below half had to go for it.
    """
    snap = pair(claim("a", 5.0), claim("b", 4.0))

    assert losing_pairs(snap, PROFILES, LIMITS) == (
        Losing(
            row=1,
            models=frozenset({"a", "b"}),
            why="jobs 1 and 2 on one GPU reach 0.90 of the speed of one alone",
        ),
    )
    other = pair(claim("a", 4.0), claim("b", 5.0))
    assert [losing.row for losing in losing_pairs(other, PROFILES, LIMITS)] == [0]


def test_a_pair_is_remembered_by_the_names_of_its_profiles() -> None:
    """A job that names an alias is of the same model, and is kept apart as such."""
    snap = pair(claim("alias of a", 5.0), claim("b", 4.0))
    (losing,) = losing_pairs(snap, {**PROFILES, "alias of a": PROFILES["a"]}, LIMITS)

    assert losing.models == {"a", "b"}


@pytest.mark.parametrize(
    ("other", "models"),
    [
        (claim("a", None), {"a", "b"}),
        (claim("new", 0.01), {"new", "b"}),
        (claim(None, None), {"", "b"}),
    ],
)
def test_where_one_speed_is_known_that_job_leaves_below_half(
    other: Claim, models: set[str]
) -> None:
    """Beside a job that says nothing of itself, or of whose model nobody knows the speed."""
    (losing,) = losing_pairs(pair(other, claim("b", 4.9)), PROFILES, LIMITS)

    assert (losing.row, losing.models) == (1, models)


@pytest.mark.parametrize(("ran_s", "leaves"), [(400.0, 1), (9000.0, 0)])
def test_of_two_that_are_as_slow_the_later_leaves(ran_s: float, leaves: int) -> None:
    """Whichever row it stands in."""
    snap = pair(claim("a", 4.0), claim("b", 4.0), ran_s=ran_s)

    assert [losing.row for losing in losing_pairs(snap, PROFILES, LIMITS)] == [leaves]


@pytest.mark.parametrize("others", [9.0, 4.8])
def test_nobody_leaves_by_what_only_his_neighbour_says(others: float) -> None:
    """Who says that he is slow goes himself, or nobody: also where the other is below half."""
    snap = pair(claim("a", 0.01), claim("b", others))
    assert [losing.row for losing in losing_pairs(snap, PROFILES, LIMITS)] == [0]

    stays = pair(claim("a", 0.01, opted_in=False), claim("b", others))
    assert losing_pairs(stays, PROFILES, LIMITS) == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (claim("a", 4.0), claim("b", 6.0)),
        (claim("a", None), claim("b", 5.0)),
        (claim("a", None), claim("b", None)),
        (claim("a", None), claim("b", 1.0, opted_in=False)),
        (claim(None, 1.0), claim("b", 5.0)),
        (claim("new", 1.0), claim("b", 5.0)),
        (claim("a", 1.0), claim("b", 1.0, opted_in=False)),
    ],
)
def test_a_pair_that_wins_or_of_which_too_little_is_known_stays(one: Claim, other: Claim) -> None:
    """From a sum of one on; half of its own speed where only that is known; no opt-in."""
    assert losing_pairs(pair(one, other), PROFILES, LIMITS) == ()


@pytest.mark.parametrize(
    "more",
    [{"ran_s": 99.0}, {"requeueable": False}, {"state": JobState.SUSPENDED}, {"limit_s": 500.0}],
)
def test_the_limits_of_preemption_hold(more: dict[str, Any]) -> None:
    """Inside its lease, not to be requeued, not running, near its end."""
    snap = pair(claim("a", 1.0), claim("b", 1.0))
    jobs = snap.jobs
    changed = {name: np.array(getattr(jobs, name)) for name in ("requeueable", "state", "limit_s")}
    changed["start_s"] = np.array(jobs.start_s)
    for name, value in more.items():
        key, new = ("start_s", snap.now_s - value) if name == "ran_s" else (name, value)
        changed[key][1] = new
    seen = dataclasses.replace(snap.seen, jobs=dataclasses.replace(jobs, **changed))

    assert losing_pairs(snapshot(seen), PROFILES, LIMITS) == ()


def test_its_own_hand_over_does_not_protect_it_and_its_cool_down_does() -> None:
    """A job that was stopped a moment ago is left alone."""
    snap = pair(claim("a", 1.0), claim("b", 1.0))
    rested = snapshot(snap.seen, memory={"last_preempted_s": {2: snap.now_s - 50}})

    assert losing_pairs(rested, PROFILES, LIMITS) == ()


def handovers(snap: Snapshot, settings: Settings = SETTINGS) -> list[Handover]:
    """What the decision begins."""
    actions = decide(snap, Fifo(), settings).actions
    return [a.handover for a in actions if isinstance(a, OpenHandover)]


def test_the_decision_begins_a_split() -> None:
    """A hand-over for nobody; it signals at once and seals nothing."""
    snap = pair(claim("a", 5.0), claim("b", 4.0))
    (handover,) = handovers(snap)

    assert handover.purpose == "split"
    assert handover.apart == ("a", "b")
    assert [v.run.job_id for v in handover.victims] == [2]
    assert (handover.beneficiaries, handover.nodes) == ((), ())
    plan = decide(snap, Fifo(), SETTINGS)
    kinds = [type(a) for a in plan.actions]
    assert Signal in kinds
    assert Requeue not in kinds
    assert "0.90 of the speed of one alone" in plan.notes[JobId(2)]
    (why,) = [a.why for a in plan.actions if isinstance(a, OpenHandover)]
    assert why == "a and b on one GPU are slower than taking turns: job 2 leaves"


def test_nobody_is_split_where_packing_or_preemption_is_off() -> None:
    """Nor beyond the limits on hand-overs and GPUs."""
    snap = pair(claim("a", 1.0), claim("b", 1.0))
    off = dataclasses.replace(SETTINGS, placement=dataclasses.replace(HOW, pack=False))

    assert handovers(snap, off) == []
    for limits in (
        dataclasses.replace(LIMITS, enabled=False),
        dataclasses.replace(LIMITS, max_handovers=0),
        dataclasses.replace(LIMITS, max_gpus_per_hour=0.25),
    ):
        assert handovers(snap, dataclasses.replace(SETTINGS, preemption=limits)) == []


def test_one_that_is_under_way_is_brought_on_and_not_begun_again() -> None:
    """It goes on to its signal although its victim is part of a hand-over: of this one."""
    snap = pair(claim("a", 1.0), claim("b", 1.0))
    (handover,) = handovers(snap)
    later = snapshot(snap.seen, handovers=[handover])

    actions = decide(later, Fifo(), SETTINGS).actions

    assert handovers(later) == []
    assert [a.run.job_id for a in actions if isinstance(a, Signal)] == [2]


def test_a_lost_pair_is_remembered_and_not_formed_again(tmp_path: Path) -> None:
    """By the models, over a restart of the daemon."""
    snap = pair(claim("a", 4.0), claim("b", 5.0))
    (handover,) = handovers(snap)
    ledger = Ledger(SqliteStore(tmp_path / "ledger"))
    ledger.book(snap.seen)
    ledger.begin(OpenHandover(handover=handover, why=""))
    now = ledger.snapshot(snap.seen, frozenset({"gpu"})).lost_pairs
    ledger.close()
    again = Ledger(SqliteStore(tmp_path / "ledger"))

    assert now == (("a", "b"),)
    assert again.snapshot(snap.seen, frozenset({"gpu"})).lost_pairs == now
    much_later = dataclasses.replace(snap.seen, now_s=snap.now_s + 8 * 86400)
    assert again.snapshot(much_later, frozenset({"gpu"})).lost_pairs == (), "not for ever"
    again.close()
    for lost, node in (((), 0), (now, 1)):
        seen = observed(
            [running(1, 0.5), pending(9, 0.5), pending(10, 100)],
            held={1: {0: 0.5}},
            claims={JobId(1): claim("b", None), JobId(9): claim("a", None)},
            shared=(SharedGpu(node=0, index=0, jobs=(JobId(1),), shares=(0.5,), first=True),),
            sharable=np.ones(4, dtype=np.bool_),
        )
        placed = with_shares(
            snapshot(seen, lost_pairs=lost), np.array([0, 1, 2]), (), HOW, Placed()
        )
        within = placed.waits[JobId(9)].within
        assert within is not None
        assert np.flatnonzero(within).tolist() == [node]
