"""How long jobs run, learnt from finished jobs and from those that run now.

Without users or names that tell anything: the life table of the job's GPU class, mixed with that of
all jobs (n finished jobs of the class weigh n / (n + 30)). Else the run time is a location times a
factor without unit. The location is the posterior mean of the job's label (user, name, GPUs), or of
its user and GPU class (`run_time_levels`). The distribution of the factor is a life table, too: of
finished jobs over the location that was known when each ended, apart for labels of which one, three
and seven jobs are known. So the uncertainty of a location is in it, and so are early failures.

A job with an unknown name is treated as a job of its user, one of an unknown user as one of its GPU
class. Jobs that run longer than expected raise the location of their label.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Self

import numpy as np

from slurm_dl.estimates.similar_jobs import asked
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.run_time_levels import Level

BINS_PER_DECADE = 24
FIRST_EXPONENT = -6
LAST_EXPONENT = 10
BINS = BINS_PER_DECADE * (LAST_EXPONENT - FIRST_EXPONENT)
"""Times below 10 ** FIRST_EXPONENT are in the first bin, those above the last edge in the last."""

TAIL_FACTOR = 2.0  # Jobs of which no end is known end at this many times the largest time


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Times counted in bins, by group.

    Attributes:
        number: ``(g, BINS)`` how many lie in each bin.
        total: ``(g, BINS)`` their sum.
    """

    number: F64
    total: F64

    @classmethod
    def of(cls, group: I64, times: F64, groups: int) -> Self:
        """*times*, each above 0, of jobs in *groups* groups; a group below 0 is not counted."""
        rows = group >= 0
        exponent = np.log10(times[rows]) - FIRST_EXPONENT
        bins = np.clip(exponent * BINS_PER_DECADE, 0, BINS - 1).astype(np.int64)
        at, size = group[rows] * BINS + bins, groups * BINS
        number: F64 = np.bincount(at, minlength=size).astype(np.float64)
        total: F64 = np.bincount(at, weights=times[rows], minlength=size).astype(np.float64)
        return cls(number.reshape(groups, BINS), total.reshape(groups, BINS))

    def pooled(self) -> Counts:
        """All groups as one."""
        return Counts(self.number.sum(axis=0)[None, :], self.total.sum(axis=0)[None, :])


@dataclass(frozen=True, slots=True, eq=False)
class Distributions:
    """Discrete distributions of run times with one support.

    Attributes:
        at: ``(k,)`` the support, increasing, above 0.
        mass: ``(g, k)`` probabilities, each row with sum 1.
    """

    at: F64
    mass: F64


def life_tables(ended: Counts, censored: Counts) -> Distributions:
    """The distribution of the time at which jobs of each group end.

    The hazard of a bin is the share of the jobs at risk that end in it; a job censored in the bin
    is at risk for half of it. Source: Kaplan and Meier, "Nonparametric estimation from incomplete
    observations", J. American Statistical Association 53, 1958, section 3 (grouped times).

    A point of the support is the mean of the ends in a bin, over all groups. What is left after the
    last end of a group lies at twice the largest time of all.

    Args:
        ended: Times of finished jobs; at least one in all groups together.
        censored: Times that jobs have reached without having ended.
    """
    seen = ended.number + censored.number
    gone = seen.cumsum(axis=1)
    at_risk = gone[:, -1:] - gone + ended.number + censored.number / 2
    hazard = np.divide(ended.number, at_risk, out=np.zeros(seen.shape), where=ended.number > 0)
    survival = np.cumprod(1 - np.minimum(hazard, 1.0), axis=1)
    number = ended.number.sum(axis=0)
    there = number.nonzero()[0]
    at = ended.total.sum(axis=0)[there] / number[there]
    last = int(seen.sum(axis=0).nonzero()[0][-1])
    largest = (ended.total + censored.total)[:, last].sum() / seen[:, last].sum()
    left = survival[:, there]
    mass = np.concatenate([1 - left[:, :1], left[:, :-1] - left[:, 1:], left[:, -1:]], axis=1)
    return Distributions(np.append(at, TAIL_FACTOR * largest), mass)


