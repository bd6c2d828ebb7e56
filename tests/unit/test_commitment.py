"""GPU time that nobody can take back counts as service, and a contract holds for its run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import build
import numpy as np
import pasts
import pytest
from fake_cluster import FakeCluster

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.intent import rank_jobs
from slurm_dl.engine.preemption.commitment import UNLIMITED_S, with_commitment
from slurm_dl.engine.settings import Overdue, Preemption, Settings
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.booking import Entry, entry
from slurm_dl.model.contract import SIGNALS, Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.plan import Book, OpenHandover
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_gittins import DiscreteGittins
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.elas import Elas
from slurm_dl.policies.fifo import FifoSkip
from slurm_dl.policies.gittins import Gittins
from slurm_dl.policies.karuna import Karuna
from slurm_dl.policies.las import Las
from slurm_dl.policies.learned_gittins import LearnedGittins
from slurm_dl.simulation.forward.initial_state import beginning

HOUR_S = 3600.0
LIMITS = Preemption(min_quantum_s=0, cooldown_s=0, limit_reserve_s=0)
SETTINGS = Settings(partitions=frozenset({"gpu"}), preemption=LIMITS, overdue=Overdue(after_s=0))


def broken(at_s: float, uid: int = 7) -> tuple[Entry, ...]:
    """The user's job 99 was taken out of its contract."""
    return (entry("broken_contract", uid, {"job_id": 99, "at_s": at_s}),)


@pytest.mark.parametrize(
    ("claim", "row", "limits", "booked", "expected_s"),
    [
        (Claim(contract=Contract()), {}, {}, (), 0.0),
        (None, {}, {}, (), 10 * HOUR_S),
        (None, {"limit_s": np.inf}, {}, (), UNLIMITED_S),
        (None, {"limit_s": np.inf, "gpus": 0.0}, {}, (), UNLIMITED_S),
        (Claim(contract=Contract(grace_s=5000)), {}, {}, (), 10 * HOUR_S),
        (Claim(contract=Contract()), {"requeueable": False}, {}, (), 10 * HOUR_S),
        (Claim(contract=Contract(), until=0.5), {}, {"limit_reserve_s": 600}, (), 3 * HOUR_S - 600),
        (Claim(contract=Contract(), until=1.0), {}, {"limit_reserve_s": 600}, (), 0.0),
        # submitit's jobs have the last fifth; without a limit no share is ever over.
        (Claim(contract=Contract(), until=0.8), {}, {}, (), 0.0),
        (Claim(contract=Contract(), until=0.5), {"limit_s": np.inf}, {}, (), 0.0),
        (Claim(until=1.0), {}, {}, (), 10 * HOUR_S),
        # Damaged.
        (Claim(contract=Contract()), {}, {}, (entry("broken_contract", 7, {"at_s": "x"}),), 0.0),
        (Claim(contract=Contract()), {}, {}, (entry("broken_contract", "y", {}),), 0.0),
        (None, {}, {"exempt_accounts": ("cannot",)}, (), 0.0),
        (None, {}, {"exempt_accounts": ("other",)}, (), 10 * HOUR_S),
        (Claim(contract=Contract()), {}, {}, broken(build.NOW_S - 86_400), 10 * HOUR_S),
        (Claim(contract=Contract()), {}, {}, broken(build.NOW_S - 8 * 86_400), 0.0),
        (Claim(contract=Contract()), {}, {}, broken(build.NOW_S - 86_400, uid=8), 0.0),
        (None, {}, {"commitment": "ignored"}, (), None),
        (None, {}, {"enabled": False}, (), None),
    ],
)
def test_a_job_commits_what_nobody_can_take_back(
    claim: Claim | None,
    row: dict[str, Any],
    limits: dict[str, Any],
    booked: tuple[Entry, ...],
    expected_s: Any,  # noqa: ANN401
) -> None:
    """Of each run: the time in which it could not be preempted."""
    job = build.pending(1, **{"limit_s": 10 * HOUR_S, "uid": 7, "gpus": 4.0, **row})
    seen = build.observed(
        [job],
        claims={} if claim is None else {JobId(1): claim},
        texts=build.texts(account={1: "cannot"}),
    )
    snap = dataclasses.replace(build.snapshot(seen), booked=booked)
    counted = with_commitment(snap, DiscreteLas(), dataclasses.replace(LIMITS, **limits))

    if expected_s is None:
        assert counted.committed_s is None
        return
    assert counted.committed_s is not None
    assert counted.committed_s.tolist() == pytest.approx([expected_s])
    assert counted.service().tolist() == pytest.approx([job.gpus * expected_s])
    assert counted.service(1).tolist() == pytest.approx([expected_s])


