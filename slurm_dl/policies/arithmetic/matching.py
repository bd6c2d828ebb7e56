"""Jobs matched to places in the queues of machines: the least sum of completion times.

A job that is the k-th from last on a machine delays itself and the k - 1 behind it, so it adds

    D + k P

to the sum of completion times, with P its run time there and D the time until the machine is free.
Who goes where is then a cheapest matching of jobs to the slots (machine, k).

Slots that nobody needs are left out: for n jobs those to which n others of the same type of machine
are preferable for every job. Machines of a type that are free alike have n slots that matter
together, so the matching is n by little more than n times the number of types.

Source: Le et al., "AlloX: Compute Allocation in Hybrid Clusters", EuroSys 2020; Bruno, Coffman and
Sethi, "Scheduling independent tasks to reduce mean finishing time", CACM 17(7), 1974 (unrelated
machines).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool

LEVELS = 8  # Times at which busy machines of a type become free are told apart up to so many


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """Where each of n jobs goes.

    Attributes:
        machine: ``(n,)`` index of its machine; -1 if it can run on none.
        place: ``(n,)`` k: 1 is the last there; 0 if it can run on none.
        start_s: ``(n,)`` seconds from now until it starts there; inf if it can run on none.
        total_s: Sum of the completion times from now, of those that can run.
    """

    machine: I64
    place: I64
    start_s: F64
    total_s: float

    def firsts(self, free: Bool) -> Bool:
        """``(n,)`` bool, jobs that start now: the largest k on each machine that is *free*."""
        on = (self.machine >= 0).nonzero()[0]
        most = np.zeros(len(free), dtype=np.int64)
        np.maximum.at(most, self.machine[on], self.place[on])
        found: Bool = np.zeros(len(self.machine), dtype=np.bool_)
        at = self.machine[on]
        found[on] = free[at] & (self.place[on] == most[at])
        return found


def match(run_s: F64, kind: I64, avail_s: F64) -> Matched:
    """The matching with the least sum of completion times.

    Args:
        run_s: ``(n, t)`` P of each job on each type of machine, above 0; inf where it cannot run.
        kind: ``(m,)`` type of each machine.
        avail_s: ``(m,)`` D: seconds from now until each is free, finite, 0 or more.
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import

    n = len(run_s)
    machine, place = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    start_s: F64 = np.full(n, np.inf)
    slot_machine, slot_place = _slots(kind, avail_s, n)
    if not n or not len(slot_machine):
        return Matched(machine, place, start_s, 0.0)
    cost = avail_s[slot_machine] + slot_place * run_s[:, kind[slot_machine]]
    cannot = ~np.isfinite(cost)
    cost[cannot] = 0.0
    # Dearer than everything else together: as many as can be run somewhere.
    cost[cannot] = (cost.max(initial=0.0) + 1.0) * (n + 1)
    row, slot = linear_sum_assignment(cost)
    runs = ~cannot[row, slot]
    row, slot = row[runs], slot[runs]
    machine[row], place[row] = slot_machine[slot], slot_place[slot]
    # Who is before whom on its machine, and when the first of them can begin.
    by = np.lexsort((-place[row], machine[row]))
    row = row[by]
    lasts = run_s[row, kind[machine[row]]]
    begun = lasts.cumsum() - lasts
    _, firsts, of = np.unique(machine[row], return_index=True, return_inverse=True)
    start_s[row] = avail_s[machine[row]] + begun - begun[firsts][of.reshape(-1)]
    return Matched(machine, place, start_s, float((start_s[row] + lasts).sum()))


def coarse(avail_s: F64, levels: int = LEVELS) -> F64:
    """*avail_s*, if there are more than so many *levels* of it, rounded to so many."""
    if len(np.unique(avail_s)) <= levels:
        return avail_s
    step = float(avail_s.max()) / (levels - 1)
    rounded: F64 = np.round(avail_s / step) * step
    return rounded


def _slots(kind: I64, avail_s: F64, n: int) -> tuple[I64, I64]:
    """Machine and k of every slot that n jobs may need."""
    machines: list[I64] = []
    places: list[I64] = []
    for t in np.unique(kind).tolist():
        mine = (kind == t).nonzero()[0]
        mine = mine[np.argsort(avail_s[mine], kind="stable")][:n]
        ordered = avail_s[mine]
        # As good for each k below this one, and as good for this k.
        alike = ordered.searchsorted(ordered, side="right")
        most = 1 + (n - np.arange(1, len(mine) + 1)) // alike
        machines.append(np.repeat(mine, most))
        ends = np.cumsum(most)
        places.append(np.arange(int(most.sum())) - np.repeat(ends - most, most) + 1)
    if not machines:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.concatenate(machines), np.concatenate(places)
