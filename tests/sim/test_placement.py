"""Jobs on nodes in the ideal cluster: invariants for every policy, and cases worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placed import EVEN, PROFILES, SKEWED, placed, with_models
from small_traces import make_trace, outcome_of, traces

from slurm_dl.engine.settings import Placement
from slurm_dl.model.jobs import Bool
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.placement import scheme_registry
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.consolidate import Consolidate
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import Ask, PendingJob
from slurm_dl.placement.scheme import Answer, Scheme, Spot, Wait
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo, FifoSkip
from slurm_dl.policies.las import Las
from slurm_dl.policies.shortest import Srsf, Srtf
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.decision_times import DecisionTimes
from slurm_dl.simulation.ideal.jobs_on_nodes import OnNodes
from slurm_dl.simulation.ideal.placement_speed import ContentionSpeed, skew_prior
from slurm_dl.simulation.ideal.start_costs import FlatCosts, MuriCosts, QuantileCosts
from slurm_dl.simulation.outcome import Outcome

DRAWN = settings(max_examples=12, deadline=None)

POLICIES: Final[dict[str, Policy]] = {
    "fifo": Fifo(),
    "fifo_skip": FifoSkip(),
    "srtf": Srtf(),
    "srsf": Srsf(),
    "las": Las(quantum_s=2.0),
    "discrete_las": DiscreteLas(thresholds_gpu_s=(8.0, 24.0), promote_knob=1.5),
}
SCHEMES: Final[dict[str, Scheme]] = {
    "best_fit": BestFit(),
    "consolidate": Consolidate(locality_wait_s=5.0),
    "consolidate all": Consolidate(skew_threshold=0.0, locality_wait_s=3.0),
}
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


@dataclasses.dataclass(frozen=True)
class Widest:
    """As many nodes as there are ways, for the tests."""

    name: ClassVar[str] = "widest"
    source: ClassVar[str] = "none"
    interpretation: ClassVar[str] = ""

    def begin(self, *_: object) -> Widest:
        """It needs to know nothing."""
        return self

    def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
        """The last way that fits."""
        for ask in reversed(want.need.asks):
            usable, count = offer.usable(ask)
            if int(count[usable].sum()) >= ask.n_nodes:
                nodes = offer.pick(ask, np.flatnonzero(usable))
                if nodes is not None:
                    return Spot(nodes=nodes, why="wide")
        return None


@st.composite
def modelled(draw: st.DrawFn, **more: Any) -> Trace:  # noqa: ANN401
    """A small trace with models, and without."""
    trace = draw(traces(**more))
    model = draw(st.lists(st.integers(-1, 2), min_size=len(trace), max_size=len(trace)))
    return with_models(trace, model)


def columns(outcome: Outcome) -> dict[str, Any]:
    records = outcome.records
    names = ("start_s", "end_s", "service_gpu_s", "preemptions", "promotions", "success")
    found = {name: getattr(records, name) for name in names}
    found |= {name: getattr(records.runs, name) for name in ("job", "gpus")}
    found["runs.start_s"], found["runs.end_s"] = records.runs.start_s, records.runs.end_s
    return found


def assert_conserved(outcome: Outcome, trace: Trace, longer: float = 1.0) -> None:
    """Whatever was moved and slowed: the work done is the trace's, and service is all accounted."""
    records = outcome.records
    done = records.finished
    work = trace.duration_s * trace.gpus
    lost = records.all_lost_gpu_s
    np.testing.assert_allclose(records.service_gpu_s[done], (work + lost)[done], rtol=1e-9)
    assert (records.all_lost_gpu_s >= -1e-6).all()
    runs, service = records.runs, np.zeros(len(trace))
    np.add.at(service, runs.job, (runs.end_s - runs.start_s) * trace.gpus[runs.job])
    # Ends are told in the trace's time, which may be large: sums of their differences are rounded.
    np.testing.assert_allclose(service, records.service_gpu_s, rtol=1e-9, atol=1e-5)
    assert (records.jct_s[done] + 1e-6 >= trace.duration_s[done] * longer).all()


# invariants


