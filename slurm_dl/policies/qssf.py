"""Quasi-shortest service first: the job that is expected to need the fewest GPU-seconds first.

How long a job will run is predicted from the site's own accounting alone: nobody is asked, nothing
is measured. Two predictions are mixed,

    rank = GPUs x (0.1 x rolling + 0.9 x learned),

the mean of like jobs of the same user (`slurm_dl.estimates.similar_jobs`) and what boosted trees
learned from all jobs (`slurm_dl.estimates.boosted_trees`). Smallest rank first; who runs is left
running.

Source: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters", SC 2021, section 4.2; the weights are those of its code, S-Lab HeliosArtifact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from slurm_dl.estimates.boosted_trees import learned_s
from slurm_dl.estimates.similar_jobs import asked, rolling_s
from slurm_dl.model.jobs import F64, I64
from slurm_dl.model.parameter_bounds import Bound, Positive
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.supply_and_demand import contenders
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Qssf(PolicyDefaults):
    """Fewest predicted GPU-seconds first.

    Attributes:
        rolling_weight: Weight of the rolling mean, 0 to 1; the rest is the weight of the trees.
        least_jobs: With fewer finished jobs than this the trees are not trained, and the rolling
            mean alone is used; at least 1.
        retrain_s: Least time between two trainings of the trees, seconds, above 0.
    """

    name = "qssf"
    source = "Helios, SC 2021, section 4.2 (QSSF)"
    about = About(
        row="A23",
        level="W3",
        formula="rank = GPUs x (0.1 x rolling mean of like jobs + 0.9 x learned), smallest first",
        needs=("history",),
        fallback=(
            "without scikit-learn, or with few finished jobs: the rolling mean alone; without any "
            "finished job: GPUs x time limit"
        ),
        starves="a job expected to be large, while smaller ones come",
        trusts=("the job's name",),
    )
    interpretation = (
        "Names are compared with those of the same user only, the 1000 used last. Jobs behind one "
        "that does not fit are served. Boosted trees of scikit-learn replace LightGBM, and learn "
        "the logarithm of the duration."
    )
    preempts = "never"

    rolling_weight: Annotated[float, Bound("0 to 1", lambda part: 0 <= part <= 1)] = 0.1
    least_jobs: Annotated[int, Bound("at least 1", lambda n: n >= 1)] = 200
    retrain_s: Positive = 86_400.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        rows = contenders(snap).nonzero()[0]
        key = np.full(len(snap.jobs), np.inf)
        key[rows] = snap.jobs.gpus[rows] * self._run_s(snap, rows)
        return one_tier(key)

    def _run_s(self, snap: Snapshot, rows: I64) -> F64:
        """Seconds that the jobs at *rows* are expected to run, from beginning to end."""
        if not len(snap.past):
            return snap.jobs.limit_s[rows]
        jobs = asked(snap, rows)
        rolling = rolling_s(snap.past, jobs)
        if self.rolling_weight == 1:
            return rolling
        learned = learned_s(snap.past, jobs, least_jobs=self.least_jobs, retrain_s=self.retrain_s)
        if learned is None:
            return rolling
        mixed: F64 = self.rolling_weight * rolling + (1 - self.rolling_weight) * learned
        return mixed
