"""Finish-time fairness: how long an app takes among others, over what it would take by itself.

    rho = T_shared / T_ideal

An app is a job array, or a job by itself. T_ideal is the time its work takes alone on 1/N of the
cluster, where N is the average contention it has seen: the mean number of apps there were, itself
included, from its submission to now. With rho <= 1 it loses nothing by sharing.

N is counted, not remembered: live apps were there from their submission on, and jobs that are over
from their submission to their end. Of those, the ones of one user, name and instant of submission
are an app.

Source: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020
(finish-time fairness).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import contenders

_NO_TIME_S = 1e-3  # Whoever came less than this ago has seen the contention of now


@dataclass(frozen=True, slots=True, eq=False)
class Apps:
    """The apps that have jobs.

    Attributes:
        of: ``(n,)`` the app of each row of the snapshot; -1 for jobs that take no part.
        came_s: ``(a,)`` first submission of each, epoch seconds, not after now.
        contention: ``(a,)`` N, at least 1.
    """

    of: I64
    came_s: F64
    contention: F64

    def __len__(self) -> int:
        return len(self.came_s)


def apps(snap: Snapshot) -> Apps:
    """The apps of all jobs that take part, numbered by their smallest job id."""
    jobs, texts = snap.jobs, snap.seen.texts
    rows = contenders(snap).nonzero()[0]
    rows = rows[np.argsort(jobs.job_id[rows], kind="stable")]
    number: dict[str, int] = {}
    found = []
    for job_id in jobs.job_id[rows].tolist():
        text = texts.get(JobId(job_id))
        array, task, _ = ("", "", "") if text is None else text.label.partition("_")
        found.append(number.setdefault(array if task else str(job_id), len(number)))
    of = np.full(len(jobs), -1, dtype=np.int64)
    of[rows] = found
    came_s: F64 = np.full(len(number), snap.now_s)
    np.minimum.at(came_s, of[rows], snap.memory.first_submit_s[rows])
    over = _over(snap, of, came_s)
    return Apps(of, came_s, mean_contention(came_s, over.begin_s, over.end_s, snap.now_s))


def mean_contention(came_s: F64, begin_s: F64, end_s: F64, now_s: float) -> F64:
    """``(a,)`` mean number of apps between the arrival of each live one and now, at least 1.

    Args:
        came_s: ``(a,)`` arrivals of the live apps, not after now.
        begin_s: ``(k,)`` arrivals of those that are over.
        end_s: ``(k,)`` their ends, not before their arrivals; what is after now is cut off.
    """
    # Counted back from now: sums of epoch seconds would lose the digits that matter.
    ago = now_s - came_s
    began = np.concatenate([ago, np.maximum(now_s - begin_s, 0.0)])
    ended = np.concatenate([np.zeros(len(ago)), np.maximum(now_s - end_s, 0.0)])
    # There from B to E ago is there for min(B, ago) - min(E, ago) of the last so many seconds.
    there_s = _sum_up_to(began, ago) - _sum_up_to(ended, ago)
    long = ago > _NO_TIME_S
    mean = np.divide(there_s, ago, out=np.full(len(ago), float(len(ago))), where=long)
    found: F64 = np.maximum(mean, 1.0)
    return found


def _sum_up_to(values: F64, most: F64) -> F64:
    """``(a,)`` sum of min(value, *most*) over all values, for each of *most*."""
    ordered = np.sort(values)
    before = np.concatenate([[0.0], np.cumsum(ordered)])
    at = ordered.searchsorted(most)
    found: F64 = before[at] + most * (len(values) - at)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Over:
    """Apps that are over.

    Attributes:
        begin_s: ``(k,)`` epoch seconds.
        end_s: ``(k,)`` end of the last job, epoch seconds.
        user: ``(k,)`` index into `Past.users`.
        name: ``(k,)`` index into `Past.names`.
    """

    begin_s: F64
    end_s: F64
    user: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]


def _over(snap: Snapshot, of: I64, came_s: F64) -> _Over:
    """Those of which no job is left."""
    over, past = _all_over(snap.past), snap.past
    if not len(over.begin_s) or not snap.seen.texts:
        return over
    users = {name: i for i, name in enumerate(past.users)}
    names = {name: i for i, name in enumerate(past.names)}
    live = set()
    for row in (of >= 0).nonzero()[0].tolist():
        text = snap.seen.texts.get(JobId(int(snap.jobs.job_id[row])))
        if text is not None and "_" in text.label:
            live.add((users.get(text.user), names.get(text.name), float(came_s[of[row]])))
    if not live:
        return over
    since = over.begin_s >= min(came for _, _, came in live)
    keys = zip(over.user.tolist(), over.name.tolist(), over.begin_s.tolist(), strict=True)
    kept = np.array([not s or k not in live for s, k in zip(since.tolist(), keys, strict=True)])
    return _Over(over.begin_s[kept], over.end_s[kept], over.user[kept], over.name[kept])


@functools.lru_cache(maxsize=4)
def _all_over(past: Past) -> _Over:
    rows = np.lexsort((past.end_s, past.name, past.user, past.submit_s))
    submit_s, user, name = past.submit_s[rows], past.user[rows], past.name[rows]
    last = np.ones(len(rows), dtype=np.bool_)
    last[:-1] = (np.diff(submit_s) != 0) | (np.diff(user) != 0) | (np.diff(name) != 0)
    end_s = np.maximum(past.end_s[rows], submit_s)
    return _Over(submit_s[last], end_s[last], user[last], name[last])
