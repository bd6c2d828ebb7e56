"""`preempts` means the same in both simulators: whom a waiting job may take GPUs from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from small_traces import make_trace

from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.experiments.simulation_run import Chosen, PolicySpec
from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Order, Preempts
from slurm_dl.simulation.cluster_shape import parse_shape

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class LargestFirst:
    """Jobs of many GPUs first; those of three and more are of a better tier, if there are two."""

    name: ClassVar[str] = "largest_first"
    source: ClassVar[str] = "this test"
    interpretation: ClassVar[str] = ""
    about: ClassVar[About] = About(row="X1", level="W3", formula="-GPUs")
    skips: ClassVar[bool] = True

    preempts: Preempts
    tiers: int

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job."""
        gpus = snap.jobs.gpus
        tier = np.where(gpus > 2, 0, self.tiers - 1).astype(np.int16)
        nobody = np.zeros(len(gpus), dtype=np.bool_)
        return Order(tier=tier, key=-gpus, promote=nobody, tiers=self.tiers)

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:  # noqa: ARG002
        """Never."""
        return math.inf


def preemptions(policy: LargestFirst, costs: str, gpus: tuple[int, int], first_s: float) -> int:
    """Preemptions of the first of two jobs, which do not fit beside each other."""
    trace = make_trace([0.0, 7200.0], [first_s, 600.0], gpus)
    cluster = cluster_presets.find(costs, "none", trace)
    chosen = Chosen(PolicySpec(policy=policy.name), policy)
    records = simulation_run.run(chosen, trace, cluster, parse_shape("1x4")).outcome.records
    assert records.finished.all()
    return int(records.preemptions[0])


@pytest.mark.parametrize(
    ("preempts", "tiers", "gpus", "first_days", "stopped"),
    [
        # The second job is better, and of a better tier if there are two.
        ("never", 1, (2, 3), 0.5, (0, 0)),
        ("never", 2, (2, 3), 0.5, (0, 0)),
        ("tier", 1, (2, 3), 0.5, (0, 0)),
        ("tier", 2, (2, 3), 0.5, (1, 1)),
        ("rank", 1, (2, 3), 0.5, (1, 1)),
        ("rank", 2, (2, 3), 0.5, (1, 1)),
        # It is better, and of the same tier.
        ("tier", 2, (3, 4), 0.5, (0, 0)),
        ("rank", 2, (3, 4), 0.5, (1, 1)),
        # It is worse, and after a week it is overdue on Slurm.
        ("never", 2, (3, 2), 10, (0, 0)),
        ("tier", 1, (3, 2), 10, (0, 0)),
        ("tier", 2, (3, 2), 10, (0, 1)),
        ("rank", 1, (3, 2), 10, (0, 1)),
    ],
)
def test_whom_a_waiting_job_displaces(
    preempts: Preempts,
    tiers: int,
    gpus: tuple[int, int],
    first_days: float,
    stopped: tuple[int, int],
) -> None:
    """On the papers' cluster and on the simulated Slurm, as `policies.base.Preempts` says."""
    policy = LargestFirst(preempts=preempts, tiers=tiers)
    ideal, slurm = (
        preemptions(policy, costs, gpus, first_days * DAY_S) for costs in ("none", "slurm")
    )

    assert (ideal, slurm) == stopped
