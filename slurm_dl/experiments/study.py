"""Every policy on every shipped trace: which simulations, in which order, and their rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_dl.experiments import bootstrap_interval
from slurm_dl.experiments.bootstrap_interval import Range
from slurm_dl.experiments.comparison import column
from slurm_dl.experiments.grid import Cell, Experiment, Figures, Workload
from slurm_dl.experiments.simulation_run import SLURM_ALONE, PolicySpec
from slurm_dl.policies import policy_file, registry
from slurm_dl.simulation.ideal import presets

NONE: Final = "none"  # No costs; no tags


@dataclass(frozen=True, slots=True)
class StudyTrace:
    """A shipped trace and the cluster it is run on."""

    name: str  # What options and tables call it
    path: str  # Below the folder of traces
    cluster: str  # As `parse_shape` reads it


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

BEST: Final = "srsf"  # Its mean JCT at no cost is what mean JCTs are held against

USUAL: Final = "discrete_las"
"""Its figures under the same costs are what the long waits are held against."""

_ORACLE: Final = frozenset({"left_s", "progress", "due_s"})
"""Needs that a simulation meets with the true run time of the job; ``rates`` are not among them."""

_NAMES: Final = frozenset({"history", "past", "texts"})
"""Needs by which a policy can see the names of jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyKey:
    """Cells that differ in their resample alone."""

    trace: StudyTrace  # Which jobs, on which cluster
    policy: str  # As `parse_policy` takes it
    costs: str  # ``none``, ``slurm`` or the seconds of each restart
    tags: str = NONE  # ``none``, or the standard deviation that `tagged` takes

    @property
    def workload(self) -> str:
        """Name of its jobs and their cluster."""
        tags = "" if self.tags == NONE else f", tags {self.tags}"
        return f"{self.trace.name} on {self.trace.cluster}{tags}"

    def cell(self, resample: int) -> Cell:
        """The simulation of one resample; 0: of the trace."""
        policy = parse_policy(self.policy)
        return Cell(workload=self.workload, policy=policy, costs=self.costs, resample=resample)


def parse_policy(word: str) -> PolicySpec:
    """A policy from ``NAME`` or ``NAME:PRESET``.

    The time limits of simulated jobs are three times their true run times, so `learned_gittins`
    does not use them here.
    """
    name, preset = policy_file.split(word)
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


def keys_of(
    traces: Sequence[StudyTrace], policies: Sequence[str], costs: Sequence[str], tags: Sequence[str]
) -> tuple[StudyKey, ...]:
    """All simulations but for their resamples; the figures that others are held against among them.

    Only policies that can see the names of jobs are run with tags; the others have the same figures
    with and without.
    """
    wanted = tuple(dict.fromkeys((*policies, USUAL)))
    keys = {
        StudyKey(trace=trace, policy=policy, costs=cost, tags=tag): None
        for trace, cost, policy in itertools.product(traces, costs, wanted)
        for tag in (tags if needs_of(policy) & _NAMES else (NONE,))
        if policy != SLURM_ALONE or cost == "slurm"
    }
    best = {StudyKey(trace=trace, policy=BEST, costs=NONE): None for trace in traces}
    return tuple(keys | best)


def in_order(keys: Sequence[StudyKey], resamples: int) -> tuple[tuple[StudyKey, int], ...]:
    """Simulations, by key and resample, as they run: main traces and policies first."""
    policies = list(dict.fromkeys((*FIRST_POLICIES, *(key.policy for key in keys))))
    costs = list(dict.fromkeys((NONE, *(key.costs for key in keys))))

    def turn(pair: tuple[StudyKey, int]) -> tuple[object, ...]:
        key, resample = pair
        late = 3 * (key.trace.name not in FIRST_TRACES) + 2 * (key.policy not in FIRST_POLICIES)
        return (
            late + (resample > 0),
            resample,
            key.costs == "slurm",  # Takes a hundred times as long.
            TRACES.index(key.trace),
            costs.index(key.costs),
            policies.index(key.policy),
            key.tags,
        )

    return tuple(sorted(itertools.product(keys, range(1 + resamples)), key=turn))


def experiment_of(keys: Sequence[StudyKey], traces: Path) -> Experiment:
    """All that the cells share.

    Args:
        traces: The folder of the shipped traces.
    """
    return Experiment(
        workloads={
            key.workload: Workload(
                cluster=key.trace.cluster, file=traces / key.trace.path, tags=key.tags
            )
            for key in keys
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A policy on a trace under a cost model."""

    key: StudyKey
    workloads: int  # How many were asked for
    done: int  # On how many it ran
    unfinished: int  # Jobs that did not come to an end, all workloads together
    means: Mapping[str, Range]  # See `row_of`

    def as_json(self) -> dict[str, object]:
        """As plain values."""
        return {
            "trace": self.key.trace.name,
            "costs": self.key.costs,
            "policy": self.key.policy,
            "tags": self.key.tags,
            "workloads": self.workloads,
            "done": self.done,
            "unfinished": self.unfinished,
            **{name: mean.as_json() for name, mean in self.means.items()},
        }


Found = Mapping[tuple[StudyKey, int], Figures]  # Figures by key and resample


def row_of(key: StudyKey, resamples: int, found: Found) -> StudyRow:
    """The row of *key*.

    Its means are ``preemptions``; ``jct``: mean JCT over that of `BEST` at no cost, on the
    workloads where both ran; ``p99``, ``largest`` (JCT) and ``preempted``: over those of `USUAL`
    under the same costs.
    """
    ran = {k: found[key, k] for k in range(1 + resamples) if (key, k) in found}
    blocks = float(ran[0]["blocks"]) if 0 in ran else 0.0
    unknown = Range(math.nan)

    def over(name: str, policy: str, costs: str) -> Range:
        base = StudyKey(trace=key.trace, policy=policy, costs=costs)
        both = [k for k in ran if 0 in ran and all((base, one) in found for one in (0, k))]
        values = column([ran[k] for k in both], name)
        against = column([found[base, k] for k in both], name)
        return bootstrap_interval.ratio(values, against, blocks) if both else unknown

    preemptions = column(list(ran.values()), "preemptions")
    return StudyRow(
        key=key,
        workloads=1 + resamples,
        done=len(ran),
        unfinished=sum(one["jobs"] - one["finished"] for one in ran.values()),
        means={
            "jct": over("avg_jct_s", BEST, NONE),
            "preemptions": bootstrap_interval.figure(preemptions, blocks) if 0 in ran else unknown,
            "p99": over("p99_jct_s", USUAL, key.costs),
            "largest": over("max_jct_s", USUAL, key.costs),
            "preempted": over("preemptions", USUAL, key.costs),
        },
    )


_LEFT_OUT: Final = frozenset(
    {"preset", "costs", "notes", "too_large", "blocks", "placement", "parameters"}
)


def as_json(rows: Iterable[StudyRow], found: Found, failed: Mapping[str, str]) -> dict[str, object]:
    """All of it as plain values.

    Args:
        failed: Why a cell could not be run, by its name.
    """
    return {
        "rows": [row.as_json() for row in rows],
        "cells": [
            {
                "trace": key.trace.name,
                "cluster": key.trace.cluster,
                "costs": key.costs,
                "policy": key.policy,
                "tags": key.tags,
                "resample": resample,
                "parameters": figures["parameters"],
                **{name: value for name, value in figures.items() if name not in _LEFT_OUT},
            }
            for (key, resample), figures in found.items()
        ],
        "failed": [{"cell": name, "why": why} for name, why in failed.items()],
    }
