"""How fast a job is where it lies, and what placement does to the queue."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed import fragmenting, placed, with_models
from small_traces import make_trace

from slurm_dl.experiments.bootstrap_interval import resampled
from slurm_dl.model.profile import Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.model.trace import Trace
from slurm_dl.placement.consolidate import Consolidate
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.profiles import shipped_profiles
from slurm_dl.simulation.ideal.jobs_on_nodes import profile_named
from slurm_dl.simulation.ideal.placement_speed import (
    ContentionSpeed,
    PlacementSpeed,
    place_speed,
    skew_prior,
)
from slurm_dl.simulation.outcome import SKEWED_FROM, Outcome
from slurm_dl.traces.format_registry import read_trace


def speeds(*steps: tuple[int, int, float], gpu_type: str = "") -> tuple[Speed, ...]:
    return tuple(
        Speed(shape=Shape(nodes, each), steps_per_s=rate, gpu_type=gpu_type)
        for nodes, each, rate in steps
    )


MEASURED = Profile(
    name="m", skew=0.9, speeds=speeds((1, 4, 10.0), (2, 2, 8.0), (4, 1, 5.0), (1, 2, 6.0))
)


def of(profile: Profile | None, gpus: float, nodes: int, largest: float = 4) -> PlacementSpeed:
    return place_speed(profile, gpus=gpus, n_nodes=nodes, largest_node_gpus=largest)


def test_measured_in_the_shape_is_relative_to_the_best_with_as_many_gpus() -> None:
    assert of(MEASURED, 4, 1) == PlacementSpeed(1.0, "measured")
    assert of(MEASURED, 4, 2) == PlacementSpeed(0.8, "measured")
    assert of(MEASURED, 4, 4) == PlacementSpeed(0.5, "measured")


def test_a_best_shape_that_the_cluster_does_not_have_does_not_count() -> None:
    """On nodes of 2 GPUs two nodes are the best there is."""
    assert of(MEASURED, 4, 2, largest=2) == PlacementSpeed(1.0, "measured")
    assert of(MEASURED, 4, 4, largest=2) == PlacementSpeed(5 / 8, "measured")


def test_one_shape_alone_says_nothing_about_another() -> None:
    """The only measurement of 4 GPUs is on 2 nodes: that is not its best place."""
    alone = Profile(name="a", speeds=speeds((2, 2, 8.0)))

    assert of(alone, 4, 2) == PlacementSpeed(1.0, "unknown")
    assert of(alone, 4, 2, largest=2) == PlacementSpeed(1.0, "measured")


def test_between_measured_nodes_it_is_linear_in_their_logarithm() -> None:
    """3 GPUs on 3 nodes, after the curve of the nearest number of GPUs."""
    at = (math.log2(3) - 1) / 1
    expected = (8.0 + (5.0 - 8.0) * at) / 10.0

    found = of(MEASURED, 3, 3)
    assert found.rung == "interpolated"
    assert found.speed == pytest.approx(expected)
    assert of(MEASURED, 8, 8) == PlacementSpeed(5 / 8, "interpolated")


def test_the_best_place_may_lie_between_measured_ones() -> None:
    """8 GPUs need two nodes of 4, which nobody measured: half way between one and four."""
    ends = Profile(name="e", speeds=speeds((1, 4, 10.0), (4, 1, 5.0)))

    assert of(ends, 8, 2) == PlacementSpeed(1.0, "interpolated")
    assert of(ends, 8, 4) == PlacementSpeed(5.0 / 7.5, "interpolated")


def test_the_curve_of_the_nearest_number_of_gpus_is_taken() -> None:
    both = Profile(
        name="b", speeds=speeds((1, 2, 4.0), (2, 1, 1.0), (1, 8, 10.0), (2, 4, 9.0), (8, 1, 3.0))
    )

    assert of(both, 3, 2, largest=8) == PlacementSpeed(0.25, "interpolated")
    assert of(both, 6, 2, largest=8) == PlacementSpeed(0.9, "interpolated")


def test_another_type_of_gpu_is_better_than_none() -> None:
    """The job's own type first; without it what was measured elsewhere."""
    two = Profile(
        name="t",
        speeds=speeds((1, 4, 10.0), (2, 2, 4.0), gpu_type="v100")
        + speeds((1, 4, 6.0), (2, 2, 5.4), gpu_type="k80"),
    )

    def on(gpu_type: str) -> float:
        return place_speed(two, gpus=4, n_nodes=2, largest_node_gpus=4, gpu_type=gpu_type).speed

    assert on("v100") == pytest.approx(0.4)
    assert on("k80") == pytest.approx(0.9)
    assert on("a100") == pytest.approx(0.9)


