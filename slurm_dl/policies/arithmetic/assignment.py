"""One option at most for each job, within the GPUs of each type: the options worth most together.

    max   sum_o worth_o x_o
    s. t. sum_{o of job j} x_o <= 1          for each job
          sum_{o of type t} gpus_o x_o <= capacity_t   for each type
          sum_o gpus_o x_o <= sum_t capacity_t
          x_o in {0, 1}

Exactly, by HiGHS (SciPy's ``milp``); or its linear relaxation, rounded. In a corner of the
relaxation no more jobs have fractions than there are rows of GPUs. Each of these gets the best
option that has room, and what is left goes to the options that add most.

Source: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster
scheduling", SOSP 2023, section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.policies.arithmetic.lp_solver import minimise, stdout_is_stderr

_WHOLE = 0.999  # A share that the solver rounded from 1 is at least this
_ROUNDING = 1e-9  # Sums of GPUs are off by less


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """Options of jobs; those of one job stand together."""

    job: I64  # ``(k,)`` whose each is, 0 to n - 1, not decreasing
    gpus: F64  # ``(k,)`` GPUs, above 0
    kind: I64  # ``(k,)`` their type; -1: of any
    worth: F64  # ``(k,)`` what each adds; those that add nothing are never given


class Assigned(NamedTuple):
    """An answer."""

    option: I64  # ``(n,)`` index of the option of each job; -1: none
    worth: float  # Sum over the options that are given
    bound: float  # No answer is worth more


def assign(
    options: Options, n: int, capacity: F64, *, relaxed: bool = False, limit_s: float = 10.0
) -> Assigned:
    """The options that are worth most together.

    Args:
        n: Jobs.
        capacity: ``(t,)`` GPUs of each type.
        relaxed: Round the linear relaxation. An integer program that has found nothing in time is
            answered so, too.
        limit_s: Seconds the solver may take.
    """
    may = (options.worth > 0) & (options.gpus <= _room_for(options, capacity) + _ROUNDING)
    at = may.nonzero()[0]
    if not len(at):
        return Assigned(np.full(n, -1), 0.0, 0.0)
    some = Options(
        job=options.job[at], gpus=options.gpus[at], kind=options.kind[at], worth=options.worth[at]
    )
    found = None if relaxed else _exact(some, n, capacity, limit_s)
    if found is None:
        found = _rounded(some, n, capacity, limit_s)
    return found._replace(option=np.where(found.option >= 0, at[found.option], -1))


def _room_for(options: Options, capacity: F64) -> F64:
    """``(k,)`` GPUs that there are for each option."""
    room: F64 = np.append(capacity, capacity.sum())[options.kind]
    return room


def _rows(options: Options, n: int, capacity: F64) -> tuple[I64, I64, F64, F64]:
    """Entries (row, column, value) of the constraints, and the bound of each row."""
    column, typed = np.arange(len(options.job)), options.kind >= 0
    row, columns = [options.job, n + options.kind[typed]], [column, column[typed]]
    # Rows of GPUs are shares of the capacity: HiGHS has one tolerance for all rows.
    room = np.maximum(_room_for(options, capacity), 1e-9)
    value = [np.ones(len(column)), (options.gpus / room)[typed]]
    bound = [np.ones(n), np.ones(len(capacity))]
    if not typed.all():
        row.append(np.full(len(column), n + len(capacity)))
        columns.append(column)
        value.append(options.gpus / capacity.sum())
        bound.append(np.ones(1))
    return (
        np.concatenate(row),
        np.concatenate(columns),
        np.concatenate(value),
        np.concatenate(bound) + _ROUNDING,
    )


def _exact(options: Options, n: int, capacity: F64, limit_s: float) -> Assigned | None:
    from scipy import optimize, sparse  # noqa: PLC0415 - slow to import

    row, column, value, bound = _rows(options, n, capacity)
    k = len(options.job)
    rows = sparse.coo_array((value, (row, column)), shape=(len(bound), k)).tocsr()
    with stdout_is_stderr():
        found = optimize.milp(
            -options.worth,
            constraints=optimize.LinearConstraint(rows, -np.inf, bound),
            integrality=np.ones(k),
            bounds=optimize.Bounds(0, 1),
            # The default gap, 1e-4 of the whole, can be worth a small job. Presolving takes 10
            # times as long as the search.
            options={"time_limit": limit_s, "mip_rel_gap": 0.0, "presolve": False},
        )
    if found.x is None:
        return None
    option = _given(options, n, found.x > 0.5)  # noqa: PLR2004 - 0 or 1, but for rounding
    return Assigned(option, _worth(options, option), -float(found.mip_dual_bound))


def _rounded(options: Options, n: int, capacity: F64, limit_s: float) -> Assigned:
    row, column, value, bound = _rows(options, n, capacity)
    found = minimise(
        -options.worth, row=row, column=column, value=value, bound=bound, limit_s=limit_s
    )
    x = np.zeros(len(options.job)) if found is None else found.variables
    option = _given(options, n, x > _WHOLE)
    free = np.append(capacity, capacity.sum())
    for at in option[option >= 0].tolist():
        _take(options, free, at, 1.0)
    # First those that the relaxation divides, most of a job first; then what is left over.
    divided = ((x > _ROUNDING) & (x <= _WHOLE)).nonzero()[0]
    for job in dict.fromkeys(options.job[divided[np.argsort(-x[divided], kind="stable")]].tolist()):
        _improve(options, free, option, (options.job == job).nonzero()[0])
    while _improve(options, free, option, np.arange(len(options.job))):
        pass
    worth = _worth(options, option)
    return Assigned(option, worth, np.inf if found is None else float(options.worth @ x))


def _improve(options: Options, free: F64, option: I64, among: I64) -> bool:
    """Give the option of *among* that adds most, if it has room; whether there was one."""
    now = option[options.job[among]]
    had = np.where(now >= 0, options.worth[now], 0.0)
    gain = options.worth[among] - had
    back = np.where(now >= 0, options.gpus[now], 0.0)
    kind = options.kind[among]
    same = (kind == options.kind[now]) & (now >= 0)
    more = options.gpus[among] - back
    fits = (options.gpus[among] - np.where(same, back, 0.0) <= free[kind] + _ROUNDING) & (
        more <= free[-1] + _ROUNDING
    )
    gain = np.where(fits, gain, 0.0)
    best = int(gain.argmax())
    if gain[best] <= _ROUNDING:
        return False
    at, before = int(among[best]), int(now[best])
    if before >= 0:
        _take(options, free, before, -1.0)
    _take(options, free, at, 1.0)
    option[options.job[at]] = at
    return True


def _take(options: Options, free: F64, at: int, sign: float) -> None:
    gpus, kind = sign * float(options.gpus[at]), int(options.kind[at])
    free[-1] -= gpus
    if kind >= 0:
        free[kind] -= gpus


def _given(options: Options, n: int, chosen: Bool) -> I64:
    option = np.full(n, -1)
    at = chosen.nonzero()[0]
    option[options.job[at]] = at
    return option


def _worth(options: Options, option: I64) -> float:
    return float(options.worth[option[option >= 0]].sum())
