"""Which simulations a study of the default policy has, and in what order they are run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slurm_dl.experiments.simulation_run import SLURM_ALONE, PolicySpec
from slurm_dl.policies import registry
from slurm_dl.simulation.ideal import presets

NONE: Final = "none"
"""No costs; no tags."""

ALL: Final = "all"
"""The word for every policy that there is."""


@dataclass(frozen=True, slots=True)
class StudyTrace:
    """A shipped trace and the cluster it is run on.

    Attributes:
        name: What options and tables call it.
        path: Below the folder of traces.
        cluster: As `parse_shape` reads it.
    """

    name: str
    path: str
    cluster: str


TRACES: Final = (
    StudyTrace("itp10", "tiresias-derived/itp10.csv", "2x8"),
    StudyTrace("itp01", "tiresias-derived/itp01.csv", "8x8"),
    StudyTrace("itp05", "tiresias-derived/itp05.csv", "2x8"),
    StudyTrace("itp03", "tiresias-derived/itp03.csv", "20x8"),
    StudyTrace("itp06", "tiresias-derived/itp06.csv", "12x8"),
    StudyTrace("60_job", "tiresias/60_job.csv", "4x4"),
    StudyTrace("muri1_480", "tiresias-derived/muri1_480.csv", "15x4"),
    StudyTrace("muri2_480", "tiresias-derived/muri2_480.csv", "15x4"),
    StudyTrace("muri3_480", "tiresias-derived/muri3_480.csv", "15x4"),
    StudyTrace("muri4_480", "tiresias-derived/muri4_480.csv", "15x4"),
    StudyTrace("muri3_all", "tiresias-derived/muri3_all.csv", "15x4"),
    StudyTrace("gavel_96", "gavel/max_min_fairness.trace", "9x4"),
    StudyTrace("gavel_354", "gavel/2869ce.trace", "1x8"),
    StudyTrace("shockwave", "shockwave/tacc_120jobs.trace", "8x4"),
    StudyTrace("synergy", "synergy/srtf.log", "8x4"),
    StudyTrace("elasticflow_195", "elasticflow/enriched/elasticVpollux_e.csv", "16x8"),
    StudyTrace("muri1", "muri/trace1.csv", "16x8"),
    StudyTrace("muri4", "muri/trace4.csv.gz", "14x8"),
    StudyTrace("muri2", "muri/trace2.csv.gz", "48x8"),
    StudyTrace("itp02", "elasticflow/cluster02.csv.gz", "12x8"),
    StudyTrace("itp09", "elasticflow/cluster09.csv.gz", "4x8"),
    StudyTrace("itp08", "elasticflow/cluster08.csv.gz", "9x8"),
    StudyTrace("itp07", "elasticflow/cluster07.csv.gz", "36x8"),
    StudyTrace("itp04", "elasticflow/cluster04.csv.gz", "66x8"),
    StudyTrace("philly", "philly/philly.csv.gz", "56x8"),
)
"""In the order in which they are run.

Where no published run says which cluster, the trace offers it 0.8 to 1 of what it can do; the
jobs of ElasticFlow's other files are those of itp01, itp03, itp05, itp06 and itp10.
"""

FIRST_TRACES: Final = frozenset({"itp10", "itp01", "itp05", "itp03", "itp06"})
FIRST_POLICIES: Final = (
    "learned_gittins",
    "discrete_las",
    "srsf",
    "gittins:whole-trace",
    "las",
    "fifo_skip",
    "easy_backfill",
    SLURM_ALONE,
)
"""Run before the others; some of them know what no cluster does, for reference."""

BEST: Final = "srsf"
"""Its mean JCT at no cost is what mean JCTs are held against."""

USUAL: Final = "discrete_las"
"""Its figures under the same costs are what the long waits are held against."""

_ORACLE: Final = frozenset({"left_s", "progress", "due_s"})
"""Needs that a simulation meets with the true run time of the job; ``rates`` are not among them."""

_NAMES: Final = frozenset({"history", "past", "texts"})
"""Needs by which a policy can see the names of jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCell:
    """One simulation.

    Attributes:
        trace: Which jobs, on which cluster.
        policy: As `parse_policy` takes it.
        costs: ``none``, ``slurm`` or the seconds of each restart.
        tags: ``none``, or what `made_tags.with_tags` calls ``log_sd``.
        seed: 0: the jobs of the trace. Above: a resample; see `sweep.resampled`.
    """

    trace: StudyTrace
    policy: str
    costs: str
    tags: str
    seed: int

    @property
    def name(self) -> str:
        """All that says which one it is."""
        where = f"{self.trace.name} on {self.trace.cluster}"
        tags = "" if self.tags == NONE else f", tags {self.tags}"
        return f"{where}, costs {self.costs}, {self.policy}{tags}, seed {self.seed}"


