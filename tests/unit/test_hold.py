"""A job that the policy bars is put off on Slurm, for as long as somebody looks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot
from fake_cluster import FakeCluster
from patient_policy import Patient

from slurm_dl.engine.cycle import Cycle, run_cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Overdue, Placement, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.plan import ClearSteer, SetSiteFactor, SetSteer
from slurm_dl.model.snapshot import JobText, Observed, Snapshot
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.policies import registry
from slurm_dl.policies.base import Policy

POLL_S = 10
SETTINGS = Settings(
    partitions=frozenset({"gpu"}), placement=Placement(defer_s=4 * POLL_S), overdue=Overdue()
)


@dataclass
class Daemon:
    """A daemon on a cluster with four free GPUs that looks every ten seconds."""

    policy: Policy
    settings: Settings = SETTINGS
    cluster: FakeCluster = field(default_factory=lambda: FakeCluster(nodes=1, gpus=4))
    ledger: Ledger = field(default_factory=lambda: Ledger(MemoryStore()))

    def look(self) -> Cycle:
        """One cycle, and ten seconds."""
        cycle = run_cycle(
            self.cluster,
            self.ledger,
            self.policy,
            self.settings,
            clock=self.cluster.clock,
            acting=True,
        )
        self.cluster.advance(POLL_S)
        return cycle

    def writes(self) -> int:
        """Begin times that were written."""
        return sum(isinstance(a, SetSteer | ClearSteer) for _, a in enumerate(self.cluster.applied))

    def submit(self, gpus: int = 1) -> JobId:
        """A job that dlsubmit put off for long enough to be seen."""
        job_id = self.cluster.submit(gpus, work_s=30)
        self.cluster.jobs[job_id].eligible_s = self.cluster.now_s + 2 * POLL_S
        return job_id

    def waited_s(self, job_id: JobId, from_s: float, most: int = 100) -> float:
        """Time until a job starts while the daemon looks."""
        for _ in range(most):
            if self.cluster.jobs[job_id].state is not JobState.PENDING:
                return self.cluster.now_s - from_s
            self.look()
        return math.inf


SETTLES = dataclasses.replace(
    SETTINGS, placement=dataclasses.replace(SETTINGS.placement, settle_s=2 * POLL_S)
)


@pytest.mark.parametrize(("wait_s", "most"), [(200.0, 6), (480.0, 7)])
def test_a_barred_job_waits_beside_free_gpus_and_few_writes_hold_it(
    wait_s: float, most: int
) -> None:
    """It starts with the look at which the policy lets it."""
    daemon = Daemon(Patient(wait_s=wait_s), SETTLES)
    from_s, job_id = daemon.cluster.now_s, daemon.submit()

    waited_s = daemon.waited_s(job_id, from_s)

    assert wait_s <= waited_s <= wait_s + 2 * POLL_S
    assert 3 <= daemon.writes() <= most + 1  # And the one that lets it go.


@pytest.mark.parametrize("refused", range(1, 6))
def test_one_refused_write_does_not_start_it(refused: int) -> None:
    """The next look writes it again before the begin time has come."""
    daemon = Daemon(Patient(wait_s=400.0), SETTLES)
    from_s, job_id = daemon.cluster.now_s, daemon.submit()
    daemon.look()
    while daemon.writes() < refused:
        daemon.look()
    daemon.cluster.fail.append(SetSteer)

    assert daemon.waited_s(job_id, from_s) >= 400.0
    assert not daemon.cluster.fail, "nothing was refused"


@pytest.mark.parametrize("data_ready", [True, False])
def test_it_starts_by_itself_if_the_daemon_is_gone(*, data_ready: bool) -> None:
    """No later than its begin time, however long the policy or its data would bar it."""
    policy = Patient(wait_s=1e9) if data_ready else registry.find("fifo")()
    daemon = Daemon(policy, SETTLES)
    job_id = daemon.submit()
    daemon.cluster.jobs[job_id].data_ready = data_ready
    for _ in range(6):
        daemon.look()
    assert daemon.cluster.jobs[job_id].state is JobState.PENDING
    daemon.cluster.advance(40)
    assert daemon.cluster.jobs[job_id].state is not JobState.PENDING


def test_a_begin_time_that_is_earlier_than_was_written_is_written_again() -> None:
    """Slurm refused the first write; later the owner lets the job start in a moment."""
    daemon = Daemon(Patient(wait_s=1e9), SETTLES)
    daemon.cluster.fail = [SetSteer]
    job = daemon.cluster.jobs[daemon.submit()]
    for _ in range(30):
        daemon.look()
    assert job.state is JobState.PENDING
    job.eligible_s = daemon.cluster.now_s + POLL_S + 5
    for _ in range(30):
        daemon.look()
    assert job.state is JobState.PENDING


class LastTask(FakeCluster):
    """A cluster whose jobs are each the last pending task of an array."""

    def observe(self) -> Observed:
        """See `FakeCluster`."""
        seen = super().observe()
        texts = {j: JobText(label=f"{j}_7") for j in seen.texts}
        return dataclasses.replace(seen, texts=texts)


@pytest.mark.parametrize("kind", [FakeCluster, LastTask])
def test_a_job_that_was_let_go_is_put_off_again(kind: type[FakeCluster]) -> None:
    """No GPU is free meanwhile; then it waits as at first."""
    daemon = Daemon(Patient(wait_s=1e9), cluster=kind(nodes=1, gpus=4))
    daemon.cluster.submit(4, work_s=1e9)
    daemon.cluster.advance(POLL_S)
    job = daemon.cluster.jobs[daemon.submit()]
    for wait_s in (1e9, 0.0, 1e9):
        daemon.policy = Patient(wait_s=wait_s)
        for _ in range(5):
            daemon.look()
        assert (job.eligible_s > daemon.cluster.now_s) == (wait_s > 0)


def test_an_idle_look_without_barred_jobs_writes_nothing() -> None:
    """Nor does one at which ``ranking.hold`` is off."""
    daemon = Daemon(Patient(wait_s=0.0))
    daemon.submit()
    for _ in range(10):
        daemon.look()
    assert daemon.writes() == 0
    off = Daemon(Patient(wait_s=1e9), dataclasses.replace(SETTLES, hold=False))
    job_id = off.submit()
    off.cluster.jobs[job_id].data_ready = False
    assert off.waited_s(job_id, off.cluster.now_s) <= 30.0
    assert off.writes() == 0


def test_hundreds_of_barred_jobs_need_few_writes() -> None:
    """Less than one in two seconds, from the second look on."""
    daemon = Daemon(Patient(wait_s=1e9))
    daemon.cluster.submit(4, work_s=1e9)
    daemon.cluster.advance(POLL_S)
    for _ in range(150):
        daemon.cluster.submit(1, work_s=30)
    first = daemon.look().plan.actions[1:21]
    assert {SetSteer, SetSiteFactor} == {type(a) for a in first}, "neither waits for the other"
    before = daemon.writes()
    assert before >= 150
    for _ in range(120):
        assert len(daemon.look().plan.held) == 150
    assert daemon.writes() - before <= 0.5 * 1200


def barred(policy: Policy, snap: Snapshot, settings: Settings = SETTINGS) -> dict[int, str]:
    """The jobs that are put off, each with its note."""
    plan = decide(snap, policy, settings)
    held = {
        a.job_id: a.steer.why
        for a in plan.actions
        if isinstance(a, SetSteer) and a.steer.not_before_s > snap.now_s
    }
    assert held.keys() == plan.held
    assert all(plan.notes[j] == why for j, why in held.items())
    return {int(j): why for j, why in held.items()}


LATE = {"waiting_since_s": {2: NOW_S - 1e6}}


@pytest.mark.parametrize(
    ("change", "memory", "held"),
    [
        ({}, {}, [1, 2]),
        ({"tasks": 3}, {}, [1]),
        ({"held": Held.BEGIN_TIME}, {}, [1]),
        ({"held": Held.DEPENDENCY}, {}, [1]),
        ({"partition": 1}, {}, [1]),
        ({"gpus": 0}, {}, [1]),
        ({}, LATE, [1, 2]),
    ],
    ids=["all", "array", "owner's begin", "dependency", "not ours", "no GPUs", "overdue"],
)
def test_who_is_put_off(
    change: dict[str, int], memory: dict[str, dict[int, float]], held: list[int]
) -> None:
    """Jobs of ours that wait for room and nothing else, however long they have waited."""
    rows = [pending(1), pending(2, **{"gpus": 1, **change})]
    snap = snapshot(observed(rows), memory=memory)
    settings = dataclasses.replace(SETTINGS, overdue=Overdue(after_s=1000.0))
    assert sorted(barred(Patient(), snap, settings)) == held


def test_a_scheme_does_not_place_them_and_without_steering_only_they_are_written() -> None:
    """With steering the others go to their nodes as before."""
    seen = observed([pending(1, 2), pending(2, 1)], nodes=(4, 2))
    snap = snapshot(seen)
    half = Half()
    for steer, steered in ((False, {1}), (True, {1, 2})):
        placement = Placement(scheme=BestFit(), steer=steer)
        plan = decide(snap, half, dataclasses.replace(SETTINGS, placement=placement))
        actions = [a for a in plan.actions if isinstance(a, SetSteer)]
        assert {int(a.job_id) for a in actions} == steered
        assert [a.job_id for a in actions if a.steer.not_before_s] == [1]


class Half(Patient):
    """Bars job 1 alone."""

    __slots__ = ()

    def order(self, snap: Snapshot, /):  # noqa: ANN201
        """See `Policy`."""
        order = Patient.order(self, snap)
        return dataclasses.replace(order, barred=snap.jobs.job_id == 1)


def _allox() -> Snapshot:
    """A job that is ten times as fast on the v100, which is free in 20 minutes."""
    seen = observed([running(1), pending(2)], nodes=(1, 1), held={1: {1: 1}})
    kinds = np.array([0, 1], dtype=np.int16)
    seen = dataclasses.replace(
        seen,
        nodes=dataclasses.replace(seen.nodes, gpu_type=kinds),
        gpu_types=("k80", "v100"),
        texts={JobId(j): JobText(label=str(j), account="a") for j in (1, 2)},
    )
    rates = np.array([[0.1, 1.0], [0.1, 1.0]])
    return dataclasses.replace(snapshot(seen, rates=rates), left_s=np.array([1200.0, 3600.0]))


def _backfill() -> Snapshot:
    """The first job wants four GPUs in 1000 s; the next would hold one of them for longer."""
    rows = [running(1, 3), pending(2, 4), pending(3, 1), pending(4, 1)]
    seen = observed(rows, nodes=(4,), held={1: {0: 3}})
    snap = snapshot(dataclasses.replace(seen, gpu_types=("a100",)))
    return dataclasses.replace(snap, left_s=np.array([1000.0, 50.0, 2000.0, 900.0]))


@pytest.mark.parametrize(
    ("name", "situation", "held", "says"),
    [
        ("allox", _allox, [2], ("allox", "v100", "20")),
        ("easy_backfill", _backfill, [3], ("easy_backfill", "first job")),
        ("conservative_backfill", _backfill, [3], ("conservative_backfill", "17")),
        ("fifo", _backfill, [], ()),
        ("discrete_las", _backfill, [], ()),
    ],
)
def test_policies_put_off_whom_they_bar_and_say_for_what(
    name: str, situation: Callable[[], Snapshot], held: list[int], says: tuple[str, ...]
) -> None:
    """The type of GPUs, or the time, or why the policy leaves GPUs free."""
    found = barred(registry.find(name)(), situation())
    assert sorted(found) == held
    assert all(word in why for why in found.values() for word in says)


@pytest.mark.parametrize("policy", ["fifo", "discrete_las", "gavel_max_min"])
def test_a_job_without_its_data_holds_no_gpus_and_no_place(policy: str) -> None:
    """Four free GPUs; another job that comes later is first in the queue and starts before it."""
    daemon = Daemon(registry.find(policy)(), SETTLES)
    late = daemon.submit(4)
    daemon.cluster.jobs[late].data_ready = False
    for _ in range(30):
        daemon.look()
    soon = daemon.submit(4)
    assert daemon.waited_s(soon, daemon.cluster.now_s) <= 3 * POLL_S
    assert daemon.cluster.jobs[late].state is JobState.PENDING

    others = [daemon.submit(4) for _ in range(2)]
    daemon.look()
    daemon.cluster.jobs[late].data_ready = True
    assert daemon.waited_s(late, daemon.cluster.now_s) < math.inf
    starts_s = [daemon.cluster.jobs[job].start_s for job in (*others, late)]
    assert sorted(starts_s) == starts_s
