"""Sizes of elastic jobs, speeds in them, and the time that is left."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import build
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.daemon.enrich import Enricher
from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Resizing, Settings
from slurm_dl.estimates.goodput import Throughput, with_step
from slurm_dl.estimates.remaining_time import left_of
from slurm_dl.estimates.similar_jobs import as_submitted, asked
from slurm_dl.estimates.size_speeds import elastic_rows, sizes_of
from slurm_dl.estimates.training_speed import SitePriors, rates_of_jobs
from slurm_dl.model.booking import entry
from slurm_dl.model.contract import Batch, Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, JobState, Origin
from slurm_dl.model.nodes import SharedGpu
from slurm_dl.model.profile import Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import SIZE, SizeHistory, Sizes, Spent
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.model.step_report import BatchLimits, StepReport, StepTime
from slurm_dl.policies.elastic.afs import Afs
from slurm_dl.policies.elastic.pollux import Pollux
from slurm_dl.policies.elastic.sia import Sia
from slurm_dl.policies.registry import POLICIES

NOW_S = build.NOW_S
SITE = SitePriors(serial_share=0.05)
S1, S2, S4, S2x2 = Shape(1, 1), Shape(1, 2), Shape(1, 4), Shape(2, 2)
ALL = (S1, S2, S4, S2x2)
PRIOR = {1: 1.0, 2: 1 / 0.525, 4: 1 / 0.2875}
"""Speeds by Amdahl's law with a serial share of 0.05."""


def snap_of(
    row: JobRow,
    claim: Claim,
    *,
    history: SizeHistory | None = None,
    ran_s: float = 0.0,
    preemptions: int = 0,
    seen: Mapping[str, Any] | None = None,
) -> Snapshot:
    """One job, with its claim and what is written down of it."""
    booked = () if history is None else (entry(SIZE, row.job_id, history.body()),)
    return build.snapshot(
        build.observed([row], claims={JobId(row.job_id): claim}, **(seen or {})),
        memory={"ran_s": {row.job_id: ran_s}, "preemptions": {row.job_id: preemptions}},
        booked=booked,
    )


