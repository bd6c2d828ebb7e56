"""The middle of the best shares: what a solver by interior points answers.

Many shares can be best. A solver that goes from corner to corner answers with a corner, in which
most jobs have one GPU type; one that follows the central path ends in the middle (the analytic
centre) of all best answers, in which they have a part of each. Gavel's public code takes what ECOS
answers, which is the second. The program, with c only where there is *gain*::

    max  value . X + c    with  X >= 0,  sum_j X[m, j] <= 1,  sum_m gpus_m X[m, j] <= capacity_j,
                                gain[m] . X[m] >= floor[m] + c

Newton's matrix is a block for each job, bordered by the capacities and c: a step costs as much as
there are jobs.

Source: Mehrotra, "On the Implementation of a Primal-Dual Interior Point Method", SIAM Journal on
Optimization 2 (1992); ECOS: Domahidi, Chu and Boyd, ECC 2013.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from slurm_dl.model.jobs import F64
from slurm_dl.policies.arithmetic.lp_solver import Pool

_STEPS: Final = 100
_CLOSE: Final = 1e-8
_CENTRING: Final = 0.3
"""How much of the gap is kept in a step; with much less the way ends beside the middle."""

_TO_THE_WALL: Final = 0.9


class _Sides(NamedTuple):
    """A number for each constraint: X >= 0, whole time, capacity, gain."""

    sign: F64  # ``(k, t)``
    whole: F64  # ``(k,)``
    room: F64  # ``(t,)``
    gain: F64  # ``(k,)``


def central(
    pool: Pool, *, value: F64 | None = None, gain: F64 | None = None, floor: F64 | None = None
) -> F64:
    """``(k, t)`` the middle of the best shares.

    Args:
        value: ``(k, t)`` worth of a share; None: none.
        gain: ``(k, t)`` whose least is raised, or, with *floor*, what is to reach it.
        floor: ``(k,)`` is within reach; then nothing is raised.
    """
    k, t = pool.may.shape
    worth = np.zeros((k, t)) if value is None else value / (np.abs(value).max() or 1.0)
    rows = np.zeros((k, t)) if gain is None else gain / gain.max(axis=1, keepdims=True)
    least = np.zeros(k) if gain is None or floor is None else floor / gain.max(axis=1)
    rises = gain is not None and floor is None
    # Gains of one scale: the least one is raised in the unit of each job's own.
    lift = np.where(rises, 1.0 if gain is None else 1 / gain.max(axis=1), 0.0) * np.ones(k)
    lift /= lift.max() or 1.0
    path = _Path(pool, gain=rows, lift=lift, least=least, worth=worth, rises=rises)
    return np.where(pool.may, np.clip(path.end(), 0.0, 1.0), 0.0)


class _Path:
    """The program, a point near its central path, and the way along it."""

    def __init__(
        self, pool: Pool, *, gain: F64, lift: F64, least: F64, worth: F64, rises: bool
    ) -> None:
        k, t = gain.shape
        self._gpus, self._gain, self._lift, self._worth = pool.gpus, gain, lift, worth
        self._rises = float(rises)
        self._bound = _Sides(np.zeros((k, t)), np.ones(k), pool.capacity, -least)
        self._x, self._c = np.full((k, t), 0.5 / t), 0.0
        self._slack = _Sides(*(np.maximum(b - a, 0.1) for a, b in self._pairs()))
        self._price = _Sides(*(1.0 / s for s in self._slack))

    def _left(self, x: F64, c: float) -> _Sides:
        return _Sides(
            -x, x.sum(axis=1), self._gpus @ x, c * self._lift - (self._gain * x).sum(axis=1)
        )

    def _back(self, side: _Sides) -> tuple[F64, float]:
        x = (
            -side.sign
            + side.whole[:, None]
            + self._gpus[:, None] * side.room
            - self._gain * side.gain[:, None]
        )
        return x, float(self._lift @ side.gain)

    def _pairs(self) -> list[tuple[F64, F64]]:
        return list(zip(self._left(self._x, self._c), self._bound, strict=True))

    def end(self) -> F64:
        """``(k, t)`` where the path ends."""
        count = sum(s.size for s in self._slack)
        for _ in range(_STEPS):
            short = _Sides(
                *(a + s - b for (a, b), s in zip(self._pairs(), self._slack, strict=True))
            )
            back_x, back_c = self._back(self._price)
            off_x, off_c = back_x - self._worth, back_c - self._rises
            gap = sum(float((s * y).sum()) for s, y in zip(self._slack, self._price, strict=True))
            wrong = max(np.abs(off_x).max(), abs(off_c), *(np.abs(p).max() for p in short))
            if gap < _CLOSE and wrong < _CLOSE:
                break
            try:
                self._step(short, off_x, off_c, _CENTRING * gap / count)
            except np.linalg.LinAlgError:
                break  # as near as floating point comes
        return self._x

    def _step(self, short: _Sides, off_x: F64, off_c: float, target: float) -> None:
        slack, price = self._slack, self._price
        weight = _Sides(*(y / s for s, y in zip(slack, price, strict=True)))
        force = _Sides(
            *((s * y - target - y * p) / s for s, y, p in zip(slack, price, short, strict=True))
        )
        x, c = self._back(force)
        dx, dc = self._solve(weight, x - off_x, c - off_c)
        moved = self._left(dx, dc)
        ds = _Sides(*(-p - m for p, m in zip(short, moved, strict=True)))
        dy = _Sides(
            *((target - s * y - y * d) / s for s, y, d in zip(slack, price, ds, strict=True))
        )
        far = min(_reach(v, d) for v, d in zip((*slack, *price), (*ds, *dy), strict=True))
        step = min(1.0, _TO_THE_WALL * far)
        self._x, self._c = self._x + step * dx, self._c + step * dc
        self._slack = _Sides(*(s + step * d for s, d in zip(slack, ds, strict=True)))
        self._price = _Sides(*(y + step * d for y, d in zip(price, dy, strict=True)))

    def _solve(self, weight: _Sides, x: F64, c: float) -> tuple[F64, float]:
        """Newton's step: blocks of jobs first, then what ties them together."""
        k, t = x.shape
        block = weight.whole[:, None, None] + np.zeros((k, t, t))
        block += weight.gain[:, None, None] * self._gain[:, :, None] * self._gain[:, None, :]
        block[:, np.arange(t), np.arange(t)] += weight.sign
        ties = np.zeros((k, t, t + 1))
        ties[:, np.arange(t), np.arange(t)] = self._gpus[:, None]
        ties[:, :, t] = -(weight.gain * self._lift)[:, None] * self._gain
        part = np.linalg.solve(block, np.concatenate([ties, x[:, :, None]], axis=2))
        alone, through = part[:, :, t + 1], part[:, :, : t + 1]
        own = float((weight.gain * self._lift**2).sum()) if self._rises else -1.0
        border = np.einsum("kti,ktj->ij", ties, through)
        border[np.arange(t + 1), np.arange(t + 1)] += np.append(1 / weight.room, -own)
        right = np.einsum("kti,kt->i", ties, alone)
        right[t] -= c if self._rises else 0.0
        if not self._rises:
            border[t, :t] = border[:t, t] = right[t] = 0.0
        tied = np.linalg.solve(border, right)
        return alone - through @ tied, float(tied[t])


def _reach(value: F64, change: F64) -> float:
    falls = change < 0
    return float((-value[falls] / change[falls]).min(initial=np.inf))
