"""What a pass starts: tables, and for backfill a planner that tries everything."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slurm_dl.simulation.slurm.scheduler import (
    Backfill,
    Reserved,
    Running,
    WaitingJob,
    backfill_pass,
    main_pass,
)

NOW_S = 100.0
EXACT = Backfill(resolution_s=0.0, precision_s=0.0, window_s=1e9, max_jobs=100)
Held = Sequence[tuple[float, dict[int, int]]]


def job(
    number: int, share: int, *, nodes: int = 1, limit: float = 10, resv: str = ""
) -> WaitingJob:
    return WaitingJob(job=number, n_nodes=nodes, share=share, limit_s=limit, reservation=resv)


def sealed(name: str, nodes: Sequence[bool], end_s: float = 1e6) -> Reserved:
    return Reserved(name=name, nodes=np.array(nodes), end_s=end_s)


def running(held: Held) -> Running:
    held = sorted(held, key=lambda h: h[0])
    return Running.of(
        np.array([end for end, _ in held], dtype=np.float64),
        [np.array([*on], dtype=np.int64) for _, on in held],
        np.array([share for _, on in held for share in on.values()], dtype=np.int64),
    )


def started(
    waiting: Sequence[WaitingJob],
    free: Sequence[int],
    held: Held = (),
    reserved: Sequence[Reserved] = (),
    how: Backfill = EXACT,
) -> dict[int, list[int]]:
    """What backfill starts, job by job with its nodes."""
    found = backfill_pass(
        waiting,
        np.array(free, dtype=np.int64),
        np.ones(len(free), dtype=np.bool_),
        reserved,
        running(held),
        now_s=NOW_S,
        how=how,
    )
    return {number: nodes.tolist() for number, nodes in found}


def main_started(
    waiting: Sequence[WaitingJob],
    free: Sequence[int],
    reserved: Sequence[Reserved] = (),
    up: Sequence[bool] | None = None,
) -> dict[int, list[int]]:
    """What the main scheduler starts."""
    here = np.ones(len(free), dtype=np.bool_) if up is None else np.array(up)
    found = main_pass(waiting, np.array(free, dtype=np.int64), here, reserved)
    return {number: nodes.tolist() for number, nodes in found}


def test_the_main_pass_stops_at_the_first_job_that_does_not_fit() -> None:
    assert main_started([job(1, 2), job(2, 4), job(3, 1)], [4, 2]) == {1: [0]}


def test_the_main_pass_takes_the_first_nodes_that_hold_the_job() -> None:
    gang = job(2, 2, nodes=2)

    assert main_started([job(1, 4), gang], [2, 4, 1, 2]) == {1: [1], 2: [0, 3]}


def test_a_gang_starts_whole_or_not_at_all() -> None:
    assert main_started([job(1, 4, nodes=2)], [4, 3]) == {}


def test_a_node_that_is_down_is_not_used() -> None:
    assert main_started([job(1, 1)], [4, 4], up=[False, True]) == {1: [1]}


def test_a_node_that_a_job_excludes_is_not_used_for_it() -> None:
    away = dataclasses.replace(job(1, 1), excluded=np.array([True, False]))

    assert main_started([away, job(2, 1)], [4, 4]) == {1: [1], 2: [0]}
    assert started([away, job(2, 1)], [4, 0]) == {2: [0]}


def test_a_seal_keeps_its_nodes_for_its_own_jobs() -> None:
    seal = [sealed("a", [True, False])]

    assert main_started([job(1, 1)], [4, 0], seal) == {}
    assert main_started([job(1, 1, resv="a")], [4, 0], seal) == {1: [0]}


def test_a_job_of_a_flexible_reservation_may_use_other_nodes_too() -> None:
    seals = [sealed("a", [True, False, False]), sealed("b", [False, True, False])]

    assert main_started([job(1, 2, nodes=2, resv="a")], [2, 2, 2], seals) == {1: [0, 2]}


def test_a_reserved_job_that_does_not_fit_holds_up_only_its_own_reservation() -> None:
    seal = [sealed("a", [True, False])]
    waiting = [job(1, 4, resv="a"), job(2, 1, resv="a"), job(3, 1)]

    assert main_started(waiting, [2, 2], seal) == {3: [1]}


def test_backfill_starts_what_ends_before_the_planned_start() -> None:
    """The first job waits for node 0 until 120; only a job of at most 20 s may use the rest."""
    held = [(NOW_S + 20, {0: 2})]
    first = job(1, 4)

    assert started([first, job(2, 2, limit=19)], [2], held) == {2: [0]}
    assert started([first, job(2, 2, limit=21)], [2], held) == {}


def test_backfill_speaks_for_whole_nodes() -> None:
    """One GPU planned on a node keeps longer jobs off all of it, as in Slurm."""
    held = [(NOW_S + 20, {0: 3})]
    waiting = [job(1, 2), job(2, 1, limit=30)]

    assert started(waiting, [1], held) == {}


def test_a_planned_start_is_no_good_if_a_better_plan_begins_meanwhile() -> None:
    """At 108 s there is room for the second job until 115 s, not long enough: it waits.

    Nobody is in the way of the third one then, which is over at 112 s.
    """
    held = [(NOW_S + 8, {0: 1}), (NOW_S + 15, {0: 1})]
    waiting = [job(1, 3), job(2, 2), job(3, 1, limit=12)]

    assert started(waiting, [1], held) == {3: [0]}


def test_backfill_rounds_planned_starts_down_to_its_resolution() -> None:
    """At 100 s the end at 130 s counts as 120 s: a job of 25 s would be in the way."""
    minutes = Backfill(resolution_s=60.0, precision_s=0.0, window_s=1e9, max_jobs=100)
    held = [(NOW_S + 30, {0: 2})]
    waiting = [job(1, 4), job(2, 2, limit=25)]

    assert started(waiting, [2], held) == {2: [0]}
    assert started(waiting, [2], held, how=minutes) == {}


def test_backfill_takes_ends_that_are_close_together_for_one() -> None:
    """With ends at 105 and 125 s and a precision of 30 s the first job is planned for 125 s."""
    rough = Backfill(resolution_s=0.0, precision_s=30.0, window_s=1e9, max_jobs=100)
    held = [(NOW_S + 5, {0: 1}), (NOW_S + 25, {0: 1})]
    waiting = [job(1, 3), job(2, 2, limit=20)]

    assert started(waiting, [2], held) == {}
    assert started(waiting, [2], held, how=rough) == {2: [0]}


def test_backfill_plans_nothing_beyond_its_window() -> None:
    short = Backfill(resolution_s=0.0, precision_s=0.0, window_s=50.0, max_jobs=100)
    waiting = [job(1, 4), job(2, 2, limit=1000)]
    held = [(NOW_S + 60, {0: 2})]

    assert started(waiting, [2], held) == {}
    assert started(waiting, [2], held, how=short) == {2: [0]}


def test_backfill_looks_at_so_many_jobs_and_no_more() -> None:
    one = Backfill(resolution_s=0.0, precision_s=0.0, window_s=1e9, max_jobs=1)

    assert started([job(1, 4), job(2, 1)], [2], [(NOW_S + 60, {0: 2})], how=one) == {}


def test_backfill_respects_a_seal_until_it_lapses() -> None:
    """The job is planned for the lapse at 150 s; a shorter one on the other node may go before."""
    seal = [sealed("a", [True, False], NOW_S + 50)]
    waiting = [job(1, 2, nodes=2, limit=100), job(2, 2, limit=40), job(3, 2, limit=60)]

    assert started(waiting, [2, 2], reserved=seal) == {2: [1]}
    assert started([waiting[0], waiting[2]], [2, 2], reserved=seal) == {}


def neighbours_first(fits: Sequence[int], wanted: int) -> list[int]:
    """Nodes by Slurm's rule, by looking at every run of neighbours."""
    chosen: list[int] = []
    left = sorted(fits)
    while len(chosen) < wanted:
        runs = [
            [n for n in left if all(k in left for k in range(first, n + 1)) and n >= first]
            for first in left
            if first - 1 not in left
        ]
        need = wanted - len(chosen)
        enough = [r for r in runs if len(r) >= need]
        best = min(enough or runs, key=lambda r: (len(r) if enough else -len(r), r[0]))
        chosen += best[:need]
        left = [n for n in left if n not in best]
    return sorted(chosen)


