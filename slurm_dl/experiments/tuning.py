"""Tuning discrete_las: thresholds chosen on the first half of a history's days, judged on the rest.

Both halves are simulated by themselves, so nothing of the later days can be seen by the search.
Candidates are cut at quantiles of the jobs' service, by jobs and by the service they took, as
service is what a threshold is held against. What is in use wins a draw; of others that draw the one
with fewer queues does.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from slurm_dl.experiments import whatif_history
from slurm_dl.experiments.grid import Cell, Experiment, Simulated, Workload
from slurm_dl.experiments.placement_choice import PLAIN, Named, PlacementSetup
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.experiments.whatif_bootstrap import PairedFigure, held, resamples_for
from slurm_dl.experiments.whatif_history import DAY_S, DailyHistory, Fate
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.cluster_shape import ClusterShape

FEWEST_DAYS: Final = 4  # A history of fewer has no halves

CHOSEN_ON, HELD_OUT = "chosen on", "held out"

_MOST_THRESHOLDS: Final = 3
_BY_JOBS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_BY_SERVICE: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
_APART: Final = 2.0  # Two thresholds of a candidate differ by this factor at least


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """Parameters that could stand in the configuration."""

    thresholds_gpu_s: tuple[float, ...]  # As of the policy
    promote_knob: float = 0.0  # As of the policy
    min_quantum_s: float | None = None  # ``preemption.min_quantum_s``; None: not simulated
    dimensions: int = 2  # As of the policy; that in use

    def __str__(self) -> str:
        words = [", ".join(f"{edge:g}" for edge in self.thresholds_gpu_s)]
        if self.promote_knob:
            words.append(f"promote {self.promote_knob:g}")
        if self.min_quantum_s is not None:
            words.append(f"min quantum {self.min_quantum_s:g} s")
        return "; ".join(words)


class Tried(NamedTuple):
    """A candidate on one of the halves."""

    figure: float  # Less is better; NaN if jobs did not finish
    fate: Fate | None  # Of the jobs; None if it was on the days chosen on


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Halves:
    """A history in two halves of days."""

    days: Mapping[str, DailyHistory]
    shape: ClusterShape
    by: str  # The figure, a word of `whatif_history.KINDS`
    costs: str | None  # As ``--costs`` takes it
    scheme: Named | None  # Places the jobs; None: GPUs are only counted
    experiment: Experiment  # Both halves as workloads

    def cell(self, one: Candidate, half: str = CHOSEN_ON) -> Cell:
        """The simulation of a half under a candidate."""
        policy = PolicySpec(
            policy="discrete_las",
            parameters={
                "thresholds_gpu_s": list(one.thresholds_gpu_s),
                "promote_knob": one.promote_knob,
                "dimensions": one.dimensions,
            },
            place=self.scheme,
            min_quantum_s=one.min_quantum_s,
            name=str(one),
        )
        return Cell(policy=policy, workload=half, costs=self.costs)

    def measure(self, simulated: Simulated) -> Tried:
        """For `grid.run`."""
        history = self.days[simulated.cell.workload]
        fate = whatif_history.fate_of(history, simulated)
        (value,) = fate.figure(self.by).of(np.ones((1, history.blocks)))
        is_judged = simulated.cell.workload == HELD_OUT
        return Tried(math.nan if fate.unfinished else float(value), fate if is_judged else None)


def halves(
    trace: Trace,
    shape: ClusterShape,
    *,
    by: str,
    costs: str | None,
    seed: int,
    scheme: Named | None = None,
    ground: PlacementSetup = PLAIN,
    warm_up: int | None = None,
    cool_down: int | None = None,
    block_days: int = 1,
) -> Halves:
    """A history in its two halves; days are counted as `whatif_history.cut` does.

    Raises:
        ConfigError: It has too few days.
    """
    number = np.floor(trace.submit_s / DAY_S)
    days = int(number[-1] - number[0]) + 1
    if days < FEWEST_DAYS:
        msg = (
            f"{trace.name}: {days} days; it takes {FEWEST_DAYS} to choose on some and judge others"
        )
        raise ConfigError(msg)
    early = number < number[0] + days // 2
    halves = {
        name: whatif_history.cut(
            trace.of_jobs(np.flatnonzero(rows)), shape,
            warm_up=warm_up, cool_down=cool_down, block_days=block_days,
        )
        for name, rows in ((CHOSEN_ON, early), (HELD_OUT, ~early))
    }  # fmt: skip
    workloads = {
        name: Workload(cluster=str(shape), trace=history.trace) for name, history in halves.items()
    }
    experiment = Experiment(workloads=workloads, ground=ground, seed=seed)
    return Halves(
        days=halves, shape=shape, by=by, costs=costs, scheme=scheme, experiment=experiment
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TuningResult:
    """The best of the candidates, and how it does on the later days."""

    halves: Halves
    current: Candidate
    steps: tuple[tuple[tuple[Candidate, float], ...], ...]  # Candidates and figures, the best first
    winner: Candidate
    chosen: tuple[float, float]  # Figures of *current* and *winner* on the days chosen on
    later: tuple[float, float]  # The same on the days held out; NaN if jobs did not finish
    held: PairedFigure  # The winner's figure on the days held out, against that in use
    resamples: int  # How many for its ranges
    costs: str  # The cost model

    @property
    def is_recommended(self) -> bool:
        """Whether the days held out show that the winner is better."""
        return not math.isnan(sum(self.later)) and self.held.judged.high < 0

    @property
    def gain(self) -> float:
        """Share by which the winner's figure is less on the days that were chosen on."""
        return _less(*self.chosen)

    @property
    def gain_left(self) -> float:
        """The same on the days held out."""
        return _less(*self.later)