def queue(*rows: JobRow, opted_in: tuple[int, ...], **more: Any) -> Snapshot:  # noqa: ANN401
    """A full cluster of two long runs that may be preempted, and *rows* that wait."""
    runs = [build.running(1, 4, limit_s=9e4), build.running(2, 4, limit_s=9e4)]
    seen = build.observed(
        [*runs, *rows],
        nodes=(4, 4),
        held={1: {0: 4.0}, 2: {1: 4.0}},
        opted_in=(1, 2, *opted_in),
        **more,
    )
    return build.snapshot(seen, memory={"attained_gpu_s": {1: 90_000.0, 2: 90_000.0}})


POLICIES: tuple[Policy, ...] = (
    *(DiscreteLas(), DiscreteLas(dimensions=1), Las(), Las(dimensions=1), Elas(), Karuna()),
    *(
        Gittins(sizes_gpu_s=(6e2, 6e3, 6e4, 6e5)),
        DiscreteGittins(),
        LearnedGittins(use_limits=False),
    ),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_under_least_attained_service_who_keeps_gpus_waits_longer_at_the_start(
    policy: Policy,
) -> None:
    """A plain job came first and ranks behind one that opted in; a short plain one before it."""
    rows = (
        build.pending(3, 4, limit_s=20 * HOUR_S),
        build.pending(4, 4, limit_s=20 * HOUR_S),
        build.pending(5, 4, limit_s=300.0),
    )
    past = pasts.past_of([pasts.Over("u", "n", 4, 60.0 * 2**k) for k in range(10)] * 5)
    snap = dataclasses.replace(queue(*rows, opted_in=(4,)), past=past)
    ranks = {}
    for word in ("counted", "ignored"):
        asked = with_commitment(snap, policy, dataclasses.replace(LIMITS, commitment=word))
        ranked = rank_jobs(asked, policy.order(asked), policy.preempts)
        ranks[word] = {int(snap.jobs.job_id[row]): place for place, row in enumerate(ranked)}

    assert ranks["ignored"][3] < ranks["ignored"][4] < ranks["ignored"][5]
    assert max(ranks["counted"][4], ranks["counted"][5]) < ranks["counted"][3]


def test_why_says_what_the_choice_costs() -> None:
    """GPU-hours and both places; nothing for who counts none, and under a policy that does not."""
    rows = (build.pending(3, 4, limit_s=12 * HOUR_S), build.pending(4, 4, limit_s=12 * HOUR_S))
    snap = queue(*rows, opted_in=(4,))
    told = {}
    for policy in (DiscreteLas(), FifoSkip()):
        plan = decide(snap, policy, SETTINGS)
        cycle = Cycle(snap, plan, acting=True, settings=SETTINGS)
        told[policy.name] = [" ".join(why(cycle, policy, JobId(j))) for j in (3, 4)]

    plain, opted_in = told["discrete_las"]
    assert "48.00 GPU-hours" in plain
    assert "With a contract it would count none: place 1 in place of 4" in plain
    assert "nobody can take back" not in opted_in
    assert not any("nobody can take back" in text for text in told["fifo_skip"])


def observe(ledger: Ledger, cluster: FakeCluster) -> Snapshot:
    """One look, booked."""
    seen = cluster.observe()
    ledger.book(seen)
    return ledger.snapshot(cluster.observe(), SETTINGS.partitions)


SAVES = Contract(signal="USR2", target="steps", grace_s=60.0, requeued_by="job")


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [
        (Claim(contract=SAVES), Claim(), Claim(contract=SAVES)),
        (
            Claim(contract=SAVES),
            Claim(contract=dataclasses.replace(SAVES, grace_s=500.0)),
            Claim(contract=SAVES),
        ),
        (
            Claim(contract=SAVES),
            Claim(contract=Contract(grace_s=20.0)),
            Claim(contract=Contract(grace_s=20.0)),
        ),
        (Claim(contract=SAVES), Claim(contract=SAVES, until=0.5), Claim(contract=SAVES)),
        (
            Claim(contract=SAVES, until=0.8),
            Claim(contract=SAVES, until=0.5),
            Claim(contract=SAVES, until=0.8),
        ),
        (Claim(contract=SAVES, until=0.8), Claim(contract=SAVES), Claim(contract=SAVES)),
        (Claim(contract=SAVES), Claim(unreadable=True), Claim(contract=SAVES)),
        (Claim(), Claim(contract=SAVES), Claim(contract=SAVES)),
    ],
)
def test_a_contract_holds_for_the_run_that_began_with_it(
    tmp_path: Path, before: Claim, after: Claim, holds: Claim
) -> None:
    """Changes that ease a preemption count at once, others from the next run on."""
    cluster = ClaimingCluster(nodes=1, gpus=4)
    job = cluster.submit(4, work_s=10_000)
    path = tmp_path / "ledger.sqlite3"
    cluster.said[job] = before
    # The start is not seen with the contract: the look before it is.
    ledger = Ledger(SqliteStore(path))
    observe(ledger, cluster)
    cluster.said[job] = after
    cluster.advance(60)
    claim = observe(ledger, cluster).seen.claim(job)
    assert (claim.contract, claim.until, claim.unreadable) == (holds.contract, holds.until, False)
    # Whoever hides its saves is no dearer to stop.
    assert claim.saved_s == (None if after.contract else int(cluster.now_s))
    # Said once more, by a daemon that was started anew, it still holds.
    ledger.close()
    ledger = Ledger(SqliteStore(path))
    assert observe(ledger, cluster).seen.claim(job) == claim
    # The next run has what is said then.
    cluster.requeue(job)
    cluster.advance(1)
    assert observe(ledger, cluster).seen.claim(job) == after
    ledger.close()


