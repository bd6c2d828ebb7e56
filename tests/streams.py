"""Streams of cycles to compare engines on: each made by the daemon's own loop on some cluster.

`STREAMS` names them. Whoever drives `run_cycle` on another kind of cluster adds a function that
returns a `Stream`, and every test of "the engine is one" runs on it too.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from fake_cluster import FakeCluster
from fake_slurm import OnSignal

from slurm_dl.engine.cycle import Cycle, run_cycle
from slurm_dl.engine.settings import Placement, Preemption, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.profile import Profile
from slurm_dl.model.trace import Trace
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.recording.cycles_file import Setup
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.slurm.job_columns import JobBehaviour
from slurm_dl.simulation.slurm.overheads import IDEAL
from slurm_dl.simulation.slurm.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Stream:
    """Cycles of one daemon from its first look on, every one of them acting, none refused."""

    cycles: tuple[Cycle, ...]
    policy: Policy
    settings: Settings

    @property
    def setup(self) -> Setup:
        """What its plans depend on besides the snapshots."""
        return Setup.of(self.policy, self.settings)


SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        beneficiaries="all",
        commitment="ignored",
        min_quantum_s=8,
        cooldown_s=15,
        max_preemptions=4,
        max_grace_s=60,
        handover_timeout_s=80,
        start_margin_s=12,
        limit_reserve_s=0,
    ),
)
SEED = 3
POLICY = DiscreteLas(thresholds_gpu_s=(60.0, 400.0), promote_knob=2.0)


STEERED = dataclasses.replace(
    SETTINGS,
    placement=Placement(
        scheme=BestFit(),
        steer=True,
        steer_for_s=24.0,
        defer_s=9.0,
        profiles={
            name: Profile(name="small", aliases=("other",), batch=(1, 64), tensors_mb=(1.5, 0.1))
            for name in ("small", "other")
        },
    ),
)
"""Jobs are told where to go, and a model is known by two names."""


def fake_cluster(cycles: int = 90, settings: Settings = SETTINGS, seed: int = 1) -> Stream:
    """Three nodes of four GPUs, a job every twelve seconds for three minutes, then quiet."""
    draw = random.Random(seed)  # noqa: S311 - not a secret
    cluster = FakeCluster(nodes=3, gpus=4)
    ledger = Ledger(MemoryStore())
    made = []
    for number in range(cycles):
        if number % 4 == 0 and number < 60:
            _submit(cluster, draw)
        made.append(run_cycle(cluster, ledger, POLICY, settings, clock=cluster.clock, acting=True))
        assert not any(done.error for done in made[-1].done)
        cluster.advance(3)
    return Stream(tuple(made), POLICY, settings)


def steered_cluster() -> Stream:
    """Other jobs of the same kind, told where to go."""
    return fake_cluster(settings=STEERED, seed=4)


def _submit(cluster: FakeCluster, draw: random.Random) -> None:
    n_nodes = draw.choice([1, 1, 2, 3])
    habits: list[OnSignal] = ["save", "save", "ignore", "finish"]
    cluster.submit(
        n_nodes * draw.choice([1, 2, 4]),
        n_nodes=n_nodes,
        work_s=draw.choice([6, 30, 90, 150]),
        contract=Contract(grace_s=12.0) if draw.random() < 0.8 else None,
        on_signal=draw.choice(habits),
    )


def simulated_slurm(cycles: int = 100) -> Stream:
    """The same kind of workload on the simulated Slurm, looked at every three seconds."""
    draw = np.random.default_rng(SEED)
    n = 24
    trace = Trace(
        name="stream",
        format="generated",
        job_id=tuple(str(i) for i in range(n)),
        submit_s=np.arange(n) * 9.0,
        duration_s=draw.choice([6.0, 30.0, 90.0, 150.0], n),
        gpus=draw.choice([1.0, 2.0, 4.0, 8.0, 12.0], n),
        user=np.zeros(n, dtype=np.int32),
        model=np.full(n, -1, dtype=np.int32),
        ending=np.zeros(n, dtype=np.int8),
    )
    costs = dataclasses.replace(
        IDEAL, save_s=2.0, restore_s=1.0, cred_expire_s=5.0, kill_wait_s=4.0, bf_interval_s=3.0
    )
    habits = JobBehaviour(
        opted_in_frac=0.8, ignore_frac=0.25, finish_frac=0.25, grace_s=12.0, limit_factor=100.0
    )
    scenario = Scenario(
        trace=trace, shape=parse_shape("3x4"), costs=costs, habits=habits, seed=SEED
    )
    cluster = scenario.cluster("gpu")
    ledger = Ledger(MemoryStore())
    made = []
    for number in range(cycles):
        cluster.machine.advance_to(3.0 * number)
        made.append(run_cycle(cluster, ledger, POLICY, SETTINGS, clock=cluster.clock, acting=True))
        assert not any(done.error for done in made[-1].done)
    return Stream(tuple(made), POLICY, SETTINGS)


STREAMS: Mapping[str, Callable[[], Stream]] = {
    "fake cluster": fake_cluster,
    "fake cluster, steered": steered_cluster,
    "simulated Slurm": simulated_slurm,
}
