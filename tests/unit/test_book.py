"""A policy finds its entries again: after a restart, a kill, and in every simulator."""

from __future__ import annotations

import dataclasses
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import slurm_scenarios as scenes
from build import observed, pending, snapshot
from fake_cluster import FakeCluster
from patient_policy import Patient
from replay_cluster import ReplayCluster
from small_traces import make_trace, outcome_of

from slurm_dl.engine.cycle import Cycle, run_cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.ledger.lease_credits import OWED
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import MemoryStore, StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.booking import changes, entry, of_kind, updated
from slurm_dl.model.contract import Contract
from slurm_dl.model.jobs import F64, JobState
from slurm_dl.model.plan import Book
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.gandiva_fair import GandivaFair
from slurm_dl.recording.anonymise import Anonymous
from slurm_dl.recording.replay_report import plan_bytes
from slurm_dl.recording.snapshot_file import from_bytes, to_bytes
from slurm_dl.simulation.forward.continued_cluster import ContinuedCluster, ForwardTiming
from slurm_dl.simulation.slurm.overheads import PRODUCTION
from slurm_dl.simulation.slurm.scenario import simulate_slurm

SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        beneficiaries="all",
        commitment="ignored",
        min_quantum_s=5,
        cooldown_s=5,
        start_margin_s=12,
        limit_reserve_s=0,
    ),
)
WAIT_S = 40.0


def test_the_text_of_an_entry_is_canonical_and_an_empty_one_strikes_out() -> None:
    """Only what differs is written; of two entries with one key the last counts."""
    one, same = entry("k", 1, {"b": 1, "a": [2.5]}), entry("k", "1", {"a": [2.5], "b": 1})
    other, out = entry("k", 1, {"a": 3}), entry("k", 1, None)
    assert one == same
    assert changes([one], [same]) == ()
    assert changes([one], [other, same]) == ()
    assert changes([one], [other]) == (other,)
    assert changes([], [out]) == ()
    assert updated([one], changes([one], [out])) == ()
    assert updated([one], [entry("a", 2, {}), other]) == (entry("a", 2, {}), other)
    assert of_kind([one, out, entry("j", 1, {})], "k") == {"1": {"a": [2.5], "b": 1}}


class KilledError(Exception):
    """The daemon is gone."""


class Killed(SqliteStore):
    """A store in which the daemon dies at the save *at*, before or after it is on the disk."""

    at, after, saves = math.inf, False, 0

    def save(self, change: StoreChange, /) -> None:
        """Write *change*, or die."""
        self.saves += 1
        if self.saves == self.at and not self.after:
            raise KilledError
        super().save(change)
        if self.saves == self.at:
            raise KilledError


def _cycle(cluster: FakeCluster, ledger: Ledger, policy: Policy) -> Cycle:
    return run_cycle(cluster, ledger, policy, SETTINGS, clock=cluster.clock, acting=True)


