"""The daemon steers the jobs of a simulated Slurm: all end, and they start where they should."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import slurm_scenarios as scenes

from slurm_dl.engine.cycle import run_cycle
from slurm_dl.engine.settings import Placement, Preemption, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.plan import ForgetSteer
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.pending_job import PendingJob
from slurm_dl.placement.scheme import Answer, Placer, Spot, Wait
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.simulation.slurm.job_columns import NodeFailures
from slurm_dl.simulation.slurm.overheads import PRODUCTION
from slurm_dl.simulation.slurm.scenario import simulate_slurm


@dataclass(frozen=True)
class LastFit:
    """The last nodes it fits on, where Slurm takes the first."""

    name: ClassVar[str] = "last"
    source: ClassVar[str] = ""
    interpretation: ClassVar[str] = ""

    def begin(
        self, _snap: Snapshot, _stock: FreeNodes, _profiles: Mapping[str, Profile], /
    ) -> Placer:
        """See `Scheme`."""
        return self

    def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
        """See `Placer`."""
        for ask in want.need.asks:
            usable, _ = offer.usable(ask)
            where = offer.stock.conditions()
            rows = np.flatnonzero((where >= 0) & usable[where] & want.need.allowed)
            if len(rows) >= ask.n_nodes:
                return Spot(nodes=tuple(rows[-ask.n_nodes :].tolist()), why="they come last")
        return None


SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=scenes.EAGER,
    placement=Placement(scheme=LastFit(), steer=True, steer_for_s=120.0),
)
POLICY = DiscreteLas(thresholds_gpu_s=(400.0, 2000.0))


def jobs(seed: int) -> list[scenes.Job]:
    """Fifteen jobs on top of each other."""
    rng = np.random.default_rng(seed)
    at_s = np.sort(rng.integers(0, 500, 15)).tolist()
    return [(float(t), float(rng.integers(20, 300)), float(rng.choice([1, 2, 4, 8]))) for t in at_s]


def test_all_jobs_end_while_they_are_preempted_and_nodes_break() -> None:
    """And a run is still a function of what it is given."""
    what = scenes.scenario(
        jobs(1), "3x4", failures=NodeFailures(mtbf_s=2000.0, mttr_s=100.0), seed=1
    )

    first, again = (simulate_slurm(what, policy=POLICY, settings=SETTINGS) for _ in range(2))

    assert np.isfinite(first.records.end_s).all()
    np.testing.assert_array_equal(first.records.end_s, again.records.end_s)


def test_jobs_start_where_they_should() -> None:
    """What is left to a job is where it starts, as long as it may."""
    # At a real pace Slurm has not started everything before it is looked at.
    sim = scenes.scenario(jobs(3), "3x4", costs=PRODUCTION).cluster("gpu")
    ledger = Ledger(MemoryStore())
    outcomes = []
    for at_s in range(0, 6000, 10):
        sim.machine.advance_to(float(at_s))
        cycle = run_cycle(sim, ledger, POLICY, SETTINGS, clock=sim.clock, acting=True)
        outcomes += [d.action.outcome for d in cycle.done if isinstance(d.action, ForgetSteer)]

    assert sim.machine.left == 0
    assert sim.observe().excluded == {}
    assert outcomes.count("honoured") > 0
    assert "not honoured" not in outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class NotBefore:
    """Starts nobody before he has waited for *wait_s*."""

    name: ClassVar[str] = "not_before"
    source: ClassVar[str] = ""
    interpretation: ClassVar[str] = ""
    wait_s: float

    def begin(
        self, _snap: Snapshot, _stock: FreeNodes, _profiles: Mapping[str, Profile], /
    ) -> Placer:
        """See `Scheme`."""
        return self

    def place(self, want: PendingJob, _offer: CandidateNodes, /) -> Answer:
        """See `Placer`."""
        left_s = self.wait_s - want.waited_s
        return Wait(within=None, for_s=left_s, why="its time") if left_s > 0 else None


def test_begin_times_are_moved_on_though_nothing_happens() -> None:
    """No look is left out while one is needed for a job to stay where it is."""
    placement = Placement(scheme=NotBefore(wait_s=2000.0), steer=True, defer_s=90.0)
    settings = dataclasses.replace(
        SETTINGS, placement=placement, preemption=Preemption(enabled=False)
    )
    what = scenes.scenario([(0.0, 300.0, 4.0), (100.0, 50.0, 4.0)], "1x4", costs=PRODUCTION)

    outcome = simulate_slurm(what, policy=POLICY, settings=settings)

    assert outcome.records.start_s[0] < 60.0, "before anybody looked"
    assert 2100.0 <= outcome.records.start_s[1] < 2300.0
