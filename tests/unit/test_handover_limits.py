"""What keeps hand-overs from doing harm: to others, again and again, or after the site changed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import build
import numpy as np
import pytest
import streams
from fake_cluster import FakeCluster
from fake_slurm import FakeJob

from slurm_dl.engine.cycle import AppliedAction, Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.preemption.eligibility import PAST_ITS_SHARE, victims
from slurm_dl.engine.preemption.handover_context import DisplacementRule, HandoverContext
from slurm_dl.engine.preemption.handover_protocol import steps_of
from slurm_dl.engine.preemption.handover_verdicts import judge
from slurm_dl.engine.settings import Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Handover, Run, Seal, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import (
    Attach,
    CloseHandover,
    ClusterAction,
    MarkGone,
    OpenHandover,
    Requeue,
    Reserve,
    SetSiteFactor,
    Signal,
    Unseal,
)
from slurm_dl.model.snapshot import LeftOut, Observed, Snapshot
from slurm_dl.placement.resource_request import ResourceRequests
from slurm_dl.policies.base import Order, Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo

POLICY = DiscreteLas(thresholds_gpu_s=(60.0, 400.0))
LIMITS = dataclasses.replace(streams.SETTINGS.preemption, max_preemptions=100, max_grace_s=600)
SETTINGS = dataclasses.replace(streams.SETTINGS, preemption=LIMITS)


def limited(**limits: Any) -> Settings:  # noqa: ANN401 - of `Preemption`
    """`SETTINGS` with other limits."""
    return dataclasses.replace(SETTINGS, preemption=dataclasses.replace(LIMITS, **limits))


def standing(
    state: VictimState,
    told_s: float = 0.0,
    free_s: float = 0.0,
    *,
    victim: int = 1,
    gpus: float = 4.0,
    lead: int = 2,
) -> Handover:
    """A hand-over under its seal; its victim was told, and gone, so many seconds ago."""
    return Handover(
        handover_id=HandoverId(1),
        opened_s=build.NOW_S - 40,
        beneficiaries=(JobId(lead),),
        victims=(
            Victim(
                run=Run(JobId(victim), build.NOW_S - 5000, 0),
                gpus=gpus,
                contract=Contract(),
                state=state,
                signalled_s=told_s and build.NOW_S - told_s,
                gone_s=free_s and build.NOW_S - free_s,
            ),
        ),
        nodes=("n1",),
        attached=(JobId(lead),),
        seal=Seal.STANDING,
    )


@pytest.fixture
def ledger() -> Ledger:
    """One in memory: nothing here is about what a disk keeps."""
    return Ledger(MemoryStore())


def _cycle(
    cluster: FakeCluster,
    ledger: Ledger,
    *,
    policy: Policy = POLICY,
    settings: Settings = SETTINGS,
    on_done: Callable[[AppliedAction], None] = lambda _: None,
) -> Cycle:
    cluster.advance(2)
    return build.cycle(cluster, ledger, policy, settings, on_done=on_done)


def _sunk(cluster: FakeCluster, ledger: Ledger, *jobs: int, **more: object) -> list[JobId]:
    """Opted-in jobs of these GPUs that have been running long enough to sink."""
    victims = [
        cluster.submit(g, work_s=30000, contract=Contract(grace_s=10), **more)  # type: ignore[arg-type]
        for g in jobs
    ]
    for _ in range(40):
        _cycle(cluster, ledger)
    return victims


class Unlucky(FakeCluster):
    """Never starts some jobs, for reasons that only it knows."""

    def __init__(self, *, nodes: int, gpus: int) -> None:
        super().__init__(nodes=nodes, gpus=gpus)
        self.never: set[JobId] = set()

    def _try_start(self, job: FakeJob) -> None:
        if job.job_id not in self.never:
            super()._try_start(job)


def test_what_was_in_vain_is_not_done_again_and_again(ledger: Ledger) -> None:
    """A job that Slurm does not start even with free GPUs costs ever fewer preemptions."""
    cluster = Unlucky(nodes=3, gpus=4)
    _sunk(cluster, ledger, 4, 4, 4)
    hopeless = cluster.submit(4, work_s=10)
    cluster.never.add(hopeless)
    opened = [
        cluster.now_s
        for _ in range(1500)
        for d in _cycle(cluster, ledger).done
        if isinstance(d.action, OpenHandover)
    ]

    gaps = np.diff(opened)
    assert 2 <= len(opened) <= 7
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(gaps))
    assert "did not start it" in _cycle(cluster, ledger).plan.notes[hopeless]


def test_who_started_at_last_is_not_held_back_for_the_past(ledger: Ledger) -> None:
    """A run wipes out what was in vain before it."""
    cluster = Unlucky(nodes=1, gpus=4)
    _sunk(cluster, ledger, 4)
    late = cluster.submit(4, work_s=10)
    cluster.never.add(late)
    for _ in range(60):
        _cycle(cluster, ledger)
    row = int(ledger.service.rows_of(np.array([late]))[0])
    assert ledger.service.fruitless[row] >= 1
    cluster.never.clear()
    for _ in range(100):
        _cycle(cluster, ledger)

    assert cluster.jobs[late].state is JobState.COMPLETED
    assert ledger.service.fruitless[row] == 0


def test_one_that_cannot_be_sealed_for_does_not_keep_others_from_theirs(ledger: Ledger) -> None:
    """Its hand-over is given up soon and not tried again at once; the next job gets its turn."""

    class Refusing(FakeCluster):
        def _do(self, action: ClusterAction) -> None:
            if isinstance(action, Reserve) and 666 in action.uids:
                msg = "no such user"
                raise ClusterError(msg)
            super()._do(action)

    cluster = Refusing(nodes=3, gpus=4)
    _sunk(cluster, ledger, 4, 4, 4)
    cluster.submit(4, work_s=10, uid=666)
    good = cluster.submit(4, work_s=10)
    for _ in range(60):
        _cycle(cluster, ledger, settings=limited(max_handovers=1))

    assert cluster.jobs[good].state is JobState.COMPLETED


@pytest.mark.parametrize("stubborn", [Signal, Requeue])
def test_a_victim_that_cannot_be_acted_on_does_not_strand_the_other(
    stubborn: type[ClusterAction], ledger: Ledger
) -> None:
    """One refuses for ever; the other saved its work on our word and is requeued."""

    class Refusing(FakeCluster):
        def _do(self, action: ClusterAction) -> None:
            if isinstance(action, stubborn) and action.run.job_id == 1:  # type: ignore[attr-defined]
                msg = "Requested operation is presently disabled"
                raise ClusterError(msg)
            super()._do(action)

        def _work(self, job: FakeJob) -> None:
            if job.acked_run != job.restarts:  # Waits for the daemon, however long.
                super()._work(job)

    cluster = Refusing(nodes=2, gpus=4)
    _, other = _sunk(cluster, ledger, 4, 4)
    cluster.submit(8, n_nodes=2, work_s=10)
    for _ in range(20):
        _cycle(cluster, ledger)

    assert cluster.jobs[other].restarts == 1


@pytest.mark.parametrize(
    ("state", "claim", "does"),
    [
        (VictimState.SIGNALLING, Claim(contract=None, acked_run=0), None),
        (VictimState.SIGNALLING, Claim(contract=None), None),
        (VictimState.SIGNALLING, Claim(contract=Contract(), acked_run=0), Signal),
        (VictimState.SIGNALLED, Claim(contract=None, acked_run=0), Requeue),
        (VictimState.SIGNALLED, Claim(contract=None), None),
    ],
)
def test_an_acknowledgement_counts_only_of_who_is_known_to_have_been_told(
    state: VictimState, claim: Claim, does: type[ClusterAction] | None
) -> None:
    """It may be older than a signal that failed, and its owner has withdrawn the contract since."""
    handover = standing(state, 5.0 if state is VictimState.SIGNALLED else 0.0)
    seen = build.observed(
        [build.running(1, 4), build.pending(2, 4)], held={1: {0: 4}}, claims={JobId(1): claim}
    )
    snap = build.snapshot(seen, handovers=[handover])
    context = HandoverContext(
        snap=snap,
        needs=ResourceRequests(snap),
        free=FreeResources.free_in(snap),
        rule=DisplacementRule(
            target=np.array([False, True]),
            tier=np.array([1, 0], dtype=np.int16),
            by_target=True,
            by_tier=True,
            may=np.ones(2, dtype=np.bool_),
        ),
        candidates=victims(snap, LIMITS),
        limits=LIMITS,
    )

    steps = steps_of(handover, judge(handover, context), context, snap.memory.site_factor)
    done = {type(a) for a in steps} & {Signal, Requeue}

    assert done == ({does} if does else set())


def test_gpus_on_their_way_count_against_the_hourly_limit(ledger: Ledger) -> None:
    """Several hand-overs at once do not pass it together."""
    cluster = FakeCluster(nodes=6, gpus=4)
    _sunk(cluster, ledger, *[4] * 6, on_signal="ignore")
    for _ in range(4):
        cluster.submit(4, work_s=500)
    for _ in range(40):
        _cycle(cluster, ledger, settings=limited(max_gpus_per_hour=4))

    assert sum(isinstance(a, Requeue) for a in cluster.applied) == 1


class Stopped(BaseException):
    """The cycle ends here: a pause, a kill."""


def _stop_after(kind: type[ClusterAction]) -> Callable[[AppliedAction], None]:
    def stop(done: AppliedAction) -> None:
        if isinstance(done.action, kind):
            raise Stopped

    return stop


def _until_attached(cluster: FakeCluster, ledger: Ledger) -> JobId:
    """A hand-over that was stopped right before its signal; its victim."""
    [victim] = _sunk(cluster, ledger, 4)
    cluster.submit(4, work_s=50)
    with pytest.raises(Stopped):
        _cycle(cluster, ledger, on_done=_stop_after(Attach))
    return victim


def test_nobody_is_signalled_under_a_seal_that_ends_too_soon(ledger: Ledger) -> None:
    """After a long pause the reservation would lapse in the middle of the grace."""
    cluster = FakeCluster(nodes=1, gpus=4)
    victim = _until_attached(cluster, ledger)
    for reservation in cluster.reservations.values():
        reservation.end_s = cluster.now_s + 10
    old = next(iter(cluster.reservations))
    _cycle(cluster, ledger)

    assert old not in cluster.reservations
    assert not cluster.jobs[victim].signals


def test_what_was_being_undone_is_undone(ledger: Ledger) -> None:
    """Killed between taking the seal away and closing: no signal without a seal."""
    cluster = FakeCluster(nodes=1, gpus=4)
    victim = _until_attached(cluster, ledger)
    with pytest.raises(Stopped):
        _cycle(cluster, ledger, settings=limited(enabled=False), on_done=_stop_after(Unseal))
    [handover] = ledger.handovers
    assert handover.seal is Seal.RELEASED
    _cycle(cluster, ledger)

    assert handover.handover_id not in [h.handover_id for h in ledger.handovers]
    assert not cluster.jobs[victim].signals or cluster.reservations


def test_another_policy_or_partition_undoes_what_was_not_signalled() -> None:
    """A reload counts for hand-overs that were drafted before it."""
    changes: list[dict[str, object]] = [
        {"policy": Fifo()},
        {"settings": dataclasses.replace(SETTINGS, partitions=frozenset({"cpu"}))},
        {"settings": limited(min_quantum_s=1e6)},
    ]
    for change in changes:
        cluster = FakeCluster(nodes=1, gpus=4)
        book = Ledger(MemoryStore())
        victim = _until_attached(cluster, book)
        for _ in range(5):
            _cycle(cluster, book, **change)  # type: ignore[arg-type]

        assert not cluster.jobs[victim].signals, change
        assert not book.handovers
        assert not cluster.reservations


def test_a_record_that_could_not_be_read_is_no_job_that_left(ledger: Ledger) -> None:
    """Unknown is not zero."""

    class Blind(FakeCluster):
        hidden: JobId | None = None

        def observe(self) -> Observed:
            seen = super().observe()
            if self.hidden is None:
                return seen
            keep = seen.jobs.job_id != self.hidden
            held = dataclasses.replace(
                seen.held,
                **{f: getattr(seen.held, f)[:0] for f in ("job", "node", "gpus", "cpus", "mem_mb")},
            )
            left_out = {self.hidden: LeftOut(uid=1, label=str(self.hidden))}
            jobs = seen.jobs.take(keep)
            return dataclasses.replace(seen, jobs=jobs, held=held, left_out=left_out, unreadable=1)

    cluster = Blind(nodes=1, gpus=4)
    [victim] = _sunk(cluster, ledger, 4, on_signal="ignore")
    cluster.submit(4, work_s=50)
    while not cluster.jobs[victim].signals:
        _cycle(cluster, ledger)
    cluster.hidden = victim
    done = _cycle(cluster, ledger).done
    cluster.hidden = None

    assert not [d for d in done if isinstance(d.action, MarkGone)]
    for _ in range(10):
        _cycle(cluster, ledger)
    assert cluster.jobs[victim].restarts == 1


def test_the_margin_begins_when_the_gpus_are_free() -> None:
    """A victim whose epilog is still running holds its GPUs: it is not gone."""
    handover = standing(VictimState.REQUEUING, 5)

    def plan_when(state: JobState) -> list[type]:
        ending = dataclasses.replace(build.pending(1, 4, restarts=1), state=state)
        seen = build.observed([ending, build.pending(2, 4)])
        plan = decide(build.snapshot(seen, handovers=[handover]), POLICY, SETTINGS)
        return [type(a) for a in plan.actions if not isinstance(a, SetSiteFactor)]

    assert plan_when(JobState.COMPLETING) == []
    assert plan_when(JobState.PENDING) == [MarkGone]


@pytest.mark.parametrize(
    ("free_for_s", "left_out", "ends"),
    [(5, 2, ""), (5, 3, "no beneficiary is waiting any more"), (13, 2, "did not start all")],
)
def test_gpus_are_kept_for_who_is_left_out_of_a_look_but_not_for_ever(
    free_for_s: float, left_out: int, ends: str
) -> None:
    """Its record changed while it was read: whether it still waits is not known."""
    handover = standing(VictimState.GONE, 30, free_for_s)
    left = {JobId(left_out): LeftOut(uid=1, label=str(left_out))}
    seen = build.observed([build.pending(1, 4, restarts=1)], left_out=left, unreadable=1)
    plan = decide(build.snapshot(seen, handovers=[handover]), POLICY, SETTINGS)

    closed = [a.outcome for a in plan.actions if isinstance(a, CloseHandover)]
    assert [ends in outcome for outcome in closed] == ([True] if ends else [])


def _two_partitions() -> Snapshot:
    rows = [build.pending(i, 4) for i in range(1, 11)]
    rows += [build.running(100, 4), build.pending(200, 4, partition=1)]
    rows += [build.running(101, 4, partition=1)]
    held, node_in = {100: {0: 4}, 101: {1: 4}}, np.array([[True, False], [False, True]])
    seen = build.observed(rows, nodes=(4, 4), held=held, opted_in=[101], node_in=node_in)
    snap = build.snapshot(seen, memory={"attained_gpu_s": {100: 1e6, 101: 1e6}})
    return dataclasses.replace(snap, managed=np.array([True, True]))


def test_one_partitions_queue_does_not_hide_anothers() -> None:
    """The window is counted in each partition."""
    both = Settings(partitions=frozenset({"gpu", "other"}), window=10, preemption=LIMITS)
    plan = decide(_two_partitions(), POLICY, both)

    [opened] = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
    assert opened.beneficiaries == (JobId(200),)


def test_seals_never_overlap() -> None:
    """Who holds a node of one hand-over is no victim of another."""
    first = standing(VictimState.SIGNALLED, 1, victim=50, gpus=2.0, lead=1)
    rows = [build.running(60, 4, n_nodes=2), build.running(50, 2), build.running(70, 2)]
    rows += [build.pending(1, 2), build.pending(2, 2)]
    held = {60: {0: 2.0, 1: 2.0}, 50: {0: 2.0}, 70: {1: 2.0}}
    seen = build.observed(rows, nodes=(4, 4), held=held, opted_in=[60, 50])
    memory = {"attained_gpu_s": {60: 1e6, 50: 1e6, 70: 1e6}}
    plan = decide(build.snapshot(seen, memory=memory, handovers=[first]), POLICY, SETTINGS)

    assert not [a for a in plan.actions if isinstance(a, OpenHandover)]


def test_shares_of_a_gpu_do_not_fill_whole_ones() -> None:
    """Four jobs of an eighth leave room for three whole GPUs on a node of four."""
    rows = [build.running(60, 4), *(build.pending(i, 0.125) for i in range(1, 5))]
    rows.append(build.pending(10, 3))
    seen = build.observed(rows, nodes=(4, 4), held={60: {0: 4.0}}, opted_in=[60])
    plan = decide(build.snapshot(seen, memory={"attained_gpu_s": {60: 1e6}}), POLICY, SETTINGS)

    assert not [a for a in plan.actions if isinstance(a, OpenHandover)]


@pytest.mark.parametrize(
    ("until", "limit_s", "ran_s", "may"),
    [
        (0.8, 1000, 799, True),
        (0.8, 1000, 801, False),
        (0.5, 1000, 501, False),
        (1.0, 1000, 999, True),
        (None, 1000, 999, True),
        (0.5, math.inf, 1e6, True),
    ],
)
def test_a_run_past_its_share_of_the_time_limit_is_no_victim(
    until: float | None, limit_s: float, ran_s: float, *, may: bool
) -> None:
    """Its owner said from when on a signal costs more than time; others are not spared."""
    rows = [build.running(j, ran_s=ran_s, limit_s=limit_s) for j in (1, 2)]
    claims = {JobId(j): Claim(contract=Contract(), until=u) for j, u in ((1, None), (2, until))}
    snap = build.snapshot(build.observed(rows, claims=claims))

    found = victims(snap, LIMITS)

    assert found.may.tolist() == ([0, 1] if may else [0])
    assert found.why_not(1) == ("" if may else PAST_ITS_SHARE)
    assert found.lasting.tolist() == ([] if may else [1]), "it is so to the end of the run"


@pytest.mark.parametrize(("managed", "factors"), [((True, True), {1, 2}), ((True, False), {2})])
def test_jobs_that_name_several_partitions(managed: tuple[bool, bool], factors: set[int]) -> None:
    """They are ordered if all of those are managed, and left to Slurm otherwise."""
    rows = [build.pending(1), build.pending(2)]
    seen = build.observed(rows, also_in={JobId(1): (1,)})
    snap = dataclasses.replace(build.snapshot(seen), managed=np.array(managed))
    plan = decide(snap, POLICY, SETTINGS)

    assert {a.job_id for a in plan.actions if isinstance(a, SetSiteFactor)} == factors


def _nonsense(tier: int = 0, key: float = 0.0, short: int = 0) -> Policy:
    class Nonsense(Fifo):
        def order(self, snap: Snapshot, /) -> Order:
            n = len(snap.jobs) - short
            return Order(
                tier=np.full(n, tier, dtype=np.int16),
                key=np.full(n, key),
                promote=np.zeros(n, dtype=np.bool_),
                tiers=1,
            )

    return Nonsense()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (_nonsense(tier=1), "tiers outside 0 to 0"),
        (_nonsense(tier=-1), "tiers outside"),
        (_nonsense(key=math.nan), "not a number"),
        (_nonsense(short=1), "for 1 jobs"),
    ],
)
def test_a_policy_that_returns_nonsense_is_named(policy: Policy, words: str) -> None:
    """Nothing is done by such an order."""
    with pytest.raises(ValueError, match=words):
        decide(build.snapshot(build.observed([build.pending(1)])), policy, SETTINGS)


def test_nobody_is_promoted_for_having_been_held(ledger: Ledger) -> None:
    """Only waiting for room is waiting; a hold buys no place in the first tier."""
    policy = DiscreteLas(thresholds_gpu_s=(60.0, 400.0), promote_knob=1.0)
    cluster = FakeCluster(nodes=1, gpus=4, hold_s=120)
    [job] = _sunk(cluster, ledger, 4)
    cluster.submit(4, work_s=30000)
    run = Run(job, cluster.jobs[job].start_s, 0)
    ran_s = cluster.now_s - run.start_s
    cluster.apply(Requeue(handover_id=HandoverId(1), run=run, why="by hand"))
    free_from_s = cluster.jobs[job].eligible_s
    promoted_s = math.inf
    while promoted_s == math.inf and cluster.now_s < free_from_s + 300:
        cycle = _cycle(cluster, ledger, policy=policy)
        if cycle.plan.tier[cycle.snapshot.jobs.row_of()[job]] == 0:
            promoted_s = cluster.now_s

    assert ran_s < 120
    assert promoted_s == pytest.approx(free_from_s + ran_s, abs=4)
