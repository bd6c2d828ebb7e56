"""Goodput of an elastic training: samples a second, weighted by how far each brings it.

As in Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning",
OSDI 2021, section 3. K GPUs make steps of a global batch M = K m (s + 1): a pass over m samples on
each GPU, and s more passes whose gradients are accumulated. M0 is the batch that the user chose.

    GOODPUT    = THROUGHPUT x EFFICIENCY
    EFFICIENCY = (phi + M0) / (phi + M)                                            (section 3.1)
    THROUGHPUT = M / T_iter                                                        (section 3.2)
    T_iter     = (T_grad^gamma + T_sync^gamma)^(1/gamma) + s T_grad
    T_grad     = a_g + b_g m
    T_sync     = 0 for K = 1; a_r + b_r (K - 2) on one node, a_n + b_n (K - 2) on several

phi is the noise scale of the gradient in samples: the trace of the covariance of one sample's
gradient over the square of the mean gradient (McCandlish et al. 2018, B_simple in section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from slurm_dl.model.jobs import F64, I64
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import SizeHistory
from slurm_dl.model.step_report import MOST_PASSES, MOST_STEPS, BatchLimits, StepReport, StepTime

_GAMMA: Final = (1.0, 10.0)
"""Sum of both times, and nearly their maximum (section 3.2)."""

_GAMMA_PRIOR: Final = 1e-7
_GROWTH_PRIOR: Final = 1e-7
"""Weights of (gamma - 1)^2 and of the growth of T_sync: without data, more GPUs cost nothing."""

# The error is a square. Steps that no parameters explain take a hundred times as long to fit.
_EXACT: Final = {"ftol": 1e-12, "gtol": 1e-9, "maxfun": 300}

_STARTS: Final = (1.5, 4.0)
"""Values of gamma to begin with: the error has more than one valley."""

_TINY: Final = 1e-9

Numbers = F64 | I64 | float


class Throughput(NamedTuple):
    """The seven parameters of section 3.2; all but *gamma* give seconds."""

    a_g: float
    b_g: float
    a_r: float = 0.0
    b_r: float = 0.0
    a_n: float = 0.0
    b_n: float = 0.0
    gamma: float = 1.0

    def step_s(self, nodes: Numbers, gpus: Numbers, local: Numbers, more: Numbers) -> F64:
        """Seconds of steps; arguments are numbers or arrays that broadcast."""
        x, y = self.pass_s(local), _sync_s(self, np.asarray(nodes), np.asarray(gpus))
        whole: F64 = _both(x, y, self.gamma) + more * x
        return whole

    def pass_s(self, local: Numbers) -> F64:
        """Seconds of passes that synchronise nothing."""
        return np.asarray(self.a_g + self.b_g * local, dtype=np.float64)


def fit(steps: Sequence[StepTime]) -> Throughput:
    """Parameters with the least mean square of log errors, by L-BFGS-B (section 4.1).

    Errors of passes that are known count like those of steps. What no step shows is optimistic, so
    that jobs grow until it is seen ("prior-driven exploration"): with one local batch half of the
    pass grows with it; without steps on several GPUs, or on more than two, synchronisation costs
    nothing, or does not grow; across nodes it is then as on one.

    Raises:
        ValueError: There are no steps.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - slow to import

    if not steps:
        msg = "no step to fit the throughput to"
        raise ValueError(msg)
    seen = _Seen(steps)
    tries = [
        minimize(
            seen.error, start, jac=True, method="L-BFGS-B", bounds=seen.bounds(), options=_EXACT
        )
        for start in (seen.start(gamma) for gamma in _STARTS)
    ]
    best = min(tries, key=lambda tried: float(tried.fun)).x * seen.unit_s
    best[4:6] = np.where(seen.shown[4:6], best[4:6], best[2:4])
    return Throughput(*best.tolist())


