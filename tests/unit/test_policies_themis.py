"""Themis: the auction against brute force and its own promise, and both policies on snapshots."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import build
import numpy as np
import numpy.typing as npt
import policy_runs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pasts import past_columns
from policy_runs import Work
from scipy import optimize

from slurm_dl.engine.intent import intend
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.arithmetic.finish_fairness import apps, mean_contention
from slurm_dl.policies.gavel.pool import entrants
from slurm_dl.policies.themis.finish_time_auction import Themis, ThemisConvex, least_worst, standing
from slurm_dl.policies.themis.partial_allocation import Bid, Won, auction

F64 = npt.NDArray[np.float64]


def nash_bid(gpus: F64, speed: Callable[[float], float], left: float, elapsed: float) -> Bid:
    """The bid of an app whose value is 1 / T, T the time from its arrival to its end.

    ``T(G) = elapsed + left / speed(G)``; without GPUs it never ends. The ideal time that 1 / rho
    multiplies by changes no auction: it is the same for all GPUs of an app.

    Args:
        gpus: ``(s,)`` GPUs of each step, above 0.
        speed: Work done in a second by so many GPUs: G S(G).
        left: Work left, above 0.
        elapsed: Seconds since the app arrived, 0 or more.
    """
    total_s = [elapsed + left / speed(count) for count in np.cumsum(gpus).tolist()]
    return Bid(gpus, np.array([0.0, *(1 / t for t in total_s)]))


def concave(start: float, factors: Sequence[float]) -> Bid:
    """A bid of single GPUs whose value grows by these factors, the largest first."""
    growth = np.cumprod(sorted(factors, reverse=True)) if factors else np.zeros(0)
    return Bid(np.ones(len(factors)), np.concatenate([[start], start * growth]))


BIDS = st.lists(
    st.builds(
        concave,
        st.sampled_from([0.1, 0.5, 1.0]),
        st.lists(st.sampled_from([1.05, 1.3, 1.5, 2.0, 4.0]), max_size=4),
    ),
    min_size=1,
    max_size=4,
)


def values(bids: Sequence[Bid], steps: Sequence[int]) -> list[float]:
    """V of each bid after so many steps."""
    return [float(b.value[s]) for b, s in zip(bids, steps, strict=True)]


def best_product(bids: Sequence[Bid], room: float) -> tuple[int, float]:
    """Most values above 0, and their largest product, over every way to hand out the GPUs."""
    found = []
    for steps in itertools.product(*(range(len(b.gpus) + 1) for b in bids)):
        used = sum(float(b.gpus[:s].sum()) for b, s in zip(bids, steps, strict=True))
        if used <= room:
            some = [v for v in values(bids, steps) if v > 0]
            found.append((len(some), math.prod(some)))
    return max(found)


def test_the_published_vector() -> None:
    """Two apps on four GPUs: two each, of which 1.15 and 1.33 are kept."""
    four = np.ones(4)
    first = nash_bid(four, lambda g: g, left=40, elapsed=10)
    second = nash_bid(four, lambda g: g**0.8, left=80, elapsed=0)
    won = auction([first, second], 4)

    assert won.gpus.tolist() == [2, 2]
    assert won.kept == pytest.approx([0.574, 0.667], abs=5e-4)
    assert won.gpus * won.kept == pytest.approx([1.15, 1.33], abs=5e-3)


@settings(max_examples=30, deadline=None)
@given(bids=BIDS, room=st.integers(0, 8), zero=st.booleans())
@example(bids=[concave(0.1, [1.05, 1.05])], room=1, zero=False)
@example(bids=[concave(0.1, [1.5]), concave(1.0, [1.5])], room=1, zero=True)
def test_the_product_is_the_largest_of_all(bids: list[Bid], room: int, *, zero: bool) -> None:
    """Single GPUs with falling gains; also where an app without GPUs has no value at all."""
    if zero:
        bids = [Bid(b.gpus, np.concatenate([[0.0], b.value[1:]])) for b in bids]
    some = [v for v in values(bids, auction(bids, room).steps.tolist()) if v > 0]

    count, product = best_product(bids, room)
    assert len(some) == count
    assert math.prod(some) == pytest.approx(product)


GANGS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([1.0, 2.0, 3.0]), max_size=3),
        st.lists(st.sampled_from([0.1, 0.4, 1.0]), min_size=4, max_size=4),
        st.sampled_from([0.0, 0.3]),
    ).map(
        lambda drawn: Bid(np.array(drawn[0]), np.cumsum([drawn[2], *drawn[1]])[: len(drawn[0]) + 1])
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(bids=GANGS, room=st.integers(0, 9))
def test_what_a_winner_keeps_is_the_harm_it_does(bids: list[Bid], room: int) -> None:
    """The definition: a second auction without the winner, gangs of any size."""
    won = auction(bids, room)
    assert float(won.gpus.sum()) <= room
    for i in range(len(bids)):
        assert won.gpus[i] == bids[i].gpus[: won.steps[i]].sum()
        if not won.steps[i]:
            assert won.kept[i] == 1
            continue
        others = [*bids[:i], *bids[i + 1 :]]
        with_it = values(others, np.delete(won.steps, i).tolist())
        without = values(others, auction(others, room).steps.tolist())
        fewer = with_it.count(0.0) - without.count(0.0)
        ratio = math.prod(v for v in with_it if v) / math.prod(v for v in without if v)
        expected = min(1.0, ratio) if fewer == 0 else float(fewer < 0)
        assert won.kept[i] == pytest.approx(expected)


def utility(honest: Bid, won: Won, i: int, *, pays: bool) -> float:
    """What app *i* has of what it won, by its true value; GPUs beyond its demand are no use."""
    value = float(honest.value[min(int(won.steps[i]), len(honest.gpus))])
    return value * (float(won.kept[i]) if pays else 1.0)


LIES = st.lists(st.sampled_from([1.01, 1.2, 1.5, 3.0, 9.0]), max_size=6)


@settings(max_examples=50, deadline=None)
@given(bids=BIDS, room=st.integers(1, 8), lie=LIES, start=st.sampled_from([0.01, 0.3, 5.0]))
def test_no_lie_brings_more_than_the_honest_bid(
    bids: list[Bid], room: int, lie: list[float], start: float
) -> None:
    """A larger demand, a smaller one, other values: the payment takes back what they bring."""
    honest = utility(bids[0], auction(bids, room), 0, pays=True)
    told = [concave(start, lie), *bids[1:]]

    assert utility(bids[0], auction(told, room), 0, pays=True) <= honest * (1 + 1e-9)


@pytest.mark.parametrize("pays", [True, False])
def test_a_larger_claim_would_pay_without_payments(*, pays: bool) -> None:
    """Two apps alike on four GPUs; one says that it gains more from each than it does."""
    bids = [concave(0.5, [2.0, 1.5, 1.3]), concave(0.5, [2.0, 1.5, 1.3])]
    told = [concave(0.5, [9.0, 9.0, 9.0, 9.0]), bids[1]]

    honest = utility(bids[0], auction(bids, 4), 0, pays=pays)
    lying = utility(bids[0], auction(told, 4), 0, pays=pays)
    assert (lying > honest) is not pays


def jobs_of_user(begin_s: Sequence[float], end_s: Sequence[float]) -> Past:
    """Jobs that are over, all of one user and one name."""
    return past_columns([1.0] * len(begin_s), submit_s=begin_s, end_s=end_s, names=("x",))


@settings(max_examples=30, deadline=None)
@given(
    came=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    over=st.lists(st.tuples(st.integers(-9, 20), st.integers(0, 9)), max_size=6),
)
def test_contention_is_the_mean_number_of_apps(
    came: list[int], over: list[tuple[int, int]]
) -> None:
    """Counted second by second; whoever came just now has seen those that are there."""
    now = 20
    ends = [min(b + length, now) for b, length in over]
    found = mean_contention(
        np.array(came, dtype=np.float64) + 1e9,
        np.array([b for b, _ in over], dtype=np.float64) + 1e9,
        np.array(ends, dtype=np.float64) + 1e9,
        now + 1e9,
    )
    for mine, n in zip(came, found.tolist(), strict=True):
        there = [
            sum(c <= s for c in came)
            + sum(b <= s < e for (b, _), e in zip(over, ends, strict=True))
            for s in range(mine, now)
        ]
        assert n == pytest.approx(max(1.0, float(np.mean(there)) if there else len(came)))


def labelled(
    rows: Sequence[JobRow], labels: dict[int, str], left_s: Sequence[float], **more: object
) -> Snapshot:
    """Jobs on one GPU type with what they have left."""
    texts = {JobId(r.job_id): JobText(label=labels.get(r.job_id, str(r.job_id))) for r in rows}
    seen = dataclasses.replace(build.observed(rows, nodes=(8,)), texts=texts, gpu_types=("a100",))
    snap = build.snapshot(seen, **more)  # type: ignore[arg-type]
    return dataclasses.replace(snap, left_s=np.array(left_s))


def test_an_array_is_an_app_and_its_own_past_is_no_contention() -> None:
    """Two tasks of array 7 and a job; a third task that is over belongs to the app."""
    came_s = build.NOW_S - 100
    rows = [build.pending(i, submit_s=came_s) for i in (1, 2, 3)]
    snap = labelled(rows, {1: "7_1", 3: "7_[2-9]"}, [600.0] * 3)
    texts = {j: dataclasses.replace(t, user="u", name="x") for j, t in snap.seen.texts.items()}
    seen = dataclasses.replace(snap.seen, texts=texts)
    over = jobs_of_user([came_s, came_s - 50], [came_s + 60, came_s + 50])
    found = apps(dataclasses.replace(snap, seen=seen, past=over))

    assert found.of.tolist() == [0, 1, 0]
    assert found.contention.tolist() == [2.5, 2.5]


@pytest.mark.parametrize("gpus", [1, 8])
def test_an_app_alone_is_neither_late_nor_early(gpus: int) -> None:
    """Its rho is 1 while it has all it asks for from the first second on."""
    row = build.running(1, gpus, submit_s=build.NOW_S - 500, ran_s=500)
    snap = labelled([row], {}, [700.0], memory={"ran_s": {1: 500.0}})
    found = standing(snap, entrants(snap, 10), apps(snap), 1200.0)

    assert found.rho == pytest.approx([1.0])
    assert Themis().order(snap).share is not None
    assert intend(snap, Themis()).target.tolist() == [0]


def test_alone_means_on_an_equal_part_of_the_cluster() -> None:
    """Three apps came just now: each has 8/3 GPUs for itself, and no use for more than it asks."""
    rows = [build.pending(i, g, submit_s=build.NOW_S) for i, g in ((1, 4), (2, 1), (3, 8))]
    snap = labelled(rows, {}, [600.0] * 3)
    found = standing(snap, entrants(snap, 10), apps(snap), 1200.0)

    assert found.ideal_s == pytest.approx([600 * 4 * 3 / 8, 600, 600 * 8 * 3 / 8])
    assert found.rho == pytest.approx([2 / 3, 1, 1 / 3])


def shares_of(policy: Themis | ThemisConvex, snap: Snapshot) -> F64:
    """Shares on all types."""
    share = policy.order(snap).share
    total: F64 = share.sum(axis=1)
    return total


def test_the_latest_may_bid_and_the_others_get_what_is_left() -> None:
    """One of five bids, alone, and pays nothing; then by rho as far as the GPUs go."""
    rows = [build.pending(i, 4, submit_s=build.NOW_S - 1000.0 * i) for i in range(1, 6)]
    share = shares_of(Themis(), labelled(rows, {}, [3600.0] * 5))

    assert share.tolist() == [0, 0, 0, 1, 1]


def test_winners_pay_and_what_they_pay_goes_to_the_next() -> None:
    """Three gangs of four bid for eight GPUs; the loser has what the winners do not keep."""
    lease_s = 1200.0
    rows = [build.pending(i, 4, submit_s=build.NOW_S) for i in (1, 2, 3)]
    left_s = np.array([600.0, 1200.0, 2400.0])
    share = shares_of(Themis(fairness=0.0, lease_s=lease_s), labelled(rows, {}, left_s.tolist()))

    # Without either winner job 3 runs at once, and not a lease later.
    kept = left_s[2] / (left_s[2] + lease_s)
    assert share == pytest.approx([kept, kept, 2 * (1 - kept)])


def test_an_app_wins_some_of_its_jobs() -> None:
    """Two tasks of a search win, and two jobs, whose payment is for the third task."""
    rows = [build.pending(i, 2, submit_s=build.NOW_S - 10) for i in range(1, 7)]
    labels = {i: f"9_{i}" for i in (1, 2, 3, 4)}
    share = shares_of(Themis(fairness=0.0), labelled(rows, labels, [600.0] * 6))

    # 4800 GPU-seconds on four GPUs and on six, ten seconds after it came.
    kept = (10 + 4800 / 6) / (10 + 4800 / 4)
    assert share == pytest.approx([1.0, 1.0, 2 * (1 - kept), 0.0, kept, kept])


@settings(max_examples=20, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from([1.0, 2.0, 4.0]),
            st.floats(0, 9000),
            st.floats(60, 9000),
            st.sampled_from(["", "a", "b"]),
        ),
        min_size=1,
        max_size=8,
    ),
    fairness=st.sampled_from([0.0, 0.5, 0.8]),
    order=st.randoms(use_true_random=False),
)
def test_shares_can_be_had_and_do_not_depend_on_the_listing(
    jobs: list[tuple[float, float, float, str]], fairness: float, order: object
) -> None:
    """Never more GPUs than there are, nobody more than its whole time; none left that is wanted."""
    policy = Themis(fairness=fairness)
    rows = [
        build.pending(i + 1, g, submit_s=build.NOW_S - age) for i, (g, age, _, _) in enumerate(jobs)
    ]
    labels = {i + 1: f"{a}_{i}" for i, (*_, a) in enumerate(jobs) if a}
    left_s = {i + 1: left for i, (_, _, left, _) in enumerate(jobs)}

    def found(listing: Sequence[JobRow]) -> dict[int, float]:
        snap = labelled(listing, labels, [left_s[r.job_id] for r in listing])
        return dict(zip(snap.jobs.job_id.tolist(), shares_of(policy, snap).tolist(), strict=True))

    share = found(rows)
    mixed = list(rows)
    order.shuffle(mixed)  # type: ignore[attr-defined]
    assert found(mixed) == share
    assert all(0 <= s <= 1 for s in share.values())
    used = sum(share[r.job_id] * r.gpus for r in rows)
    assert used <= 8 + 1e-6
    assert used == pytest.approx(8) or all(share[r.job_id] > 0 for r in rows)


ONE_TYPE = st.lists(
    st.tuples(st.floats(0, 3), st.floats(0.05, 5), st.sampled_from([1.0, 2.0, 4.0])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(jobs=ONE_TYPE, room=st.sampled_from([4.0, 6.0]))
def test_the_convex_form_equals_a_root_finder_and_a_linear_program(
    jobs: list[tuple[float, float, float]], room: float
) -> None:
    """The largest ratio, by the program for several types, and by Brent's method."""
    past, coming, gpus = (np.array(column) for column in zip(*jobs, strict=True))
    capacity = np.array([room])
    pool = linear_programs.pool(np.arange(len(gpus)), gpus, np.ones((len(gpus), 1)), capacity)
    share = least_worst(past, coming, pool)[:, 0]
    worst = float((past + coming / share).max())

    assert (gpus * share).sum() <= room + 1e-6
    assert share.max() <= 1

    def over(ratio: float) -> float:
        return float((gpus * coming / (ratio - past)).sum()) - room

    floor = float((past + coming).max())
    best = floor if over(floor) <= 0 else optimize.brentq(over, floor, 1e4)
    assert worst == pytest.approx(best, rel=1e-6)
    solved = linear_programs.min_max_ratio(pool, np.ones((len(gpus), 1)), past=past, coming=coming)
    assert worst == pytest.approx(float((past + coming / solved.share[:, 0]).max()), rel=1e-6)


