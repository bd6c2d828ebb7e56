"""Levels of groups: posterior means by hand, what was known before each job, what is not used."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.policies.arithmetic.run_time_levels import Level


def level(keys: list[int], log_s: list[float], parents: list[int] | None = None) -> Level:
    """Groups of *keys*, of one parent if nothing is said."""
    return Level.of(
        np.array(keys, dtype=np.int64),
        np.array(parents or [0] * len(keys), dtype=np.int64),
        np.array(log_s),
    )


def test_posterior_means_by_hand() -> None:
    """Four jobs of 1 and 3, four of 11 and 13; squares 8 within, with 6 degrees of freedom.

    Without the groups 208 with 7. The variance within counts with four jobs of the parent's:
    (8 + 4 x 208 / 7) / (6 + 4); k is that over what it is less than the parent's.
    """
    found = level([7, 9] * 4, [1, 11, 3, 13, 1, 11, 3, 13])
    parent = 208 / 7
    within = (8 + 4 * parent) / 10
    k = within / (parent - within)

    assert (found.key.tolist(), found.jobs.tolist()) == ([7, 9], [4, 4])
    assert found.mean.tolist() == [2, 12]
    assert found.weight == pytest.approx(k)
    jobs, mean = found.find(np.array([9, 8, 7, 10, 0]))
    assert (jobs.tolist(), mean.tolist()) == ([4, 0, 4, 0, 0], [12, 0, 2, 0, 0])
    told = found.posterior(np.array([4.0, 0, 1]), np.array([12.0, 0, 2]), np.array([7.0, 6, 5]))
    assert told == pytest.approx([(48 + 7 * k) / (4 + k), 6, (2 + 5 * k) / (1 + k)])


def test_a_level_that_is_not_used_says_what_its_parent_says() -> None:
    """Equal groups explain nothing."""
    found = level([1, 2, 1, 2], [1.0, 1.0, 5.0, 5.0])

    assert not found.used
    assert found.posterior(np.array([9.0]), np.array([5.0]), np.array([3.0])).tolist() == [3]


@given(
    jobs=st.lists(st.tuples(st.integers(0, 4), st.floats(0, 20)), min_size=1, max_size=30),
)
def test_before_each_job_its_group_had_so_many_jobs_of_such_a_mean(
    jobs: list[tuple[int, float]],
) -> None:
    """Against a loop over the jobs in the order in which they ended."""
    found = level([key for key, _ in jobs], [value for _, value in jobs])

    for i, (key, _) in enumerate(jobs):
        before = [value for other, value in jobs[:i] if other == key]
        assert found.before_jobs[i] == len(before)
        assert found.before_mean[i] == pytest.approx(np.mean(before) if before else 0, abs=1e-9)


def normal(
    groups: int, jobs: int, between: float, within: float, seed: int = 0
) -> tuple[list[int], list[float]]:
    """Groups of so many jobs, with these standard deviations, in any order."""
    random = np.random.default_rng([seed, groups, jobs])
    key = random.permutation(np.repeat(np.arange(groups), jobs))
    log_s = random.normal(8, between, groups)[key] + random.normal(0, within, len(key))
    return key.tolist(), log_s.tolist()


@pytest.mark.parametrize(("between", "within"), [(2.0, 1.0), (1.0, 1.0), (1.0, 1.5), (1.0, 0.3)])
def test_k_is_the_ratio_of_the_variances(between: float, within: float) -> None:
    """Of normal data with many groups."""
    found = level(*normal(400, 10, between, within))

    assert found.weight == pytest.approx((within / between) ** 2, rel=0.2, abs=0.02)


@pytest.mark.parametrize(
    ("between", "jobs", "used"),
    [(0.0, 1, 0), (0.0, 20, 0), (1.5, 1, 0), (1.5, 2, 20), (1.5, 20, 20)],
)
def test_labels_are_used_if_they_differ(between: float, jobs: int, used: int) -> None:
    """In each of twenty draws or in none; with one job each nobody knows whether they do."""
    found = [level(*normal(60, jobs, between, 1.0, seed)).used for seed in range(20)]

    assert sum(found) == used


def test_what_the_parents_explain_is_no_merit_of_their_groups() -> None:
    """Labels that are drawn by lot within users who differ."""
    random = np.random.default_rng(3)
    user = random.integers(0, 10, 2000)
    log_s = 3.0 * user + random.normal(0, 1, 2000)
    label = user * 100 + random.integers(0, 20, 2000)

    assert level(user.tolist(), log_s.tolist()).used
    assert level(label.tolist(), log_s.tolist()).used
    assert not level(label.tolist(), log_s.tolist(), user.tolist()).used


@pytest.mark.parametrize("log_s", [[5.0], [5.0, 5.0, 5.0], [1.0, 9.0]])
def test_of_too_little_nothing_is_told(log_s: list[float]) -> None:
    """One job, equal jobs, or a group for each."""
    found = level(list(range(len(log_s))), log_s)

    assert math.isinf(found.weight)
