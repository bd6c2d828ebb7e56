"""The snapshot that a forward run begins in: the daemon's last one, made ready.

Jobs that are over or have no GPUs are left out, an array's pending tasks become jobs of their own,
and jobs that nobody has submitted yet are added at the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.settings import Settings
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, I64, PENDING, Bool, Held, JobRow, Jobs, JobState
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.policy_inputs import columns_and, columns_at
from slurm_dl.model.remembered import Remembered
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.base import Policy, displaces

MOST_TASKS: Final = 2000
"""Further tasks of arrays that become jobs, in all; the last tasks of large arrays are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HypotheticalJob:
    """A job that nobody has submitted yet.

    Attributes:
        contract: What it agrees to; None if it may not be preempted.
    """

    gpus: int  # GPUs in all, above 0
    n_nodes: int  # Nodes they are spread over evenly
    partition: int  # Index into `Observed.partitions`
    uid: int  # Whose it would be
    user: str = ""  # Their login name; jobs like it are looked for under that
    name: str = ""  # Its name; empty if nobody has given it one
    gpu_type: int = -1  # Index into `Observed.gpu_types`; -1 for any
    limit_s: float = float("inf")  # Its time limit, seconds; inf for none
    contract: Contract | None = field(default_factory=Contract)
    due_s: float = float("inf")  # Its deadline, epoch seconds; inf if it has none
    account: str = ""  # Slurm's account; empty if nobody has said it
    qos: str = ""  # Its QOS, likewise


def beginning(snap: Snapshot, wanted: Sequence[HypotheticalJob] = ()) -> Snapshot:
    """*snap* as a forward run takes it: jobs with GPUs that are not over, then those *wanted*.

    What we keep jobs from by ourselves is let go: it follows from decisions that the run repeats.
    Elastic jobs keep the size they have.
    """
    choices = {
        job_id: choice
        for job_id in {*snap.seen.choices, *snap.seen.excluded}
        if (choice := snap.choice(job_id)) is not None
    }
    seen = dataclasses.replace(snap.seen, choices=choices, excluded={}, reserved={})
    snap = dataclasses.replace(
        snap,
        seen=seen,
        steers={},
        trimmed=frozenset(),
        lost_pairs=(),
        restarts=(),
        broken=frozenset(),
        sizes=None,
    )
    snap = _taken(snap, _rows(snap.jobs))
    return submitted(snap, wanted) if wanted else snap


def live_jobs(jobs: Jobs) -> int:
    """How many jobs a forward run has that begins with *jobs*."""
    return len(_rows(jobs))


def _rows(jobs: Jobs) -> I64:
    """Rows of the jobs that matter, those of arrays as often as they have tasks."""
    live = ((jobs.state <= COMPLETING) & (jobs.gpus > 0)).nonzero()[0]
    more = np.where(jobs.state[live] == PENDING, jobs.tasks[live] - 1, 0)
    before = np.cumsum(more) - more
    return np.repeat(live, 1 + np.clip(MOST_TASKS - before, 0, more))


def _taken(snap: Snapshot, rows: I64) -> Snapshot:
    """The jobs at *rows*; a row that comes again is a further job with an id of its own."""
    again = np.zeros(len(rows), dtype=np.bool_)
    again[1:] = rows[1:] == rows[:-1]
    jobs = snap.jobs.take(rows)
    ids = jobs.job_id.copy()
    first = int(snap.jobs.job_id.max(initial=0)) + 1
    ids[again] = np.arange(first, first + np.count_nonzero(again))
    jobs = dataclasses.replace(jobs, job_id=ids, tasks=np.ones(len(rows), dtype=np.int32))
    seen = dataclasses.replace(
        snap.seen,
        jobs=jobs,
        held=_held(snap, rows, again),
        claims=_of_all(snap.seen.claims, snap, rows, ids),
        choices=_of_all(snap.seen.choices, snap, rows, ids),
        begins=_of_all(snap.seen.begins, snap, rows, ids),
        texts=_of_all(snap.seen.texts, snap, rows, ids),
        also_in=_of_all(snap.seen.also_in, snap, rows, ids),
    )
    return dataclasses.replace(
        snap, seen=seen, memory=_memory(snap, rows), **columns_at(snap, rows)
    )


def _held(snap: Snapshot, rows: I64, again: Bool) -> Allocations:
    at = np.full(len(snap.jobs), -1, dtype=np.int64)
    at[rows[~again]] = np.flatnonzero(~again)
    held = snap.seen.held
    keep = at[held.job] >= 0
    return Allocations(
        job=at[held.job[keep]].astype(np.int32),
        node=held.node[keep],
        gpus=held.gpus[keep],
        cpus=held.cpus[keep],
        mem_mb=held.mem_mb[keep],
    )