def parse_policy(word: str) -> PolicySpec:
    """A policy from ``NAME`` or ``NAME:PRESET``.

    The time limits of simulated jobs are three times their true run times, so `learned_gittins`
    does not use them here.
    """
    name, _, preset = word.partition(":")
    parameters = {"use_limits": False} if name == "learned_gittins" else {}
    return PolicySpec(policy=name, preset=preset or None, parameters=parameters)


def needs_of(policy: str) -> frozenset[str]:
    """What *policy* uses beyond what Slurm says of every job.

    Raises:
        ConfigError: There is no such policy.
    """
    wish = parse_policy(policy)
    if wish.policy == SLURM_ALONE:
        return frozenset({"left_s"})  # Time limits of its jobs follow their true run times.
    if wish.preset and presets.find(wish.preset).knows_sizes:
        return frozenset({"left_s"})
    reading = presets.reading_of(wish.policy, wish.preset)
    return frozenset(registry.find(reading.policy).about.needs)


def knows_run_times(policy: str) -> bool:
    """Whether *policy* is told in a simulation how long jobs run, which no cluster can tell it."""
    return bool(needs_of(policy) & _ORACLE)


def default_policies() -> tuple[str, ...]:
    """The first ones that there are, and all others that need not know how long jobs run."""
    names = registry.names()
    known = {*names, SLURM_ALONE}
    first = [word for word in FIRST_POLICIES if word.partition(":")[0] in known]
    others = [name for name in names if name not in first and not knows_run_times(name)]
    return (*first, *others)


def all_policies() -> tuple[str, ...]:
    """Those of `default_policies`, and then those that must know how long jobs run."""
    return tuple(dict.fromkeys((*default_policies(), *registry.names())))


def cells_of(
    traces: Sequence[StudyTrace],
    policies: Sequence[str],
    costs: Sequence[str],
    tags: Sequence[str],
    seeds: int,
) -> tuple[StudyCell, ...]:
    """All cells in the order in which they are run: what people look at first comes first.

    What figures are held against is among them. Only policies that can see the names of jobs are
    run with tags; the others have the same figures with and without.
    """
    wanted = tuple(dict.fromkeys((*policies, USUAL)))
    cells = {
        StudyCell(trace=trace, policy=policy, costs=cost, tags=tag, seed=seed)
        for trace, policy, cost, seed in itertools.product(traces, wanted, costs, range(seeds))
        for tag in (tags if needs_of(policy) & _NAMES else (NONE,))
        if policy != SLURM_ALONE or cost == "slurm"
    }
    cells |= {
        StudyCell(trace=trace, policy=BEST, costs=NONE, tags=NONE, seed=seed)
        for trace, seed in itertools.product(traces, range(seeds))
    }
    place = list(dict.fromkeys((*FIRST_POLICIES, *wanted)))

    def turn(cell: StudyCell) -> tuple[object, ...]:
        late = 3 * (cell.trace.name not in FIRST_TRACES) + 2 * (cell.policy not in FIRST_POLICIES)
        return (
            late + (cell.seed > 0),
            cell.seed,
            cell.costs == "slurm",  # Takes a hundred times as long.
            TRACES.index(cell.trace),
            [NONE, *costs].index(cell.costs),
            place.index(cell.policy),
            cell.tags,
        )

    return tuple(sorted(cells, key=turn))
