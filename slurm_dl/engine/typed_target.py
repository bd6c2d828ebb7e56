"""The jobs that would hold GPUs where GPUs are of several types, and the type of each.

Hot path of the simulator: plain numbers, for the jobs that are served.
"""

from __future__ import annotations

import numpy as np

from slurm_dl.engine.target import SLACK_GPUS, Rows
from slurm_dl.model.jobs import F64, I16, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply import gpus_by_type, rates_of, type_held


class TypedResources:
    """GPUs left of each type while jobs are served one after another.

    Args:
        pinned: Rows of jobs that keep what they hold.
        within: ``(m,)`` bool, the nodes whose GPUs are given out; None: all.
    """

    def __init__(self, snap: Snapshot, pinned: Rows, within: Bool | None = None) -> None:
        self.kind: I16 = np.full(len(snap.jobs), -1, dtype=np.int16)
        self._gpus = snap.jobs.gpus
        free = gpus_by_type(snap, within)
        self._held = type_held(snap.seen, snap.on_type)
        on = self._held[pinned]
        known = on >= 0
        np.subtract.at(free, on[known], self._gpus[pinned[known]])
        self.kind[pinned] = on
        self._free: list[float] = free.tolist()
        self._all: list[float] = gpus_by_type(snap, within).tolist()
        self._rates = rates_of(snap)

    def by_need(self, rows: Rows, need: F64) -> Rows:
        """Serve the pairs of job and type in the order of their need; who was served.

        Args:
            rows: Jobs to be served, in the order in which ties are broken.
            need: ``(n, t)`` see `ledger.lease_credits.needs`; -inf where a job wants no GPUs of the
            type.
        """
        kinds = need.shape[1]
        wants = need[rows].ravel()
        may = (wants > -np.inf) & (self._rates[rows].ravel() > 0)
        # Of equal needs first who runs there, then by rank.
        stays = (self._held[rows][:, None] == np.arange(kinds)).ravel()
        place = np.repeat(np.arange(len(rows)), kinds)
        order = np.lexsort([place, ~stays, -wants])
        order = order[may[order]]
        kind_of = np.tile(np.arange(kinds), len(rows))
        served: list[int] = []
        for row, kind in zip(rows[place[order]].tolist(), kind_of[order].tolist(), strict=True):
            if self.kind[row] < 0 and self._take(row, kind):
                served.append(row)
        return np.array(served, dtype=np.int64)

    def by_rank(self, rows: Rows, wanted: I16 | None, *, skips: bool) -> Rows:
        """Serve jobs in their order, each on the best type that has room; who was served.

        Args:
            wanted: ``(n,)`` type that each had best run on, -1: the one it runs on, else the
                fastest.
        """
        served: list[int] = []
        fastest = np.argsort(-self._rates[rows], axis=1, kind="stable").tolist()
        left, whole = max(self._free), max(self._all)
        for row, kinds in zip(rows.tolist(), fastest, strict=True):
            if self.kind[row] >= 0:
                continue
            if self._gpus[row] > (left if skips else whole) + SLACK_GPUS:
                continue  # What no type can ever hold keeps nobody waiting.
            first = -1 if wanted is None else int(wanted[row])
            first = int(self._held[row]) if first < 0 else first
            if first >= 0:
                kinds = [first, *(k for k in kinds if k != first)]  # noqa: PLW2901 - its own list
            for kind in kinds:
                if self._rates[row, kind] > 0 and self._take(row, kind):
                    served.append(row)
                    left = max(self._free)
                    break
            else:
                if not skips:
                    break
            if left <= SLACK_GPUS:
                break
        return np.array(served, dtype=np.int64)

    def _take(self, row: int, kind: int) -> bool:
        gpus = float(self._gpus[row])
        if gpus > self._free[kind] + SLACK_GPUS:
            return False
        self._free[kind] -= gpus
        self.kind[row] = kind
        return True
