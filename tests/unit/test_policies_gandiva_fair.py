"""Shares by tickets and the trade between GPU types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import build
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.model.jobs import JobRow
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.gandiva_fair import GandivaFair, fill, trade, trade_types

F64 = npt.NDArray[np.float64]


def cluster(
    rows: Sequence[JobRow],
    accounts: Mapping[int, str],
    supply: Sequence[float] = (8, 8),
    rates: Sequence[Sequence[float]] | None = None,
) -> Snapshot:
    """One node of each type; accounts by job id; rates in the order of *rows*."""
    texts = build.texts(account=accounts)
    seen = build.observed(rows, **build.node_of_each_type(supply), texts=texts)
    return build.snapshot(seen, rates=None if rates is None else np.array(rates, dtype=float))


def gpus_given(snap: Snapshot, policy: GandivaFair) -> F64:
    """``(n, t)`` GPUs that the shares come to."""
    share = policy.order(snap).share
    assert (share >= 0).all()
    assert (share.sum(axis=1) <= 1 + 1e-12).all()
    given_ = share * snap.jobs.gpus[:, None]
    assert (given_.sum(axis=0) <= [8 + 1e-9, 8 + 1e-9][: share.shape[1]]).all()
    return given_


# ---- trade ------------------------------------------------------------------------------------


def test_trade_gives_the_published_shares() -> None:
    """Shares .33, .33, .34 and speed-ups 4, 6, 8; first at price 6, then at price 4.

    By hand: C gives A .34 slow for .34 / 6 fast, then B gives A .33 slow for .33 / 4 fast.
    """
    shares = np.array([0.33, 0.33, 0.34])
    fast, slow = trade(shares, shares, np.array([4.0, 6.0, 8.0]))

    np.testing.assert_allclose(fast, [0.1908, 0.4125, 0.3967], atol=5e-5)
    np.testing.assert_allclose(
        fast, [0.33 - 0.34 / 6 - 0.33 / 4, 0.33 + 0.33 / 4, 0.34 + 0.34 / 6], rtol=1e-12
    )
    np.testing.assert_allclose(slow, [1, 0, 0], atol=1e-12)


TRADERS = st.lists(
    st.tuples(
        st.integers(0, 20).map(float),
        st.integers(0, 20).map(float),
        st.sampled_from([0.5, 1.0, 1.2, 2.0, 3.0, 3.5, 8.0]),
        st.sampled_from([0.0, 0.5, 4.0, math.inf]),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=200)
@given(traders=TRADERS)
def test_trade_makes_nobody_slower_and_keeps_what_there_is(
    traders: list[tuple[float, float, float, float]],
) -> None:
    """Totals by type stay, nobody gets less done, and nobody holds more than it can use."""
    fast, slow, speed_up, more = (np.array(column) for column in zip(*traders, strict=True))
    most = fast + slow + more
    new_fast, new_slow = trade(fast, slow, speed_up, most)

    assert new_fast.sum() == pytest.approx(fast.sum())
    assert new_slow.sum() == pytest.approx(slow.sum())
    assert (new_fast >= 0).all()
    assert (new_slow >= 0).all()
    assert (new_fast * speed_up + new_slow >= (fast * speed_up + slow) * (1 - 1e-9) - 1e-9).all()
    assert (new_fast + new_slow <= most + 1e-9).all()


@given(traders=TRADERS)
def test_after_trade_no_two_would_still_gain(
    traders: list[tuple[float, float, float, float]],
) -> None:
    """Who has slow GPUs values fast ones no more than anybody who still has them to sell."""
    fast, slow, speed_up, _ = (np.array(column) for column in zip(*traders, strict=True))
    new_fast, new_slow = trade(fast, slow, speed_up)

    buyers, sellers = speed_up[new_slow > 1e-6], speed_up[new_fast > 1e-6]
    if len(buyers) and len(sellers):
        assert buyers.max() <= sellers.min()


def test_a_seller_takes_no_more_slow_gpus_than_it_has_work_for() -> None:
    """At price 2 it gains one GPU for each it sells, and has work for half a GPU more."""
    fast, slow = trade(
        np.array([1.0, 1.0]), np.array([4.0, 4.0]), np.array([2.0, 5.0]), np.array([5.5, 5.0])
    )

    np.testing.assert_allclose(fast, [0.5, 1.5])
    np.testing.assert_allclose(slow, [5.0, 3.0])


def test_equal_speed_ups_do_not_trade() -> None:
    """There is nothing to gain."""
    had = np.array([1.0, 2.0])
    fast, slow = trade(had, had, np.array([3.0, 3.0]))

    assert fast.tolist() == slow.tolist() == [1.0, 2.0]


# ---- shares by tickets ------------------------------------------------------------------------


def levels_by_bisection(wants: list[float], tickets: list[float], room: float) -> list[float]:
    """Water-filling by bisection of the level."""
    low, high = 0.0, max(w / t for w, t in zip(wants, tickets, strict=True)) + 1
    for _ in range(200):
        level = (low + high) / 2
        used = sum(min(w, t * level) for w, t in zip(wants, tickets, strict=True))
        low, high = (level, high) if used <= room else (low, level)
    return [min(w, t * low) for w, t in zip(wants, tickets, strict=True)]


@settings(max_examples=100)
@given(
    tenants=st.lists(
        st.tuples(st.integers(1, 30).map(float), st.integers(1, 5).map(float)),
        min_size=1,
        max_size=6,
    ),
    fast_gpus=st.integers(1, 16),
)
def test_gpus_are_filled_up_by_tickets(tenants: list[tuple[float, float]], fast_gpus: int) -> None:
    """Over both types together it is water-filling, and each type is parted like the whole."""
    wants, tickets = [t[0] for t in tenants], [t[1] for t in tenants]
    supply = np.array([float(fast_gpus), 8.0])
    able = np.ones((len(tenants), 2), dtype=np.bool_)
    has = fill(np.array(wants), able, np.arange(len(tenants)), np.array(tickets), supply)

    expected = np.array(levels_by_bisection(wants, tickets, float(supply.sum())))
    np.testing.assert_allclose(has.sum(axis=1), expected, rtol=1e-9)
    np.testing.assert_allclose(has, expected[:, None] * supply / supply.sum(), rtol=1e-9)


@settings(max_examples=60)
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from([1, 2, 4, 8]),
            st.sampled_from([-1, 0, 1]),
            st.sampled_from([1.0, 2.0, 5.0]),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_nobody_gets_less_done_than_without_trade(
    jobs: list[tuple[str, int, int, float]],
) -> None:
    """Each tenant's effective GPUs, against the same jobs of which no rate is known."""
    rows = [build.pending(i + 1, g, gpu_type=k) for i, (_, g, k, _) in enumerate(jobs)]
    accounts = {i + 1: a for i, (a, _, _, _) in enumerate(jobs)}
    rates = np.array([[r, 1.0] for *_, r in jobs])
    traded = gpus_given(cluster(rows, accounts, rates=rates.tolist()), GandivaFair())
    plain = gpus_given(cluster(rows, accounts), GandivaFair())

    np.testing.assert_allclose(traded.sum(axis=0), plain.sum(axis=0), rtol=1e-9)
    for account in set(accounts.values()):
        own = [a == account for a in accounts.values()]
        assert (traded * rates)[own].sum() >= (plain * rates)[own].sum() * (1 - 1e-9)


