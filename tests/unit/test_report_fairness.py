"""Finish-time fairness and Jain's index, on cases that can be worked out on paper."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import Life, life, records_of, workloads

from slurm_dl.model.job_record import Records
from slurm_dl.report.fairness import (
    finish_time_fairness,
    jain,
    mean_jobs_present,
)
from slurm_dl.report.summary_metrics import summarise


def jain_of(records: Records) -> float:
    return float(jain(records, np.zeros(len(records), dtype=np.int64), groups=1)[0])


def test_a_job_alone_on_the_cluster_has_a_rho_of_one() -> None:
    """Nobody to share with: it took as long as alone, and is owed everything."""
    records = records_of([life(7, (7, 107), gpus=8, alone=100)])

    assert finish_time_fairness(records, gpus=8).tolist() == [1]


def test_taking_turns_on_one_gpu_is_exactly_fair_to_the_last() -> None:
    """Two equal jobs, one GPU: the first is done in half of what it was owed, the second in all.

    The first lives 100 s beside the other: 100 / (100 x 2). The second lives 200 s, half of them
    beside the first: N = 1.5, so it was owed the end at 150 s.
    """
    records = records_of([life(0, (0, 100), alone=100), life(0, (100, 200), alone=100)])

    assert mean_jobs_present(records).tolist() == [2, 1.5]
    assert finish_time_fairness(records, gpus=1).tolist() == pytest.approx([0.5, 200 / 150])
    assert summarise(records, gpus=1).unfair_frac == 0.5


def test_a_job_is_unfairly_treated_from_five_percent_on() -> None:
    """Alone on the cluster for 100 s: 104 s are within the bound, 106 s are not."""
    lives = [life(0, (4, 104), alone=100), life(1000, (1006, 1106), alone=100)]

    assert summarise(records_of(lives), gpus=1).unfair_frac == 0.5


def test_a_share_larger_than_the_job_makes_it_no_faster_than_alone() -> None:
    """Two one-GPU jobs on 8 GPUs are owed 4 each, and can use 1."""
    records = records_of([life(0, (50, 150), alone=100), life(0, (0, 150), alone=150)])

    assert finish_time_fairness(records, gpus=8).tolist() == [1.5, 1]


def test_a_share_smaller_than_the_job_slows_it_in_proportion() -> None:
    """Four jobs of 8 GPUs each on 8: each is owed 2 GPUs, and so four times as long."""
    lives = [life(0, (i * 100, i * 100 + 100), gpus=8, alone=100) for i in range(4)]
    lives += [life(0, gpus=8)] * 4

    rho = finish_time_fairness(records_of(lives), gpus=8)

    assert rho[0] == pytest.approx(100 / 800)
    assert np.isnan(rho[4:]).all()


def test_an_unfinished_job_is_present_for_ever() -> None:
    """A job that never started still shares the cluster with all that come later."""
    records = records_of([life(0), life(1000, (1000, 1010), alone=10)])

    assert mean_jobs_present(records).tolist() == pytest.approx([math.nan, 2], nan_ok=True)


def test_a_job_that_took_no_time_counts_itself_alone() -> None:
    """Cancelled in the second of its submission: no life to take a mean over."""
    records = records_of([life(5, (5, 5), alone=10), life(0, (0, 50), alone=50)])

    assert mean_jobs_present(records)[0] == 1
    assert finish_time_fairness(records, gpus=1)[0] == 0


def test_jain_is_one_when_all_users_fare_alike() -> None:
    """Each got half of what was asked for, on whatever number of GPUs."""
    lives = [
        life(0, (10, 20), user="ada"),
        life(0, (100, 200), gpus=8, user="bob"),
        life(5, (6, 7), user="cyd"),
    ]

    assert jain_of(records_of(lives)) == pytest.approx(1)


def test_jain_of_one_that_has_it_all_is_one_over_the_users() -> None:
    """Ada never waited; Bob got a thousandth: close to 1 / 2."""
    lives = [life(0, (0, 100), user="ada"), life(0, (9990, 10000), user="bob")]

    expected = 1.001**2 / (2 * (1 + 0.001**2))
    assert jain_of(records_of(lives)) == pytest.approx(expected)


def test_jain_weighs_users_not_jobs() -> None:
    """A thousand jobs of one user are one voice: x is 1 and 1/2, whatever the counts."""
    lives = [life(0, (0, 10), user="ada")] * 50 + [life(0, (10, 20), user="bob")]

    assert jain_of(records_of(lives)) == pytest.approx(1.5**2 / (2 * 1.25))


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


def test_the_worst_rho_is_that_of_the_job_that_waited_for_all_others() -> None:
    """Three jobs on a GPU, one after the other; each was owed a third, then a half, then all.

    The last lives 300 s, with three, two and one jobs: N = 2, so it was owed its end at 200 s.
    """
    lives = [life(0, (i * 100, i * 100 + 100), alone=100) for i in range(3)]

    rho = finish_time_fairness(records_of(lives), gpus=1)

    assert rho.tolist() == pytest.approx([100 / 300, 200 / 250, 300 / 200])
    assert summarise(records_of(lives), gpus=1).rho.max == 1.5


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
    expected = sum(x) ** 2 / squares if squares > 0 else math.nan

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
