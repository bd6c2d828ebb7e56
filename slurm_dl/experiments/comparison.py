"""What a sweep amounts to: its cells merged into one row a policy, and written for programs.

Where there are seeds, a figure is the mean over them with its 95 % bootstrap interval, and a
policy is held against the first one workload by workload: both ran the same jobs.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from slurm_dl.experiments import bootstrap_interval, placement_choice
from slurm_dl.experiments.bootstrap_interval import Mean
from slurm_dl.experiments.placement_choice import LayFigures
from slurm_dl.experiments.sweep import CellResult, Sweep, SweepCell
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.report import export
from slurm_dl.report.atomic_files import write_whole
from slurm_dl.report.number_format import plain_number
from slurm_dl.report.summary_metrics import Summary

FIGURES: Final[Mapping[str, Callable[[Summary], float]]] = MappingProxyType(
    {
        "avg_jct_s": lambda s: s.jct_s.mean,
        "median_jct_s": lambda s: s.jct_s.median,
        "p95_jct_s": lambda s: s.jct_s.p95,
        "p99_jct_s": lambda s: s.jct_s.p99,
        "avg_queue_s": lambda s: s.queue_s.mean,
        "avg_slowdown": lambda s: s.slowdown.mean,
        "avg_rho": lambda s: s.rho.mean,
        "max_rho": lambda s: s.rho.max,
        "unfair_frac": lambda s: s.unfair_frac,
        "jain": lambda s: s.jain,
        "makespan_s": lambda s: s.makespan_s,
        "utilisation_frac": lambda s: s.utilisation_frac,
        "service_gpu_s": lambda s: s.service_gpu_s,
        "gpu_s_lost": lambda s: s.lost_gpu_s,
        "preemptions": lambda s: float(s.preemptions),
        "promotions": lambda s: float(s.promotions),
    }
)
"""What is merged, by the name it has in `dlsim run --json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureComparison:
    """One figure of a policy at a load.

    Attributes:
        mean: Over the seeds.
        difference: To the first policy's, over the same seeds; None for the first itself.
        ratio: The same as a multiple.
    """

    mean: Mean
    difference: Mean | None
    ratio: Mean | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A policy at a load.

    Attributes:
        results: Of each seed, in their order.
        figures: By the names in `FIGURES`.
    """

    label: str
    load: float
    results: tuple[CellResult, ...]
    figures: Mapping[str, FigureComparison]

    @property
    def unfinished(self) -> int:
        """Jobs that did not come to an end, all seeds together."""
        return sum(result.unfinished for result in self.results)

    @property
    def lay(self) -> LayFigures | None:
        """How the jobs lay, the mean over the seeds; None if they were on no nodes."""
        lays = [result.lay for result in self.results if result.lay is not None]
        if not lays:
            return None
        rungs: Counter[str] = Counter()
        for lay in lays:
            rungs.update(lay.rungs)
        return LayFigures(
            mean_nodes=_known_mean([lay.mean_nodes for lay in lays]),
            skewed_spread_frac=_known_mean([lay.skewed_spread_frac for lay in lays]),
            mean_speed=_known_mean([lay.mean_speed for lay in lays]),
            rungs=dict(sorted(rungs.items())),
        )

    @property
    def summary(self) -> Summary:
        """The figures of seed 0, its completion times, makespan and worst rho those of the mean."""
        first = self.results[0].summary
        jct_s = dataclasses.replace(
            first.jct_s,
            mean=self.figures["avg_jct_s"].mean.value,
            median=self.figures["median_jct_s"].mean.value,
            p95=self.figures["p95_jct_s"].mean.value,
            p99=self.figures["p99_jct_s"].mean.value,
        )
        makespan_s = self.figures["makespan_s"].mean.value
        rho = dataclasses.replace(first.rho, max=self.figures["max_rho"].mean.value)
        return dataclasses.replace(first, jct_s=jct_s, makespan_s=makespan_s, rho=rho)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A sweep that was run.

    Attributes:
        results: Of each of the sweep's cells, in their order.
        rows: By load, then policy.
    """

    sweep: Sweep
    results: tuple[CellResult, ...]
    rows: tuple[ComparisonRow, ...]

    def at(self, load: float) -> tuple[ComparisonRow, ...]:
        """The rows of one load, in the order of the policies."""
        return tuple(row for row in self.rows if row.load == load)

    def unfinished(self) -> tuple[tuple[SweepCell, CellResult], ...]:
        """The simulations that did not end all of their jobs."""
        pairs = zip(self.sweep.cells, self.results, strict=True)
        return tuple((cell, result) for cell, result in pairs if result.unfinished)


def merge(sweep: Sweep, results: Sequence[CellResult]) -> Comparison:
    """Put the cells of *sweep* together.

    Args:
        results: One for each cell, in their order.
    """
    by_row: dict[tuple[float, int], list[CellResult]] = {}
    for cell, result in zip(sweep.cells, results, strict=True):
        by_row.setdefault((cell.load, cell.wish), []).append(result)
    rows = []
    for (load, wish), of_seeds in by_row.items():
        rows.append(
            ComparisonRow(
                label=sweep.labels[wish],
                load=load,
                results=tuple(of_seeds),
                figures=_figures(of_seeds, by_row[load, 0] if wish else None),
            )
        )
    return Comparison(sweep=sweep, results=tuple(results), rows=tuple(rows))


def _figures(
    results: Sequence[CellResult], base: Sequence[CellResult] | None
) -> dict[str, FigureComparison]:
    figures = {}
    for name, of in FIGURES.items():
        values = _column(results, of)
        first = None if base is None else _column(base, of)
        figures[name] = FigureComparison(
            mean=bootstrap_interval.mean(values),
            difference=None
            if first is None
            else bootstrap_interval.paired_difference(values, first),
            ratio=None if first is None else bootstrap_interval.paired_ratio(values, first),
        )
    return figures


def _known_mean(values: Sequence[float]) -> float:
    """The mean of those that there are; NaN if there is none."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _column(results: Sequence[CellResult], of: Callable[[Summary], float]) -> F64:
    return np.array([of(result.summary) for result in results], dtype=np.float64)


def as_json(trace: Trace, *comparisons: Comparison) -> dict[str, object]:
    """Comparisons of one trace as plain values; the keys are those of `docs/evaluate/simulator.md`.

    Args:
        comparisons: Under different cost models, and alike in all else; one or more.
    """
    sweep = comparisons[0].sweep
    return {
        "trace": trace.name,
        "format": trace.format,
        "jobs": len(trace),
        "cluster": sweep.cluster,
        "loads": list(sweep.loads),
        "seeds": sweep.seeds,
        "rules": list(map(str, sweep.ground.rules)),
        "first": sweep.labels[0],
        "policies": [
            {
                "label": row.label,
                "policy": wish.policy,
                "place": "" if wish.place is None else str(wish.place),
                "preset": row.results[0].preset,
                # Sizes may be those of the trace, so these are seed 0's at the first load.
                "parameters": row.results[0].parameters,
                "costs": row.results[0].costs,
                "notes": list(row.results[0].notes),
            }
            for c in comparisons
            for wish, row in zip(c.sweep.wishes, c.at(sweep.loads[0]), strict=True)
        ],
        "rows": [
            {
                "policy": row.label,
                "costs": row.results[0].costs,
                "load": row.load,
                "unfinished": row.unfinished,
                **placement_choice.as_json(row.lay),
                "figures": {name: _compared(figure) for name, figure in row.figures.items()},
            }
            for c in comparisons
            for row in c.rows
        ],
        "cells": [
            {
                "policy": cell.label,
                "costs": result.costs,
                "load": cell.load,
                "seed": cell.seed,
                **export.summary_json(result.summary),
                **placement_choice.as_json(result.lay),
                "decisions": result.decisions,
                "events": result.events,
                "wall_s": result.wall_s,
            }
            for c in comparisons
            for cell, result in zip(c.sweep.cells, c.results, strict=True)
        ],
    }


def _compared(figure: FigureComparison) -> dict[str, object]:
    told: dict[str, object] = {"mean": _finite(figure.mean.value), **_ends(figure.mean)}
    for name, held in (("difference", figure.difference), ("ratio", figure.ratio)):
        if held is not None:
            told[name] = {"mean": _finite(held.value), **_ends(held)}
    return told


def _ends(mean: Mean) -> dict[str, float | None]:
    return {"low": _finite(mean.low), "high": _finite(mean.high)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def as_csv(*comparisons: Comparison) -> str:
    """One line for each simulation, under a line of names; a figure that is not known is empty."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    counts = ("jobs", "finished", "completed")
    lays = ("mean_nodes", "skewed_spread_frac", "mean_speed")
    placed = lays if any(wish.place for c in comparisons for wish in c.sweep.wishes) else ()
    writer.writerow(["policy", "preset", "costs", "load", "seed", *counts, *FIGURES, *placed])
    simulations = (zip(c.sweep.cells, c.results, strict=True) for c in comparisons)
    for cell, result in itertools.chain.from_iterable(simulations):
        summary = result.summary
        writer.writerow(
            [
                cell.label,
                result.preset,
                result.costs,
                plain_number(cell.load),
                cell.seed,
                summary.jobs,
                summary.finished,
                summary.completed,
                *(plain_number(of(summary)) for of in FIGURES.values()),
                *(plain_number(getattr(result.lay, name, math.nan)) for name in placed),
            ]
        )
    return out.getvalue()


def write_csv(path: Path, *comparisons: Comparison) -> None:
    """Write `as_csv`, in UTF-8.

    Raises:
        ConfigError: It cannot be written.
    """
    write_whole(path, as_csv(*comparisons).encode("utf-8"))