def planned_by_force(
    waiting: Sequence[WaitingJob], free: Sequence[int], held: Held, reserved: Sequence[Reserved]
) -> dict[int, list[int]]:
    """Conservative backfill from its definition: what starts now.

    Each job in turn gets the earliest instant at which nodes hold it that no better job has been
    promised for any of its time. Something only changes when a run or a promise begins or ends.
    """
    m = len(free)
    room = [*free]
    ends = [(end, dict(on)) for end, on in held]
    promised: list[tuple[float, float, list[int]]] = []
    now = {}
    for one in waiting:
        instants = {NOW_S, *(e for e, _ in ends), *(r.end_s for r in reserved)}
        instants |= {edge for a, b, _ in promised for edge in (a, b)}
        for t in sorted(i for i in instants if i >= NOW_S):
            unpromised = [
                n
                for n in range(m)
                if not (one.excluded is not None and one.excluded[n])
                and not any(
                    r.nodes[n] and r.name != one.reservation and r.end_s > t for r in reserved
                )
                and not any(n in on and a <= t + one.limit_s and b > t for a, b, on in promised)
            ]
            # Of the nodes that hold it then, those that have held it for longest.
            for end_s in sorted({NOW_S, *(e for e, _ in ends if e <= t)}):
                there = [
                    room[n] + sum(on.get(n, 0) for e, on in ends if e <= end_s) for n in range(m)
                ]
                fits = [n for n in unpromised if there[n] >= one.share]
                if len(fits) >= one.n_nodes:
                    break
            if len(fits) < one.n_nodes:
                continue
            nodes = neighbours_first(fits, one.n_nodes)
            # Which of two things at one instant comes first is Slurm's business, not the rule's.
            assume(t + one.limit_s not in instants)
            if t == NOW_S:
                now[one.job] = nodes
                room = [r - one.share * (n in nodes) for n, r in enumerate(room)]
                ends.append((t + one.limit_s, dict.fromkeys(nodes, one.share)))
            else:
                promised.append((t, t + one.limit_s, nodes))
            break
    return now


