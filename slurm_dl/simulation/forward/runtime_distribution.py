"""How long each job may still run, as a distribution to draw from.

Of the following the first that is known of a job; nobody runs beyond the time limit:

    known        a simulation's own figure: always that
    reported     its own word on its progress: what `left_of` makes of it, times exp(0.3 z), z
                 standard normal
    like it      jobs of the same user, name and GPUs, at least 5 of them: one of those that ran
                 longer than it has run by now
    same user    likewise with at least 20 jobs of the user
    limit        its run time over all runs is log-uniform from 1 % of the time limit (or from what
                 it has run) to all of it: most jobs end long before their limit
    all jobs     likewise with at least 20 jobs of the site
    nothing      of those that have run for t, half run for 2 t, a tenth for 10 t: Lindy's law, from
                 10 minutes on and to 100 times as much

One number between 0 and 1 decides each draw, so that two forward runs with the same numbers differ
by what they are about alone.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.estimates.similar_jobs import asked
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.jobs import COMPLETING, F64, I64, Origin
from slurm_dl.model.snapshot import Snapshot

LIKE_IT: Final = 5
OF_USER: Final = 20
OF_SITE: Final = 20
LEAST_SURVIVORS: Final = 3
"""Of jobs that ran longer than this one has by now; with fewer they say nothing of it any more."""

REPORTED_SIGMA: Final = 0.3
LEAST_OF_LIMIT: Final = 0.01
LINDY_FROM_S: Final = 600.0
LINDY_MOST: Final = 100.0
LEAST_S: Final = 1.0
COMPLETING_S: Final = 5.0
MOST_SAMPLES: Final = 2000  # Of the jobs of one kind the last so many count


class RuntimeDistribution:
    """What the jobs of one snapshot may have left.

    Attributes:
        sources: For each job which of the above it is.
    """

    def __init__(self, snap: Snapshot) -> None:
        n = len(snap.jobs)
        self._ran_s = np.maximum(snap.memory.ran_s, 0.0)
        self._limit_s = snap.jobs.limit_s
        self._left_s = snap.left_s
        self._samples: list[F64 | None] = [None] * n
        origin = (
            np.full(n, Origin.DECLARED, dtype=np.int8) if snap.left_from is None else snap.left_from
        )
        self.sources: list[str] = ["nothing"] * n
        known = _Known(snap.past)
        jobs = asked(snap, np.arange(n))
        for row in range(n):
            if snap.jobs.state[row] == COMPLETING:
                self.sources[row] = "ending"
            elif origin[row] == Origin.KNOWN:
                self.sources[row] = "known"
            elif origin[row] == Origin.REPORTED and np.isfinite(snap.left_s[row]):
                self.sources[row] = "reported"
            else:
                self.sources[row], self._samples[row] = known.of(
                    jobs.user[row],
                    jobs.name[row],
                    float(jobs.gpus[row]),
                    ran_s=float(self._ran_s[row]),
                    limited=bool(np.isfinite(self._limit_s[row])),
                )

    def draw(self, chance: F64) -> F64:
        """``(n,)`` seconds of work left, above 0.

        Args:
            chance: ``(n,)`` numbers from 0 to below 1.
        """
        left_s = np.empty(len(chance))
        for row, (source, u) in enumerate(zip(self.sources, chance.tolist(), strict=True)):
            left_s[row] = self._one(row, source, u)
        least_s = np.where(np.array(self.sources) == "known", 0.0, LEAST_S)
        drawn: F64 = np.maximum(left_s, least_s)
        return drawn

    def _one(self, row: int, source: str, u: float) -> float:
        ran_s, limit_s = float(self._ran_s[row]), float(self._limit_s[row])
        if source == "ending":
            return COMPLETING_S
        if source == "known":
            return float(self._left_s[row])
        if source == "reported":
            normal = NormalDist().inv_cdf(min(max(u, 1e-6), 1 - 1e-6))
            return float(self._left_s[row]) * float(np.exp(REPORTED_SIGMA * normal))
        samples = self._samples[row]
        if samples is not None:
            total_s = float(samples[int(u * len(samples))])
        elif source == "limit":
            from_s = max(LEAST_OF_LIMIT * limit_s, ran_s, LEAST_S)
            total_s = from_s * (max(limit_s, from_s) / from_s) ** u
        else:
            total_s = max(ran_s, LINDY_FROM_S) / max(1.0 - u, 1.0 / LINDY_MOST)
        return min(total_s, max(limit_s, ran_s)) - ran_s


class _Known:
    """The run times of jobs that are over, by tag, by user and all."""

    def __init__(self, past: Past) -> None:
        self._all = past.ran_s[-MOST_SAMPLES:]
        self._by_user: dict[str, F64] = {}
        self._by_tag: dict[tuple[str, str, float], F64] = {}
        if not len(past):
            return
        keys = np.stack([past.user, past.name, np.round(past.gpus * 1000).astype(np.int32)])
        _, first, tag = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        tag = tag.reshape(-1)
        for at, rows in zip(first.tolist(), _groups(tag, len(first)), strict=True):
            name = past.users[past.user[at]], past.names[past.name[at]], float(past.gpus[at])
            self._by_tag[name] = past.ran_s[rows][-MOST_SAMPLES:]
        for user, rows in enumerate(_groups(past.user, len(past.users))):
            self._by_user[past.users[user]] = past.ran_s[rows][-MOST_SAMPLES:]

    def of(
        self, user: str, name: str, gpus: float, *, ran_s: float, limited: bool
    ) -> tuple[str, F64 | None]:
        """Which source says something of a job, and the run times to draw from, if it has any."""
        none = np.zeros(0)
        ways = (
            ("like it", self._by_tag.get((user, name, gpus), none), LIKE_IT),
            ("same user", self._by_user.get(user, none), OF_USER),
            ("limit", none, 0 if limited else 1),
            ("all jobs", self._all, OF_SITE),
        )
        for source, samples, least in ways:
            if len(samples) < least:
                continue
            if source == "limit":
                return source, None
            longer = np.sort(samples[samples > ran_s])
            if len(longer) >= LEAST_SURVIVORS:
                return source, longer
        return "nothing", None


def _groups(index: npt.NDArray[np.integer[Any]], count: int) -> list[I64]:
    """Rows of each of *count* values of *index*, in their order."""
    order = np.argsort(index, kind="stable")
    edges = np.searchsorted(index[order], np.arange(1, count))
    return np.split(order, edges)
