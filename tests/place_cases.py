"""Small clusters with a queue, for tests of where jobs go, and plain-Python twins to check them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import build
import numpy as np
import pytest
from hypothesis import strategies as st

from slurm_dl.engine.placing.place_waiting import Placed, place_waiting
from slurm_dl.engine.settings import Placement
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.nodes import Allocations, Nodes
from slurm_dl.model.profile import Load, Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import PendingJob, ResourceRequests
from slurm_dl.placement.scheme import Placer, Scheme

RUNS = 1_000_000
"""The first of the running jobs' ids."""

PROFILES = {
    "skewed": Profile(name="skewed", skew=0.74, load=Load(network_mb_s=100.0, pcie_mb_s=50.0)),
    "even": Profile(name="even", skew=0.08, load=Load(network_mb_s=10.0, pcie_mb_s=400.0)),
    "unknown": Profile(name="unknown"),
}


@dataclass(frozen=True)
class Node:
    """One node, and what running jobs have of it."""

    gpus: int = 8
    cpus: int = 64
    mem_mb: int = 1000
    leaf: int = 0
    up: bool = True


@dataclass(frozen=True)
class Run:
    """A running job: the same share on each of its nodes."""

    nodes: tuple[int, ...]
    gpus: int = 1
    cpus: int = 1
    mem_mb: int = 0
    left_s: float = float("inf")
    model: str | None = None


@dataclass(frozen=True)
class Waiting:
    """A waiting job; what it asks for is in all."""

    gpus: int = 1
    n_nodes: int = 1
    cpus: int = 1
    mem_mb: int = 0
    most_nodes: int | None = None
    model: str | None = None
    exclusive: bool = False
    partition: int = 0
    waited_s: float = 0.0
    limit_s: float = 1000.0
    exclude: tuple[int, ...] = ()
    """Nodes that its owner excludes."""


@dataclass(frozen=True)
class Case:
    """A cluster and its queue; the job at place i of the queue has the id 100 + i."""

    nodes: tuple[Node, ...]
    runs: tuple[Run, ...] = ()
    queue: tuple[Waiting, ...] = ()
    other: frozenset[int] = frozenset()
    """Nodes that the partition 1 has not."""


def snapshot(case: Case, *, backwards: bool = False) -> Snapshot:
    """The case as a snapshot; *backwards*: Slurm lists the jobs the other way round."""
    rows = [
        build.running(RUNS + i, run.gpus * len(run.nodes), n_nodes=len(run.nodes))
        for i, run in enumerate(case.runs)
    ]
    rows += [_row(100 + i, job) for i, job in enumerate(case.queue)]
    if backwards:
        rows.reverse()
    seen = build.observed(rows, nodes=[node.gpus for node in case.nodes])
    row_of = seen.jobs.row_of()
    held = sorted(
        (row_of[JobId(RUNS + i)], n, run.gpus, run.cpus, run.mem_mb)
        for i, run in enumerate(case.runs)
        for n in run.nodes
    )
    node_in = np.ones((2, len(case.nodes)), dtype=np.bool_)
    node_in[1, sorted(case.other)] = False
    models = {RUNS + i: Claim(model=run.model) for i, run in enumerate(case.runs)}
    models |= {
        100 + i: Claim(model=job.model, most_nodes=job.most_nodes)
        for i, job in enumerate(case.queue)
    }
    seen = dataclasses.replace(
        seen,
        nodes=Nodes(
            name=seen.nodes.name,
            up=_column(case.nodes, "up", np.bool_),
            gpus=_column(case.nodes, "gpus", np.float64),
            gpu_type=seen.nodes.gpu_type,
            cpus=_column(case.nodes, "cpus", np.int32),
            mem_mb=_column(case.nodes, "mem_mb", np.int64),
            leaf=_column(case.nodes, "leaf", np.int16),
        ),
        held=Allocations(
            job=np.array([h[0] for h in held], dtype=np.int32),
            node=np.array([h[1] for h in held], dtype=np.int32),
            gpus=np.array([h[2] for h in held], dtype=np.float64),
            cpus=np.array([h[3] for h in held], dtype=np.int32),
            mem_mb=np.array([h[4] for h in held], dtype=np.int64),
        ),
        node_in=node_in,
        claims={JobId(j): claim for j, claim in models.items()},
        excluded={
            JobId(100 + i): np.isin(np.arange(len(case.nodes)), job.exclude)
            for i, job in enumerate(case.queue)
            if job.exclude
        },
    )
    waiting = {100 + i: build.NOW_S - job.waited_s for i, job in enumerate(case.queue)}
    snap = build.snapshot(seen, memory={"waiting_since_s": waiting})
    left_s = snap.left_s.copy()
    for i, run in enumerate(case.runs):
        left_s[row_of[JobId(RUNS + i)]] = run.left_s
    return dataclasses.replace(snap, left_s=left_s, managed=np.array([True, True]))


def wants(snap: Snapshot, profiles: Mapping[str, Profile] = PROFILES) -> list[PendingJob]:
    """The waiting jobs of a case, in the order of the queue."""
    needs, jobs = ResourceRequests(snap), snap.jobs
    found = []
    for job_id, row in sorted(jobs.row_of().items()):
        if job_id >= RUNS:
            continue
        found.append(
            PendingJob(
                row=row,
                job_id=job_id,
                need=needs.of(row),
                profile=profiles.get(snap.seen.claim(job_id).model or ""),
                waited_s=snap.now_s - float(snap.memory.waiting_since_s[row]),
                left_s=float(snap.left_s[row]),
                limit_s=float(jobs.limit_s[row]),
            )
        )
    return found