def shapes_in(sizes: Sizes) -> list[Shape]:
    return [
        Shape(n, int(g) // n)
        for n, g in zip(sizes.nodes.tolist(), sizes.gpus.tolist(), strict=True)
    ]


def words(sizes: Sizes | None) -> str:
    """The sizes of the only job, the asked one marked."""
    if sizes is None:
        return ""
    (at,) = sizes.asked.tolist()
    return " ".join(f"{s}*" if i == at else str(s) for i, s in enumerate(shapes_in(sizes)))


@pytest.mark.parametrize(
    ("row", "claim", "more", "found"),
    [
        (build.pending(1), {}, {}, "1x1* 1x2 1x4 2x2"),
        (build.running(1, 2), {"asked": S2}, {}, "1x1 1x2* 1x4 2x2"),
        (build.running(1, 4, n_nodes=2), {}, {}, "1x1 1x2 1x4 2x2*"),
        # What the comment says of the asked size makes no job smaller than its owner submitted it.
        (build.pending(1, 2), {"asked": S1}, {}, "1x1 1x2* 1x4 2x2"),
        (build.pending(1, 3), {"sizes": (S4,)}, {}, "1x3* 1x4"),
        (build.pending(1, 3, n_nodes=2), {}, {}, ""),
        # Room: nodes with 4, 2 and 2 GPUs; the asked size stays.
        (build.pending(1), {}, {"nodes": (4, 2, 2)}, "1x1* 1x2 1x4 2x2"),
        (build.pending(1), {}, {"nodes": (2, 2)}, "1x1* 1x2 2x2"),
        (build.pending(1), {}, {"nodes": (2,)}, "1x1* 1x2"),
        (build.pending(1), {}, {"nodes": (1, 1)}, ""),
        (build.pending(1, 4), {}, {"nodes": (2,)}, "1x1 1x2 1x4*"),
        (build.pending(1), {}, {"nodes": (4, 4), "columns": {"up": [0, 0]}}, "1x1* 1x2 1x4 2x2"),
        (build.pending(1), {}, {"node_in": np.array([[1, 0, 0, 0], [1] * 4], bool)},
         "1x1* 1x2 1x4"),
        (build.pending(1), {}, {"choices": {JobId(1): np.array([1, 0, 0, 0], bool)}},
         "1x1* 1x2 1x4"),
        (build.pending(1, gpu_type=1), {}, {"nodes": (4, 2), "columns": {"gpu_type": [0, 1]}},
         "1x1* 1x2"),
        # Kinds of jobs that have one size.
        (build.pending(1), {"sizes": ()}, {}, ""),
        (build.pending(1), {"sizes": (S1, S1), "asked": S1}, {}, ""),
        (build.pending(1), {"most_nodes": 3}, {}, ""),
        (build.pending(1, tasks=2), {}, {}, ""),
        (build.pending(1, exclusive=True), {}, {}, ""),
        (build.pending(1, 0.5), {}, {}, ""),
        (build.pending(1, partition=1), {}, {}, ""),
        (JobRow(job_id=1, state=JobState.COMPLETING), {}, {}, ""),
        (build.pending(1), {}, {"also_in": {JobId(1): (1,)}}, ""),
        (build.pending(1), {}, {"texts": {JobId(1): JobText(label="1_3")}}, ""),
        (build.pending(1), {}, {"texts": {JobId(1): JobText(label="1+1")}}, ""),
        (build.pending(1), {}, {"texts": {JobId(1): JobText(label="1", name="a_b+c")}},
         "1x1* 1x2 1x4 2x2"),
        (build.running(1), {},
         {"shared": (SharedGpu(node=0, index=0, jobs=(JobId(1),), shares=(1.0,)),)}, ""),
    ],
)  # fmt: skip
def test_sizes_that_the_cluster_could_give(
    row: JobRow, claim: dict[str, Any], more: dict[str, Any], found: str
) -> None:
    """Fewest GPUs first; fewer than two are none."""
    snap = snap_of(row, Claim(**{"sizes": ALL, **claim}), seen=more)
    sizes = sizes_of(snap, {}, SITE)

    assert words(sizes) == found
    assert sizes is None or sizes.fits(n=1, types=2)
    assert sizes is None or len(elastic_rows(snap)) == 1


@pytest.mark.parametrize(
    ("history", "asked_now", "found"),
    [
        (SizeHistory(refused=frozenset({S2, S2x2})), None, "1x1* 1x4"),
        (SizeHistory(refused=frozenset({S1, S2, S2x2})), S1, "1x1* 1x4"),
        (SizeHistory(refused=frozenset({S2, S2x2, S4})), None, ""),
        # It shows 4 GPUs now: what was written down, what it says, the first of its sizes.
        (SizeHistory(asked=S2, now=S4), S1, "1x1 1x2* 1x4 2x2"),
        (SizeHistory(now=S4), S2, "1x1 1x2* 1x4 2x2"),
        (SizeHistory(now=S4), None, "1x1* 1x2 1x4 2x2"),
    ],
)
def test_what_is_written_down_outlives_what_slurm_shows(
    history: SizeHistory, asked_now: Shape | None, found: str
) -> None:
    """Refused sizes, and the size that the job was submitted with."""
    snap = snap_of(build.running(1, 4), Claim(sizes=ALL, asked=asked_now), history=history)

    assert words(sizes_of(snap, {}, SITE)) == found


def test_several_jobs_stand_one_after_the_other() -> None:
    """Whatever the order of the claims; a job with one size has no entry."""
    rows = [build.pending(1), build.pending(2), build.pending(3, 2), build.pending(4)]
    claims = {JobId(3): Claim(sizes=(S1, S2)), JobId(2): Claim(), JobId(1): Claim(sizes=(S1, S4))}
    sizes = sizes_of(build.snapshot(build.observed(rows, claims=claims)), {}, SITE)

    assert sizes is not None
    assert sizes.fits(n=4, types=2)
    assert sizes.row.tolist() == [0, 2]
    assert sizes.asked.tolist() == [0, 3]
    assert shapes_in(sizes) == [S1, S4, S1, S2]
    assert sizes.rate.tolist() == pytest.approx([1, PRIOR[4], 1 / PRIOR[2], 1])
    assert sizes.on_type is None


# --- speeds ---------------------------------------------------------------------------------


def speeds(*table: tuple[Shape, float, int | None], gpu_type: str = "a100") -> Profile:
    """Shapes, steps a second and the batch of one GPU."""
    return Profile(
        name="m",
        speeds=tuple(
            Speed(shape=s, steps_per_s=v, batch=b, gpu_type=gpu_type, origin="measured")
            for s, v, b in table
        ),
    )


M, F, R, P = Origin.MEASURED, Origin.FITTED, Origin.REPORTED, Origin.PRIOR
GROWS = speeds((S1, 10, None), (S4, 8, None))
ONE = speeds((S2, 5, None))


@pytest.mark.parametrize(
    ("profile", "batch", "rates", "origins"),
    [
        # Nothing known: Amdahl's law of the site.
        (None, "fixed", [1, PRIOR[2], PRIOR[4]], [P, P, P]),
        (None, "gpu", [1, PRIOR[2], PRIOR[4]], [P, P, P]),
        # 10 x 1 x 32 = 320 and 8 x 4 x 32 = 1024 samples a second: 3.2 times as many. Between them
        # the curve a + b / g with a + b = 1 and a + b / 4 = 1 / 3.2: a = 1/12, b = 11/12.
        (speeds((S1, 10, 32), (S4, 8, 32)), "gpu", [1, 24 / 13, 3.2], [M, F, M]),
        (speeds((S1, 10, 32), (S4, 8, 32)), "fixed", [1, 24 / 13, 3.2], [M, F, M]),
        # Measured with a batch of 32 in all: 10 x 32 and 34 x 32 samples.
        (speeds((S1, 10, 32), (S4, 34, 8)), "fixed", [1, None, 3.4], [M, F, M]),
        # No batch told: a step on 4 GPUs is 4 times the work where the batch grows with them,
        # 8 x 4 / 10 = 3.2; of a fixed batch it is the same work, 34 / 10 = 3.4.
        (GROWS, "gpu", [1, 24 / 13, 3.2], [M, F, M]),
        (speeds((S1, 10, None), (S4, 34, None)), "fixed", [1, None, 3.4], [M, F, M]),
        # One speed, carried over by Amdahl's law whatever a step is.
        (ONE, "gpu", [1, PRIOR[2], PRIOR[4]], [P, M, P]),
        (ONE, "fixed", [1, PRIOR[2], PRIOR[4]], [P, M, P]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("gpu_type", [-1, 0])
def test_rates_by_what_is_known_of_the_model(
    profile: Profile | None, batch: Batch, rates: list[float | None], origins: list[Origin],
    *, gpu_type: int,
) -> None:  # fmt: skip
    """Hand calculations, relative to the asked size."""
    claim = Claim(sizes=(S1, S2, S4), model="m", batch=batch)
    snap = snap_of(build.pending(1, gpu_type=gpu_type), claim)
    sizes = sizes_of(snap, {} if profile is None else {"m": profile}, SITE)

    assert sizes is not None
    for rate, wanted in zip(sizes.rate.tolist(), rates, strict=True):
        assert wanted is None or rate == pytest.approx(wanted)
    assert sizes.origin.tolist() == origins


@pytest.mark.parametrize(
    ("spent", "asked_size", "rates", "origins"),
    [
        # 0.1 in 200 s and 0.34 in 200 s: 3.4. 2 GPUs: by Amdahl from 1, the first of the nearest.
        ({S1: Spent(200, 0.1), S4: Spent(200, 0.34)}, S1, [1, PRIOR[2], 3.4], [R, P, R]),
        ({S1: Spent(200, 0.1), S4: Spent(200, 0.34)}, S4, [1 / 3.4, PRIOR[2] / 3.4, 1], [R, P, R]),
        # The asked size was not measured: from 2 GPUs by Amdahl.
        ({S2: Spent(200, 0.1), S4: Spent(200, 0.15)}, S1, [1, PRIOR[2], 1.5 * PRIOR[2]], [P, R, R]),
        # One size, too short, too little: no ratio.
        ({S4: Spent(200, 0.34)}, S1, [1, PRIOR[2], PRIOR[4]], [P, P, P]),
        ({S1: Spent(119, 0.1), S4: Spent(200, 0.34)}, S1, [1, PRIOR[2], PRIOR[4]], [P, P, P]),
        ({S1: Spent(200, 0.019), S4: Spent(200, 0.3)}, S1, [1, PRIOR[2], PRIOR[4]], [P, P, P]),
        # Just enough; a size that is none of its own counts for none.
        (
            {S1: Spent(120, 0.02), S4: Spent(120, 0.07), S2x2: Spent(999, 0.9)},
            S1, [1, PRIOR[2], 3.5], [R, P, R],
        ),
    ],
)  # fmt: skip
def test_rates_as_the_job_itself_reports_them(
    spent: dict[Shape, Spent], asked_size: Shape, rates: list[float], origins: list[Origin]
) -> None:
    """Progress over time in each size, where two sizes tell."""
    ran_s = sum(s.ran_s for s in spent.values())
    done = sum(s.progress for s in spent.values())
    history = SizeHistory(asked=asked_size, now=S2x2, since=Spent(ran_s, done), spent=spent)
    claim = Claim(sizes=(S1, S2, S4), progress=done)
    snap = snap_of(build.pending(1, 4, n_nodes=2), claim, history=history, ran_s=ran_s)
    sizes = sizes_of(snap, {}, SITE)

    assert sizes is not None
    assert sizes.rate.tolist() == pytest.approx(rates)
    assert sizes.origin.tolist() == origins


TRUE = Throughput(0.05, 0.002, 0.03, 0.004, 0.1, 0.01, 2.0)
BATCHES = BatchLimits(first=64, most=1024, least_local=4, most_local=64)
LADDER = (S1, S2, S4, Shape(1, 8), Shape(2, 8))


def adaptive(noise: float, *held: Shape, true: Throughput = TRUE) -> Snapshot:
    """A job whose batch adapts, and its steps on *held*, of several batches."""
    history = SizeHistory(asked=S1, now=S1)
    for shape in held:
        for at in ((16, 0), (32, 0), (64, 0), (32, 2)):
            step_s = float(true.step_s(shape.nodes, shape.gpus, *at))
            history = with_step(history, StepTime(shape.nodes, shape.gpus, *at, step_s))
    report = StepReport(0, 1, 16, 1, 1.0, noise, BATCHES)
    claim = Claim(sizes=LADDER, batch="adapt", steps=report)
    return snap_of(build.running(1), claim, history=history, seen={"nodes": (8, 8)})


def best_by_trial(shape: Shape, noise: float) -> float:
    """Highest goodput of all batches that the limits allow: (phi + M0) / (phi + M) x M / T."""
    values = [0.0]
    for more, local in itertools.product(range(64), range(4, 65)):
        batch = shape.gpus * local * (more + 1)
        alone = shape.gpus == 1 and more == 0 and batch > BATCHES.first
        if BATCHES.first <= batch <= BATCHES.most and not alone:
            time_s = float(TRUE.step_s(shape.nodes, shape.gpus, local, more))
            values.append(batch / time_s * (noise + 64) / (noise + batch))
    return max(values)


@pytest.mark.parametrize("noise", [0.0, 100.0, 1e5])
def test_rates_of_a_batch_that_adapts_are_those_of_the_best_goodput(noise: float) -> None:
    """Against all batches tried, with the true seconds of steps."""
    snap = adaptive(noise, S1, S2, S4, Shape(1, 8), Shape(2, 8))
    sizes = sizes_of(snap, {}, SITE)
    assert sizes is not None
    tried = np.array([best_by_trial(shape, noise) for shape in LADDER])

    assert sizes.rate == pytest.approx(tried / tried[0], rel=0.02)
    assert set(sizes.origin.tolist()) == {Origin.REPORTED}


@pytest.mark.parametrize(
    ("noise", "held", "grows"),
    [
        # With two more times its GPUs it is as fast as with twice as many: it has not had them.
        (1e6, (S1,), [1, 2]),
        (1e6, (S1, S2), [1, 2, 4]),
        (1e6, (S1, S2, S4), [1, 2, 4, 8]),
        # Without noise a larger batch brings nothing, and this one is small.
        (0.0, (S1, S2, S4, Shape(2, 8)), []),
    ],
)
def test_as_many_gpus_as_it_has_had_twice_are_worth_having(
    noise: float, held: tuple[Shape, ...], grows: list[int]
) -> None:
    """Sizes whose rate is a half above that of the size before."""
    true = TRUE if noise else TRUE._replace(a_g=1.0, b_g=1e-6)
    sizes = sizes_of(adaptive(noise, *held, true=true), {}, SITE)
    assert sizes is not None
    before = np.append(0.0, sizes.rate[:-1])
    fast = sizes.gpus[sizes.rate >= 1.4 * before].tolist()

    assert fast == (grows or [1])


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_no_report_makes_a_job_gain_more_than_linear_scaling(data: st.DataObject) -> None:
    """Whatever it says of its steps, its noise and its batches; and decisions go on."""
    history = SizeHistory(asked=S1, now=S1)
    for shape in data.draw(st.lists(st.sampled_from(LADDER), min_size=1, max_size=4)):
        step_s, local = data.draw(st.floats(1e-6, 1e6)), data.draw(st.integers(1, 10**9))
        more = data.draw(st.integers(0, 1023))
        history = with_step(history, StepTime(shape.nodes, shape.gpus, local, more, step_s))
    low, high = sorted(data.draw(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9))))
    least, most = sorted(data.draw(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9))))
    limits = BatchLimits(low, high, least, most)
    report = StepReport(0, 1, 1, 1, 1.0, data.draw(st.floats(0, 1e12)), limits)
    claim = Claim(contract=Contract(), sizes=LADDER, batch="adapt", steps=report)
    seen = {"nodes": (8, 8), "held": {1: {0: 1.0}}, "columns": {"gpu_type": (0, 1)}}
    snap = snap_of(build.running(1), claim, history=history, seen=seen)
    sizes = sizes_of(snap, {}, SITE)

    assert sizes is not None
    assert sizes.fits(n=1, types=2)
    assert (np.diff(sizes.rate / sizes.gpus) <= 1e-9 * sizes.rate[0]).all()
    limits = Settings(partitions=frozenset({"gpu"}), resizing=Resizing(steadiness=1.0))
    for policy in (Pollux(search=True), Sia(), Sia(fairness=10.0), Afs()):
        decide(replace(snap, sizes=sizes), policy, limits)


