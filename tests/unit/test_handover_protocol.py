"""The preemption protocol step by step, with the daemon killed between any two of them.

What the state machine in `test_handover_protocol_machine` found is kept here, each in its shortest
form.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import build
import numpy as np
import pytest
from fake_cluster import FakeCluster
from protocol_world import World
from streams import SETTINGS

from slurm_dl.engine.cycle import Cycle
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.write_ahead import Ledger
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
    Signal,
    Unseal,
)
from slurm_dl.policies.discrete_las import DiscreteLas

NODES, GPUS = 3, 4
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - the ledger syncs a lot
POLICY = DiscreteLas(thresholds_gpu_s=(60.0, 400.0))
LIMITS = SETTINGS.preemption
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
            case Requeue(run=run, ended=0):
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
            acting = self.looks > 1
            return build.cycle(self.cluster, self.ledger, POLICY, SETTINGS, acting=acting)
        except ClusterError:
            return None

    def go_on(self, cycles: int) -> None:
        """So many cycles, two seconds apart."""
        for _ in range(cycles):
            self.cluster.advance(2)
            self.cycle()


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


@pytest.mark.long
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


@pytest.mark.parametrize(
    ("on_signal", "by", "waits_s", "restarts", "ours"),
    [
        ("save", "daemon", (0, GRACE_S - 1), 1, 1),
        ("ignore", "daemon", (GRACE_S, GRACE_S + 2), 1, 1),
        ("finish", "daemon", (0, GRACE_S), 0, 0),
        ("requeue_itself", "job", (0, GRACE_S), 1, 0),
        ("save", "job", (GRACE_S, GRACE_S + 2), 1, 1),
    ],
)
def test_the_answer_to_the_signal_ends_the_run(  # noqa: PLR0917
    on_signal: str, by: str, waits_s: tuple[float, float], restarts: int, ours: int, tmp_path: Path
) -> None:
    """Or its grace, which counts from the signal; one that says it requeues itself has all of it.

    A job that finishes is not requeued, nor is one that has requeued itself.
    """
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    job = cluster.jobs[big]
    job.on_signal, job.contract = on_signal, Contract(grace_s=GRACE_S, requeued_by=by)
    _run_to_end(cluster, daemon)

    assert waits_s[0] <= job.runs[0][1] - job.signals[0] <= waits_s[1]
    assert (job.state, job.restarts) == (JobState.COMPLETED, restarts)
    assert sum(isinstance(a, Requeue) for a in cluster.applied) == ours


@pytest.mark.parametrize(
    ("status", "change", "after_s", "restarts"),
    [
        (138, {}, 2, 1),
        (1, {}, 2, 1),
        (1, {"acked_run": 0}, 2, 1),
        (1, {}, 70, 1),
        (1, {}, 75, 0),
        (0, {}, 2, 0),
        (93, {}, 2, 0),
        (1, {"requeueable": False}, 2, 0),
    ],
)
def test_who_fails_because_it_was_asked_is_requeued_once(
    tmp_path: Path, status: int, change: dict[str, object], after_s: int, restarts: int
) -> None:
    """Not for an end that is final or its own, nor for a failure of its next run.

    The daemon is killed meanwhile. The time is from the signal to the failure.
    """
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    job = cluster.jobs[big]
    job.on_signal, job.work_s = "ignore", 1000
    while not job.signals:
        cluster.advance(2)
        daemon.cycle()
    daemon.store.close()
    cluster.advance(after_s)
    for name, value in change.items():
        setattr(job, name, value)
    cluster.crash(big, status)
    daemon = Daemon(cluster, tmp_path / "ledger")
    cycles = []
    for _ in range(30):
        cluster.advance(2)
        cycles.append(daemon.cycle())
        if job.state is JobState.RUNNING:
            cluster.crash(big, status)

    assert (job.state, job.restarts) == (JobState.FAILED, restarts)
    assert sum(isinstance(d.action, Requeue) for c in cycles if c for d in c.done) == restarts
    assert daemon.ledger.snapshot(cluster.observe(), SETTINGS.partitions).answers == (
        {big: "acked_run" in change} if restarts else {}
    )


@pytest.mark.parametrize(
    ("kind", "down_s", "restarts"),
    [(Signal, 70, 0), (Signal, 200, 0), (Requeue, 70, 1), (Requeue, 250, 1)],
)
def test_who_fails_while_the_daemon_is_away_is_requeued_if_it_was_asked(
    kind: type[ClusterAction], down_s: int, restarts: int, tmp_path: Path
) -> None:
    """It is killed once it has written the step down, before Slurm hears of it."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    job, original = cluster.jobs[big], cluster.apply
    job.on_signal, job.work_s = "ignore", 1000

    def apply(action: ClusterAction) -> None:
        if isinstance(action, kind):
            raise Killed
        original(action)

    def until_killed() -> None:
        for _ in range(60):
            cluster.advance(2)
            if job.signals and job.state is JobState.RUNNING:
                cluster.crash(big, 1)
            daemon.cycle()

    cluster.apply = apply  # type: ignore[method-assign]
    with pytest.raises(Killed):
        until_killed()
    daemon.store.close()
    cluster.apply = original  # type: ignore[method-assign]
    cluster.advance(down_s)
    if kind is Signal:
        cluster.crash(big, 1)
    daemon = Daemon(cluster, tmp_path / "ledger")
    daemon.go_on(30)

    answers = daemon.ledger.snapshot(cluster.observe(), SETTINGS.partitions).answers
    assert (job.restarts, len(answers)) == (restarts, restarts)


