"""Requests of a service, played against replicas that follow their rate.

One line, first come first served (M/G/c with a rate that changes). A replica that starts is of use
after its start-up time. One that is not needed ends once its request is answered. Both cost
replica-hours from the decision to the end.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from slurm_dl.estimates.replicas import ServiceLevel, predicted_rate, rates_in, replicas_for
from slurm_dl.model.errors import ConfigError
from slurm_dl.yaml_places import read_text

_MOST_IN_A_PERIOD: Final = 1e7  # Those of one period are in memory at once

Counter = Callable[[int], int]
"""Replicas wanted at the beginning of a period, by its number."""


def read_rates(path: Path) -> tuple[list[float], list[float]]:
    """Times (epoch seconds) and rates (requests per second) in lines ``epoch_s,requests_per_s``.

    The first line may have these names.

    Raises:
        ConfigError: The file cannot be read, or something in it is no such thing.
    """
    times_s, rates = rates_in(read_text(path), str(path))
    if len(times_s) < 2:  # noqa: PLR2004 - a period has two ends
        msg = f"{path}: must have two lines epoch_s,requests_per_s or more"
        raise ConfigError(msg)
    most = float(np.max(np.multiply(rates, [*np.diff(times_s), _step_s(times_s)])))
    if most > _MOST_IN_A_PERIOD:
        msg = f"{path}: {most:.3g} requests between two lines; at most 1e7 can be played"
        raise ConfigError(msg)
    return times_s, rates


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOutcome:
    """One way to choose the count, played."""

    in_time: float  # Share of responses within the agreement
    replica_hours: float
    counts: tuple[int, ...]  # Replicas wanted in each period


def counters(
    level: ServiceLevel, times_s: Sequence[float], rates: Sequence[float]
) -> dict[str, Counter]:
    """Ways to choose the count: by prediction, by the mean rate, and by knowing what comes."""
    mean = float(np.mean(rates))

    def predicted(period: int) -> int:
        told = max(period, 1)  # A period's rate is told at its end; the first is known.
        rate = predicted_rate(times_s[:told], rates[:told], level.setup_s + 2 * _step_s(times_s))
        return replicas_for(level, rate)

    def clairvoyant(period: int) -> int:
        until_s = times_s[period] + level.setup_s
        return replicas_for(level, max(rates[period : bisect_right(times_s, until_s)]))

    return {
        "predicted": predicted,
        "mean rate": lambda _: replicas_for(level, mean),
        "clairvoyant": clairvoyant,
    }


def _step_s(times_s: Sequence[float]) -> float:
    return (times_s[-1] - times_s[0]) / max(len(times_s) - 1, 1)


def play(
    level: ServiceLevel,
    times_s: Sequence[float],
    rates: Sequence[float],
    count: Counter,
    *,
    seed: int = 0,
) -> ServiceOutcome:
    """Requests at *rates* (per second, from each of *times_s* to the next) against *count*."""
    rng = np.random.default_rng(seed)
    ends_s = [*times_s[1:], times_s[-1] + _step_s(times_s)]
    counts = [count(period) for period in range(len(times_s))]
    # When each replica is free next. Those of the first period have started before.
    free_s, used_s = [times_s[0]] * counts[0], 0.0
    late = requests = 0
    for wanted, rate, begin_s, end_s in zip(counts, rates, times_s, ends_s, strict=True):
        while len(free_s) > wanted:
            # First those that have not started yet.
            used_s += max(0.0, max(free_s) - begin_s)
            free_s.remove(max(free_s))
            heapq.heapify(free_s)
        for _ in range(wanted - len(free_s)):
            heapq.heappush(free_s, begin_s + level.setup_s)
        used_s += wanted * (end_s - begin_s)
        arrive_s = np.sort(rng.uniform(begin_s, end_s, rng.poisson(rate * (end_s - begin_s))))
        took = np.full(len(arrive_s), level.service_s)
        if level.scv > 0:
            took = rng.gamma(1 / level.scv, level.service_s * level.scv, len(arrive_s))
        for at_s, took_s in zip(arrive_s.tolist(), took.tolist(), strict=True):
            done_s = max(at_s, free_s[0]) + took_s
            heapq.heapreplace(free_s, done_s)
            late += done_s - at_s > level.sla_s
        requests += len(arrive_s)
    return ServiceOutcome(
        in_time=1.0 - late / max(requests, 1), replica_hours=used_s / 3600, counts=tuple(counts)
    )
