"""Turns in Gavel's rounds: of jobs alone and, where the policy packs, of pairs of them.

A row for each, in the order in which Gavel's code looks at them, which decides between equals. A
pair has its own share, the time that it has had, and what it is owed; both jobs of it run at once.

Source: stanford-futuredata/gavel, commit c4fa400, scheduler/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.pair_rates import PairRates
from slurm_dl.policies.arithmetic.lp_pairs import PairShares

_ROUNDING = 1e-12  # What a difference of shares may be off
_COLUMNS = ("first", "second", "has_share", "speed", "wanted", "owed_s", "had_s")


class Turns:
    """The jobs that are here, and their pairs.

    Args:
        rates: ``(n, t)`` steps a second of each job of the trace on each type.
        gpus: ``(n,)``.
        pairs: Speeds of two of them on the same GPUs; None: nobody shares.
        half_s: Time that a job that comes counts as having had already, on each type.

    Attributes:
        first: ``(e,)`` row of the trace of a job.
        second: ``(e,)`` that of the other of a pair; -1: alone.
        has_share: ``(e,)`` bool: it was here when shares were found.
        speed: ``(e, 2, t)`` steps a second of both; 0 on types where one of them cannot run.
        wanted: ``(e, t)`` share of the time.
        owed_s: ``(e, t)`` time that was due to it by earlier shares, and that it has not had.
        had_s: ``(e, t)`` time that it has had since shares were found.
    """

    def __init__(self, rates: F64, gpus: F64, pairs: PairRates | None, half_s: float) -> None:
        kinds = rates.shape[1]
        self._rates, self._gpus, self._pairs, self._half_s = rates, gpus, pairs, half_s
        self.first: I64 = np.zeros(0, dtype=np.int64)
        self.second: I64 = self.first
        self.has_share: Bool = np.zeros(0, dtype=np.bool_)
        self.speed: F64 = np.zeros((0, 2, kinds))
        self.wanted: F64 = np.zeros((0, kinds))
        self.owed_s: F64 = self.wanted
        self.had_s: F64 = self.wanted
        self._all_had_s: F64 = np.zeros(kinds)

    def keep(self, alive: Bool) -> None:
        """Drop jobs that are not *alive*, ``(n,)`` bool, and their pairs."""
        stays: Bool = alive[self.first] & (alive[self.second] | (self.second < 0))
        if not stays.all():
            for name in _COLUMNS:
                setattr(self, name, getattr(self, name)[stays])

    def add(self, jobs: I64) -> None:
        """Let *jobs*, increasing, in: each alone, and beside each that asks for as many GPUs."""
        for job in jobs.tolist():
            others = self.first[self.second < 0]
            others = others[self._gpus[others] == self._gpus[job]]
            both = self._beside(others, np.full(len(others), job))
            fits = np.flatnonzero(both.any(axis=(1, 2)))
            n, kinds = 1 + len(fits), self._rates.shape[1]
            alone = np.stack([self._rates[job], self._rates[job]])
            had_s = np.zeros((n, kinds))
            had_s[0] = self._half_s
            new = {
                "first": np.append(job, others[fits]),
                "second": np.append(-1, np.full(n - 1, job)),
                "has_share": np.zeros(n, dtype=np.bool_),
                "speed": np.concatenate([alone[None], both[fits]]),
                "wanted": np.zeros((n, kinds)),
                "owed_s": np.zeros((n, kinds)),
                "had_s": had_s,
            }
            for name, rows in new.items():
                setattr(self, name, np.concatenate([getattr(self, name), rows]))

    def _beside(self, one: I64, other: I64) -> F64:
        """``(k, 2, t)`` steps a second of both; 0 where they do not fit."""
        if self._pairs is None:
            return np.zeros((len(one), 2, self._rates.shape[1]))
        alone = np.stack([self._rates[one], self._rates[other]])
        speed = (alone * self._pairs.beside(one, other)).swapaxes(0, 1)
        fits: Bool = np.asarray((speed > 0).all(axis=1))
        return np.where(fits[:, None], speed, 0.0)

    def settle(self, passed_s: float) -> None:
        """Note what all are owed of the old shares, and begin to count for new ones.

        Args:
            passed_s: Time since the old shares were found.
        """
        self.owed_s += self.wanted * passed_s - (self.had_s - self._half_s)
        self.had_s[:] = self._half_s
        # As in Gavel's code pairs that fit nowhere count, too: rounding decides between equals.
        alone = self._gpus[self.first[self.second < 0]]
        _, n = np.unique(alone, return_counts=True)
        self._all_had_s[:] = self._half_s * (
            len(alone) if self._pairs is None else (n * (n + 1) // 2).sum()
        )

    def share(self, time: F64, paired: PairShares) -> None:
        """Take new shares.

        Args:
            time: ``(n, t)`` those of the jobs of the trace, alone and in pairs.
            paired: Those of pairs, by row of the trace.
        """
        self.has_share[:] = True
        self.wanted[:] = 0.0
        alone, n = time - paired.time(*time.shape), len(time)
        alone[alone < _ROUNDING] = 0.0
        keys = self.first * n + self.second
        by_key = keys.argsort()
        ends = np.stack([paired.first, paired.second])
        told = ends.min(axis=0) * n + ends.max(axis=0)
        at = by_key[keys.searchsorted(told, sorter=by_key).clip(0, len(keys) - 1)]
        there = keys[at] == told  # Others fit nowhere
        self.wanted[at[there], paired.kind[there]] = paired.share[there]
        jobs = (self.second < 0).nonzero()[0]
        self.wanted[jobs] = alone[self.first[jobs]]

    def chosen(self, free: F64, kinds: Sequence[int], *, queues: bool) -> tuple[I64, I64]:
        """Rows of those that run in the next round, and the type of each.

        Args:
            free: ``(t,)`` GPUs of each type; is used up.
            kinds: The types, in the order in which they are given away.
            queues: Those without a share on a type do not take what is left over of it.
        """
        can: Bool = np.asarray((self.speed > 0).all(axis=1))
        part = self.had_s / np.where(self._all_had_s > 0, self._all_had_s, 1.0)
        priority = np.where(can, self.wanted, 0.0) / np.where(part > 0, part, 1.0)
        taken: set[int] = set()
        rows, on = [], []
        for j in kinds:
            turn = np.lexsort((-self.wanted[:, j], -self.owed_s[:, j], -priority[:, j]))
            may = can[:, j] & ((priority[:, j] > 0) | (not queues))
            for at in turn[may[turn]].tolist():
                if free[j] <= 0:
                    break
                job, other = int(self.first[at]), int(self.second[at])
                gpus = self._gpus[job]
                if job in taken or other in taken or gpus > free[j]:
                    continue
                free[j] -= gpus
                taken |= {job, other} - {-1}
                if self.has_share[at]:
                    rows.append(at)
                    on.append(j)
        return np.array(rows, dtype=np.int64), np.array(on, dtype=np.int64)

    def ran(self, rows: I64, kind: I64, had_s: F64) -> None:
        """Those at *rows* have run on types *kind*, ``had_s`` each."""
        self.had_s[rows, kind] += had_s
        np.add.at(self._all_had_s, kind, had_s)

    def members(self, rows: I64) -> tuple[I64, I64, I64]:
        """The jobs of those at *rows*: row of the trace, place in *rows*, and 0 or 1, its side."""
        seconds = (self.second[rows] >= 0).nonzero()[0]
        jobs = np.concatenate([self.first[rows], self.second[rows[seconds]]])
        of = np.concatenate([np.arange(len(rows)), seconds])
        side = np.repeat([0, 1], [len(rows), len(seconds)])
        by_job = jobs.argsort()
        return jobs[by_job], of[by_job], side[by_job]
