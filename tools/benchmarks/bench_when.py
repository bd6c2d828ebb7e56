"""Forecasts: how many forward runs fit into the time that `dlqueue when` has for them.

The cluster has 2,000 GPUs, full of jobs as a trace of Microsoft Philly has them, with a queue of
jobs of the same trace; nine of ten opted in, one of ten names nodes it may use. Asked
about are ten of the waiting jobs, evenly over the queue, as the daemon does by itself. No Slurm is
needed. Each case is measured in a process of its own on one core; the time of the runs is
processor time, so that other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import io
import json
import multiprocessing
import pstats
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import generate
import measure
import numpy as np

from slurm_dl.daemon.forecast_service import DEADLINE_S
from slurm_dl.engine.settings import Settings
from slurm_dl.forecast.forward_runs import ForecastQuestion, foresee
from slurm_dl.forecast.worker import growth_for
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, Bool, Jobs, JobState, Remembered
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.policies import registry
from slurm_dl.recording import snapshot_file
from slurm_dl.simulation.forward.continued_cluster import ForwardTiming
from slurm_dl.traces.format_registry import read_trace

TRACE = Path(__file__).parents[2] / "traces/philly/philly.csv.gz"
JOBS = (100, 300, 1_000, 3_000)
AIM_JOBS = 1_000
AIM_RUNS = 5
POLICIES = ("discrete_las", "fifo")
ASKED = 10
NOW_S = 1_700_000_000.0

_GPUS = 8
_MOST_GPUS = 64
_MOST_LIMIT_S = 7 * 86_400.0
_RACKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What one case took.

    Attributes:
        policy: Under which policy.
        waiting: Jobs that wait.
        running: Jobs that run.
        runs: Forward runs that came to their end.
        all_s: Processor time of all of them, and of the one that did not, seconds.
        ahead_s: So far at least it was looked ahead, seconds.
        snapshot_mb: The snapshot, as it is given to the process that runs forward.
        profile: Where the time goes; empty unless asked for.
    """

    policy: str
    waiting: int
    running: int
    runs: int
    all_s: float
    ahead_s: float
    snapshot_mb: float
    profile: str = ""


def snapshot(nodes: int, waiting: int, seed: int, path: Path = TRACE) -> Snapshot:
    """A full cluster and its queue, see the module."""
    rng = np.random.default_rng(seed)
    node, gpus_there, sizes, lasts_s = _filled(rng, nodes, path)
    r, n = len(sizes), len(sizes) + waiting
    more, more_s = _drawn(rng, waiting, path)
    gpus, life_s = np.concatenate([sizes, more]), np.concatenate([lasts_s, more_s])
    limit_s = np.minimum(np.ceil(life_s * rng.uniform(1.2, 5.0, n) / 3600) * 3600, _MOST_LIMIT_S)
    runs = np.arange(n) < r
    age_s = np.where(runs, life_s * rng.uniform(0.0, 1.0, n), 0.0)
    submit_s = np.where(runs, NOW_S - age_s - 3600.0, NOW_S - np.sort(rng.uniform(0, 86_400, n)))
    jobs = Jobs(
        job_id=np.arange(1, n + 1, dtype=np.int64),
        state=np.where(runs, JobState.RUNNING, JobState.PENDING).astype(np.int8),
        held=np.zeros(n, np.int8),
        partition=np.zeros(n, np.int16),
        uid=rng.integers(1000, 1100, n).astype(np.int64),
        tasks=np.ones(n, np.int32),
        n_nodes=np.ceil(gpus / _GPUS).astype(np.int32),
        gpus=gpus,
        gpu_type=np.full(n, -1, np.int16),
        cpus=(gpus * generate.CPUS_PER_GPU).astype(np.int32),
        mem_mb=(gpus * generate.MB_PER_GPU).astype(np.int64),
        submit_s=submit_s,
        start_s=np.where(runs, NOW_S - age_s, 0.0),
        end_s=np.zeros(n),
        limit_s=limit_s,
        restarts=np.zeros(n, np.int32),
        priority=np.full(n, 10**6, np.int64),
        requeueable=np.ones(n, np.bool_),
        exclusive=np.zeros(n, np.bool_),
    )
    held = Allocations(
        job=np.repeat(np.arange(r, dtype=np.int32), np.ceil(sizes / _GPUS).astype(np.int64)),
        node=node,
        gpus=gpus_there,
        cpus=(gpus_there * generate.CPUS_PER_GPU).astype(np.int32),
        mem_mb=(gpus_there * generate.MB_PER_GPU).astype(np.int64),
    )
    ids = jobs.job_id
    seen = Observed(
        now_s=NOW_S,
        jobs=jobs,
        nodes=generate.nodes(nodes, _GPUS),
        held=held,
        partitions=("gpu",),
        gpu_types=("a100",),
        node_in=np.ones((1, nodes), np.bool_),
        claims={JobId(int(j)): Claim(contract=Contract()) for j in ids[rng.random(n) < 0.9]},
        choices={
            JobId(int(j)): _without_one_rack(rng, nodes) for j in ids[~runs & (rng.random(n) < 0.1)]
        },
    )
    return Snapshot(
        seen=seen,
        memory=_memory(jobs, age_s),
        left_s=limit_s - age_s,
        managed=np.ones(1, np.bool_),
    )