def test_the_words_of_a_contract_come_back_from_their_number() -> None:
    """Each combination has a number of its own."""
    contracts = [
        Contract(signal=signal, target=target, grace_s=7.0, requeued_by=by)
        for signal in SIGNALS
        for target in ("batch", "steps", "full")
        for by in ("daemon", "job")
    ]
    assert [Contract.of_terms(c.terms, 7.0) for c in contracts] == contracts
    assert len({c.terms for c in contracts}) == len(contracts)
    assert Contract.of_terms(10_000, 7.0) == Contract(grace_s=7.0)


@pytest.mark.parametrize("drops", [None, "contract", "requeue"])
def test_a_job_without_its_contract_is_still_preempted(drops: str | None) -> None:
    """A job of a better tier comes; Requeue=0 alone protects, and is written down once."""
    cluster = ClaimingCluster(nodes=1, gpus=4)
    ledger, policy = Ledger(MemoryStore()), DiscreteLas(thresholds_gpu_s=(400.0,))
    job = cluster.submit(4, work_s=10_000, contract=Contract(), uid=5)
    for _ in range(2):
        build.cycle(cluster, ledger, policy, SETTINGS)
    if drops == "contract":
        cluster.jobs[job].contract = None
    elif drops == "requeue":
        cluster.jobs[job].requeueable = False
    cluster.advance(300)
    other = cluster.submit(4, work_s=10, contract=Contract(), uid=6)
    cycles = []
    for _ in range(30):
        cycles.append(build.cycle(cluster, ledger, policy, SETTINGS))
        cluster.advance(5)
    actions = [done.action for cycle in cycles for done in cycle.done]

    assert any(isinstance(a, OpenHandover) for a in actions) == (drops != "requeue")
    assert (cluster.jobs[other].start_s > 0) == (drops != "requeue")
    assert sum(isinstance(a, Book) for a in actions) == (drops == "requeue")
    if drops == "requeue":
        again = cluster.submit(4, work_s=10, contract=Contract(), uid=5, limit_s=HOUR_S)
        last = build.cycle(cluster, ledger, policy, SETTINGS)
        assert str(job) in last.plan.notes[again]
        counted = with_commitment(last.snapshot, policy, LIMITS)
        assert counted.kept()[last.snapshot.jobs.row_of()[again]] == 4 * HOUR_S