@EVERY_POLICY
@settings(max_examples=25, deadline=None)
@given(
    trace=modelled(gpus=(0.5, 1, 2, 2.5, 3, 4, 6, 9)),
    scheme=st.sampled_from(list(SCHEMES.values())),
    shape=st.sampled_from(["1x4", "2x4", "4x2@2", "3x3", "2x4,2x2"]),
    widths=st.sampled_from(["any", "fewest"]),
)
def test_capacity_gangs_and_work_hold_for_every_policy(
    policy: Policy,
    scheme: Scheme,
    trace: Trace,
    shape: str,
    widths: Any,  # noqa: ANN401
) -> None:
    """`Watched` looks at every node after every event; nobody is lost, nothing done twice."""
    outcome, where = placed(trace, shape, policy, scheme, widths=widths)

    assert_conserved(outcome, trace)
    assert where.seen == outcome.events
    nodes = parse_shape(shape).nodes().gpus
    if policy.skips:
        for job in np.flatnonzero(~outcome.records.finished).tolist():
            least = math.ceil(trace.gpus[job] / nodes.max())
            share = trace.gpus[job] / least
            share = math.ceil(share) if trace.gpus[job] == int(trace.gpus[job]) else share
            assert (nodes >= share).sum() < least, "a job that fits an empty cluster was lost"
    again, _ = placed(trace, shape, policy, scheme, widths=widths)
    for name, values in columns(outcome).items():
        np.testing.assert_array_equal(values, columns(again)[name], err_msg=name)


@pytest.mark.parametrize("name", sorted(scheme_registry.SCHEMES))
@DRAWN
@given(trace=modelled(gpus=(1, 2, 3, 4, 6)), shape=st.sampled_from(["2x4", "4x2@2"]))
def test_every_scheme_that_comes_with_the_project_can_be_simulated(
    name: str, trace: Trace, shape: str
) -> None:
    """With its own parameters: nothing is given twice, and nobody is left behind for good."""
    outcome, _ = placed(trace, shape, POLICIES["discrete_las"], scheme_registry.SCHEMES[name]())

    assert_conserved(outcome, trace)
    assert outcome.records.finished.all()


@EVERY_POLICY
@DRAWN
@given(
    trace=modelled(gpus=(1, 2, 4)),
    seed=st.integers(0, 9),
    clockwork=st.sampled_from(
        [DecisionTimes(), DecisionTimes(round_s=7.0), DecisionTimes(tick_s=1.0)]
    ),
    network_mb_s=st.sampled_from([math.inf, 150.0]),
)
def test_costs_rounds_and_contention_leave_it_sound(
    policy: Policy, trace: Trace, seed: int, clockwork: DecisionTimes, network_mb_s: float
) -> None:
    """Restart costs work on top of speeds that change while a job runs."""
    costs = QuantileCosts("drawn", np.array([0.0, 0.25, 0.5]))
    outcome, _ = placed(
        trace,
        "3x2",
        policy,
        Widest(),
        contention=ContentionSpeed(network_mb_s=network_mb_s, pcie_mb_s=50.0),
        whole={"costs": costs, "clockwork": clockwork, "seed": seed},
    )

    assert_conserved(outcome, trace)
    if policy.skips:
        assert outcome.records.finished.all()


@EVERY_POLICY
@DRAWN
@given(trace=modelled(gpus=(1, 2, 4)))
def test_muris_costs_work_on_top(policy: Policy, trace: Trace) -> None:
    """Where all pay at every event, each still does its work, 1.5 % longer."""
    costs = MuriCosts(np.full(len(trace), 0.125))
    if isinstance(policy, Las):
        return  # Its turns are as short as what they cost.
    outcome, _ = placed(trace, "2x2", policy, Widest(), whole={"costs": costs})

    done = outcome.records.finished
    assert done.all() or not policy.skips
    assert_conserved(outcome, trace, longer=1.015)


@EVERY_POLICY
@DRAWN
@given(trace=modelled(gpus=(1, 2, 3, 4, 8)))
def test_on_one_node_all_is_as_without_placement(policy: Policy, trace: Trace) -> None:
    """To the last bit: there is one place, and in it a job is as fast as it can be."""
    outcome, _ = placed(trace, "1x8", policy, BestFit())
    plain = outcome_of(trace, "1x8", policy)

    for name, values in columns(plain).items():
        np.testing.assert_array_equal(columns(outcome)[name], values, err_msg=name)
    assert (outcome.decisions, outcome.events) == (plain.decisions, plain.events)
    assert not outcome.records.all_lost_gpu_s.any()


@EVERY_POLICY
@DRAWN
@given(trace=modelled(gpus=(1,)))
def test_jobs_of_one_gpu_cannot_notice_nodes(policy: Policy, trace: Trace) -> None:
    """Any free GPU will do, so only the count matters."""
    outcome, _ = placed(trace, "2x2", policy, BestFit())

    for name, values in columns(outcome_of(trace, "2x2", policy)).items():
        np.testing.assert_array_equal(columns(outcome)[name], values, err_msg=name)


