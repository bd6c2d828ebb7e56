"""Tiresias as its public simulator has it: queues that are lists.

Jobs join the tail of a queue, and after each allocation the running jobs of a queue move ahead of
its waiting ones; so a job's place depends on the past, and is read from the last order. It is here
to compare with published numbers. A daemon has no use for it: Slurm cannot be told such places.

Source: Gu et al., "Tiresias", NSDI 2019, and what runs of its public simulator show
(SymbioticLab/Tiresias, 2019): every time is a whole second there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import COMPLETING, F64, I16, PENDING, RUNNING, Bool
from slurm_dl.model.parameter_bounds import NotNegative
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order
from slurm_dl.policies.discrete_las import DiscreteLas, Rows, Thresholds, edges_of, first_to_sink

_AHEAD_OF = 2.0**40  # Between the groups of one list; more than there are places in any order

_SLACK_GPU_S = 1e-6
"""Service this close to a threshold has reached it: sums of run times are a little off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLas(DiscreteLas):
    """K queues by attained service, each a list.

    Differs from `DiscreteLas` also in that a job sinks by one queue at a time, and that for a
    promotion all waiting counts since the first run after the last one.

    Attributes:
        late_demotion: Check a job's service only (threshold - run time) / GPUs later, cut to whole
            seconds, as the public simulator does by mistake; it should be (threshold - service) /
            GPUs.
        demotion_step_s: A job's service is checked when its run time is a multiple of this,
            seconds, and at every other event. 0: as soon as it is at the threshold.
    """

    name = "list_las"
    source = "Tiresias, NSDI 2019, as in its public simulator"
    about = About(
        row="A1",
        level="W2",
        formula="K queues by attained service, each a list, as in the public simulator",
        starves=(
            "jobs of the last queue while new ones come, unless promote_knob is above 0; a job "
            "that asks for many GPUs, while smaller ones come"
        ),
    )
    interpretation = "The rule was found by runs of that simulator."
    preempts = "rank"

    thresholds_gpu_s: Thresholds = (3250.0, 7200.0)
    late_demotion: bool = False
    demotion_step_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        DiscreteLas.__post_init__(self)
        if self.late_demotion and self.demotion_step_s:
            msg = "demotion_step_s and late_demotion are two answers to one question: choose one"
            raise ValueError(msg)

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        tier = one_step_down(snap, self.service(snap), self.thresholds_gpu_s)
        promote = np.zeros(len(tier), dtype=np.bool_)
        if self.promote_knob > 0:
            promote = self._starves_in_queue_at(snap, tier) <= snap.now_s
            promote &= snap.jobs.state == PENDING
            tier[promote] = 0
        return Order(tier=tier, key=list_keys(snap, tier), promote=promote, tiers=self.tiers)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """The next demotion or promotion; see `Policy`."""
        rows = running.nonzero()[0]
        left, rate = self.left_in_queue(snap, order, rows), self.rate(snap)[rows]
        if self.late_demotion or self.demotion_step_s:
            left, rate = self._run_left_s(snap, order, rows), np.ones(len(rows))
        change_s = first_to_sink(snap, left=left, rate=rate)
        if self.promote_knob > 0:
            starves_s = self._starves_in_queue_at(snap, order.tier)[~order.promote & ~running]
            starves_s = starves_s[starves_s > snap.now_s]
            change_s = min(change_s, float(starves_s.min(initial=np.inf)))
        return change_s

    def _run_left_s(self, snap: Snapshot, order: Order, rows: Rows) -> F64:
        """``(len(rows),)`` seconds until the service of the jobs at *rows* is looked at."""
        executed_s = (snap.memory.ran_s - snap.memory.forgiven_ran_s)[rows]
        executed_s[order.promote[rows]] = 0
        edges = edges_of(self.thresholds_gpu_s)[order.tier[rows]]
        rate = self.rate(snap)[rows]
        if self.late_demotion:
            late_s: F64 = np.floor((edges - executed_s) / rate)
            return late_s
        step_s = self.demotion_step_s
        left_s: F64 = np.ceil(edges / rate / step_s) * step_s - executed_s
        return left_s

    def _starves_in_queue_at(self, snap: Snapshot, tier: I16) -> F64:
        """``(n,)`` when a job would have waited too long if it waited on; inf if it cannot."""
        memory = snap.memory
        executed_s = memory.ran_s - memory.forgiven_ran_s
        # All waiting since it first ran counts, in whatever pieces.
        since_s = memory.first_run_s + executed_s
        may = (snap.jobs.state < COMPLETING) & (tier > 0) & (executed_s > 0)
        starves_s: F64 = np.where(may, since_s + np.floor(executed_s * self.promote_knob), np.inf)
        return starves_s


def one_step_down(snap: Snapshot, service: F64, thresholds: tuple[float, ...]) -> I16:
    """``(n,)`` the queue of each job: a running one sinks by one at most.

    A job whose last queue is not known is where its service puts it.
    """
    last = snap.memory.tier
    edges = edges_of(thresholds)
    sinks = (service + _SLACK_GPU_S >= edges[last]) & (snap.jobs.state == RUNNING)
    tier: I16 = last + sinks
    unknown = (last < 0).nonzero()[0]
    if len(unknown):
        tier[unknown] = edges.searchsorted(service[unknown], side="right")
    return tier


def list_keys(snap: Snapshot, tier: I16) -> F64:
    """``(n,)`` places in the lists when *tier* is each job's queue from now on.

    First those that run, then those that wait, both in the order they stood in; then new jobs;
    then jobs from other queues. The last two first eligible first.
    """
    jobs, memory = snap.jobs, snap.memory
    key: F64 = memory.place + (jobs.state == PENDING) * _AHEAD_OF
    comes = (tier != memory.tier).nonzero()[0]
    if len(comes):
        by_place = np.lexsort((jobs.job_id[comes], memory.queued_s[comes]))
        comes = comes[by_place]
        group = np.where(memory.tier[comes] < 0, 2.0, 3.0)
        key[comes] = np.arange(len(comes)) + group * _AHEAD_OF
    return key
