"""MLFS' heuristic: early iterations of urgent jobs first, and jobs that are due, short or waiting.

A job's priority mixes what training gains by it with how pressed it is:

    P   = alpha * P_ML + (1 - alpha) * P_C
    P_ML = urgency * 1 / iteration * (loss reduction of the last iteration / of all so far)
    P_C = gd / (deadline - now) + gr / remaining time + gw * waiting time

The largest goes first. The parts have different units, so each of the four (P_ML and the three
terms of P_C) is divided by the largest among the jobs that take part: it is then from 0 to 1, and a
term that a job does not have, say without a deadline, stays 0.

Source: Wang, Liu and Shen, "Job Scheduling for Large-Scale Machine Learning Clusters", CoNEXT 2020
(MLF-H, priority of tasks).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, PENDING
from slurm_dl.model.parameter_bounds import (
    Count,
    Figures,
    NotNegative,
    Part,
    Positive,
    Table,
    from_0,
)
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import contenders
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier

Rows = npt.NDArray[np.int64]


_Urgencies = Annotated[
    Table,
    Figures(
        from_0,
        wrong="{name} must be finite numbers, 0 or more (got {value} for {key!r})",
        twice="{name} must name every QOS once",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlfs(PolicyDefaults):
    """The largest weighted sum of urgency per iteration, deadline, time left and waiting first.

    Attributes:
        urgency: Urgency of the jobs of each QOS, 0 or more, such as ``[[high, 5], [low, 0.5]]``.
        other_urgency: Urgency of the jobs of any other QOS, 0 or more.
        alpha: Weight of the training part, 0 to 1; the rest is the weight of the computing part.
        deadline_weight: Weight of the deadline in the computing part, 0 or more.
        remaining_weight: Weight of the time left in the computing part, 0 or more.
        waiting_weight: Weight of the time waited in the computing part, 0 or more.
        iterations: Number of iterations in a job's work where its progress is known, 1 or more.
        iteration_s: Length of an iteration where its progress is unknown, seconds, above 0.
        shortest_s: Times to a deadline and times left below this count as this, seconds, above 0.
    """

    name = "mlfs"
    source = "MLFS, CoNEXT 2020 (MLF-H, priority)"
    about = About(
        row="A16",
        level="W3",
        formula=(
            "alpha * urgency / iteration + (1 - alpha) * (gd / (deadline - now) + gr / seconds left"
            " + gw * waited), each part as a share of the largest; largest first"
        ),
        needs=("due_s", "left_s", "progress", "texts"),
        fallback=(
            "Without loss the factor of its reductions is 1. Without a deadline or a known time "
            "left, that term is 0. Without progress the iteration is computed from the seconds "
            "run and left, without those from the seconds run. A job of an unlisted or unknown QOS "
            "has other_urgency."
        ),
        starves=(
            "a job without a deadline and of little urgency, while more urgent ones come; a job "
            "that asks for many GPUs, while smaller ones come"
        ),
        trusts=(
            "its deadline",
            "progress: a job that reports little progress is in an early iteration",
        ),
    )
    interpretation = (
        "The order is per job, not per task: Slurm sees no tasks, so model partitions and the "
        "tasks that depend on one do not count. Parts are divided by the largest among the jobs "
        "that take part. Losses are not seen. Urgency is that of the QOS. A job past its deadline "
        "counts as one without; otherwise the formula would turn negative. Running jobs keep "
        "their GPUs, as the paper moves only tasks of overloaded servers and Slurm overloads "
        "none. Jobs are not stopped early (MLF-C), and nothing is learned (MLF-RL)."
    )
    preempts = "never"

    urgency: _Urgencies = ()
    other_urgency: NotNegative = 1.0
    alpha: Part = 0.3
    deadline_weight: NotNegative = 0.3
    remaining_weight: NotNegative = 0.3
    waiting_weight: NotNegative = 0.35
    iterations: Count = 100
    iteration_s: Positive = 600.0
    shortest_s: Positive = 60.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        key: F64 = np.full(len(snap.jobs), np.inf)
        rows = contenders(snap).nonzero()[0]
        key[rows] = -self.priority(snap, rows)
        return one_tier(key)

    def priority(self, snap: Snapshot, rows: Rows) -> F64:
        """``(len(rows),)`` P of the jobs at *rows*, among one another; 0 or more."""
        iteration = self.iteration(snap, rows)
        ml = ml_priority(self._urgency(snap, rows), iteration, np.ones(len(rows)))
        due_s = np.full(len(rows), np.inf) if snap.due_s is None else snap.due_s[rows]
        waits = snap.jobs.state[rows] == PENDING
        waited_s = np.where(waits, snap.now_s - snap.memory.waiting_since_s[rows], 0.0)
        to_go_s = due_s - snap.now_s
        # A deadline that is missed cannot be saved, at the cost of the next one least of all.
        deadline = np.where(to_go_s >= 0, 1 / np.maximum(to_go_s, self.shortest_s), 0.0)
        computing = (
            self.deadline_weight * as_share(deadline)
            + self.remaining_weight * as_share(1 / np.maximum(snap.left_s[rows], self.shortest_s))
            + self.waiting_weight * as_share(np.maximum(waited_s, 0.0))
        )
        mixed: F64 = self.alpha * as_share(ml) + (1 - self.alpha) * computing
        return mixed

    def iteration(self, snap: Snapshot, rows: Rows) -> F64:
        """``(len(rows),)`` the iteration that each job is in, from 1."""
        ran_s, left_s = snap.memory.ran_s[rows], snap.left_s[rows]
        done: F64 = np.full(len(rows), np.nan)
        np.divide(ran_s, ran_s + left_s, out=done, where=np.isfinite(left_s) & (ran_s + left_s > 0))
        if snap.progress is not None:
            told = snap.progress[rows]
            done = np.where(np.isnan(told), done, told)
        by_time = np.floor(ran_s / self.iteration_s)
        # The last iteration goes on until the job is over.
        by_work = np.minimum(np.floor(done * self.iterations), self.iterations - 1)
        return 1 + np.maximum(np.where(np.isnan(done), by_time, by_work), 0.0)

    def _urgency(self, snap: Snapshot, rows: Rows) -> F64:
        table, texts = dict(self.urgency), snap.seen.texts
        if not (table and texts):
            return np.full(len(rows), self.other_urgency)
        found = (texts.get(JobId(j)) for j in snap.jobs.job_id[rows].tolist())
        return np.array(
            [
                self.other_urgency if text is None else table.get(text.qos, self.other_urgency)
                for text in found
            ],
            dtype=np.float64,
        )


def loss_factor(reductions: Sequence[float]) -> float:
    """How much of all loss reductions so far the last iteration made; 1 where nothing is known.

    Args:
        reductions: What each iteration took off the loss, the last one at the end.
    """
    total = math.fsum(reductions)
    return reductions[-1] / total if total > 0 else 1.0


def ml_priority(urgency: F64, iteration: F64, factor: F64) -> F64:
    """``(n,)`` P_ML of whole jobs.

    Args:
        urgency: ``(n,)`` 0 or more.
        iteration: ``(n,)`` from 1.
        factor: ``(n,)`` `loss_factor` of each.
    """
    found: F64 = urgency / iteration * factor
    return found


def as_share(term: F64) -> F64:
    """``(n,)`` *term* divided by its largest value; all 0 where none is above 0."""
    top = float(term.max(initial=0.0))
    return term / top if top > 0 else np.zeros(len(term))
