"""Life tables: the product limit by a plain loop, and what is left after the last end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_oracle import APART, Times, product_limit

from slurm_dl.policies.arithmetic.life_table import Counts, life_tables


def table(*groups: Times) -> tuple[list[float], list[list[float]]]:
    """Support and probabilities of each group."""
    counts = []
    for ended in (True, False):
        pairs = [(g, t) for g, times in enumerate(groups) for t, e in times if e == ended]
        group = np.array([g for g, _ in pairs], dtype=np.int64)
        counts.append(Counts.of(group, np.array([t for _, t in pairs], dtype=float), len(groups)))
    found = life_tables(*counts)
    return found.at.tolist(), found.mass.tolist()


@st.composite
def drawn(draw: st.DrawFn) -> Times:
    """Ends, some equal, and censored times at which nobody ends."""
    ends = draw(st.lists(st.sampled_from(APART[::2]), min_size=1, max_size=15))
    more = draw(st.lists(st.sampled_from(APART[1::2]), max_size=15))
    return [*((t, True) for t in ends), *((t, False) for t in more)]


@given(times=drawn())
def test_it_is_the_product_limit(times: Times) -> None:
    """Where ends and censored times share no bin the bins lose nothing."""
    at, [mass] = table(times)

    expected = product_limit(times)
    assert at == pytest.approx(list(expected))
    assert mass == pytest.approx(list(expected.values()), abs=1e-12)


@given(groups=st.lists(drawn(), min_size=2, max_size=4))
def test_groups_share_the_support_and_nothing_else(groups: list[Times]) -> None:
    """Each has its own probabilities; the time beyond all is that of the largest of all groups."""
    at, masses = table(*groups)

    for times, mass in zip(groups, masses, strict=True):
        *_, left = expected = product_limit(times)
        there = {**dict.fromkeys(range(len(at)), 0.0)}
        there |= {
            int(np.argmin(np.abs(np.array(at) - t))): p for t, p in expected.items() if t != left
        }
        there[len(at) - 1] += expected[left]
        assert mass == pytest.approx([there[i] for i in range(len(at))], abs=1e-12)


def test_without_censored_times_it_is_the_empirical_distribution() -> None:
    """A bin has the mean of its times; nothing is beyond."""
    times = np.random.default_rng(1).lognormal(5, 2, 3000)
    at, [mass] = table([(t, True) for t in times.tolist()])

    assert sum(mass) == pytest.approx(1)
    assert mass[-1] == pytest.approx(0)
    assert np.dot(at[:-1], mass[:-1]) == pytest.approx(times.mean())
    upto = np.cumsum(mass)[:-1]
    between = np.sqrt(np.array(at[:-2]) * np.array(at[1:-1]))
    shares = [(times <= t).mean() for t in between.tolist()]
    assert upto[:-1] == pytest.approx(shares, abs=0.03)


@pytest.mark.parametrize(
    ("times", "at", "mass"),
    [
        # One end, three jobs far beyond it: they end at twice the largest time.
        ([(10.0, True), *[(500.0, False)] * 3], [10, 1000], [1 / 4, 3 / 4]),
        # A job censored in the bin of an end is at risk for half of it.
        ([(10.0, True), (10.0, False)], [10, 20], [2 / 3, 1 / 3]),
        # The last end was at risk alone: nothing is left.
        ([(10.0, True), (5.0, False)], [10, 20], [1, 0]),
        # Ends of one bin are at their mean.
        ([(10.0, True), (10.2, True), (90.0, True)], [10.1, 90, 180], [2 / 3, 1 / 3, 0]),
        # Beyond the bins.
        ([(1e-9, True), (1e12, True)], [1e-9, 1e12, 2e12], [1 / 2, 1 / 2, 0]),
    ],
)
def test_tables_by_hand(times: Times, at: list[float], mass: list[float]) -> None:
    found_at, [found] = table(times)

    assert found_at == pytest.approx(at)
    assert found == pytest.approx(mass, abs=1e-12)


def test_a_group_without_an_end_lies_beyond_and_no_group_is_not_counted() -> None:
    """It ends at twice the largest time; jobs of group -1 are nowhere."""
    at, masses = table([(10.0, True)], [(70.0, False)])
    assert at == pytest.approx([10, 140])
    assert masses == [pytest.approx([1, 0]), pytest.approx([0, 1])]

    counts = Counts.of(np.array([-1, 0]), np.array([10.0, 20.0]), 1)
    assert counts.number.sum() == 1
    assert counts.total.sum() == 20


def test_pooled_groups_are_one() -> None:
    """The same as if all were of one group."""
    group, times = np.array([0, 1, 1, 2]), np.array([3.0, 9.0, 3.0, 81.0])
    pooled = Counts.of(group, times, 3).pooled()
    one = Counts.of(np.zeros(4, dtype=np.int64), times, 1)

    assert np.array_equal(pooled.number, one.number)
    assert pooled.total == pytest.approx(one.total)