@pytest.mark.parametrize(("failures", "tries"), [(1, 2), (100, 5)])
def test_a_requeue_that_was_done_in_part_is_tried_again(
    failures: int, tries: int, tmp_path: Path
) -> None:
    """Slurm has requeued the job, and fails then; meanwhile its exit status is told late."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    job, original, done = cluster.jobs[big], cluster.apply, []
    job.on_signal, job.work_s = "ignore", 1000

    def apply(action: ClusterAction) -> None:
        original(action)
        if isinstance(action, Requeue):
            done.append(action)
            if len(done) <= failures:
                raise ClusterError

    cluster.apply = apply  # type: ignore[method-assign]
    for _ in range(60):
        cluster.advance(2)
        if job.signals and job.state is JobState.RUNNING and not job.restarts:
            cluster.crash(big, 1)
            cluster.failed_with[big] = None  # type: ignore[assignment]
            daemon.cycle()
            cluster.failed_with[big] = 1
        daemon.cycle()

    assert (job.restarts, len(done)) == (1, tries)
    assert not daemon.ledger.handovers


def test_a_failed_victim_that_slurm_does_not_requeue_is_left(tmp_path: Path) -> None:
    """It is tried for a minute, and the GPUs have long gone to those that wait."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    job = cluster.jobs[big]
    job.on_signal = "ignore"
    cluster.fail = [Requeue] * 1000
    tries = 0
    for _ in range(100):
        cluster.advance(2)
        cycle = daemon.cycle()
        tries += sum(isinstance(d.action, Requeue) for d in cycle.done) if cycle else 0
        if job.signals and job.state is JobState.RUNNING:
            cluster.crash(big, 1)

    assert job.restarts == 0
    assert 2 <= tries <= 32
    assert not daemon.ledger.handovers


