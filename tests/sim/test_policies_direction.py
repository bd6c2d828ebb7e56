"""What the published policies are for shows in the simulator: who beats whom, and in what.

Only directions are asserted, as a paper's factors belong to its trace. Workloads are drawn once,
from fixed seeds, and are the same for all policies; none was chosen so that a policy wins. The
cluster is the ideal one, so nothing here is due to what starting and stopping cost. What was looked
for and does not show stands in ``tests/data/directions.yaml``, with the reason.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import yaml

from slurm_dl.model.jobs import F64, I32, Bool
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.policies import registry
from slurm_dl.policies.base import About, Order, Policy, Preempts
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.report.summary_metrics import Summary, summarise
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.job_knowledge import TraceKnowledge
from slurm_dl.simulation.outcome import Outcome

SEEDS = range(3)
DIRECTIONS = Path(__file__).parents[1] / "data" / "directions.yaml"


@dataclass(frozen=True, kw_only=True, eq=False)
class Load:
    """A workload, the cluster it is for, and what is known of its jobs."""

    trace: Trace
    shape: str
    known: TraceKnowledge = dataclasses.field(default_factory=lambda: TraceKnowledge(texts=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class Ran:
    """What came of a workload under a policy."""

    load: Load
    outcome: Outcome
    summary: Summary

    @property
    def mean_jct_s(self) -> float:
        """Of all jobs, seconds."""
        return self.summary.jct_s.mean

    def mean_jct_of(self, which: Bool) -> float:
        """Mean JCT of some of the jobs, seconds."""
        return float(self.outcome.records.jct_s[which].mean())

    @property
    def due(self) -> Bool:
        """Which jobs have a deadline."""
        assert self.load.known.due_s is not None
        return np.isfinite(self.load.known.due_s)

    @property
    def met_frac(self) -> float:
        """Share of the deadlines that were met."""
        assert self.load.known.due_s is not None
        late_s = self.outcome.records.end_s - self.load.known.due_s
        return float((late_s[self.due] <= 1e-6).mean())

    @property
    def jain_of_accounts(self) -> float:
        """Jain's index of the GPU time of the accounts while each of them had jobs waiting."""
        trace, runs = self.load.trace, self.outcome.records.runs
        whose = trace.user[runs.job]
        accounts = range(len(trace.users))
        until_s = min(runs.start_s[whose == a].max() for a in accounts)
        had_gpu_s = np.maximum(np.minimum(runs.end_s, until_s) - runs.start_s, 0) * runs.gpus
        had = np.array([had_gpu_s[whose == a].sum() for a in accounts])
        return float(had.sum() ** 2 / (len(had) * (had**2).sum()))

    @property
    def mean_group_s(self) -> float:
        """Mean time from a group's first submission to its last end, groups being models."""
        trace, records = self.load.trace, self.outcome.records
        return statistics.fmean(
            records.end_s[trace.model == g].max() - trace.submit_s[trace.model == g].min()
            for g in range(len(trace.models))
        )


