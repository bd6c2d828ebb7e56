"""Tiresias' placement: skewed models together, others on what is left over."""

from __future__ import annotations

import itertools
import math

import place_cases as pc
import pytest
from hypothesis import given, settings

from slurm_dl.model.profile import Profile
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.consolidate import Consolidate, skew
from slurm_dl.placement.pending_job import PendingJob
from slurm_dl.placement.scheme import Spot, Wait

# Parameter tensors of AlexNet (torchvision's shapes), in millions of values: convolutions and
# fully connected layers, biases left out as they hardly count. 0.611 is the published class.
ALEXNET = (0.023, 0.307, 0.664, 0.885, 0.590, 37.749, 16.777, 4.096)


def _answer(case: pc.Case, scheme: Consolidate | None = None) -> Spot | Wait | None:
    placed = pc.place(pc.snapshot(case), scheme or Consolidate())
    last = 99 + len(case.queue)
    return placed.spots.get(last) or placed.waits.get(last)  # type: ignore[call-overload, no-any-return]


def test_skew_comes_from_the_profile_or_from_its_tensors() -> None:
    """A figure in the profile counts before the tensors; without either it is unknown."""
    assert skew(Profile(name="a", tensors_mb=ALEXNET)) == pytest.approx(0.611, abs=0.01)
    assert skew(Profile(name="a", tensors_mb=ALEXNET, skew=0.2)) == 0.2
    assert skew(Profile(name="a")) is None
    assert skew(None) is None


@pytest.mark.parametrize(
    ("known", "together"),
    [(0.774, True), (0.717, True), (0.611, True), (0.138, False), (0.112, False), (0.044, False)],
)
def test_the_classes_of_the_published_models(known: float, together: bool) -> None:  # noqa: FBT001
    """VGG and AlexNet are kept on one node, ResNet and Inception take fragments (section 3.3)."""
    case = pc.Case(
        (pc.Node(), pc.Node(), pc.Node()),
        (pc.Run((0,), gpus=4), pc.Run((1,), gpus=4)),
        (pc.Waiting(gpus=8, most_nodes=2),),
    )
    profiles = {"m": Profile(name="m", skew=known)}
    stock, placer, wants = pc.begin(Consolidate(), case, profiles)
    row = wants[0]
    want = PendingJob(row=row.row, job_id=row.job_id, need=row.need, profile=profiles["m"])

    answer = placer.place(want, CandidateNodes(stock, want, ()))

    assert answer.nodes == ((2,) if together else (0, 1))


BUSY = (
    pc.Run((0,), gpus=4, left_s=5000.0),
    pc.Run((1,), gpus=4, left_s=300.0),
    pc.Run((2,), gpus=6, left_s=900.0),
)
THREE = (pc.Node(), pc.Node(), pc.Node())


def test_a_skewed_job_waits_for_the_node_that_is_free_first() -> None:
    """It may lie on two nodes, and two have room: it is kept to one that will hold it whole."""
    job = pc.Waiting(gpus=8, most_nodes=2, model="skewed", waited_s=100.0)
    answer = _answer(pc.Case(THREE, BUSY, (job,)))

    assert answer.within.tolist() == [False, True, False]
    assert answer.for_s == 500.0


def test_it_does_not_wait_for_a_node_that_it_may_not_use() -> None:
    """The node that is free first is not in its partition: it waits for the next."""
    job = pc.Waiting(gpus=8, most_nodes=2, model="skewed", partition=1)
    answer = _answer(pc.Case(THREE, BUSY, (job,), frozenset({1})))

    assert answer.within.tolist() == [False, False, True]


def test_an_empty_node_stays_empty_even_if_more_gpus_are_left_over() -> None:
    """Two nodes with five free GPUs each rather than an empty one that it would fill."""
    runs = (pc.Run((0,), gpus=3), pc.Run((1,), gpus=3))
    job = pc.Waiting(gpus=8, most_nodes=2, model="even")
    answer = _answer(pc.Case(THREE, runs, (job,)))

    assert answer.nodes == (0, 1)


def test_after_the_wait_it_takes_more_nodes() -> None:
    job = pc.Waiting(gpus=8, most_nodes=2, model="skewed", waited_s=600.0)
    answer = _answer(pc.Case(THREE, BUSY, (job,)))

    assert answer.nodes == (0, 1)


def test_two_jobs_do_not_wait_for_the_same_node_while_another_is_free_sooner() -> None:
    """Whoever is told to wait for a node has it first; the next one counts on its run."""
    job = pc.Waiting(gpus=8, most_nodes=2, model="skewed", limit_s=3000.0)
    placed = pc.place(pc.snapshot(pc.Case(THREE, BUSY, (job, job))), Consolidate())

    within = [placed.waits[j].within for j in (100, 101)]  # type: ignore[index]
    assert [w.tolist() for w in within if w is not None] == [
        [False, True, False],
        [False, False, True],
    ]


