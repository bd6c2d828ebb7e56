"""How long a job will run, from how long jobs like it ran: two ways to say which are like it.

`rolling_s`: jobs of the same user whose names are close to its own. The same name, if the user had
it before, else the two closest of the names that are at least 0.6 alike (twice the characters in
common runs over all characters); of these jobs those with as many GPUs, if there are any; their
mean. A user without such a name: the mean of all jobs of that user. An unknown user: the mean of
all jobs.

`tagged_s`: recurrent jobs. Jobs of one user with as many GPUs are alike if dlsubmit gave them one
tag, for their script and arguments, else if they have one name; the median, or mean, of those that
are alike. Without any: the mean of the user, then of all.

Both know nothing (NaN) if nothing is known of any job.

Source: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters", SC 2021, section 4.2 (QSSF, rolling estimate), and its code, S-Lab HeliosArtifact;
Weng et al., "MLaaS in the Wild", NSDI 2022, section 5 (recurring tasks).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Literal

import numpy as np

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, I64, Bool, Jobs
from slurm_dl.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobFeatures:
    """Jobs as columns of length n."""

    user: tuple[str, ...]  # Whose each is
    name: tuple[str, ...]  # What its owner calls it
    gpus: F64  # ``(n,)`` GPUs it asks for
    submit_s: F64  # ``(n,)`` its first submission, epoch seconds
    tag: tuple[str, ...] | None = None  # `Claim.tag` of each; None: no job has one

    def __len__(self) -> int:
        return len(self.gpus)


def as_submitted(snap: Snapshot) -> Jobs:
    """The jobs with the nodes and GPUs that they were submitted with, in whatever size they are."""
    jobs, sizes = snap.jobs, snap.sizes
    if sizes is None:
        return jobs
    gpus, n_nodes = jobs.gpus.copy(), jobs.n_nodes.copy()
    gpus[sizes.row], n_nodes[sizes.row] = sizes.gpus[sizes.asked], sizes.nodes[sizes.asked]
    return replace(jobs, gpus=gpus, n_nodes=n_nodes)


def asked(snap: Snapshot, rows: I64) -> JobFeatures:
    """The jobs at *rows*; a user id as text, and no name, where the cluster tells no more."""
    texts = snap.seen.texts
    ids = snap.jobs.job_id[rows].tolist()
    found = [texts.get(JobId(job_id)) for job_id in ids]
    uids = snap.jobs.uid[rows].tolist()
    return JobFeatures(
        user=tuple(
            str(uid) if text is None else text.user for text, uid in zip(found, uids, strict=True)
        ),
        name=tuple("" if text is None else text.name for text in found),
        gpus=as_submitted(snap).gpus[rows],
        submit_s=snap.memory.first_submit_s[rows],
        tag=tuple(snap.seen.claim(JobId(job_id)).tag for job_id in ids),
    )


def asked_of(past: Past, rows: I64) -> JobFeatures:
    """The jobs at *rows* of *past*, as they were when they were submitted."""
    return JobFeatures(
        user=tuple(past.users[i] for i in past.user[rows].tolist()),
        name=tuple(past.names[i] for i in past.name[rows].tolist()),
        gpus=past.gpus[rows],
        submit_s=np.asarray(past.submit_s[rows], dtype=np.float64),
        tag=tuple(past.tags[i] for i in past.tag[rows].tolist()),
    )


Average = Literal["median", "mean"]  # Which average of the durations of a tag

CUTOFF = 0.6  # Least likeness of two names
BEST = 2  # So many close names are taken

MOST_COMPARED = 8
"""So many names of one user are compared letter by letter, the most promising first."""

MOST_NAMES = 1000  # So many names of one user are looked at, those last used
LONGEST_NAME = 128  # Letters; what is beyond is not compared. It takes the product of two lengths.
_CLASSES = 64


@dataclass(frozen=True, slots=True, eq=False)
class TaggedEstimate:
    """What tags say."""

    seconds: F64  # ``(n,)`` predicted durations; NaN if nothing is known of any job
    hit: Bool  # ``(n,)`` bool, jobs for which there was one that is alike
    by_tag: Bool  # ``(n,)`` bool, those whose `Claim.tag` was seen before


def rolling_s(past: Past, jobs: JobFeatures) -> F64:
    """``(n,)`` mean duration of jobs like each of *jobs*, seconds; NaN if *past* is empty."""
    return _each(jobs, _index(past).rolling)


def tagged_s(past: Past, jobs: JobFeatures, average: Average = "median") -> TaggedEstimate:
    """The *average* duration of jobs like each; the user's mean, or that of all, without one."""
    seconds, hit = _like(past, jobs, average)
    by_tag = np.zeros(len(jobs), dtype=np.bool_)
    tags = _by_tag(past)
    if jobs.tag is not None and len(tags):
        of_tag, by_tag = _like(tags, replace(jobs, name=jobs.tag), average)
        seconds = np.where(by_tag, of_tag, seconds)
    return TaggedEstimate(seconds, hit | by_tag, by_tag)