def test_who_gains_by_a_larger_batch_gets_the_gpus_under_pollux() -> None:
    """Two jobs with steps alike; the gradient of one is all noise, that of the other has none."""
    noises, true = {1: 1e6, 2: 0.0}, TRUE._replace(a_g=1.0, b_g=1e-6)
    each = {j: adaptive(noise, *LADDER, true=true) for j, noise in noises.items()}
    seen = build.observed(
        [build.running(1), build.running(2)],
        claims={JobId(j): snap.seen.claim(JobId(1)) for j, snap in each.items()},
        nodes=(8,),
    )
    booked = tuple(replace(snap.booked[0], key=str(j)) for j, snap in each.items())
    snap = build.snapshot(seen, booked=booked, memory={"first_submit_s": dict.fromkeys(each, 0.0)})
    snap = replace(snap, sizes=sizes_of(snap, {}, SITE))
    order = POLICIES["pollux"]().order(snap)
    assert snap.sizes is not None
    assert order.size is not None

    assert snap.sizes.gpus[order.size].tolist() == [4.0, 1.0]


@pytest.mark.parametrize("is_noted", [True, False])
def test_the_run_under_way_counts(*, is_noted: bool) -> None:
    """In the size it holds, from its start on, before and after that is written down."""
    history = SizeHistory(asked=S1, now=S1)
    if is_noted:
        history = history.begun(S4, Spent(200, 0.1))
    row = build.running(1, 4, ran_s=300)
    # 200 s for 0.1, and since then 300 s; who reports 0.1 at the first look goes on to 0.61.
    claim = Claim(sizes=(S1, S4), progress=0.61 if is_noted else 0.1)
    snap = snap_of(row, claim, history=history, ran_s=500)
    sizes = sizes_of(snap, {}, SITE)

    assert sizes is not None
    assert sizes.rate.tolist() == pytest.approx([1, 3.4 if is_noted else PRIOR[4]])


