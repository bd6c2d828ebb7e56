"""Gavel's max-min fairness where two jobs may share the same GPUs.

Beside each job alone the program has a row for each pair of jobs that want as many GPUs: the share
of the time that both run there together, each at the speed it has beside the other. A job's
throughput is what it has alone and in all its pairs:

    thr(m, X) = sum_c,j T[c, j, m] X[c, j]     over the rows c that job m is in
    sum_c X[c, j] <= 1 over those rows and all j,    sum_c gpus_c X[c, j] <= capacity_j over all c

This is a program and no policy: an order gives GPUs to one job at a time, and who shares a GPU with
whom is decided where jobs are placed.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
Workloads", OSDI 2020, section 3.1 (space sharing).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64, I64
from slurm_dl.policies.arithmetic import linear_programs
from slurm_dl.policies.arithmetic.lp_solver import SOLVED, minimise


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """Shares of jobs alone and of pairs.

    Attributes:
        share: ``(k, t)`` of each job alone.
        together: ``(p, t)`` of each pair.
        level: The least gain over all jobs.
        how: See `policies.arithmetic.linear_programs.How`.
    """

    share: F64
    together: F64
    level: float
    how: linear_programs.How


def max_min_pairs(
    pool: linear_programs.Pool,
    gain: F64,
    pairs: I64,
    pair_gain: F64,
    *,
    limit_s: float = linear_programs.LIMIT_S,
) -> Paired:
    """Shares that make the least gain as large as can be; out of time: proportional, no pairs.

    Args:
        pool: The jobs, each of them one.
        gain: ``(k, t)`` what each job gains alone on each type, above 0 somewhere where it may run.
        pairs: ``(p, 2)`` rows of the two jobs of each pair.
        pair_gain: ``(p, 2, t)`` what each of the two gains beside the other; 0 where they cannot
            run together.

    Raises:
        ValueError: A pair of jobs that want different numbers of GPUs, or of a job with itself.
    """
    if (pool.gpus[pairs[:, 0]] != pool.gpus[pairs[:, 1]]).any():
        msg = "two jobs that want different numbers of GPUs cannot share them"
        raise ValueError(msg)
    if (pairs[:, 0] == pairs[:, 1]).any():
        msg = "a job cannot be paired with itself"
        raise ValueError(msg)
    k, kinds = pool.may.shape
    alone, alone_on = pool.may.nonzero()
    can = pool.may[pairs[:, 0]] & pool.may[pairs[:, 1]] & (pair_gain > 0).any(axis=1)
    pair, pair_on = can.nonzero()
    # Variables: jobs alone, pairs, the level. Rows: the time of jobs, the GPUs of types, the gains.
    first, level = len(alone) + np.arange(len(pair)), len(alone) + len(pair)
    start = linear_programs.proportional(pool)
    unit = float((gain * start).sum(axis=1).min(initial=np.inf))
    if not 0 < unit < np.inf:
        return Paired(start, np.zeros((len(pairs), kinds)), 0.0, "solved")
    job = np.concatenate([alone, pairs[pair, 0], pairs[pair, 1]])
    at = np.concatenate([np.arange(len(alone)), first, first])
    gained = np.concatenate(
        [gain[alone, alone_on], pair_gain[pair, 0, pair_on], pair_gain[pair, 1, pair_on]]
    )
    kind = np.concatenate([alone_on, pair_on])
    wants = np.concatenate([pool.gpus[alone], pool.gpus[pairs[pair, 0]]])
    cost = np.zeros(level + 1)
    cost[level] = -1.0
    found = minimise(
        cost,
        row=np.concatenate([job, k + kind, k + kinds + job, k + kinds + np.arange(k)]),
        column=np.concatenate([at, np.arange(level), at, np.full(k, level)]),
        value=np.concatenate([np.ones(len(job)), wants, -gained / unit, np.ones(k)]),
        bound=np.concatenate([np.ones(k), pool.capacity, np.zeros(k)]),
        limit_s=limit_s,
    )
    if found is None or found.status != SOLVED:
        return Paired(start, np.zeros((len(pairs), kinds)), unit, "proportional")
    share, together = np.zeros(pool.may.shape), np.zeros((len(pairs), kinds))
    share[alone, alone_on] = found.variables[: len(alone)].clip(0.0, 1.0)
    together[pair, pair_on] = found.variables[len(alone) : level].clip(0.0, 1.0)
    return Paired(share, together, float(found.variables[level]) * unit, "solved")
