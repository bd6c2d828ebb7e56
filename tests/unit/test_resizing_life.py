"""Whole changes of size on the cluster in memory, with a daemon that is killed anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import build
import pytest
from fake_cluster import FakeCluster
from fake_slurm import FakeJob

from slurm_dl.daemon.enrich import Enricher
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.settings import Overdue, Preemption, Resizing, Settings
from slurm_dl.estimates.remaining_time import began_anew
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.plan import (
    Action,
    ClusterAction,
    OpenHandover,
    Reshape,
    Shrink,
    Signal,
    Unfinished,
)
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import size_histories
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.elastic.afs import Afs

SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        min_quantum_s=10, cooldown_s=10, limit_reserve_s=0, checkpoint_cost_s=1,
        handover_timeout_s=100, start_margin_s=30, commitment="ignored",
    ),
    overdue=Overdue(after_s=0, pass_s=0),
    resizing=Resizing(expand=True, steadiness=0.1, cooldown_s=30),
)  # fmt: skip
LOOK_S = 2
GRACE_S = 20.0


class Killed(BaseException):
    """The daemon dies."""


@dataclass
class Site:
    """Two nodes of two GPUs, looked at every two seconds by daemons of one ledger."""

    policy: Policy
    cluster: FakeCluster = field(default_factory=lambda: FakeCluster(nodes=2, gpus=2, hold_s=6))
    store: MemoryStore = field(default_factory=MemoryStore)
    acted: list[Action] = field(default_factory=list)
    kill_at: int = -1
    in_the_act: bool = False

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.store)
        self._apply = self.cluster.apply
        self.enrich = Enricher(
            profiles={}, site=SitePriors(), checkpoint_cost_s=1, policy=self.policy
        )

    def submit(
        self, gpus: int, *, work_s: float = 1e6, sizes: str = "", plain: bool = False
    ) -> int:
        """A job of one node."""
        contract = None if plain else Contract(grace_s=GRACE_S)
        job = self.cluster.submit(gpus, work_s=work_s, contract=contract, limit_s=1e6)
        self.cluster.jobs[job].sizes = tuple(Shape.of(s) for s in sizes.split(",") if s)
        return int(job)

    def job(self, job_id: int) -> FakeJob:
        """One job."""
        return self.cluster.jobs[JobId(job_id)]

    def held(self, job_id: int) -> str:
        """The size in which a job runs; empty if it does not."""
        job = self.job(job_id)
        runs = job.state is JobState.RUNNING
        return f"{len(job.nodes)}x{job.gpus / len(job.nodes):g}" if runs else ""

    def look(self) -> Cycle | None:
        """One cycle, and the time until the next; None if the daemon was killed in it."""

        def before(_: Action) -> None:
            if len(self.acted) == self.kill_at and not self.in_the_act:
                self.kill_at = -1
                raise Killed

        def apply(action: ClusterAction) -> Unfinished | None:
            done = self._apply(action)
            if len(self.acted) == self.kill_at:
                self.kill_at = -1
                raise Killed
            return done

        self.cluster.apply = apply  # type: ignore[method-assign]
        try:
            return build.cycle(
                self.cluster, self.ledger, self.policy, SETTINGS, enrich=self.enrich,
                before=before, on_done=lambda done: self.acted.append(done.action),
            )  # fmt: skip
        except Killed:
            self.ledger = Ledger(self.store)
            return None
        finally:
            self.cluster.advance(LOOK_S)

    def until(self, what: str, done: Callable[[], bool], within_s: float = 300) -> float:
        """Look until it is so; how long that took, seconds."""
        begun_s = self.cluster.clock()
        while not done():
            assert self.cluster.clock() - begun_s < within_s, what
            self.look()
        return self.cluster.clock() - begun_s


def settled(site: Site) -> None:
    """No hand-over, reservation or hold is left."""
    site.until(
        "settled",
        lambda: not site.ledger.handovers and not site.cluster.reservations,
    )


@pytest.mark.parametrize("policy", [DiscreteLas(), Afs()], ids=lambda policy: policy.name)
def test_a_job_grows_and_shrinks_as_others_come_and_go(policy: Policy) -> None:
    """1, 2, 4, 2 and 1 GPUs by one job id; who comes waits for no longer than a grace."""
    site = Site(policy)
    one, two = site.submit(2), site.submit(1)
    job = site.submit(1, sizes="1x1,1x2,2x2")
    site.until("it runs on what is free", lambda: site.held(job) == "1x1")
    site.cluster.cancel(JobId(two))
    site.until("it has 2 GPUs", lambda: site.held(job) == "1x2")
    site.cluster.cancel(JobId(one))
    site.until("it has 4 GPUs", lambda: site.held(job) == "2x2")
    settled(site)

    rigid = site.submit(2, plain=True)
    waited_s = site.until("the rigid job runs", lambda: site.held(rigid) == "1x2")
    site.until("it has 2 GPUs again", lambda: site.held(job) == "1x2")
    plain = site.submit(1, plain=True)
    waited_s = max(waited_s, site.until("the other one runs", lambda: site.held(plain) == "1x1"))
    site.until("it has 1 GPU again", lambda: site.held(job) == "1x1")
    settled(site)

    assert waited_s <= GRACE_S + 10
    assert site.job(job).restarts == 4
    assert len(site.job(job).signals) == 4
    snap = site.ledger.snapshot(site.cluster.observe(), SETTINGS.partitions)
    row = snap.jobs.row_of()[JobId(job)]
    # A change of size is no preemption, and no requeue by the job itself.
    assert snap.memory.preemptions[row] == 0
    assert not began_anew(snap)[row]
    history = size_histories(snap.booked)[JobId(job)]
    assert (history.now, len(history.resized_s), history.refused) == (Shape(1, 1), 4, frozenset())
    held_gpu_s = site.job(job).gpu_s + site.cluster.clock() - site.job(job).start_s
    assert snap.memory.attained_gpu_s[row] == pytest.approx(held_gpu_s, abs=4)


def test_gpus_go_from_one_running_job_to_another_in_one_hand_over() -> None:
    """AFS takes them from the job that gains less; nobody waits."""
    site = Site(Afs(), FakeCluster(nodes=1, gpus=4, hold_s=6))
    long = site.submit(1, sizes="1x1,1x2,1x3")
    site.until("the first has three", lambda: site.held(long) == "1x3")
    short = site.submit(1, sizes="1x1,1x2,1x3")
    site.until("the other runs", lambda: site.held(short) == "1x1")
    site.until("both have two", lambda: (site.held(long), site.held(short)) == ("1x2", "1x2"))
    settled(site)

    opened = [a.handover for a in site.acted if isinstance(a, OpenHandover)]
    assert [len(h.victims) for h in opened if not h.beneficiaries and len(h.victims) > 1] == [2]


SCENES = ("growth", "shrink", "transfer", "in place")


def _play(site: Site, scene: str) -> int:
    """A job that changes its size once; its id."""
    job = site.submit(1, sizes="1x1,1x2,2x2" if scene != "transfer" else "1x1,1x2,1x3")
    first = site.submit(2, work_s=30)
    site.job(job).in_place = scene == "in place"
    if scene in ("shrink", "in place"):
        site.cluster.cancel(JobId(first))
        site.until("it has 4 GPUs", lambda: site.held(job) == "2x2")
        site.submit(2, plain=True)
    if scene == "transfer":
        site.submit(1, sizes="1x1,1x2")
    for _ in range(60):
        site.look()
    return job


@pytest.mark.parametrize(
    "third",
    [0, *(pytest.param(n, marks=pytest.mark.full("two thirds of the steps")) for n in (1, 2))],
)
@pytest.mark.parametrize("scene", SCENES)
def test_a_daemon_that_is_killed_between_two_steps_loses_nothing(scene: str, third: int) -> None:
    """Before each of its actions, and before what it did is written down: all ends as without."""
    undisturbed = Site(DiscreteLas())
    job = _play(undisturbed, scene)
    expected = {j: undisturbed.held(int(j)) for j in undisturbed.cluster.jobs}
    assert len(undisturbed.acted) > 8
    assert undisturbed.job(job).restarts or scene == "in place"

    acts = [isinstance(action, ClusterAction) for action in undisturbed.acted]
    points = [(at, in_it) for at, act in enumerate(acts) for in_it in (False, True)[: 1 + act]]
    for at, in_it in points[third::3]:
        site = Site(DiscreteLas(), kill_at=at, in_the_act=in_it)
        job = _play(site, scene)
        settled(site)
        found = {j: site.held(int(j)) for j in site.cluster.jobs}
        assert found == expected, (at, in_it, undisturbed.acted[at])
        assert site.job(job).restarts <= undisturbed.job(job).restarts + 2


@pytest.mark.parametrize("slurm", ["does it", "refuses", "ignores it", "is not asked"])
def test_nodes_come_free_while_the_job_runs_on(slurm: str) -> None:
    """In the same run; where Slurm does not do it the job is requeued, as others are."""
    site = Site(DiscreteLas())
    apply, shrinks = site._apply, []

    marked = set[bool]()

    def is_smaller() -> bool:
        marked.add(size_histories(site.ledger.booked)[JobId(job)].shrunk)
        return site.held(job) == "1x2"

    def deaf(action: ClusterAction) -> Unfinished | None:
        if isinstance(action, Signal) and slurm == "is not asked":
            site.job(job).in_place = False  # The owner has changed the comment.
        if isinstance(action, Shrink):
            shrinks.append(action)
            if slurm == "refuses":
                site.cluster.fail.append(Shrink)
            elif slurm == "ignores it":
                return None
        return apply(action)

    site._apply = deaf
    job = site.submit(1, sizes="1x2,2x2")
    site.job(job).in_place = True
    site.until("it has 4 GPUs", lambda: site.held(job) == "2x2")
    settled(site)
    restarts = site.job(job).restarts
    rigid = site.submit(2, plain=True)
    site.until("the rigid job runs", lambda: site.held(rigid) == "1x2")
    in_place = slurm == "does it"
    site.until("it has 2 GPUs", is_smaller)
    settled(site)
    for _ in range(20):
        site.look()

    assert max(marked) <= in_place, "it is marked as smaller and never was"
    assert len(shrinks) == (slurm != "is not asked")
    assert site.job(job).restarts == restarts + (not in_place)
    snap = site.ledger.snapshot(site.cluster.observe(), SETTINGS.partitions)
    assert snap.memory.preemptions[snap.jobs.rows[JobId(job)]] == 0
    # Up to the shrink the old GPUs count, and then the new ones.
    had_gpu_s = site.job(job).gpu_s + site.job(job).run_gpu_s(snap.now_s)
    attained_gpu_s = snap.memory.attained_gpu_s[snap.jobs.rows[JobId(job)]]
    assert attained_gpu_s == pytest.approx(had_gpu_s, abs=4 * LOOK_S)
    history = size_histories(snap.booked)[JobId(job)]
    assert (history.now, history.refused, history.shrunk) == (Shape(1, 2), frozenset(), in_place)

    # By hand: it would start on the nodes of its request, which are as many as its run began with.
    site.acted.clear()
    site.cluster.requeue(JobId(job))
    site.until("it is back", lambda: site.held(job) != "")
    assert site.held(job) == "1x2"
    assert site.job(job).restarts == restarts + (not in_place) + 1
    written = [str(a.shape) for a in site.acted if isinstance(a, Reshape)]
    assert written == ["1x2"] * in_place


def test_a_size_that_slurm_does_not_give_is_not_tried_again() -> None:
    """It takes the update, and starts the job in its old size: the job runs on in that."""
    site = Site(DiscreteLas())
    apply = site._apply
    site._apply = lambda action: None if isinstance(action, Reshape) else apply(action)
    job = site.submit(1, sizes="1x1,2x2")
    for _ in range(300):
        site.look()

    assert site.held(job) == "1x1"
    assert site.job(job).restarts <= 1
    tries = [a for a in site.acted if isinstance(a, Reshape)]
    assert 1 <= len(tries) <= 4
    settled(site)
    snap = site.ledger.snapshot(site.cluster.observe(), SETTINGS.partitions)
    assert size_histories(snap.booked)[JobId(job)].refused == {Shape(2, 2)}


def test_a_job_that_does_not_get_its_own_size_back_keeps_the_one_it_has() -> None:
    """The size that it was submitted with is always one of its sizes, and is not tried for ever."""
    site = Site(DiscreteLas())
    apply, first = site._apply, site.submit(2)
    ignored = []

    def deaf(action: ClusterAction) -> Unfinished | None:
        if isinstance(action, Reshape) and action.shape == Shape(2, 2):
            ignored.append(action)
            return None
        return apply(action)

    site._apply = deaf
    job = site.submit(4, sizes="1x1,2x2")
    site.job(job).n_nodes = 2
    site.until("it runs in its least size", lambda: site.held(job) == "1x1")
    site.cluster.cancel(JobId(first))
    for _ in range(400):
        site.look()

    assert site.held(job) == "1x1"
    assert site.job(job).restarts <= 2
    assert len(ignored) <= 3


class LimitedCluster(FakeCluster):
    """Slurm holds elastic jobs of more than two GPUs for good, as by a limit for each job."""

    why = Held.LIMIT

    def _held(self, job: FakeJob) -> Held:
        over = job.state is JobState.PENDING and job.sizes and job.gpus > 2
        return self.why if over else super()._held(job)


@pytest.mark.parametrize("why", [Held.LIMIT, Held.UNAVAILABLE], ids=lambda why: why.name)
@pytest.mark.parametrize("grows", [False, True])
def test_a_job_held_in_a_size_that_was_written_gets_one_that_it_had(
    why: Held, *, grows: bool
) -> None:
    """Slurm takes a size that a limit or no node allows, and would keep the job for ever."""
    cluster = LimitedCluster(nodes=1, gpus=4, hold_s=6)
    cluster.why = why
    site = Site(DiscreteLas(), cluster)
    job = site.submit(1, sizes="1x1,1x4")
    if grows:
        other = site.submit(3)
        site.until("it runs", lambda: site.held(job) == "1x1")
        site.cluster.cancel(JobId(other))
    site.until("the large size was written", lambda: site.job(job).gpus > 2)
    site.until("it runs again", lambda: site.held(job) == "1x1")
    for _ in range(100):
        site.look()

    assert site.job(job).restarts == int(grows)
    assert [str(a.shape) for a in site.acted if isinstance(a, Reshape)] == ["1x4", "1x1"]
