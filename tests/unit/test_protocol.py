"""The preemption protocol as a state machine, with the daemon killed between any two steps."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slurm_dl.backends.fake import FakeCluster
from slurm_dl.backends.store import SqliteStore
from slurm_dl.engine.ledger import Ledger
from slurm_dl.engine.loop import Cycle, run_cycle
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import reservation_name
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import (
    Action,
    Attach,
    ClusterAction,
    Requeue,
    Reserve,
    SetSiteFactor,
    Signal,
    Unseal,
)
from slurm_dl.policies.discrete_las import DiscreteLas

NODES, GPUS = 3, 4
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - the ledger syncs a lot
POLICY = DiscreteLas(thresholds_gpu_s=(60.0, 400.0))
LIMITS = Preemption(
    min_quantum_s=8,
    cooldown_s=15,
    max_preemptions=4,
    max_grace_s=60,
    handover_timeout_s=80,
    start_margin_s=12,
    limit_reserve_s=0,
)
SETTINGS = Settings(partitions=frozenset({"gpu"}), preemption=LIMITS)
GRACE_S = 12.0


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory."""
    with tempfile.TemporaryDirectory(prefix="slurm_dl-protocol-", dir=MEMORY) as path:
        yield Path(path)


class Killed(BaseException):
    """SIGKILL: nothing of the daemon runs after it."""


class CheckedCluster(FakeCluster):
    """A fake that refuses to be a witness to a wrong action."""

    def _do(self, action: ClusterAction) -> None:
        match action:
            case Signal(run=run, handover_id=hid):
                job = self._same_run(run)
                assert job.contract is not None, "signalled without a contract"
                assert self.now_s - job.start_s >= LIMITS.min_quantum_s, "inside its quantum"
                seal = self.reservations.get(reservation_name(hid))
                assert seal is not None, "signalled before its nodes were sealed"
                assert set(job.nodes) <= seal.nodes, "freed nodes are not all sealed"
                attached = [j for j in self.jobs.values() if j.reservation == reservation_name(hid)]
                running = [j for j in attached if j.state is not JobState.PENDING]
                assert attached, "nobody may use the seal"
                assert all(j.site_factor > job.site_factor for j in attached if j not in running)
            case Requeue(run=run):
                job = self._same_run(run)
                assert job.asked_s is not None, "requeued without a signal"
                acked = job.acked_run == job.restarts
                assert acked or self.now_s - job.asked_s >= job.contract.grace_s, "before its grace"  # type: ignore[union-attr]
            case _:
                pass
        super()._do(action)


class Daemon:
    """One life of the daemon on a store that outlives it; dies when *points* have been passed."""

    def __init__(self, cluster: FakeCluster, path: Path) -> None:
        self.cluster = cluster
        self.store = SqliteStore(path)
        self.ledger = Ledger(self.store)
        self.points: int | None = None
        self.looks = 0
        for name in ("begin", "settle"):
            setattr(self.ledger, name, self._mortal(getattr(self.ledger, name)))

    def _mortal(self, do: Callable[..., None]) -> Callable[..., None]:
        def step(*args: Action) -> None:
            self._point()
            do(*args)
            self._point()

        return step

    def _point(self) -> None:
        if self.points is not None:
            self.points -= 1
            if self.points < 0:
                raise Killed

    def cycle(self, points: int | None = None) -> Cycle | None:
        """One cycle, the first of a life only looking; None if it died or Slurm was silent."""
        self.points = points
        self.looks += 1
        try:
            return run_cycle(
                self.cluster,
                self.ledger,
                POLICY,
                SETTINGS,
                clock=self.cluster.clock,
                acting=self.looks > 1,
            )
        except ClusterError:
            return None


