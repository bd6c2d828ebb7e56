"""Reservations of others: who is stopped before one begins, and for whom."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot

from slurm_dl.engine.decide import decide
from slurm_dl.engine.out_of_reach import out_of_reach
from slurm_dl.engine.preemption.eligibility import victims
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import OpenHandover, Plan
from slurm_dl.model.snapshot import DEFAULT_HOLD_S, Blocked, Snapshot
from slurm_dl.placement.resource_request import ResourceRequests
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.recording.snapshot_file import decode, encode

POLICY = DiscreteLas(thresholds_gpu_s=(1000.0,))
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(min_quantum_s=0, cooldown_s=0, limit_reserve_s=0),
)
HOUR_S = 3600.0
NODES = (8.0, 4.0, 4.0)


def reserved(*nodes: int, in_s: float = HOUR_S / 2, jobs: tuple[int, ...] = ()) -> Blocked:
    """A reservation of an hour on the nodes at these rows, of three."""
    return Blocked(
        start_s=NOW_S + in_s,
        end_s=NOW_S + in_s + HOUR_S,
        nodes=np.isin(np.arange(len(NODES)), nodes),
        jobs=frozenset(map(JobId, jobs)),
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job and what is reserved; by default it fills the last node of three and must stay."""

    blocked: tuple[Blocked, ...]
    limit_s: float = HOUR_S
    gpus: float = 4
    n_nodes: int = 1
    down: tuple[int, ...] = ()
    choice: tuple[int, ...] | None = None
    shut_out: bool = True
    waits_shut_out: bool | None = None
    runs_on: tuple[int, ...] = field(default=(2,))

    def snapshot(self, *, waits: bool) -> Snapshot:
        """Job 1, which runs or waits."""
        shape = {"limit_s": self.limit_s, "n_nodes": self.n_nodes, "start_s": NOW_S - 30}
        held = {} if waits else {1: dict.fromkeys(self.runs_on, self.gpus / self.n_nodes)}
        row = (pending if waits else running)(1, self.gpus, **shape)
        seen = observed([row], nodes=NODES, held=held, blocked=self.blocked)
        rows = np.arange(len(NODES))
        nodes = dataclasses.replace(seen.nodes, up=~np.isin(rows, self.down))
        choices = {} if self.choice is None else {JobId(1): np.isin(rows, self.choice)}
        claims = {JobId(1): Claim(contract=Contract(grace_s=300.0))}
        return snapshot(dataclasses.replace(seen, nodes=nodes, choices=choices, claims=claims))