def test_a_victim_that_slurm_will_not_signal_is_let_go(tmp_path: Path) -> None:
    """The hand-over is given up in time, and the job runs on untouched."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    cluster.jobs[big].work_s = 400
    cluster.fail = [Signal] * 1000
    daemon.go_on(60)

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
    daemon.go_on(70)

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


def _die_after_a_signal(cluster: FakeCluster, daemon: Daemon, act: Callable[[], object]) -> None:
    """*act* until a signal was sent; the daemon is killed before it can write that down."""
    original = cluster.apply

    def apply(action: ClusterAction) -> None:
        original(action)
        if isinstance(action, Signal):
            raise Killed

    cluster.apply = apply  # type: ignore[method-assign]
    with pytest.raises(Killed):
        act()
    cluster.apply = original  # type: ignore[method-assign]
    daemon.store.close()


def test_a_signal_that_may_have_been_sent_is_followed_through(tmp_path: Path) -> None:
    """Killed right after the signal, beneficiaries gone: the victim saved its work and is waiting.

    It must be requeued, not forgotten.
    """
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    _die_after_a_signal(cluster, daemon, lambda: _run_to_end(cluster, daemon))
    for job in cluster.jobs.values():
        if job.job_id != big:
            cluster.cancel(job.job_id)
    daemon = Daemon(cluster, tmp_path / "ledger")
    daemon.go_on(10)

    assert cluster.jobs[big].restarts == 1
    assert [type(a) for a in cluster.applied].count(Requeue) == 1


def test_every_action_says_why(tmp_path: Path) -> None:
    """The audit log has a reason for each thing that was done."""
    cluster, daemon, _ = _sixteen_against_small(tmp_path / "ledger")
    _run_to_end(cluster, daemon)

    assert {type(a) for a in cluster.applied} >= {Reserve, Attach, Signal, Requeue, Unseal}
    assert all(a.why for a in cluster.applied)


def _two_against_one(cluster: FakeCluster, path: Path) -> tuple[Daemon, JobId, JobId, JobId]:
    """Two jobs that hold the whole cluster and have sunk, and one that needs all of it."""
    two = cluster.submit(2 * GPUS, n_nodes=2, work_s=400, contract=Contract(grace_s=GRACE_S))
    one = cluster.submit(GPUS, work_s=400, contract=Contract(grace_s=GRACE_S))
    daemon = Daemon(cluster, path)
    for _ in range(20):
        cluster.advance(2)
        daemon.cycle()
    waiting = cluster.submit(NODES * GPUS, n_nodes=NODES, work_s=10)
    return daemon, two, one, waiting


def test_undoing_that_is_interrupted_does_not_become_a_preemption(tmp_path: Path) -> None:
    """One of two victims ends before anybody was told, and not all of the undoing succeeds.

    The other must not be signalled for it: the hand-over is not right any more.
    """
    cluster = FakeCluster(nodes=NODES, gpus=GPUS)
    daemon, two, one, _ = _two_against_one(cluster, tmp_path / "ledger")
    cluster.fail = [Attach]
    daemon.cycle()
    cluster.cancel(one)
    cluster.fail = [Unseal]
    daemon.cycle()
    assert daemon.ledger.handovers
    daemon.cycle()

    assert not cluster.jobs[two].signals


def test_who_may_not_be_requeued_any_more_is_let_go_before_it_is_told(tmp_path: Path) -> None:
    """The daemon dies between two signals, and the second victim gets Requeue=0."""
    cluster = FakeCluster(nodes=NODES, gpus=GPUS)
    daemon, two, one, _ = _two_against_one(cluster, tmp_path / "ledger")
    _die_after_a_signal(cluster, daemon, daemon.cycle)
    [told] = [j for j in (two, one) if cluster.jobs[j].signals]
    other = two if told == one else one
    cluster.jobs[other].requeueable = False
    daemon = Daemon(cluster, tmp_path / "ledger")
    for _ in range(20):
        daemon.cycle()
        cluster.advance(2)

    assert not cluster.jobs[other].signals
    assert cluster.jobs[told].restarts == 1


def test_a_signal_that_slurm_refused_is_not_sent_to_who_may_not_be_requeued(tmp_path: Path) -> None:
    """It may have been sent, or not; with Requeue=0 it is not sent once more."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    cluster.fail = [Signal]
    while not any(h.signalled for h in daemon.ledger.handovers):
        daemon.cycle()
        cluster.advance(1)
    cluster.jobs[big].requeueable = False
    for _ in range(100):
        daemon.cycle()
        cluster.advance(2)

    assert not cluster.jobs[big].signals
    assert cluster.jobs[big].restarts == 0
    assert not daemon.ledger.handovers


def test_nobody_is_signalled_for_nodes_that_have_died(tmp_path: Path) -> None:
    """A node of the hand-over goes before the signals: the beneficiary could not start."""
    cluster = FakeCluster(nodes=NODES, gpus=GPUS)
    daemon, two, one, _ = _two_against_one(cluster, tmp_path / "ledger")
    cluster.fail = [Attach]
    daemon.cycle()
    assert daemon.ledger.handovers
    cluster.down_nodes.add("n3")
    daemon.cycle()

    assert not cluster.jobs[two].signals
    assert not cluster.jobs[one].signals