# --- what is left ---------------------------------------------------------------------------

HALF = speeds((S1, 10, 1), (S4, 8.5, 1))
"""Four GPUs do 34 samples a second: 3.4 times as many as one."""


@pytest.mark.parametrize(
    ("row", "history", "ran_s", "p", "left_s", "origin"),
    [
        # 100 s on 1 GPU and 100 s on 4 GPUs at 3.4: half of it is 440 s of one GPU.
        (build.running(1, 4, ran_s=100), SizeHistory(now=S1), 200, 0.5, 440, R),
        (build.running(1, 4, ran_s=100), SizeHistory(now=S1).begun(S4, Spent(100, 0.2)),
         200, 0.5, 440, R),
        (build.pending(1, 4), SizeHistory(now=S1).begun(S4, Spent(100, 0.2)), 200, 0.5, 440, R),
        # In the size it asked for all the time, and before anything was written down.
        (build.running(1, 1, ran_s=200), SizeHistory(now=S1), 200, 0.5, 200, R),
        (build.running(1, 4, ran_s=200), None, 200, 0.5, 200, R),
        (build.running(1, 4, ran_s=100), SizeHistory(now=S4, since=Spent(100, 0.1)),
         200, 0.5, 440, R),
        # Two GPUs are none of its sizes: 1 + 2.4 / 3 = 1.8 between 1 and 3.4.
        (build.running(1, 2, ran_s=100), SizeHistory(now=S1), 200, 0.5, 280, R),
        # More than the largest of its sizes.
        (build.running(1, 8, ran_s=100), SizeHistory(now=S1), 200, 0.5, 440, R),
        (build.running(1, 1, ran_s=100), SizeHistory(asked=S4, now=S4),
         200, 0.5, 100 + 100 / 3.4, R),
        # No report: the limit less what it ran, in seconds of the asked size.
        (build.running(1, 4, ran_s=100, limit_s=1000, restarts=1), SizeHistory(now=S1),
         200, None, 560, Origin.DECLARED),
        (build.running(1, 4, ran_s=100, limit_s=440), SizeHistory(now=S1), 200, None, 0,
         Origin.DECLARED),
        # It ran for longer than that over its runs: less the run under way.
        (build.running(1, 4, ran_s=100, limit_s=440, restarts=1), SizeHistory(now=S1),
         200, None, 100, Origin.DECLARED),
    ],
)  # fmt: skip
def test_what_is_left_is_counted_in_the_asked_size(
    row: JobRow, history: SizeHistory | None, ran_s: float, p: float | None,
    *, left_s: float, origin: Origin,
) -> None:  # fmt: skip
    """By the daemon's own path."""
    claim = Claim(sizes=(S1, S4), asked=S1, progress=p, model="m")
    snap = snap_of(row, claim, history=history, ran_s=ran_s, preemptions=1)
    after = Enricher(profiles={"m": HALF}, site=SITE)(snap)

    assert after.left_s.tolist() == pytest.approx([left_s])
    assert after.left_from is not None
    assert after.left_from.tolist() == [origin]


