"""Slurm serves waiting jobs in the order of the plan's rank, at few writes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import build
import numpy as np
import pytest

from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import I64, NOT_HELD, PENDING, Held, JobRow
from slurm_dl.model.plan import OpenHandover, Plan, SetSiteFactor
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies import registry
from slurm_dl.policies.base import Policy
from slurm_dl.testing.snapshot_builder import NOW_S, a_past, running, snapshot, texts_of, waiting

SETTINGS = Settings(
    partitions=frozenset({"gpu"}), preemption=Preemption(beneficiaries="all", commitment="ignored")
)
NOBODY_GIVES_WAY = dataclasses.replace(SETTINGS, preemption=Preemption(enabled=False))

EXACT = 50
"""So many waiting jobs have places that Slurm is told exactly."""

MOST_SITE = 6000
"""Most that the site's own priority weights add up to."""

RUN = (4, 4, 2, 2, 1, 1, 1, 1)
"""GPUs of the jobs that run; they fill four nodes one after the other."""

SOLVING = ("allox", "carbyne", "gavel", "mlfs", "themis_convex")
"""What these names begin with solves linear programs or matchings at each decision."""

EVERY_POLICY = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name.startswith(SOLVING) else name
        for name in registry.POLICIES
    ],
)


def queue(seed: int, waits: int, *, both: bool = False) -> Snapshot:
    """A full cluster of four nodes with four GPUs, and so many jobs that wait, drawn by lot.

    Some have run before, some are held. Those that run may be stopped.

    Args:
        both: The jobs are in two partitions: those that run on the last two nodes, and every other
            one that waits, are in the second.
    """
    draw = np.random.default_rng([seed, waits])

    def common() -> dict[str, Any]:
        return {
            "uid": 1000 + int(draw.integers(0, 4)),
            "submit_s": NOW_S - 90_000 + 300 * len(rows) + float(draw.integers(0, 300)),
            "limit_s": float(draw.integers(600, 200_000)),
            "partition": int(both and (len(rows) % 2 if len(rows) >= len(RUN) else len(rows) >= 2)),
        }

    rows: list[JobRow] = []
    for gpus in RUN:
        ran_s = float(draw.integers(10, 40_000))
        rows.append(running(100 + len(rows), gpus, ran_s=ran_s, **common()))
    for i in range(waits):
        gpus = int(draw.choice([1, 1, 1, 2, 2, 3, 4, 8]))
        held = Held.USER_OR_ADMIN if i % 16 == 7 else Held.NO
        nodes = math.ceil(gpus / 4)
        rows.append(waiting(200 + i, gpus, held=held, n_nodes=nodes, **common()))
    n = len(rows)
    ran_s = np.where(draw.random(n) < 0.3, draw.integers(100, 50_000, n), 0)
    had = {
        r.job_id: float(s) for r, s in zip(rows, ran_s.tolist(), strict=True) if s and not r.start_s
    }
    stoppable = {JobId(r.job_id): Claim(contract=Contract()) for r in rows if r.start_s}
    return snapshot(
        rows,
        memory={
            "ran_s": had,
            "attained_gpu_s": {r.job_id: had[r.job_id] * r.gpus for r in rows if r.job_id in had},
            "first_run_s": dict.fromkeys(had, NOW_S - 90_000),
        },
        seen={"texts": texts_of(rows, 3), "claims": stoppable},
        left_s=draw.exponential(20_000, n) + 60,
        progress=draw.uniform(0, 0.99, n),
        due_s=np.where(draw.random(n) < 0.5, NOW_S + draw.uniform(600, 90_000, n), math.inf),
        past=a_past(60, seed),
    )


def after(snap: Snapshot, plan: Plan) -> Snapshot:
    """*snap* once the plan's SiteFactors are written, and remembered as the ledger does."""
    told = snap.memory.site_factor.copy()
    row_of = snap.jobs.row_of()
    for action in writes(plan):
        told[row_of[action.job_id]] = action.value
    priority = np.where(snap.jobs.priority > 0, 1 + told, 0)
    return dataclasses.replace(
        snap,
        seen=dataclasses.replace(snap.seen, jobs=dataclasses.replace(snap.jobs, priority=priority)),
        memory=dataclasses.replace(snap.memory, site_factor=told),
    )