@DRAWN
@given(trace=modelled(gpus=(1, 2, 4)))
def test_names_of_jobs_change_nothing(trace: Trace) -> None:
    other = dataclasses.replace(trace, job_id=tuple(f"x{i}" for i in range(len(trace))[::-1]))
    policy = POLICIES["discrete_las"]

    before = columns(placed(trace, "2x4", policy, BestFit())[0])
    for name, values in columns(placed(other, "2x4", policy, BestFit())[0]).items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)


# who starts where


def test_a_spread_job_is_as_slow_as_its_profile_says() -> None:
    """4 GPUs on four nodes at the speed of the prior, and on one node as without placement."""
    trace = with_models(make_trace([0, 0], [100, 100], [4, 4]), [0, 1])
    speed = skew_prior(0.75, 4)

    outcome, where = placed(trace, "4x4", FifoSkip(), Widest())
    assert where.shapes == {0: [(0, 1, 2, 3)], 1: [(0, 1, 2, 3)]}
    np.testing.assert_allclose(outcome.records.end_s, [100 / speed, 100])
    np.testing.assert_allclose(
        outcome.records.lost_gpu_s["placement"], [4 * (100 / speed - 100), 0], atol=1e-9
    )
    assert outcome.lay.speed.tolist() == pytest.approx([speed, 1.0])
    assert outcome.lay.nodes.tolist() == [4, 4]
    assert outcome.lay.skewed_spread_frac == 1.0
    assert outcome.lay.rungs == {"skew": 2}

    together, _ = placed(trace, "4x4", FifoSkip(), Widest(), widths="fewest")
    assert together.records.end_s.tolist() == [100, 100]
    assert (together.lay.skewed_spread_frac, together.lay.rungs) == (0.0, {})


def test_neighbours_share_a_link_only_while_both_are_there() -> None:
    """Each job sends 2 x 10 MB/s from both nodes; the link carries 20: half as fast together.

    The first works 30 s alone, the second comes; each does 35 s of work in 70; then one is alone.
    """
    trace = with_models(make_trace([0, 30], [65, 100], [4, 4]), [1, 1])
    how = ContentionSpeed(network_mb_s=20.0)

    outcome, _ = placed(trace, "2x4", FifoSkip(), Widest(), contention=how)
    assert outcome.records.end_s.tolist() == pytest.approx([100, 165])
    assert outcome.lay.speed.tolist() == pytest.approx([65 / 100, 100 / 135])

    alone, _ = placed(trace, "2x4", FifoSkip(), BestFit(), contention=how)
    assert alone.records.end_s.tolist() == [65, 130]


def test_contention_and_a_restart_that_is_not_paid_yet() -> None:
    """A neighbour who comes while a job still starts does not make its start longer."""
    trace = with_models(make_trace([0, 4], [10, 10], [4, 4]), [1, 1])
    costs = FlatCosts(restart_s=0, large_restart_s=0, gpus=trace.gpus, start_s=6)

    outcome, _ = placed(
        trace,
        "2x4",
        FifoSkip(),
        Widest(),
        contention=ContentionSpeed(network_mb_s=20.0),
        whole={"costs": costs},
    )
    # The second starts to work at 10; the first works from 6 on at half speed until 26.
    assert outcome.records.end_s.tolist() == pytest.approx([26, 28])
    assert outcome.records.lost_gpu_s["restart"].tolist() == pytest.approx([24, 24])


def test_running_jobs_keep_their_nodes_and_nobody_is_stopped_in_vain() -> None:
    """A job of 2 ranks first and displaces one of 1, whose GPU alone is no place for it.

    From 1 s on each node of 2 has one GPU in use. The policy wants the new job and two of the old
    ones; what the third would give up does not help, so it runs on.
    """
    trace = make_trace([0, 0, 0, 0, 1], [50, 1, 51, 60, 5], [1, 1, 1, 1, 2])

    def after(shape: str, **more: Any) -> Outcome:  # noqa: ANN401
        return placed(trace, shape, Srtf(), BestFit(), **more)[0]

    together = after("2x2", widths="fewest").records
    assert together.preemptions.tolist() == [0, 0, 0, 0, 0]
    assert together.start_s.tolist() == [0, 0, 0, 0, 50]
    spread = after("2x2").records
    assert spread.preemptions.tolist() == [0, 0, 0, 1, 0]
    assert spread.start_s[4] == 1


