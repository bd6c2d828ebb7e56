"""The engine is one: what the simulator does is what the daemon's decision says.

At every decision of an ideal simulation the snapshot is written down as the daemon would write
it, read back, and given to the daemon's own `decide`, with every job opted in and no limits: the
jobs it wants to hold GPUs must be those that the simulator let run.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from trace_parts import first_jobs

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import NEVER_OVERDUE, Preemption, Settings
from slurm_dl.experiments import simulation_run
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import RUNNING
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies import registry
from slurm_dl.recording import snapshot_file
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal import presets
from slurm_dl.simulation.ideal.simulator import IdealCluster
from slurm_dl.simulation.ideal.start_costs import NoCosts
from slurm_dl.traces.format_registry import read_trace

ITP10 = Path(__file__).parents[2] / "traces/tiresias-derived/itp10.csv"
FREE = Settings(
    lease_window=0.0,
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        min_quantum_s=0.0,
        cooldown_s=0.0,
        max_preemptions=10**9,
        limit_reserve_s=0.0,
        checkpoint_cost_s=0.0,
    ),
    # Waiting has no bound in the ideal cluster.
    overdue=NEVER_OVERDUE,
)


class Watched(IdealCluster):
    """An ideal cluster that remembers what it looked like, and what ran afterwards."""

    taken: list[tuple[str, frozenset[int]]]

    def _decide(self) -> None:
        if not self._jobs.alive:
            super()._decide()
            return
        self._account()
        before = json.dumps(snapshot_file.encode(self._jobs.snapshot(self._now_s)))
        super()._decide()
        ran = frozenset(self._jobs.job_id[self._jobs.running].tolist())
        self.taken.append((before, ran))


def opted_in(snap: Snapshot) -> Snapshot:
    claims = {JobId(j): Claim(contract=Contract()) for j in snap.jobs.job_id.tolist()}
    return dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, claims=claims))


@pytest.mark.parametrize("name", sorted(registry.POLICIES))
def test_the_daemon_wants_what_the_simulator_does(name: str) -> None:
    """For every policy, at every decision."""
    # Those with leases solve a program at each decision.
    leased = "lease_s" in {f.name for f in dataclasses.fields(registry.POLICIES[name])}
    trace = first_jobs(read_trace(ITP10), 60 if leased else 80)
    chosen = simulation_run.choose(simulation_run.PolicySpec(policy=name, preset="none"), trace)
    simulation = Watched(
        trace=trace,
        shape=parse_shape("2x8"),
        policy=chosen.made,
        costs=NoCosts(),
        clockwork=presets.find("tiresias-corrected").clockwork,
        seed=0,
    )
    simulation.taken = []
    simulation.run()

    changes = 0
    for before, ran in simulation.taken:
        snap = opted_in(snapshot_file.decode(json.loads(before)))
        plan = decide(snap, chosen.made, FREE)
        assert plan.target == ran
        was = snap.jobs.job_id[snap.jobs.state == RUNNING].tolist()
        changes += bool(set(was) - plan.target)
    assert len(simulation.taken) > 80
    if chosen.made.preempts != "never" and simulation.outcome().records.preemptions.any():
        assert changes > 0, "nothing was ever preempted: the test proves nothing"