def writes(plan: Plan) -> list[SetSiteFactor]:
    """The SiteFactors that a plan writes."""
    return [action for action in plan.actions if isinstance(action, SetSiteFactor)]


def by_rank(snap: Snapshot, plan: Plan) -> I64:
    """Rows of the jobs that wait and could start, in the order of the plan's rank."""
    jobs = snap.jobs
    rows = np.flatnonzero((jobs.state == PENDING) & (jobs.held == NOT_HELD) & (plan.rank >= 0))
    return rows[np.argsort(plan.rank[rows], kind="stable")]


def as_served(snap: Snapshot, rows: I64, site: I64) -> I64:
    """*rows* in the order in which Slurm serves them.

    Args:
        site: ``(len(rows),)`` what the site's own weights add to each priority.
    """
    priority = 1 + snap.memory.site_factor[rows] + site
    return rows[np.lexsort([snap.jobs.job_id[rows], -priority])]


def inverted(ranked: I64, served: I64) -> int:
    """Pairs of the first jobs by rank that Slurm serves the other way round, or behind others."""
    place = np.empty(int(ranked.max(initial=-1)) + 1, dtype=np.int64)
    place[served] = np.arange(len(served))
    places = place[ranked]
    wrong = places[:EXACT, None] > places[None, :]
    return int(np.count_nonzero(np.triu(wrong, 1)))


def site_weights(n: int, seed: int) -> Mapping[str, I64]:
    """What a site's own weights may say of jobs that stand in the order of their rank."""
    return {
        "nothing": np.zeros(n, dtype=np.int64),
        "drawn by lot": np.random.default_rng(seed).integers(0, MOST_SITE, n, endpoint=True),
        "the contrary": np.linspace(0, MOST_SITE, n).astype(np.int64),
    }


@pytest.mark.parametrize(("seed", "waits"), [(1, 48), (2, 48), (3, 120)])
@EVERY_POLICY
def test_slurm_serves_in_the_order_of_rank(name: str, seed: int, waits: int) -> None:
    """Whatever the site's own weights say: no pair of the first fifty is the other way round."""
    before = queue(seed, waits)
    plan = decide(before, registry.find(name)(), SETTINGS)
    snap = after(before, plan)
    ranked = by_rank(snap, plan)

    found = {
        what: inverted(ranked, as_served(snap, ranked, site))
        for what, site in site_weights(len(ranked), seed).items()
    }

    assert found == dict.fromkeys(found, 0)


@pytest.mark.parametrize("share_nodes", [True, False])
@pytest.mark.parametrize("name", ["fifo", "srtf", "discrete_las", "gandiva_fair"])
def test_partitions_on_the_same_nodes_are_one_line(name: str, *, share_nodes: bool) -> None:
    """Of partitions on nodes of their own each is a line, and its first fifty are told exactly."""
    made = queue(5, 160, both=True)
    of_gpu = np.array([True, True, share_nodes, share_nodes])
    node_in = np.stack([of_gpu, ~of_gpu | share_nodes])
    before = dataclasses.replace(
        made,
        seen=dataclasses.replace(made.seen, node_in=node_in),
        managed=np.array([True, True]),
    )
    settings = dataclasses.replace(NOBODY_GIVES_WAY, partitions=frozenset({"gpu", "other"}))
    plan = decide(before, registry.find(name)(), settings)
    snap = after(before, plan)
    ranked = by_rank(snap, plan)
    partition = snap.jobs.partition[ranked]
    lines = [ranked] if share_nodes else [ranked[partition == 0], ranked[partition == 1]]

    found = [
        inverted(line, as_served(snap, line, site_weights(len(line), 5)["the contrary"]))
        for line in lines
    ]

    assert min(len(line) for line in lines) > EXACT
    assert found == [0] * len(lines)


