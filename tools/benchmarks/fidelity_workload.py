"""The workload of the fidelity experiment: a function of the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Ending, Trace

GPUS = (1, 2, 4, 8)
GPUS_FRAC = (0.45, 0.2, 0.2, 0.15)
SHORTEST_S, LONGEST_S = 10.0, 100.0
TAIL = 1.2
"""Exponent of the bounded Pareto distribution of lengths: many short jobs, a few long ones."""

BETWEEN_ARRIVALS_S = 2.4
"""Mean; with these sizes and lengths one and a half times what 16 GPUs can do meanwhile."""

SAVE_S, RESTORE_S = 1.0, 1.0
"""What the jobs take to write and to read a checkpoint: it is written into them."""

THRESHOLDS_GPU_S = (40.0, 160.0)
"""Of discrete_las: about the median and the upper quarter of the jobs' service."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """The jobs and their time limits.

    Attributes:
        trace: The jobs; the first one is submitted at 0.
        limit_s: ``(n,)`` time limits, whole minutes, seconds.
    """

    trace: Trace
    limit_s: F64


def workload(seed: int, jobs: int) -> Workload:
    """*jobs* jobs with Poisson arrivals; users ask for twice to four times the time they need."""
    rng = np.random.default_rng(seed)
    submit_s = np.cumsum(rng.exponential(BETWEEN_ARRIVALS_S, jobs))
    uniform = rng.random(jobs)
    ratio = (SHORTEST_S / LONGEST_S) ** TAIL
    duration_s = np.round(SHORTEST_S * (1.0 - uniform * (1.0 - ratio)) ** (-1.0 / TAIL), 3)
    gpus = rng.choice(np.array(GPUS, dtype=np.float64), jobs, p=GPUS_FRAC)
    limit_min = np.ceil(rng.uniform(2.0, 4.0, jobs) * duration_s / 60.0)
    trace = Trace(
        name=f"fidelity-{seed}",
        format="generated",
        job_id=tuple(f"j{i + 1}" for i in range(jobs)),
        submit_s=np.round(submit_s - submit_s[0], 3),
        duration_s=duration_s,
        gpus=gpus,
        user=np.zeros(jobs, dtype=np.int32),
        model=np.full(jobs, -1, dtype=np.int32),
        ending=np.full(jobs, Ending.COMPLETED, dtype=np.int8),
    )
    return Workload(trace=trace, limit_s=60.0 * limit_min)
