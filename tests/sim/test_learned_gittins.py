"""What learned_gittins is for shows on generated workloads whose jobs pay for each restart.

Seeds, loads and clusters are the same for all policies. Only directions and bounds are asserted.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_dl.model.trace import Trace
from slurm_dl.policies import registry
from slurm_dl.report.summary_metrics import Summary, summarise
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.ideal.start_costs import FlatCosts
from slurm_dl.traces.workload_fit import read_fit
from slurm_dl.traces.workload_generator import generate, with_tags

pytestmark = pytest.mark.long

FIT = Path(__file__).parents[2] / "traces" / "fits" / "itp.json"
SEEDS = range(3)
JOBS = 400
RESTART_S = 180.0


class Load(NamedTuple):
    """How many GPU-seconds come in a second, over the GPUs of a cluster."""

    load: float
    shape: str
    tagged: bool = False

    def trace(self, seed: int) -> Trace:
        """Jobs like those of ITP; where names tell of run times they leave a factor of 1.35."""
        gpus = int(parse_shape(self.shape).gpus)
        made = generate(read_fit(FIT), jobs=JOBS, load=self.load, gpus=gpus, seed=seed)
        return with_tags(made, log_sd=0.3) if self.tagged else made


CROWDED = Load(2.0, "4x8")
CROWDED_WITH_TAGS = CROWDED._replace(tagged=True)
LIGHT = Load(0.7, "16x8")


@functools.cache
def under(policy: str, load: Load, seed: int) -> Summary:
    """What becomes of the jobs; every restart costs the same."""
    trace, shape = load.trace(seed), parse_shape(load.shape)
    costs = FlatCosts(restart_s=RESTART_S, large_restart_s=RESTART_S, gpus=trace.gpus)
    outcome = simulate(trace, shape, registry.find(policy)(), costs=costs)
    assert outcome.records.finished.all()
    return summarise(outcome.records, gpus=shape.gpus)


def mean_jct_s(policy: str, load: Load) -> float:
    """Over all seeds; each has as many jobs."""
    return sum(under(policy, load, seed).jct_s.mean for seed in SEEDS) / len(SEEDS)


def preemptions(policy: str, load: Load) -> int:
    """In all seeds together."""
    return sum(under(policy, load, seed).preemptions for seed in SEEDS)


@pytest.mark.full("simulates for half a minute")
def test_it_beats_arrival_and_attained_service_with_fewer_preemptions() -> None:
    """Twice as much is asked for as the cluster can do."""
    mine_s, las_s, fifo_s = (
        mean_jct_s(name, CROWDED) for name in ("learned_gittins", "discrete_las", "fifo")
    )
    assert mine_s < 0.95 * las_s < 0.95 * fifo_s
    taken, taken_by_las = (
        preemptions(name, CROWDED) for name in ("learned_gittins", "discrete_las")
    )
    assert 0 < taken <= taken_by_las * 3 / 4


@pytest.mark.full("simulates for half a minute")
def test_names_that_tell_of_run_times_make_it_better() -> None:
    """The same jobs with names, twenty of each."""
    named, unnamed = (mean_jct_s("learned_gittins", load) for load in (CROWDED_WITH_TAGS, CROWDED))

    assert named < 0.95 * unnamed


@pytest.mark.parametrize("seed", SEEDS)
def test_at_light_load_next_to_nobody_is_preempted(seed: int) -> None:
    """And jobs are done as soon as with backfill, which preempts nobody."""
    mine, backfill = (under(name, LIGHT, seed) for name in ("learned_gittins", "easy_backfill"))

    assert mine.preemptions <= 0.02 * JOBS
    assert mine.jct_s.mean <= 1.01 * backfill.jct_s.mean