def test_the_ladder_ends_with_the_skew_and_then_with_nothing() -> None:
    skewed = Profile(name="s", skew=0.75)
    tensors = Profile(name="t", tensors_mb=(75.0, 25.0))

    assert of(skewed, 4, 4) == PlacementSpeed(1 / (1 + 3 * 0.5), "skew")
    assert of(tensors, 4, 4) == of(skewed, 4, 4)
    assert of(Profile(name="u"), 4, 4) == of(None, 4, 4) == PlacementSpeed(1.0, "unknown")


def test_the_prior_is_relative_to_the_fewest_nodes() -> None:
    """8 GPUs on nodes of 4 need two: on two they are as fast as they can be."""
    skewed = Profile(name="s", skew=0.75)

    assert of(skewed, 8, 2).speed == 1.0
    assert of(skewed, 8, 4).speed == pytest.approx((1 + 0.25) / (1 + 1.5))


@given(share=st.floats(0, 1), nodes=st.integers(1, 64))
def test_the_prior_is_one_on_one_node_and_never_grows(share: float, nodes: int) -> None:
    assert skew_prior(share, 1) == 1.0
    assert 0 < skew_prior(share, nodes + 1) <= skew_prior(share, nodes) <= 1
    if share <= 1 / nodes:
        assert skew_prior(share, nodes) == 1.0


@given(low=st.floats(0, 1), high=st.floats(0, 1), nodes=st.integers(1, 64))
def test_the_prior_never_grows_with_the_skew(low: float, high: float, nodes: int) -> None:
    low, high = sorted((low, high))
    assert skew_prior(high, nodes) <= skew_prior(low, nodes)


@given(
    rates=st.dictionaries(
        st.sampled_from([(1, 4), (2, 2), (4, 1), (1, 2), (2, 1), (1, 8), (2, 4), (8, 1)]),
        st.floats(0.01, 100),
    ),
    gpus=st.integers(1, 16),
    nodes=st.integers(1, 16),
    largest=st.sampled_from([1, 2, 4, 8]),
    share=st.none() | st.floats(0, 1),
)
def test_every_speed_is_above_0_and_at_most_1(
    rates: dict[tuple[int, int], float], gpus: int, nodes: int, largest: int, share: float | None
) -> None:
    profile = Profile(
        name="p", skew=share, speeds=speeds(*((n, g, rate) for (n, g), rate in rates.items()))
    )
    nodes = max(nodes, math.ceil(gpus / largest))

    assert 0 < of(profile, gpus, nodes, largest).speed <= 1


SHARES = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from([0.0, 1.0, 7.5]), st.sampled_from([0.0, 2.0, 30.0])
    ),
    min_size=1,
    max_size=8,
)


@given(shares=SHARES, network=st.sampled_from([2.0, 10.0, math.inf]), pcie=st.sampled_from([9.0]))
def test_who_uses_a_full_link_is_slowed_by_the_sum_over_the_capacity(
    shares: list[tuple[int, float, float]], network: float, pcie: float
) -> None:
    """Against the formula, share by share."""
    node, net, bus = (np.array(column) for column in zip(*shares, strict=True))
    found = ContentionSpeed(network_mb_s=network, pcie_mb_s=pcie).slowdown(
        node.astype(np.int32), net, bus
    )

    for i, (where, mine, mine_bus) in enumerate(shares):
        expected = 1.0
        if mine > 0:
            expected = max(expected, sum(n for w, n, _ in shares if w == where) / network)
        if mine_bus > 0:
            expected = max(expected, sum(b for w, _, b in shares if w == where) / pcie)
        assert found[i] == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("name", ["network_mb_s", "pcie_mb_s"])
def test_a_capacity_of_nonsense_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        ContentionSpeed(**{name: value})