def _less(before: float, after: float) -> float:
    return (before - after) / before if before > 0 else 0.0


Run = Callable[[Sequence[Cell]], Sequence[Tried]]
"""Runs cells; their measures are in the same order."""


def tuned(
    data: Halves,
    current: Candidate,
    run: Run,
    *,
    most: int,
    knobs: tuple[float, ...] | None = None,
    quanta: tuple[float, ...] = (),
) -> TuningResult:
    """Search, and judge.

    Args:
        current: What is in use.
        run: Runs cells of `Halves.experiment` with `Halves.measure`.
        most: Sets of thresholds to try.
        knobs: Values of promote_knob to try; None: half and twice the one in use, unless it is 0.
        quanta: Values of min_quantum_s to try with the best of all else; only if *current* has one.

    Raises:
        ConfigError: The policy cannot run there; told before anything runs.
    """
    data.experiment.ready(data.cell(current))
    trace, seed = data.days[CHOSEN_ON].trace, data.experiment.seed
    service = trace.duration_s * (trace.gpus if current.dimensions != 1 else 1.0)
    if knobs is None:
        knobs = (current.promote_knob / 2, 2 * current.promote_knob) if current.promote_knob else ()

    def place(pair: tuple[Candidate, float]) -> tuple[float, bool, int, Candidate]:
        one, value = pair
        worst = math.inf if math.isnan(value) else value
        return worst, one != current, len(one.thresholds_gpu_s), one

    steps: list[tuple[tuple[Candidate, float], ...]] = []
    winner = current
    tries = (
        ("thresholds_gpu_s", candidates(service, most=most, seed=seed)),
        ("promote_knob", knobs),
        ("min_quantum_s", quanta),
    )
    for name, values in tries:
        if values:
            changed: list[dict[str, Any]] = [{name: value} for value in values]
            several = (dataclasses.replace(winner, **change) for change in changed)
            unlike = list(dict.fromkeys((current, winner, *several)))
            tried = run([data.cell(one) for one in unlike])
            found = zip(unlike, (one.figure for one in tried), strict=True)
            steps.append(tuple(sorted(found, key=place)))
            winner = steps[-1][0][0]
    scores = dict(steps[-1])
    later = run([data.cell(one, HELD_OUT) for one in (current, winner)])
    fates = [tried.fate for tried in later if tried.fate is not None]
    figures = [fate.figure(data.by) for fate in fates]
    blocks, resamples = data.days[HELD_OUT].blocks, resamples_for(1)
    return TuningResult(
        halves=data,
        current=current,
        steps=tuple(steps),
        winner=winner,
        chosen=(scores[current], scores[winner]),
        later=(later[0].figure, later[1].figure),
        held=held(figures, blocks, resamples=resamples, seed=seed)[1],
        resamples=resamples,
        costs=fates[0].costs,
    )


def levels(service: F64) -> tuple[float, ...]:
    """Places where a threshold could be, ascending, two digits that count each.

    Args:
        service: ``(n,)`` the service of each job, in the unit of thresholds, above 0.
    """
    by_jobs = np.quantile(service, _BY_JOBS)
    ordered = np.sort(service)
    upto = np.cumsum(ordered) / ordered.sum()
    by_service = ordered[np.searchsorted(upto, _BY_SERVICE)]
    found = np.concatenate([by_jobs, by_service]).tolist()
    return tuple(sorted({float(f"{value:.1e}") for value in found}))


def candidates(service: F64, *, most: int, seed: int) -> tuple[tuple[float, ...], ...]:
    """Sets of thresholds to try, at most so many: all of one, then some of two and of three.

    Args:
        service: ``(n,)`` see `levels`.
        most: At least 1.
        seed: Of which sets of several are taken where there are too many.
    """
    at = levels(service)
    found: list[tuple[float, ...]] = [(edge,) for edge in at[:most]]
    rng = np.random.default_rng(seed)
    for size in range(2, _MOST_THRESHOLDS + 1):
        several = [
            edges
            for edges in itertools.combinations(at, size)
            if all(b >= _APART * a for a, b in itertools.pairwise(edges))
        ]
        share = (most - len(found)) // (_MOST_THRESHOLDS + 1 - size)
        chosen = rng.choice(len(several), size=min(share, len(several)), replace=False)
        found += [several[i] for i in sorted(chosen.tolist())]
    return tuple(found)