class Preemption_(RuleBasedStateMachine):  # noqa: N801 - shown in hypothesis' reports
    """Users submit and cancel, time passes, Slurm refuses or is away, the daemon dies."""

    def __init__(self) -> None:
        super().__init__()
        self.dir = Path(tempfile.mkdtemp(prefix="slurm_dl-protocol-", dir=MEMORY))
        self.cluster = CheckedCluster(nodes=NODES, gpus=GPUS)
        self.daemon = Daemon(self.cluster, self.dir / "ledger")
        self.cancelled: set[JobId] = set()

    @rule(
        n_nodes=st.integers(1, NODES),
        share=st.integers(1, GPUS),
        work_s=st.integers(5, 150),
        opted_in=st.booleans(),
        on_signal=st.sampled_from(["save", "save", "ignore", "finish", "requeue_itself"]),
        save_s=st.integers(1, 20),
    )
    def submit(
        self,
        *,
        n_nodes: int,
        share: int,
        work_s: int,
        opted_in: bool,
        on_signal: str,
        save_s: int,
    ) -> None:
        """A user queues a job."""
        by = "job" if on_signal == "requeue_itself" else "daemon"
        self.cluster.submit(
            n_nodes * share,
            n_nodes=n_nodes,
            work_s=work_s,
            contract=Contract(grace_s=GRACE_S, requeued_by=by) if opted_in else None,
            on_signal=on_signal,  # type: ignore[arg-type]
            save_s=save_s,
        )

    @precondition(lambda self: self.cluster.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A user ends a job."""
        job_id = data.draw(st.sampled_from(sorted(self.cluster.jobs)))
        if self.cluster.jobs[job_id].state in (JobState.PENDING, JobState.RUNNING):
            self.cancelled.add(job_id)
            self.cluster.cancel(job_id)

    @rule(seconds=st.integers(1, 15))
    def pass_time(self, seconds: int) -> None:
        """Time passes without the daemon."""
        self.cluster.advance(seconds)

    @rule(times=st.integers(1, 8))
    def run_daemon(self, times: int) -> None:
        """The daemon runs for a while."""
        for _ in range(times):
            self.daemon.cycle()
            self.cluster.advance(2)

    @rule(points=st.integers(0, 25))
    def kill_daemon(self, points: int) -> None:
        """The daemon dies after that many steps, if it gets that far."""
        try:
            for _ in range(4):
                self.daemon.cycle(points)
                self.cluster.advance(1)
        except Killed:
            pass
        self.daemon.store.close()
        self.daemon = Daemon(self.cluster, self.dir / "ledger")

    @rule(kind=st.sampled_from([Reserve, Attach, Signal, Requeue, Unseal, SetSiteFactor]))
    def slurm_will_refuse(self, kind: type[ClusterAction]) -> None:
        """The next action of this kind fails."""
        self.cluster.fail.append(kind)

    @rule()
    def slurm_goes_or_comes(self) -> None:
        """Slurmctld stops or starts to answer."""
        self.cluster.down = not self.cluster.down

    @invariant()
    def nothing_is_over_allocated(self) -> None:
        """No node gives more GPUs than it has."""
        assert min(self.cluster._free()) >= 0

    @invariant()
    def who_did_not_opt_in_was_left_alone(self) -> None:
        """No signal and no requeue without a contract, and never too many."""
        for job in self.cluster.jobs.values():
            if job.contract is None:
                assert not job.signals
                assert job.restarts == 0
            assert job.restarts <= LIMITS.max_preemptions + 1

    def teardown(self) -> None:
        """Check that all ends well, and clean up."""
        try:
            self._settle()
        finally:
            self.daemon.store.close()
            shutil.rmtree(self.dir)

    def _settle(self) -> None:
        """Left in peace, everything ends: jobs, hand-overs, reservations."""
        self.cluster.down = False
        self.cluster.fail.clear()
        for _ in range(600):
            cycle = self.daemon.cycle()
            self.cluster.advance(5)
            alive = {j.state for j in self.cluster.jobs.values()} & {
                JobState.PENDING,
                JobState.RUNNING,
            }
            if (
                not alive
                and cycle
                and not cycle.snapshot.handovers
                and not self.cluster.reservations
            ):
                break
        for job in self.cluster.jobs.values():
            ended = JobState.FAILED if job.job_id in self.cancelled else JobState.COMPLETED
            assert job.state is ended, f"job {job.job_id} was lost: {job}"
        assert not self.daemon.ledger.handovers
        assert not self.cluster.reservations
        # A job cancelled while it waited keeps the name, and nothing comes of it.
        never_ran = [j for j in self.cluster.jobs.values() if not j.runs]
        assert not [j for j in never_ran if j.reservation and j.job_id not in self.cancelled]


Preemption_.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestProtocol = Preemption_.TestCase


def _sixteen_against_small(path: Path) -> tuple[CheckedCluster, Daemon, JobId]:
    """A job on the whole cluster that has sunk, and small ones waiting."""
    cluster = CheckedCluster(nodes=NODES, gpus=GPUS)
    big = cluster.submit(NODES * GPUS, n_nodes=NODES, work_s=90, contract=Contract(grace_s=GRACE_S))
    daemon = Daemon(cluster, path)
    for _ in range(10):
        cluster.advance(2)
        daemon.cycle()
    for _ in range(6):
        cluster.submit(1, work_s=10)
    return cluster, daemon, big


def _run_to_end(cluster: FakeCluster, daemon: Daemon) -> None:
    for _ in range(200):
        cluster.advance(2)
        daemon.cycle()
        if all(j.state is JobState.COMPLETED for j in cluster.jobs.values()):
            break
    cluster.advance(2)
    daemon.cycle()
    daemon.cycle()


def _points_in_a_hand_over(path: Path) -> int:
    """How many instants there are at which the daemon could die in one whole hand-over."""
    cluster, daemon, _ = _sixteen_against_small(path)
    passed = 0
    for _ in range(200):
        cluster.advance(2)
        daemon.points = 10**6
        daemon.cycle(10**6)
        passed += 10**6 - (daemon.points or 0)
        if all(j.state is JobState.COMPLETED for j in cluster.jobs.values()):
            return passed
    msg = "the hand-over never ended"
    raise AssertionError(msg)


def test_killed_at_every_single_point_of_a_hand_over(tmp_path: Path) -> None:
    """Wherever the daemon dies, the next one finishes or undoes it, and nothing is lost."""
    points = _points_in_a_hand_over(tmp_path / "count")
    assert points > 40
    for point in range(points):
        path = tmp_path / f"ledger{point}"
        cluster, daemon, big = _sixteen_against_small(path)
        left = point
        while True:
            cluster.advance(2)
            try:
                daemon.cycle(left)
            except Killed:
                break
            left = daemon.points or 0
        daemon.store.close()
        cluster.advance(3)
        daemon = Daemon(cluster, path)
        _run_to_end(cluster, daemon)

        job = cluster.jobs[big]
        assert all(j.state is JobState.COMPLETED for j in cluster.jobs.values()), point
        assert len(job.signals) >= job.restarts >= 1, point
        assert not cluster.reservations, point
        assert not daemon.ledger.handovers, point
        booked = dict(
            zip(
                daemon.ledger.service.job_id.tolist(),
                daemon.ledger.service.attained_gpu_s.tolist(),
                strict=True,
            )
        )
        assert booked[big] == pytest.approx(job.gpu_s), point
        daemon.store.close()


def test_a_job_that_ignores_the_signal_goes_after_its_grace_and_not_before(tmp_path: Path) -> None:
    """Grace is counted from the signal."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    cluster.jobs[big].on_signal = "ignore"
    _run_to_end(cluster, daemon)

    job = cluster.jobs[big]
    first_end = job.runs[0][1]
    assert GRACE_S <= first_end - job.signals[0] <= GRACE_S + 2
    assert cluster.jobs[big].state is JobState.COMPLETED


def test_a_job_that_finishes_during_its_grace_stays_completed(tmp_path: Path) -> None:
    """It is never requeued, and its GPUs go to those waiting."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    cluster.jobs[big].on_signal = "finish"
    _run_to_end(cluster, daemon)

    assert cluster.jobs[big].restarts == 0
    assert cluster.jobs[big].state is JobState.COMPLETED
    assert not [a for a in cluster.applied if isinstance(a, Requeue)]


def test_a_job_that_requeues_itself_is_not_requeued_again(tmp_path: Path) -> None:
    """Frameworks that requeue themselves are waited for."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    job = cluster.jobs[big]
    job.on_signal = "requeue_itself"
    job.contract = Contract(grace_s=GRACE_S, requeued_by="job")
    _run_to_end(cluster, daemon)

    assert job.restarts == 1
    assert not [a for a in cluster.applied if isinstance(a, Requeue)]


def test_who_requeues_itself_is_given_its_grace_for_it(tmp_path: Path) -> None:
    """An acknowledgement is not enough where the job said that it requeues itself."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    job = cluster.jobs[big]
    job.contract = Contract(grace_s=GRACE_S, requeued_by="job")
    _run_to_end(cluster, daemon)

    assert job.runs[0][1] - job.signals[0] >= GRACE_S


def test_a_victim_that_slurm_will_not_signal_is_let_go(tmp_path: Path) -> None:
    """The hand-over is given up in time, and the job runs on untouched."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    cluster.jobs[big].work_s = 400
    cluster.fail = [Signal] * 1000
    for _ in range(60):
        cluster.advance(2)
        daemon.cycle()

    [taken] = [h for h in _closed(tmp_path / "ledger") if "refused" in h]
    assert '"gone"' in taken
    assert cluster.jobs[big].restarts == 0
    assert not cluster.jobs[big].signals


def _closed(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT body FROM handover WHERE closed != ''").fetchall()
    return [body for (body,) in rows]


def test_another_run_of_the_victim_is_not_the_one_that_was_chosen(tmp_path: Path) -> None:
    """A different start means a different run, even with the same restart count."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    cluster.jobs[big].on_signal = "ignore"
    while not cluster.jobs[big].signals:
        daemon.cycle()
        cluster.advance(1)
    cluster.jobs[big].start_s += 1
    for _ in range(3):
        cluster.advance(10)
        daemon.cycle()

    assert cluster.jobs[big].restarts == 0
    assert 1 not in [h.handover_id for h in daemon.ledger.handovers]


def test_refusals_leave_the_victim_alone(tmp_path: Path) -> None:
    """If the nodes cannot be sealed nobody is signalled, and the hand-over is given up."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    cluster.fail = [Reserve] * 1000
    for _ in range(70):
        cluster.advance(2)
        daemon.cycle()

    assert not cluster.jobs[big].signals
    assert cluster.jobs[big].restarts == 0


def test_the_seal_goes_with_the_hand_over(tmp_path: Path) -> None:
    """Once a hand-over is closed nothing is reserved any more; nobody waits for it to lapse."""
    cluster, daemon, _ = _sixteen_against_small(tmp_path / "ledger")
    sealed = False
    for _ in range(40):
        cluster.advance(2)
        daemon.cycle()
        sealed = sealed or bool(cluster.reservations)
        assert bool(cluster.reservations) == bool(daemon.ledger.handovers)
    assert sealed


def test_a_signal_that_may_have_been_sent_is_followed_through(tmp_path: Path) -> None:
    """Killed right after the signal, beneficiaries gone: the victim saved its work and is waiting.

    It must be requeued, not forgotten.
    """
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    original = cluster.apply

    def die_after_signal(action: ClusterAction) -> None:
        original(action)
        if isinstance(action, Signal):
            raise Killed

    cluster.apply = die_after_signal  # type: ignore[method-assign]
    with pytest.raises(Killed):
        _run_to_end(cluster, daemon)
    cluster.apply = original  # type: ignore[method-assign]
    daemon.store.close()
    for job in cluster.jobs.values():
        if job.job_id != big:
            cluster.cancel(job.job_id)
    daemon = Daemon(cluster, tmp_path / "ledger")
    for _ in range(10):
        cluster.advance(2)
        daemon.cycle()

    assert cluster.jobs[big].restarts == 1
    assert [type(a) for a in cluster.applied].count(Requeue) == 1


def test_every_action_says_why(tmp_path: Path) -> None:
    """The audit log has a reason for each thing that was done."""
    cluster, daemon, _ = _sixteen_against_small(tmp_path / "ledger")
    _run_to_end(cluster, daemon)

    assert {type(a) for a in cluster.applied} >= {Reserve, Attach, Signal, Requeue, Unseal}
    assert all(a.why for a in cluster.applied)
