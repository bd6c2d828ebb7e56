"""Mixtures of lognormal distributions, fitted to durations by maximum likelihood (EM).

Durations of jobs span six decades and have several humps (crashes at start, debugging, training),
which one lognormal misses and a few of them follow. A mixture is cut off at the shortest and the
longest duration seen: otherwise its far tail, where there are no data, would decide the load.

Arrays are over the different values of the data, some thousands, and over 1 to 5 components.
"""

from __future__ import annotations

import math
from typing import Annotated, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from slurm_dl.model.jobs import F64

MAX_COMPONENTS: Final = 5
_MIN_SIGMA: Final = 0.05  # Narrower components only count the repetitions of one value
_TOLERANCE: Final = 1e-6
"""EM ends when a round adds less than this to the mean log-likelihood of a duration."""
_MAX_ROUNDS: Final = 500
_MIN_INSIDE: Final = 0.01
"""Share of a mixture between its bounds: below, its quotients lose their digits."""
_BISECTIONS: Final = 60


class Lognormals(BaseModel):
    """A mixture of lognormals between two bounds.

    Attributes:
        weight: Of each component; they sum to 1.
        mu: Mean of the logarithm of the duration in seconds, by component.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weight: tuple[float, ...] = Field(min_length=1, max_length=MAX_COMPONENTS)
    mu: tuple[Annotated[float, Field(ge=-50, le=50)], ...]
    sigma: tuple[Annotated[float, Field(gt=0, le=50)], ...]  # Standard deviation of the same
    low_s: float = Field(gt=0, le=1e10)  # Shortest duration, seconds
    high_s: float = Field(gt=0, le=1e10)  # Longest duration, seconds

    def model_post_init(self, _context: object) -> None:
        """Refuse what is no mixture.

        Raises:
            ValueError: The parameters do not fit together.
        """
        if not len(self.weight) == len(self.mu) == len(self.sigma):
            msg = "weight, mu and sigma differ in length"
            raise ValueError(msg)
        if min(self.weight) < 0 or not math.isclose(sum(self.weight), 1, rel_tol=1e-6):
            msg = "weights are negative or do not sum to 1"
            raise ValueError(msg)
        if self.low_s > self.high_s:
            msg = "low_s is above high_s"
            raise ValueError(msg)
        ends = self._uncut(np.log([self.low_s, self.high_s]))
        if self.low_s < self.high_s and ends[1] - ends[0] < _MIN_INSIDE:
            msg = f"less than {_MIN_INSIDE:.0%} of the mixture lies between low_s and high_s"
            raise ValueError(msg)

    def cdf(self, duration_s: F64) -> F64:
        """The share of durations up to each of *duration_s*, ``(n,)``."""
        if self.low_s == self.high_s:
            return (duration_s >= self.low_s).astype(np.float64)
        ends = self._uncut(np.log([self.low_s, self.high_s]))
        inside = np.clip(duration_s, self.low_s, self.high_s)
        shares: F64 = (self._uncut(np.log(inside)) - ends[0]) / (ends[1] - ends[0])
        return shares

    def quantile(self, share: F64) -> F64:
        """The duration, seconds, that *share* of jobs do not exceed; ``(n,)`` each."""
        low = np.full(len(share), math.log(self.low_s))
        high = np.full(len(share), math.log(self.high_s))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            below = self.cdf(np.exp(middle)) < share
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        duration_s: F64 = np.exp(high)
        return duration_s

    def mean_s(self) -> float:
        """The mean duration, seconds: closed form of each component, cut off at the bounds."""
        if self.low_s == self.high_s:
            return self.low_s
        weight, mu, sigma = (np.array(v) for v in (self.weight, self.mu, self.sigma))
        ends = np.log([self.low_s, self.high_s])[:, np.newaxis]
        inside = np.diff(_normal_cdf((ends - mu) / sigma), axis=0)[0]
        shifted = np.diff(_normal_cdf((ends - mu - sigma**2) / sigma), axis=0)[0]
        total = weight * np.exp(mu + sigma**2 / 2) * shifted
        return float(total.sum() / (weight * inside).sum())

    def draw(self, count: int, rng: np.random.Generator) -> F64:
        """*count* durations, seconds."""
        if self.low_s == self.high_s:
            return np.full(count, self.low_s)
        drawn = np.empty(count)
        missing = np.arange(count)
        while len(missing):
            part = rng.choice(len(self.weight), size=len(missing), p=_shares(self.weight))
            normal = rng.standard_normal(len(missing))
            log_s = np.array(self.mu)[part] + np.array(self.sigma)[part] * normal
            inside = (log_s >= math.log(self.low_s)) & (log_s <= math.log(self.high_s))
            drawn[missing[inside]] = np.exp(log_s[inside])
            missing = missing[~inside]
        # exp(log(x)) may miss x by a rounding.
        return np.clip(drawn, self.low_s, self.high_s)

    def _uncut(self, log_s: F64) -> F64:
        """The same as `cdf` without bounds, of the logarithm."""
        z = (log_s[:, np.newaxis] - np.array(self.mu)) / np.array(self.sigma)
        shares: F64 = _normal_cdf(z) @ np.array(self.weight)
        return shares


def fit_lognormals(duration_s: F64) -> Lognormals:
    """The mixture with the lowest BIC of those with 1 to `MAX_COMPONENTS` components.

    Args:
        duration_s: ``(n,)`` seconds, above 0, at least one.
    """
    values, counts = np.unique(duration_s, return_counts=True)
    log_s = np.log(values)
    best, lowest = None, math.inf
    for components in range(1, min(MAX_COMPONENTS, len(values)) + 1):
        weight, mu, sigma, log_likelihood = _maximize(log_s, counts.astype(np.float64), components)
        bic = (3 * components - 1) * math.log(len(duration_s)) - 2 * log_likelihood
        if bic < lowest:
            best, lowest = (weight, mu, sigma), bic
    weight, mu, sigma = best or (np.ones(1), log_s[:1], np.ones(1))
    order = np.argsort(mu)
    return Lognormals(
        weight=tuple(_shares(weight[order]).tolist()),
        mu=tuple(mu[order].tolist()),
        sigma=tuple(sigma[order].tolist()),
        low_s=float(values[0]),
        high_s=float(values[-1]),
    )


def ks_distance(duration_s: F64, mixture: Lognormals) -> float:
    """Kolmogorov-Smirnov: the largest gap between the data's steps and the mixture's CDF."""
    values, counts = np.unique(duration_s, return_counts=True)
    upto = np.cumsum(counts) / len(duration_s)
    before = upto - counts / len(duration_s)
    fitted = mixture.cdf(values)
    return float(max(np.abs(upto - fitted).max(), np.abs(fitted - before).max()))


def _maximize(log_s: F64, counts: F64, components: int) -> tuple[F64, F64, F64, float]:
    """Expectation maximization from equal parts of the sorted data.

    Returns:
        Weights, means, standard deviations and the log-likelihood of the durations.
    """
    total = counts.sum()
    place = (np.cumsum(counts) - counts / 2) / total
    part = np.minimum((place * components).astype(np.intp), components - 1)
    belongs = np.eye(components)[part] + 1e-3
    belongs /= belongs.sum(axis=1, keepdims=True)
    # The density of a lognormal is that of the normal over the duration itself.
    jacobian = float(counts @ log_s)
    last = -math.inf
    for _ in range(_MAX_ROUNDS):
        mass = counts @ belongs
        mu = (counts * log_s) @ belongs / mass
        spread = (counts[:, np.newaxis] * (log_s[:, np.newaxis] - mu) ** 2 * belongs).sum(axis=0)
        sigma = np.maximum(np.sqrt(spread / mass), _MIN_SIGMA)
        weight = mass / total
        z = (log_s[:, np.newaxis] - mu) / sigma
        log_density = np.log(weight) - np.log(sigma) - z**2 / 2 - math.log(2 * math.pi) / 2
        top = log_density.max(axis=1, keepdims=True)
        summed = top[:, 0] + np.log(np.exp(log_density - top).sum(axis=1))
        belongs = np.exp(log_density - summed[:, np.newaxis])
        likelihood = float(counts @ summed) - jacobian
        if likelihood - last < _TOLERANCE * total:
            break
        last = likelihood
    return weight, mu, sigma, likelihood


def _shares(weights: tuple[float, ...] | F64) -> F64:
    """Weights that sum to 1 as exactly as a generator asks for."""
    array = np.asarray(weights, dtype=np.float64)
    shares: F64 = array / array.sum()
    return shares


def _normal_cdf(z: F64) -> F64:
    flat = np.fromiter(map(math.erf, (z / math.sqrt(2)).ravel()), np.float64, z.size)
    shares: F64 = (1 + flat.reshape(z.shape)) / 2
    return shares