def _busy() -> FakeCluster:
    cluster = FakeCluster(nodes=2, gpus=4)
    for gpus in (2, 4, 1, 4, 8):
        cluster.submit(gpus, n_nodes=max(1, gpus // 4), work_s=30, contract=Contract(grace_s=12.0))
    return cluster


@pytest.mark.parametrize("after", [False, True], ids=["before the save", "after the save"])
def test_a_daemon_killed_at_any_save_finds_all_of_a_decision_or_nothing(
    after: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    """Both entries of `Patient` agree whenever it dies, and no job waits for ever."""
    deaths, finished = 0, False
    while not finished:
        deaths += 1
        cluster, finished = _busy(), True
        path = tmp_path / f"{deaths}.sqlite"
        store = Killed(path)
        store.at, store.after = deaths, after
        ledger = Ledger(store)
        for _ in range(40):
            try:
                _cycle(cluster, ledger, Patient(wait_s=WAIT_S))
            except KilledError:
                store.close()
                finished = False
                store = Killed(path)
                booked = store.load().booked
                seen, count = of_kind(booked, "seen"), of_kind(booked, "count")
                assert len(seen) == count.get("", {"n": 0})["n"]
                ledger = Ledger(store)
            cluster.advance(5)
        store.close()
        assert all(job.state is JobState.COMPLETED for job in cluster.jobs.values())
    assert deaths > 10


def test_a_new_ledger_on_the_file_has_the_same_book(tmp_path: Path) -> None:
    """At each cycle; an idle cycle books nothing."""
    cluster, path = _busy(), tmp_path / "ledger.sqlite"
    with closing(SqliteStore(path)) as store:
        ledger, booked = Ledger(store), 0
        for _ in range(40):
            cycle = _cycle(cluster, ledger, Patient(wait_s=WAIT_S))
            booked += sum(isinstance(a, Book) for a in cycle.plan.actions)
            seen = cycle.snapshot.seen
            with closing(SqliteStore(path)) as again:
                mine, other = (
                    at.snapshot(seen, SETTINGS.partitions).booked for at in (ledger, Ledger(again))
                )
            assert mine == other
            cluster.advance(5)
    assert 2 <= booked <= 6  # The first look, and each at which a job has left.


def test_a_recording_of_it_plans_the_same_again() -> None:
    """Each snapshot through text, and the loop from an empty ledger on what was seen."""
    cluster, policy, ledger = _busy(), Patient(wait_s=WAIT_S), Ledger(MemoryStore())
    lived = []
    for _ in range(30):
        lived.append(_cycle(cluster, ledger, policy))
        cluster.advance(5)
    again, new = ReplayCluster(c.snapshot.seen for c in lived), Ledger(MemoryStore())
    for cycle in lived:
        kept = from_bytes(to_bytes(cycle.snapshot, Snapshot), Snapshot)
        assert kept.booked == cycle.snapshot.booked
        assert Anonymous()(kept).booked == (), "it may name anybody"
        plans = (
            decide(kept, policy, SETTINGS),
            run_cycle(again, new, policy, SETTINGS, clock=again.clock, acting=True).plan,
        )
        assert [plan_bytes(p) for p in plans] == [plan_bytes(cycle.plan)] * 2
    assert len({c.snapshot.booked for c in lived}) > 2


def test_credits_of_shares_are_there_after_a_kill(tmp_path: Path) -> None:
    """Equal to the second, at each look but for jobs that came since the lease began."""
    cluster, path, lease_s = FakeCluster(nodes=2, gpus=4), tmp_path / "ledger.sqlite", 60.0
    for _ in range(5):
        cluster.submit(4, work_s=2000, contract=Contract(grace_s=12.0))
    policy, saves, most = GandivaFair(lease_s=lease_s), 0, 0.0

    class Counting(SqliteStore):
        def save(self, change: StoreChange, /) -> None:
            nonlocal saves
            saves += any(e.kind == OWED for e in change.booked)
            super().save(change)

    with closing(Counting(path)) as store:
        ledger = Ledger(store)
        for _ in range(60):
            _cycle(cluster, ledger, policy)
            cluster.advance(10)
            seen = cluster.observe()
            before = ledger.snapshot(seen, SETTINGS.partitions).credit_s
            with closing(SqliteStore(path)) as again:
                after = Ledger(again).snapshot(seen, SETTINGS.partitions).credit_s
            assert before is not None
            assert after is not None
            np.testing.assert_allclose(after, before, atol=1.0)
            most = max(most, float(np.abs(before).max()))
    assert most > 10
    assert 9 <= saves <= 12  # 600 seconds have ten leases.


def test_in_the_ideal_simulator_a_policy_remembers() -> None:
    """Four jobs that could start at once start after their wait."""
    trace = make_trace([0, 0, 10, 10], [30, 30, 30, 30])

    records = outcome_of(trace, "1x4", Patient(wait_s=WAIT_S)).records

    np.testing.assert_allclose(records.start_s - trace.submit_s, WAIT_S)


def test_on_the_simulated_slurm_a_policy_remembers_and_its_jobs_are_put_off() -> None:
    """They start with the first look after their wait, not when the first job ends."""
    jobs = [(0.0, 150.0, 4.0), (1.0, 30.0, 1.0), (1.0, 30.0, 1.0), (15.0, 30.0, 1.0)]
    what = scenes.scenario(jobs, "1x4", costs=PRODUCTION)

    def waited_s(*, hold: bool) -> F64:
        settings = dataclasses.replace(SETTINGS, hold=hold)
        records = simulate_slurm(what, policy=Patient(wait_s=300.0), settings=settings).records
        return (records.start_s - records.submit_s)[1:]

    late_s = 3 * PRODUCTION.poll_s + PRODUCTION.bf_interval_s
    assert (waited_s(hold=True) > 290.0).all()
    assert (waited_s(hold=True) <= 300.0 + late_s).all()
    assert (waited_s(hold=False) < 290.0).all(), "the test proves nothing"


def test_forward_runs_go_on_with_the_book() -> None:
    """And one that is begun in the middle goes on with what was booked by then."""
    begun = snapshot(observed([pending(1), pending(2, 4)], nodes=(4, 4)))
    pace = ForwardTiming(poll_s=5.0)

    def world(of: ContinuedCluster | None) -> ContinuedCluster:
        at = begun if of is None else of.snapshot()
        left_s = np.full(len(at.jobs), 100.0)
        policy = Patient(wait_s=WAIT_S)
        return ContinuedCluster(at, left_s, policy=policy, settings=SETTINGS, pace=pace)

    first = world(None)
    first.run(begun.now_s + WAIT_S / 2, np.arange(2))
    assert np.isinf(first.started_s).all()
    for one in (world(first), world(None)):
        one.run(math.inf, np.arange(2))
        waited_s = one.started_s - begun.now_s
        assert (waited_s >= WAIT_S).all()
        assert (waited_s <= WAIT_S + 2 * pace.poll_s).all()