def test_who_can_still_be_helped_is_helped() -> None:
    """One job is late whatever happens; the other two come to one ratio, not just below it."""
    pool = linear_programs.pool(np.arange(3), np.ones(3), np.ones((3, 1)), np.array([2.0]))
    share = least_worst(np.array([9.0, 0.0, 0.0]), np.array([1.0, 1.0, 3.0]), pool)[:, 0]

    assert share == pytest.approx([1.0, 0.25, 0.75])


def test_with_two_types_the_convex_form_puts_jobs_where_they_gain() -> None:
    """Job 1 is four times as fast on the second type, job 2 nowhere faster."""
    rows = [build.pending(i, 4, submit_s=build.NOW_S) for i in (1, 2)]
    snap = build.snapshot(build.observed(rows, **build.node_of_each_type((4, 4))))
    rates = np.array([[1.0, 4.0], [1.0, 1.0]])
    snap = dataclasses.replace(snap, left_s=np.array([3600.0, 3600.0]), rates=rates)
    share = ThemisConvex().order(snap).share

    assert share == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]), abs=1e-6)
    assert intend(snap, Themis()).kind is not None
    assert shares_of(Themis(), snap) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("policy", [Themis(), ThemisConvex()], ids=lambda p: p.name)
def test_jobs_alike_are_served_alike(policy: Themis | ThemisConvex) -> None:
    """Three jobs on one GPU: after many leases nobody is more than two leases ahead."""
    works = [Work(job_id=i, submit_s=build.NOW_S, size_s=1e6) for i in (1, 2, 3)]
    policy_runs.run(policy, works, 1, until_s=build.NOW_S + 30 * 1200)

    ran = [w.ran_s for w in works]
    assert sum(ran) == pytest.approx(30 * 1200)
    assert max(ran) - min(ran) <= 3 * 1200


