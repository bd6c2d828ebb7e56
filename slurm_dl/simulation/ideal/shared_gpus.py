"""An ideal cluster in which two jobs may share their GPUs.

GPUs are counted. What the policy wants is so at once; a job that it leaves without GPUs may then
join one that runs alone on as many GPUs. Both go on at their speeds beside each other until one of
them ends, and the GPUs are the other's. Jobs join in the order of the policy, by its own conditions
(`PairRule`) or, without any, where the speeds add up to 1.25 or more. Each of the two has half of
the GPUs in what it attains. Where GPUs are given out, all of a pair's count at the job that the
policy placed better: a policy that stops this one stops both.

Source: Lucid, ASPLOS 2023, section 4.2 (binder); ours for policies that stop jobs.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.target import NOBODY
from slurm_dl.model.jobs import F64, I64, PENDING, Bool
from slurm_dl.model.pair_rates import NO_RULE, PairRule
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.gpu_packing import FORM_FROM, MOST_LABELS
from slurm_dl.placement.pair_speeds import label_of
from slurm_dl.policies.base import Order, Policy
from slurm_dl.simulation.ideal.active_jobs import ActiveJobs
from slurm_dl.simulation.ideal.placement_model import AtSpeeds, PlacementChange, Rows, change_to
from slurm_dl.simulation.ideal.simulator import IdealCluster
from slurm_dl.simulation.job_knowledge import TraceKnowledge
from slurm_dl.simulation.outcome import Outcome

ALONE = -1


class Pairs(AtSpeeds):
    """GPUs are counted; a job that was not placed stays beside the one it shares with.

    Args:
        n: Jobs of the trace.
    """

    def __init__(self, n: int) -> None:
        self.other: I64 = np.full(n, ALONE)  # By row of the trace, whom each shares with
        self.intent: Intent | None = None  # Of the last decision, if there were jobs
        self.first: Rows = NOBODY  # Rows of the jobs that the policy is shown with all GPUs
        self.second: Rows = NOBODY  # Rows of those that share with them

    def settle(self, jobs: ActiveJobs, _snap: Snapshot, intent: Intent, /) -> PlacementChange:
        """See `PlacementModel`."""
        self.intent = intent
        wanted = np.zeros(len(jobs), dtype=np.bool_)
        wanted[intent.target] = True
        wanted[self.second] = wanted[self.first]
        return change_to(jobs, wanted.nonzero()[0], np.zeros(len(jobs), dtype=np.bool_))

    def leave(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        jobs.speed[rows] = 1.0

    def part(self, ids: I64) -> None:
        """The jobs *ids* share with nobody any more."""
        shared = self.other[ids]
        self.other[shared[shared != ALONE]] = ALONE
        self.other[ids] = ALONE

    def begin(self, jobs: ActiveJobs) -> None:
        """Before a decision: *first* of each pair is the job that the policy placed better."""
        self.intent = None
        one = (self.other[jobs.job_id] > jobs.job_id).nonzero()[0]
        other = jobs.job_id.searchsorted(self.other[jobs.job_id[one]])
        swap = jobs.place[other] < jobs.place[one]
        self.first, self.second = np.where(swap, other, one), np.where(swap, one, other)


class SharedGpus(IdealCluster):
    """One simulation with pairs under way; see the module.

    Args:
        known: Its `pair_rates` are given, of one type of GPUs.
        least_speed: Least sum of speeds, where the policy has no rule by labels.
    """

    def __init__(
        self,
        *,
        known: TraceKnowledge,
        least_speed: float = FORM_FROM,
        **given: Any,  # noqa: ANN401 - all that an ideal cluster takes
    ) -> None:
        rates = known.pair_rates
        assert rates is not None  # noqa: S101 - else there is nothing to share
        self._pairs = Pairs(len(rates.kind))
        super().__init__(known=known, **{**given, "whereabouts": self._pairs})
        self._rates = rates
        self._least = least_speed
        # By the mean speed of all kinds beside each.
        self._labels = np.array([label_of(mean) for mean in rates.rate[:, :, 0].mean(axis=0)])
        self._policy = cast("Policy", _ShownHalves(self._policy, self))
        self._formed = 0

    def outcome(self) -> Outcome:
        """As of any ideal cluster, with how often two jobs began to share."""
        return dataclasses.replace(super().outcome(), pairs=self._formed)

    def _complete(self) -> None:
        jobs, other = self._jobs, self._pairs.other
        ids = jobs.job_id[(other[jobs.job_id] != ALONE).nonzero()[0]]
        super()._complete()
        ended = ids[~np.isnan(self._end_s[ids])]
        left = np.setdiff1d(other[ended], ended)
        self._go_on(jobs.job_id.searchsorted(left), np.ones(len(left)))
        self._pairs.part(ended)

    def show_halves(self) -> None:
        """Show half of the GPUs at each job of a pair, from now on."""
        self._jobs.gpus[:] = self._held(np.arange(len(self._jobs)))

    def show_whole(self) -> None:
        """Show all GPUs of a pair at one of its jobs, from now on."""
        self._jobs.gpus[:] = self._trace.gpus[self._jobs.job_id]
        self._jobs.gpus[self._pairs.second] = 0.0

    def _decide(self) -> None:
        jobs = self._jobs
        self._pairs.begin(jobs)
        super()._decide()
        jobs.gpus[:] = self._trace.gpus[jobs.job_id]
        if self._pairs.intent is not None:
            self._join(self._pairs.intent)

    def _stop(self, rows: Rows) -> None:
        super()._stop(rows)
        self._pairs.part(self._jobs.job_id[rows])

    def _account(self) -> None:
        super()._account()
        jobs = self._jobs
        had = (jobs.ran_s - jobs.ran_before_s) * self._held(np.arange(len(jobs)))
        jobs.attained_gpu_s[:] = jobs.had_before_gpu_s + had

    def _close_runs(self, rows: Rows) -> None:
        self._jobs.gpus[rows] = self._held(rows)
        super()._close_runs(rows)
        self._jobs.gpus[rows] = self._trace.gpus[self._jobs.job_id[rows]]

    def _book_losses(self, rows: Rows, lost_s: F64) -> None:
        self._lost_gpu_s[self._jobs.job_id[rows]] += lost_s * self._held(rows)

    def _held(self, rows: Rows) -> F64:
        """``(len(rows),)`` GPUs of the jobs, of a pair half for each."""
        ids = self._jobs.job_id[rows]
        gpus: F64 = self._trace.gpus[ids] * np.where(self._pairs.other[ids] == ALONE, 1.0, 0.5)
        return gpus

    def _join(self, intent: Intent) -> None:
        """Let waiting jobs join running ones, in the order of the policy."""
        jobs = self._jobs
        ranked, barred = intent.ranked, intent.order.barred
        waits = jobs.state[ranked] == PENDING
        if barred is not None:
            waits &= ~barred[ranked]
        alone = (jobs.running & (self._pairs.other[jobs.job_id] == ALONE)).nonzero()[0]
        rule = intent.order.pairs or NO_RULE
        hosts = alone[np.lexsort((jobs.job_id[alone], self._first_start_s[jobs.job_id[alone]]))]
        for guest in ranked[waits].tolist():
            sums = self._sums(hosts, guest)
            fit = self._fit(rule, hosts, guest, sums)
            if fit.any():
                best = fit.argmax() if rule.first_host else np.where(fit, sums, 0.0).argmax()
                self._pair(int(hosts[best]), guest)
                hosts = np.delete(hosts, best)
            elif not self._policy.skips:
                break

    def _fit(self, rule: PairRule, hosts: Rows, guest: int, sums: F64) -> Bool:
        jobs = self._jobs
        asked = self._trace.gpus[jobs.job_id]
        fit: Bool = (sums > 0) & (asked[hosts] == asked[guest])
        if rule.by_labels:
            kind = self._rates.kind[jobs.job_id]
            fit &= self._labels[kind[hosts]] + self._labels[kind[guest]] <= MOST_LABELS
        else:
            fit &= sums >= self._least
        if rule.most_ratio is not None:
            left = jobs.left_s * asked if rule.left_gpu_s is None else rule.left_gpu_s
            fit &= left[guest] <= rule.most_ratio * left[hosts]
        return fit

    def _sums(self, hosts: Rows, guest: int) -> F64:
        ids = self._jobs.job_id
        sums: F64 = self._rates.beside(ids[hosts], ids[[guest]])[..., 0].sum(axis=0)
        return sums

    def _pair(self, host: int, guest: int) -> None:
        jobs, rows = self._jobs, np.array([host, guest])
        ids = jobs.job_id[rows]
        speed = self._rates.beside(ids[:1], ids[1:])[:, 0, 0]
        self._go_on(rows[:1], speed[:1])
        self._pairs.other[ids] = ids[::-1]
        jobs.speed[guest] = speed[1]
        self._start(rows[1:])
        self._formed += 1

    def _go_on(self, rows: Rows, speed: F64) -> None:
        jobs = self._jobs
        # They will share with others than so far. What a job held until now is a run of its own.
        self._close_runs(rows)
        ran_s = self._now_s - jobs.start_s[rows]
        jobs.ran_before_s[rows] += ran_s
        jobs.had_before_gpu_s[rows] += ran_s * self._held(rows)
        jobs.start_s[rows] = self._now_s
        super()._go_on(rows, speed)


class _ShownHalves:
    """*policy*, which is shown half of the GPUs at each job of a pair."""

    def __init__(self, policy: Policy, cluster: SharedGpus) -> None:
        self._policy = policy
        self._cluster = cluster

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def order(self, snap: Snapshot, /) -> Order:
        self._cluster.show_halves()
        order = self._policy.order(snap)
        self._cluster.show_whole()
        return order

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        self._cluster.show_halves()
        return self._policy.next_change_s(snap, order, running)