def test_models_of_traces_are_found_by_what_matters_of_their_names() -> None:
    known = {name: Profile(name=name) for name in ("resnet50", "vgg-16", "LM (batch size 5)")}

    assert profile_named(known, "ResNet-50 (batch size 64)") == known["resnet50"]
    assert profile_named(known, "VGG16") == known["vgg-16"]
    assert profile_named(known, "LM (batch size 5)") == known["LM (batch size 5)"]
    assert profile_named(known, "resnet500") is None


SIXTY = Path(__file__).parents[2] / "traces" / "tiresias" / "60_job.csv"
SEEDS = range(6)
PATIENT_S = 7200.0
EVERYTHING = Consolidate(skew_threshold=0.0, locality_wait_s=PATIENT_S)
THE_SKEWED = Consolidate(locality_wait_s=PATIENT_S)
NOTHING = Consolidate(skew_threshold=1.0)


def after(
    trace: Trace, shape: str, scheme: Consolidate, profiles: dict[str, Profile] | None = None
) -> Outcome:
    """*trace* under discrete_las, its jobs on nodes by *scheme*."""
    outcome, _ = placed(trace, shape, DiscreteLas(), scheme, profiles=profiles)
    assert outcome.records.finished.all()
    return outcome


@functools.lru_cache
def made(seed: int, scheme: Consolidate) -> Outcome:
    """A workload that fragments nodes of 4, on eight of them."""
    return after(fragmenting(seed), "8x4", scheme)


def queued_s(outcome: Outcome) -> float:
    return float(outcome.records.queue_s.mean())


def speed_of(outcome: Outcome, *, skewed: bool) -> float:
    """Mean speed of the jobs that could be spread, of skewed models or of the others."""
    lay = outcome.lay
    mine = (lay.gpus > 1) & ((lay.skew >= SKEWED_FROM) == skewed)
    return float(lay.speed[mine].mean())


@pytest.mark.parametrize("seed", SEEDS)
def test_consolidating_everything_queues_longer_than_only_the_skewed(seed: int) -> None:
    """On each of the workloads: half as long again or more, with the skewed no slower."""
    everything, skewed = made(seed, EVERYTHING), made(seed, THE_SKEWED)

    assert queued_s(everything) > 1.5 * queued_s(skewed)
    assert speed_of(skewed, skewed=True) > 0.97


@pytest.mark.parametrize("seed", SEEDS)
def test_consolidating_nothing_slows_the_skewed_down_and_hardly_the_others(seed: int) -> None:
    nothing, skewed = made(seed, NOTHING), made(seed, THE_SKEWED)

    assert speed_of(nothing, skewed=True) < speed_of(skewed, skewed=True) - 0.03
    assert speed_of(nothing, skewed=False) > 0.99
    lays = nothing.lay, skewed.lay
    assert lays[0].skewed_spread_frac > lays[1].skewed_spread_frac


def test_the_queue_of_the_published_sixty_jobs_goes_the_same_way() -> None:
    """Forty resamples of the 60-job trace on 4x4, with the profiles that are shipped.

    With sixty jobs single workloads go either way; together they go the paper's, by 4 %.
    """
    trace = read_trace(SIXTY, None)
    profiles = dict(shipped_profiles())

    def mean_of(scheme: Consolidate) -> float:
        return float(
            np.mean(
                [queued_s(after(resampled(trace, k), "4x4", scheme, profiles)) for k in range(40)]
            )
        )

    assert mean_of(EVERYTHING) > mean_of(THE_SKEWED)


@pytest.mark.parametrize(("model", "slowest", "fastest"), [(0, 0.4, 0.7), (1, 0.99, 1.0)])
def test_the_same_job_is_slower_spread_if_its_model_is_skewed(
    model: int, slowest: float, fastest: float
) -> None:
    """Three nodes of 4 with a job of 3 on each leave one GPU on each for a job of 3."""
    trace = with_models(
        make_trace([0, 0, 0, 1], [500, 500, 500, 50], [3, 3, 3, 3]), [2, 2, 2, model]
    )

    lay = after(trace, "3x4", NOTHING).lay
    assert lay.most_nodes.tolist() == [1, 1, 1, 3]
    assert slowest < lay.speed[3] <= fastest
