"""How well run times would have been predicted: on later jobs, from those that were over by then.

Later jobs are taken block by block, by their submission, and each block is predicted from the jobs
that had ended when it began. So nothing is used that was not known at a job's submission; what
ended inside a block is used from the next on, as in a daemon that looks now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from slurm_dl.estimates.boosted_trees import learned_s
from slurm_dl.estimates.similar_jobs import JobFeatures, asked_of, rolling_s, tagged_s
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.jobs import F64, Bool

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S

Predict = Callable[[Past, JobFeatures], F64]
"""From what is over and the jobs asked about to seconds; NaN where nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorScore:
    """How good one way to predict was.

    Attributes:
        rank_correlation: Spearman's, between predicted and true; NaN if either is the same for all.
    """

    predictor: str  # Its name
    jobs: int  # Jobs that it said something of
    median_error: float  # Median of abs(predicted - true) / true
    p90_error: float  # Its 90th percentile
    rank_correlation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What was found."""

    jobs: int  # Jobs to be predicted
    known: int  # Jobs that were over when the first of them was submitted
    tag_hits: float  # Share of them for which there was one that is alike; see `tagged_s`
    scores: tuple[PredictorScore, ...]  # One for each predictor
    script_hits: float  # Share of them whose `Claim.tag` was seen before
    on_script_hits: tuple[PredictorScore, ...]  # As *scores*, of these jobs alone


def mean_of_all(past: Past, jobs: JobFeatures) -> F64:
    """The mean of all: what is said without looking at the job."""
    return np.full(len(jobs), past.ran_s.mean() if len(past) else np.nan)


def _learned(past: Past, jobs: JobFeatures) -> F64:
    found = learned_s(past, jobs, retrain_s=WEEK_S)
    return np.full(len(jobs), np.nan) if found is None else found


def _qssf(past: Past, jobs: JobFeatures) -> F64:
    learned, rolling = _learned(past, jobs), rolling_s(past, jobs)
    mixed: F64 = np.where(np.isnan(learned), rolling, 0.1 * rolling + 0.9 * learned)
    return mixed


PREDICTORS: Mapping[str, Predict] = MappingProxyType(
    {
        "mean of all": mean_of_all,
        "rolling": rolling_s,
        "tag median": lambda past, jobs: tagged_s(past, jobs).seconds,
        "tag mean": lambda past, jobs: tagged_s(past, jobs, "mean").seconds,
        "name median": lambda past, jobs: tagged_s(past, replace(jobs, tag=None)).seconds,
        "learned": _learned,
        "qssf": _qssf,
    }
)
"""Every way to predict by its name; nobody need be asked for any of them."""


def held_out(
    past: Past,
    *,
    from_s: float,
    block_s: float = DAY_S,
    predictors: Mapping[str, Predict] = PREDICTORS,
) -> HeldOut:
    """Predict the jobs of *past* that were submitted at *from_s* or later.

    Args:
        past: Jobs that are over.
        from_s: Where the later part begins, epoch seconds.
        block_s: Length of a block, seconds, above 0.
        predictors: What is tried.
    """
    rows = (past.submit_s >= from_s).nonzero()[0]
    block = ((past.submit_s[rows] - from_s) // block_s).astype(np.int64)
    said = {name: np.full(len(rows), np.nan) for name in predictors}
    hit, by_tag = np.zeros((2, len(rows)), dtype=np.bool_)
    for number in np.unique(block).tolist():
        here = block == number
        known = past.until(from_s + number * block_s)
        jobs = asked_of(past, rows[here])
        tagged = tagged_s(known, jobs)
        hit[here], by_tag[here] = tagged.hit, tagged.by_tag
        for name, predict in predictors.items():
            said[name][here] = predict(known, jobs)
    true = past.ran_s[rows]
    return HeldOut(
        jobs=len(rows),
        known=len(past.until(from_s)),
        tag_hits=float(hit.mean()) if len(rows) else 0.0,
        scores=tuple(_score(name, column, true) for name, column in said.items()),
        script_hits=float(by_tag.mean()) if len(rows) else 0.0,
        on_script_hits=tuple(_score(name, s[by_tag], true[by_tag]) for name, s in said.items()),
    )


def _score(name: str, said: F64, true: F64) -> PredictorScore:
    there: Bool = ~np.isnan(said)
    said, true = said[there], true[there]
    error = np.abs(said - true) / true
    nothing = float("nan")
    return PredictorScore(
        predictor=name,
        jobs=len(said),
        median_error=float(np.median(error)) if len(error) else nothing,
        p90_error=float(np.quantile(error, 0.9)) if len(error) else nothing,
        rank_correlation=rank_correlation(said, true),
    )


def rank_correlation(first: F64, second: F64) -> float:
    """Spearman's rank correlation, equal values with their mean rank; NaN if it is not defined."""
    if not len(first) or (first == first[0]).all() or (second == second[0]).all():
        return float("nan")
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: F64) -> F64:
    _, of, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    mean: F64 = last - (count - 1) / 2.0
    return mean[of.reshape(-1)]
