"""Tuning discrete_las: chosen on the first half of a history's days, judged on the second."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_dl.experiments import threshold_search
from slurm_dl.experiments.process_pool import WorkError, WorkFault, process_pool
from slurm_dl.experiments.threshold_search import Candidate, Rung
from slurm_dl.experiments.tuning_data import TuningData
from slurm_dl.experiments.whatif_bootstrap import Interval, held, resamples_for
from slurm_dl.experiments.whatif_history import DailyHistory, Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The policy in use; its fields are those of the policy, and of `Candidate`."""

    thresholds_gpu_s: tuple[float, ...]
    promote_knob: float = 0.0
    dimensions: int = 2
    min_quantum_s: float | None = None

    @property
    def candidate(self) -> Candidate:
        """It among the candidates."""
        return Candidate(self.thresholds_gpu_s, self.promote_knob, self.min_quantum_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TuningResult:
    """What the search found, and what the later days say of it.

    Attributes:
        rungs: The steps of the search; those of the promotion and of the least time of a run, if
            there are any, last.
        winner: The best on the days that were chosen on.
        chosen: The figures of what is in use and of the winner on those days.
        later: The same on the days held out.
        difference: The winner's figure less that of what is in use on the days held out.
        change: The same as a share of the latter; None where that may be 0.
        is_whole: All jobs held out finished under both.
        resamples: How many for the range of it.
    """

    ground: TuningData
    current: Current
    rungs: tuple[Rung, ...]
    winner: Candidate
    chosen: tuple[float, float]
    later: tuple[float, float]
    difference: Interval
    change: Interval | None
    is_whole: bool
    resamples: int
    costs: str

    @property
    def judged(self) -> Interval:
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


def steps(
    ground: TuningData,
    current: Current,
    most: int,
    knobs: tuple[float, ...] | None,
    quanta: tuple[float, ...] = (),
) -> int:
    """Simulations that `tuned` takes, about."""
    left, total = most + 1, 4 + len(_knobs(current, knobs)) + (len(quanta) + 1 if quanta else 0)
    for _ in threshold_search.stretches(ground.chosen_on.days):
        total += left
        left = -(-left // threshold_search.KEPT) + 1
    return total


def tuned(
    ground: TuningData,
    current: Current,
    *,
    most: int,
    knobs: tuple[float, ...] | None,
    quanta: tuple[float, ...] = (),
    processes: int = 1,
    report: Callable[[int], None] = lambda _: None,
) -> TuningResult:
    """Search, and judge.

    Args:
        most: Sets of thresholds to begin with.
        knobs: Values of promote_knob to try; None: half and twice the one in use, unless it is 0.
        quanta: Values of min_quantum_s to try with the best of all else; only if *current* has one.
        processes: Simulations at a time; the result does not depend on it.
        report: Told how many simulations are done.

    Raises:
        ConfigError: The policy cannot run there; told before anything runs.
        WorkError: A simulation failed, or a process was killed.
    """
    ground.check(current.candidate, current.dimensions)
    trace = ground.chosen_on.trace
    service = trace.duration_s * (trace.gpus if current.dimensions != 1 else 1.0)
    tried = [
        Candidate(edges, current.promote_knob, current.min_quantum_s)
        for edges in threshold_search.candidates(service, most=most, seed=ground.seed)
    ]
    others = _knobs(current, knobs)

    def with_knobs(best: Candidate) -> list[Candidate]:
        return [dataclasses.replace(best, promote_knob=knob) for knob in others]

    def with_quanta(best: Candidate) -> list[Candidate]:
        return [dataclasses.replace(best, min_quantum_s=quantum_s) for quantum_s in quanta]

    # What is in use runs in every step, and with the other knobs the best thresholds.
    longest = max(len({current.candidate, *tried}), 2 + len(others), 2 + len(quanta))
    with running(Trials(ground, current.dimensions), processes, longest, report) as run:
        return _tuned(ground, current, tried, [with_knobs, with_quanta], run)


def _tuned(
    ground: TuningData,
    current: Current,
    tried: Sequence[Candidate],
    variants: Sequence[Callable[[Candidate], list[Candidate]]],
    run: Run,
) -> TuningResult:
    def score(several: Sequence[Candidate], days: int | None) -> list[float]:
        return [tried.figure for tried in run([Trial(one, days) for one in several])]

    rungs = threshold_search.search(
        tried, current.candidate, threshold_search.stretches(ground.chosen_on.days), score
    )
    winner = rungs[-1].tried[0][0]
    for more in variants:
        if others := more(winner):
            again = dict.fromkeys((current.candidate, winner, *others))
            last = threshold_search.ranked(list(again), current.candidate, None, score)
            rungs = (*rungs, last)
            winner = last.tried[0][0]
    scores = dict(rungs[-1].tried)
    later = dict.fromkeys((current.candidate, winner))
    judged = dict(zip(later, run([Trial(one, is_held_out=True) for one in later]), strict=True))
    before, after = _fate(judged[current.candidate]), _fate(judged[winner])
    resamples = resamples_for(1)
    figures = [before.figure(ground.by), after.figure(ground.by)]
    _, apart = held(figures, ground.held_out.blocks, resamples=resamples, seed=ground.seed)
    is_whole = not (before.unfinished or after.unfinished)
    return TuningResult(
        ground=ground,
        current=current,
        rungs=rungs,
        winner=winner,
        chosen=(scores[current.candidate], scores[winner]),
        later=(judged[current.candidate].figure, judged[winner].figure),
        difference=apart.difference,
        change=apart.change,
        is_whole=is_whole,
        resamples=resamples,
        costs=before.costs,
    )


def _fate(tried: Tried) -> Fate:
    if tried.fate is None:
        msg = "a trial on the days held out came without its jobs"
        raise WorkError(msg)
    return tried.fate


def _knobs(current: Current, given: tuple[float, ...] | None) -> tuple[float, ...]:
    if given is not None:
        return given
    knob = current.promote_knob
    return (knob / 2, 2 * knob) if knob else ()


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulation.

    Attributes:
        days: Of the days chosen on, the last so many; None: all of them.
        is_held_out: On the days held out, and not on those.
    """

    candidate: Candidate
    days: int | None = None
    is_held_out: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """What came of one.

    Attributes:
        figure: Less is better; NaN if jobs did not finish.
        fate: What became of the jobs; None if it was on the days chosen on.
    """

    figure: float
    fate: Fate | None


@dataclass(slots=True, eq=False)
class Trials:
    """Does any of the trials on one ground.

    Attributes:
        dimensions: As of the policy in use.
    """

    ground: TuningData
    dimensions: int
    _stretches: dict[int | None, DailyHistory] = field(default_factory=dict)

    def __call__(self, trial: Trial, /) -> Tried:
        """Simulate one."""
        ground = self.ground
        if trial.is_held_out:
            history = ground.held_out
        else:
            if trial.days not in self._stretches:
                self._stretches[trial.days] = ground.last_days(trial.days)
            history = self._stretches[trial.days]
        fate = ground.fate(trial.candidate, history, self.dimensions)
        value = fate.figure(ground.by).of(np.ones((1, history.blocks)))[0]
        figure = float("nan") if fate.unfinished else float(value)
        return Tried(figure, fate if trial.is_held_out else None)


Run = Callable[[Sequence[Trial]], list[Tried]]
"""Runs trials; what came of them is in their order."""


@contextlib.contextmanager
def running(
    trials: Trials, processes: int, most: int, report: Callable[[int], None]
) -> Iterator[Run]:
    """What runs trials, so many at a time; 1: in this process.

    What is tried at one step of the search does not depend on each other; the next step waits for
    all.

    What it yields raises WorkError if a trial failed or a process was killed.

    Args:
        most: Trials of the longest step; more processes would have nothing to do.
        report: Told how many simulations are done.
    """
    done = 0
    with process_pool(trials, min(processes, most)) as run:

        def step(several: Sequence[Trial]) -> list[Tried]:
            nonlocal done
            made: dict[int, Tried] = {}
            for number, said in run(several):
                if isinstance(said, WorkFault):
                    msg = f"{several[number].candidate}: {said.text}"
                    raise WorkError(msg)
                made[number] = said
                done += 1
                report(done)
            return [made[number] for number in range(len(several))]

        yield step