@st.composite
def queues(
    draw: st.DrawFn,
) -> tuple[list[WaitingJob], list[int], list[tuple[float, dict[int, int]]], list[Reserved]]:
    """A small cluster in the middle of its work, where no two things end at the same time."""
    m = draw(st.integers(1, 4))
    seconds = st.integers(1, 10**9)
    free = draw(st.lists(st.integers(0, 2), min_size=m, max_size=m))
    *ends, lapse = draw(st.lists(seconds, min_size=1, max_size=7, unique=True))
    held = [(NOW_S + end, {draw(st.integers(0, m - 1)): draw(st.integers(1, 2))}) for end in ends]
    seal = [draw(st.booleans()) for _ in range(m)]
    reserved = [sealed("a", seal, NOW_S + lapse)] if any(seal) else []
    waiting = [
        WaitingJob(
            job=number,
            n_nodes=draw(st.integers(1, m)),
            share=draw(st.integers(1, 3)),
            limit_s=float(draw(seconds)),
            reservation="a" if reserved and draw(st.booleans()) else "",
            excluded=np.array([draw(st.booleans()) for _ in range(m)]) if number % 2 else None,
        )
        for number in range(draw(st.integers(1, 7)))
    ]
    return waiting, free, held, reserved


@settings(max_examples=300, deadline=None)
@given(queue=queues())
def test_backfill_equals_a_planner_that_tries_everything(
    queue: tuple[list[WaitingJob], list[int], list[tuple[float, dict[int, int]]], list[Reserved]],
) -> None:
    waiting, free, held, reserved = queue
    forever = Backfill(resolution_s=0.0, precision_s=0.0, window_s=1e18, max_jobs=100)

    assert started(waiting, free, held, reserved, forever) == planned_by_force(
        waiting, free, held, reserved
    )


@pytest.mark.parametrize(
    ("fits", "wanted", "nodes"),
    [
        ([0, 2, 3], 1, [0]),
        ([0, 2, 3], 2, [2, 3]),
        ([0, 1, 3], 1, [3]),
        ([0, 1, 2, 4, 5], 2, [4, 5]),
        ([0, 2, 4, 5], 3, [0, 4, 5]),
        ([0, 2, 4], 3, [0, 2, 4]),
    ],
)
def test_nodes_are_neighbours_where_they_can_be(
    fits: list[int], wanted: int, nodes: list[int]
) -> None:
    """The shortest run of neighbours that is long enough; what 22.05.8 was seen to do."""
    free = [2 if node in fits else 0 for node in range(6)]

    assert main_started([job(1, 2, nodes=wanted)], free) == {1: nodes}
