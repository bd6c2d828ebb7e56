"""Finish-time fairness and Jain's index, on cases that can be worked out on paper."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import Life, life, records_of, workloads

from slurm_dl.report.summary_metrics import (
    finish_time_fairness,
    mean_jobs_present,
    summarise,
)

ADA, BOB = (life(0, (0, 100), user="ada"), life(0, (9990, 10000), user="bob"))
ALIKE = [life(0, (10, 20)), life(0, (9, 18), gpus=8, user="bob"), life(5, (6, 7), user="cyd")]


@pytest.mark.parametrize(
    ("lives", "index"),
    [
        pytest.param(ALIKE, 1, id="each got half of what was asked for"),
        pytest.param([ADA, BOB], 1.001**2 / (2 * (1 + 0.001**2)), id="one has it all"),
        pytest.param(
            [ADA] * 50 + [life(0, (10, 20), user="bob")], 1.5**2 / (2 * 1.25),
            id="users are weighed, not jobs",
        ),
        pytest.param([ADA, ADA], math.nan, id="one user has nobody to share with"),
    ],
)  # fmt: skip
def test_jain(lives: list[Life], index: float) -> None:
    assert summarise(records_of(lives), gpus=1).jain == pytest.approx(index, nan_ok=True)


def turns(count: int, **more: float) -> list[Life]:
    """Jobs of 100 s that come at once, and run one after the other."""
    return [life(0, (i * 100, i * 100 + 100), alone=100, **more) for i in range(count)]


@pytest.mark.parametrize(
    ("lives", "gpus", "rho"),
    [
        pytest.param([life(7, (7, 107), gpus=8, alone=100)], 8, [1], id="alone on the cluster"),
        # The second lives 200 s, half of them beside the first: N = 1.5, so it was owed 150 s.
        pytest.param(turns(2), 1, [0.5, 200 / 150], id="fair to the last"),
        # The last lives 300 s, with three, two and one jobs: N = 2, so it was owed 200 s.
        pytest.param(turns(3), 1, [1 / 3, 200 / 250, 300 / 200], id="the last is the worst off"),
        # Two jobs of a GPU on 8 are owed 4 each, and can use 1.
        pytest.param(
            [life(0, (50, 150), alone=100), life(0, (0, 150), alone=150)], 8, [1.5, 1],
            id="a share larger than the job",
        ),
        # Each of eight is owed a GPU of the 8 that it asks for.
        pytest.param(
            turns(1, gpus=8) + [life(0, gpus=8)] * 7, 8, [1 / 8, *[math.nan] * 7],
            id="a share smaller than the job",
        ),
        pytest.param(
            [life(5, (5, 5), alone=10), life(0, (0, 50), alone=50)], 1, [0, 1], id="no time at all"
        ),
    ],
)  # fmt: skip
def test_finish_time_fairness(lives: list[Life], gpus: int, rho: list[float]) -> None:
    """Against the time on an equal share, and of all jobs the worst."""
    records = records_of(lives)
    assert finish_time_fairness(records, gpus=gpus).tolist() == pytest.approx(rho, nan_ok=True)
    assert summarise(records, gpus=gpus).rho.max == pytest.approx(np.nanmax(rho))


def test_jobs_that_are_present() -> None:
    """One that never started shares the cluster with all later ones; one of no time is alone."""
    unfinished = records_of([life(0), life(1000, (1000, 1010), alone=10)])
    assert mean_jobs_present(unfinished).tolist() == pytest.approx([math.nan, 2], nan_ok=True)
    instant = records_of([life(5, (5, 5), alone=10), life(0, (0, 50), alone=50)])
    assert mean_jobs_present(instant)[0] == 1


def test_a_job_is_unfairly_treated_from_five_percent_on() -> None:
    """Alone on the cluster for 100 s: 104 s are within the bound, 106 s are not."""
    lives = [life(0, (4, 104), alone=100), life(1000, (1006, 1106), alone=100)]

    assert summarise(records_of(lives), gpus=1).unfair_frac == 0.5


def second_by_second(lives: list[Life], gpus: int) -> list[Fraction]:
    """Rho of jobs whose times are whole seconds: every second is looked at, in exact fractions."""
    rhos = []
    for one in lives:
        seconds = range(round(one.submit), round(one.end))
        present = [sum(o.submit <= t < o.end for o in lives) for t in seconds]
        n = Fraction(sum(present), len(present))
        share = Fraction(gpus) / n
        # On a share smaller than its GPUs it advances by share / GPUs in a second.
        alone_on_it = Fraction(round(one.alone)) / min(Fraction(1), share / round(one.gpus))
        rhos.append(len(seconds) / alone_on_it)
    return rhos


@st.composite
def whole_lives(draw: st.DrawFn) -> Life:
    """A job of whole seconds that waits, runs once and ends."""
    submit, wait, length = draw(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)))
    gpus = draw(st.sampled_from([1, 2, 8]))
    start = submit + wait
    return life(submit, (start, start + length), gpus=gpus, alone=draw(st.integers(1, length)))


@settings(max_examples=40)
@given(lives=st.lists(whole_lives(), min_size=1, max_size=7), gpus=st.sampled_from([1, 4, 16]))
def test_rho_is_what_counting_the_jobs_of_every_second_gives(lives: list[Life], gpus: int) -> None:
    """Of each job, and the worst of all that a comparison tells."""
    records = records_of(lives)
    expected = second_by_second(lives, gpus)

    assert finish_time_fairness(records, gpus=gpus).tolist() == pytest.approx(
        [float(rho) for rho in expected]
    )
    assert summarise(records, gpus=gpus).rho.max == pytest.approx(float(max(expected)))


@settings(max_examples=30)
@given(lives=workloads)
def test_jain_is_the_textbooks_over_users(lives: list[Life]) -> None:
    """Plain Python, user by user; what a user was given against what was asked for."""
    asked: dict[str, float] = {}
    given_to: dict[str, float] = {}
    for one in lives:
        if not math.isnan(one.end) and one.jct > 0:
            asked[one.user] = asked.get(one.user, 0) + one.gpus * one.jct
            given_to[one.user] = given_to.get(one.user, 0) + one.gpus * one.running
    x = [given_to[user] / asked[user] for user in asked]
    squares = len(x) * sum(v * v for v in x)
    expected = sum(x) ** 2 / squares if squares > 0 and len(x) > 1 else math.nan

    found = summarise(records_of(lives), gpus=4).jain

    assert found == pytest.approx(expected, nan_ok=True)


@settings(max_examples=30)
@given(lives=workloads)
def test_contention_is_at_least_the_job_itself_and_at_most_all(lives: list[Life]) -> None:
    """A mean of counts between 1 and the number of jobs."""
    contention = mean_jobs_present(records_of(lives))
    known = contention[~np.isnan(contention)]

    assert (known >= 1).all()
    assert (known <= len(lives) + 1e-9).all()
