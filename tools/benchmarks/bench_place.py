"""Placement alone: the waiting jobs of one decision put on the nodes of a partly used cluster.

No Slurm is needed. Each size of cluster is measured in a process of its own, on one core.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import itertools
import multiprocessing
import pstats
from collections.abc import Callable
from dataclasses import dataclass

import measure
import numpy as np

from slurm_dl.engine.placing.place_waiting import Placed, place_waiting
from slurm_dl.engine.settings import Placement
from slurm_dl.ledger.attained_service import AttainedService, remembered
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Jobs, JobState
from slurm_dl.model.nodes import Allocations, Nodes
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.placement.candidate_nodes import CandidateNodes, Rule
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import PendingJob, ResourceRequests
from slurm_dl.placement.scheme import Scheme, Spot
from slurm_dl.placement.scheme_registry import RULES, SCHEMES

AIM_S = 0.05
NOW_S = 1_700_000_000.0
NODES = (625, 1250, 2500)
JOBS = (250, 500, 1000)

_GPUS, _CPUS, _MB, _LEAF = 8, 128, 1_024_000, 25
_PROFILES = {
    "vgg16": Profile(name="vgg16", skew=0.74),
    "resnet50": Profile(name="resnet50", skew=0.11),
}
# GPUs, nodes: most jobs are small, a few have many nodes.
_KINDS = ((1, 1), (2, 1), (4, 1), (8, 1), (16, 2), (32, 4), (64, 8), (128, 16))
_SHARES = (0.50, 0.12, 0.15, 0.13, 0.05, 0.03, 0.015, 0.005)
_CPUS_PER_GPU = (2, 4, 8, 12, 16)
_MB_PER_GPU = (16_000, 32_000, 64_000, 96_000, 128_000)

CASES = (
    *("best_fit", "consolidate", "load_balance", "tetris", "topology"),
    *("best_fit+contention", "best_fit+small_apart"),
)
"""Schemes, two of them with a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one scheme took for one cluster and one queue.

    Attributes:
        walk: Asking the scheme about all jobs and taking what it chose; the stock is there.
        whole: `place_waiting`, the stock and the needs of the jobs included.
        spots: Jobs that found a place.
        waits: Jobs that were told to wait.
        conditions: Conditions of the nodes before.
        examined: Conditions that were looked at one by one.
    """

    walk: measure.Seconds
    whole: measure.Seconds
    spots: int
    waits: int
    conditions: int
    examined: int


def snapshot(n_nodes: int, n_jobs: int, seed: int = 1) -> Snapshot:
    """A cluster of which some 60 % of the GPUs are taken, and a queue."""
    rng = np.random.default_rng(seed)
    held, runs = _running(rng, n_nodes)
    kinds = rng.choice(len(_KINDS), n_jobs, p=_SHARES)
    asked = np.array([_KINDS[kind][0] for kind in kinds])
    spread = np.array([_KINDS[kind][1] for kind in kinds])
    cpus, mem_mb = (
        asked * rng.choice(_CPUS_PER_GPU, n_jobs),
        asked * rng.choice(_MB_PER_GPU, n_jobs),
    )
    r, n = len(runs), len(runs) + n_jobs
    pending = np.arange(n) >= r
    submit_s = NOW_S - 100_000 + np.sort(rng.uniform(0, 99_000, n))
    jobs = Jobs(
        job_id=np.arange(1, n + 1, dtype=np.int64),
        state=np.where(pending, JobState.PENDING, JobState.RUNNING).astype(np.int8),
        held=np.zeros(n, np.int8),
        partition=np.zeros(n, np.int16),
        uid=np.full(n, 1000, np.int64),
        tasks=np.ones(n, np.int32),
        n_nodes=np.concatenate([np.ones(r, np.int32), spread]).astype(np.int32),
        gpus=np.concatenate([runs[:, 0], asked]).astype(np.float64),
        gpu_type=np.full(n, -1, np.int16),
        cpus=np.concatenate([runs[:, 1], cpus]).astype(np.int32),
        mem_mb=np.concatenate([runs[:, 2], mem_mb]).astype(np.int64),
        submit_s=submit_s,
        start_s=np.where(pending, 0.0, submit_s),
        end_s=np.zeros(n),
        limit_s=np.full(n, 86_400.0),
        restarts=np.zeros(n, np.int32),
        priority=np.full(n, 10**8, np.int64),
        requeueable=np.ones(n, np.bool_),
        exclusive=np.zeros(n, np.bool_),
    )
    named = ("", *_PROFILES)
    models = [named[i] or None for i in rng.integers(0, len(named), n).tolist()]
    ranges = (rng.random(n) < 0.3) & pending & (jobs.gpus > 1)
    claims = {
        JobId(int(jobs.job_id[row])): Claim(
            model=models[row], most_nodes=int(min(jobs.gpus[row], 16)) if ranges[row] else None
        )
        for row in range(n)
    }
    seen = Observed(
        now_s=NOW_S,
        jobs=jobs,
        nodes=_nodes(n_nodes),
        held=held,
        partitions=("gpu",),
        gpu_types=("h100",),
        node_in=np.ones((1, n_nodes), np.bool_),
        claims=claims,
    )
    return Snapshot(
        seen=seen,
        memory=remembered(AttainedService.empty(), jobs),
        left_s=rng.uniform(600, 86_400, n),
        managed=np.ones(1, np.bool_),
    )


def walk(
    snap: Snapshot,
    stock: FreeNodes,
    wants: list[PendingJob],
    scheme: Scheme,
    rules: tuple[Rule, ...],
) -> int:
    """Ask *scheme* about all *wants*; how many found a place."""
    placer = scheme.begin(snap, stock, _PROFILES)
    spots = 0
    for want in wants:
        answer = placer.place(want, CandidateNodes(stock, want, rules))
        if isinstance(answer, Spot):
            stock.take(want, answer.nodes)
            spots += 1
    return spots


def wants_of(snap: Snapshot) -> list[PendingJob]:
    """The waiting jobs, the earliest first."""
    jobs, needs = snap.jobs, ResourceRequests(snap)
    return [
        PendingJob(
            row=row,
            job_id=JobId(int(jobs.job_id[row])),
            need=needs.of(row),
            profile=_PROFILES.get(snap.seen.claim(JobId(int(jobs.job_id[row]))).model or ""),
            waited_s=snap.now_s - float(jobs.submit_s[row]),
            left_s=float(snap.left_s[row]),
            limit_s=float(jobs.limit_s[row]),
        )
        for row in np.flatnonzero(jobs.state == JobState.PENDING).tolist()
    ]


def _running(
    rng: np.random.Generator, n_nodes: int
) -> tuple[Allocations, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    """Single-node jobs on some of the GPUs, and what each has: GPUs, CPUs, MB."""
    held: list[tuple[int, int, int, int, int]] = []
    runs: list[tuple[int, int, int]] = []
    for node in range(n_nodes):
        target = int(rng.choice([0, 2, 4, 6, 8], p=[0.15, 0.15, 0.2, 0.2, 0.3]))
        used, cpus, mem_mb = 0, 0, 0
        while used < target:
            gpus = min(int(rng.choice([1, 2, 4, 8])), target - used)
            more_cpus = gpus * min(int(rng.choice(_CPUS_PER_GPU)), 16)
            more_mb = gpus * int(rng.choice(_MB_PER_GPU))
            held.append((len(runs), node, gpus, more_cpus, more_mb))
            runs.append((gpus, more_cpus, more_mb))
            used, cpus, mem_mb = used + gpus, cpus + more_cpus, mem_mb + more_mb
    table = np.array(held)
    allocations = Allocations(
        job=table[:, 0].astype(np.int32),
        node=table[:, 1].astype(np.int32),
        gpus=table[:, 2].astype(np.float64),
        cpus=table[:, 3].astype(np.int32),
        mem_mb=table[:, 4].astype(np.int64),
    )
    return allocations, np.array(runs)


def _nodes(count: int) -> Nodes:
    return Nodes(
        name=tuple(f"n{i + 1}" for i in range(count)),
        up=np.ones(count, np.bool_),
        gpus=np.full(count, float(_GPUS)),
        gpu_type=np.zeros(count, np.int16),
        cpus=np.full(count, _CPUS, np.int32),
        mem_mb=np.full(count, _MB, np.int64),
        leaf=(np.arange(count) // _LEAF).astype(np.int16),
    )


def _measure(case: str, n_nodes: int, n_jobs: int, rounds: int, *, profile: bool) -> Measured:
    scheme_name, _, rule = case.partition("+")
    scheme = SCHEMES[scheme_name]()
    rules = (RULES[rule](),) if rule else ()
    snap = snapshot(n_nodes, n_jobs)
    how = Placement(scheme=scheme, rules=rules, window=n_jobs, profiles=_PROFILES)
    pending = np.flatnonzero(snap.jobs.state == JobState.PENDING)

    def whole() -> Placed:
        return place_waiting(snap, pending, (), how)

    def asked() -> float:
        stock, wants = FreeNodes.of(snap, _PROFILES), wants_of(snap)
        return measure.timed(lambda: walk(snap, stock, wants, scheme, rules))

    placed = whole()
    asked()
    walks = [asked() for _ in range(rounds)]
    stock = FreeNodes.of(snap, _PROFILES)
    conditions = len(stock)
    walk(snap, stock, wants_of(snap), scheme, rules)
    if profile:
        _print_profile(whole)
    return Measured(
        walk=measure.Seconds.of(walks),
        whole=measure.repeated(whole, rounds),
        spots=len(placed.spots),
        waits=len(placed.waits),
        conditions=conditions,
        examined=stock.examined,
    )


def _print_profile(work: Callable[[], object]) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(work)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(25)
    print(text.getvalue())


def _measure_all(
    case: str, sizes: tuple[tuple[int, int], ...], rounds: int, *, profile: bool
) -> list[Measured]:
    measure.pin_to_one_core()
    return [_measure(case, n, j, rounds, profile=profile) for n, j in sizes]


def main() -> None:
    """Measure the cases, print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, action="append", help="nodes of 8 GPUs")
    parser.add_argument("--jobs", type=int, action="append", help="waiting jobs")
    parser.add_argument("--rounds", type=int, default=7, help="times each case is measured")
    parser.add_argument("--case", choices=CASES, action="append", help="this case alone")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    sizes = tuple(itertools.product(args.nodes or NODES, args.jobs or JOBS))
    head = f"case;nodes;jobs;walk (aim {AIM_S} s);;place_waiting;spots;waits;conditions;examined"
    rows = [tuple(head.split(";"))]
    results: dict[str, list[dict[str, object]]] = {}
    spawn = multiprocessing.get_context("spawn")
    for case in args.case or CASES:
        measure.say(f"place: {case}")
        with spawn.Pool(1) as pool:
            found = pool.apply(_measure_all, (case, sizes, args.rounds), {"profile": args.profile})
        results[case] = []
        for (n_nodes, n_jobs), one in zip(sizes, found, strict=True):
            counts = {
                "spots": one.spots,
                "waits": one.waits,
                "conditions": one.conditions,
                "examined": one.examined,
            }
            results[case].append(
                {"nodes": n_nodes, "jobs": n_jobs, "walk": one.walk, "whole": one.whole, **counts}
            )
            row = (case, n_nodes, n_jobs, one.walk, measure.aim(one.walk.median, AIM_S), one.whole)
            rows.append(tuple(map(str, (*row, *counts.values()))))
    measure.report("bench_place", {"aims": {"walk_s": AIM_S}, "cases": results}, rows)


if __name__ == "__main__":
    main()