def test_victims_are_not_signalled_for_those_who_only_share_what_is_left(tmp_path: Path) -> None:
    """The job that needs them all is cancelled in time; a small one beside it needs less."""
    cluster = FakeCluster(nodes=NODES, gpus=GPUS)
    daemon, two, one, waiting = _two_against_one(cluster, tmp_path / "ledger")
    cluster.fail = [Attach]
    daemon.cycle()
    [handover] = daemon.ledger.handovers
    small = cluster.submit(1, work_s=10)
    daemon.ledger._keep(dataclasses.replace(handover, beneficiaries=(waiting, small)))
    cluster.cancel(waiting)
    daemon.cycle()
    daemon.cycle()

    assert len([j for j in (two, one) if cluster.jobs[j].signals]) <= 1


def test_who_was_detached_meanwhile_is_attached_again_before_any_signal(tmp_path: Path) -> None:
    """Undoing was begun and then was not needed: the seal must not keep out those it is for."""
    cluster = CheckedCluster(nodes=NODES, gpus=GPUS)
    daemon, two, one, waiting = _two_against_one(cluster, tmp_path / "ledger")
    cluster.fail = [Signal, Signal]
    original = daemon.ledger.begin

    def die_before_signal(action: Action) -> None:
        if isinstance(action, Signal):
            raise Killed
        original(action)

    daemon.ledger.begin = die_before_signal  # type: ignore[method-assign]
    with pytest.raises(Killed):
        daemon.cycle()
    daemon.ledger.begin = original  # type: ignore[method-assign]
    assert cluster.jobs[waiting].reservation
    cluster.jobs[waiting].reservation = ""
    cluster.fail = []
    daemon.cycle()

    assert cluster.jobs[waiting].reservation
    assert cluster.jobs[two].signals
    assert cluster.jobs[one].signals


def test_a_preemption_that_was_not_written_down_counts_for_the_cooldown(tmp_path: Path) -> None:
    """Signalled by a daemon that died; the job requeued itself before the next one looked."""
    cluster, daemon, big = _sixteen_against_small(tmp_path / "ledger")
    _die_after_a_signal(cluster, daemon, lambda: _run_to_end(cluster, daemon))
    cluster.requeue(big)
    daemon = Daemon(cluster, tmp_path / "ledger")
    daemon.cycle()
    daemon.cycle()

    row = int(daemon.ledger.service.rows_of(np.array([big]))[0])
    assert daemon.ledger.service.preemptions[row] == 1
    assert daemon.ledger.service.last_preempted_s[row] == cluster.now_s


@pytest.mark.parametrize("becomes", ["requeued", "completed"])
def test_service_is_kept_when_slurmctld_forgets_the_end_of_a_run(
    becomes: str, tmp_path: Path
) -> None:
    """It dies, and for the next one the run that was booked as over is still under way."""
    world = World(nodes=1, gpus=GPUS, hold_s=6.0, ending_s=0)
    job_id = world.submit(GPUS, work_s=20.0 if becomes == "completed" else 400.0)
    daemon = Daemon(world, tmp_path / "ledger")
    world.advance(10)
    daemon.cycle()
    if becomes == "requeued":
        world.requeue(job_id)
        world.advance(2)
    else:
        world.advance(12)
    daemon.cycle()
    before_gpu_s = float(daemon.ledger.service.attained_gpu_s[0])
    world.crash(4)
    assert world.jobs[job_id].state is JobState.RUNNING
    daemon.cycle()
    after = daemon.ledger.service

    assert before_gpu_s == world.jobs[job_id].gpu_s
    assert before_gpu_s <= after.attained_gpu_s[0] <= before_gpu_s + 4 * GPUS
    assert after.incomplete[0], "accounting is to be asked"
    daemon.store.close()


def test_a_run_between_a_requeue_and_the_end_is_counted_unseen(tmp_path: Path) -> None:
    """The daemon is away while a job is requeued, runs again and completes."""
    world = World(nodes=1, gpus=GPUS, hold_s=2.0, ending_s=0)
    job_id = world.submit(GPUS, work_s=20.0)
    daemon = Daemon(world, tmp_path / "ledger")
    world.advance(10)
    daemon.cycle()
    world.advance(5)
    world.requeue(job_id)
    world.advance(40)
    assert world.jobs[job_id].state is JobState.COMPLETED
    daemon.cycle()

    assert daemon.ledger.service.attained_gpu_s[0] == world.jobs[job_id].gpu_s
    assert len(daemon.store.runs_of(job_id)) == 2
    daemon.store.close()
