"""The index with setup costs: closed forms, the definition by brute force, and the tables."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_oracle import Law, index_of

from slurm_dl.policies.arithmetic.run_time_model import Distributions, indices, setup_cost_index
from slurm_dl.policies.gittins import gittins_index

F64 = npt.NDArray[np.float64]


def found(law: Law, age: float, setup: float) -> float:
    """The index of one job; weights are made to add up to 1."""
    at, weight = np.array(sorted(law)).T
    one = setup_cost_index(at, weight / weight.sum(), np.array([age]), np.array([setup]))
    return float(one[0])


@pytest.mark.parametrize(
    ("age", "setup", "index"), [(0, 0, 10), (0, 3, 13), (4, 3, 9), (9.5, 0, 0.5), (10, 3, 13)]
)
def test_of_a_known_run_time_it_is_what_is_left_and_the_setup(
    age: float, setup: float, index: float
) -> None:
    """Beyond the run time as long again as it has run."""
    assert found([(10.0, 1.0)], age, setup) == pytest.approx(index)


@pytest.mark.parametrize("age", [0.0, 0.5])
@pytest.mark.parametrize("setup", [0.0, 1.0, 17.0, 18.0, 19.0, 1e4])
def test_of_two_run_times_a_large_setup_changes_the_aim(age: float, setup: float) -> None:
    """1 with 0.9, else 181: up to the first costs (1 - a + c) / 0.9, up to the second the mean."""
    mean = 0.9 * 1 + 0.1 * 181 - age
    first, second = (1 - age + setup) / 0.9, mean + setup

    # They are equal where 0.1 c = 0.9 mean - (1 - a).
    changes_at = (0.9 * mean - (1 - age)) / 0.1
    assert found([(1, 0.9), (181, 0.1)], age, setup) == pytest.approx(min(first, second))
    assert (first < second) == (setup < changes_at)


def test_of_two_run_times_the_aim_changes_at_the_threshold() -> None:
    """Below it the slope in c is 1 / 0.8, above it 1."""
    law = [(2.0, 0.8), (12.0, 0.2)]
    threshold = (0.8 * 4.0 - 2.0) / 0.2

    below, at, above = (found(law, 0, threshold + more) for more in (-1, 0, 1))
    assert (at - below, above - at) == pytest.approx((1 / 0.8, 1))


GEOMETRIC = (np.arange(1.0, 4000.0), 0.01 * 0.99 ** np.arange(3999))
"""Memoryless: each second a job ends with 0.01; its mean is 100 s."""


@pytest.mark.parametrize("age", [0.0, 1.0, 50.0, 700.0])
@pytest.mark.parametrize("setup", [0.0, 40.0, 5000.0])
def test_of_a_memoryless_run_time_it_is_the_mean_and_the_setup(age: float, setup: float) -> None:
    """With a setup nothing is better than to go on to the end; the age tells nothing."""
    one = setup_cost_index(*GEOMETRIC, np.array([age]), np.array([setup]))

    assert one[0] == pytest.approx(100 + setup, rel=1e-3)


@pytest.mark.parametrize(("age", "setup", "index"), [(0, 0, 50.05), (0, 30, 80.05), (60, 8, 28.05)])
def test_of_an_even_run_time_it_goes_to_the_end(age: float, setup: float, index: float) -> None:
    """0.1 to 100 in steps of 0.1: the hazard rises, so the mean of what is left, and the setup."""
    law = [(k / 10, 1.0) for k in range(1, 1001)]

    assert found(law, age, setup) == pytest.approx(index)


LAWS = st.lists(
    st.tuples(st.integers(1, 60).map(float), st.integers(1, 9).map(float)),
    min_size=1,
    max_size=8,
    unique_by=lambda point: point[0],
)
SETUPS = st.sampled_from([0.0, 0.5, 3.0, 20.0, 300.0])


@given(law=LAWS, age=st.integers(0, 65), setup=SETUPS)
def test_it_is_the_least_over_all_aims(law: Law, age: int, setup: float) -> None:
    """Ages at, between and beyond the points."""
    assert found(law, age, setup) == pytest.approx(index_of(law, age, setup))


@given(law=LAWS, age=st.integers(0, 65))
def test_it_rises_with_the_setup_and_is_concave(law: Law, age: int) -> None:
    """By at least the setup itself, as a completion costs one start or more."""
    index = np.array([found(law, age, c) for c in range(0, 60, 3)])
    slope = np.diff(index) / 3

    assert (slope >= 1 - 1e-9).all()
    assert (np.diff(slope) <= 1e-9).all()


@given(
    sizes=st.lists(st.integers(1, 60).map(float), min_size=1, max_size=12), age=st.integers(0, 59)
)
def test_without_a_setup_it_is_the_reciprocal_of_the_gittins_index(
    sizes: list[float], age: int
) -> None:
    """As policy `gittins` computes it of the same sizes."""
    gain = gittins_index(np.array(sizes), age)
    law = [(size, float(sizes.count(size))) for size in set(sizes)]

    if gain:
        assert found(law, age, 0) == pytest.approx(1 / gain)
    else:
        assert found(law, age, 0) == age


def heavy_tails() -> Distributions:
    """Lognormal and Pareto, in two hundred bins of equal ratio."""
    at = np.geomspace(1.0, 1e6, 200)
    tails = np.stack([1 - _lognormal(at, 6.0, 2.0), (1 + at / 100) ** -0.8])
    left = np.concatenate([np.ones((2, 1)), tails[:, :-1], np.zeros((2, 1))], axis=1)
    return Distributions(at, left[:, :-1] - left[:, 1:])


def _lognormal(x: F64, mu: float, sigma: float) -> F64:
    """P(S <= x)."""
    return np.array([0.5 + 0.5 * math.erf((math.log(v) - mu) / sigma / 2**0.5) for v in x.tolist()])


@pytest.mark.parametrize(
    ("at_points", "setup", "most"), [(True, 0.0, 1e-9), (True, 180.0, 0.02), (False, 180.0, 0.25)]
)
def test_of_many_jobs_it_is_interpolated(setup: float, most: float, *, at_points: bool) -> None:
    """Exact at the points; with setup costs, and between points, within some percent.

    Just before a point the exact index falls to the setup cost, the interpolated one does not; so
    between points of ages only those count that are at most ten times the setup cost.
    """
    random = np.random.default_rng(5)
    n, known = 3000, heavy_tails()
    group, costs = random.integers(0, 2, n), setup * random.uniform(0.3, 3, n)
    age = random.choice(known.at, n) if at_points else random.uniform(0, 10 * costs)
    age[:4] = [0.0, 1.0, 1e6, 2e6]

    exact = setup_cost_index(known.at, known.mass[group], age, costs)
    error = np.abs(indices(known, group, age, costs) / exact - 1)
    assert error.max() < most
    assert error[:4].max() < 0.02
    assert error.mean() < 0.04


def test_of_few_jobs_it_is_exact() -> None:
    """At any age."""
    known, age, setup = heavy_tails(), np.array([0.0, 55.5, 4e4, 3e6]), np.array([0, 9, 80, 7.0])
    group = np.array([0, 1, 1, 0])

    exact = setup_cost_index(known.at, known.mass[group], age, setup)
    assert indices(known, group, age, setup).tolist() == exact.tolist()