def test_gpus_of_who_has_no_place_go_to_the_next_ones() -> None:
    """The job of 2 has no node with 2 free, and the jobs of 1 behind it start."""
    trace = make_trace([0, 0, 1, 1, 1], [50, 60, 9, 9, 9], [3, 3, 2, 1, 1])

    outcome, _ = placed(trace, "2x4", FifoSkip(), BestFit(), widths="fewest")
    assert outcome.records.start_s.tolist() == [0, 0, 50, 1, 1]
    strict, _ = placed(trace, "2x4", Fifo(), BestFit(), widths="fewest")
    assert strict.records.start_s.tolist() == [0, 0, 50, 50, 50]


def test_who_waits_for_a_better_place_is_looked_at_when_the_wait_is_over() -> None:
    """No event falls together with the end of the wait but the one made for it."""
    trace = with_models(make_trace([0, 0, 1], [500, 500, 10], [3, 3, 2]), [2, 2, 0])
    scheme = Consolidate(locality_wait_s=40.0)

    outcome, where = placed(trace, "2x4", FifoSkip(), scheme)
    assert outcome.records.start_s[2] == pytest.approx(41)
    assert where.shapes[2] == [(0, 1)]
    assert outcome.records.end_s[2] == pytest.approx(41 + 10 / skew_prior(0.75, 2))


def test_gpus_that_do_not_divide_are_held_one_by_one() -> None:
    """5 GPUs on two nodes of 4 are 3 and 2, so that 3 are left."""
    trace = make_trace([0, 1, 1], [50, 9, 9], [5, 1, 2])

    outcome, where = placed(trace, "2x4", FifoSkip(), BestFit())
    assert where.shapes[0] == [(0, 1)]
    assert outcome.records.start_s.tolist() == [0, 1, 1]


def test_a_job_whose_gpus_do_not_divide_is_not_stopped_in_vain_either() -> None:
    """It holds 3 and 2, the rest is in use: at 3 s what it has is no place for 4, at 82 it is.

    Its share is 3 where a place is looked for, and it keeps the node on which it holds 2.
    """
    trace = make_trace([0, 1, 2, 3], [500, 90, 80, 5], [5, 1, 2, 4])

    outcome, where = placed(trace, "2x4", Srtf(), BestFit(), widths="fewest")
    assert where.shapes[0] == [(0, 1), (0, 1)]
    assert outcome.records.start_s.tolist() == [0, 1, 2, 82]
    runs = outcome.records.runs
    assert runs.end_s[runs.job == 0].tolist() == [82, 505]


def test_schemes_see_the_running_jobs_and_what_they_are() -> None:
    """Holdings, models and widths are in the snapshot that a scheme begins with."""
    seen: list[Snapshot] = []

    class Looking(BestFit):
        def begin(self, snap: Snapshot, *_: object) -> BestFit:
            held = snap.seen.held
            seen.append(dataclasses.replace(snap))
            assert set(held.job.tolist()) <= set(range(len(snap.jobs)))
            noted.append((held.node.tolist(), held.gpus.tolist()))
            return BestFit()

    noted: list[tuple[list[int], list[float]]] = []
    trace = with_models(make_trace([0, 1, 2], [50, 50, 50], [4, 6, 2]), [0, 1, 2])
    placed(trace, "3x4", FifoSkip(), Looking())

    assert noted[:3] == [([], []), ([0], [4.0]), ([0, 1, 2], [4.0, 3.0, 3.0])]
    claims = seen[0].seen.claims
    assert [(c.model, c.most_nodes) for c in claims.values()] == [
        ("skewed", 4),
        ("even", 6),
        (None, 2),
    ]


def test_policies_see_the_work_left_and_not_the_time_that_it_takes() -> None:
    """Half of the time at 0.4 of the speed is 20 s of work: 80 s are left of 100."""
    left_s: list[list[float]] = []

    class Looking(BestFit):
        def begin(self, snap: Snapshot, *_: object) -> Widest:  # type: ignore[override]
            left_s.append(snap.left_s.tolist())
            return Widest()

    trace = with_models(make_trace([0, 50], [100, 7], [4, 1]), [0, 2])
    placed(trace, "4x4", FifoSkip(), Looking())

    assert left_s == [[100.0], [pytest.approx(80.0), 7.0]]


