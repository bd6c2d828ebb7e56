"""Small snapshots for tests: say what matters, the rest has sensible values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fake_cluster import FakeCluster

from slurm_dl.engine.cycle import Cycle, run_cycle
from slurm_dl.engine.settings import Settings
from slurm_dl.ledger.apply_observation import FORGET_AFTER_S, AppliedObservation, apply_observation
from slurm_dl.ledger.attained_service import AttainedService, remembered
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobRow, Jobs, JobState
from slurm_dl.model.nodes import Allocations, Nodes
from slurm_dl.model.snapshot import JobText, Observed, Snapshot
from slurm_dl.policies.base import Policy

NOW_S = 2_000_000.0


def pending(job_id: int, gpus: float = 1, **more: Any) -> JobRow:  # noqa: ANN401
    """A pending job, submitted *job_id* seconds after the first."""
    values = {"submit_s": NOW_S - 100_000 + job_id, **more}
    return JobRow(job_id=job_id, state=JobState.PENDING, gpus=gpus, **values)


def running(job_id: int, gpus: float = 1, *, ran_s: float = 5000, **more: Any) -> JobRow:  # noqa: ANN401
    """A job that has been running for *ran_s* seconds."""
    values = {"submit_s": NOW_S - 100_000 + job_id, "start_s": NOW_S - ran_s, **more}
    return JobRow(**{"job_id": job_id, "state": JobState.RUNNING, "gpus": gpus, **values})


def observed(
    rows: Sequence[JobRow],
    *,
    nodes: Sequence[float] = (4, 4, 4, 4),
    held: Mapping[int, Mapping[int, float]] | None = None,
    opted_in: Sequence[int] = (),
    now_s: float = NOW_S,
    columns: Mapping[str, Any] | None = None,
    **more: Any,  # noqa: ANN401
) -> Observed:
    """What a cluster of *nodes* (GPUs of each) says; *held*: job id -> node row -> GPUs.

    *columns*: columns of `Nodes` that are not as usual.
    """
    jobs = Jobs.of(rows)
    row_of = jobs.row_of()
    holds = sorted(
        (row_of[JobId(j)], n, g) for j, on in (held or {}).items() for n, g in on.items()
    )
    m = len(nodes)
    claims = {JobId(j): Claim(contract=Contract()) for j in opted_in}
    usual = {
        "up": np.ones(m, dtype=np.bool_),
        "gpus": np.array(nodes, dtype=np.float64),
        "gpu_type": np.zeros(m, dtype=np.int16),
        "cpus": np.full(m, 64, dtype=np.int32),
        "mem_mb": np.full(m, 1000, dtype=np.int64),
        "leaf": np.zeros(m, dtype=np.int16),
    }
    given = {k: np.array(column, dtype=usual[k].dtype) for k, column in (columns or {}).items()}
    values: dict[str, Any] = {
        "claims": claims,
        "nodes": Nodes(name=tuple(f"n{i + 1}" for i in range(m)), **{**usual, **given}),  # type: ignore[arg-type]
        "gpu_types": ("a100", "v100"),
        "node_in": np.ones((2, m), dtype=np.bool_),
        **more,
    }
    return Observed(
        now_s=now_s,
        jobs=jobs,
        held=Allocations(
            job=np.array([h[0] for h in holds], dtype=np.int32),
            node=np.array([h[1] for h in holds], dtype=np.int32),
            gpus=np.array([h[2] for h in holds], dtype=np.float64),
            cpus=np.ones(len(holds), dtype=np.int32),
            mem_mb=np.zeros(len(holds), dtype=np.int64),
        ),
        partitions=("gpu", "other"),
        **values,
    )


def node_of_each_type(gpus: Sequence[float]) -> dict[str, Any]:
    """Arguments of `observed`: a node for each GPU type, with so many GPUs."""
    m = len(gpus)
    return {"nodes": gpus, "columns": {"gpu_type": range(m)}, "gpu_types": tuple("abcdefgh"[:m])}


def texts(**columns: Mapping[int, str]) -> dict[JobId, JobText]:
    """Texts of jobs; *columns*: fields of `JobText`, each by job id."""
    ids = dict.fromkeys(job_id for column in columns.values() for job_id in column)
    return {
        JobId(j): JobText(label=str(j), **{k: c[j] for k, c in columns.items() if j in c})
        for j in ids
    }


def texts_of_users(whose: Mapping[int, tuple[str, str]]) -> dict[JobId, JobText]:
    """Texts of jobs with these users and names."""
    users, names = ({job: one[i] for job, one in whose.items()} for i in (0, 1))
    return texts(user=users, name=names)


def snapshot(
    seen: Observed,
    *,
    memory: Mapping[str, Mapping[int, float]] | None = None,
    handovers: Sequence[Handover] = (),
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """*seen* with a ledger beside it; *memory*: column -> job id -> value, the rest as if new."""
    base = remembered(AttainedService.empty(), seen.jobs)
    columns = {name: getattr(base, name).copy() for name in base.__slots__}
    row_of = seen.jobs.row_of()
    if "queued_s" not in (memory or {}):
        del columns["queued_s"]  # As *first_submit_s*.
    for name, values in (memory or {}).items():
        for job_id, value in values.items():
            columns[name][row_of[JobId(job_id)]] = value
    return Snapshot(
        seen=seen,
        memory=type(base)(**columns),
        left_s=np.maximum(seen.jobs.limit_s - columns["ran_s"], 0.0),
        managed=np.array([True, False]),
        handovers=tuple(handovers),
        next_handover_id=HandoverId(max((h.handover_id for h in handovers), default=0) + 1),
        **more,
    )


def cycle(
    cluster: FakeCluster,
    ledger: Ledger,
    policy: Policy,
    settings: Settings,
    **more: Any,  # noqa: ANN401 - of `run_cycle`
) -> Cycle:
    """A cycle by the cluster's own clock, which acts."""
    more = {"clock": cluster.clock, "acting": True, **more}
    return run_cycle(cluster, ledger, policy, settings, **more)


def folded(before: AttainedService, seen: Observed) -> AppliedObservation:
    """*seen* booked by a ledger that has been looked after for a week at least."""
    return apply_observation(before, seen, forget_before_s=seen.now_s - FORGET_AFTER_S)
