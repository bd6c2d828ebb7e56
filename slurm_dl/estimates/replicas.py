"""Replicas that a service needs so that its requests are answered in time.

The least c with ``P(response <= sla) >= quantile`` in the queue M/G/c, whose requests wait in one
line. A response is wait plus service, and the two are independent. Of the service time the mean s
and the squared coefficient of variation are known; its distribution is taken as gamma. The wait is

    P(wait > t) = C(c, a) exp(-2 (c - a) t / ((1 + scv) s)),    a = rate s,

C being Erlang's delay formula: exact for exponential service (M/M/c), else by the correction of
Allen and Cunneen (A. Allen, Probability, Statistics and Queueing Theory, 1990, section 5.3).

Source: Gujarati, Elnikety, He, McKinley and Brandenburg, "Swayam: Distributed Autoscaling to Meet
SLAs of Machine Learning Inference Services with Resource Efficiency", Middleware 2017: the least
number of backends by a model of response times, at a rate predicted for the time in which a new
backend starts. Only the abstract was read; the line through the recent rates is our reading.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.model.errors import ConfigError
from slurm_dl.text import shown

MOST_REPLICAS: Final = 10_000
_MOST_PER_S: Final = 1e6  # A higher rate is a mistake
_LAST_S: Final = 1e12
_POINTS: Final = 4096  # Of the integral over service times
_MOST_MISSES: Final = 240  # Predictions that are looked back at
_STEADY: Final = 1e-4  # A smaller scv counts as 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """A service and its agreement."""

    service_s: float  # Mean time of a request on a replica that is free, seconds
    scv: float = 1.0  # Its variance over its mean squared; 0: all take the same time
    sla_s: float  # A response is in time if it takes no longer, seconds
    quantile: float = 0.99  # Share of responses that are to be in time
    setup_s: float = 0.0  # What a replica takes to start, seconds
    least: int = 1
    most: int = MOST_REPLICAS


def delay_probability(replicas: int, load: float) -> float:
    """Erlang's C: the share of requests that wait in M/M/c, by the recurrence of Erlang's B.

    Args:
        replicas: More than *load*.
        load: Replicas kept busy, the rate times the mean service time.
    """
    blocked = 1.0
    for c in range(1, replicas + 1):
        blocked = load * blocked / (c + load * blocked)
    return blocked / (1.0 - load / replicas * (1.0 - blocked))


def share_in_time(level: ServiceLevel, replicas: int, rate_per_s: float) -> float:
    """``P(response <= sla_s)`` with so many replicas."""
    mean_s, load, sla_s = level.service_s, rate_per_s * level.service_s, level.sla_s
    if replicas <= load:
        return 0.0
    waits = delay_probability(replicas, load)
    decay = 2.0 * (replicas - load) / ((1.0 + level.scv) * mean_s)
    if level.scv < _STEADY:
        return 1.0 - waits * math.exp(-decay * (sla_s - mean_s)) if sla_s >= mean_s else 0.0
    shape, scale = 1.0 / level.scv, mean_s * level.scv
    at = (np.arange(_POINTS) + 0.5) / _POINTS
    # Hardly any request takes longer; points beyond would be missing where all are.
    top_s = min(sla_s, mean_s * (1.0 + 10.0 * math.sqrt(level.scv) + 40.0 * level.scv))
    # A density that is infinite at 0 is made flat there: s ** (shape - 1) ds is top ** shape du.
    took_s = top_s * (at if shape >= 1 else at ** (1.0 / shape))
    flat = (shape - 1.0) * np.log(at) if shape >= 1 else -math.log(shape)
    log_density = flat + shape * math.log(top_s / scale) - took_s / scale - math.lgamma(shape)
    served = np.exp(log_density) * (1.0 - waits * np.exp(-decay * (sla_s - took_s)))
    return min(1.0, float(served.mean()))


def replicas_for(level: ServiceLevel, rate_per_s: float) -> int:
    """The least number within its bounds that keeps the agreement; the most if none does."""
    low, high = max(level.least, int(rate_per_s * level.service_s)), level.most
    while low < high:
        middle = min((low + high) // 2, 2 * low + 1)
        if share_in_time(level, middle, rate_per_s) >= level.quantile:
            high = middle
        else:
            low = middle + 1
    return min(low, level.most)


def attainable(level: ServiceLevel) -> float:
    """Share of responses that would be in time if none waited: no number of replicas keeps more."""
    return share_in_time(level, 1, 0.0)


def rates_in(text: str, name: str) -> tuple[list[float], list[float]]:
    """Times (epoch seconds) and rates (requests per second) in lines ``epoch_s,requests_per_s``.

    The first line may have these names.

    Args:
        name: Of the file, for errors.

    Raises:
        ConfigError: Something in it is no such thing.
    """
    times_s: list[float] = []
    rates: list[float] = []
    for place, line in enumerate(text.split("\n"), 1):
        if not line.strip() or (place == 1 and line.strip() == "epoch_s,requests_per_s"):
            continue
        try:
            at_s, rate = map(float, line.split(","))
        except ValueError:
            at_s = rate = math.nan
        last_s = times_s[-1] if times_s else -1.0
        if not (0 <= rate <= _MOST_PER_S and last_s < at_s < _LAST_S):
            msg = f"{name}:{place}: {shown(line)}: must be epoch_s,requests_per_s, times ascending"
            raise ConfigError(msg)
        times_s.append(at_s)
        rates.append(rate)
    return times_s, rates


def predicted_rate(times_s: Sequence[float], rates_per_s: Sequence[float], lead_s: float) -> float:
    """Rate that is not exceeded until a replica that is asked for now is ready.

    A line through the recent rates, and what it was too low by before, but for 1 % of the time.

    Args:
        times_s: When each rate was told, ascending.
        lead_s: Seconds from the last one until then.
    """
    last = len(times_s) - 1
    missed = [0.0]
    for told in range(max(0, last - _MOST_MISSES), last):
        most = max(rates_per_s[told : bisect_right(times_s, times_s[told] + lead_s)])
        missed.append(max(0.0, most - _on_the_line(times_s, rates_per_s, told, lead_s)))
    safety = float(np.quantile(missed, 0.99, method="higher"))
    return _on_the_line(times_s, rates_per_s, last, lead_s) + safety


def _on_the_line(
    times_s: Sequence[float], rates_per_s: Sequence[float], last: int, lead_s: float
) -> float:
    """Highest rate from a lead before *last* to a lead after it, by a line through those before.

    It is no lower than what has been: a replica that is let go and needed again has to start again.
    """
    first = min(bisect_left(times_s, times_s[last] - lead_s), max(last - 1, 0))
    x = [at_s - times_s[last] for at_s in times_s[first : last + 1]]
    y = rates_per_s[first : last + 1]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((at - mean_x) ** 2 for at in x)
    slope = sum((at - mean_x) * rate for at, rate in zip(x, y, strict=True)) / (spread or 1.0)
    return max(*y, mean_y + slope * (lead_s - mean_x))
