"""Forecasts: of jobs without a promise, whether as many end in time as their odds say.

The truth is not a draw of the forecast: it is a part of Microsoft's Philly trace on a simulated
Slurm, in which jobs go on to be submitted after the question. At the last look before a job is
submitted it is asked how likely it is over by a deadline between a tenth of its time limit and
twice that. Once all that is known of run times are limits, once the jobs that are over are known,
too. Limits are 1.2 to 5 times what a job needs. No Slurm is needed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

import measure
import numpy as np

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.estimates.remaining_time import left_of
from slurm_dl.forecast.forward_runs import ForecastQuestion, foresee
from slurm_dl.forecast.worker import growth_for
from slurm_dl.model.completed_jobs import NO_PAST
from slurm_dl.model.jobs import F64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.policies.base import About
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.forward.continued_cluster import ForwardTiming
from slurm_dl.simulation.forward.initial_state import HypotheticalJob
from slurm_dl.simulation.slurm.scenario import Scenario, Simulation
from slurm_dl.simulation.slurm.simulated_cluster import EPOCH_S, FIRST_JOB_ID
from slurm_dl.traces.format_registry import read_trace

TRACE: Final = Path(__file__).parents[2] / "traces/philly/philly.csv.gz"
JOBS: Final = 1000
_EVERY: Final = 5
FIRST: Final = (10_000, 30_000, 50_000, 70_000)
"""Begin of each part of the trace."""

ANSWERS: Final = 100
_LONGEST_S: Final = 2 * 86_400.0
KNOWN: Final = ("limits alone", "jobs that are over")
LONGEST_GAP_S: Final = 120.0
"""Older looks are not asked: the daemon looks more often."""

SETTINGS: Final = Settings(
    partitions=frozenset({"gpu"}), preemption=Preemption(beneficiaries="all")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembering(DiscreteLas):
    """The policy, with the jobs that are over in its snapshots."""

    about: ClassVar[About] = replace(DiscreteLas.about, needs=(*DiscreteLas.about.needs, "history"))


class Watched(Simulation):
    """A simulation whose looks are kept for as long as nothing was asked of them."""

    before: Snapshot | None = None

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, policy=Remembering(), settings=SETTINGS)
        self.asked: list[tuple[Snapshot, int]] = []
        self._random = np.random.default_rng(scenario.seed)

    def _cycle(self, *, acting: bool) -> Cycle:
        cycle = super()._cycle(acting=acting)
        snap, before = cycle.snapshot, self.before
        if before is not None and snap.now_s - before.now_s < LONGEST_GAP_S:
            new = np.setdiff1d(snap.jobs.job_id, before.jobs.job_id)
            if len(new):
                self.asked.append((before, int(self._random.choice(new)) - FIRST_JOB_ID))
        self.before = snap
        return cycle


def part_of(trace: Trace, first: int, jobs: int) -> Trace:
    """One of five jobs of *trace* from *first* on, that ask for 1 to 16 GPUs and run a minute."""
    usual = np.isin(trace.gpus, (1, 2, 4, 8, 16)) & (trace.duration_s >= 60)
    rows = np.flatnonzero(usual)[first::_EVERY][:jobs]
    return trace.of_jobs(rows, duration_s=np.minimum(trace.duration_s[rows], _LONGEST_S))


def answers(trace: Trace, seed: int, count: int) -> Iterator[tuple[str, float, bool]]:
    """The facts known, the odds, and whether the job was in time; of so many jobs each."""
    random = np.random.default_rng(seed)
    limit_s: F64 = np.ceil(trace.duration_s * random.uniform(1.2, 5.0, len(trace.gpus)) / 600) * 600
    span_s = float(np.ptp(trace.submit_s))
    nodes = math.ceil(float((trace.gpus * trace.duration_s).sum()) / span_s / 8)
    scenario = Scenario(trace=trace, shape=parse_shape(f"{nodes}x8"), limit_s=limit_s, seed=seed)
    world = Watched(scenario)
    end_s = world.run().records.end_s + EPOCH_S
    late = [one for one in world.asked if one[1] > len(trace) // 10]  # once the cluster is full
    measure.say(f"{nodes} nodes, {len(late)} looks with a new job")
    for at in np.linspace(0, len(late) - 1, count).astype(int).tolist():
        snap, row = late[at]
        gpus, kind = int(trace.gpus[row]), trace.users[int(trace.user[row])]
        job = HypotheticalJob(
            gpus=gpus,
            n_nodes=math.ceil(gpus / 8),
            partition=0,
            uid=0,
            user=kind,
            limit_s=float(limit_s[row]),
            due_s=snap.now_s + float(limit_s[row]) * 10 ** float(random.uniform(-1, 0.3)),
        )
        for known in KNOWN:
            odds = _odds(_as_known(snap, known), job, seed=at)
            if odds is not None:
                yield known, odds, bool(end_s[row] <= job.due_s)


def _as_known(snap: Snapshot, known: str) -> Snapshot:
    """*snap* as a daemon sees it: nobody knows how long a job still runs."""
    snap = replace(snap, left_from=None, progress=None)
    if known == KNOWN[0]:
        snap = replace(snap, past=NO_PAST)
    return replace(snap, left_s=left_of(snap).seconds)


def _odds(snap: Snapshot, job: HypotheticalJob, *, seed: int) -> float | None:
    pace = ForwardTiming(growth=growth_for(len(snap.jobs)))
    # What is after the deadline does not matter.
    question = ForecastQuestion(wanted=(job,), seed=seed, horizon_s=job.due_s - snap.now_s + 1.0)
    return (
        foresee(snap, question, policy=DiscreteLas(), settings=SETTINGS, pace=pace)
        .wanted[0]
        .in_time
    )


def main() -> None:
    """Ask, and print by fifths of the odds how many were in time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=ANSWERS, help="answers of each kind")
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs of each part")
    parser.add_argument("--trace", type=Path, default=TRACE, help="whose jobs they are")
    args = parser.parse_args()
    whole = read_trace(args.trace)
    told: list[tuple[str, float, bool]] = []
    for seed, first in enumerate(FIRST):
        told += answers(part_of(whole, first, args.jobs), seed, args.answers // len(FIRST))
    rows = [("known", "odds", "answers", "mean odds", "in time")]
    cases: list[dict[str, object]] = []
    for known in KNOWN:
        odds, held = (np.array([one[i] for one in told if one[0] == known]) for i in (1, 2))
        fifth = np.minimum((odds * 5).astype(int), 4)
        for i in (*range(5), None):
            there = np.ones(len(odds), np.bool_) if i is None else fifth == i
            if not there.any():
                continue
            span = "all" if i is None else f"{20 * i} to {20 * i + 20}%"
            mean, share = float(odds[there].mean()), float(held[there].mean())
            rows.append((known, span, str(there.sum()), f"{mean:.0%}", f"{share:.0%}"))
            cases.append({"known": known, "odds": span, "mean": mean, "held": share})
            cases[-1]["answers"] = int(there.sum())
    measure.report("bench_odds", {"cases": cases}, rows)


if __name__ == "__main__":
    main()