def test_fewer_gpus_than_the_least_size_count_in_proportion() -> None:
    """One GPU of two is half of them, however the speeds of the others bend."""
    claim = Claim(sizes=(S2, S4), progress=0.5)
    history = SizeHistory(asked=S4, now=S1)
    snap = snap_of(build.running(1, 1, ran_s=200), claim, history=history, ran_s=200)
    after = Enricher(profiles={}, site=SITE)(snap)

    assert after.left_s.tolist() == pytest.approx([200 * PRIOR[2] / PRIOR[4] / 2])


def test_history_counts_seconds_of_the_asked_size() -> None:
    """700 s were expected, and 440 s of them are done."""
    claim = Claim(sizes=(S1, S4), model="m")
    snap = snap_of(build.running(1, 4, ran_s=100), claim, history=SizeHistory(now=S1), ran_s=200)
    after = Enricher(profiles={"m": HALF}, site=SITE)(snap)

    assert left_of(after, np.array([700.0])).seconds.tolist() == pytest.approx([260])


@pytest.mark.parametrize(("now", "gpus"), [(S4, 4), (S1, 1)])
def test_estimates_go_by_the_size_that_a_job_was_submitted_with(now: Shape, gpus: float) -> None:
    """Whatever size it has: GPUs of its features, and its speed on each type."""
    both = Profile(
        name="m",
        speeds=tuple(
            Speed(shape=shape, steps_per_s=v, gpu_type=kind, batch=1, origin="measured")
            for shape, kind, v in [
                (S1, "a100", 9.0), (S1, "v100", 3.0), (S4, "a100", 9.0), (S4, "v100", 1.0),
            ]
        ),
    )  # fmt: skip
    history = SizeHistory(asked=S1, now=now)
    claim = Claim(sizes=(S1, S4), model="m")
    after = Enricher(profiles={"m": both}, site=SITE)(
        snap_of(build.running(1, gpus), claim, history=history)
    )

    assert as_submitted(after).gpus.tolist() == [1]
    assert as_submitted(after).n_nodes.tolist() == [1]
    assert asked(after, np.array([0])).gpus.tolist() == [1]
    rates = rates_of_jobs(after, {"m": both}, SITE)
    assert rates is not None
    assert rates.rates[0, 0] / rates.rates[0, 1] == pytest.approx(3.0)