def _like(past: Past, jobs: JobFeatures, average: Average) -> tuple[F64, Bool]:
    index = _index(past)
    seconds = _each(jobs, lambda user, name, gpus: index.of_tag(user, name, gpus, average))
    hit = ~np.isnan(seconds)
    return np.where(hit, seconds, mean_of_user_s(past, jobs)), hit


@functools.lru_cache(maxsize=4)
def _by_tag(past: Past) -> Past:
    """The jobs that have a tag, under their tags in place of their names."""
    none = [i for i, tag in enumerate(past.tags) if not tag]
    some = past.part(np.flatnonzero(~np.isin(past.tag, none)))
    return replace(some, name=some.tag, names=some.tags)


def mean_of_user_s(past: Past, jobs: JobFeatures) -> F64:
    """``(n,)`` mean duration of the jobs of each one's user, seconds; of all, of a new user."""
    return _each(jobs, lambda user, _name, _gpus: _index(past).mean_of_user(user))


def expected_s(snap: Snapshot) -> F64 | None:
    """``(n,)`` duration of earlier jobs with the same tag; NaN for none. None: no jobs are over."""
    if not len(snap.past):
        return None
    # Jobs that run or wait, with GPUs.
    rows = ((snap.jobs.state < COMPLETING) & (snap.jobs.gpus > 0)).nonzero()[0]
    found = tagged_s(snap.past, asked(snap, rows))
    expected = np.full(len(snap.jobs), np.nan)
    expected[rows] = np.where(found.hit, found.seconds, np.nan)
    return expected


