"""Programs over shares written down a second time, in PuLP, for CBC: an oracle for tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pulp

from slurm_dl.model.jobs import F64, Bool
from slurm_dl.policies.arithmetic import linear_programs


def variable(name: str, low: float | None = None) -> Any:  # noqa: ANN401 - PuLP is not typed
    """A variable; *low* None: unbounded."""
    with warnings.catch_warnings():
        # PuLP 3 says what PuLP 4 will call it; PuLP 2 knows no other name.
        warnings.simplefilter("ignore", DeprecationWarning)
        return pulp.LpVariable(name, lowBound=low)


class Shares:
    """A share for every job and type where it may run, and what every program keeps to."""

    def __init__(self, gpus: F64, may: Bool, capacity: F64) -> None:
        self._constraints: list[Any] = []
        self._x = {
            (m, j): variable(f"x_{m}_{j}", 0)
            for m in range(len(gpus))
            for j in range(len(capacity))
            if may[m, j]
        }
        for m in range(len(gpus)):
            self.holds(self.dot(m, np.ones(len(capacity))) <= 1)
        for j in range(len(capacity)):
            used = pulp.lpSum(
                float(gpus[m]) * self._x[m, j] for m in range(len(gpus)) if (m, j) in self._x
            )
            self.holds(used <= float(capacity[j]))

    def dot(self, m: int, row: F64) -> Any:  # noqa: ANN401 - PuLP is not typed
        """``row . X[m]``."""
        return pulp.lpSum(
            float(row[j]) * self._x[m, j] for j in range(len(row)) if (m, j) in self._x
        )

    def holds(self, constraint: Any) -> None:  # noqa: ANN401 - PuLP is not typed
        """Ask for it."""
        self._constraints.append(constraint)

    def largest(self, objective: Any) -> float | None:  # noqa: ANN401 - PuLP is not typed
        """The largest value of *objective*; None if nothing fulfils all that was asked for."""
        problem = pulp.LpProblem("shares", pulp.LpMaximize)
        problem += objective
        for constraint in self._constraints:
            problem += constraint
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            status = problem.solve(pulp.PULP_CBC_CMD(msg=False))
        if status != pulp.LpStatusOptimal:
            return None
        # PuLP knows no value of a sum of nothing.
        return float(pulp.value(objective) or 0.0)

    def largest_level(self, rows: Iterable[tuple[int, F64, float, float]]) -> float | None:
        """The largest c with ``gain . X[m] >= floor + c rise`` for all *(m, gain, floor, rise)*."""
        level = variable("level")
        for m, gain, floor, rise in rows:
            self.holds(self.dot(m, gain) >= floor + rise * level)
        return self.largest(level)


def of_pool(pool: linear_programs.Pool) -> Shares:
    """The shares of a pool whose rows are one job each."""
    return Shares(pool.gpus, pool.may, pool.capacity)


def check_within(pool: linear_programs.Pool, share: F64) -> None:
    """Assert that *share* keeps to what every program keeps to."""
    assert share.min(initial=0.0) >= 0
    assert (share[~pool.may] == 0).all()
    assert (share.sum(axis=1) <= 1 + 1e-9).all()
    assert ((pool.gpus * pool.count) @ share <= pool.capacity * (1 + 1e-6) + 1e-9).all()


def draw_pool(seed: int, most: int = 6) -> tuple[linear_programs.Pool, F64, np.random.Generator]:
    """A small pool with rates, among them jobs that are alike, that run on few types or nowhere."""
    draw = np.random.default_rng(seed)
    k, kinds = int(draw.integers(1, most + 1)), int(draw.integers(1, 4))
    rates = draw.uniform(0.1, 4.0, (k, kinds)) * (draw.random((k, kinds)) < 0.85)
    gpus = draw.choice([0.5, 1.0, 2.0, 4.0], k)
    twin = int(draw.integers(k))
    rates[0], gpus[0] = rates[twin], gpus[twin]
    capacity = draw.choice([0.0, 1.0, 2.0, 3.0, 5.0, 8.0], kinds)
    return linear_programs.pool(draw.permutation(k) + 1, gpus, rates, capacity), rates, draw


def whole(
    pool: linear_programs.Pool,
    columns: tuple[F64, ...],
    solve: Callable[..., linear_programs.Solved | None],
) -> linear_programs.Solved:
    """`lp.by_classes`, each column an argument of its own."""

    def called(some: linear_programs.Pool, said: tuple[F64, ...]) -> linear_programs.Solved:
        found = solve(some, *said)
        assert found is not None
        return found

    return linear_programs.by_classes(pool, columns, called)
