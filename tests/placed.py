"""Workloads on nodes for tests: profiles by hand, and a cluster that remembers who lay where."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from small_traces import make_trace

from slurm_dl.engine.settings import Placement
from slurm_dl.model.jobs import F64
from slurm_dl.model.profile import Load, Profile
from slurm_dl.model.trace import Trace
from slurm_dl.placement.scheme import Scheme
from slurm_dl.policies.base import Policy
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.active_jobs import ActiveJobs
from slurm_dl.simulation.ideal.jobs_on_nodes import OnNodes
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.outcome import Outcome

SKEWED: Final = Profile(name="skewed", skew=0.75, load=Load(network_mb_s=100.0, pcie_mb_s=40.0))
EVEN: Final = Profile(name="even", skew=0.05, load=Load(network_mb_s=10.0))
MODELS: Final = ("skewed", "even", "nobody")
PROFILES: Final = {p.name: p for p in (SKEWED, EVEN)}


class Watched(OnNodes):
    """Remembers after each event who holds what, and checks that it could be.

    Attributes:
        seen: How many events it was asked after.
        shapes: Of each job the nodes of its runs, in order, by row of the trace.
    """

    def __init__(self, trace: Trace, shape: str, how: Placement, **more: Any) -> None:  # noqa: ANN401
        cluster = parse_shape(shape)
        super().__init__(trace, cluster, how, **more)
        self._watched_gpus = cluster.nodes().gpus
        self._wanted = trace.gpus
        self.seen = 0
        self.shapes: dict[int, list[tuple[int, ...]]] = {}

    def enter(self, jobs: ActiveJobs, rows: npt.NDArray[np.int64], /) -> None:
        """Remember where they were put."""
        super().enter(jobs, rows)
        for job in jobs.job_id[rows].tolist():
            self.shapes.setdefault(job, []).append(tuple(self._node[self._job == job].tolist()))

    def changed(self, jobs: ActiveJobs, /) -> tuple[npt.NDArray[np.int64], F64]:
        """Capacity of each node, gangs whole, running is holding, and no speed above 1."""
        self.seen += 1
        on = np.bincount(self._node, weights=self._gpus, minlength=len(self._watched_gpus))
        assert (on <= self._watched_gpus + 1e-9).all()
        assert (self._gpus > 0).all()
        pairs = set(zip(self._job.tolist(), self._node.tolist(), strict=True))
        assert len(pairs) == len(self._job)
        running = jobs.job_id[jobs.running]
        assert sorted(set(self._job.tolist())) == running.tolist()
        held = np.bincount(self._job, weights=self._gpus, minlength=len(self._wanted))
        np.testing.assert_allclose(held[running], self._wanted[running])
        rows, speed = super().changed(jobs)
        assert ((speed > 0) & (speed <= 1)).all()
        return rows, speed


def placed(
    trace: Trace,
    shape: str,
    policy: Policy,
    scheme: Scheme,
    *,
    profiles: dict[str, Profile] | None = None,
    rules: Sequence[Any] = (),
    whole: dict[str, Any] | None = None,
    **more: Any,  # noqa: ANN401
) -> tuple[Outcome, Watched]:
    """*trace* under *policy*, put on the nodes of *shape* by *scheme*.

    Args:
        whole: What else `simulate` is to know.
        more: What else `OnNodes` is to know.
    """
    how = Placement(
        scheme=scheme,
        rules=tuple(rules),
        profiles=PROFILES if profiles is None else profiles,
    )
    where = Watched(trace, shape, how, skips=policy.skips, **more)
    outcome = simulate(trace, parse_shape(shape), policy, whereabouts=where, **(whole or {}))
    return outcome, where


def with_models(trace: Trace, model: Sequence[int] | npt.NDArray[Any]) -> Trace:
    """*trace* with models of `MODELS`."""
    return dataclasses.replace(trace, model=np.array(model, dtype=np.int32), models=MODELS)


def fragmenting(seed: int, *, jobs: int = 110, gpus: int = 32, load: float = 0.8) -> Trace:
    """Jobs of 3, 4 and 6 GPUs, which leave holes on nodes of 4; a third of them are skewed."""
    draw = np.random.default_rng(seed)
    wanted = draw.choice([3.0, 4.0, 6.0], p=[0.5, 0.3, 0.2], size=jobs)
    duration_s = np.round(np.exp(draw.normal(7.0, 0.8, size=jobs)).clip(60, 60_000))
    between_s = (duration_s * wanted).mean() / (load * gpus)
    submit_s = np.round(np.cumsum(draw.exponential(between_s, size=jobs)))
    trace = make_trace(submit_s, duration_s, wanted)
    return with_models(trace, draw.choice([0, 1], p=[0.35, 0.65], size=jobs))