def begin(
    scheme: Scheme, case: Case, profiles: Mapping[str, Profile] = PROFILES
) -> tuple[FreeNodes, Placer, list[PendingJob]]:
    """The stock, the scheme at work on it, and the waiting jobs."""
    snap = snapshot(case)
    stock = FreeNodes.of(snap, profiles)
    return stock, scheme.begin(snap, stock, profiles), wants(snap, profiles)


def place(snap: Snapshot, scheme: Scheme, *rules: Any) -> Placed:  # noqa: ANN401
    """What the engine makes of a case, in the order of job ids."""
    rows = np.array([row for j, row in sorted(snap.jobs.row_of().items()) if j < RUNS], np.int64)
    how = Placement(scheme=scheme, rules=rules, profiles=PROFILES)
    return place_waiting(snap, rows, (), how)


class Ledger:
    """What is free on each node, kept in plain Python."""

    def __init__(self, case: Case) -> None:
        self.free = [[node.gpus, node.cpus, node.mem_mb] for node in case.nodes]
        self.jobs = [0] * len(case.nodes)
        self.up = [node.up for node in case.nodes]
        for run in case.runs:
            for node in run.nodes:
                self.give(node, (run.gpus, run.cpus, run.mem_mb))

    def give(self, node: int, share: Sequence[float]) -> None:
        """Take one share from a node."""
        self.jobs[node] += 1
        for r, much in enumerate(share):
            self.free[node][r] -= int(much)

    def fits(self, node: int, share: Sequence[float], *, exclusive: bool = False) -> bool:
        """Whether one share is free on the node."""
        return (
            self.up[node]
            and not (exclusive and self.jobs[node])
            and all(f >= much for f, much in zip(self.free[node], share, strict=True))
        )


def shares(want: PendingJob) -> dict[int, tuple[float, int, int]]:
    """By number of nodes, what the job asks of each."""
    return {ask.n_nodes: (ask.gpus, ask.cpus, ask.mem_mb) for ask in want.need.asks}


Score = Callable[[Case, Ledger, int, Sequence[float]], float]


def check_best_scores(scheme: Scheme, case: Case, score: Score) -> None:
    """Fail unless *scheme* gives each job nodes with the highest scores of all on which it fits.

    The fewest nodes on which it fits come first; of nodes with equal scores any will do.
    """
    stock, placer, waiting = begin(scheme, case)
    ledger = Ledger(case)
    for want in waiting:
        answer = placer.place(want, CandidateNodes(stock, want, ()))
        for n, share in shares(want).items():
            fitting = [
                node
                for node in range(len(case.nodes))
                if want.need.allowed[node]
                and ledger.fits(node, share, exclusive=want.need.exclusive)
            ]
            if len(fitting) >= n:
                break
        else:
            assert answer is None
            continue
        scores = sorted((score(case, ledger, node, share) for node in fitting), reverse=True)
        taken = sorted((score(case, ledger, node, share) for node in answer.nodes), reverse=True)
        assert taken == pytest.approx(scores[:n], abs=1e-9)
        for node in answer.nodes:
            ledger.give(node, share)
        stock.take(want, answer.nodes)


def _row(job_id: int, job: Waiting) -> JobRow:
    fields = ("n_nodes", "cpus", "mem_mb", "exclusive", "partition", "limit_s")
    return build.pending(job_id, job.gpus, **{name: getattr(job, name) for name in fields})


def _column(nodes: Iterable[Node], name: str, dtype: Any) -> Any:  # noqa: ANN401
    return np.array([getattr(node, name) for node in nodes], dtype=dtype)


@st.composite
def cases(draw: st.DrawFn, *, most_nodes: int = 7, most_jobs: int = 8) -> Case:
    """Clusters of a few unlike nodes on up to three leaves, partly used, and a queue."""
    nodes = draw(
        st.lists(
            st.builds(
                Node,
                gpus=st.sampled_from((4, 8, 8)),
                cpus=st.sampled_from((16, 64)),
                mem_mb=st.sampled_from((500, 1000)),
                leaf=st.integers(0, 2),
                up=st.sampled_from((True, True, True, False)),
            ),
            min_size=1,
            max_size=most_nodes,
        )
    )
    runs: list[Run] = []
    ledger = Ledger(Case(nodes=tuple(nodes)))
    for _ in range(draw(st.integers(0, 6))):
        where = draw(st.sets(st.integers(0, len(nodes) - 1), min_size=1, max_size=2))
        share = (draw(st.integers(0, 4)), draw(st.integers(1, 8)), draw(st.integers(0, 100)))
        if all(ledger.fits(n, share) for n in where):
            for n in where:
                ledger.give(n, share)
            left_s = draw(st.sampled_from((10.0, 500.0, float("inf"))))
            model = draw(st.sampled_from((None, *PROFILES)))
            runs.append(Run(tuple(sorted(where)), *share, left_s=left_s, model=model))
    queue = draw(
        st.lists(
            st.builds(
                Waiting,
                gpus=st.sampled_from((1, 1, 2, 4, 8, 8, 16)),
                n_nodes=st.sampled_from((1, 1, 1, 2, 3)),
                cpus=st.integers(1, 24),
                mem_mb=st.integers(0, 600),
                most_nodes=st.sampled_from((None, None, 2, 4, 8)),
                model=st.sampled_from((None, *PROFILES)),
                exclusive=st.sampled_from((False, False, False, True)),
                partition=st.sampled_from((0, 0, 1)),
                waited_s=st.sampled_from((0.0, 10_000.0)),
                exclude=st.sampled_from(((), (), (0,), (1, 2))),
            ),
            max_size=most_jobs,
        )
    )
    other = draw(st.frozensets(st.integers(0, len(nodes) - 1), max_size=2))
    return Case(tuple(nodes), tuple(runs), tuple(queue), other)