class _Seen:
    """Steps as columns, and the error of parameters in units of a typical step."""

    def __init__(self, steps: Sequence[StepTime]) -> None:
        table = np.array([[s.nodes, s.gpus, s.local_batch, s.more, s.step_s] for s in steps])
        self.nodes, self.gpus, self.local, self.more, step_s = table.T
        self.log_step = np.log(step_s)
        passes = np.array([s.pass_s or np.nan for s in steps])
        self.timed = np.isfinite(passes)
        self.log_pass = np.log(passes[self.timed])
        typical, batch = float(np.exp(self.log_step.mean())), float(self.local.mean())
        pass_s = np.where(self.timed, passes, step_s / (1 + self.more))
        self.half = float(pass_s.mean()) / 2 / typical
        across, beyond = self.nodes > 1, np.maximum(self.gpus - 2, 0)
        inside = ~across & (self.gpus > 1)
        # What a_r, b_r, a_n and b_n are multiplied by.
        self.sync = np.array([inside, inside * beyond, across, across * beyond])
        shown = [bool(row.any()) for row in self.sync]
        self.shown = (len(np.unique(self.local)) > 1, True, *shown, any(shown))
        rounds = max(1.0, float(self.gpus.max()))
        # b_g is a typical step for a typical batch, b_r and b_n one for the most GPUs.
        self.unit_s = typical / np.array([1, batch, 1, rounds, 1, rounds, typical])

    def start(self, gamma: float) -> F64:
        """The middle of what may be, and 0 or the fixed value for what was not shown."""
        first = np.array([self.half, self.half, 0.1, 0.01, 0.1, 0.01, gamma])
        unknown = np.array([self.half, self.half, 0, 0, 0, 0, 1.0])
        return np.where(self.shown, first, unknown)

    def bounds(self) -> list[tuple[float, float | None]]:
        """Of each parameter; those that were not shown stay."""
        free = [(_TINY, None)] * 2 + [(0.0, None)] * 4 + [_GAMMA]
        stay = [(float(x), float(x)) for x in self.start(1.0)]
        return [f if s else at for f, s, at in zip(free, self.shown, stay, strict=True)]

    def error(self, theta: F64) -> tuple[float, F64]:
        """The error and its gradient, ``(7,)``."""
        found = Throughput(*(theta * self.unit_s))
        gamma = found.gamma
        x, y = found.pass_s(self.local), _sync_s(found, self.nodes, self.gpus)
        both = _both(x, y, gamma)
        step = both + self.more * x
        # The share of each in both^gamma; they add up to 1.
        p, q = (x / both) ** gamma, (y / both) ** gamma
        d_x = (x / both) ** (gamma - 1) + self.more
        d_y = np.where(y > 0, y / both, 0.0) ** (gamma - 1)
        d_gamma = both * (p * np.log(np.maximum(p, _TINY)) + q * np.log(np.maximum(q, _TINY)))
        rows = [d_x, d_x * self.local, *(d_y * self.sync), d_gamma / gamma**2]
        off, slope = _mean_square(np.log(step) - self.log_step, np.array(rows) / step)
        if self.timed.any():
            at = self.timed
            alone = np.zeros((7, int(at.sum())))
            alone[:2] = 1 / x[at], self.local[at] / x[at]
            more, slope_more = _mean_square(np.log(x[at]) - self.log_pass, alone)
            off, slope = off + more, slope + slope_more
        growth = np.array([0, 0, 0, theta[3], 0, theta[5], 0])
        off += _GAMMA_PRIOR * (gamma - 1) ** 2 + _GROWTH_PRIOR * float(growth @ growth)
        slope = slope * self.unit_s + 2 * _GROWTH_PRIOR * growth
        slope[6] += 2 * _GAMMA_PRIOR * (gamma - 1)
        return off, slope


def _mean_square(off: F64, slope: F64) -> tuple[float, F64]:
    """Mean square of *off*, ``(k,)``, and its gradient from *slope*, ``(7, k)``."""
    return float((off**2).mean()), 2 * (slope @ off) / len(off)


def _both(x: F64, y: F64, gamma: float) -> F64:
    high, low = np.maximum(x, y), np.minimum(x, y)
    both: F64 = high * (1 + (low / high) ** gamma) ** (1 / gamma)
    return both


