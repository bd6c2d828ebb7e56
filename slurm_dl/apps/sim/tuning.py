"""Tuning discrete_las: chosen on the first half of a history's days, judged on the second.

Both halves are simulated by themselves, so nothing of the later days can be seen by the search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slurm_dl.apps.sim import tune_search, whatif_history
from slurm_dl.apps.sim.experiment import Wish
from slurm_dl.apps.sim.tune_search import Candidate, Rung
from slurm_dl.apps.sim.whatif_history import DAY_S, Fate, History
from slurm_dl.apps.sim.whatif_interval import Range, draws, range_of, resamples_for, sample
from slurm_dl.backends.sim.shape import ClusterShape
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace

FEWEST_DAYS = 4
"""A history of fewer has no halves."""


@dataclass(frozen=True, slots=True)
class Edges:
    """How the days of each half are counted; see `whatif_history.cut`."""

    warm_up: int | None
    cool_down: int | None
    block_days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The policy in use; its fields are those of the policy."""

    thresholds_gpu_s: tuple[float, ...]
    promote_knob: float = 0.0
    dimensions: int = 2

    @property
    def candidate(self) -> Candidate:
        """It among the candidates."""
        return Candidate(self.thresholds_gpu_s, self.promote_knob)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ground:
    """What is simulated.

    Attributes:
        trace: The jobs of the first half of the days.
        chosen_on: The same in days.
        held_out: The second half.
        by: The figure, a word of `KINDS`.
        costs: What ``--costs`` said.
        seed: Of all that is drawn.
    """

    trace: Trace
    chosen_on: History
    held_out: History
    shape: ClusterShape
    by: str
    costs: str | None
    seed: int
    edges: Edges

    def last_days(self, days: int | None) -> History:
        """The last so many of the days that are chosen on; None: all of them."""
        if days is None:
            return self.chosen_on
        end_s = (np.floor(self.trace.submit_s[-1] / DAY_S) + 1) * DAY_S
        late = whatif_history.only(self.trace, self.trace.submit_s >= end_s - days * DAY_S)
        # Too short a stretch to leave days out as they were said for the whole.
        return whatif_history.cut(late, self.shape)

    def fate(self, candidate: Candidate, history: History, dimensions: int) -> Fate:
        """What becomes of the jobs of *history* under *candidate*."""
        wish = Wish(
            policy="discrete_las",
            preset="none",
            parameters={
                "thresholds_gpu_s": list(candidate.thresholds_gpu_s),
                "promote_knob": candidate.promote_knob,
                "dimensions": dimensions,
            },
        )
        return whatif_history.fate(wish, history, self.shape, costs=self.costs, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuned:
    """What the search found, and what the later days say of it.

    Attributes:
        rungs: The steps of the search; that of the promotion, if there is one, last.
        winner: The best on the days that were chosen on.
        chosen: The figures of what is in use and of the winner on those days.
        later: The same on the days held out.
        difference: The winner's figure less that of what is in use on the days held out.
        change: The same as a share of the latter; None where that may be 0.
        is_whole: All jobs held out finished under both.
        resamples: How many for the range of it.
    """

    ground: Ground
    current: Current
    rungs: tuple[Rung, ...]
    winner: Candidate
    chosen: tuple[float, float]
    later: tuple[float, float]
    difference: Range
    change: Range | None
    is_whole: bool
    resamples: int
    costs: str

    @property
    def judged(self) -> Range:
        """The difference in the unit that the judgement goes by."""
        return self.change or self.difference

    @property
    def is_recommended(self) -> bool:
        """Whether the days held out show that the winner is better."""
        return self.is_whole and not self.judged.has_zero and self.judged.high < 0

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


def halves(
    trace: Trace,
    shape: ClusterShape,
    *,
    by: str,
    costs: str | None,
    seed: int,
    edges: Edges,
) -> Ground:
    """A history in its two halves.

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
    first = whatif_history.only(trace, early)
    cuts = [
        whatif_history.cut(
            half,
            shape,
            warm_up=edges.warm_up,
            cool_down=edges.cool_down,
            block_days=edges.block_days,
        )
        for half in (first, whatif_history.only(trace, ~early))
    ]
    return Ground(
        trace=cuts[0].trace,
        chosen_on=cuts[0],
        held_out=cuts[1],
        shape=shape,
        by=by,
        costs=costs,
        seed=seed,
        edges=edges,
    )


def steps(ground: Ground, current: Current, most: int, knobs: tuple[float, ...] | None) -> int:
    """Simulations that `tuned` takes, about."""
    left, total = most + 1, 4 + len(_knobs(current, knobs))
    for _ in tune_search.stretches(ground.chosen_on.days):
        total += left
        left = -(-left // tune_search.KEPT) + 1
    return total


def tuned(
    ground: Ground,
    current: Current,
    *,
    most: int,
    knobs: tuple[float, ...] | None,
    report: Callable[[int], None] = lambda _: None,
) -> Tuned:
    """Search, and judge.

    Args:
        most: Sets of thresholds to begin with.
        knobs: Values of promote_knob to try; None: half and twice the one in use, unless it is 0.
        report: Told how many simulations are done.
    """
    done = 0
    stretches: dict[int | None, History] = {None: ground.chosen_on}

    def figure(one: Candidate, history: History) -> tuple[Fate, float]:
        nonlocal done
        found = ground.fate(one, history, current.dimensions)
        done += 1
        report(done)
        value = found.figure(ground.by).of(np.ones((1, history.blocks)))[0]
        return found, float("nan") if found.unfinished else float(value)

    def score(one: Candidate, days: int | None) -> float:
        if days not in stretches:
            stretches[days] = ground.last_days(days)
        return figure(one, stretches[days])[1]

    trace = ground.chosen_on.trace
    service = trace.duration_s * (trace.gpus if current.dimensions != 1 else 1.0)
    tried = [
        Candidate(edges, current.promote_knob)
        for edges in tune_search.candidates(service, most=most, seed=ground.seed)
    ]
    rungs = tune_search.search(
        tried, current.candidate, tune_search.stretches(ground.chosen_on.days), score
    )
    winner = rungs[-1].tried[0][0]
    if others := _knobs(current, knobs):
        more = [Candidate(winner.thresholds_gpu_s, knob) for knob in others]
        again = dict.fromkeys((current.candidate, winner, *more))
        last = tune_search.ranked(list(again), current.candidate, None, score)
        rungs = (*rungs, last)
        winner = last.tried[0][0]
    scores = dict(rungs[-1].tried)
    before, used = figure(current.candidate, ground.held_out)
    after, got = (before, used) if winner == current.candidate else figure(winner, ground.held_out)
    resamples = resamples_for(1)
    weights = draws(ground.held_out.blocks, resamples, ground.seed)
    base = sample(before.figure(ground.by), weights)
    other = sample(after.figure(ground.by), weights)
    difference, share = range_of(other.less(base)), other.change(base)
    is_whole = not (before.unfinished or after.unfinished)
    return Tuned(
        ground=ground,
        current=current,
        rungs=rungs,
        winner=winner,
        chosen=(scores[current.candidate], scores[winner]),
        later=(used, got),
        difference=difference,
        change=None if share is None else range_of(share),
        is_whole=is_whole,
        resamples=resamples,
        costs=before.costs,
    )


def _knobs(current: Current, given: tuple[float, ...] | None) -> tuple[float, ...]:
    if given is not None:
        return given
    knob = current.promote_knob
    return (knob / 2, 2 * knob) if knob else ()
