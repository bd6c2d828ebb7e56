"""Small traces, settings and runs for the tests of the simulated Slurm."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from slurm_dl.engine.settings import Overdue, Preemption, Settings
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.outcome import Outcome
from slurm_dl.simulation.slurm.job_columns import JobBehaviour
from slurm_dl.simulation.slurm.overheads import IDEAL, SlurmCosts
from slurm_dl.simulation.slurm.scenario import Scenario, simulate_plain, simulate_slurm

Job = tuple[float, float, float]
"""Submission, duration, GPUs."""

EAGER = Preemption(
    min_quantum_s=0,
    cooldown_s=0,
    max_preemptions=1000,
    limit_reserve_s=0,
    handover_timeout_s=900,
    start_margin_s=300,
)
"""Everything is allowed at once."""


def trace_of(jobs: Sequence[Job], ending: Sequence[Ending] = ()) -> Trace:
    columns = np.array(jobs, dtype=np.float64).reshape(-1, 3)
    n = len(columns)
    return Trace(
        name="test",
        format="generated",
        job_id=tuple(f"t{i}" for i in range(n)),
        submit_s=columns[:, 0],
        duration_s=columns[:, 1],
        gpus=columns[:, 2],
        user=np.zeros(n, dtype=np.int32),
        model=np.full(n, -1, dtype=np.int32),
        ending=np.array([*ending] or [Ending.COMPLETED] * n, dtype=np.int8),
    )


def ideal(**costs: float) -> SlurmCosts:
    """Nothing costs anything but what is named."""
    return dataclasses.replace(IDEAL, **costs)


def scenario(jobs: Sequence[Job], shape: str = "1x1", **more: Any) -> Scenario:  # noqa: ANN401
    values: dict[str, Any] = {"costs": IDEAL, "habits": JobBehaviour(limit_factor=100.0), **more}
    ending = values.pop("ending", ())
    return Scenario(trace=trace_of(jobs, ending), shape=parse_shape(shape), **values)


def plain(jobs: Sequence[Job], shape: str = "1x1", **more: Any) -> Records:  # noqa: ANN401
    """What becomes of the jobs with Slurm alone."""
    return simulate_plain(scenario(jobs, shape, **more)).records


def scheduled(
    what: Scenario,
    *thresholds_gpu_s: float,
    limits: Preemption = EAGER,
    knob: float = 0.0,
    overdue_s: float = 0.0,
) -> Outcome:
    """What becomes of them with discrete_las."""
    policy = DiscreteLas(thresholds_gpu_s=thresholds_gpu_s or (10.0,), promote_knob=knob)
    settings = Settings(
        partitions=frozenset({"gpu"}), preemption=limits, overdue=Overdue(after_s=overdue_s)
    )
    return simulate_slurm(what, policy=policy, settings=settings)