@cache
def _philly(path: Path) -> tuple[F64, F64]:
    """GPUs and run times, seconds, of the jobs of the trace that a site would give a limit."""
    trace = read_trace(path)
    usual = (trace.gpus <= _MOST_GPUS) & (trace.gpus >= 1) & (trace.duration_s >= 60)
    return trace.gpus[usual], np.minimum(trace.duration_s[usual], _MOST_LIMIT_S / 2)


def _drawn(rng: np.random.Generator, count: int, path: Path) -> tuple[F64, F64]:
    """So many jobs of the trace: GPUs, on whole nodes from a node on, and run times, seconds."""
    gpus, lasts_s = _philly(path)
    at = rng.integers(0, len(gpus), count)
    asked = gpus[at]
    return np.where(asked > _GPUS, np.ceil(asked / _GPUS) * _GPUS, asked), lasts_s[at]


def _filled(
    rng: np.random.Generator, nodes: int, path: Path
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], F64, F64, F64]:
    """Where jobs that fill the nodes run, with how many GPUs there; sizes and run times of all.

    Whoever is seen running runs long: each is drawn in proportion to its run time.
    """
    gpus, lasts_s = _philly(path)
    free = np.full(nodes, _GPUS)
    on: list[int] = []
    there: list[float] = []
    sizes: list[float] = []
    lives: list[float] = []
    for at in rng.choice(len(gpus), 20 * nodes, p=lasts_s / lasts_s.sum()).tolist():
        k = int(np.ceil(gpus[at] / _GPUS))
        share = min(int(gpus[at]), _GPUS)
        fits = np.flatnonzero(free >= share)
        if len(fits) < k:
            continue
        # The fullest that hold it: nodes are full to the last GPU in the end.
        chosen = np.sort(fits[np.argsort(free[fits], kind="stable")[:k]])
        free[chosen] -= share
        on += chosen.tolist()
        there += [float(share)] * k
        sizes.append(float(k * share))
        lives.append(float(lasts_s[at]))
        if not free.any():
            break
    return np.array(on, np.int32), np.array(there), np.array(sizes), np.array(lives)


def _without_one_rack(rng: np.random.Generator, nodes: int) -> Bool:
    mask: Bool = np.arange(nodes) * _RACKS // nodes != rng.integers(_RACKS)
    return mask


