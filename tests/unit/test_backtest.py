"""How well run times would have been predicted, without looking ahead."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pasts import Over, past_of
from scipy.stats import spearmanr

from slurm_dl.estimates.backtest import PREDICTORS, held_out, rank_correlation
from slurm_dl.estimates.similar_jobs import JobFeatures
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.jobs import F64

DAY_S = 86_400.0


@given(
    st.lists(
        st.tuples(st.integers(0, 4).map(float), st.integers(0, 4).map(float)),
        min_size=3,
        max_size=20,
    ).filter(lambda points: all(len(set(column)) > 1 for column in zip(*points, strict=True)))
)
def test_the_rank_correlation_is_spearmans(points: list[tuple[float, float]]) -> None:
    """With equal values too."""
    first, second = (np.array(column) for column in zip(*points, strict=True))

    assert rank_correlation(first, second) == pytest.approx(
        float(spearmanr(first, second).statistic), abs=1e-9
    )


def test_where_all_are_the_same_there_is_no_correlation() -> None:
    """NaN, which is not zero."""
    assert math.isnan(rank_correlation(np.ones(3), np.arange(3.0)))
    assert math.isnan(rank_correlation(np.zeros(0), np.zeros(0)))


JOBS = st.lists(
    st.builds(
        Over,
        st.sampled_from("ab"),
        st.sampled_from("xy"),
        st.sampled_from([1.0, 2.0]),
        st.floats(1.0, 3 * DAY_S),
        st.floats(1e9, 1e9 + 10 * DAY_S),
    ),
    min_size=1,
    max_size=30,
)


@given(jobs=JOBS, from_day=st.floats(0, 10), block_s=st.sampled_from([3600.0, DAY_S, 1e7]))
def test_nothing_is_known_that_was_not_over_at_a_submission(
    jobs: list[Over], from_day: float, block_s: float
) -> None:
    """Each later job is asked about once, with jobs alone that had ended when it was submitted."""
    past = past_of(jobs)
    from_s = 1e9 + from_day * DAY_S
    asked_about: list[float] = []

    def spy(known: Past, asked: JobFeatures) -> F64:
        assert (known.end_s[:, None] <= asked.submit_s).all()
        assert (asked.submit_s >= from_s).all()
        asked_about.extend(asked.submit_s.tolist())
        return np.ones(len(asked))

    found = held_out(past, from_s=from_s, block_s=block_s, predictors={"spy": spy})
    later = past.submit_s[past.submit_s >= from_s]

    assert sorted(asked_about) == sorted(later.tolist())
    assert found.jobs == len(later)
    assert found.known == sum(job.end_s <= from_s for job in jobs)


def test_the_errors_are_relative_to_the_truth() -> None:
    """The median and the 90th percentile; jobs of which nothing was said do not count."""
    past = past_of([Over("a", "x", 1, 100.0 * (i + 1), 1e9 + i * 1e4) for i in range(12)])

    def twice_and_nothing(_: Past, asked: JobFeatures) -> F64:
        said = 200.0 * np.round((asked.submit_s - 1e9) / 1e4)
        return np.where(asked.submit_s < 1e9, np.nan, said)

    found = held_out(past, from_s=0, block_s=1e12, predictors={"twice": twice_and_nothing})
    score = found.scores[0]

    assert score.jobs == 11
    assert score.rank_correlation == pytest.approx(1.0)
    true = 100.0 * np.arange(2, 13)
    error = np.abs(200.0 * np.arange(1, 12) - true) / true
    assert score.median_error == pytest.approx(np.median(error))
    assert score.p90_error == pytest.approx(np.quantile(error, 0.9))


def recurrent(rng: np.random.Generator, jobs: int = 600) -> list[Over]:
    """Ten jobs that are run again and again, each about as long every time."""
    length_s = rng.lognormal(8, 2, 10)
    return [
        Over(
            f"u{kind % 3}",
            f"kind{kind}",
            1.0,
            float(length_s[kind] * rng.lognormal(0, 0.1)),
            1e9 + float(rng.uniform(0, 60 * DAY_S)),
        )
        for kind in rng.integers(0, 10, jobs).tolist()
    ]


def test_what_recurs_is_predicted_and_what_does_not_is_not() -> None:
    """With the names dealt out anew among the jobs there is nothing left to go by."""
    rng = np.random.default_rng(1)
    jobs = recurrent(rng)
    owners = rng.permutation([(job.user, job.name) for job in jobs]).tolist()
    shuffled = [
        job._replace(user=user, name=name) for job, (user, name) in zip(jobs, owners, strict=True)
    ]
    from_s = 1e9 + 45 * DAY_S
    real, dealt = (
        {s.predictor: s for s in held_out(past_of(some), from_s=from_s, block_s=7 * DAY_S).scores}
        for some in (jobs, shuffled)
    )

    assert set(real) == set(PREDICTORS)
    for name in ("rolling", "tag median", "tag mean", "learned", "qssf"):
        assert real[name].rank_correlation > 0.75, name
        assert abs(dealt[name].rank_correlation) < 0.25, name
    assert abs(real["mean of all"].rank_correlation) < 0.25
    assert real["tag median"].median_error < 0.15


def test_of_nothing_nothing_is_found() -> None:
    """No jobs before, none after."""
    found = held_out(NO_PAST, from_s=0)

    assert (found.jobs, found.known, found.tag_hits) == (0, 0, 0.0)
    assert all(score.jobs == 0 and math.isnan(score.median_error) for score in found.scores)


def test_until_takes_those_that_had_ended_by_then() -> None:
    """To the second."""
    past = past_of([Over("a", "x", 1, 5.0, end_s) for end_s in (10.0, 20.0, 30.0)])

    assert [len(past.until(when_s)) for when_s in (9.9, 10.0, 29.0, 30.0)] == [0, 1, 2, 3]
