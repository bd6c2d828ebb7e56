"""Running jobs move to free GPUs of a faster type, once, and only if it is worth a restart."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import build
import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot
from elastic_jobs import sizes_of
from fake_cluster import FakeCluster

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Overdue, Placement, Preemption, Resizing, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.plan import Action, Attach, MarkGone, OpenHandover, Requeue, Reserve, Signal
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Fixed, Snapshot
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.policies.base import Order, Policy
from slurm_dl.policies.elastic.pollux import Pollux
from slurm_dl.policies.elastic.sia import Sia
from slurm_dl.policies.gavel.queues import GavelFifo

LIMITS = Preemption(
    min_quantum_s=0, cooldown_s=0, limit_reserve_s=0, checkpoint_cost_s=60, handover_timeout_s=100
)
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=LIMITS,
    placement=Placement(scheme=BestFit(), steer=True),
    overdue=Overdue(after_s=0),
    lease_window=0.5,
)
UNSTEERED = dataclasses.replace(SETTINGS, placement=Placement())
POLICY = GavelFifo(lease_s=100.0)
LOOK_S = 3
SLOW, FAST = 0, 1
FOURFOLD = np.array([1.0, 4.0])
"""Speed on the slow and on the fast type."""


def snapshot_of(
    rows: list[JobRow],
    held: dict[int, dict[int, float]],
    *,
    kinds: tuple[int, ...] = (SLOW, FAST),
    rates: tuple[float, float] = (1.0, 4.0),
    opted_in: tuple[int, ...] = (1,),
    left_s: float = 1000.0,
    memory: dict[str, dict[int, float]] | None = None,
    **more: Any,  # noqa: ANN401
) -> Snapshot:
    """At the end of a lease, nodes of 4 GPUs of the types *kinds*."""
    nodes, columns = (4,) * len(kinds), {"gpu_type": kinds}
    seen = observed(rows, nodes=nodes, held=held, opted_in=opted_in, columns=columns)
    snap = snapshot(seen, rates=np.tile(rates, (len(rows), 1)), memory=memory, **more)
    return dataclasses.replace(snap, left_s=np.full(len(rows), left_s))


def moves_in(snap: Snapshot, settings: Settings = SETTINGS) -> dict[int, tuple[str, ...]]:
    """The jobs that a plan moves, and where to."""
    opened = [a.handover for a in decide(snap, POLICY, settings).actions if is_opened(a)]
    return {int(h.victims[0].run.job_id): h.seats for h in opened if h.purpose == "reshape"}


def is_opened(action: object) -> bool:
    """Whether a hand-over begins."""
    return isinstance(action, OpenHandover)


def failed_after_s(age_s: float) -> dict[str, dict[int, float]]:
    """The ledger of job 1, whose move failed 100 s ago, *age_s* after its first start."""
    return {
        "last_fruitless_s": {1: NOW_S - 100},
        "first_run_s": {1: NOW_S - 100 - age_s},
    }


LIMITED = dataclasses.replace(SETTINGS, preemption=dataclasses.replace(LIMITS, max_handovers=0))


@pytest.mark.parametrize(
    ("more", "settings", "expected"),
    [
        ({}, SETTINGS, {1: ("n2",)}),
        # 1000 s on slow GPUs, 950 s on these: 50 s are less than the restart.
        ({"rates": (1.0, 1.0 / 0.95)}, SETTINGS, {}),
        ({"rates": (4.0, 1.0)}, SETTINGS, {}),
        ({"left_s": 70.0}, SETTINGS, {}),
        ({"opted_in": ()}, SETTINGS, {}),
        ({}, LIMITED, {}),
        ({}, UNSTEERED, {}),
        ({"kinds": (SLOW, SLOW)}, SETTINGS, {}),
        # A move failed 100 s ago, 300 s after the first start: not before 300 s have passed.
        ({"memory": failed_after_s(300)}, SETTINGS, {}),
        ({"memory": failed_after_s(50)}, SETTINGS, {1: ("n2",)}),
    ],
    ids=[
        *("worth it", "not worth a restart", "slower", "nearly done", "not opted in", "limit"),
        *("not steered", "no such GPUs", "failed late", "failed soon"),
    ],
)
def test_a_job_moves_to_faster_gpus_that_are_free(
    more: dict[str, Any], settings: Settings, expected: dict[int, tuple[str, ...]]
) -> None:
    """It holds the slow node, and the fast one is free."""
    snap = snapshot_of([running(1, 4)], {1: {0: 4.0}}, **more)

    assert moves_in(snap, settings) == expected


def test_gpus_go_to_waiting_jobs_first_and_to_the_job_that_gains_most() -> None:
    """Of two jobs on slow GPUs one fits on the fast node; a waiting job has a claim on none."""
    rows = [running(1, 4), running(2, 4)]
    held = {1: {0: 4.0}, 2: {1: 4.0}}
    snap = snapshot_of(rows, held, kinds=(SLOW, SLOW, FAST), opted_in=(1, 2))
    more = dataclasses.replace(snap, left_s=np.array([1000.0, 2000.0]))
    # By Gavel's FIFO the fast GPUs are the first job's.
    assert moves_in(more) == {1: ("n3",)}

    both = snapshot_of([*rows, pending(3, 4)], held, kinds=(SLOW, SLOW, FAST), opted_in=(1, 2, 3))
    first = dataclasses.replace(
        both,
        memory=dataclasses.replace(both.memory, queued_s=np.array([NOW_S, NOW_S, NOW_S - 9e5])),
    )
    assert moves_in(first) == {}


class Site:
    """A node of slow and a node of fast GPUs, looked at every three seconds."""

    def __init__(self, *, hold_s: float) -> None:
        self.cluster = FakeCluster(nodes=2, gpus=4, hold_s=hold_s, gpu_types=("k80", "v100"))
        self.ledger = Ledger(MemoryStore())
        self.opened: list[Handover] = []

    def look(self) -> Cycle:
        """One cycle, and the time until the next."""

        def enrich(snap: Snapshot) -> Snapshot:
            return dataclasses.replace(snap, rates=np.tile(FOURFOLD, (len(snap.jobs), 1)))

        cycle = build.cycle(self.cluster, self.ledger, POLICY, SETTINGS, enrich=enrich)
        done = [d.action for d in cycle.done if not d.error]
        self.opened += [a.handover for a in done if isinstance(a, OpenHandover)]
        self.cluster.advance(LOOK_S)
        return cycle

    def submit(self, *, node: str, work_s: float) -> JobId:
        """A job that starts on *node* and may then run on either."""
        job_id = self.cluster.submit(4, work_s=work_s, contract=Contract(), limit_s=100_000)
        job = self.cluster.jobs[job_id]
        job.wanted = (int(node == "n2"),)
        self.cluster.advance(1)
        job.wanted = ()
        assert job.state is JobState.RUNNING
        return job_id


def test_once_the_fast_gpus_come_free_the_job_beside_them_moves() -> None:
    """A whole hand-over on the cluster in memory: seal, signal, requeue, attach, start."""
    site = Site(hold_s=20)
    site.submit(node="n2", work_s=50)
    slow = site.submit(node="n1", work_s=50_000)

    for _ in range(100):
        site.look()

    job = site.cluster.jobs[slow]
    assert (job.nodes, job.restarts, len(job.signals)) == ((1,), 1, 1)
    assert not site.cluster.reservations
    done = [type(a) for a in site.cluster.applied]
    assert (done.count(Reserve), done.count(Attach)) == (1, 1)
    assert [h.purpose for h in site.opened] == ["reshape"]
    assert not site.ledger.snapshot(site.cluster.observe(), SETTINGS.partitions).handovers


def test_a_job_whose_move_failed_is_not_moved_at_each_lease() -> None:
    """Slurm starts the requeued job again before it could be attached: it is back where it was."""
    site = Site(hold_s=1)
    slow = site.submit(node="n1", work_s=50_000)

    for _ in range(800):
        site.look()

    # 24 leases. The pause after each try is about twice the one before.
    tries = [h.opened_s - site.opened[0].opened_s for h in site.opened]
    job = site.cluster.jobs[slow]
    assert job.nodes == (0,)
    assert 2 <= len(tries) <= 6
    assert all(later >= 1.9 * earlier for earlier, later in itertools.pairwise(tries))
    assert not site.cluster.reservations


SCALES, FLAT = (1.0, 4.0), (1.0, 1.1)
"""Speed on the slow and on the fast type."""


class Pairs(Site):
    """Two slow and two fast GPUs, and two jobs that may have one or two of either."""

    def __init__(self, policy: Policy, *, hold_s: float = 20, setup_s: float = 10) -> None:
        super().__init__(hold_s=hold_s)
        self.cluster = FakeCluster(nodes=2, gpus=2, hold_s=hold_s, gpu_types=("k80", "v100"))
        self.policy, self.setup_s = policy, setup_s
        self.before: Callable[[Action], None] = lambda _: None
        self.speeds: dict[JobId, tuple[float, float]] = {}

    def look(self) -> Cycle:
        """One cycle, and the time until the next."""
        cycle = build.cycle(
            self.cluster, self.ledger, self.policy, CHANGING, enrich=self.enrich, before=self.before
        )
        done = [d.action for d in cycle.done if not d.error]
        self.opened += [a.handover for a in done if isinstance(a, OpenHandover)]
        self.cluster.advance(LOOK_S)
        return cycle

    def enrich(self, snap: Snapshot) -> Snapshot:
        """*snap* with the sizes and speeds of both jobs."""
        n, ids = len(snap.jobs), snap.jobs.job_id.tolist()
        sizes = sizes_of(dict.fromkeys(range(n), ((1.0, 1.0), (2.0, 1.9))))
        on_type = np.outer([1.0, 1.9] * n, (1.0, 1.0))
        on_type *= np.repeat([self.speeds[JobId(j)] for j in ids], 2, axis=0)
        return dataclasses.replace(
            snap,
            rates=np.array([self.speeds[JobId(j)] for j in ids]),
            sizes=dataclasses.replace(sizes, on_type=on_type),
            left_s=np.full(n, 50_000.0),
            setup_s=np.full(n, self.setup_s),
        )

    def training(self, speeds: tuple[float, float], *, node: str, opted_in: bool = True) -> JobId:
        """A job that starts with the two GPUs of *node*."""
        contract = Contract() if opted_in else None
        job_id = self.cluster.submit(2, work_s=50_000, contract=contract, limit_s=100_000)
        job = self.cluster.jobs[job_id]
        job.sizes = (Shape(1, 1), Shape(1, 2))
        job.wanted = (int(node == "n2"),)
        self.cluster.advance(1)
        job.wanted = ()
        self.speeds[job_id] = speeds
        return job_id


CHANGING = dataclasses.replace(
    SETTINGS, resizing=Resizing(expand=False, steadiness=1.0, cooldown_s=3)
)


@pytest.mark.parametrize(
    ("policy", "speeds", "setup_s"),
    # With the last one the other job is to hold no GPUs for now, as its restart is dear.
    [(Sia(), SCALES, 10), (Pollux(), SCALES, 10), (Sia(), (1.0, 100.0), 1000)],
    ids=["sia", "pollux", "sia, dear restarts"],
)
def test_running_jobs_exchange_types_if_that_is_worth_both_restarts(
    policy: Policy, speeds: tuple[float, float], setup_s: float
) -> None:
    """Nobody waits and nothing is free: the job that scales gets the fast pair, for good."""
    site = Pairs(policy, setup_s=setup_s)
    flat, scales = site.training(FLAT, node="n2"), site.training(speeds, node="n1")
    for _ in range(80):
        site.look()

    one, two = site.cluster.jobs[scales], site.cluster.jobs[flat]
    assert (one.nodes, two.nodes) == ((1,), (0,))
    assert (one.restarts, two.restarts) == (1, 1)
    assert [[v.run.job_id for v in h.victims] for h in site.opened] == [[scales, flat]]
    # Room is kept for the one alone: with a claim on it the other would wait there.
    assert {a.job_id for a in site.cluster.applied if isinstance(a, Attach)} == {scales}
    assert not site.cluster.reservations


@pytest.mark.parametrize(
    ("held", "other", "opted_in"),
    [(FLAT, (1.0, 1.11), True), (FLAT, SCALES, False), (SCALES, FLAT, True)],
    ids=["not worth it", "may not be preempted", "as it should be"],
)
def test_otherwise_they_stay(
    held: tuple[float, float], other: tuple[float, float], *, opted_in: bool
) -> None:
    site = Pairs(Sia())
    site.training(held, node="n2", opted_in=opted_in)
    site.training(other, node="n1")
    for _ in range(40):
        site.look()

    assert not site.opened


def test_an_exchange_that_slurm_undoes_is_not_tried_at_each_look() -> None:
    """It starts the requeued job again on the slow pair before that could be attached."""
    site = Pairs(Pollux(), hold_s=6)
    site.training(FLAT, node="n2")
    scales = site.training(SCALES, node="n1")
    for _ in range(400):
        site.look()

    first, second, *_ = (h.opened_s for h in site.opened)
    assert site.cluster.jobs[scales].nodes == (0,)
    assert second - first >= LIMITS.handover_timeout_s


WHATS = ("cancels", "fails", "requeues", "recants", "n1", "n2", "daemon")


@pytest.mark.long
@pytest.mark.parametrize("at", [OpenHandover, Signal, Requeue, MarkGone, Attach])
@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("is_giver", [False, True])
def test_an_exchange_goes_wrong_at_a_step(at: type[Action], what: str, *, is_giver: bool) -> None:
    """It ends, leaves nothing behind, and each job that is left runs on the type that is its."""
    site = Pairs(Sia())
    jobs = [site.training(FLAT, node="n2"), site.training(SCALES, node="n1")]
    job, cluster, struck = site.cluster.jobs[jobs[not is_giver]], site.cluster, list[Action]()

    def strike(action: Action) -> None:
        if struck or not isinstance(action, at):
            return
        struck.append(action)
        if what == "cancels":
            cluster.cancel(job.job_id)
        elif what == "recants":
            job.contract = None
        elif what in ("n1", "n2"):
            cluster.lose_node(what)
        elif what == "daemon":
            raise KeyboardInterrupt
        elif job.state is JobState.RUNNING:
            (cluster.crash if what == "fails" else cluster.requeue)(job.job_id)

    site.before = strike
    for turn in range(100):
        with contextlib.suppress(KeyboardInterrupt):
            site.look()
        if turn == 50:
            cluster.down_nodes.clear()
    assert struck
    assert not cluster.reservations
    assert not site.ledger.handovers
    alive = [cluster.jobs[j] for j in jobs if cluster.jobs[j].state is not JobState.FAILED]
    assert max(j.restarts for j in alive) <= 2
    assert len(alive) < 2 or [j.nodes for j in alive] == [(0,), (1,)]


def test_nodes_that_come_free_by_one_exchange_are_no_room_for_another() -> None:
    """The giver holds two fast nodes, of which the first job that moves needs one."""
    sizes = dataclasses.replace(
        sizes_of({0: ((4.0, 1.0),), 1: ((4.0, 1.0),), 2: ((8.0, 1.0),)}),
        nodes=np.array([1, 1, 2], dtype=np.int32),
        on_type=np.array([[1.0, 4.0], [1.0, 3.9], [1.0, 1.1]]),
    )
    snap = snapshot_of(
        [running(1, 4), running(2, 4), running(3, 8, n_nodes=2)],
        {1: {0: 4.0}, 2: {1: 4.0}, 3: {3: 4.0, 4: 4.0}},
        kinds=(SLOW, SLOW, SLOW, FAST, FAST), opted_in=(1, 2, 3), left_s=50_000.0,
        sizes=sizes, setup_s=np.full(3, 10.0),
    )  # fmt: skip
    opened = [a.handover for a in decide(snap, Sia(), CHANGING).actions if is_opened(a)]

    assert [[v.run.job_id for v in h.victims] for h in opened] == [[1, 3]]


class Asked(Sia):
    """Sia, which remembers the last snapshot that it was asked about."""

    last: ClassVar[list[Snapshot]] = []

    def order(self, snap: Snapshot, /) -> Order:
        """Remember *snap*."""
        self.last[:] = [snap]
        return super().order(snap)


@pytest.mark.parametrize(
    ("enabled", "fixed"),
    [
        (True, {1: Fixed.NO, 2: Fixed.ALL, 3: Fixed.GROWTH, 4: Fixed.NO}),
        (False, {1: Fixed.ALL, 2: Fixed.ALL, 3: Fixed.ALL, 4: Fixed.NO}),
    ],
)
def test_policies_that_choose_sizes_know_what_jobs_keep(
    *, enabled: bool, fixed: dict[int, Fixed]
) -> None:
    """An old run, one without a contract, one in its minimum quantum, and a job that waits."""
    ages_s = {1: 1000.0, 2: 1000.0, 3: 10.0}
    rows = [running(j, 2, ran_s=age_s) for j, age_s in ages_s.items()]
    seen = observed([*rows, pending(4, 2)], held={j: {j - 1: 2.0} for j in ages_s})
    claims = {JobId(j): Claim(contract=None if j == 2 else Contract()) for j in fixed}
    sizes = sizes_of(dict.fromkeys(range(4), ((1.0, 1.0), (2.0, 1.9))))
    snap = snapshot(dataclasses.replace(seen, claims=claims), sizes=sizes)
    preemption = dataclasses.replace(LIMITS, min_quantum_s=100, enabled=enabled)
    policy = Asked()
    decide(snap, policy, dataclasses.replace(CHANGING, preemption=preemption))

    (asked,) = policy.last
    assert asked.fixed is not None
    assert dict(zip(asked.jobs.job_id.tolist(), asked.fixed.tolist(), strict=True)) == fixed
