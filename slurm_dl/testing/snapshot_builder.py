"""Snapshots from a few values, and the same ones listed in another order or with less in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.ledger.attained_service import AttainedService, remembered
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, COMPLETING, PENDING, JobRow, Jobs, JobState, Remembered
from slurm_dl.model.nodes import Allocations, Nodes
from slurm_dl.model.snapshot import JobText, Observed, Snapshot

NOW_S: Final = 2_000_000.0  # When all of them are

TYPES: Final = ("a100", "v100", "k80")
_PARTITIONS: Final = ("gpu", "other")
_QOS: Final = ("normal", "high", "")


def snapshot(
    rows: Sequence[JobRow],
    *,
    nodes: Sequence[tuple[float, int]] = ((4, 0),) * 4,
    types: Sequence[str] = TYPES[:1],
    memory: Mapping[str, Mapping[int, float]] | None = None,
    seen: Mapping[str, Any] | None = None,
    **more: Any,  # noqa: ANN401 - fields of Snapshot
) -> Snapshot:
    """A snapshot of these jobs; those that run hold GPUs of the first nodes with room.

    Args:
        nodes: GPUs and type of each.
        memory: Values of `Remembered`, by column and job id; as if new otherwise.
        seen: Fields of `Observed`.
        more: Fields of `Snapshot`.
    """
    jobs = Jobs.of(rows)
    m = len(nodes)
    there = Nodes(
        name=tuple(f"n{i + 1}" for i in range(m)),
        up=np.ones(m, dtype=np.bool_),
        gpus=np.array([gpus for gpus, _ in nodes], dtype=np.float64),
        gpu_type=np.array([kind for _, kind in nodes], dtype=np.int16),
        cpus=np.full(m, 64, dtype=np.int32),
        mem_mb=np.full(m, 256_000, dtype=np.int64),
        leaf=(np.arange(m) // 2).astype(np.int16),
    )
    observed = Observed(
        now_s=NOW_S,
        jobs=jobs,
        nodes=there,
        held=_held(jobs, there),
        partitions=_PARTITIONS,
        gpu_types=tuple(types),
        node_in=np.ones((len(_PARTITIONS), m), dtype=np.bool_),
    )
    base = remembered(AttainedService.empty(), jobs)
    columns = {f.name: getattr(base, f.name).copy() for f in dataclasses.fields(Remembered)}
    runs = (jobs.start_s > 0) & (jobs.state > PENDING) & (jobs.state < COMPLETED)
    ran_s = np.where(runs, NOW_S - jobs.start_s, 0.0)
    columns["ran_s"] += ran_s
    columns["attained_gpu_s"] += ran_s * jobs.gpus
    columns["first_run_s"] = np.where(runs, jobs.start_s, columns["first_run_s"])
    row_of = jobs.rows
    if "queued_s" not in (memory or {}):
        del columns["queued_s"]  # As *first_submit_s*.
    for name, values in (memory or {}).items():
        for job_id, value in values.items():
            columns[name][row_of[JobId(job_id)]] = value
    fields: dict[str, Any] = {
        "left_s": np.maximum(jobs.limit_s - columns["ran_s"], 0.0),
        "managed": np.array([True, False]),
        **more,
    }
    return Snapshot(
        seen=dataclasses.replace(observed, **(seen or {})), memory=Remembered(**columns), **fields
    )


def _held(jobs: Jobs, nodes: Nodes) -> Allocations:
    """GPUs of the jobs that hold some, on the first nodes with room; as far as there is room."""
    free = nodes.gpus.copy()
    found: list[tuple[int, int, float]] = []
    for row in ((jobs.state > PENDING) & (jobs.state <= COMPLETING)).nonzero()[0].tolist():
        wants, kind = float(jobs.gpus[row]), int(jobs.gpu_type[row])
        for node in range(len(nodes)):
            took = min(wants, float(free[node]))
            if took > 0 and kind in (-1, int(nodes.gpu_type[node])):
                found.append((row, node, took))
                free[node] -= took
                wants -= took
    k = len(found)
    return Allocations(
        job=np.array([f[0] for f in found], dtype=np.int32),
        node=np.array([f[1] for f in found], dtype=np.int32),
        gpus=np.array([f[2] for f in found], dtype=np.float64),
        cpus=np.ones(k, dtype=np.int32),
        mem_mb=np.zeros(k, dtype=np.int64),
    )


def waiting(job_id: int, gpus: float = 1, **more: Any) -> JobRow:  # noqa: ANN401
    """A job that waits, submitted *job_id* seconds after the first."""
    return JobRow(
        **{
            "job_id": job_id,
            "state": JobState.PENDING,
            "gpus": gpus,
            "submit_s": NOW_S - 50_000 + job_id,
            "uid": 1000 + job_id % 3,
            **more,
        }
    )


def running(job_id: int, gpus: float = 1, *, ran_s: float = 5000, **more: Any) -> JobRow:  # noqa: ANN401
    """A job that has been running for so long."""
    return waiting(job_id, gpus, state=JobState.RUNNING, start_s=NOW_S - ran_s, **more)


def texts_of(rows: Sequence[JobRow], accounts: int) -> dict[JobId, JobText]:
    """Words about jobs of so many accounts, in turn; every fourth job is a task of an array."""
    return {
        JobId(r.job_id): JobText(
            label=f"{r.job_id}" if r.job_id % 4 else f"{r.job_id - 1}_{r.job_id}",
            name=f"train-{r.job_id % 5}",
            user=f"user{r.uid}",
            account=f"account{r.job_id % accounts}" if accounts else "",
            qos=_QOS[r.job_id % len(_QOS)],
        )
        for r in rows
    }


def a_past(k: int, seed: int = 0) -> Past:
    """So many finished jobs, of a heavy-tailed length."""
    draw = np.random.default_rng(seed)
    end_s = np.sort(NOW_S - draw.uniform(10, 900_000, k))
    ran_s = draw.lognormal(7.0, 1.5, k) + 1.0
    wait_s = draw.exponential(600.0, k)
    return Past(
        account=draw.integers(0, 3, k).astype(np.int32),
        user=draw.integers(0, 4, k).astype(np.int32),
        name=draw.integers(0, 6, k).astype(np.int32),
        gpus=draw.choice([1.0, 2.0, 4.0, 8.0], k),
        submit_s=end_s - ran_s - wait_s,
        start_s=end_s - ran_s,
        end_s=end_s,
        ran_s=ran_s,
        accounts=("account0", "account1", "account2"),
        users=("user1000", "user1001", "user1002", "user1003"),
        names=tuple(f"train-{i}" for i in range(6)),
    )


Rows = npt.NDArray[np.int64]


def shuffles(snap: Snapshot) -> tuple[Snapshot, ...]:
    """The snapshot with its jobs and nodes listed backwards, and in an order drawn by lot."""
    n, m = len(snap.jobs), len(snap.seen.nodes)
    draw = np.random.default_rng(1)
    ways = [(np.arange(n)[::-1], np.arange(m)[::-1]), (draw.permutation(n), draw.permutation(m))]
    return tuple(reordered(snap, jobs, nodes) for jobs, nodes in ways)


def reordered(snap: Snapshot, jobs: Rows, nodes: Rows) -> Snapshot:
    """The same snapshot with its jobs and nodes listed in another order.

    Args:
        jobs: ``(n,)`` the row that each row is taken from.
        nodes: ``(m,)`` likewise.
    """
    seen = snap.seen
    to_job, to_node = np.argsort(jobs), np.argsort(nodes)
    held = seen.held
    job, node = to_job[held.job], to_node[held.node]
    by_job = np.lexsort((node, job))
    columns = {
        f.name: column[..., by_job]
        for f in dataclasses.fields(Allocations)
        if f.name not in ("job", "node") and (column := getattr(held, f.name)) is not None
    }
    names = seen.nodes.name
    node_columns = {
        f.name: column[..., nodes]
        for f in dataclasses.fields(Nodes)
        if f.name != "name" and (column := getattr(seen.nodes, f.name)) is not None
    }
    memory = {f.name: getattr(snap.memory, f.name)[jobs] for f in dataclasses.fields(Remembered)}
    optional: dict[str, Any] = {
        name: None if getattr(snap, name) is None else getattr(snap, name)[jobs]
        for name in job_columns()
    }
    return dataclasses.replace(
        snap,
        seen=dataclasses.replace(
            seen,
            jobs=seen.jobs.take(jobs),
            nodes=Nodes(name=tuple(names[i] for i in nodes.tolist()), **node_columns),
            held=Allocations(
                job=job[by_job].astype(np.int32), node=node[by_job].astype(np.int32), **columns
            ),
            node_in=seen.node_in[:, nodes],
            choices={j: mask[nodes] for j, mask in seen.choices.items()},
            excluded={j: mask[nodes] for j, mask in seen.excluded.items()},
            sharable=None if seen.sharable is None else seen.sharable[nodes],
        ),
        memory=Remembered(**memory),
        **optional,
    )


def job_columns() -> tuple[str, ...]:
    """Fields of a snapshot that have a row for each job, those of `Remembered` apart."""
    known = {f.name for f in dataclasses.fields(Snapshot)}
    own = ("left_s", *optional_columns())
    return tuple(name for name in own if name in known)


def optional_columns() -> tuple[str, ...]:
    """Fields of a snapshot that may be None."""
    return tuple(
        f.name
        for f in dataclasses.fields(Snapshot)
        if f.default is None and f.name not in ("seen", "memory")
    )


def deprived(snap: Snapshot) -> Mapping[str, Snapshot]:
    """The snapshot without each of the things that may be missing, and without all of them."""
    nothing: dict[str, Any] = dict.fromkeys(optional_columns())
    nothing["past"] = NO_PAST
    nothing["left_s"] = np.full(len(snap.jobs), np.inf)
    bare = dataclasses.replace(snap.seen, texts={}, claims={}, choices={}, also_in={})
    ways: dict[str, Snapshot] = {
        f"without {name}": dataclasses.replace(snap, **{name: value})
        for name, value in nothing.items()
        if getattr(snap, name) is not None
    }
    ways["without texts"] = _seen_with(snap, texts={})
    ways["without claims"] = _seen_with(snap, claims={})
    ways["without anything optional"] = dataclasses.replace(snap, seen=bare, **nothing)
    return ways


def _seen_with(snap: Snapshot, **values: Any) -> Snapshot:  # noqa: ANN401 - fields of Observed
    return dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, **values))
