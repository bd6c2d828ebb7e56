"""How likely a job is to end within the next lease, judged by how long jobs like it ran.

Run times of finished jobs are counted in leases, apart for each number of GPUs; of the jobs that
lasted as long as this one, the share that ended in the same lease is its chance. Numbers of GPUs
of which few jobs are known borrow the histogram of all jobs.

Source: Ye et al., "ASTRAEA", IEEE TPDS 33(11), 2022, and its public simulator (histogram of
lifetimes by number of GPUs, that of all jobs where there are too few).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.jobs import F64


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """Run times of finished jobs.

    Attributes:
        lease_s: Width of a bin of the histograms, seconds, above 0.
        ran_s: ``(k,)`` run times of all, seconds, not decreasing.
        by_gpus: The same for those of each number of GPUs of which there are enough.
    """

    lease_s: float
    ran_s: F64
    by_gpus: dict[float, F64]

    def chance(self, gpus: F64, ran_s: F64) -> F64:
        """``(n,)`` how likely jobs of so many *gpus* that ran *ran_s* end in the lease they are in.

        1 beyond the longest known run time; NaN where no run time is known at all.
        """
        found: F64 = np.full(len(gpus), np.nan)
        if not len(self.ran_s):
            return found
        for count in np.unique(gpus).tolist():
            rows = gpus == count
            found[rows] = self._of(self.by_gpus.get(count, self.ran_s), ran_s[rows])
        return found

    def _of(self, known_s: F64, ran_s: F64) -> F64:
        bin_s = np.floor(ran_s / self.lease_s) * self.lease_s
        lasted = len(known_s) - known_s.searchsorted(bin_s)
        longer = len(known_s) - known_s.searchsorted(bin_s + self.lease_s)
        return 1 - np.divide(longer, lasted, out=np.zeros(len(ran_s)), where=lasted > 0)


@functools.lru_cache(maxsize=4)
def lifetimes(past: Past, lease_s: float, least_samples: int) -> Lifetimes:
    """The histograms of *past*.

    Args:
        least_samples: Numbers of GPUs with fewer finished jobs have no histogram of their own.
    """
    rows = np.lexsort((past.ran_s, past.gpus))
    gpus, ran_s = past.gpus[rows], past.ran_s[rows]
    counts, firsts = np.unique(gpus, return_index=True)
    parts = np.split(ran_s, firsts[1:]) if len(gpus) else []
    return Lifetimes(
        lease_s=lease_s,
        ran_s=np.sort(ran_s),
        by_gpus={
            count: part
            for count, part in zip(counts.tolist(), parts, strict=True)
            if len(part) >= least_samples
        },
    )
