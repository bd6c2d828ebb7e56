"""Two jobs on the same GPUs in the ideal cluster, against a simulation job by job."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import make_trace

from slurm_dl.experiments.pair_table import parse_pairs
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.pair_rates import PairRates, PairRule
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Order, Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip
from slurm_dl.policies.shortest import Srsf
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.shared_gpus import SharedGpus
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.ideal.start_costs import FlatCosts
from slurm_dl.simulation.job_knowledge import TraceKnowledge
from slurm_dl.simulation.outcome import Outcome
from slurm_dl.traces.format_registry import read_trace

ITP10 = Path(__file__).parents[2] / "traces/tiresias-derived/itp10.csv"
TABLE = np.array([[0.51, 0.55, 0.62], [0.85, 0.86, 0.86], [0.94, 0.9, 0.98]])
RULES = (
    PairRule(),
    PairRule(first_host=True, most_ratio=2.0),
    PairRule(by_labels=True, first_host=True, most_ratio=2.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed(Srsf):
    """Fewest GPU-seconds first; nobody is stopped, and jobs share by a rule."""

    preempts = "never"
    rule: PairRule = field(default_factory=PairRule)

    def order(self, snap: Snapshot, /) -> Order:
        """See `Policy`."""
        return dataclasses.replace(super(Packed, self).order(snap), pairs=self.rule)


def run(
    jobs: Sequence[tuple[float, float, int]],
    kind: Sequence[int],
    table: F64,
    policy: Policy,
    *,
    gpus: int = 4,
    restart_s: float = 0.0,
) -> Outcome:
    """Run *jobs*: submission and work in seconds, and GPUs."""
    trace = make_trace(*zip(*jobs, strict=True))
    rates = PairRates(kind=np.array(kind, dtype=np.int32), rate=table[:, :, None])
    return simulate(
        trace, parse_shape(f"1x{gpus}"), policy, kind=SharedGpus, costs=FlatCosts(
            restart_s=restart_s, large_restart_s=restart_s, gpus=trace.gpus
        ), known=TraceKnowledge(pair_rates=rates),
    )  # fmt: skip


@dataclass
class Job:
    """A job of the simulation by hand."""

    number: int
    submit_s: float
    left: float
    gpus: int
    kind: int
    start_s: float = math.inf
    with_: Job | None = None


class ByHand:
    """`Packed` from event to event, by objects."""

    def __init__(self, jobs: list[Job], table: F64, rule: PairRule, gpus: int) -> None:
        kinds = range(len(table))
        mean = [sum(table[b][a] for b in kinds) / len(table) for a in kinds]
        self.label = [0 if m >= 0.95 else 1 if m >= 0.85 else 2 for m in mean]
        self.table, self.rule, self.gpus = table, rule, gpus
        self.coming = jobs
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.now_s = 0.0

    def speed(self, job: Job) -> float:
        """Work a second."""
        return 1.0 if job.with_ is None else float(self.table[job.kind][job.with_.kind])

    def both(self, host: Job, guest: Job) -> float:
        """Sum of their speeds; -inf if they may not share."""
        both = float(self.table[host.kind][guest.kind] + self.table[guest.kind][host.kind])
        labels = self.label[host.kind] + self.label[guest.kind]
        fits = labels <= 2 if self.rule.by_labels else both >= 1.25
        if self.rule.most_ratio is not None:
            fits = fits and guest.left <= self.rule.most_ratio * host.left
        return both if fits and host.gpus == guest.gpus and host.with_ is None else -math.inf

    def start(self, job: Job, host: Job | None = None) -> None:
        """*job* starts, beside *host* if there is one."""
        if host is not None:
            job.with_, host.with_ = host, job
        job.start_s = self.now_s
        self.running.append(job)
        self.waiting.remove(job)

    def join(self, job: Job) -> None:
        """*job* joins somebody, if one suits."""
        hosts = sorted(self.running, key=lambda host: (host.start_s, host.number))
        found = [(self.both(host, job), host) for host in hosts]
        found = [pair for pair in found if pair[0] > -math.inf]
        if found:
            first = self.rule.first_host
            self.start(job, found[0][1] if first else max(found, key=lambda pair: pair[0])[1])

    def event(self) -> Sequence[Job]:
        """Go on to the next event; the jobs that are done then."""
        next_s = [job.submit_s for job in self.coming[:1]]
        next_s += [self.now_s + job.left / self.speed(job) for job in self.running]
        passed_s = max(0.0, min(next_s) - self.now_s)
        for job in self.running:
            job.left -= passed_s * self.speed(job)
        self.now_s += passed_s
        done = [job for job in self.running if job.left < 1e-6]
        for job in done:
            self.running.remove(job)
            if job.with_ is not None:
                job.with_.with_ = None
        while self.coming and self.coming[0].submit_s <= self.now_s + 1e-9:
            self.waiting.append(self.coming.pop(0))
        free = self.gpus - sum(job.gpus / (1 if job.with_ is None else 2) for job in self.running)
        self.waiting.sort(key=lambda job: (job.left * job.gpus, job.submit_s, job.number))
        for job in list(self.waiting):
            if job.gpus <= free:
                free -= job.gpus
                self.start(job)
        for job in list(self.waiting):
            self.join(job)
        return done

    def ends(self) -> list[float]:
        """Ends of the jobs."""
        found = {}
        while self.coming or self.waiting or self.running:
            found.update({job.number: self.now_s for job in self.event()})
        return [found[number] for number in sorted(found)]


JOBS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 60), st.sampled_from([1, 1, 2, 4])),
    min_size=1, max_size=14,
).map(sorted)  # fmt: skip


@settings(max_examples=150)
@given(JOBS, st.data())
def test_every_job_ends_as_in_a_simulation_job_by_job(
    given_jobs: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Under each rule, on 4 GPUs."""
    kind = data.draw(
        st.lists(st.integers(0, 2), min_size=len(given_jobs), max_size=len(given_jobs))
    )
    rule = data.draw(st.sampled_from(RULES))
    # Of equal works either may come first: here none are.
    jobs = [(float(s), w + i / 64, g) for i, (s, w, g) in enumerate(given_jobs)]
    found = run(jobs, kind, TABLE, Packed(rule=rule)).records
    each = [Job(i, *job, of) for i, (job, of) in enumerate(zip(jobs, kind, strict=True))]
    expected = ByHand(each, TABLE, rule, 4).ends()
    assert found.end_s == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("policy", "restart_s"),
    [(Fifo(), 0.0), (FifoSkip(), 0.0), (DiscreteLas(), 5.0), (Srsf(), 5.0)],
)
@settings(max_examples=60, deadline=None)
@given(jobs=JOBS, data=st.data())
def test_gpus_are_counted_once_and_no_work_is_lost(
    policy: Policy, restart_s: float, jobs: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """At no instant more GPUs are held than there are, also where jobs are stopped.

    A pair holds those of one job, half of them each.
    """
    kind = data.draw(st.lists(st.integers(0, 2), min_size=len(jobs), max_size=len(jobs)))
    done = run(
        [(float(s), float(w), g) for s, w, g in jobs], kind, TABLE, policy, restart_s=restart_s
    ).records
    assert done.finished.all()
    runs = done.runs
    assert runs is not None
    for at_s in np.unique(runs.start_s):
        held = runs.gpus[(runs.start_s <= at_s) & (at_s < runs.end_s)].sum()
        assert held <= 4 + 1e-9
    whole_s = runs.end_s - runs.start_s
    had = np.bincount(runs.job, whole_s * runs.gpus, len(jobs))
    assert had == pytest.approx(done.service_gpu_s)
    share = runs.gpus / done.gpus[runs.job]
    assert set(share.tolist()) <= {0.5, 1.0}


def test_a_job_goes_on_alone_when_the_other_is_done() -> None:
    """20 s of work beside a job that leaves after 10: 10 at 0.86, then 11.4 alone."""
    ends = run([(0, 10, 1), (0, 20, 1)], [1, 1], TABLE, Packed(), gpus=1).records.end_s
    first_s = 10 / 0.86
    assert ends == pytest.approx([first_s, first_s + 20 - 10])


def test_a_job_is_stopped_with_the_one_it_shares_with() -> None:
    """Both have attained enough when a new job of all GPUs comes; they share again after it."""
    las = DiscreteLas(thresholds_gpu_s=(5.0,))
    table = np.array([[0.5, 0.3], [0.3, 0.98]])
    found = run([(0, 40, 4), (0, 40, 4), (20, 2, 4)], [1, 1, 0], table, las)
    records = found.records
    assert records.preemptions.tolist() == [1, 1, 0]
    assert records.end_s[2] == pytest.approx(22.0)
    assert records.end_s[:2] == pytest.approx([2 + 40 / 0.98] * 2)


def test_the_gpus_of_a_pair_count_at_the_job_that_the_policy_placed_better() -> None:
    """By hand: the long job shares with the short one, which nobody stops, then with the next.

    Each time it starts anew, on half a GPU.
    """
    jobs, table = [(0, 100, 1), (1, 9, 1), (2, 45, 1)], np.array([[0.9]])
    ends = run(jobs, [0] * 3, table, Srsf(), gpus=1).records.end_s
    assert ends == pytest.approx([1 + 10 + 50 + (99 - 9 - 45), 11, 61])
    lost = run(jobs, [0] * 3, table, Srsf(), gpus=1, restart_s=2).records
    assert lost.lost_gpu_s["restart"] == pytest.approx([0.5 * 2 * 2, 0, 0])


def test_a_job_that_starts_anew_goes_on_doing_so_when_another_joins_it() -> None:
    """It is back at 6 s, and trains from 11 s on; the third job comes at 7 s."""
    table = np.array([[0.9, 0.5], [0.5, 0.5]])
    records = run(
        [(0, 19, 1), (1, 5, 1), (7, 50, 1)], [0, 1, 0], table, Srsf(), gpus=1, restart_s=5
    ).records
    assert records.end_s[:2] == pytest.approx([11 + 18 / 0.9, 6])


@pytest.mark.parametrize(("first_host", "speed"), [(False, 0.9), (True, 0.7)])
def test_the_best_sum_or_the_host_that_started_first(*, first_host: bool, speed: float) -> None:
    """Of two hosts the later one is faster beside the third job."""
    table = np.array([[0.5, 0.7], [0.7, 0.9]])
    policy = Packed(rule=PairRule(first_host=first_host))
    ends = run([(0, 50, 1), (1, 50, 1), (2, 18, 1)], [0, 1, 1], table, policy, gpus=2).records.end_s
    assert ends[2] == pytest.approx(2 + 18 / speed)


def test_two_that_do_not_fit_share_under_no_rule() -> None:
    """One has speed 0 beside the other, though their labels add up to 2."""
    table = np.array([[1.0, 0.0], [1.5, 1.0]])
    for rule in RULES:
        found = run([(0, 10, 1), (0, 10, 1)], [0, 1], table, Packed(rule=rule), gpus=1)
        assert found.records.end_s == pytest.approx([10, 20])


@dataclass(frozen=True, slots=True, kw_only=True)
class Barring(Packed):
    """Bars all but the first job of the trace for 10 s."""

    def order(self, snap: Snapshot, /) -> Order:
        """See `Policy`."""
        barred = (snap.jobs.job_id > 0) & (snap.now_s < 10)
        return dataclasses.replace(super(Barring, self).order(snap), barred=barred)


@pytest.mark.parametrize(
    ("policy", "ends"),
    [(Fifo(), [10, 20, 30]), (FifoSkip(), [10 / 0.98, 10 / 0.98 + 10, 10 / 0.98]),
     (Barring(), [10, 30, 20])],
)  # fmt: skip
def test_who_may_not_start_joins_nobody(policy: Policy, ends: Sequence[float]) -> None:
    """Behind the second job, which fits beside nobody and waits in line, or barred."""
    table = np.array([[0.98, 0.5], [0.5, 0.5]])
    jobs = [(0, 10, 1), (0, 10 + 1e-9, 1), (0, 10, 1)]
    found = run(jobs, [0, 1, 0], table, policy, gpus=1).records.end_s
    assert found == pytest.approx(ends)


@pytest.mark.parametrize(("table", "least", "most"), [("slices", 0.80, 0.85), ("mps", 0.74, 0.79)])
def test_pairs_shorten_completion_times_on_a_trace_of_16_gpus(
    table: str, least: float, most: float
) -> None:
    """By sums of measured speeds, over shortest job first without pairs: the mean of five draws.

    A model of this trace that counted GPUs in another program gives 0.825 and 0.772.
    """
    trace, shape = read_trace(ITP10), parse_shape("2x8")
    alone = mean_jct_s(simulate(trace, shape, Packed()))
    rule = PairRule(by_labels=table == "mps", most_ratio=2.0, first_host=True)
    found = parse_pairs(table)
    assert found is not None
    shared = [
        mean_jct_s(
            simulate(
                trace, shape, Packed(rule=rule), kind=SharedGpus,
                known=TraceKnowledge(pair_rates=found.of(trace, seed)),
            )
        )
        for seed in range(5)
    ]  # fmt: skip
    assert least < float(np.mean(shared)) / alone < most


def mean_jct_s(outcome: Outcome) -> float:
    """Mean time from submission to the end, seconds; every job ends."""
    records = outcome.records
    assert records.finished.all()
    return float((records.end_s - records.submit_s).mean())


def test_pairs_of_heavy_jobs_in_slices_harm() -> None:
    """Their speeds add up to 1.02: from 1.25 none is formed, from 1.0 each job takes longer."""
    trace, shape = read_trace(ITP10), parse_shape("2x8")
    found = parse_pairs("slices:1/0/0")
    assert found is not None
    known = TraceKnowledge(pair_rates=found.of(trace, 0))
    policy = Packed(rule=PairRule(most_ratio=2.0, first_host=True))
    alone = simulate(trace, shape, policy)
    kept = simulate(trace, shape, policy, kind=SharedGpus, known=known)
    harmed = simulate(trace, shape, policy, kind=partial(SharedGpus, least_speed=1.0), known=known)

    assert (kept.pairs, mean_jct_s(kept)) == (0, mean_jct_s(alone))
    assert mean_jct_s(harmed) > 1.15 * mean_jct_s(alone)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("mps:1/2", "shares"), ("mps:0/0/0", "shares"), ("mps:1e999/1/1", "KIND"),
        ("nowhere.yaml", "KIND"), ("nowhere.yaml:1/2", "KIND"),
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_refused(word: str, why: str) -> None:
    """With the form that it should have."""
    with pytest.raises(ConfigError, match=why):
        parse_pairs(word)


@pytest.mark.parametrize(
    "text",
    ["a: 1", "a: {a: 1}\nb: {a: 1}", "a: {a: 3}", "a: {a: .nan}", "a: {a: true}", "[]",
     "a: {b: 1}", "pairs: {a: {a: '1'}}"],
)  # fmt: skip
def test_a_file_must_have_a_speed_of_each_kind_beside_each(text: str, tmp_path: Path) -> None:
    """A number from 0 to 2."""
    path = tmp_path / "pairs.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"a speed of 0 to 2|mapping|file"):
        parse_pairs(str(path))


def test_a_job_is_of_the_kind_that_its_model_names(tmp_path: Path) -> None:
    """The others are drawn by the shares."""
    path = tmp_path / "pairs.yaml"
    path.write_text("x: {x: 0.5, y: 0.6}\ny: {x: 0.7, y: 0.8}\n", "utf-8")
    table = parse_pairs(f"{path}:0/3")
    assert table is not None
    trace = make_trace([0, 0, 0], [1, 1, 1], models=("x", "z"), model=np.array([0, 1, -1]))
    found = table.of(trace, 0)
    assert found.kind.tolist() == [0, 1, 1]
    assert found.rate[:, :, 0].tolist() == [[0.5, 0.6], [0.7, 0.8]]
