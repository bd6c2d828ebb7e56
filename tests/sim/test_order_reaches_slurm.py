"""The daemon on a simulated Slurm: turns are taken, jobs start and displace as they should."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import slurm_scenarios as scenes
from small_traces import make_trace

from slurm_dl.engine.cycle import run_cycle
from slurm_dl.engine.settings import Placement, Preemption, Settings
from slurm_dl.experiments import cluster_presets, simulation_run
from slurm_dl.experiments.simulation_run import Chosen, PolicySpec
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.jobs import Bool
from slurm_dl.model.plan import ForgetSteer
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Ending, Trace
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import PendingJob
from slurm_dl.placement.scheme import Answer, Placer, Spot, Wait
from slurm_dl.policies.base import About, Order, Preempts
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.slurm.job_columns import NodeFailures
from slurm_dl.simulation.slurm.overheads import PRODUCTION
from slurm_dl.simulation.slurm.scenario import simulate_slurm

ALICES, BOBS = 40, 8
"""Jobs of two hours on one of four GPUs, one every 14 s: bob begins 560 s after alice."""


def alice_and_bob() -> Trace:
    """Many jobs of one user and account, and later some of another."""
    n = ALICES + BOBS
    whose = np.repeat([0, 1], [ALICES, BOBS]).astype(np.int32)
    return Trace(
        name="alice_and_bob",
        format="generated",
        job_id=tuple(f"j{i}" for i in range(n)),
        submit_s=14.0 * np.arange(n),
        duration_s=np.full(n, 7200.0),
        gpus=np.ones(n),
        user=whose,
        model=np.full(n, -1, dtype=np.int32),
        ending=np.full(n, Ending.COMPLETED, dtype=np.int8),
        account=whose,
        users=("alice", "bob"),
        accounts=("alice", "bob"),
    )


def simulated(policy: str) -> Records:
    """What becomes of them with ``dlsim run --cluster 1x4 --costs slurm --seed 0``."""
    trace = alice_and_bob()
    chosen = simulation_run.choose(PolicySpec(policy=policy), trace, on_slurm=True)
    cluster = cluster_presets.find("slurm", chosen.preset, trace)
    result = simulation_run.run(chosen, trace, cluster, parse_shape("1x4"), seed=0)
    return result.outcome.records


@pytest.mark.parametrize(
    ("policy", "least_s", "most_s"),
    [
        # Bob waits for all of alice's jobs.
        ("fifo", 0.99 * 82_634, 1.01 * 82_634),
        # He has half of the GPUs, in turns. On the ideal cluster it is 25,196 s.
        pytest.param("gandiva_fair", 18_000, 30_000, marks=pytest.mark.full("takes a minute")),
        pytest.param("hug", 18_000, 30_000, marks=pytest.mark.full("takes a minute")),
    ],
)
def test_who_came_later_has_his_share(policy: str, least_s: float, most_s: float) -> None:
    """Mean time from submission to end of bob's jobs."""
    records = simulated(policy)

    assert records.success.all()
    assert least_s <= records.jct_s[ALICES:].mean() <= most_s


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
