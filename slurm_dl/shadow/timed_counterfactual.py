"""The counterfactual within a time: of all jobs, or of a sample if all take too long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from slurm_dl.config import Config
from slurm_dl.config.engine_settings import profiles_of, settings_of, with_sure_saves
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.shadow.counterfactual import Cast, cast_of, effects, shape_of
from slurm_dl.shadow.effects_by_group import Simulated, simulated_of
from slurm_dl.shadow.report_data import Period
from slurm_dl.shadow.sampling import sampled
from slurm_dl.shadow.segment_store import UnfinishedJobs
from slurm_dl.simulation.cluster_shape import ClusterShape

LEAST_JOBS: Final = 200
"""A smaller sample says nothing."""

_FIRST_PART: Final = 0.6
"""Of the time the first try gets so much; a sample gets the rest."""

_SAFETY: Final = 0.5
_SAY_EVERY: Final = 0.1


class _LateError(SlurmDlError):
    """The time is over; *share* of both runs is done."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share


@dataclass(slots=True)
class _Course:
    """Says how far a try is, a line for each tenth of each run, and ends it when its time is over.

    Args:
        what: What is simulated, in words.
        until_s: When, by *clock*.
    """

    what: str
    say: Callable[[str], None]
    clock: Callable[[], float]
    until_s: float
    _run: str = ""
    _said: float = 0.0
    _runs: int = 0

    def __call__(self, run: str, share: float) -> None:
        """See `Progress`."""
        if run != self._run:
            self._run, self._said = run, 0.0
            self._runs += 1
            self.say(f"simulating {self.what}: {run}")
        if share >= self._said + _SAY_EVERY:
            self._said = math.floor(share / _SAY_EVERY + 1e-9) * _SAY_EVERY
            self.say(f"  {self._said:.0%} of the jobs are done")
        if self.clock() >= self.until_s:
            raise _LateError((self._runs - 1 + share) / 2)


def simulated(
    period: Period,
    standing: UnfinishedJobs | None,
    config: Config,
    *,
    most_jobs: int,
    within_s: float,
    name_of: Callable[[int], str],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Simulated:
    """What the simulator says of *period*.

    Args:
        standing: The unfinished jobs.
        most_jobs: Of more than so many jobs a sample is taken.
        within_s: After a part of this a sample is taken, and after all of it there is nothing.
        say: Told how far it is, a line at a time.
        clock: Seconds, from nowhere in particular.

    Raises:
        SlurmDlError: There is nothing to say; says why.
    """
    shape = shape_of(period.lookouts[-1].shape)
    cast = cast_of(period.ended, standing, shape, period.begin_s, period.end_s)
    n = len(cast.players)
    if not any(p.ended for p in cast.players):
        msg = "no job has ended in that time"
        raise SlurmDlError(msg)
    began_s, most = clock(), min(most_jobs, n)
    for part in (_FIRST_PART, 1.0):
        try:
            some, small = sampled(cast, shape, most)
        except SlurmDlError as err:
            if part < 1:
                raise
            # More jobs alone would take too long again.
            msg = f"{err} and allow more time with --within"
            raise SlurmDlError(msg) from None
        course = _Course(_words(some, small, n, shape), say, clock, began_s + part * within_s)
        try:
            found = effects(
                some,
                small,
                config.policy.make(),
                with_sure_saves(settings_of(config, profiles_of(config))),
                begin_s=period.begin_s,
                progress=course,
            )
        except _LateError as late:
            most = max(LEAST_JOBS, int(_SAFETY * late.share * len(some.players)))
            say(f"  that takes too long: {late.share:.0%} of it is done")
        else:
            return simulated_of(
                found, some, name_of, jobs_in_all=n, gpus=small.gpus, gpus_in_all=shape.gpus
            )
    msg = f"it was not done within {within_s / 60:,.0f} min; allow more with --within"
    raise SlurmDlError(msg)


def _words(some: Cast, small: ClusterShape, jobs: int, shape: ClusterShape) -> str:
    if small is shape:
        return f"{jobs:,} jobs"
    return f"{len(some.players):,} of {jobs:,} jobs on {small.gpus:,} of {shape.gpus:,} GPUs"