@EVERY_POLICY
def test_a_look_at_an_unchanged_cluster_writes_nothing(name: str) -> None:
    """What is written once is not written again."""
    policy = registry.find(name)()
    first = queue(4, 120)

    plan = decide(first, policy, NOBODY_GIVES_WAY)
    again = decide(after(first, plan), policy, NOBODY_GIVES_WAY)

    assert writes(plan)
    assert not writes(again)


@dataclass
class Work:
    """A job of a queue that is looked at again and again.

    Attributes:
        size_s: Seconds it runs in all.
        site: What the site's own weights add to its priority.
    """

    job_id: int
    gpus: int
    limit_s: float
    size_s: float
    submit_s: float
    site: int
    ran_s: float = 0.0
    start_s: float = 0.0
    site_factor: int = 0

    def stop(self, now_s: float) -> None:
        """Take its GPUs away."""
        self.ran_s += now_s - self.start_s
        self.start_s = 0.0

    def run_s(self, now_s: float) -> float:
        """Seconds it has run in all."""
        return self.ran_s + (now_s - self.start_s if self.start_s else 0.0)


@dataclass
class Queue:
    """A node of 16 GPUs under a plain Slurm that starts jobs by priority, and a queue before it.

    Attributes:
        requeued: Share of the looks before which some running job is put back into the queue.
        live: Jobs that are not over.
        waits: How often a job has joined the queue: one was submitted, or put back.
        written: SiteFactors written so far.
        inverted: Pairs of the first jobs in the wrong order, over all looks.
    """

    policy: Policy
    requeued: float
    draw: np.random.Generator
    live: list[Work] = field(default_factory=list)
    now_s: float = build.NOW_S
    submitted: int = 0
    waits: int = 0
    looks: int = 0
    written: int = 0
    inverted: int = 0

    def look(self, arrivals: int) -> None:
        """A minute later: jobs have ended and come; decide, write, and let Slurm start jobs."""
        self.now_s += 60.0
        self.live = [w for w in self.live if w.run_s(self.now_s) < w.size_s]
        active = [w for w in self.live if w.start_s]
        if active and self.draw.random() < self.requeued:
            active[int(self.draw.integers(len(active)))].stop(self.now_s)
            self.waits += 1
        for _ in range(arrivals):
            self._submit()
        if not self.live:
            return
        snap = self._picture()
        plan = decide(snap, self.policy, NOBODY_GIVES_WAY)
        self.looks += 1
        self.written += len(writes(plan))
        told = after(snap, plan)
        for w, value in zip(self.live, told.memory.site_factor.tolist(), strict=True):
            w.site_factor = value
        ranked = by_rank(told, plan)
        served = as_served(told, ranked, np.array([self.live[row].site for row in ranked], int))
        self.inverted += inverted(ranked, served)
        self._start([self.live[row] for row in served.tolist()])

    def _submit(self) -> None:
        draw = self.draw
        self.submitted += 1
        self.waits += 1
        limit_s = float(draw.lognormal(8.0, 1.0)) + 600
        self.live.append(
            Work(
                job_id=self.submitted,
                gpus=int(draw.choice([1, 1, 2, 4, 8])),
                limit_s=limit_s,
                size_s=min(limit_s, float(draw.exponential(600.0)) + 60),
                submit_s=self.now_s - float(draw.uniform(0, 60)),
                site=int(draw.integers(0, MOST_SITE)),
            )
        )

    def _start(self, served: Sequence[Work]) -> None:
        """Slurm's main pass: by priority, up to the first job that does not fit."""
        free = 16 - sum(w.gpus for w in self.live if w.start_s)
        for w in served:
            if w.gpus > free:
                return
            w.start_s = self.now_s
            free -= w.gpus

    def _picture(self) -> Snapshot:
        rows = [
            build.running(w.job_id, w.gpus, start_s=w.start_s, **_shared(w))
            if w.start_s
            else build.pending(w.job_id, w.gpus, **_shared(w))
            for w in self.live
        ]
        texts = {JobId(w.job_id): JobText(label=str(w.job_id), user="u") for w in self.live}
        seen = build.observed(
            rows,
            nodes=(16,),
            held={w.job_id: {0: w.gpus} for w in self.live if w.start_s},
            now_s=self.now_s,
            texts=texts,
        )
        ran_s = {w.job_id: w.run_s(self.now_s) for w in self.live}
        return build.snapshot(
            seen,
            memory={
                "ran_s": ran_s,
                "attained_gpu_s": {w.job_id: ran_s[w.job_id] * w.gpus for w in self.live},
                "first_run_s": {job: build.NOW_S for job, s in ran_s.items() if s},
                "site_factor": {w.job_id: w.site_factor for w in self.live},
            },
        )


