"""How long a job will run, learned from all jobs before it: boosted trees on what Slurm knows.

The logarithm of the duration is regressed on the user, the job's name, its GPUs, the hour and the
weekday of its submission, and on what was known of the user, and of jobs of that user and name or
first word of a name, when it was submitted: how many had ended, the mean of the logarithms of their
durations. Names that differ in digits alone are one name here: ``train_01`` is ``train_02``.

The trees are scikit-learn's HistGradientBoostingRegressor, a re-implementation of the algorithm
of LightGBM, which the paper uses. It is optional: without it nothing is learned.

Trained is on jobs that ended before the last whole multiple of ``retrain_s``, so that a model
serves for so long and each past leads to one model.

Source: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters", SC 2021, section 4.2 (QSSF, machine learning estimate).
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slurm_dl.estimates.similar_jobs import JobFeatures, asked_of
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.jobs import F64, I64

LEAST_JOBS = 200  # From fewer finished jobs nothing is learned
MOST_JOBS = 50_000  # Trained is on so many, those that ended last: a second on one core

_KINDS = 200
"""So many users, and as many names, are kinds of their own; the trees take no more than 255."""

_CATEGORICAL = (0, 1, 2)
_HOUR_S = 3600.0
_DAY_S = 86_400.0
_SEED = 0

_NO_DIGITS = {ord(digit): None for digit in "0123456789"}


def learned_s(
    past: Past, jobs: JobFeatures, *, least_jobs: int = LEAST_JOBS, retrain_s: float = _DAY_S
) -> F64 | None:
    """``(n,)`` predicted durations, seconds; None if nothing can be learned.

    Args:
        past: Jobs to learn from.
        jobs: Jobs asked about.
        least_jobs: From fewer than these nothing is learned.
        retrain_s: A new model at most so often, seconds, above 0.
    """
    model = _model_of(past, least_jobs, retrain_s)
    return None if model is None else model.predict(jobs)


@functools.lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether scikit-learn is installed."""
    try:
        import sklearn.ensemble  # noqa: F401, PLC0415 - optional, slow to import
    except ImportError:
        return False
    return True


@functools.lru_cache(maxsize=4)
def _model_of(past: Past, least_jobs: int, retrain_s: float) -> _Model | None:
    if len(past) < least_jobs or not is_available():
        return None
    cut_s = math.floor(past.end_s[-1] / retrain_s) * retrain_s
    count = int(past.end_s.searchsorted(cut_s))
    if count < least_jobs:
        # So young a site cannot wait for the first whole day.
        count = len(past)
    first = max(0, count - MOST_JOBS)
    return _trained(_Lesson(past, first, count))


