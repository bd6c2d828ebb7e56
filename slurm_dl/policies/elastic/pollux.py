"""Pollux: the sizes with the best harmonic mean of speed-ups over a fair share.

    speedup_j = r_j goodput_j / goodput_j on a fair share of the GPUs
    max  ( 1/J sum_j speedup_j^-1 )^-1,    that is,    min sum_j 1 / speedup_j

r_j is 1 for what the job holds, else max(T - R d, 0) / (T + d) by its age T, its restarts R and the
cost d of one. The paper searches genetically over the GPUs of each job on each node. The sum is
linear in the choice of one size for each job, so an integer program finds its optimum; the search
is an option.

Source: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning",
OSDI 2021, section 4.2, p = -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_dl.model.jobs import F64, I64
from slurm_dl.model.parameter_bounds import Positive
from slurm_dl.policies.base import About
from slurm_dl.policies.elastic.genetic_search import search
from slurm_dl.policies.elastic.size_and_type import FALLBACK, Candidates, SizeAndType
from slurm_dl.policies.elastic.sizing_policy import SPEEDS_TOLD

_SEARCHED_GPUS = 512  # A search over more is too slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Pollux(SizeAndType):
    """The sizes with the least sum of slow-downs against a fair share.

    Attributes:
        idle: Slow-down that a job without GPUs counts, above 0. A job waits until its age is more
            than a restart / (idle - 1), whatever is free.
        search: Search genetically, as the paper does, for sizes that fit on the nodes.
    """

    name = "pollux"
    source = "Pollux, OSDI 2021, section 4.2"
    about = About(
        row="A10",
        level="W3",
        formula=(
            "min sum of 1 / speedup, speedup = r x rate / rate on GPUs / jobs; "
            "r = max(T - R d, 0) / (T + d) for a change"
        ),
        needs=("sizes", "rates", "setup_s"),
        fallback=FALLBACK,
        trusts=SPEEDS_TOLD,
        starves="a job that asks for many GPUs and cannot be smaller, while others use them better",
    )
    interpretation = (
        "The optimum of its objective by an integer program, without the bound of one distributed "
        "job on each node; placement rule contention has that bound. Speeds are given. Of several "
        "GPU types the fair share is on the type that is best for the job. With more than "
        "exact_jobs jobs the linear relaxation is rounded. With search, up to 512 GPUs and "
        "exact_jobs jobs, the genetic search over jobs and nodes decides: with that bound, and not "
        "always the optimum: far from it with hundreds of jobs. Where jobs lie is no part of it."
    )
    idle: Positive = 10.0
    search: bool = False

    def worth(self, what: Candidates, /) -> F64:
        """See `SizeAndType`."""
        fair = what.gpus <= np.maximum(np.ceil(what.share), what.least(what.gpus))
        base = -what.least(np.where(fair, -what.rate, 0.0))
        with np.errstate(divide="ignore"):
            worth: F64 = self.idle - base / (what.rate * what.keeps)
        return worth

    def choose(self, what: Candidates, worth: F64, /) -> I64:
        """See `SizeAndType`."""
        small = what.capacity.sum() <= _SEARCHED_GPUS and len(what.rows) <= self.exact_jobs
        if not self.search or not small:
            return SizeAndType.choose(self, what, worth)
        return search(what, worth).option
