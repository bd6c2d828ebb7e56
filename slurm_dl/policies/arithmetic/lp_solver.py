"""The rows of the linear programs over shares, and the solver they are given to.

The solver is HiGHS, by SciPy: the dual simplex method where there are few rows, the interior point
method where there are many. Both answer with a corner and with the prices of the rows.

Many shares can be optimal. In a corner of them most jobs have one GPU type; a method of interior
points that does not go on to a corner ends near their analytic centre, in which most jobs have a
part of each type. Gavel's public code uses the second (ECOS); here that is Clarabel.

Source: Huangfu and Hall, "Parallelizing the dual revised simplex method", Mathematical Programming
Computation 10, 2018 (HiGHS). Goulart and Chen, "Clarabel: An interior-point solver for conic
programs with quadratic objectives", 2024.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_dl.model.jobs import F64, I64, Bool
from slurm_dl.model.pair_rates import PairRates
from slurm_dl.policies.arithmetic import lp_pairs

SOLVED, INFEASIBLE = 0, 2  # What SciPy calls them

_NOTHING = 1e-9  # A share that is smaller is the solver's rounding
_INTERIOR_ABOVE = 1000  # Rows above which the interior point method is the faster one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Jobs that compete, and the GPUs they compete for.

    Attributes:
        job_id: ``(k,)`` their ids.
        gpus: ``(k,)`` GPUs each holds while it runs, above 0 (Gavel's scale factor).
        may: ``(k, t)`` bool, the types each may run on; False for types that have no GPUs.
        capacity: ``(t,)`` GPUs of each type (Gavel's workers).
        count: ``(k,)`` how many such jobs there are; what a row gets is the share of each.
        pairs: Speeds of two of them on the same GPUs; None: none share.
    """

    job_id: I64
    gpus: F64
    may: Bool
    capacity: F64
    count: F64
    pairs: PairRates | None = None

    def __len__(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """What the solver says.

    Attributes:
        status: `SOLVED` or `INFEASIBLE`.
        variables: Their values; none if there are no such values.
        price: By row, what a unit more of its bound would add to what is minimised, 0 or less.
    """

    status: int
    variables: F64
    price: F64


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Shares that the variables of a program mean.

    Attributes:
        time: ``(k, t)`` share of the time of each job on each type, alone and in pairs.
        worth: ``(k, t)`` the time alone in which it would do as much.
        paired: The pairs.
    """

    time: F64
    worth: F64
    paired: lp_pairs.PairShares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cones:
    """Rows in threes: bound - row . x lies in a second-order cone; see `minimise`."""

    row: I64
    column: I64
    value: F64
    bound: F64


class Program:
    """The rows that every program has, and those it asks for.

    Its first variables are ``X[m, j]``, where job m may run on type j; then come pairs of jobs on
    a type, where the pool has them, and the *extra* ones.

    Args:
        interior: Answer near the analytic centre of the optimal shares, and without prices.

    Attributes:
        width: How many variables there are, the extra ones too.
        asks: Whether rows beyond the common ones were added.
    """

    def __init__(self, pool: Pool, extra: int = 0, *, interior: bool = False) -> None:
        k, kinds = pool.may.shape
        self._alone = pool.may.nonzero()
        row, kind = self._alone
        used = (pool.count * pool.gpus)[row] / pool.capacity[kind]
        # Of each job and variable: its type, the part of the job's time, and what that is worth.
        self._job: I64 = row
        self._kind: I64 = kind
        self._at: I64 = np.arange(len(row))
        self._part: F64 = np.ones(len(row))
        self._worth: F64 = self._part
        on, self._pairs = kind, None
        if pool.pairs is not None:
            least = lp_pairs.ALL if interior else lp_pairs.TURNS
            self._pairs = pairs = lp_pairs.pair_columns(
                pool.pairs, gpus=pool.gpus, may=pool.may, count=pool.count, least=least
            )
            job, at, part, rate = pairs.entries(pool.count)
            self._job = np.concatenate([row, job])
            self._kind = np.concatenate([kind, pairs.kind[at]])
            self._at = np.concatenate([self._at, len(row) + at])
            self._part = np.concatenate([self._part, part])
            self._worth = np.concatenate([self._worth, part * rate])
            on = np.concatenate([kind, pairs.kind])
            used = np.concatenate([used, pool.gpus[pairs.first] / pool.capacity[pairs.kind]])
        self._n = len(on)
        self.width = self._n + extra
        self.asks = False
        self._count = pool.count
        self._shape = (k, kinds)
        self._interior = interior
        self._cones: Cones | None = None
        self._row, self._column = [self._job, on + k], [self._at, np.arange(self._n)]
        self._value: list[F64] = [self._part, used]
        self._bound: list[F64] = [np.ones(k + kinds)]
        self._height = k + kinds

    def cost(self, value: F64) -> F64:
        """``(width,)`` costs of which the sum is that of ``value x X`` over all jobs, below 0.

        Args:
            value: ``(k, t)`` of a member of each row.
        """
        each = -(value * self._count[:, None])[self._job, self._kind] * self._worth
        return np.bincount(self._at, weights=each, minlength=self.width).astype(np.float64)

    def at_least(self, jobs: I64, gain: F64, bound: F64, rise: float = 0.0) -> slice:
        """Add ``gain[i] . X[jobs[i]] - rise x last variable >= bound[i]``; where those rows are.

        Args:
            jobs: ``(r,)``, increasing.
            gain: ``(r, t)``.
            bound: ``(r,)``.
        """
        place = np.full(self._shape[0], -1)
        place[jobs] = np.arange(len(jobs))
        mine = (place[self._job] >= 0).nonzero()[0]
        new = place[self._job[mine]]
        self._row.append(self._height + new)
        self._column.append(self._at[mine])
        self._value.append(-gain[new, self._kind[mine]] * self._worth[mine])
        if rise:
            self._row.append(self._height + np.arange(len(jobs)))
            self._column.append(np.full(len(jobs), self.width - 1))
            self._value.append(np.full(len(jobs), rise))
        self._bound.append(-bound)
        rows = slice(self._height, self._height + len(jobs))
        self._height += len(jobs)
        self.asks = self.asks or len(jobs) > 0
        return rows

    def at_most(self, gain: F64, past: F64, coming: F64) -> None:
        """Add ``past[m] + coming[m] / (gain[m] . X[m]) <= last variable``, for interior answers.

        The k variables before the last one are u with ``u[m] gain[m] . X[m] >= 1``.

        Args:
            gain: ``(k, t)``.
            past: ``(k,)``.
            coming: ``(k,)`` above 0.
        """
        jobs = np.arange(len(past))
        inverse = self._n + jobs
        self._row += [self._height + jobs] * 2
        self._column += [inverse, np.full(len(jobs), self.width - 1)]
        self._value += [coming, np.full(len(jobs), -1.0)]
        self._bound.append(-past)
        self._height += len(jobs)
        # |(u - gain . X, 2)| <= u + gain . X
        own, gains = 3 * self._job, gain[self._job, self._kind] * self._worth
        self._cones = Cones(
            row=np.concatenate([own, own + 1, 3 * jobs, 3 * jobs + 1]),
            column=np.concatenate([self._at, self._at, inverse, inverse]),
            value=np.concatenate([-gains, gains, np.full(2 * len(jobs), -1.0)]),
            bound=np.tile([0.0, 0.0, 2.0], len(jobs)),
        )

    def solve(self, cost: F64, limit_s: float) -> Solution | None:
        """Minimise ``cost . variables``; None if there was no answer in time."""
        return minimise(
            cost,
            row=np.concatenate(self._row),
            column=np.concatenate(self._column),
            value=np.concatenate(self._value),
            bound=np.concatenate(self._bound),
            limit_s=limit_s,
            interior=self._interior,
            cones=self._cones,
        )

    def shares(self, variables: F64) -> Shares:
        """The meaning of *variables*; what rounding has brought outside their bounds is cut off."""
        n = len(self._alone[0])
        found = variables[: self._n].clip(0.0, None)
        found[:n] = found[:n].clip(None, 1.0)
        found[found < _NOTHING] = 0.0
        found[np.bincount(self._at, weights=self._worth, minlength=self._n) <= 0] = 0.0
        whole = np.maximum(1.0, self._sum(found, self._part).sum(axis=1))
        cut: F64 = np.ones(self._n)
        np.maximum.at(cut, self._at, whole[self._job])
        found = found / cut
        time = self._sum(found, self._part)
        if self._pairs is None:
            return Shares(time, time, lp_pairs.NO_PAIRS)
        there, pairs = (found[n:] > 0).nonzero()[0], self._pairs
        paired = lp_pairs.PairShares(
            first=pairs.first[there], second=pairs.second[there], kind=pairs.kind[there],
            share=found[n:][there],
        )  # fmt: skip
        return Shares(time, self._sum(found, self._worth), paired)

    def _sum(self, found: F64, weight: F64) -> F64:
        """``(k, t)`` sums over the variables of each job on each type."""
        k, kinds = self._shape
        at, each = self._job * kinds + self._kind, found[self._at] * weight
        total = np.bincount(at, weights=each, minlength=k * kinds).astype(np.float64)
        return total.reshape(k, kinds)


def minimise(
    cost: F64,
    *,
    row: I64,
    column: I64,
    value: F64,
    bound: F64,
    limit_s: float,
    interior: bool = False,
    cones: Cones | None = None,
) -> Solution | None:
    """Minimise ``cost . x`` over ``x >= 0`` with ``A x <= bound``; None: no answer in time.

    Args:
        row: ``(z,)`` rows of the entries of A.
        column: ``(z,)`` columns of the entries of A.
        value: ``(z,)`` the entries of A; those of one place add up.
        limit_s: Seconds the solver may take.
        interior: See `Program`.
        cones: Further rows, for interior answers.
    """
    from scipy import optimize, sparse  # noqa: PLC0415 - slow to import

    matrix = sparse.coo_array((value, (row, column)), shape=(len(bound), len(cost))).tocsr()
    if interior:
        return _interior(cost, matrix, bound, limit_s, cones)
    found: Any = optimize.linprog(
        cost,
        A_ub=matrix,
        b_ub=bound,
        bounds=(0, None),
        method="highs-ipm" if len(bound) > _INTERIOR_ABOVE else "highs-ds",
        options={"time_limit": limit_s},
    )
    if found.status == INFEASIBLE:
        return Solution(INFEASIBLE, np.zeros(0), np.zeros(0))
    if found.status != SOLVED:
        return None
    return Solution(SOLVED, found.x, found.ineqlin.marginals)


@contextlib.contextmanager
def stdout_is_stderr() -> Iterator[None]:
    """HiGHS 1.8 prints a line of its own now and then, whatever it is told, by C's stdio."""
    libc = ctypes.CDLL(None)
    kept = libc.dup(1)
    try:
        libc.dup2(2, 1)
        yield
    finally:
        libc.fflush(None)
        libc.dup2(kept, 1)
        libc.close(kept)


def interior_solver() -> Any:  # noqa: ANN401 - the module, which has no types
    """Clarabel.

    Raises:
        ValueError: It is not installed.
    """
    try:
        import clarabel  # noqa: PLC0415 - not installed everywhere
    except ImportError as err:
        msg = "interior needs the package clarabel: pip install 'slurm-dl[interior]'"
        raise ValueError(msg) from err
    return clarabel


def _interior(
    cost: F64,
    matrix: Any,  # noqa: ANN401 - SciPy has no types
    bound: F64,
    limit_s: float,
    cones: Cones | None,
) -> Solution | None:
    from scipy import sparse  # noqa: PLC0415 - slow to import

    clarabel, n = interior_solver(), len(cost)
    rows, bounds = [matrix, -sparse.eye_array(n)], [bound, np.zeros(n)]
    kinds = [clarabel.NonnegativeConeT(len(bound) + n)]
    if cones is not None:
        shape = (len(cones.bound), n)
        rows.append(sparse.coo_array((cones.value, (cones.row, cones.column)), shape=shape))
        bounds.append(cones.bound)
        kinds += [clarabel.SecondOrderConeT(3)] * (len(cones.bound) // 3)
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.time_limit = False, limit_s
    found = clarabel.DefaultSolver(
        sparse.csc_matrix((n, n)),
        cost,
        sparse.csc_matrix(sparse.vstack(rows)),
        np.concatenate(bounds),
        kinds,
        settings,
    ).solve()
    if found.status == clarabel.SolverStatus.PrimalInfeasible:
        return Solution(INFEASIBLE, np.zeros(0), np.zeros(0))
    if found.status != clarabel.SolverStatus.Solved:
        return None
    return Solution(SOLVED, np.array(found.x), np.zeros(len(bound)))
