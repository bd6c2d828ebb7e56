"""Karuna: jobs with a deadline get the least that meets it, and all the rest is for the others.

A deadline job that runs early makes others wait and gains nothing. So it is last until its latest
start, and first from then on. Its latest start is

    due - left / rate - margin,

or earlier, if it and other deadline jobs together need all GPUs (`latest_start`). Other jobs are in
the queues between: by attained service, sinking with age, or, where it is known how much they have
left, by that, the least first.

Source: Chen, Chen, Bai and Alizadeh, "Scheduling Mix-flows in Commodity Datacenters with Karuna",
SIGCOMM 2016: deadline flows at the least rate that meets the deadline, above all others; flows of
known size in queues by size, of unknown size ageing through them. There it is network flows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, PENDING, Bool, Origin
from slurm_dl.model.parameter_bounds import Figures, NotNegative, Table, above_0
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.promise_needs import latest_start
from slurm_dl.policies.arithmetic.supply_and_demand import contenders, gpus_by_type, rates_of
from slurm_dl.policies.base import About, Order, PolicyDefaults, in_tiers
from slurm_dl.policies.discrete_las import Thresholds, edges_of, first_to_sink

_INSTANT_S: Final = 1e-6  # Times this close are one instant: sums of run times are a little off


_ByQos = Annotated[
    Table,
    Figures(
        above_0,
        wrong="{name} must be finite numbers above 0 (got {value} for {key})",
        twice="{name} must name each QOS once (got {keys})",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Karuna(PolicyDefaults):
    """Jobs with deadlines just in time, other jobs by remaining or attained service.

    Attributes:
        due_after_s: By QOS, time from a job's first submission to its deadline, seconds, above 0. A
            deadline of the job itself takes precedence.
        margin_s: A job is put first this much earlier than its latest start, seconds, 0 or more:
            for restarts, and for decisions that are not taken at once.
        thresholds_gpu_s: Service that separates the queues of the other jobs, GPU-seconds, strictly
            increasing, above 0: attained service, or remaining service where that is known.
        early: Whether a job may start before its latest start on GPUs that no other job can use.
            False: it waits while a job without a deadline waits, and is not restarted for it later.
        knows_left: Whether the expected remaining service of the other jobs is used. They are then
            served by it, the least first, where it is finite.
    """

    name = "karuna"
    source = "Karuna, SIGCOMM 2016 (deadline, known and unknown sizes in one system)"
    about = About(
        row="A22",
        level="W3",
        formula="tier 0 from the latest start on, last before it; between: queues by GPU-seconds",
        needs=("due_s", "left_s", "rates"),
        fallback=(
            "Jobs without a deadline, and jobs with one but an unknown remaining time, are served "
            "by attained service. Without rates every type counts as equally fast."
        ),
        starves=(
            "jobs of the last queues, while new ones come, also jobs past their deadline, because "
            "they are served as if they had none; a job that asks for many GPUs, while smaller "
            "ones come"
        ),
        idles="only if early is false: a job with a deadline waits for its latest start",
        trusts=("its deadline",),
    )
    interpretation = (
        "A gang runs at its rate or not at all, so the least rate becomes the latest start. "
        "Deadline jobs that would need all GPUs together start when the sum of them must, first "
        "due first. A job that can no longer meet its deadline is served as if it had none. If "
        "only its time limit shows that, this begins once the deadline is past. Before their "
        "latest start deadline jobs take GPUs that no other job wants, if early is true. Queues "
        "are by GPU-seconds instead of bytes; their thresholds are given, not optimised."
    )
    preempts = "tier"
    counts_commitment = True

    due_after_s: _ByQos = ()
    margin_s: NotNegative = 300.0
    thresholds_gpu_s: Thresholds = (3250.0, 7200.0, 18000.0)
    early: bool = True
    knows_left: bool = False

    @property
    def tiers(self) -> int:
        """One for pressing deadlines, K queues, and one for deadlines that do not press yet."""
        return len(self.thresholds_gpu_s) + 3

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        jobs, memory = snap.jobs, snap.memory
        edges = edges_of(self.thresholds_gpu_s)
        size, key = snap.service(), memory.queued_s.copy()
        if self.knows_left:
            service = np.maximum(snap.left_s * jobs.gpus, snap.kept())
            known = np.isfinite(service)
            size = np.where(known, service, size)
            # In one queue those of unknown size come behind, first eligible first.
            key = np.where(known, service, np.inf)
        tier = (1 + edges.searchsorted(size, side="right")).astype(np.int16)
        due = self._deadlines(snap)
        tier[due.rows] = self.tiers - 1
        tier[due.rows[due.press_s <= snap.now_s + _INSTANT_S]] = 0
        key[due.rows] = due.due_s
        order = in_tiers(tier, key, self.tiers)
        others = contenders(snap) & (jobs.state == PENDING)
        others[due.rows] = False
        if self.early or not others.any():
            return order
        barred = (jobs.state == PENDING) & (tier == self.tiers - 1)
        start_s = np.full(len(jobs), np.inf)
        start_s[due.rows] = due.press_s
        return dataclasses.replace(order, barred=barred, start_s=start_s)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """The next latest start, missed deadline or demotion; see `Policy`."""
        now_s, jobs = snap.now_s, snap.jobs
        due = self._deadlines(snap, running)
        waits = ~running[due.rows]
        presses = order.tier[due.rows] == 0
        # A job that runs gets on as fast as time does: its latest start stays as far away.
        lost_s = due.lost_s + 2 * _INSTANT_S
        changes = [due.press_s[waits & ~presses], lost_s[waits], due.due_s[~waits]]
        ahead = np.concatenate(changes)
        change_s = float(ahead[ahead > now_s + _INSTANT_S].min(initial=np.inf))
        # What a job has left only falls, and those that run are ahead already.
        ages = running & (jobs.gpus > 0)
        ages[due.rows] = False
        if self.knows_left:
            ages &= ~np.isfinite(snap.left_s)
        rows = ages.nonzero()[0]
        queue = order.tier[rows] - 1
        left = edges_of(self.thresholds_gpu_s)[queue] - snap.service()[rows]
        sinks_s = first_to_sink(snap, left=left, rate=snap.seen.weighted_gpus()[rows])
        # What is a rounding away must not be asked for at this very instant again and again.
        return max(min(change_s, sinks_s), now_s + _INSTANT_S)

    def due_s(self, snap: Snapshot) -> F64:
        """``(n,)`` when each job is to be done, epoch seconds; inf if it has no deadline."""
        due_s = np.full(len(snap.jobs), np.inf)
        if self.due_after_s and snap.seen.texts:
            after = dict(self.due_after_s)
            texts = snap.seen.texts
            for row, job_id in enumerate(snap.jobs.job_id.tolist()):
                text = texts.get(JobId(job_id))
                if text is not None and text.qos in after:
                    due_s[row] = snap.memory.first_submit_s[row] + after[text.qos]
        if snap.due_s is not None:
            due_s = np.where(np.isfinite(snap.due_s), snap.due_s, due_s)
        return due_s

    def _deadlines(self, snap: Snapshot, running: Bool | None = None) -> _Deadlines:
        jobs, now_s = snap.jobs, snap.now_s
        due_s, supply = self.due_s(snap), gpus_by_type(snap)
        there = np.where(supply > 0, rates_of(snap), 0.0).max(axis=1, initial=0.0)
        needs_s = np.divide(snap.left_s, there, out=np.full(len(jobs), np.inf), where=there > 0)
        lost_s = due_s.copy()
        # A time limit is no more than an upper bound: who has only that may still be in time.
        if snap.left_from is not None:
            sure = (snap.left_from != Origin.DECLARED) & np.isfinite(needs_s)
            lost_s[sure] = due_s[sure] - needs_s[sure]
        may = contenders(snap) & np.isfinite(due_s) & np.isfinite(needs_s)
        may &= (lost_s > now_s - _INSTANT_S) & (due_s > now_s)
        rows = may.nonzero()[0]
        rows = rows[np.lexsort([jobs.job_id[rows], due_s[rows]])]
        press_s = latest_start(
            due_s[rows] - self.margin_s,
            needs_s[rows],
            jobs.gpus[rows],
            room=float(supply.sum()),
            now_s=now_s,
            running=None if running is None else running[rows],
        )
        return _Deadlines(rows, due_s[rows], press_s, lost_s[rows])


@dataclass(frozen=True, slots=True, eq=False)
class _Deadlines:
    """The jobs whose deadline can still be met, first due first.

    Attributes:
        rows: ``(k,)`` the jobs.
        due_s: ``(k,)`` when they are to be done, epoch seconds.
        press_s: ``(k,)`` their latest start, epoch seconds.
        lost_s: ``(k,)`` when they can no longer be in time if they have not started, epoch seconds.
    """

    rows: npt.NDArray[np.int64]
    due_s: F64
    press_s: F64
    lost_s: F64
