"""In which order waiting jobs are placed, and what rules and earlier answers make of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.placing.place_waiting import Placed, holds, place_notes, place_waiting
from slurm_dl.engine.settings import Placement
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Bool, Held, JobRow
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.steer import Steer
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.node_rules import Contention
from slurm_dl.placement.resource_request import Ask, PendingJob, ResourceRequests
from slurm_dl.placement.scheme import Answer, Placer, Spot, Wait

N1, N2, N3, N4 = range(4)


@dataclass(frozen=True)
class FirstFit:
    """A scheme that takes the first nodes, or answers as told; it notes whom it is asked about."""

    name: ClassVar[str] = "first"
    source: ClassVar[str] = ""
    interpretation: ClassVar[str] = ""
    says: Mapping[JobId, Answer] = field(default_factory=dict)
    asked: list[JobId] = field(default_factory=list)

    def begin(
        self, _snap: Snapshot, _stock: FreeNodes, _profiles: Mapping[str, Profile], /
    ) -> Placer:
        """See `Scheme`."""
        return self

    def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
        """See `Placer`."""
        self.asked.append(want.job_id)
        if want.job_id in self.says:
            return self.says[want.job_id]
        for ask in want.need.asks:
            usable, _ = offer.usable(ask)
            where = offer.stock.conditions()
            may = (where >= 0) & usable[where] & want.need.allowed
            rows = np.flatnonzero(may)[: ask.n_nodes]
            if len(rows) == ask.n_nodes:
                return Spot(nodes=tuple(rows.tolist()), why="they come first")
        return None


@dataclass(frozen=True)
class Empty:
    """A rule: only where nothing else is, or is expected."""

    name: ClassVar[str] = "empty"
    source: ClassVar[str] = ""
    interpretation: ClassVar[str] = ""
    strict: bool = True

    def allows(self, _want: PendingJob, _ask: Ask, stock: FreeNodes, /) -> Bool:
        """See `Rule`."""
        alone: Bool = stock.most_gpus == 0
        return alone


def placed(
    snap: Snapshot,
    scheme: FirstFit | BestFit | None = None,
    *rules: Empty,
    order: Sequence[int] = (),
    reserved: Sequence[int] = (),
    **how: float,
) -> Placed:
    """What is decided of the jobs of *snap*, served in *order* of rows."""
    ranked = np.array(order or range(len(snap.jobs)), dtype=np.int64)
    placement = Placement(scheme=scheme or FirstFit(), rules=rules, steer=True, **how)
    return place_waiting(snap, ranked, frozenset(map(JobId, reserved)), placement)


def spots(of: Placed) -> dict[int, tuple[int, ...]]:
    return {int(job): spot.nodes for job, spot in of.spots.items()}


def steered(snap: Snapshot, job: int, *avoid: str, **more: object) -> Snapshot:
    values = {"kind": "spot", "since_s": NOW_S, "until_s": NOW_S + 99, "why": ""} | more
    steer = Steer(job_id=JobId(job), avoid=avoid, **values)
    return dataclasses.replace(snap, steers={steer.job_id: steer})


def test_without_a_scheme_nothing_is_placed() -> None:
    """That is left to Slurm."""
    snap = snapshot(observed([pending(1, 4)]))

    assert place_waiting(snap, np.array([0]), frozenset(), Placement()) == Placed()


def test_best_ranked_chooses_first() -> None:
    """Who comes later does not see the nodes that are taken, and what does not fit is passed."""
    snap = snapshot(observed([pending(1, 4), pending(2, 4), pending(3, 4)], nodes=(4, 4)))

    assert spots(placed(snap)) == {1: (N1,), 2: (N2,)}
    assert spots(placed(snap, order=[2, 0, 1])) == {3: (N1,), 1: (N2,)}
    assert spots(placed(snap, order=[2, 0, 1], reserved=[3])) == {1: (N1,), 2: (N2,)}


def test_only_jobs_that_wait_for_room_are_placed() -> None:
    """Not the running, the held, those of other partitions or without whole GPUs."""
    rows = [
        running(1, 1),
        pending(2, 1, held=Held.USER_OR_ADMIN),
        pending(3, 1, held=Held.BEGIN_TIME),
        pending(4, 0.5),
        pending(5, 0),
        pending(6, 1, partition=-1),
        pending(7, 1),
    ]
    snap = snapshot(observed(rows, held={1: {0: 1}}))

    assert [*spots(placed(snap))] == [7]


def test_window_bounds_how_many_are_asked_about() -> None:
    """The best of each partition; the scheme is not asked about the rest."""
    scheme = FirstFit()
    snap = snapshot(observed([pending(j, 1) for j in range(1, 9)]))

    placed(snap, scheme, order=[7, 6, 5, 4, 3, 2, 1, 0], window=3)

    assert scheme.asked == [8, 7, 6]


def test_begin_time_that_is_ours_or_dlsubmits_does_not_keep_a_job_from_being_placed() -> None:
    """One that was just submitted, and one that we put off; not one that was requeued since."""
    late = {"held": Held.BEGIN_TIME}
    rows = [
        pending(1, 1, **late, submit_s=NOW_S - 5),
        pending(2, 1, **late, submit_s=NOW_S - 50),
        pending(3, 1, **late, submit_s=NOW_S - 5, restarts=1),
    ]
    snap = snapshot(observed(rows))
    assert [*spots(placed(snap))] == []
    assert [*spots(placed(snap, settle_s=10))] == [1]

    # Slurm goes on saying BeginTime for a while after it is over.
    for not_before_s in (NOW_S + 5, NOW_S - 1):
        ours = steered(snap, 2, kind="wait", not_before_s=not_before_s)
        assert [*spots(placed(ours))] == [2]
    again = {"kind": "wait", "not_before_s": NOW_S + 5}
    assert [*spots(placed(steered(snap, 3, **again, since_s=NOW_S - 3)))] == [3]
    assert [*spots(placed(steered(snap, 3, **again, since_s=NOW_S - 60)))] == []
    assert [*spots(placed(steered(snap, 2, kind="started")))] == []


def test_strict_rule_is_kept_whatever_else_there_is() -> None:
    """Where nothing is left the job waits for nodes that the rule allows, or altogether."""
    busy = {9: {0: 1}, 8: {1: 1}}
    rows = [pending(1, 1), running(8, 1), running(9, 1)]
    snap = snapshot(observed(rows, nodes=(4, 4), held=busy))
    one_left = snapshot(observed(rows, nodes=(4, 4, 4), held=busy))

    assert spots(placed(one_left, None, Empty())) == {1: (N3,)}
    waits = placed(snap, None, Empty()).waits[JobId(1)]
    assert waits.within is None
    assert waits.for_s == float("inf")
    assert "empty" in waits.why


def test_soft_rule_gives_way_where_nothing_else_is_left() -> None:
    """It is kept where it can be, and no reason to wait."""
    rows = [pending(1, 1), running(8, 1), running(9, 1)]
    busy = {9: {0: 1}, 8: {1: 1}}
    soft = Empty(strict=False)

    three = snapshot(observed(rows, nodes=(4, 4, 4), held=busy))
    two = snapshot(observed(rows, nodes=(4, 4), held=busy))

    assert spots(placed(three, None, soft)) == {1: (N3,)}
    assert spots(placed(two, None, soft)) == {1: (N1,)}
    assert not placed(two, None, soft, Empty()).spots


def test_strict_rule_holds_for_a_wait_of_the_scheme() -> None:
    """It waits within what both leave it."""
    rows = [pending(1, 4), running(9, 1)]
    snap = snapshot(observed(rows, nodes=(4, 4, 4), held={9: {0: 1}}))
    within = np.array([True, True, False])
    scheme = FirstFit(says={JobId(1): Wait(within=within, for_s=60, why="its leaf")})

    waits = placed(snap, scheme, Empty()).waits[JobId(1)]

    assert waits.within.tolist() == [False, True, False]
    assert (waits.for_s, waits.why) == (60, "its leaf")


def test_rules_see_who_is_expected() -> None:
    """Who comes after a job that waits within some nodes does not break a rule with it there."""
    snap = snapshot(observed([pending(1, 1), pending(2, 1)], nodes=(4, 4)))
    within = np.array([True, False])
    scheme = FirstFit(says={JobId(1): Wait(within=within, for_s=60, why="n1")})

    assert spots(placed(snap, scheme, Empty())) == {2: (N2,)}


@pytest.mark.parametrize(("asks", "goes"), [(4, ()), (5, (N3, N4))])
def test_what_a_strict_rule_leaves_to_the_first_is_not_given_to_others(
    asks: int, goes: tuple[int, ...]
) -> None:
    """Else small jobs of several nodes pass a large one for ever; but not one that never fits."""
    rows = [running(1, 2, n_nodes=2), pending(2, asks, n_nodes=asks), pending(3, 2, n_nodes=2)]
    snap = snapshot(observed(rows, held={1: {N1: 1.0, N2: 1.0}}))
    how = Placement(scheme=BestFit(), rules=(Contention(),), steer=True)

    answers = place_waiting(snap, np.array([0, 1, 2]), frozenset(), how)

    assert answers.waits[JobId(2)].within is None
    assert spots(answers) == ({3: goes} if goes else {})


@pytest.mark.parametrize("within", [[False, False], [True, False]])
def test_wait_on_nodes_that_could_never_hold_the_job_is_no_answer(within: list[bool]) -> None:
    """Slurm would refuse it for good."""
    snap = snapshot(observed([pending(1, 8, n_nodes=2)], nodes=(4, 4)))
    answer = Wait(within=np.array(within), for_s=60, why="")

    assert placed(snap, FirstFit(says={JobId(1): answer})) == Placed()
    both = dataclasses.replace(answer, within=np.array([True, True]))
    assert [*placed(snap, FirstFit(says={JobId(1): both})).waits] == [1]


def test_job_stays_with_the_nodes_that_are_left_to_it() -> None:
    """Though the scheme would choose others now; where it cannot stay it is placed anew."""
    free = snapshot(observed([pending(1, 2), running(9, 1)], held={9: {1: 1}}))
    full = snapshot(observed([pending(1, 2), running(9, 4)], held={9: {2: 4}}))
    away = ("n1", "n2", "n4")

    assert spots(placed(free, BestFit())) == {1: (N2,)}
    assert spots(placed(steered(free, 1, *away), BestFit())) == {1: (N3,)}
    assert spots(placed(steered(full, 1, *away), BestFit())) == {1: (N1,)}
    for kind in ("started", "over"):
        avoid = away if kind == "started" else ()
        assert spots(placed(steered(free, 1, *avoid, kind=kind), BestFit())) == {1: (N2,)}


def test_soft_rule_that_cannot_be_kept_is_no_reason_to_move() -> None:
    """Where it is broken everywhere the job stays, and nothing has to be written."""
    rows = [pending(1, 1), running(8, 1), running(9, 1)]
    snap = snapshot(observed(rows, nodes=(4, 4), held={9: {0: 1}, 8: {1: 1}}))

    assert spots(placed(steered(snap, 1, "n1"), None, Empty(strict=False))) == {1: (N2,)}


def test_tasks_of_an_array_take_room_each() -> None:
    """Who comes later finds only what they leave."""
    snap = snapshot(observed([pending(1, 4, tasks=2), pending(2, 4)], nodes=(4, 4, 4)))

    assert spots(placed(snap)) == {1: (N1,), 2: (N3,)}
    more = snapshot(observed([pending(1, 4, tasks=3), pending(2, 4)], nodes=(4, 4, 4)))
    assert spots(placed(more)) == {1: (N1,)}


def test_job_may_lie_on_more_nodes_than_it_asks_for_if_its_owner_said_so() -> None:
    """Fewest first, evenly."""
    rows = [pending(1, 4), running(8, 2), running(9, 2)]
    seen = observed(rows, nodes=(4, 4), held={8: {0: 2}, 9: {1: 2}})
    assert placed(snapshot(seen)) == Placed()

    claims = {JobId(1): Claim(most_nodes=4)}
    assert spots(placed(snapshot(dataclasses.replace(seen, claims=claims)))) == {1: (N1, N2)}


def test_range_of_nodes_counts_where_room_is_made_too() -> None:
    """From the fewest that could hold it, though Slurm says fewer, in even splits only."""
    rows = [pending(1, 4, n_nodes=1), pending(2, 16, n_nodes=1), running(8, 2), running(9, 2)]
    seen = observed(rows, nodes=(4, 4, 4, 4), held={8: {0: 2}, 9: {1: 2}})
    claims = {JobId(1): Claim(most_nodes=2), JobId(2): Claim(most_nodes=9)}
    snap = snapshot(dataclasses.replace(seen, claims=claims))
    needs, room = ResourceRequests(snap), FreeResources.free_in(snap)

    assert [(a.n_nodes, a.gpus) for a in needs.of(1).asks] == [(4, 4.0), (8, 2.0)]
    need = needs.of(0)
    within = np.array([True, True, False, False])
    place = room.place(need, within)
    assert place.tolist() == [N1, N2]
    room.take(need, place)
    assert room.gpus.tolist() == [0, 0, 4, 4]
    assert needs.of(0).asks[0].n_nodes == 1


def test_nodes_that_a_handover_keeps_are_not_given_to_others() -> None:
    """They are in a reservation: Slurm starts nobody else there."""
    run = Run(JobId(9), NOW_S - 100, 0)
    handover = Handover(
        handover_id=HandoverId(1),
        opened_s=NOW_S,
        beneficiaries=(JobId(2),),
        victims=(Victim(run=run, gpus=1, contract=Contract()),),
        nodes=("n1",),
    )
    snap = snapshot(observed([pending(1, 4), pending(2, 4)], nodes=(4, 4)))
    snap = dataclasses.replace(snap, handovers=(handover,))

    assert spots(placed(snap, reserved=[2])) == {1: (N2,)}


def test_notes_say_where_in_words() -> None:
    """At most three nodes by name; how long a job waits at most if there is an end to it."""
    snap = snapshot(observed([pending(1, 4), pending(2, 1), pending(3, 1)]))
    of = Placed(
        spots={JobId(1): Spot(nodes=(0, 1, 2, 3), why="near each other")},
        waits={
            JobId(2): Wait(within=None, for_s=90, why="its leaf"),
            JobId(3): Wait(within=None, for_s=float("inf"), why="a rule"),
        },
    )

    assert place_notes(snap, of) == {
        1: "it is to start on n1, n2, n3 and 1 more (near each other)",
        2: "it waits for its leaf, 90 s at most",
        3: "it waits for a rule",
    }


@given(
    shares=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4)), min_size=1, max_size=8),
    busy=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    shuffle=st.randoms(use_true_random=False),
)
def test_spots_hold_all_who_get_one_and_nobody_is_passed_over(
    shares: list[tuple[int, int]], busy: list[int], shuffle: Callable[..., None]
) -> None:
    """A plain account of free GPUs: each spot fits when its turn comes; who has none did not."""
    jobs: list[JobRow] = [pending(i + 1, n * g, n_nodes=n) for i, (n, g) in enumerate(shares)]
    jobs += [running(100 + n, b) for n, b in enumerate(busy) if b]
    held = {100 + n: {n: b} for n, b in enumerate(busy) if b}
    snap = snapshot(observed(jobs, held=held))
    order = list(range(len(shares)))
    shuffle.shuffle(order)

    got = spots(placed(snap, BestFit(), order=order))

    free = [4 - b for b in busy]
    for row in order:
        n, g = shares[row]
        nodes = got.get(row + 1)
        if nodes is None:
            assert sum(f >= g for f in free) < n
            continue
        assert len(set(nodes)) == n
        for node in nodes:
            free[node] -= g
            assert free[node] >= 0


def test_holding_counts_whole_nodes() -> None:
    """Whoever is there now may go; GPUs, CPUs and memory of the node must be enough."""
    row = pending(1, 8, n_nodes=2, cpus=128, mem_mb=10)
    snap = snapshot(observed([row, running(9, 4)], nodes=(4, 4, 2), held={9: {0: 4}}))
    want = PendingJob(row=0, job_id=JobId(1), need=ResourceRequests(snap).of(0))
    whole = FreeResources.unoccupied(snap)

    assert holds(whole, np.array([True, True, True]), want, 2)
    assert not holds(whole, np.array([True, False, True]), want, 2)
