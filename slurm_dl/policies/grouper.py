"""Grouper: jobs of one search are a stage that is done when its last job is; short stages first.

A search for hyper-parameters starts a group of jobs, compares them when all have come to the end of
a stage, and starts the next stage with the best. What its user waits for is the stage, not a job,
so whole stages are put in order: the one with the smallest bottleneck first, and all jobs of one
stage before any of the next. The bottleneck of a stage is the time it would need on an empty
cluster, at least:

    max(longest job's seconds left, GPU-seconds left / GPUs, of jobs tied to a type / its GPUs).

Source: Zhou, Yu and Sun, "Grouper: Accelerating Hyperparameter Searching in Deep Learning Clusters
With Network Scheduling", IEEE TNSM 17(3), 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, I32, Bool, is_in
from slurm_dl.model.parameter_bounds import Positive
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.throttle import FREE, throttles_in
from slurm_dl.policies.arithmetic.supply_and_demand import contenders, gpus_by_type
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier

Rows = npt.NDArray[np.int64]

_SOON_S = 60.0  # A job whose begin time is this near is part of its stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouper(PolicyDefaults):
    """The stage with the smallest bottleneck first, its jobs together.

    Attributes:
        group_names: Whether jobs of one user with the same name, except for a number at its end,
            are a group. Tasks of an array always are.
        bounds_arrays: Whether GPUs that earlier stages ask for, and cannot use yet, are kept from
            arrays of later stages, by their throttle.
        quantum_s: While no job comes or goes, the order is updated this often if the remaining time
            of a job is unknown, seconds, above 0.
    """

    name = "grouper"
    source = "Grouper, IEEE TNSM 17(3) 2020 (permutation of stages)"
    about = About(
        row="F2",
        level="W3",
        formula=(
            "stage of max(longest seconds left, GPU-seconds left / GPUs) smallest first; "
            "inside a stage the longest job first"
        ),
        needs=("left_s", "texts"),
        fallback=(
            "A job without any estimate is assumed to run as long again as it has run. A job "
            "without a name, and of no array, is a group of its own."
        ),
        starves="a large stage, while smaller ones come",
        trusts=("its array and name: a search that is split into groups is served in parts",),
    )
    interpretation = (
        "Only the abstract is public. The paper orders flows on the network; here stages compete "
        "for GPUs. The stage of a group is all its jobs that run or wait for free resources: "
        "later jobs are not submitted yet, or held by a dependency. Groups are arrays and jobs of "
        "like names. An array of a later stage runs no more tasks at once than the stages before "
        "leave GPUs for, one at least: its throttle is set (bounds_arrays). Pending tasks take no "
        "part while their owner's throttle holds them back. Network flows are not scheduled."
    )

    group_names: bool = True
    bounds_arrays: bool = True
    quantum_s: Positive = 360.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        key: F64 = np.full(len(snap.jobs), np.inf)
        tie: F64 = np.zeros(len(snap.jobs))
        running = None
        rows = _contenders(snap).nonzero()[0]
        if len(rows):
            # Sums must not depend on the order in which Slurm listed the jobs.
            rows = rows[np.argsort(snap.jobs.job_id[rows])]
            # Where nothing is known, as long as the job has run already.
            known_s, ran_s = snap.left_s[rows], snap.memory.ran_s[rows]
            left_s = np.where(np.isfinite(known_s), known_s, ran_s)
            group = self.groups(snap, rows)
            stages = int(group.max()) + 1
            first_s, first_id = np.full(stages, np.inf), np.full(stages, np.inf)
            np.minimum.at(first_s, group, snap.memory.queued_s[rows])
            np.minimum.at(first_id, group, snap.jobs.job_id[rows])
            size_s = bottleneck_s(snap, rows, group, left_s)
            place = np.empty(stages)
            place[np.lexsort((first_id, first_s, size_s))] = np.arange(stages)
            key[rows] = place[group]
            # By all of its time, which does not change as it runs: jobs alike do not swap. The two
            # parts' sum is a little off.
            tie[rows] = -np.round(ran_s + left_s, 3)
            if self.bounds_arrays and snap.seen.throttles:
                running = tasks_at_once(snap, rows, key[rows])
        return replace(one_tier(key, tie), running=running)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """A quantum from now where a running job's time is not known; see `Policy`.

        Stages whose time is known only come further forward as they run.
        """
        waiting = (snap.jobs.state < COMPLETING) & ~running
        guessed = running & ~np.isfinite(snap.left_s)
        turns = bool(waiting.any() and guessed.any())
        return snap.now_s + self.quantum_s if turns else math.inf

    def groups(self, snap: Snapshot, rows: Rows) -> Rows:
        """``(len(rows),)`` number of the group of each job at *rows*, from 0."""
        texts = snap.seen.texts
        number: dict[object, int] = {}
        found = np.empty(len(rows), dtype=np.int64)
        for i, row in enumerate(rows.tolist()):
            job_id = JobId(int(snap.jobs.job_id[row]))
            of: object = job_id
            text = texts.get(job_id)
            if text is not None:
                array, task, _ = text.label.partition("_")
                stem = _stem(text.name) if self.group_names else ""
                if task:
                    of = array
                elif stem:
                    of = (int(snap.jobs.uid[row]), text.user, stem)
            found[i] = number.setdefault(of, len(number))
        return found


def bottleneck_s(snap: Snapshot, rows: Rows, group: Rows, left_s: F64) -> F64:
    """Seconds that each group's stage needs at least, were the cluster empty.

    Args:
        rows: The jobs.
        group: ``(len(rows),)`` number of the group of each, from 0.
        left_s: ``(len(rows),)`` seconds that each has left.
    """
    jobs, nodes = snap.jobs, snap.seen.nodes
    stages = int(group.max(initial=-1)) + 1
    work_gpu_s = left_s * jobs.gpus[rows] * jobs.tasks[rows]
    size_s: F64 = np.zeros(stages)
    np.maximum.at(size_s, group, left_s)
    total = np.bincount(group, weights=work_gpu_s, minlength=stages)
    np.maximum(size_s, total / max(float(nodes.gpus[nodes.up].sum()), 1.0), out=size_s)
    if len(snap.seen.gpu_types) > 1:
        for kind, gpus in enumerate(gpus_by_type(snap).tolist()):
            tied = np.where(jobs.gpu_type[rows] == kind, work_gpu_s, 0.0)
            load = np.bincount(group, weights=tied, minlength=stages)
            np.maximum(size_s, load / max(gpus, 1.0), out=size_s)
    return size_s


def tasks_at_once(snap: Snapshot, rows: Rows, place: F64) -> I32:
    """`Order.running`: an array has the GPUs that jobs of earlier stages do not ask for.

    Those count that ask for GPUs of its partition's nodes, and for no other type than it does.

    Args:
        rows: The jobs that compete.
        place: ``(len(rows),)`` place of each one's stage, the first is 0.
    """
    jobs, seen = snap.jobs, snap.seen
    running: I32 = np.full(len(jobs), FREE, dtype=np.int32)
    wants = jobs.gpus * jobs.tasks
    at = dict(zip(rows.tolist(), place.tolist(), strict=True))
    for job_id in seen.throttles:
        row = jobs.rows[job_id]
        if row not in at:
            continue
        kind, there = int(jobs.gpu_type[row]), seen.node_in[jobs.partition[row]]
        has = seen.nodes.of_type(kind) * (seen.nodes.with_type(kind) if kind >= 0 else 1)
        all_gpus = float(has[there & seen.nodes.up].sum())
        near = (seen.node_in & there).any(axis=1)[jobs.partition[rows]]
        near &= (place < at[row]) & (jobs.gpus[rows] <= all_gpus)
        near &= (jobs.gpu_type[rows] == kind) | (jobs.gpu_type[rows] < 0) | (kind < 0)
        before = float(wants[rows[near]].sum())
        if before:
            running[row] = max(1, int((all_gpus - before) // jobs.gpus[row]))
    return running


def _contenders(snap: Snapshot) -> Bool:
    """`contenders`, jobs that may start soon, and arrays that a throttle of ours holds back."""
    found: Bool = contenders(snap).copy()
    # Slurm starts the tasks at their begin time: then it is too late for a throttle.
    soon = [job for job, at_s in snap.seen.begins.items() if at_s <= snap.now_s + _SOON_S]
    may = snap.managed_jobs & (snap.jobs.gpus > 0)
    found |= may & is_in(snap.jobs.job_id, soon)
    row_of, texts = snap.jobs.rows, snap.seen.texts
    for job_id in throttles_in(snap.booked):
        if job_id in row_of and job_id in texts and texts[job_id].reason == "JobArrayTaskLimit":
            found[row_of[job_id]] = may[row_of[job_id]]
    return found


def _stem(name: str) -> str:
    """*name* without the number at its end, and a sign before it; empty if it is only that."""
    stem = name.rstrip("0123456789")
    return stem[:-1] if stem != name and stem[-1:] in ("-", "_", ".") else stem
