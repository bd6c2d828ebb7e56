"""Jobs whose priority an operator sets: left alone while they wait, and given back."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_dl.engine.cycle import Carry, Cycle, run_cycle
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import OpenHandover, Requeue, SetSiteFactor
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.testing.in_memory.fake_cluster import FakeCluster

POLICY = DiscreteLas(thresholds_gpu_s=(20.0, 400.0))
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(beneficiaries="all", min_quantum_s=8, limit_reserve_s=0),
)
VICTIM, WAITS = JobId(1), JobId(2)
DEMOTED_S = 30
"""The victim gives way by then."""
SELDOM = 12


@dataclass
class Life:
    """One daemon's cycles, a second apart, on one GPU; one job runs and one waits."""

    cluster: FakeCluster
    ledger: Ledger
    carry: Carry = field(default_factory=Carry)
    silent: bool = False
    asked: int = 0
    cycles: list[Cycle] = field(default_factory=list)

    def pass_time(self, cycles: int, *, acting: bool = True) -> None:
        """So many cycles."""
        for _ in range(cycles):
            self.cluster.advance(1)
            cycle = run_cycle(
                self.cluster,
                self.ledger,
                POLICY,
                SETTINGS,
                clock=self.cluster.clock,
                acting=acting,
                carry=self.carry,
                ask_by_hand=self.ask,
            )
            self.cycles.append(cycle)

    def ask(self, jobs: Collection[JobId]) -> dict[JobId, bool]:
        """Slurm's answer."""
        self.asked += 1
        if self.silent:
            msg = "sprio: timed out"
            raise ClusterError(msg)
        return self.cluster.set_by_hand(jobs)

    def done(self, kind: type, job: JobId | None = None) -> int:
        """How many actions of a *kind* were done, for *job* if named."""
        done = [d.action for c in self.cycles for d in c.done if isinstance(d.action, kind)]
        return len([a for a in done if job is None or getattr(a, "job_id", None) == job])


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """Both have opted in; job 1 runs and job 2 waits for its GPU."""
    cluster = FakeCluster(nodes=1, gpus=1)
    for _ in (VICTIM, WAITS):
        cluster.submit(1, work_s=1000, contract=Contract(grace_s=5))
        cluster.advance(1)
    ledger = Ledger(SqliteStore(tmp_path / "ledger"))
    yield Life(cluster, ledger)
    ledger.close()


@pytest.mark.parametrize("priority", [1, 5, 300 * SETTINGS.band_width])
@pytest.mark.parametrize("had_place", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_it_is_left_alone_until_it_is_released(
    life: Life, *, priority: int, had_place: bool, restarted: bool
) -> None:
    """Whatever the value, also one that it had before; whether or not it had its place."""
    life.pass_time(5 if had_place else 0)
    life.cluster.jobs[WAITS].by_hand = priority
    life.pass_time(5)
    life.carry = Carry() if restarted else life.carry
    life.pass_time(60)

    plan = life.cycles[-1].plan
    assert (life.done(OpenHandover), life.done(SetSiteFactor, WAITS)) == (0, had_place)
    assert f"set by hand (Priority={priority})" in plan.notes[WAITS]
    assert not plan.unhonoured
    assert life.asked < SELDOM

    life.cluster.jobs[WAITS].by_hand = None
    # A release that leaves the priority as it is is noticed late.
    life.pass_time(100 if priority == 1 else 40)
    assert life.cluster.jobs[WAITS].state is JobState.RUNNING
    assert life.done(OpenHandover) >= 1


def test_a_running_one_is_a_victim_by_its_contract_and_not_written(life: Life) -> None:
    """Nobody writes a place for it, which Slurm would not look at."""
    life.cluster.jobs[WAITS].by_hand = 5
    life.pass_time(2)
    life.cluster.cancel(VICTIM)
    life.cluster.advance(1)
    after = life.cluster.submit(1, work_s=1000)
    life.pass_time(50)

    assert life.cluster.jobs[after].state is JobState.RUNNING
    assert (life.done(Requeue), life.done(SetSiteFactor, WAITS)) == (1, 0)


def test_a_silent_slurm_changes_nothing_of_what_is_known(life: Life) -> None:
    """And where nothing is known the job is in the order."""
    life.cluster.jobs[WAITS].by_hand = 5
    life.pass_time(3)
    life.silent = True
    life.pass_time(DEMOTED_S)
    assert life.done(OpenHandover) == 0
    life.carry = Carry()
    life.pass_time(DEMOTED_S)

    assert life.done(SetSiteFactor, WAITS) > 0


def test_shadow_mode_asks_rarely(life: Life) -> None:
    """It never writes, so that nothing it would write counts."""
    life.cluster.jobs[WAITS].site_factor = 300 * SETTINGS.band_width
    life.pass_time(60, acting=False)

    assert life.asked < SELDOM
