"""Policies of an experiment held against each other: one row for each, over its workloads.

A figure is that of the trace itself. Where there are resamples it has a 95 % range by them,
and a policy is held against the first one workload by workload: both ran the same jobs. A policy
of which a simulation failed is left out whole, as a range by fewer resamples would be another one.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_dl.experiments import bootstrap_interval, grid
from slurm_dl.experiments.bootstrap_interval import Range
from slurm_dl.experiments.grid import Cell, Experiment, Figures
from slurm_dl.experiments.process_pool import WorkError, WorkFault
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.report.terminal_table import plain_number

FIGURES: Final = (
    "avg_jct_s", "median_jct_s", "p95_jct_s", "p99_jct_s", "avg_queue_s", "avg_slowdown",
    "avg_rho", "max_rho", "unfair_frac", "jain", "makespan_s", "utilisation_frac",
    "steady_utilisation_frac", "service_gpu_s", "gpu_s_lost", "preemptions", "promotions",
)  # fmt: skip
"""Names of the figures that are merged; see `export.summary_json`."""

_SHARES: Final = frozenset({"unfair_frac", "jain", "utilisation_frac", "steady_utilisation_frac"})
"""Figures that are 1 at most."""

OF_PRESETS: Final = "of the presets"  # The cost model where none was chosen

Refused = Mapping[tuple[str, str | None], str]
"""Policies that cannot run under a cost model, as (label, costs), and why."""

_LAY: Final = ("mean_nodes", "skewed_spread_frac", "mean_speed")
_OF_ROWS: Final = frozenset({"preset", "parameters", "costs", "notes", "too_large", "blocks"})
"""Figures of a cell that stand with its policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureComparison:
    """One figure of a policy at a load."""

    own: Range  # Of the trace, with its range
    difference: Range | None  # To the first policy's, on the same workloads; None for the first
    ratio: Range | None  # The same as a multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A policy at a load."""

    policy: PolicySpec
    load: float
    of_workloads: tuple[Figures, ...]  # The figures of the trace, then those of each resample
    figures: Mapping[str, FigureComparison]  # By the names in `FIGURES`

    @property
    def label(self) -> str:
        """The policy as reports call it."""
        return self.policy.short_label

    @property
    def jobs(self) -> int:
        """Jobs of all workloads together."""
        return sum(int(one["jobs"]) for one in self.of_workloads)

    @property
    def unfinished(self) -> int:
        """Of those, how many did not come to an end."""
        return self.jobs - sum(int(one["finished"]) for one in self.of_workloads)

    @property
    def mean_jct_s(self) -> float:
        """Of the trace itself."""
        return self.figures["avg_jct_s"].own.value

    @property
    def placement(self) -> dict[str, Any] | None:
        """Places of the jobs of the trace itself; None if they were on no nodes."""
        found: dict[str, Any] | None = self.of_workloads[0]["placement"]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The policies under one cost model, those of which no simulation failed."""

    costs: str  # The word of ``--costs``
    cells: tuple[tuple[Cell, Figures], ...]  # Simulations, by load, resample and policy
    rows: tuple[Row, ...]  # By load, then policy

    @property
    def costs_name(self) -> str:
        """The cost model as reports name it; several if each preset has its own."""
        return "; ".join(dict.fromkeys(figures["costs"] for _, figures in self.cells))

    @property
    def loads(self) -> tuple[float, ...]:
        """Loads, in the order of the rows."""
        return tuple(dict.fromkeys(row.load for row in self.rows))

    @property
    def policies(self) -> tuple[PolicySpec, ...]:
        """Policies, the first is what the others are held against."""
        return tuple(row.policy for row in self.at(self.loads[0]))

    def at(self, load: float) -> tuple[Row, ...]:
        """The rows of one load, in the order of the policies."""
        return tuple(row for row in self.rows if row.load == load)

    def best_first(self, load: float) -> list[Row]:
        """The rows of one load by their mean JCT, those with unfinished jobs last."""

        def place(row: Row) -> tuple[bool, float]:
            mean_s = row.mean_jct_s
            return row.unfinished > 0, mean_s if math.isfinite(mean_s) else math.inf

        return sorted(self.at(load), key=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """An experiment that was run."""

    experiment: Experiment  # Its one workload has no name
    comparisons: tuple[Comparison, ...]  # By cost model; none where each policy failed
    refused: Refused  # Policies that cannot run under a cost model, and why
    failed: Mapping[Cell, WorkFault]  # Simulations that failed, and why


def planned(
    experiment: Experiment, cells: Sequence[Cell], *, lenient: bool
) -> tuple[tuple[Cell, ...], Refused]:
    """The cells that can run, and the policies that cannot; see `grid.refusals`.

    Args:
        lenient: A policy without parameters of its own that can run nowhere is no error.

    Raises:
        ConfigError: Something is wrong whatever the policy, a policy that was named can run under
            none of the cost models, or no policy can run under one of them.
    """
    refused = grid.refusals(experiment, cells)
    left = tuple(c for c in cells if (c.policy.short_label, c.costs) not in refused)
    runs_somewhere = {cell.policy.short_label for cell in left}
    for cell in cells:
        label = cell.policy.short_label
        if label not in runs_somewhere and (cell.policy.parameters or not lenient):
            raise ConfigError(refused[label, cell.costs])
    for (label, costs), why in refused.items():
        if costs not in {cell.costs for cell in left}:
            msg = f"--costs {costs}: no policy can run: {label}: {why}"
            raise ConfigError(msg)
    return left, refused


def compared(
    experiment: Experiment, found: Mapping[Cell, Figures | WorkFault], refused: Refused
) -> Compared:
    """Put the cells of an experiment together.

    Args:
        found: The figures of each cell, or why it failed.

    Raises:
        WorkError: All policies failed, under each of the cost models.
    """
    failed = {cell: value for cell, value in found.items() if isinstance(value, WorkFault)}
    out = {(cell.policy.short_label, cell.costs) for cell in failed}
    by_costs: dict[str | None, list[tuple[Cell, Figures]]] = {}
    for cell, value in found.items():
        if not isinstance(value, WorkFault) and (cell.policy.short_label, cell.costs) not in out:
            by_costs.setdefault(cell.costs, []).append((cell, value))
    if not by_costs:
        raise WorkError("\n".join(fault.why for fault in failed.values()))
    return Compared(
        experiment=experiment,
        comparisons=tuple(_comparison(costs, cells) for costs, cells in by_costs.items()),
        refused=refused,
        failed=failed,
    )


def _comparison(costs: str | None, cells: Sequence[tuple[Cell, Figures]]) -> Comparison:
    by_row: dict[tuple[float, str], list[tuple[Cell, Figures]]] = {}
    for cell, figures in cells:
        by_row.setdefault((cell.load, cell.policy.short_label), []).append((cell, figures))
    first = cells[0][0].policy.short_label
    rows = []
    for (load, label), of_workloads in by_row.items():
        values = [one for _, one in of_workloads]
        base = None if label == first else [one for _, one in by_row[load, first]]
        rows.append(
            Row(
                policy=of_workloads[0][0].policy,
                load=load,
                of_workloads=tuple(values),
                figures={name: _figure(name, values, base) for name in FIGURES},
            )
        )
    return Comparison(costs=costs or OF_PRESETS, cells=tuple(cells), rows=tuple(rows))


def _figure(
    name: str, figures: Sequence[Figures], base: Sequence[Figures] | None
) -> FigureComparison:
    values, blocks = column(figures, name), float(figures[0]["blocks"])
    own = bootstrap_interval.figure(values, blocks, most=1.0 if name in _SHARES else math.inf)
    if base is None:
        return FigureComparison(own=own, difference=None, ratio=None)
    first = column(base, name)
    return FigureComparison(
        own=own,
        difference=bootstrap_interval.difference(values, first, blocks),
        ratio=bootstrap_interval.ratio(values, first, blocks),
    )


def column(figures: Sequence[Figures], name: str) -> F64:
    """One figure of several simulations; NaN where it does not exist."""
    values = [one[name] for one in figures]
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def left_out(ran: Compared) -> Iterator[str]:
    """Policies that could not run and why, in words."""
    by_why: dict[tuple[str | None, str], list[str]] = {}
    for (label, costs), why in ran.refused.items():
        by_why.setdefault((costs, why), []).append(label)
    for (costs, why), labels in by_why.items():
        yield f"not run with costs {costs or OF_PRESETS}: {', '.join(labels)}: {why}"
    yield from (f"failed: {fault.why}" for fault in ran.failed.values())


def as_json(trace: Trace, ran: Compared) -> dict[str, object]:
    """All of it as plain values; the keys are those of `docs/evaluate/simulator.md`."""
    first = ran.comparisons[0]
    (workload,) = ran.experiment.workloads.values()
    return {
        "trace": trace.name,
        "format": trace.format,
        "jobs": len(trace),
        "cluster": workload.cluster,
        "loads": list(first.loads),
        "resamples": len(first.rows[0].of_workloads) - 1,
        "blocks": first.rows[0].of_workloads[0]["blocks"],
        "rules": list(map(str, ran.experiment.ground.rules)),
        "first": first.rows[0].label,
        "policies": [
            {
                "label": row.label,
                "policy": row.policy.policy,
                "place": "" if row.policy.place is None else str(row.policy.place),
                # Sizes may be those of the trace, so these are its own at the first load.
                **{name: row.of_workloads[0][name] for name in ("preset", "parameters", "costs")},
                "notes": row.of_workloads[0]["notes"],
            }
            for c in ran.comparisons
            for row in c.at(c.loads[0])
        ],
        "rows": [
            {
                "policy": row.label,
                "costs": row.of_workloads[0]["costs"],
                "load": row.load,
                "unfinished": row.unfinished,
                "placement": row.placement,
                "figures": {name: _compared(figure) for name, figure in row.figures.items()},
            }
            for c in ran.comparisons
            for row in c.rows
        ],
        "cells": [
            {
                "policy": cell.policy.short_label,
                "costs": figures["costs"],
                "load": cell.load,
                "resample": cell.resample,
                **{name: value for name, value in figures.items() if name not in _OF_ROWS},
            }
            for c in ran.comparisons
            for cell, figures in c.cells
        ],
        "refused": [
            {"policy": label, "costs": costs or OF_PRESETS, "why": why}
            for (label, costs), why in ran.refused.items()
        ],
        "failed": [
            {
                "policy": cell.policy.short_label,
                "costs": cell.costs or OF_PRESETS,
                "load": cell.load,
                "resample": cell.resample,
                "why": fault.why,
            }
            for cell, fault in ran.failed.items()
        ],
    }


def _compared(figure: FigureComparison) -> dict[str, object]:
    told = figure.own.as_json()
    for name, held in (("difference", figure.difference), ("ratio", figure.ratio)):
        if held is not None:
            told[name] = held.as_json()
    return told


def as_csv(ran: Compared) -> str:
    """One line for each simulation, under a line of names; a figure that is not known is empty."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    placed = _LAY if any(row.policy.place for c in ran.comparisons for row in c.rows) else ()
    counts = ("jobs", "finished", "completed")
    writer.writerow(["policy", "preset", "costs", "load", "resample", *counts, *FIGURES, *placed])
    for cell, figures in (pair for c in ran.comparisons for pair in c.cells):
        known: Callable[[object], str] = lambda v: "" if v is None else plain_number(float(v))  # type: ignore[arg-type] # noqa: E731
        named = [cell.policy.short_label, figures["preset"], figures["costs"]]
        lay = figures["placement"] or {}
        writer.writerow([
            *named, plain_number(cell.load), cell.resample, *(figures[name] for name in counts),
            *(known(figures[name]) for name in FIGURES), *(known(lay.get(name)) for name in placed),
        ])  # fmt: skip
    return out.getvalue()