CLASSES = 5  # GPU classes: 1, 2, 4, 8 and more GPUs, rounded up to a power of two
POOLED_JOBS = 30.0  # All jobs count as much as so many of the class in its life table
_LEAST_OF_CLASS = 5  # With fewer finished jobs a class has no life table of its own
_LEAST_OF_USER = 3.0  # With fewer finished jobs of a user only the GPU class is known
_LEAST_OF_GROUP = 30  # With fewer finished jobs a life table of factors is not used
_BY_LABEL = (1.0, 3.0, 7.0)  # Finished jobs of a label at which its location is known better

_GROUPS = 1 + len(_BY_LABEL)

_NAMES, _SIZES = 1 << 24, 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """Groups of n jobs: their keys, and what finished jobs of the same groups tell.

    Attributes:
        kind: ``(n,)`` GPU class.
        label: ``(n,)`` key of the label.
        of_owner: Finished jobs of the user and class, and their mean logarithm.
        of_label: Finished jobs of the label, and their mean logarithm.
    """

    kind: I64
    label: I64
    of_owner: tuple[F64, F64]
    of_label: tuple[F64, F64]


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Where the run times of n jobs lie.

    Attributes:
        owner: ``(n,)`` group by the user: 0; -1 if too few of the user's jobs have finished.
        by_owner_s: ``(n,)`` location by the user and the GPU class, seconds.
        label: ``(n,)`` group by the finished jobs of the label, from 1 on; -1 if there are none.
        by_label_s: ``(n,)`` location by the label, seconds.
    """

    owner: I64
    by_owner_s: F64
    label: I64
    by_label_s: F64

    def counts(self, times_s: F64, rows: Bool) -> Counts:
        """*times_s* of the jobs at *rows* over their locations: each counts in both its groups."""
        return Counts.of(
            np.concatenate([self.owner[rows], self.label[rows]]),
            np.concatenate([(times_s / at)[rows] for at in (self.by_owner_s, self.by_label_s)]),
            _GROUPS,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunTimeModel:
    """What finished jobs tell.

    Attributes:
        users: Number of each user.
        names: Number of each name.
        sizes: GPUs of finished jobs, increasing.
        overall: Mean logarithm of all run times.
        by_class: Run times in bins, by GPU class.
        by_group: Run times over their locations in bins, by group.
    """

    users: dict[str, int]
    names: dict[str, int]
    sizes: F64
    overall: float
    classes: Level
    owners: Level
    labels: Level
    by_class: Counts
    by_group: Counts

    @classmethod
    def of(cls, past: Past, early_s: float) -> Self:
        """The model of the jobs in *past*; at least one.

        Args:
            early_s: In locations, shorter run times count as this, seconds, above 0.
        """
        log_s = np.log(np.maximum(past.ran_s, early_s))
        kind, sizes = gpu_class(past.gpus), np.unique(past.gpus)
        user = past.user.astype(np.int64)
        owner = user * CLASSES + kind
        label = (user * _NAMES + past.name) * _SIZES + sizes.searchsorted(past.gpus)
        owners = Level.of(owner, kind, log_s)
        model = cls(
            users={name: i for i, name in enumerate(past.users)},
            names={name: i for i, name in enumerate(past.names)},
            sizes=sizes,
            overall=float(log_s.mean()),
            classes=Level.of(kind, np.zeros(len(past), dtype=np.int64), log_s),
            owners=owners,
            labels=Level.of(label, owner if owners.used else kind, log_s),
            by_class=Counts.of(kind, past.ran_s, CLASSES),
            by_group=Counts.of(np.full(len(past), -1), past.ran_s, _GROUPS),
        )
        if not (owners.used or model.labels.used):
            return model
        place = model._place(
            _Known(
                kind,
                label,
                (owners.before_jobs, owners.before_mean),
                (model.labels.before_jobs, model.labels.before_mean),
            )
        )
        all_jobs = np.ones(len(past), dtype=np.bool_)
        return dataclasses.replace(model, by_group=place.counts(past.ran_s, all_jobs))

    def index_s(self, snap: Snapshot, rows: I64, age_s: F64, setup_s: F64) -> F64:
        """``(len(rows),)`` Gittins index with setup cost of the jobs at *rows*, seconds.

        Args:
            age_s: ``(len(rows),)`` run time so far.
            setup_s: ``(len(rows),)`` cost of a start.
        """
        kind, ran = gpu_class(snap.jobs.gpus[rows]), age_s > 0
        index, rest = np.empty(len(rows)), np.ones(len(rows), dtype=np.bool_)
        with_table = self._with_table()
        if with_table.max() >= 0:
            place = self._overrun(self._known(snap, rows, kind), age_s)
            by_label = with_table[place.label] > 0
            group = np.where(by_label, with_table[place.label], with_table[place.owner])
            middle_s = np.where(by_label, place.by_label_s, place.by_owner_s)
            rest = group < 0
            age, setup = age_s / middle_s, setup_s / middle_s
            tables = life_tables(self.by_group, place.counts(age_s, ran))
            found = indices(tables, group[~rest], age[~rest], setup[~rest])
            index[~rest] = middle_s[~rest] * found
        if rest.any():
            tables = _mixed(self.by_class, Counts.of(kind[ran], age_s[ran], CLASSES))
            index[rest] = indices(tables, kind[rest], age_s[rest], setup_s[rest])
        return index

    def _with_table(self) -> I64:
        """``(_GROUPS + 1,)`` the group whose table holds for each, -1 if none; the last is -1.

        For labels that are known better than enough jobs were, it is that of labels known less.
        """
        enough = self.by_group.number.sum(axis=1) >= _LEAST_OF_GROUP
        group = np.where(enough, np.arange(_GROUPS), -1)
        return np.concatenate([group[:1], np.maximum.accumulate(group[1:]), [-1]])

    def _known(self, snap: Snapshot, rows: I64, kind: I64) -> _Known:
        """What is known of the jobs at *rows*; unknown names have numbers of their own."""
        jobs = asked(snap, rows)
        users, names = _numbers(self.users, jobs.user), _numbers(self.names, jobs.name)
        size = self.sizes.searchsorted(jobs.gpus)
        exact = np.append(self.sizes, np.inf)[size] == jobs.gpus
        label = (users * _NAMES + names) * _SIZES + size
        label = np.where(exact, label, -1 - np.arange(len(label)))
        return _Known(
            kind, label, self.owners.find(users * CLASSES + kind), self.labels.find(label)
        )

    def _place(self, known: _Known) -> _Place:
        kind = known.kind
        base = self.classes.posterior(*self.classes.find(kind), np.full(len(kind), self.overall))
        by_owner = self.owners.posterior(*known.of_owner, base)
        by_label = self.labels.posterior(*known.of_label, by_owner)
        owner, label = np.full(len(kind), -1), np.full(len(kind), -1)
        if self.owners.used:
            owner[known.of_owner[0] >= _LEAST_OF_USER] = 0
        if self.labels.used:
            step = np.searchsorted(_BY_LABEL, known.of_label[0], side="right")
            label = np.where(step > 0, step, -1)
        return _Place(owner, np.exp(by_owner), label, np.exp(by_label))

    def _overrun(self, known: _Known, age_s: F64) -> _Place:
        """The place of each job, where jobs beyond their location count as if they ended now."""
        place = self._place(known)
        beyond = age_s > np.where(place.label > 0, place.by_label_s, place.by_owner_s)
        if not (self.labels.used and beyond.any()):
            return place
        labels, at = np.unique(known.label[beyond], return_inverse=True)
        jobs = np.bincount(at).astype(np.float64)
        log_s = np.bincount(at, weights=np.log(age_s[beyond]))
        where = np.minimum(labels.searchsorted(known.label), len(labels) - 1)
        alike = labels[where] == known.label
        more, more_s = np.where(alike, jobs[where], 0.0), np.where(alike, log_s[where], 0.0)
        finished, mean = known.of_label
        count = finished + more
        mean = np.divide(finished * mean + more_s, count, out=np.zeros(len(count)), where=count > 0)
        return self._place(dataclasses.replace(known, of_label=(count, mean)))


def gpu_class(gpus: F64) -> I64:
    """``(n,)`` ceil(log2(GPUs)), 0 to `CLASSES` - 1."""
    power = np.ceil(np.log2(np.maximum(gpus, 1.0)))
    found: I64 = np.minimum(power, CLASSES - 1).astype(np.int64)
    return found


def _numbers(known: dict[str, int], words: tuple[str, ...]) -> I64:
    """The number of each of *words*; those that are not known get further ones."""
    new: dict[str, int] = {}
    first = len(known)
    found = [
        at if (at := known.get(word)) is not None else first + new.setdefault(word, len(new))
        for word in words
    ]
    return np.array(found, dtype=np.int64)


def _mixed(ended: Counts, censored: Counts) -> Distributions:
    own = life_tables(ended, censored)
    pooled = life_tables(ended.pooled(), censored.pooled())
    jobs = ended.number.sum(axis=1, keepdims=True)
    weight = np.where(jobs >= _LEAST_OF_CLASS, jobs / (jobs + POOLED_JOBS), 0.0)
    return Distributions(own.at, weight * own.mass + (1 - weight) * pooled.mass)


_FEW_JOBS = 512  # So many jobs are computed one by one, more are looked up in tables
_SETUPS = 4  # Setup costs above 0 for which there is a table


def setup_cost_index(at: F64, mass: F64, age: F64, setup: F64) -> F64:
    """``(n,)`` the index of each job.

    It is the Gittins index of jobs whose start costs something. With run time S of known
    distribution, age a and setup cost c, all in one unit of time,

        index(a, c) = min over D > a of (E[min(S, D) - a | S > a] + c) / P(S <= D | S > a):

    the expected time, setup included, for one completion. The smallest index is served first. With
    c = 0 it is the reciprocal of the Gittins index G(a).

    Source: Gittins, "Bandit processes and dynamic allocation indices", J. Royal Statistical Society
    B 41(2), 1979; Asawa and Teneketzis, "Multi-armed bandits with switching penalties", IEEE Trans.
    Automatic Control 41(3), 1996 (the index at a switch).

    Beyond the support a job is expected to need as long again as it has had.

    Args:
        at: ``(k,)`` support of the distributions, increasing, above 0.
        mass: ``(n, k)`` or ``(k,)`` the distribution of each job, or that of all.
        age: ``(n,)`` time run so far, 0 or more.
        setup: ``(n,)`` cost of a start, 0 or more.
    """
    more = at - age[:, None]
    part = np.where(more > 0, mass, 0.0)
    done = part.cumsum(axis=1)
    alive = done[:, -1:]
    spent = (part * more).cumsum(axis=1)
    spent += more * (alive - done)
    spent += setup[:, None] * alive
    ratio = np.divide(spent, done, out=np.full_like(done, np.inf), where=done > 0)
    index = ratio.min(axis=1)
    return np.where(np.isfinite(index), index, age + setup)


def indices(known: Distributions, group: I64, age: F64, setup: F64) -> F64:
    """``(n,)`` the index of each job; see `setup_cost_index`.

    Of many jobs it is interpolated, linearly, between ages at and half way between the points of
    the support, and between some setup costs.

    Args:
        group: ``(n,)`` row of `Distributions.mass` of each job.
    """
    if len(group) <= _FEW_JOBS:
        return setup_cost_index(known.at, known.mass[group], age, setup)
    ages = np.concatenate([[0.0], known.at, np.sqrt(known.at[1:] * known.at[:-1])])
    ages.sort()
    setups = np.zeros(1)
    if setup.any():
        some = setup[setup > 0]
        setups = np.append(setups, np.geomspace(some.min(), some.max(), _SETUPS))
    table = np.zeros((len(known.mass), len(setups), len(ages)))
    for of in np.unique(group).tolist():
        for at, c in enumerate(setups.tolist()):
            setup_of = np.full(len(ages), c)
            table[of, at] = setup_cost_index(known.at, known.mass[of], ages, setup_of)
    row, across = _between(ages, age)
    column, up = _between(setups, setup)
    index: F64 = np.zeros(len(group))
    for i, j in itertools.product((0, 1), repeat=2):
        weight = (across if i else 1 - across) * (up if j else 1 - up)
        index += weight * table[group, np.minimum(column + j, len(setups) - 1), row + i]
    beyond = age >= known.at[-1]
    index[beyond] = (age + setup)[beyond]
    return index


def _between(points: F64, values: F64) -> tuple[I64, F64]:
    """The last of *points* at or below each value, and its distance in the gap, 0 to 1."""
    if len(points) == 1:
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values))
    at = np.clip(points.searchsorted(values, side="right") - 1, 0, len(points) - 2)
    width = points[at + 1] - points[at]
    share = np.divide(values - points[at], width, out=np.zeros(len(values)), where=width > 0)
    return at, np.clip(share, 0.0, 1.0)