@pytest.mark.parametrize(
    ("days", "broken_now", "bodies"),
    [(0.5, [], []), (0.5, [99], []), (2, [99], ["new"]), (8, [], [""]), (8, [99], ["new"])],
)
def test_a_broken_contract_counts_until_a_week_after_its_run(
    days: float, broken_now: list[int], bodies: list[str]
) -> None:
    """Its entry is written anew while the run lasts; it goes once it no longer counts."""
    rows = [
        build.running(99, 4, uid=7, requeueable=False, ran_s=build.NOW_S - 1.0),
        build.running(98, 0, uid=8, requeueable=False),
        build.running(97, 4, uid=9, requeueable=False, partition=1),
    ]
    snap = dataclasses.replace(
        build.snapshot(build.observed(rows, held={99: {0: 4.0}})),
        booked=broken(build.NOW_S - days * 86_400),
        # One has no GPU, one is not managed, and one is not listed any more.
        broken=frozenset(map(JobId, [*broken_now, 98, 97, 96])),
    )
    books = [a for a in decide(snap, DiscreteLas(), SETTINGS).actions if isinstance(a, Book)]
    new = [e for book in books for e in book.entries]

    assert not beginning(snap).broken
    assert [e.body and "new" for e in new] == bodies
    assert {e.key for e in new} <= {"7"}


def test_a_task_of_an_array_has_the_contract_that_the_array_waited_with() -> None:
    """It starts under a number of its own, and takes the contract out in its first second."""
    cluster, ledger = ClaimingCluster(nodes=1, gpus=4), Ledger(MemoryStore())
    array = cluster.submit(4, work_s=10_000, contract=SAVES, hold=True)
    observe(ledger, cluster)
    task = cluster.submit(4, work_s=10_000)
    cluster.labels = {array: f"{array}_[2-9]", task: f"{array}_1"}
    cluster.advance(1)
    assert cluster.jobs[task].start_s
    assert observe(ledger, cluster).seen.claim(task).contract == SAVES


def test_no_age_of_a_job_without_a_contract_is_chosen_by_its_time_limit() -> None:
    """Half of all jobs end at 24 h, so the index is large just before; a limit is no age."""
    past = pasts.past_of([pasts.Over("u", "n", 1, s) for s in [600.0, 24 * HOUR_S] * 30])
    rows = (build.pending(3, 1, limit_s=24 * HOUR_S - 60), build.pending(4, 1, limit_s=3e5))
    for policy in (Gittins(), DiscreteGittins(thresholds_gpu_s=(1e7,))):
        snap = with_commitment(
            dataclasses.replace(queue(*rows, opted_in=(4,)), past=past), policy, LIMITS
        )
        order = policy.order(snap)

        assert order.key[3] < order.key[2], policy.name


def test_who_could_never_be_requeued_has_broken_nothing() -> None:
    """A contract beside --no-requeue is none."""
    cluster, ledger = ClaimingCluster(nodes=1, gpus=4), Ledger(MemoryStore())
    cluster.submit(4, work_s=10_000, contract=Contract(), requeueable=False)
    for _ in range(3):
        assert not build.cycle(cluster, ledger, DiscreteLas(), SETTINGS).snapshot.broken
        cluster.advance(5)


class ClaimingCluster(FakeCluster):
    """A cluster whose jobs may say anything in their comments."""

    def __init__(self, **more: Any) -> None:  # noqa: ANN401
        super().__init__(**more)
        self.said: dict[JobId, Claim] = {}
        self.labels: dict[JobId, str] = {}

    def observe(self) -> Any:  # noqa: ANN401
        """As `FakeCluster`, with what is said."""
        seen = super().observe()
        texts = {j: JobText(label=label) for j, label in self.labels.items()}
        return dataclasses.replace(
            seen, claims={**seen.claims, **self.said}, texts={**seen.texts, **texts}
        )