def _of_all(told: Mapping[JobId, Any], snap: Snapshot, rows: I64, ids: I64) -> dict[JobId, Any]:
    """What is *told* of the jobs at *rows*, by their new *ids*."""
    if not told:
        return {}
    old = snap.jobs.job_id[rows].tolist()
    return {
        JobId(new): told[JobId(was)]
        for was, new in zip(old, ids.tolist(), strict=True)
        if was in told
    }


def _memory(snap: Snapshot, rows: I64) -> Remembered:
    return Remembered(
        **{f.name: getattr(snap.memory, f.name)[rows] for f in dataclasses.fields(Remembered)}
    )


def submitted(snap: Snapshot, wanted: Sequence[HypotheticalJob]) -> Snapshot:
    """*snap* with the jobs that are *wanted* behind its own, submitted now.

    Each has its deadline in `Snapshot.due_s`, whether that counts or not.
    """
    now_s, first = snap.now_s, int(snap.jobs.job_id.max(initial=0)) + 1
    new = Jobs.of(
        [
            JobRow(
                job_id=first + i,
                state=JobState.PENDING,
                partition=job.partition,
                uid=job.uid,
                n_nodes=job.n_nodes,
                gpus=float(job.gpus),
                gpu_type=job.gpu_type,
                cpus=job.n_nodes,
                submit_s=now_s,
                limit_s=job.limit_s,
            )
            for i, job in enumerate(wanted)
        ]
    )
    seen, k = snap.seen, len(wanted)
    columns = {
        f.name: np.concatenate([getattr(seen.jobs, f.name), getattr(new, f.name)])
        for f in dataclasses.fields(Jobs)
    }
    texts = {
        JobId(first + i): JobText(
            label="", name=job.name, user=job.user, account=job.account, qos=job.qos
        )
        for i, job in enumerate(wanted)
    }
    claims = {
        JobId(first + i): Claim(
            contract=job.contract, due_s=None if np.isinf(job.due_s) else int(job.due_s)
        )
        for i, job in enumerate(wanted)
    }
    fresh = dict.fromkeys(("first_submit_s", "waiting_since_s", "queued_s"), now_s) | {"tier": -1}
    memory = Remembered(
        **{
            f.name: _longer(getattr(snap.memory, f.name), k, fresh.get(f.name, 0))
            for f in dataclasses.fields(Remembered)
        }
    )
    due_s = np.array([job.due_s for job in wanted])
    beside = columns_and(
        snap,
        k,
        left_s=np.array([job.limit_s for job in wanted]),
        due_s=due_s if snap.due_s is not None or np.isfinite(due_s).any() else None,
    )
    return dataclasses.replace(
        snap,
        seen=dataclasses.replace(
            seen,
            jobs=Jobs(**columns),
            texts={**seen.texts, **texts},
            claims={**seen.claims, **claims},
        ),
        memory=memory,
        **beside,
    )


def _longer(column: npt.NDArray[Any] | None, k: int, value: float) -> Any:  # noqa: ANN401
    """*column* with *k* more rows of *value*; None stays None."""
    if column is None:
        return None
    return np.concatenate([column, np.full((k, *column.shape[1:]), value, dtype=column.dtype)])


def startable(snap: Snapshot) -> Bool:
    """``(n,)`` bool, waiting jobs that a forward run may start: the others wait for no room."""
    held = snap.jobs.held
    mask: Bool = (snap.jobs.state == PENDING) & ((held == Held.NO) | (held == Held.BEGIN_TIME))
    return mask


def staying_once_started(snap: Snapshot, policy: Policy, settings: Settings) -> Bool:
    """``(n,)`` bool, jobs that nobody stops once they run: there is no preemption, or not of them.

    A scheme of placement may stop jobs under any policy, for those whom it guarantees nodes.
    """
    jobs = snap.jobs
    never = displaces(policy) == "never" and settings.placement.scheme is None
    opted_in = [j for j, claim in snap.seen.claims.items() if claim.contract is not None]
    stays: Bool = ~jobs.requeueable | ~np.isin(jobs.job_id, opted_in)
    return np.ones_like(stays) if never or not settings.preemption.enabled else stays


def node_mask(snap: Snapshot, row: int) -> Bool:
    """``(m,)`` bool, the nodes that the job at *row* may ever use, up or not."""
    seen, jobs = snap.seen, snap.jobs
    job_id, partition = JobId(int(jobs.job_id[row])), int(jobs.partition[row])
    mask: Bool = (
        seen.node_in[partition].copy()
        if partition >= 0
        else np.zeros(len(seen.nodes), dtype=np.bool_)
    )
    for other in seen.also_in.get(job_id, ()):
        mask |= seen.node_in[other]
    if jobs.gpu_type[row] >= 0:
        mask &= seen.nodes.with_type(int(jobs.gpu_type[row]))
    choice = seen.choices.get(job_id)
    return mask if choice is None else mask & choice
