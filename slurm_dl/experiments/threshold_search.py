"""A search for thresholds of discrete_las: quantiles as candidates, successive halving.

Candidates are cut at quantiles of what jobs amounted to, by jobs and by the service they took, as
service is what a threshold is held against. Successive halving runs all of them on a short stretch
of days, keeps the better third, triples the stretch, and so on up to all days (Jamieson, Talwalkar,
"Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016). What is in
use goes to the end whatever it does on the way, and wins a draw; of others that draw the one with
fewer queues does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.jobs import F64

KEPT: Final = 3
"""One in so many goes on to the next stretch, which is so many times as long."""

SHORTEST_DAYS: Final = 3
MOST_THRESHOLDS: Final = 3

_BY_JOBS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_BY_SERVICE: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
_APART: Final = 2.0
"""Two thresholds of a candidate differ by this factor at least."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """What could stand in the configuration.

    Attributes:
        thresholds_gpu_s: As of the policy.
        promote_knob: As of the policy.
        min_quantum_s: ``preemption.min_quantum_s``; None, in all that are held against each other:
            the simulated cluster knows none.
    """

    thresholds_gpu_s: tuple[float, ...]
    promote_knob: float = 0.0
    min_quantum_s: float | None = None

    def __str__(self) -> str:
        words = [", ".join(f"{edge:g}" for edge in self.thresholds_gpu_s)]
        if self.promote_knob:
            words.append(f"promote {self.promote_knob:g}")
        if self.min_quantum_s is not None:
            words.append(f"min quantum {self.min_quantum_s:g} s")
        return "; ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the search.

    Attributes:
        days: How long the stretch is; None: all of them.
        tried: Candidates and their figure there, the best first.
    """

    days: int | None
    tried: tuple[tuple[Candidate, float], ...]


Score = Callable[[Sequence[Candidate], int | None], Sequence[float]]
"""Figures of candidates on the last so many days, None: all; less is better, NaN is worst."""


def levels(service: F64) -> tuple[float, ...]:
    """Places where a threshold could be, ascending, two digits that count each.

    Args:
        service: ``(n,)`` what each job amounted to, in what thresholds are in, above 0.
    """
    by_jobs = np.quantile(service, _BY_JOBS)
    ordered = np.sort(service)
    upto = np.cumsum(ordered) / ordered.sum()
    by_service = ordered[np.searchsorted(upto, _BY_SERVICE)]
    found = np.concatenate([by_jobs, by_service]).tolist()
    return tuple(sorted({_rounded(value) for value in found}))


def _rounded(value: float) -> float:
    digits = 1 - math.floor(math.log10(value))
    return round(value, digits) if digits > 0 else float(round(value, digits))


def candidates(service: F64, *, most: int, seed: int) -> tuple[tuple[float, ...], ...]:
    """Sets of thresholds to try, at most so many: all of one, then some of two and of three.

    Args:
        service: ``(n,)`` see `levels`.
        most: At least 1.
        seed: Of which sets of several are taken where there are too many.
    """
    at = levels(service)
    found: list[tuple[float, ...]] = [(edge,) for edge in at[:most]]
    rng = np.random.default_rng(seed)
    for size in range(2, MOST_THRESHOLDS + 1):
        several = [
            edges
            for edges in itertools.combinations(at, size)
            if all(b >= _APART * a for a, b in itertools.pairwise(edges))
        ]
        share = (most - len(found)) // (MOST_THRESHOLDS + 1 - size)
        chosen = rng.choice(len(several), size=min(share, len(several)), replace=False)
        found += [several[i] for i in sorted(chosen.tolist())]
    return tuple(found)


def stretches(days: int) -> tuple[int | None, ...]:
    """How many of the last of so many days each rung takes; None, all, is the last."""
    found: list[int | None] = [None]
    stretch = days
    while (stretch := -(-stretch // KEPT)) >= SHORTEST_DAYS and len(found) < KEPT:
        found.append(stretch)
    return tuple(reversed(found))


def search(
    tried: Sequence[Candidate], current: Candidate, rungs: Sequence[int | None], score: Score
) -> tuple[Rung, ...]:
    """Successive halving; the winner is the first of the last rung.

    Args:
        tried: The candidates, none twice; *current* may be among them.
        current: What is in use.
        rungs: The stretches, the last of them None.
        score: Runs candidates.
    """
    left = [current, *(one for one in tried if one != current)]
    done = []
    for days in rungs:
        rung = ranked(left, current, days, score)
        done.append(rung)
        kept = [one for one, _ in rung.tried][: -(-len(left) // KEPT)]
        left = kept if current in kept else [*kept, current]
    return tuple(done)


def ranked(tried: Sequence[Candidate], current: Candidate, days: int | None, score: Score) -> Rung:
    """All of *tried* on one stretch, the best first."""
    scores = list(zip(tried, score(tried, days), strict=True))

    def place(pair: tuple[Candidate, float]) -> tuple[float, bool, int, Candidate]:
        one, value = pair
        worst = math.inf if math.isnan(value) else value
        return worst, one != current, len(one.thresholds_gpu_s), one

    return Rung(days=days, tried=tuple(sorted(scores, key=place)))