def _each(jobs: JobFeatures, predict: Callable[[str, str, float], float]) -> F64:
    """*predict* for each job; asked once for jobs that are alike."""
    known: dict[tuple[str, str, float], float] = {}
    found = []
    for key in zip(jobs.user, jobs.name, jobs.gpus.tolist(), strict=True):
        value = known.get(key)
        if value is None:
            value = known[key] = predict(*key)
        found.append(value)
    return np.array(found, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _Names:
    """The names of one user."""

    ids: I64  # Of each name, sorted by name
    text: tuple[str, ...]  # The names, cut to what is compared
    letters: I64  # ``(names, classes)`` how often letters of each class are in each
    length: I64  # ``(names,)`` letters of each


@dataclass(frozen=True, slots=True, eq=False)
class _Index:
    """A past sorted by (user, name), so that the jobs of either are one stretch."""

    user_id: dict[str, int]  # Index of each user in the past
    name_id: dict[str, int]  # Index of each name
    names: tuple[str, ...]  # The names by index
    user: I64  # ``(k,)`` users, sorted
    both: I64  # ``(k,)`` user x names + name, sorted
    gpus: F64  # ``(k,)`` GPUs, in the same order
    ran_s: F64  # ``(k,)`` durations
    place: I64  # ``(k,)`` place of each job in the past, in which they stand as they ended
    mean_s: float  # Mean duration of all; NaN if there are none
    _names_of: dict[int, _Names] = field(default_factory=dict)
    _mean_of: dict[int, float] = field(default_factory=dict)
    _rolling: dict[tuple[str, str, float], float] = field(default_factory=dict)
    _of_tags: dict[tuple[str, str, float, Average], float] = field(default_factory=dict)

    def rolling(self, user: str, name: str, gpus: float) -> float:
        key = user, name, gpus
        if key not in self._rolling:
            self._rolling[key] = self._rolling_s(user, name, gpus)
        return self._rolling[key]

    def of_tag(self, user: str, name: str, gpus: float, average: Average) -> float:
        """NaN without a job that is alike."""
        key = user, name, gpus, average
        if key not in self._of_tags:
            rows = self._of_name(self.user_id.get(user, -1), self.name_id.get(name, -1))
            ran_s, of = self.ran_s[rows[self.gpus[rows] == gpus]], getattr(np, average)
            self._of_tags[key] = float(of(ran_s)) if len(ran_s) else math.nan
        return self._of_tags[key]

    def _rolling_s(self, user: str, name: str, gpus: float) -> float:
        whose = self.user_id.get(user)
        if whose is None:
            return self.mean_s
        rows = self._of_name(whose, self.name_id.get(name, -1))
        if not len(rows):
            close = [self._of_name(whose, i) for i in self._close(whose, name)]
            if not close:
                return self.mean_of_user(user)
            rows = np.concatenate(close)
        as_many = rows[self.gpus[rows] == gpus]
        return float(self.ran_s[as_many if len(as_many) else rows].mean())

    def mean_of_user(self, user: str) -> float:
        whose = self.user_id.get(user)
        if whose is None:
            return self.mean_s
        if whose not in self._mean_of:
            first, last = self._stretch(whose)
            mean = float(self.ran_s[first:last].mean()) if last > first else self.mean_s
            self._mean_of[whose] = mean
        return self._mean_of[whose]

    def _of_name(self, user: int, name: int) -> I64:
        if user < 0 or name < 0:
            return np.zeros(0, dtype=np.int64)
        both = user * len(self.names) + name
        first, last = self.both.searchsorted(both), self.both.searchsorted(both, side="right")
        return np.arange(first, last)

    def _stretch(self, user: int) -> tuple[int, int]:
        first, last = self.user.searchsorted(user), self.user.searchsorted(user, side="right")
        return int(first), int(last)

    def _close(self, user: int, name: str) -> list[int]:
        """Ids of the names of *user* that are closest to *name*; `difflib.get_close_matches`.

        A name can be no more alike than its letters are, whatever their order. Names are compared
        in the order of that bound, until none that is left can be among the best.
        """
        if user not in self._names_of:
            self._names_of[user] = _names_of(self._last_names(user), self.names)
        there = self._names_of[user]
        name = name[:LONGEST_NAME]
        shared = np.minimum(there.letters, _letters([name])).sum(axis=1)
        bound = 2.0 * shared / np.maximum(there.length + len(name), 1)
        matcher = SequenceMatcher(b=name)
        best: list[tuple[float, str, int]] = []
        for i in np.argsort(-bound, kind="stable")[:MOST_COMPARED].tolist():
            least = best[-1][0] if len(best) == BEST else CUTOFF
            if bound[i] < least:
                break
            matcher.set_seq1(there.text[i])
            alike = matcher.ratio()
            if alike >= CUTOFF:
                best.append((alike, there.text[i], int(there.ids[i])))
                best = sorted(best, reverse=True)[:BEST]
        return [i for _, _, i in best]

    def _last_names(self, user: int) -> I64:
        first, last = self._stretch(user)
        found, begin = np.unique(self.both[first:last], return_index=True)
        if not len(found):
            return found
        used = np.maximum.reduceat(self.place[first:last], begin)
        latest = np.argsort(-used, kind="stable")[:MOST_NAMES]
        return found[latest] - user * len(self.names)


def _names_of(ids: I64, names: tuple[str, ...]) -> _Names:
    some = sorted((names[i], i) for i in ids.tolist())
    text = tuple(name[:LONGEST_NAME] for name, _ in some)
    return _Names(
        ids=np.array([i for _, i in some], dtype=np.int64),
        text=text,
        letters=_letters(text),
        length=np.array([len(t) for t in text], dtype=np.int64),
    )


def _letters(texts: Sequence[str]) -> I64:
    """``(n, classes)`` how often letters of each class are in each; several share a class."""
    length = np.array([len(text) for text in texts], dtype=np.int64)
    # All at once: a character is four bytes, whatever it is.
    raw = "".join(texts).encode("utf-32-le", "surrogatepass")
    cell = np.repeat(np.arange(len(texts)), length) * _CLASSES
    cell += np.frombuffer(raw, dtype="<u4") % _CLASSES
    return np.bincount(cell, minlength=len(texts) * _CLASSES).reshape(len(texts), _CLASSES)


@functools.lru_cache(maxsize=4)
def _index(past: Past) -> _Index:
    # Pasts are told apart by identity: they are not changed, and each is indexed once.
    both = past.user.astype(np.int64) * len(past.names) + past.name
    order = np.argsort(both, kind="stable")
    return _Index(
        user_id={user: i for i, user in enumerate(past.users)},
        name_id={name: i for i, name in enumerate(past.names)},
        names=past.names,
        user=past.user[order].astype(np.int64),
        both=both[order],
        gpus=past.gpus[order],
        ran_s=past.ran_s[order],
        place=order,
        mean_s=float(past.ran_s.mean()) if len(past) else float("nan"),
    )
