"""The Gittins index of jobs whose start costs something.

With run time S of known distribution, age a and setup cost c, all in one unit of time,

    index(a, c) = min over D > a of (E[min(S, D) - a | S > a] + c) / P(S <= D | S > a):

the expected time, setup included, for one completion. The smallest index is served first. With c
= 0 it is the reciprocal of the Gittins index G(a).

Source: Gittins, "Bandit processes and dynamic allocation indices", J. Royal Statistical Society B
41(2), 1979; Asawa and Teneketzis, "Multi-armed bandits with switching penalties", IEEE Trans.
Automatic Control 41(3), 1996 (the index at a switch).
"""

from __future__ import annotations

import itertools

import numpy as np

from slurm_dl.model.jobs import F64, I64
from slurm_dl.policies.arithmetic.life_table import Distributions

_FEW_JOBS = 512
"""So many jobs are computed one by one, more are looked up in tables."""

_SETUPS = 4
"""Setup costs above 0 for which there is a table."""


def setup_cost_index(at: F64, mass: F64, age: F64, setup: F64) -> F64:
    """``(n,)`` the index of each job.

    Beyond the support a job is expected to need as long again as it has had.

    Args:
        at: ``(k,)`` support of the distributions, increasing, above 0.
        mass: ``(n, k)`` or ``(k,)`` the distribution of each job, or that of all.
        age: ``(n,)`` time run so far, 0 or more.
        setup: ``(n,)`` cost of a start, 0 or more.
    """
    more = at - age[:, None]
    part = np.where(more > 0, mass, 0.0)
    done = part.cumsum(axis=1)
    alive = done[:, -1:]
    spent = (part * more).cumsum(axis=1)
    spent += more * (alive - done)
    spent += setup[:, None] * alive
    ratio = np.divide(spent, done, out=np.full_like(done, np.inf), where=done > 0)
    index = ratio.min(axis=1)
    return np.where(np.isfinite(index), index, age + setup)


def indices(known: Distributions, group: I64, age: F64, setup: F64) -> F64:
    """``(n,)`` the index of each job; see `setup_cost_index`.

    Of many jobs it is interpolated, linearly, between ages at and half way between the points of
    the support, and between some setup costs.

    Args:
        group: ``(n,)`` row of `Distributions.mass` of each job.
    """
    if len(group) <= _FEW_JOBS:
        return setup_cost_index(known.at, known.mass[group], age, setup)
    ages = np.concatenate([[0.0], known.at, np.sqrt(known.at[1:] * known.at[:-1])])
    ages.sort()
    setups = np.zeros(1)
    if setup.any():
        some = setup[setup > 0]
        setups = np.append(setups, np.geomspace(some.min(), some.max(), _SETUPS))
    table = np.zeros((len(known.mass), len(setups), len(ages)))
    for of in np.unique(group).tolist():
        for at, c in enumerate(setups.tolist()):
            setup_of = np.full(len(ages), c)
            table[of, at] = setup_cost_index(known.at, known.mass[of], ages, setup_of)
    row, across = _between(ages, age)
    column, up = _between(setups, setup)
    index: F64 = np.zeros(len(group))
    for i, j in itertools.product((0, 1), repeat=2):
        weight = (across if i else 1 - across) * (up if j else 1 - up)
        index += weight * table[group, np.minimum(column + j, len(setups) - 1), row + i]
    beyond = age >= known.at[-1]
    index[beyond] = (age + setup)[beyond]
    return index


def _between(points: F64, values: F64) -> tuple[I64, F64]:
    """The last of *points* at or below each value, and its distance in the gap, 0 to 1."""
    if len(points) == 1:
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values))
    at = np.clip(points.searchsorted(values, side="right") - 1, 0, len(points) - 2)
    width = points[at + 1] - points[at]
    share = np.divide(values - points[at], width, out=np.zeros(len(values)), where=width > 0)
    return at, np.clip(share, 0.0, 1.0)