def test_rules_are_kept_and_those_that_are_not_strict_give_way() -> None:
    """A rule that forbids the first node; strict: never there, else only if nothing else fits."""

    @dataclasses.dataclass(frozen=True)
    class NotFirst:
        strict: bool
        name: ClassVar[str] = "not_first"
        source: ClassVar[str] = "none"
        interpretation: ClassVar[str] = ""

        def allows(self, _want: PendingJob, _ask: Ask, stock: FreeNodes, /) -> Bool:
            allowed = np.ones(len(stock), dtype=np.bool_)
            # The leaf of the first node.
            allowed[stock.leaf == 0] = False
            return allowed

    trace = make_trace([0, 0, 0], [10, 10, 10], [2, 2, 2])

    def nodes_of(*, strict: bool) -> tuple[list[float], dict[int, list[tuple[int, ...]]]]:
        outcome, where = placed(
            trace, "2x2@1", FifoSkip(), BestFit(), rules=[NotFirst(strict)], widths="fewest"
        )
        return outcome.records.start_s.tolist(), where.shapes

    assert nodes_of(strict=True) == ([0, 10, 20], {0: [(1,)], 1: [(1,)], 2: [(1,)]})
    assert nodes_of(strict=False) == ([0, 0, 10], {0: [(1,)], 1: [(0,)], 2: [(1,)]})


def test_no_place_for_one_model_says_nothing_about_another() -> None:
    """Two jobs that ask for the same, of two models: the scheme has no place for the first."""

    class Choosy(BestFit):
        def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
            refused = want.profile is not None and want.profile.name == "skewed"
            return None if refused else super().place(want, offer)

    trace = with_models(make_trace([0, 0], [5, 5], [1, 1]), [0, 1])
    outcome, _ = placed(trace, "1x4", FifoSkip(), Choosy())
    assert outcome.records.finished.tolist() == [False, True]


def test_a_job_told_to_wait_for_ever_is_left_waiting() -> None:
    """No wake, no end: the simulation is over, and says that the job did not finish."""

    class Never(BestFit):
        def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
            if want.row == 0:
                return Wait(within=None, for_s=math.inf, why="never")
            return super().place(want, offer)

    outcome, _ = placed(make_trace([0, 0], [5, 5], [1, 1]), "1x4", FifoSkip(), Never())
    assert outcome.records.finished.tolist() == [False, True]
    assert math.isnan(outcome.lay.nodes[0])
    assert outcome.lay.mean_nodes == 1.0


def test_what_is_told_of_jobs_that_cannot_be_spread() -> None:
    """A skewed job of one GPU is no job that could be spread."""
    trace = with_models(make_trace([0, 0], [5, 5], [1, 2]), [0, 1])

    lay = placed(trace, "2x2", FifoSkip(), BestFit())[0].lay
    assert math.isnan(lay.skewed_spread_frac)
    assert lay.skew.tolist() == [SKEWED.skew, EVEN.skew]
    assert lay.fewest_nodes.tolist() == [1, 1]


def test_there_is_no_placement_without_a_scheme() -> None:
    trace = make_trace([0], [5])

    with pytest.raises(ValueError, match="scheme"):
        OnNodes(trace, parse_shape("1x1"), Placement(profiles=PROFILES), skips=True)


def test_types_of_gpus_are_measured_apart() -> None:
    """The same model is slowed by its place on one type and not on the other."""
    from slurm_dl.model.profile import Shape, Speed  # noqa: PLC0415

    def at(nodes: int, rate: float, kind: str) -> Speed:
        return Speed(shape=Shape(nodes, 2 // nodes), steps_per_s=rate, gpu_type=kind)

    both = Profile(
        name="even", speeds=(at(1, 8, "v100"), at(2, 2, "v100"), at(1, 4, "k80"), at(2, 4, "k80"))
    )
    trace = with_models(make_trace([0, 0], [8, 8], [2, 2]), [1, 1])

    outcome, where = placed(
        trace, "2x1:v100,2x1:k80", FifoSkip(), BestFit(), profiles={"even": both}
    )
    # On nodes of one GPU two nodes are the best there is, so neither is slower.
    assert outcome.records.end_s.tolist() == [8, 8]
    wide, where = placed(trace, "2x2:v100,2x2:k80", FifoSkip(), Widest(), profiles={"even": both})
    ends = {where.shapes[job][0]: wide.records.end_s[job] for job in (0, 1)}
    assert all(ends[nodes] == (32 if nodes == (0, 1) else 8) for nodes in ends)
