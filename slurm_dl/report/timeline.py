"""What a cluster did over time: GPUs in use, jobs waiting and present, as exact step functions.

All of it is array arithmetic, ``O(n log n)`` in the number of changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from slurm_dl.model.completed_jobs import Records, Runs
from slurm_dl.model.jobs import F64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """A function that is 0 before its first instant and constant between two of them."""

    time_s: F64  # ``(m,)`` instants, seconds, increasing
    value: F64  # ``(m,)`` value from that instant on; the last one holds for ever

    @classmethod
    def of(cls, changes: Sequence[tuple[F64, F64]]) -> Self:
        """Of what is added to the value, and when.

        Args:
            changes: Pairs of columns of one length: instants (seconds), and what is added then.
        """
        if not changes:
            return cls(time_s=np.zeros(0), value=np.zeros(0))
        at_s = np.concatenate([times for times, _ in changes])
        added = np.concatenate([amounts for _, amounts in changes])
        time_s, where = np.unique(at_s, return_inverse=True)
        at_once = np.bincount(where, weights=added, minlength=len(time_s))
        return cls(time_s=time_s, value=np.cumsum(at_once))

    def __len__(self) -> int:
        return len(self.time_s)

    def integral_to(self, until_s: F64) -> F64:
        """Integral from the beginning to each of these instants, in the shape of *until_s*."""
        if not len(self):
            return np.zeros_like(until_s)
        parts = self.value[:-1] * np.diff(self.time_s)
        integral = np.concatenate([[0.0], np.cumsum(parts)])
        last = np.searchsorted(self.time_s, until_s, side="right") - 1
        at = np.maximum(last, 0)
        reached: F64 = integral[at] + self.value[at] * (until_s - self.time_s[at])
        return np.where(last >= 0, reached, 0.0)

    def integral(self) -> float:
        """Integral from the first instant to the last."""
        return float(self.value[:-1] @ np.diff(self.time_s)) if len(self) else 0.0

    def means(self, edges_s: F64) -> F64:
        """Mean over each window between two neighbouring edges.

        Args:
            edges_s: ``(w + 1,)`` instants, seconds, increasing.

        Returns:
            ``(w,)`` exact means; no value is sampled.
        """
        means: F64 = np.diff(self.integral_to(edges_s)) / np.diff(edges_s)
        return means


def gpus_in_use(records: Records) -> Steps:
    """GPUs that jobs hold; its integral is the service of all runs.

    Raises:
        ValueError: Jobs had service, but their runs are not known.
    """
    runs = _runs_known(records)
    return Steps.of([(runs.start_s, runs.gpus), (runs.end_s, -runs.gpus)])


def jobs_present(records: Records) -> Steps:
    """Jobs between their first submission and their end; one that does not end stays for ever."""
    one, ended = np.ones(len(records)), records.finished
    return Steps.of([(records.submit_s, one), (records.end_s[ended], -one[ended])])


def jobs_waiting(records: Records) -> Steps:
    """Jobs present that do not run: not started yet, or preempted and not started again.

    A heterogeneous job has a run for each of its parts; it waits while none of them runs.

    Raises:
        ValueError: Jobs had service, but their runs are not known.
    """
    ended = records.finished
    one = np.ones(len(records))
    job, begun_s, left_s = _runs_known(records).stretches()
    return Steps.of(
        [
            (records.submit_s, one),
            (begun_s, -one[job]),
            (left_s, one[job]),
            (records.end_s[ended], -one[ended]),
        ]
    )


def windows(records: Records, *, count: int) -> F64:
    """Edges of *count* windows of one length, from the first submission to the last end.

    Returns:
        ``(count + 1,)`` seconds; empty where no time passes.
    """
    first_s, last_s = span(records)
    return np.linspace(first_s, last_s, count + 1) if last_s > first_s else np.zeros(0)


def span(records: Records) -> tuple[float, float]:
    """First submission and last end of a job or a run, seconds; NaN where there is none."""
    ends_s = np.concatenate([records.end_s[records.finished], records.runs.end_s])
    first_s = float(records.submit_s.min()) if len(records) else np.nan
    return first_s, float(ends_s.max()) if len(ends_s) else np.nan


def utilisation(records: Records, edges_s: F64, *, gpus: float) -> F64:
    """Share of the cluster in use, mean over each window.

    Args:
        edges_s: ``(w + 1,)`` edges of the windows, seconds, increasing.
        gpus: GPUs of the cluster, above 0.

    Returns:
        ``(w,)``, 1 is all of the GPUs.

    Raises:
        ValueError: Jobs had service, but their runs are not known.
    """
    return gpus_in_use(records).means(edges_s) / gpus


def _runs_known(records: Records) -> Runs:
    if not len(records.runs) and (records.service_gpu_s > 0).any():
        msg = "what happened over time needs the runs of the jobs, and these records have none"
        raise ValueError(msg)
    return records.runs