def _memory(jobs: Jobs, age_s: F64) -> Remembered:
    n = len(jobs)
    return Remembered(
        attained_gpu_s=age_s * jobs.gpus,
        ran_s=age_s,
        forgiven_gpu_s=np.zeros(n),
        forgiven_ran_s=np.zeros(n),
        first_run_s=jobs.start_s.copy(),
        first_submit_s=jobs.submit_s.copy(),
        waiting_since_s=jobs.submit_s.copy(),
        preemptions=np.zeros(n, np.int32),
        last_preempted_s=np.zeros(n),
        fruitless=np.zeros(n, np.int32),
        last_fruitless_s=np.zeros(n),
        site_factor=np.zeros(n, np.int64),
        tier=np.full(n, -1, np.int16),
        place=np.zeros(n),
    )


def _measure(
    policy: str, nodes: int, waiting: int, *, for_s: float, path: Path, profile: bool
) -> Took:
    measure.pin_to_one_core()
    snap = snapshot(nodes, waiting, seed=1, path=path)
    pending = np.flatnonzero(snap.jobs.state == JobState.PENDING)
    asked = snap.jobs.job_id[pending[np.linspace(0, waiting - 1, ASKED).astype(np.int64)]]
    pace = ForwardTiming(growth=growth_for(len(snap.jobs)))
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    began_s = time.process_time()
    found = foresee(
        snap,
        ForecastQuestion(jobs=tuple(JobId(int(job)) for job in asked), blur_s=pace.poll_s),
        policy=registry.POLICIES[policy](),
        settings=Settings(partitions=frozenset({"gpu"})),
        pace=pace,
        is_late=lambda: time.process_time() - began_s > for_s,
    )
    all_s = time.process_time() - began_s
    profiler.disable()
    return Took(
        policy=policy,
        waiting=waiting,
        running=len(snap.jobs) - waiting,
        runs=found.runs,
        all_s=all_s,
        ahead_s=min(job.until_s for job in found.jobs) - NOW_S if found.jobs else 0.0,
        snapshot_mb=len(json.dumps(snapshot_file.encode(snap), separators=(",", ":"))) / 1e6,
        profile=_told(profiler) if profile else "",
    )


def _told(profiler: cProfile.Profile) -> str:
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(30)
    return text.getvalue()


def main() -> None:
    """Measure the cases, print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=JOBS, help="jobs that wait")
    parser.add_argument("--nodes", type=int, default=250, help=f"nodes of {_GPUS} GPUs each")
    parser.add_argument("--policy", nargs="+", default=POLICIES, help="policies by name")
    parser.add_argument("--seconds", type=float, default=DEADLINE_S, help="time for each case")
    parser.add_argument("--trace", type=Path, default=TRACE, help="whose jobs they are")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    rows = [("policy", "waiting", "running", "runs", "", "a run", "looked ahead", "snapshot")]
    cases: list[dict[str, object]] = []
    spawn = multiprocessing.get_context("spawn")
    for policy in args.policy:
        for waiting in args.jobs:
            measure.say(f"when: {policy}, {waiting:,} jobs wait")
            with spawn.Pool(1) as pool:
                took = pool.apply(
                    _measure,
                    (policy, args.nodes, waiting),
                    {"for_s": args.seconds, "path": args.trace, "profile": args.profile},
                )
            if took.profile:
                print(took.profile)
            judged = waiting == AIM_JOBS and args.seconds == DEADLINE_S
            rows.append(
                (
                    policy,
                    f"{waiting:,}",
                    f"{took.running:,}",
                    str(took.runs),
                    measure.aim(-took.runs, -AIM_RUNS + 1) if judged else "",
                    f"{took.all_s / took.runs:.2f} s" if took.runs else f"> {took.all_s:.0f} s",
                    f"{took.ahead_s / 86_400:.1f} d",
                    f"{took.snapshot_mb:.1f} MB",
                )
            )
            cases.append({k: v for k, v in dataclasses.asdict(took).items() if k != "profile"})
    measure.report(
        "bench_when",
        {
            "gpus": args.nodes * _GPUS,
            "for_s": args.seconds,
            "aim": {"waiting": AIM_JOBS, "runs": AIM_RUNS},
            "cases": cases,
        },
        rows,
    )


if __name__ == "__main__":
    main()