BOTH: Final = Profile(
    name="m",
    speeds=tuple(
        Speed(shape=shape, steps_per_s=v, gpu_type=kind, batch=1, origin="measured")
        for shape, kind, v in [
            (S1, "a100", 4.0), (S2, "a100", 3.5), (S4, "a100", 3.0), (S2x2, "a100", 2.0),
            (S1, "v100", 2.0), (S2, "v100", 1.0), (S4, "v100", 0.5), (S2x2, "v100", 0.25),
        ]
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("row", "claim", "more", "a100", "v100"),
    [
        # Samples a second are steps x GPUs; the first node has 4 GPUs a100, the second 2 v100.
        (build.pending(1), {}, {}, [1, 1.75, 3, 0], [0.5, 0.5, 0, 0]),
        (build.pending(1, gpu_type=1), {}, {}, [0, 0], [1, 1]),
        (build.pending(1), {}, {"choices": {JobId(1): np.array([0, 1], bool)}}, [0, 0], [1, 1]),
    ],
)  # fmt: skip
def test_speeds_differ_by_type(
    row: JobRow,
    claim: dict[str, Any],
    more: dict[str, Any],
    a100: list[float],
    v100: list[float],
) -> None:
    """As measured in each size on each type; 0 where the nodes of a type do not hold the size."""
    seen = {"nodes": (4, 2), "columns": {"gpu_type": [0, 1]}, **more}
    snap = snap_of(row, Claim(sizes=ALL, model="m", **claim), seen=seen)
    sizes = sizes_of(snap, {"m": BOTH}, SITE)

    assert sizes is not None
    assert sizes.on_type is not None
    assert sizes.fits(n=1, types=2)
    k = len(sizes.gpus)
    assert sizes.on_type[:, 0].tolist() == pytest.approx(a100[:k])
    assert sizes.on_type[:, 1].tolist() == pytest.approx(v100[:k])


def _plain(job_ids: Sequence[int]) -> Snapshot:
    return build.snapshot(build.observed([build.running(j, ran_s=500) for j in job_ids]))


def test_a_cluster_without_elastic_jobs_pays_nothing() -> None:
    """No sizes, and the very columns of the cluster."""
    snap = _plain([1, 2])

    assert sizes_of(snap, {}, SITE) is None
    assert as_submitted(snap) is snap.jobs
