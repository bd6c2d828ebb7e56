"""The simulations of a search for thresholds: here, one after the other, or in processes.

What is tried at one step of the search does not depend on each other; the next step waits for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_dl.experiments.process_pool import WorkError, WorkFault, process_pool
from slurm_dl.experiments.threshold_search import Candidate
from slurm_dl.experiments.tuning_data import TuningData
from slurm_dl.experiments.whatif_history import DailyHistory, Fate


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
