"""The counterfactual within a time: of all jobs, or of a sample if all take too long."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.config import Config
from slurm_dl.config.engine_settings import profiles_of, settings_of, with_sure_saves
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.jobs import F64
from slurm_dl.shadow.counterfactual import (
    Cast,
    Player,
    Simulated,
    cast_of,
    effects,
    fitting,
    shape_of,
    simulated_of,
)
from slurm_dl.shadow.report_data import Period
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


_MOST_TOO_MANY = 1.5
_MOST_LEFT_OUT = 0.1
"""Of the GPU time; with less of the load than that, nothing it says would be so."""


def sampled(cast: Cast, shape: ClusterShape, most: int) -> tuple[Cast, ClusterShape]:
    """About *most* of the jobs, and the cluster for them; all of it if that is not more.

    Few long jobs are most of a site's load, and a draw at chance would have it by half too much or
    too little. So the jobs are sorted by GPU-seconds and cut into stretches, and of each one is
    taken that keeps the sum nearest to the share of all. The nodes are taken first, whole ones of
    each group, and the jobs by the share of the GPUs that this came to; those that fit the few
    nodes alone.

    Raises:
        SlurmDlError: The cluster has too few nodes for so small a share of them, or jobs that are
            too large for that share are much of the load.
    """
    n = len(cast.players)
    if n <= most:
        return cast, shape
    small = _share(shape, most / n)
    jobs = max(1, round(n * small.gpus / shape.gpus))
    if jobs > _MOST_TOO_MANY * most:
        msg = (
            f"there are {n:,} jobs, and a sample of {most:,} needs a part of the nodes that is "
            f"smaller than one; take --simulate {math.ceil(jobs / 1000) * 1000}"
        )
        raise SlurmDlError(msg)
    players, unfit = fitting(cast.players, small)
    left_out = _left_out(cast.players, players)
    if left_out > _MOST_LEFT_OUT or not players:
        msg = (
            f"{left_out:.0%} of the GPU time is of jobs that are too large for a sample of "
            f"{most:,} of {n:,} jobs on {small.gpus:,.0f} of {shape.gpus:,.0f} GPUs; "
            f"take --simulate {_enough(cast, shape, most)}"
        )
        raise SlurmDlError(msg)
    gpu_s = _gpu_s(players)
    ran_before = np.array([math.isnan(p.real_wait_s) for p in players])
    count = min(len(players), max(1, round(len(players) * small.gpus / shape.gpus)))
    rows = _one_of_each(np.lexsort((gpu_s, ran_before)), gpu_s, count)
    taken = tuple(players[i] for i in sorted(rows))
    return dataclasses.replace(cast, players=taken, unfit=cast.unfit + unfit), small


def _share(shape: ClusterShape, share: float) -> ClusterShape:
    """This share of the nodes, of each group one at least."""
    return ClusterShape(
        tuple(dataclasses.replace(g, nodes=max(1, round(g.nodes * share))) for g in shape.groups)
    )


def _left_out(players: Sequence[Player], fit: Sequence[Player]) -> float:
    """The share of the GPU time of *players* that is not of those that fit, 0 to 1."""
    whole_gpu_s = _gpu_s(players).sum()
    return 1 - float(_gpu_s(fit).sum() / whole_gpu_s) if whole_gpu_s else 0.0


def _enough(cast: Cast, shape: ClusterShape, most: int) -> int:
    """The fewest jobs, a sample of *most* being too small, of which one can be taken; at most all.

    Found by halving: what fits fewer nodes fits more.
    """
    too_few, enough = most, len(cast.players)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        fit, _ = fitting(cast.players, _share(shape, middle / len(cast.players)))
        if fit and _left_out(cast.players, fit) <= _MOST_LEFT_OUT:
            enough = middle
        else:
            too_few = middle
    return enough


def _gpu_s(players: Sequence[Player]) -> F64:
    return np.array([p.gpus * p.duration_s for p in players])


def _one_of_each(order: npt.NDArray[np.int64], gpu_s: F64, count: int) -> list[int]:
    """A row of each of *count* stretches of *order*, whose sum is near *count* means."""
    rows, owed_s = [], 0.0
    for stretch in np.array_split(order, count):
        owed_s += float(gpu_s[stretch].mean())
        row = int(stretch[np.abs(gpu_s[stretch] - owed_s).argmin()])
        owed_s -= float(gpu_s[row])
        rows.append(row)
    return rows
