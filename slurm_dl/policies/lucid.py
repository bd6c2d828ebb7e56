"""Lucid: the job with the fewest predicted GPU-seconds first, and pairs by labels of models.

    rank = predicted seconds x GPUs, smallest first; nobody is preempted

A job that asks for half a GPU may start beside a running one with as many GPUs if

1. the memory of both fits the device,
2. the labels of both models add up to 2 at most (0 hardly slows a neighbour, 2 much),
3. its own rank is at most twice that of the running job, so that both end at about the same time,
4. more GPUs are waited for than are free.

The running job that started first is taken. The engine applies 1 and 4 under every policy
(`placement.gpu_packing`, `engine.placing.gpu_sharing`); 2, 3 and the choice are the rule that this
policy's order carries.

Source: Hu et al., "Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep Learning
Training Jobs", ASPLOS 2023, section 4; the bound of 2 is that of its code, S-Lab Lucid.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from slurm_dl.estimates.similar_jobs import asked, mean_of_user_s
from slurm_dl.model.jobs import COMPLETING, F64, I64, Origin, is_in
from slurm_dl.model.pair_rates import PairRule
from slurm_dl.model.parameter_bounds import Positive
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier

_UNKNOWN = (Origin.DECLARED, Origin.PRIOR)  # Nobody has seen jobs like it


@dataclass(frozen=True, slots=True, kw_only=True)
class Lucid(PolicyDefaults):
    """Fewest predicted GPU-seconds first; jobs with half a GPU share one by labels of models.

    Attributes:
        labels: Pairs by labels. False: by the sum of both speeds, measured or expected.
        most_ratio: Most that the rank of a job may be of that of the running job that it joins,
            above 0.
    """

    name = "lucid"
    source = "Lucid, ASPLOS 2023, section 4"
    about = About(
        row="A17",
        level="W3",
        formula="rank = predicted seconds left x GPUs, smallest first; no job is preempted",
        needs=("left_s", "history"),
        fallback=(
            "without an estimate: mean run time of the user's finished jobs, else of all, less the "
            "time run so far; without that: what the time limit leaves"
        ),
        starves="a job expected to be large, while smaller ones come",
    )
    interpretation = (
        "Predictions are the daemon's estimates of the remaining time; the paper learns them with "
        "an additive model. There is no profiling partition: a job whose model was not measured "
        "starts alone, and dlrun measures it. Only jobs that asked for half a GPU (gres/shard) "
        "share one. Jobs behind one that does not fit are served."
    )
    preempts = "never"

    labels: bool = True
    most_ratio: Positive = 2.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        # Also of jobs whose begin time is ahead: they are placed before it.
        rows = ((snap.jobs.state < COMPLETING) & (snap.jobs.gpus > 0)).nonzero()[0]
        key = np.full(len(snap.jobs), np.inf)
        key[rows] = snap.jobs.gpus[rows] * _left_s(snap, rows)
        rule = PairRule(
            by_labels=self.labels, most_ratio=self.most_ratio, first_host=True, left_gpu_s=key
        )
        return dataclasses.replace(one_tier(key), pairs=rule)


def _left_s(snap: Snapshot, rows: I64) -> F64:
    """Seconds that the jobs at *rows* are predicted to run on."""
    left_s = np.where(np.isnan(snap.left_s[rows]), np.inf, snap.left_s[rows])
    if not len(snap.past):
        return left_s
    unknown = np.isinf(left_s)
    unknown |= True if snap.left_from is None else is_in(snap.left_from[rows], _UNKNOWN)
    mean_s = mean_of_user_s(snap.past, asked(snap, rows)) - snap.memory.ran_s[rows]
    # Of a job that ran for longer than that only its time limit is known.
    return np.where(unknown & (mean_s > 0), np.minimum(mean_s, left_s), left_s)
