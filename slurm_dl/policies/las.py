"""Least attained service first, continuous: the job that has received least is served next.

The limit of `discrete_las` with ever more queues. Jobs that have received equally much take turns,
so a quantum is needed: without one they would swap without end.

Source: Gu et al., "Tiresias", NSDI 2019, section 3.2 (2D-LAS before discretisation); Nuyens and
Wierman, "The Foreground-Background queue: a survey", Performance Evaluation 65, 2008.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from slurm_dl.model.jobs import COMPLETING, Bool
from slurm_dl.model.parameter_bounds import Positive
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, PolicyDefaults, one_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Las(PolicyDefaults):
    """The least attained service first.

    Attributes:
        dimensions: 2: service is GPUs x seconds. 1: seconds alone.
        quantum_s: While no job comes or goes, the order is updated this often at most, seconds,
            above 0.
    """

    name = "las"
    source = "Tiresias, NSDI 2019, section 3.2 (2D-LAS, continuous)"
    about = About(
        row="A1",
        level="W3",
        formula="key = GPUs x seconds run so far, smallest first",
        starves="a job with much attained service, while new ones come",
    )
    interpretation = "While no event happens, the order is updated every quantum."
    counts_commitment = True

    dimensions: Literal[1, 2] = 2
    quantum_s: Positive = 360.0

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job of *snap*; see `Policy`."""
        return one_tier(snap.service(self.dimensions))

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """When a running job passes a waiting one, a quantum from now or later; see `Policy`."""
        waiting = (snap.jobs.state < COMPLETING) & ~running
        ahead = np.append(np.sort(order.key[waiting]), np.inf)
        has = order.key[running]
        lead = ahead[ahead.searchsorted(has)] - has
        rate = np.ones(len(has)) if self.dimensions == 1 else snap.seen.weighted_gpus()[running]
        passes_s = float((lead / rate).min(initial=np.inf))
        return snap.now_s + max(passes_s, self.quantum_s)