def test_a_job_of_one_fixed_node_is_left_alone() -> None:
    """It cannot be spread: where Slurm starts it is all the same."""
    full = tuple(pc.Run((n,), gpus=6) for n in range(3))

    assert _answer(pc.Case(THREE, full, (pc.Waiting(gpus=8, model="skewed"),))) is None


def test_several_nodes_are_on_one_leaf_or_wait_for_it() -> None:
    """Two leaves with one free node each: it is kept to the leaf that is free first."""
    nodes = (*(pc.Node(leaf=0),) * 2, *(pc.Node(leaf=1),) * 2)
    runs = (pc.Run((0,), gpus=8, left_s=900.0), pc.Run((2,), gpus=8, left_s=100.0))

    def asked(waited_s: float) -> Spot | Wait | None:
        job = pc.Waiting(gpus=16, n_nodes=2, model="skewed", waited_s=waited_s)
        return _answer(pc.Case(nodes, runs, (job,)))

    early, late = asked(0.0), asked(600.0)
    assert early.within.tolist() == [False, False, True, True]
    assert late.nodes == (1, 3)


def test_what_no_leaf_could_ever_hold_starts_on_the_fewest() -> None:
    nodes = (*(pc.Node(leaf=0),) * 2, *(pc.Node(leaf=1),) * 2)
    job = pc.Waiting(gpus=24, n_nodes=3, most_nodes=6, model="skewed")
    answer = _answer(pc.Case(nodes, (), (job,)))

    assert len(answer.nodes) == 3


def test_an_unknown_model_is_kept_on_one_node_until_its_wait_is_over() -> None:
    early = pc.Waiting(gpus=8, most_nodes=2, model="unknown")
    late = pc.Waiting(gpus=8, most_nodes=2, model="unknown", waited_s=600.0)

    assert isinstance(_answer(pc.Case(THREE, BUSY, (early,))), Wait)
    assert isinstance(_answer(pc.Case(THREE, BUSY, (late,))), Spot)


def test_a_job_that_one_node_can_never_hold_does_not_wait_for_one() -> None:
    """One node has the GPUs but not the CPUs: it takes two at once."""
    nodes = (pc.Node(cpus=16), pc.Node(cpus=16))
    job = pc.Waiting(gpus=8, cpus=24, most_nodes=2, model="skewed")
    answer = _answer(pc.Case(nodes, (), (job,)))

    assert answer.nodes == (0, 1)


@given(case=pc.cases())
@settings(max_examples=60)
def test_a_model_that_is_not_skewed_leaves_the_fewest_gpus_over(case: pc.Case) -> None:
    """Brute force over all sets of nodes of all ways: empty nodes opened, GPUs left, nodes."""
    stock, placer, wants = pc.begin(Consolidate(), case)
    ledger = pc.Ledger(case)
    for want in wants:
        answer = placer.place(want, CandidateNodes(stock, want, ()))
        if want.profile is pc.PROFILES["even"]:
            scores = [
                (
                    sum(ledger.jobs[node] == 0 for node in nodes),
                    sum(ledger.free[node][0] for node in nodes) - n * share[0],
                    n,
                )
                for n, share in pc.shares(want).items()
                for nodes in itertools.combinations(range(len(case.nodes)), n)
                if all(
                    want.need.allowed[node]
                    and ledger.fits(node, share, exclusive=want.need.exclusive)
                    for node in nodes
                )
            ]
            if not scores:
                assert answer is None
            else:
                n = len(answer.nodes)
                taken = (
                    sum(ledger.jobs[node] == 0 for node in answer.nodes),
                    sum(ledger.free[node][0] for node in answer.nodes) - n * pc.shares(want)[n][0],
                    n,
                )
                assert taken == min(scores)
        if isinstance(answer, Spot):
            for node in answer.nodes:
                ledger.give(node, pc.shares(want)[len(answer.nodes)])
            stock.take(want, answer.nodes)


def test_the_wait_grows_with_the_time_limit_up_to_its_cap() -> None:
    """Philly's guideline; a job without a limit waits as long as any may."""
    scheme = Consolidate(
        locality_wait_s=60.0, locality_wait_per_run=0.1, longest_locality_wait_s=500.0
    )
    job = pc.wants(pc.snapshot(pc.Case(THREE, (), (pc.Waiting(limit_s=1000.0),))))[0]
    for limit_s, wait_s in ((1000.0, 160.0), (10_000.0, 500.0), (math.inf, 500.0)):
        want = PendingJob(row=job.row, job_id=job.job_id, need=job.need, limit_s=limit_s)
        assert scheme.wait_s(want) == wait_s
        assert Consolidate().wait_s(want) == 600.0