@pytest.mark.parametrize("policy", [Themis(), ThemisConvex()], ids=lambda p: p.name)
@pytest.mark.parametrize("case", ["none", "no gpus", "down", "large", "unknown", "odd"])
def test_odd_clusters_are_taken_as_they_are(policy: Themis | ThemisConvex, case: str) -> None:
    """No jobs, no GPUs, nodes down, jobs too large, times unknown, jobs held or not ours."""
    rows = [build.pending(1), build.running(2), build.pending(3, 2, submit_s=build.NOW_S)]
    snap = policy_runs.odd_cluster(case, rows)
    if case == "unknown":
        rates = np.array([[0.0, 0.0], [math.nan, 1.0], [1.0, 0.5]])
        left_s = np.array([math.nan, math.inf, 0.0])
        progress = np.array([math.nan, 0.5, 1.0])
        snap = dataclasses.replace(snap, left_s=left_s, rates=rates, progress=progress)
    share = shares_of(policy, snap)

    expected = {"large": [1, 1, 1, 0], "odd": [1, 1, 1, 0, 0, 0, 0], "unknown": [0, 0, 1]}
    assert share.tolist() == expected.get(case, [0] * len(snap.jobs))
    assert policy.next_change_s(snap, policy.order(snap), snap.jobs.start_s > 0) == math.inf