def _shared(w: Work) -> dict[str, Any]:
    return {
        "limit_s": w.limit_s,
        "submit_s": w.submit_s,
        "priority": 1 + w.site_factor + w.site,
    }


@pytest.mark.parametrize(
    ("policy", "requeued"),
    [
        # They join the queue at its end.
        ("fifo", 0.0),
        ("las", 0.0),
        # At any place.
        ("easy_backfill", 0.0),
        ("srtf", 0.0),
        ("fewest_gpus", 0.0),
        # And come back to it.
        ("srtf", 0.2),
        ("discrete_las", 0.2),
    ],
)
def test_three_writes_a_wait_keep_a_queue_in_order(policy: str, requeued: float) -> None:
    """Over hundreds of looks at a queue that becomes longer than what is told exactly.

    A job that is put back into the queue waits once more.
    """
    busy = Queue(registry.find(policy)(), requeued, np.random.default_rng(7))
    for arrivals in np.random.default_rng(8).poisson(1.0, 300).tolist():
        busy.look(arrivals)
    longest = len(busy.live)
    while busy.live and busy.looks < 2000:
        busy.look(0)

    assert not busy.live
    assert longest > EXACT
    assert busy.inverted == 0
    assert busy.written <= 3 * busy.waits


def test_gpus_are_taken_back_for_jobs_with_a_place_only() -> None:
    """Four hand-overs of up to 32 jobs: none of these has the SiteFactor 0 of the victims."""
    large = [running(100 + i, 16, n_nodes=4, ran_s=40_000.0, limit_s=1e6) for i in range(8)]
    small = [waiting(200 + i, 1, limit_s=1e5) for i in range(128)]
    ids = [row.job_id for row in large]
    snap = snapshot(
        [*large, *small],
        nodes=((4, 0),) * 32,
        memory={"attained_gpu_s": dict.fromkeys(ids, 640_000.0)},
        seen={"claims": {JobId(j): Claim(contract=Contract()) for j in ids}},
    )

    plan = decide(snap, registry.POLICIES["discrete_las"](), SETTINGS)

    told = {action.job_id: action.value for action in writes(plan)}
    opened = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
    gain = [job_id for handover in opened for job_id in handover.beneficiaries]
    assert len(gain) == EXACT
    assert all(told[job_id] > 0 for job_id in gain)


def test_the_window_is_counted_along_the_line() -> None:
    """A job that fits is served first, however many that do not fit precede it by rank."""
    gangs = [waiting(200 + i, 4, submit_s=NOW_S - 5000 + i) for i in range(20)]
    small = waiting(300, 1, submit_s=NOW_S - 60)
    snap = snapshot([running(100, 3, ran_s=100.0), *gangs, small], nodes=((4, 0),))
    few = dataclasses.replace(NOBODY_GIVES_WAY, window=10)

    plan = decide(snap, registry.POLICIES["fifo_skip"](), few)

    told = {action.job_id: action.value for action in writes(plan)}
    assert max(told, key=lambda job_id: told[job_id]) == small.job_id
    assert len(told) == 10
