"""A Gittins index with setup costs whose distributions are learnt from finished jobs.

Users do not say how long jobs run, and a restart costs minutes. The index of a job with g GPUs and
age a that waits is

    index = g x min over D > a of
            (E[min(S, D) - a | S > a] + c + s P(S > D | S > a)) / P(S <= D | S > a),

the GPU-seconds that one completion is expected to take; smallest first. s is the cost of stopping
the job and starting it again, which is paid if it has not ended at D. c is what its start costs: s,
or 0 if it has never run. For a job that runs both are 0, but s is subtracted from its index, and
the rest is divided by the hysteresis: a waiting job preempts it only if that gains more than it
costs. Jobs whose indices lie between the same powers of two do not preempt each other.

The distribution of S is learnt, see `run_time_model`.

Source: Asawa and Teneketzis, "Multi-armed bandits with switching penalties", IEEE Trans. Automatic
Control 41(3), 1996; Gu et al., "Tiresias", NSDI 2019, section 3.2 (2D-Gittins). Hysteresis, levels
and the minimum quantum are slurm_dl's.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np

from slurm_dl.estimates.remaining_time import began_anew
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.jobs import COMPLETING, F64, I16, I64, PENDING, Bool
from slurm_dl.model.parameter_bounds import NotNegative, OneOrMore, Positive
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.run_time_model import RunTimeModel
from slurm_dl.policies.arithmetic.supply_and_demand import contenders
from slurm_dl.policies.base import About, Order, PolicyDefaults, in_tiers, quantum_end_s
from slurm_dl.policies.discrete_las import DiscreteLas

LEAST_PAST = 30  # With fewer finished jobs the order is that of `discrete_las`
LEVELS = 48

_UNTIL_KNOWN = DiscreteLas()


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedGittins(PolicyDefaults):
    """The fewest expected GPU-seconds for one completion first, learnt from finished jobs.

    Attributes:
        setup_s: Cost of stopping a job and starting it again, seconds, where it was not measured.
        hysteresis: A waiting job displaces a running one only if its index is at least this many
            times smaller; 1 or more.
        min_quantum_s: A run keeps its GPUs for at least this long, seconds; not after a requeue by
            another than the daemon.
        use_limits: Whether a job is expected to end by its time limit, until it has been requeued
            by another than the daemon.
        progress_margin: A job that reports its progress is expected to end within this many times
            the time left by it. 0: progress is not used, as users write it.
        early_s: In the mean of a group, shorter run times count as this, seconds, above 0.
        quantum_s: While no job comes or goes, the order is updated this often, seconds, above 0.
    """

    name = "learned_gittins"
    source = "slurm_dl; Gittins index with setup costs: Asawa and Teneketzis 1996"
    about = About(
        row="A1",
        level="W3",
        formula=(
            "index = g x min_D (E[min(S, D) - a | S > a] + c + s P(S > D | S > a)) / "
            "P(S <= D | S > a), tier = floor(log2 index)"
        ),
        needs=("history", "setup_s"),
        fallback="with fewer than 30 finished jobs: discrete_las",
        starves="a job that is expected to need much GPU time, while smaller ones come",
        trusts=("the job's name", "its progress, if progress_margin is above 0"),
    )
    interpretation = (
        "The index at a switch is used for jobs that have run and wait, as in Asawa and "
        "Teneketzis; the cost s of a stop before the end is slurm_dl's. It is not optimal with "
        "setup costs. The index of a gang is multiplied by its GPUs. Distributions of failed and "
        "cancelled jobs count like those of completed ones."
    )
    preempts = "tier"
    counts_commitment = True

    setup_s: NotNegative = 180.0
    hysteresis: OneOrMore = 1.5
    min_quantum_s: NotNegative = 900.0
    use_limits: bool = True
    progress_margin: NotNegative = 0.0
    early_s: Positive = 60.0
    quantum_s: Positive = 360.0

    @property
    def tiers(self) -> int:
        """One for runs within the minimum quantum, and the powers of two."""
        return 1 + LEVELS

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        if len(snap.past) < LEAST_PAST:
            return dataclasses.replace(_UNTIL_KNOWN.order(snap), tiers=self.tiers)
        jobs = snap.jobs
        runs = _running(snap)
        tier = np.full(len(jobs), LEVELS, dtype=np.int16)
        rows = contenders(snap).nonzero()[0]
        tier[rows] = _level(self.index_gpu_s(snap, rows))
        if snap.committed_s is not None:
            # A run that nobody can end early costs all that it keeps.
            keeps = snap.kept()
            waits = (jobs.state == PENDING) & (keeps > 0)
            tier[waits] = np.maximum(tier[waits], _level(keeps[waits]))
        young = snap.now_s - jobs.start_s < self.min_quantum_s
        # A job that begins anew by itself has no new quantum: it would run for ever.
        tier[runs & young & ~began_anew(snap)] = 0
        return in_tiers(tier, np.where(runs, 0.0, 1.0), self.tiers)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """A quantum from now while jobs run and others wait; see `Policy`."""
        if len(snap.past) < LEAST_PAST:
            return _UNTIL_KNOWN.next_change_s(snap, order, running)
        return quantum_end_s(snap, running, self.quantum_s)

    def index_gpu_s(self, snap: Snapshot, rows: I64) -> F64:
        """``(len(rows),)`` index of the jobs at *rows*; that of running ones as it is compared."""
        jobs = snap.jobs
        runs = _running(snap)[rows]
        age = snap.memory.ran_s[rows]
        restart = np.full(len(rows), self.setup_s) if snap.setup_s is None else snap.setup_s[rows]
        setup = np.where(runs | (age <= 0), 0.0, restart)
        # With p = P(S <= D | S > a) the last part, s (1 - p) / p, is s / p - s.
        stop = np.where(runs, 0.0, restart)
        expected = _model(snap.past, self.early_s).index_s(snap, rows, age, setup + stop) - stop
        expected = np.minimum(expected, self._at_most_s(snap, rows, runs) + setup)
        index = jobs.gpus[rows] * expected
        kept = (index - jobs.gpus[rows] * restart) / self.hysteresis
        return np.where(runs, kept, index)

    def _at_most_s(self, snap: Snapshot, rows: I64, runs: Bool) -> F64:
        """``(len(rows),)`` seconds that jobs run on at most, by time limit and progress."""
        jobs, most_s = snap.jobs, np.full(len(rows), np.inf)
        if self.use_limits:
            run_s = np.where(runs, snap.now_s - jobs.start_s[rows], 0.0)
            limit_s = np.where(began_anew(snap)[rows], np.inf, jobs.limit_s[rows])
            most_s = np.maximum(limit_s - run_s, 0.0)
        if self.progress_margin and snap.progress is not None:
            done = snap.progress[rows]
            known = done > 0
            left_s = snap.memory.ran_s[rows][known] * (1 / done[known] - 1)
            most_s[known] = np.minimum(most_s[known], self.progress_margin * left_s)
        return most_s


def _running(snap: Snapshot) -> Bool:
    """``(n,)`` bool, jobs whose run is under way."""
    state = snap.jobs.state
    running: Bool = (state > PENDING) & (state < COMPLETING)
    return running


def _level(index_gpu_s: F64) -> I16:
    """``(n,)`` tier of each index: 1 below two GPU-seconds, one more for each doubling."""
    power = np.floor(np.log2(np.maximum(index_gpu_s, 1.0)))
    tier: I16 = np.minimum(1 + power, LEVELS).astype(np.int16)
    return tier


@functools.lru_cache(maxsize=4)
def _model(past: Past, early_s: float) -> RunTimeModel:
    return RunTimeModel.of(past, early_s)