def workload(
    submit_s: F64, duration_s: F64, gpus: F64, user: I32, model: I32, *, users: int, models: int
) -> Trace:
    """A trace of these columns; models have names without digits, as a digit makes a group."""
    n = len(submit_s)
    return Trace(
        name="made",
        format="generated",
        job_id=tuple(map(str, range(n))),
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        user=user.astype(np.int32),
        model=model.astype(np.int32),
        ending=np.zeros(n, np.int8),
        users=tuple(f"lab_{chr(97 + i)}" for i in range(users)),
        models=tuple(f"kind_{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(models)),
    )


@functools.cache
def busy(seed: int, jobs: int = 100, load: float = 1.2, rate: float = 16.0) -> Load:
    """Jobs of 25 recurrent kinds come somewhat faster than 16 GPUs do the work.

    Lengths are heavy-tailed: the typical ones of the kinds are the quantiles of a lognormal law
    with sigma 1.6, each job's is that times another with 0.3.
    """
    rng = np.random.default_rng(seed)
    kinds = 25
    normal = statistics.NormalDist()
    typical_s = np.exp(
        6.0 + 1.6 * np.array([normal.inv_cdf((i + 0.5) / kinds) for i in range(kinds)])
    )
    rng.shuffle(typical_s)
    gpus_of = rng.permutation(np.resize([1.0, 1.0, 1.0, 2.0, 4.0], kinds))
    kind = rng.permutation(np.resize(np.arange(kinds), jobs))
    duration_s = typical_s[kind] * rng.lognormal(0, 0.3, jobs) + 1
    gpus = gpus_of[kind]
    gap_s = float((duration_s * gpus).mean()) / (load * rate)
    submit_s = np.cumsum(rng.exponential(gap_s, jobs))
    trace = workload(submit_s, duration_s, gpus, kind % 4, kind, users=4, models=kinds)
    return Load(trace=trace, shape="2x8")


@functools.cache
def short(seed: int) -> Load:
    """The same with half as many jobs, for policies that solve a program at every event."""
    return busy(seed, jobs=50)


@functools.cache
def due(seed: int) -> Load:
    """The same, two jobs of five with a deadline that leaves 1.3 to 6 times their length."""
    load = busy(seed, load=1.1)
    rng = np.random.default_rng(100 + seed)
    n = len(load.trace)
    slack = rng.uniform(1.3, 6, n)
    due_s = load.trace.submit_s + slack * load.trace.duration_s + 600
    due_s[rng.random(n) >= 0.4] = np.inf
    return dataclasses.replace(load, known=TraceKnowledge(due_s=due_s, texts=True))


@functools.cache
def saturated(seed: int, jobs: int = 96) -> Load:
    """All jobs within a minute, of four accounts of which one has an eighth, one half of them."""
    rng = np.random.default_rng(seed)
    account = rng.permutation(np.resize([0, 1, 2, 2, 3, 3, 3, 3], jobs))
    trace = workload(
        np.sort(rng.uniform(0, 60, jobs)),
        rng.lognormal(8.0, 0.6, jobs),
        rng.choice([1.0, 2.0, 4.0], jobs, p=[0.5, 0.3, 0.2]),
        account,
        np.zeros(jobs),
        users=4,
        models=1,
    )  # fmt: skip
    return Load(trace=trace, shape="2x8")


@functools.cache
def of_one_gpu(seed: int) -> Load:
    """The same with a GPU a job."""
    load = saturated(seed)
    one = dataclasses.replace(load.trace, gpus=np.ones(len(load.trace)))
    return dataclasses.replace(load, trace=one)


@functools.cache
def all_at_once(seed: int) -> Load:
    """The same on GPUs of two types: half of the jobs gain four times from the fast ones."""
    load = of_one_gpu(seed)
    n = 40
    first = {
        name: getattr(load.trace, name)[:n]
        for name in ("job_id", "duration_s", "gpus", "user", "model", "ending")
    }
    trace = dataclasses.replace(load.trace, submit_s=np.zeros(n), **first)
    gain = np.random.default_rng(300 + seed).permutation(np.resize([4.0, 1.2], n))
    rates = np.stack([gain, np.ones(n)], axis=1)
    return Load(
        trace=trace, shape="1x4:fast,1x4:slow", known=TraceKnowledge(rates=rates, texts=True)
    )


@functools.cache
def searches(seed: int) -> Load:
    """Fourteen searches of eight jobs each; jobs of a search come within two minutes."""
    rng = np.random.default_rng(seed)
    of, each = 14, 8
    first_s = np.cumsum(rng.exponential(700, of))
    typical_s = rng.lognormal(7.0, 1.0, of)
    group = np.repeat(np.arange(of), each)
    submit_s = first_s[group] + rng.uniform(0, 120, of * each)
    order = np.argsort(submit_s)
    group = group[order]
    duration_s = typical_s[group] * rng.lognormal(0, 0.8, of * each)
    trace = workload(
        submit_s[order], duration_s, np.ones(of * each), group % 4, group, users=4, models=of
    )
    return Load(trace=trace, shape="2x8")


@functools.cache
def under(policy: str | Policy, load: Callable[[int], Load], seed: int) -> Ran:
    """What *policy*, as it comes if it is a name, makes of a workload; every job must end."""
    made = load(seed)
    chosen = registry.find(policy)() if isinstance(policy, str) else policy
    shape = parse_shape(made.shape)
    outcome = simulate(made.trace, shape, chosen, known=made.known)
    assert outcome.records.finished.all()
    return Ran(load=made, outcome=outcome, summary=summarise(outcome.records, gpus=shape.gpus))


def mean_jct_s(policy: str | Policy, load: Callable[[int], Load]) -> float:
    """Over all seeds."""
    return statistics.fmean(under(policy, load, seed).mean_jct_s for seed in SEEDS)


# Who knows, or learns, how long jobs are


@pytest.mark.parametrize("seed", SEEDS)
def test_srtf_beats_sjf_beats_fifo(seed: int) -> None:
    """G2: preemption is worth something, and so is knowing lengths without it."""
    times_s = [under(name, busy, seed).mean_jct_s for name in ("srtf", "sjf", "fifo")]

    assert times_s == sorted(times_s)
    assert times_s[0] < 0.95 * times_s[1] < 0.9 * times_s[2]


@pytest.mark.parametrize("policy", ["las", "discrete_las", "gittins", "discrete_gittins", "elas"])
@pytest.mark.parametrize("seed", SEEDS)
def test_attained_service_beats_arrival_where_lengths_are_heavy_tailed(
    policy: str, seed: int
) -> None:
    """A1, A2: although nobody tells the lengths."""
    assert under(policy, busy, seed).mean_jct_s < under("fifo", busy, seed).mean_jct_s


def test_gittins_with_the_past_as_its_law_is_between_las_and_srtf() -> None:
    """A1: knowing the distribution is worth something, knowing each length more."""
    assert mean_jct_s("srtf", busy) < mean_jct_s("gittins", busy) < 1.02 * mean_jct_s("las", busy)


def test_truthful_progress_is_worth_something() -> None:
    """A2: never worse than A1 on the mean JCT."""
    assert mean_jct_s("elas", busy) < mean_jct_s("discrete_las", busy)


@pytest.mark.parametrize("policy", ["qssf", "tagged"])
@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_learnt_from_the_past_beat_arrival(policy: str, seed: int) -> None:
    """A23, A24: recurrent jobs, no preemption; worse than knowing the lengths."""
    time_s = under(policy, busy, seed).mean_jct_s

    assert time_s < under("fifo", busy, seed).mean_jct_s
    assert time_s > under("srtf", busy, seed).mean_jct_s


@pytest.mark.parametrize("policy", ["easy_backfill", "conservative_backfill"])
def test_backfill_waits_longer_than_skipping_and_less_than_fifo(policy: str) -> None:
    """G1: it passes a job that does not fit only where that job does not lose by it."""
    waits_s = [
        statistics.fmean(under(name, busy, seed).summary.wait_s.mean for seed in SEEDS)
        for name in ("fifo_skip", policy, "fifo")
    ]

    assert waits_s == sorted(waits_s)
    assert waits_s[1] < 0.97 * waits_s[2]


def test_backfill_is_done_sooner_than_fifo() -> None:
    """G1: fewer GPUs are idle."""
    spans_s = [
        statistics.fmean(under(name, busy, seed).summary.makespan_s for seed in SEEDS)
        for name in ("easy_backfill", "fifo")
    ]

    assert spans_s[0] < spans_s[1]


# Deadlines


@dataclass(frozen=True, slots=True, kw_only=True)
class DueFirst(DiscreteLas):
    """Earliest deadline first, the jobs without one in the queues behind."""

    name: ClassVar[str] = "due_first"
    preempts: ClassVar[Preempts] = "rank"
    about: ClassVar[About] = dataclasses.replace(DiscreteLas.about, needs=("due_s",))

    @property
    def tiers(self) -> int:
        """One more than those of the others."""
        return DiscreteLas().tiers + 1

    def order(self, snap: Snapshot, /) -> Order:
        """Place every job; see `Policy`."""
        order = DiscreteLas().order(snap)
        assert snap.due_s is not None
        urgent = np.isfinite(snap.due_s)
        return dataclasses.replace(
            order,
            tier=np.where(urgent, 0, order.tier + 1).astype(np.int16),
            key=np.where(urgent, snap.due_s, order.key),
            tiers=self.tiers,
        )

    def next_change_s(self, snap: Snapshot, order: Order, running: Bool, /) -> float:
        """When a job without a deadline sinks; see `Policy`."""
        queues = dataclasses.replace(
            order, tier=np.maximum(order.tier - 1, 0).astype(np.int16), tiers=order.tiers - 1
        )
        assert snap.due_s is not None
        return DiscreteLas().next_change_s(snap, queues, running & ~np.isfinite(snap.due_s))


def test_just_in_time_is_better_for_the_others_than_deadlines_first() -> None:
    """A22: as many deadlines are met, and jobs without one are done sooner."""
    ours, theirs = ([under(p, due, s) for s in SEEDS] for p in ("karuna", DueFirst()))

    assert sum(r.met_frac for r in ours) >= sum(r.met_frac for r in theirs)
    others_s = [[r.mean_jct_of(~r.due) for r in ran] for ran in (ours, theirs)]
    assert sum(others_s[0]) < sum(others_s[1])


@pytest.mark.parametrize("policy", ["karuna", "mlfs"])
def test_more_deadlines_are_met_than_by_arrival(policy: str) -> None:
    """A16, A22."""
    met = [sum(under(p, due, s).met_frac for s in SEEDS) for p in (policy, "fifo")]

    assert met[0] > met[1]


def test_a_term_for_deadlines_meets_more_of_them() -> None:
    """A16: the same priority without the term meets fewer, or as many at most."""
    blind = registry.find("mlfs")(deadline_weight=0.0)
    met = [sum(under(p, due, s).met_frac for s in SEEDS) for p in ("mlfs", blind)]

    assert met[0] > met[1]


# Fairness


@pytest.mark.parametrize("policy", ["themis", "themis_convex", "gavel_finish_time"])
@pytest.mark.parametrize("seed", SEEDS)
def test_finish_time_fairness_has_a_lower_worst_rho_than_fifo(policy: str, seed: int) -> None:
    """A5, A6."""
    assert under(policy, short, seed).summary.rho.max < under("fifo", short, seed).summary.rho.max


@pytest.mark.parametrize("policy", ["astraea_ltgf", "hug", "gandiva_fair"])
@pytest.mark.parametrize("other", ["fifo", "las", "discrete_las"])
def test_accounts_have_more_even_gpu_time_than_jobs_by_service(policy: str, other: str) -> None:
    """A4, A13, A20: while all of them want more, whoever has submitted more of the jobs."""
    for seed in SEEDS:
        ours, theirs = (under(p, saturated, seed).jain_of_accounts for p in (policy, other))
        assert ours > theirs, seed


@pytest.mark.parametrize("other", ["fifo", "las"])
def test_dominant_shares_are_even_where_jobs_can_be_handed_out_one_by_one(other: str) -> None:
    """A19: tasks of one GPU, as in the paper."""
    for seed in SEEDS:
        ours, theirs = (under(p, of_one_gpu, seed).jain_of_accounts for p in ("drf", other))
        assert ours > theirs, seed


def test_giving_away_what_is_not_missed_makes_the_mean_better() -> None:
    """A21: than the fair shares it starts from."""
    assert mean_jct_s("carbyne", short) < mean_jct_s("drf", short)


# Two types of GPUs


@pytest.mark.parametrize("seed", SEEDS)
def test_matching_jobs_with_types_beats_arrival(seed: int) -> None:
    """A7."""
    ours, theirs = (under(p, all_at_once, seed).mean_jct_s for p in ("allox", "fifo"))

    assert ours < theirs


@pytest.mark.parametrize("seed", SEEDS)
def test_knowing_the_speeds_beats_not_knowing_them(seed: int) -> None:
    """A6: max-min fairness, with and without; the mean JCT."""
    ours, theirs = (
        under(p, all_at_once, seed).mean_jct_s for p in ("gavel_max_min", "gavel_max_min_agnostic")
    )

    assert ours < theirs


@pytest.mark.parametrize("seed", SEEDS)
def test_knowing_the_speeds_makes_the_makespan_shorter(seed: int) -> None:
    """A6: on each workload, since running jobs move to faster GPUs that come free."""
    ours, theirs = (
        under(p, all_at_once, seed).summary.makespan_s
        for p in ("gavel_max_min", "gavel_max_min_agnostic")
    )

    assert ours < theirs


def test_the_policy_for_the_makespan_has_a_shorter_one_than_the_fair_one() -> None:
    """A6: of jobs that are all there, which is what it minimises."""
    spans_s = [
        statistics.fmean(under(name, all_at_once, seed).summary.makespan_s for seed in SEEDS)
        for name in ("gavel_makespan", "gavel_max_min", "fifo")
    ]

    assert spans_s[0] < min(spans_s[1:])


# Groups


@pytest.mark.parametrize("other", ["fifo_skip", "srtf", "las"])
def test_whole_searches_are_done_sooner_than_by_any_order_of_jobs(other: str) -> None:
    """F2: the mean over groups of the time until the last job of the group is done."""
    groups_s = [
        statistics.fmean(under(p, searches, s).mean_group_s for s in SEEDS)
        for p in ("grouper", other)
    ]

    assert groups_s[0] < groups_s[1]


# What does not show


def not_shown() -> list[dict[str, str]]:
    return list(yaml.safe_load(DIRECTIONS.read_text("utf-8"))["not_shown"])


def test_what_does_not_show_is_listed_with_its_reason() -> None:
    for entry in not_shown():
        assert set(entry) == {"row", "policy", "claim", "found", "reason"}
        registry.find(entry["policy"])
        assert all(entry.values())
