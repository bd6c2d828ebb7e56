"""Sia: sizes and GPU types of all jobs at once, by an integer program over their goodputs.

    G_ij = r_ij (goodput_ij / least goodput of job i) x GPUs of that least one
    min  sum_i [ G_ij^p if job i is given j, lambda if it is given nothing ]       for p < 0
    max  sum_i [ G_ij^p + lambda if job i is given j ]                              for p > 0

r_ij is 1 for what the job holds, else (T - N S) / (T + S) by its age T, its restarts N and the cost
S of one. A job gets one size on one type at most; GPUs of each type are a bound.

Source: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster
scheduling", SOSP 2023, section 3.4; p = -0.5 and lambda = 1.1 are those of its artifact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from slurm_dl.model.jobs import F64
from slurm_dl.model.parameter_bounds import Bound, Positive
from slurm_dl.policies.base import About
from slurm_dl.policies.elastic.size_and_type import FALLBACK, Candidates, SizeAndType
from slurm_dl.policies.elastic.sizing_policy import SPEEDS_TOLD


def _is_power(power: float) -> bool:
    return power != 0 and abs(power) <= 10  # noqa: PLR2004 - steeper ones are no more than a maximum


_LEAST = 1e-6  # A goodput that restarts have eaten up


@dataclass(frozen=True, slots=True, kw_only=True)
class Sia(SizeAndType):
    """The pairs of size and type with the best sum of normalised goodputs.

    Attributes:
        fairness: p, the power of a goodput; below 0 the least goodputs count most. Not 0.
        idle: lambda, what a job without GPUs counts, above 0.
    """

    name = "sia"
    source = "Sia, SOSP 2023, section 3.4"
    about = About(
        row="A11",
        level="W3",
        formula=(
            "min sum of (r x rate / least rate x its GPUs)^p over the jobs that get GPUs, and "
            "lambda for each that gets none; r = (T - N S) / (T + S) for a change"
        ),
        needs=("sizes", "rates", "setup_s"),
        fallback=FALLBACK,
        trusts=SPEEDS_TOLD,
        starves="a job that asks for many GPUs and cannot be smaller, while others use them better",
    )
    interpretation = (
        "Speeds are given: no runs on one GPU of each type are made to learn them, and sizes are "
        "not doubled step by step. With more than exact_jobs jobs the linear relaxation is rounded."
    )
    fairness: Annotated[float, Bound("from -10 to 10, and not 0", _is_power)] = -0.5
    idle: Positive = 1.1

    def worth(self, what: Candidates, /) -> F64:
        """See `SizeAndType`."""
        lowest = what.least(what.rate)
        gpus = what.least(np.where(what.rate == lowest, what.gpus, np.inf))
        # A job without GPUs has no work under way that a start would stop.
        keeps = np.where(what.waits, 1.0, what.keeps)
        value = np.maximum(what.rate / lowest * gpus * keeps, _LEAST) ** self.fairness
        worth: F64 = self.idle - value if self.fairness < 0 else self.idle + value
        return worth