def test_tickets_decide_and_a_gang_pays_for_its_gpus() -> None:
    """Three to one, whether a tenant's work is one gang of eight or eight jobs of one GPU."""
    rows = [build.pending(1, 8), *(build.pending(i, 1) for i in range(2, 10))]
    accounts = {1: "gang", **dict.fromkeys(range(2, 10), "small")}
    policy = GandivaFair(tickets=(("gang", 3.0),))
    given_ = gpus_given(cluster(rows, accounts, supply=(8,)), policy)

    assert given_[0].tolist() == pytest.approx([6.0])
    np.testing.assert_allclose(given_[1:], 0.25)


def test_what_a_tenant_does_not_want_goes_to_the_others() -> None:
    """One wants a single GPU of sixteen."""
    rows = [build.pending(1, 1), build.pending(2, 8), build.running(3, 8)]
    given_ = gpus_given(cluster(rows, {1: "a", 2: "b", 3: "b"}), GandivaFair())

    np.testing.assert_allclose(given_.sum(axis=1), [1.0, 7.5, 7.5])


def test_a_job_has_no_share_of_a_type_it_cannot_run_on() -> None:
    """It asks for the second type, and has its half of that."""
    rows = [build.pending(1, 8, gpu_type=1), build.pending(2, 8)]
    given_ = gpus_given(cluster(rows, {1: "a", 2: "b"}), GandivaFair())

    np.testing.assert_allclose(given_[0], [0, 4])
    assert given_[1].sum() == pytest.approx(8)


def test_tenants_trade_where_rates_are_known() -> None:
    """Whose jobs gain eightfold get fast GPUs for slow ones from those whose gain twofold."""
    rows = [build.pending(1, 8), build.pending(2, 8), build.pending(3, 8), build.pending(4, 8)]
    rates = [[2, 1], [2, 1], [8, 1], [8, 1]]
    snap = cluster(rows, {1: "a", 2: "a", 3: "b", 4: "b"}, rates=rates)
    given_ = gpus_given(snap, GandivaFair())

    # Each had 4 + 4. b gives all its slow ones at a's price, 2, for two fast ones.
    np.testing.assert_allclose(given_[:2].sum(axis=0), [2, 8])
    np.testing.assert_allclose(given_[2:].sum(axis=0), [6, 0], atol=1e-9)


def test_pairs_of_types_trade_farthest_apart_first() -> None:
    """Three types: totals stay, and nobody gets less done."""
    has = np.full((3, 3), 2.0)
    speed = np.array([[1, 1.2, 1.5], [1, 2, 4], [1, 3, 9.0]])
    after = trade_types(has, np.full(3, 20.0), speed, np.ones((3, 3), dtype=np.bool_))

    np.testing.assert_allclose(after.sum(axis=0), 6)
    assert ((after * speed).sum(axis=1) >= (has * speed).sum(axis=1) - 1e-9).all()
    # By hand, fastest for slowest: the third buys .5 at 4, the second 4 / 3 at 1.5, both from the
    # first. Then fastest for middle: the third buys 1 / 6 of the first and 5 / 6 of the second,
    # at 2. Of the slowest only the first has any left.
    expected = [[6, 2 + 1 / 3, 0], [0, 3 + 2 / 3, 2.5], [0, 0, 3.5]]
    np.testing.assert_allclose(after, expected, atol=1e-9)