def _sync_s(found: Throughput, nodes: Numbers, gpus: Numbers) -> F64:
    beyond = np.maximum(gpus - 2, 0)
    inside = np.where(gpus > 1, found.a_r + found.b_r * beyond, 0.0)
    return np.where(nodes > 1, found.a_n + found.b_n * beyond, inside)


class Best(NamedTuple):
    """The batch with the highest goodput in one size."""

    goodput: float  # Samples a second, as good as those of the first batch
    local_batch: int
    more: int  # Passes beyond the first


def efficiency(batch: Numbers, first: float, noise: float) -> F64:
    """Progress of a sample in this batch, that in the *first* one being 1 (section 3.1).

    Args:
        noise: The noise scale phi, samples.
    """
    return np.asarray((noise + first) / (noise + batch), dtype=np.float64)


@lru_cache(maxsize=2**15)  # Each decision asks for all sizes of all jobs
def best(
    found: Throughput, noise: float, limits: BatchLimits, *, nodes: int, gpus: int
) -> Best | None:
    """The best local batch and passes on *gpus* GPUs; None if no batch within *limits* fits them.

    Exact. For each number of passes 1/goodput is in proportion to T (phi/M + 1), where T is convex
    and grows with m. So goodput rises up to one local batch and falls beyond it, which halving
    finds. One GPU makes two passes at least if its batch is above M0: the noise of a single
    gradient cannot be measured.
    """
    shares = max(1, -(-limits.most // (gpus * limits.least_local)))
    more = np.arange(min(MOST_PASSES, shares), dtype=np.int64)
    all_ = gpus * (more + 1)
    low = np.maximum(limits.least_local, -(-limits.first // all_))
    high = np.minimum(limits.most_local, limits.most // all_)
    if gpus == 1:
        high[0] = min(int(high[0]), limits.first)
    there = low <= high
    more, low, high = more[there], low[there], high[there]
    if not len(more):
        return None

    def goodput(local: I64) -> F64:
        batch = (gpus * local * (more + 1)).astype(np.float64)
        whole: F64 = batch * efficiency(batch, limits.first, noise)
        return whole / found.step_s(nodes, gpus, local, more)

    while (low < high).any():
        middle = (low + high) // 2
        rises = (goodput(middle + 1) > goodput(middle)) & (low < high)
        low, high = np.where(rises, middle + 1, low), np.where(rises, high, middle)
    values = goodput(low)
    at = int(values.argmax())
    return Best(float(values[at]), int(low[at]), int(more[at]))


def with_step(history: SizeHistory, step: StepTime) -> SizeHistory:
    """*history* with a new *step*, and the throughput fitted to its steps on GPUs of that type."""
    older = (s for s in history.steps if s.configuration != step.configuration)
    steps = (*older, step)[-MOST_STEPS:]
    alike = [s for s in steps if s.gpu_type == step.gpu_type]
    return replace(history, steps=steps, throughput=fit(alike))


def goodput_in(shapes: Sequence[Shape], history: SizeHistory, report: StepReport) -> F64 | None:
    """``(k,)`` goodput in each of *shapes*, fewest GPUs first; None if it is not known.

    As in section 4.1 no more is expected beyond twice the GPUs that the job has had: what it does
    not know of its throughput is optimistic. No GPU is expected to add more than those before it,
    so that no report makes a job gain more than by linear scaling.
    """
    known = 2 * max(step.gpus for step in history.steps)
    found, value = Throughput(*history.throughput), 0.0
    goodput = list[float]()
    for shape in shapes:
        if shape.gpus <= known or not goodput:
            there = best(found, report.noise, report.limits, nodes=shape.nodes, gpus=shape.gpus)
            value = value if there is None else there.goodput
        goodput.append(value)
    # The ledger may be damaged.
    if not all(0 < value < np.inf for value in goodput):
        return None
    gpus = np.array([shape.gpus for shape in shapes], dtype=np.float64)
    linear: F64 = np.minimum.accumulate(np.array(goodput) / gpus) * gpus
    return linear