class _Lesson:
    """Rows *first* to *end* of a past, equal to the same rows of another past.

    A simulation has a new past after each job that ends; most of it is as it was.
    """

    def __init__(self, past: Past, first: int, end: int) -> None:
        self.past = past
        self.rows = np.arange(first, end)
        rows = slice(first, end)
        columns = (past.user, past.name, past.gpus, past.submit_s, past.end_s, past.ran_s)
        most = [int(column[rows].max(initial=-1)) + 1 for column in (past.user, past.name)]
        self._same = (
            *(column[rows].tobytes() for column in columns),
            past.users[: most[0]],
            past.names[: most[1]],
        )
        self._hash = hash(self._same)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Lesson) and self._same == other._same


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What is known of a group of jobs at any time: how many ended, and their mean."""

    of: dict[tuple[str, ...], int]  # Number of each group
    key: I64  # ``(k,)`` group x (k + 1) + place among all ends, sorted
    start: I64  # ``(groups + 1,)`` where each group begins in *key*
    total: F64  # ``(k + 1,)`` sum of the logarithms so far, in that order
    ends: F64  # ``(k,)`` ends of all jobs, sorted
    mean: float  # Of all, for groups of which nothing is known

    def at(self, groups: Sequence[tuple[str, ...]], when_s: F64) -> tuple[F64, F64]:
        """``(n,)`` count and mean of the logarithms of those of each group that had ended."""
        number = np.array([self.of.get(group, -1) for group in groups], dtype=np.int64)
        place = self.ends.searchsorted(when_s, side="right")
        last = self.key.searchsorted(number * (len(self.ends) + 1) + place)
        first = self.start[number]
        count = np.where(number < 0, 0, last - first).astype(np.float64)
        total = self.total[last] - self.total[first]
        mean = np.divide(total, count, out=np.full(len(count), self.mean), where=count > 0)
        return count, mean


def _known(groups: Sequence[tuple[str, ...]], end_s: F64, value: F64) -> _Known:
    of: dict[tuple[str, ...], int] = {}
    number = np.array([of.setdefault(group, len(of)) for group in groups], dtype=np.int64)
    key = number * (len(end_s) + 1) + np.arange(len(end_s))
    order = np.argsort(key)
    return _Known(
        of=of,
        key=key[order],
        start=np.searchsorted(number[order], np.arange(len(of) + 1)),
        total=np.concatenate([[0.0], np.cumsum(value[order])]),
        ends=end_s,
        mean=float(value.mean()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Features:
    """From jobs to what the trees see."""

    users: dict[str, int]
    names: dict[str, int]
    heads: dict[str, int]
    by_user: _Known
    by_name: _Known
    by_head: _Known

    def of(self, jobs: JobFeatures) -> F64:
        names = [_plain(name) for name in jobs.name]
        by_user = self.by_user.at([(user,) for user in jobs.user], jobs.submit_s)
        pairs = list(zip(jobs.user, names, strict=True))
        by_name = self.by_name.at(pairs, jobs.submit_s)
        heads = [_head(name) for name in names]
        by_head = self.by_head.at(list(zip(jobs.user, heads, strict=True)), jobs.submit_s)
        # Unknown then as a new one is now: the trees learn what to do without.
        kinds = (
            np.where(count > 0, [codes.get(word, np.nan) for word in words], np.nan)
            for words, codes, (count, _) in (
                (jobs.user, self.users, by_user),
                (names, self.names, by_name),
                (heads, self.heads, by_head),
            )
        )
        return np.column_stack(
            [
                *kinds,
                jobs.gpus,
                jobs.submit_s % _DAY_S // _HOUR_S,
                jobs.submit_s // _DAY_S % 7,
                [len(name) for name in names],
                *by_user,
                *by_name,
                *by_head,
            ]
        ).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    """Trained trees, with what they said of jobs they were asked about."""

    features: _Features
    trees: Any
    known: dict[tuple[str, str, float, float], float] = field(default_factory=dict)

    def predict(self, jobs: JobFeatures) -> F64:
        keys = list(
            zip(jobs.user, jobs.name, jobs.gpus.tolist(), jobs.submit_s.tolist(), strict=True)
        )
        new = [i for i, key in enumerate(keys) if key not in self.known]
        if new:
            some = JobFeatures(
                user=tuple(jobs.user[i] for i in new),
                name=tuple(jobs.name[i] for i in new),
                gpus=jobs.gpus[new],
                submit_s=jobs.submit_s[new],
            )
            said = np.exp(quietly(lambda: self.trees.predict(self.features.of(some))))
            self.known.update(zip((keys[i] for i in new), said.tolist(), strict=True))
        return np.array([self.known[key] for key in keys], dtype=np.float64)


@functools.lru_cache(maxsize=2)
def _trained(lesson: _Lesson) -> _Model:
    from sklearn.ensemble import (  # noqa: PLC0415 - optional, slow to import
        HistGradientBoostingRegressor,
    )

    past, rows = lesson.past, lesson.rows
    jobs = asked_of(past, rows)
    value = np.log(past.ran_s[rows])
    end_s = past.end_s[rows]
    names = [_plain(name) for name in jobs.name]
    heads = [_head(name) for name in names]
    features = _Features(
        users=_commonest(jobs.user),
        names=_commonest(names),
        heads=_commonest(heads),
        by_user=_known([(user,) for user in jobs.user], end_s, value),
        by_name=_known(list(zip(jobs.user, names, strict=True)), end_s, value),
        by_head=_known(list(zip(jobs.user, heads, strict=True)), end_s, value),
    )
    seen = features.of(jobs)
    # One order of the rows, however equal ends were listed.
    order = np.lexsort((*seen.T, value))
    trees = HistGradientBoostingRegressor(
        max_iter=100, early_stopping=False, categorical_features=_CATEGORICAL, random_state=_SEED
    )
    quietly(lambda: trees.fit(seen[order], value[order]))
    return _Model(features, trees)


def quietly(work: Callable[[], Any]) -> Any:  # noqa: ANN401
    """What *work* says, on one core: who schedules a cluster does not crowd its controller.

    Equal sums come from one thread, too. That cores could not be counted is then no news.
    """
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - comes with scikit-learn

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return work()


def _plain(name: str) -> str:
    return name.translate(_NO_DIGITS)


def _head(name: str) -> str:
    return "".join(itertools.takewhile(str.isalpha, name))


def _commonest(words: Iterable[str]) -> dict[str, int]:
    """Numbers of the commonest *words*; equally common ones by their letters."""
    count: dict[str, int] = {}
    for word in words:
        count[word] = count.get(word, 0) + 1
    rank: Callable[[str], tuple[int, str]] = lambda word: (-count[word], word)  # noqa: E731
    return {word: i for i, word in enumerate(itertools.islice(sorted(count, key=rank), _KINDS))}