CASES = {
    "of all nodes": Case(blocked=(reserved(0, 1, 2),)),
    "limit fits before it, after the grace and the hold": Case(
        blocked=(reserved(0, 1, 2),), limit_s=HOUR_S / 2 - 300 - DEFAULT_HOLD_S, shut_out=False
    ),
    "limit fits before it, but not after the hold": Case(
        blocked=(reserved(0, 1, 2),),
        limit_s=HOUR_S / 2 - 299 - DEFAULT_HOLD_S,
        waits_shut_out=False,
    ),
    "no limit": Case(blocked=(reserved(0, 1, 2, in_s=1000 * HOUR_S),), limit_s=np.inf),
    "another node will do": Case(blocked=(reserved(1, 2),), shut_out=False),
    "the other node is down": Case(blocked=(reserved(1, 2),), down=(0,)),
    "the other nodes are not of its choice": Case(blocked=(reserved(2),), choice=(2,)),
    "the other nodes are too small": Case(blocked=(reserved(0),), gpus=8, runs_on=(0,)),
    "gang of two, one node left": Case(
        blocked=(reserved(1, 2),), gpus=8, n_nodes=2, runs_on=(1, 2)
    ),
    "gang of two, two nodes left": Case(
        blocked=(reserved(2),), gpus=8, n_nodes=2, runs_on=(1, 2), shut_out=False
    ),
    "two reservations, each of a part": Case(blocked=(reserved(0), reserved(1, 2))),
    "it is in the reservation": Case(blocked=(reserved(0, 1, 2, jobs=(1,)),), shut_out=False),
    "it is in another reservation": Case(
        blocked=(reserved(0, 1, jobs=(1,)), reserved(2)), shut_out=False
    ),
    "it is in one, and the next one is of all": Case(
        blocked=(reserved(2, jobs=(1,)), reserved(0, 1, 2))
    ),
    # Nodes of a reservation that is active are not up.
    "active now": Case(blocked=(reserved(0, 1, 2, in_s=-60),), down=(0, 1, 2), limit_s=60),
    "active now, and it is in it": Case(
        blocked=(reserved(0, 1, 2, in_s=-60, jobs=(1,)),), down=(0, 1, 2), shut_out=False
    ),
    "it has ended": Case(blocked=(reserved(0, 1, 2, in_s=-2 * HOUR_S),), shut_out=False),
    "none": Case(blocked=(), shut_out=False),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_nobody_is_stopped_or_served_whom_a_reservation_would_keep_from_starting(
    case: Case,
) -> None:
    """The same job, once as a victim and once as the one that waits."""
    runs, waits = case.snapshot(waits=False), case.snapshot(waits=True)
    candidates = victims(runs, SETTINGS.preemption)

    assert ("reservation" in candidates.why_not(0)) == case.shut_out
    assert (0 in candidates.may) != case.shut_out
    assert 0 not in candidates.lasting
    expected = case.shut_out if case.waits_shut_out is None else case.waits_shut_out
    assert out_of_reach(waits, np.array([], dtype=np.int64), 900.0).tolist() == [expected]


@pytest.mark.parametrize(
    ("limit_s", "blocked", "allowed"),
    [
        (HOUR_S / 2, (reserved(0, 1),), {0, 1, 2}),
        (HOUR_S / 2 + 1, (reserved(0, 1),), {2}),
        (HOUR_S, (reserved(0), reserved(0, in_s=9 * HOUR_S), reserved(2, in_s=HOUR_S)), {1, 2}),
        (60.0, (reserved(0, in_s=0.0),), {1, 2}),
        (HOUR_S, (reserved(0, jobs=(1,)), reserved(2)), {0, 1}),
    ],
)
def test_nodes_on_which_a_job_would_be_over_in_time_are_allowed(
    limit_s: float, blocked: tuple[Blocked, ...], allowed: set[int]
) -> None:
    """A second job, without a limit, has those that are not reserved at all."""
    rows = [pending(1, 4, limit_s=limit_s), pending(2, 4)]
    snap = snapshot(observed(rows, nodes=NODES, blocked=blocked))
    needs = ResourceRequests(snap)
    first, second = needs.of(0), needs.of(1)

    assert set(np.flatnonzero(first.allowed).tolist()) == allowed
    assert (second.allowed == ~np.any([one.nodes for one in blocked], axis=0)).all()
    assert (first.place == second.place) == bool((first.allowed == second.allowed).all())


def test_a_job_that_stays_on_the_other_nodes_puts_it_out_of_reach_too() -> None:
    """The small job behind it is served on the reserved node, before the reservation."""
    rows = [running(1, 4), pending(2, 4, limit_s=HOUR_S), pending(3, 4, limit_s=60)]
    seen = observed(rows, nodes=(4.0, 4.0), held={1: {1: 4}})
    for in_s, expected in ((HOUR_S / 2, [False, True, False]), (HOUR_S, [False] * 3)):
        one = dataclasses.replace(reserved(in_s=in_s), nodes=np.array([True, False]))
        snap = snapshot(dataclasses.replace(seen, blocked=(one,)))
        assert out_of_reach(snap, np.array([0]), 900.0).tolist() == expected


def full(*blocked: Blocked, victim_limit_s: float = 900.0, limit_s: float = 60.0) -> Plan:
    """Job 1 has sunk and holds the large node; job 2, which has not run, wants it."""
    rows = [running(1, 8, limit_s=victim_limit_s, ran_s=30), pending(2, 8, limit_s=limit_s)]
    seen = observed(rows, nodes=NODES, held={1: {0: 8}}, opted_in=[1, 2], blocked=blocked)
    snap = decode(encode(snapshot(seen, memory={"attained_gpu_s": {1: 72_000.0}})))
    return decide(snap, POLICY, SETTINGS)


@pytest.mark.parametrize(
    ("more", "blocked"),
    [
        ({}, None),
        ({}, reserved(0)),
        ({"victim_limit_s": HOUR_S}, reserved(1, 2)),
        ({"victim_limit_s": HOUR_S}, reserved(0)),
        ({"limit_s": HOUR_S}, reserved(0)),
    ],
)
def test_gpus_are_taken_back_where_both_jobs_would_be_over_before_the_reservation(
    more: dict[str, float], blocked: Blocked | None
) -> None:
    """The snapshot is read back from a recording; one in the far future changes no plan."""
    plan = full(*([] if blocked is None else [blocked]), **more)
    stays = blocked is not None and bool(blocked.nodes[0]) and bool(more)

    assert any(isinstance(a, OpenHandover) for a in plan.actions) != stays
    assert ("reservation" in plan.notes.get(JobId(2), "")) == stays
    if not stays:
        later = full(reserved(0, 1, 2, in_s=1e6), **more)
        without = full(**more)
        assert (later.actions, later.notes, later.target) == (
            without.actions,
            without.notes,
            without.target,
        )
