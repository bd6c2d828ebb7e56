"""Gittins indices with setup costs and life tables, by plain loops over their definitions."""

from __future__ import annotations

import math
from collections.abc import Iterable

Law = list[tuple[float, float]]
"""Run times and their probabilities, or weights."""

Times = list[tuple[float, bool]]
"""A time, and whether the job ended then or had only come so far."""

APART = [1.5**k for k in range(-10, 30)]
"""Times of which any two are in different bins of a life table."""


def index_of(law: Law, age: float, setup: float) -> float:
    """The least ratio over the run times as D, and over some D between them and beyond."""
    left = [(x - age, p) for x, p in law if x > age]
    alive = sum(p for _, p in left)
    if not alive:
        return age + setup
    least = math.inf
    for d in [x * f for x, _ in left for f in (1.0, 0.5, 0.99, 1.01, 2.0)]:
        done = sum(p for x, p in left if x <= d)
        spent = sum(min(x, d) * p for x, p in left)
        if done:
            least = min(least, (spent + setup * alive) / done)
    return least


def product_limit(times: Times, largest: float = 0.0) -> dict[float, float]:
    """Kaplan and Meier's probability at each end; twice the largest time has what is left.

    Args:
        largest: Of other groups.
    """
    alive, mass = 1.0, {}
    for at in sorted({t for t, ended in times if ended}):
        at_risk = sum(t >= at for t, _ in times)
        mass[at] = alive * sum(t == at for t, ended in times if ended) / at_risk
        alive -= mass[at]
    mass[2 * max([largest, *(t for t, _ in times)])] = alive
    return mass


def mixed(parts: Iterable[tuple[float, dict[float, float]]]) -> Law:
    """The mixture of distributions with weights."""
    law: dict[float, float] = {}
    for weight, mass in parts:
        for at, p in mass.items():
            law[at] = law.get(at, 0.0) + weight * p
    return sorted(law.items())
