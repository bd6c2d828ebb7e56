"""The recorded jobs once more, in the simulator: under plain Slurm, and under the policy.

Both run the same jobs on the same simulated cluster; under the policy dlschedd's own engine serves
them. What really happened is the measure of how far the simulated Slurm is to be believed. If all
jobs take too long, a sample of them is simulated.
"""

from __future__ import annotations

import dataclasses
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.config import Config
from slurm_dl.config.engine_settings import profiles_of, settings_of, with_sure_saves
from slurm_dl.engine.settings import Settings
from slurm_dl.model.errors import ConfigError, SlurmDlError
from slurm_dl.model.job_record import Records
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.policies.base import Policy
from slurm_dl.shadow.records import EndedJobRecord
from slurm_dl.shadow.report_data import HOUR_S, Balance, Names, Period, Simulated, by_group
from slurm_dl.simulation.cluster_shape import ClusterShape, NodeGroup
from slurm_dl.simulation.slurm.job_behaviour import JobBehaviour, shapes
from slurm_dl.simulation.slurm.scenario import OnStep, Scenario, simulate_plain, simulate_slurm

SAME_S: Final = 60.0
SAME_SHARE: Final = 0.05
"""A job is neither helped nor hurt if its completion time differs by less than either."""

LEAST_JOBS: Final = 200
"""A smaller sample says nothing."""

_CHECKPOINT_EVERY_S: Final = 3600.0
_LEAST_S: Final = 1.0

_FIRST_PART: Final = 0.6
"""Of the time the first try gets so much; a sample gets the rest."""

_SAFETY: Final = 0.5
_MOST_TOO_MANY: Final = 1.5
_MOST_LEFT_OUT: Final = 0.1
"""Of the GPU time; with less of the load than that, nothing it says would be so."""


class _LateError(SlurmDlError):
    """The time is over; *share* of both runs is done."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share


@dataclass(frozen=True, slots=True)
class Sample:
    """Jobs that are simulated together, and the cluster for them; all of them, or some."""

    jobs: tuple[EndedJobRecord, ...]  # As `jobs_of` has them
    shape: ClusterShape
    unfit: int = 0  # Jobs that were left out as they fit no equal shares of the nodes

    @property
    def gpu_s(self) -> F64:
        """``(n,)`` GPU-seconds of each job."""
        return np.array([j.gpus * j.ran_s for j in self.jobs])

    def on(self, shape: ClusterShape) -> Sample:
        """Those of the jobs that fit equal shares of the nodes of *shape*, on it."""
        fits = {gpus: _fits(gpus, shape) for gpus in {j.gpus for j in self.jobs}}
        fit = tuple(j for j in self.jobs if fits[j.gpus])
        return Sample(fit, shape, self.unfit + len(self.jobs) - len(fit))


def _fits(gpus: float, shape: ClusterShape) -> bool:
    try:
        shapes(np.array([gpus]), shape.nodes().gpus)
    except ValueError:
        return False
    return True


def simulated(
    period: Period,
    config: Config,
    *,
    most_jobs: int,
    within_s: float,
    name_of: Names,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Simulated:
    """The simulator's answer for *period*.

    Args:
        most_jobs: Of more than so many jobs a sample is taken.
        within_s: After a part of this a sample is taken, and after all of it there is nothing.
        say: Told how far it is, a line at a time.
        clock: Seconds, from nowhere in particular.

    Raises:
        SlurmDlError: There is nothing to say; says why.
    """
    everything = all_of(period)
    n, shape = len(everything.jobs), everything.shape
    if not any(j.how != "V" for j in everything.jobs):
        msg = "no job has ended in that time"
        raise SlurmDlError(msg)
    began_s, most = clock(), min(most_jobs, n)
    for part in (_FIRST_PART, 1.0):
        try:
            sample = sampled(everything, most)
        except SlurmDlError as err:
            if part < 1:
                raise
            # More jobs alone would take too long again.
            msg = f"{err} and allow more time with --within"
            raise SlurmDlError(msg) from None
        what = f"{n:,} jobs"
        if sample is not everything:
            what = f"{len(sample.jobs):,} of {what} on {sample.shape.gpus:,} of {shape.gpus:,} GPUs"
        try:
            runs = both(
                sample,
                config.policy.make(),
                with_sure_saves(settings_of(config, profiles_of(config))),
                begin_s=period.begin_s,
                steps=_steps(what, len(sample.jobs), say, clock, began_s + part * within_s),
            )
        except _LateError as late:
            most = max(LEAST_JOBS, int(_SAFETY * late.share * len(sample.jobs)))
            say(f"  that takes too long: {late.share:.0%} of it is done")
        else:
            return compared(
                sample, *runs, everything=everything, never_ran=period.never_ran, name_of=name_of
            )
    msg = f"it was not done within {within_s / 60:,.0f} min; allow more with --within"
    raise SlurmDlError(msg)


def _steps(
    what: str,
    jobs: int,
    say: Callable[[str], None],
    clock: Callable[[], float],
    until_s: float,
) -> Callable[[int, str], OnStep]:
    """Say a line for each tenth of a run, of both the first or the second, and end it in time."""

    def begin(run: int, name: str) -> OnStep:
        say(f"simulating {what}: {name}")
        said = 0

        def step(left: int) -> None:
            nonlocal said
            share = 1.0 - left / jobs
            tenths = math.floor(10 * share + 1e-9)
            if tenths > said:
                said = tenths
                say(f"  {tenths / 10:.0%} of the jobs are done")
            if clock() >= until_s:
                raise _LateError((run + share) / 2)

        return step

    return begin


def all_of(period: Period) -> Sample:
    """The jobs that waited, ran or came in *period*, as if it were all the time there is.

    One that ran at its beginning goes on with what it had left, and so starts before it is
    submitted; one that waited is submitted then.

    Raises:
        SlurmDlError: The cluster has no GPUs.
    """
    groups = [
        NodeGroup(nodes=nodes, gpus=gpus, gpu_type=kind or "gpu")
        for nodes, gpus, kind in period.lookouts[-1].shape
        if nodes > 0 and gpus > 0
    ]
    if not groups:
        msg = "no node with GPUs was up"
        raise SlurmDlError(msg)
    begin_s, end_s = period.begin_s, period.end_s
    ended = [j for j in period.ended if j.end_s > begin_s and j.submit_s < end_s]
    known = {j.job_id for j in ended}
    others = [j for j in period.unfinished if j.job_id not in known and j.submit_s < end_s]
    jobs = [
        dataclasses.replace(
            j,
            submit_s=max(j.submit_s, begin_s),
            ran_s=max(min(j.ran_s, j.end_s - begin_s), _LEAST_S),
        )
        for j in (*ended, *others)
    ]
    # What ran at the beginning comes first, and so starts first.
    jobs.sort(key=lambda j: (j.submit_s, j.start_s >= j.submit_s, j.job_id))
    shape = ClusterShape(tuple(groups))
    return Sample(tuple(jobs), shape).on(shape)


def both(
    sample: Sample,
    policy: Policy,
    settings: Settings,
    *,
    begin_s: float,
    steps: Callable[[int, str], OnStep] = lambda _run, _name: lambda _left: None,
) -> tuple[Records, Records]:
    """Simulate plain Slurm, and the policy.

    Args:
        settings: The engine's limits as configured; placement and breakers are left out.
        begin_s: The trace's zero, epoch seconds.
        steps: Makes of a run's number and name what is told its steps.

    Raises:
        ConfigError: The policy cannot run there, or never served some of the jobs.
    """
    jobs = sample.jobs
    users = sorted({j.uid for j in jobs})
    trace = Trace(
        name="shadow",
        format="shadow",
        job_id=tuple(map(str, range(len(jobs)))),
        submit_s=np.array([j.submit_s - begin_s for j in jobs]),
        duration_s=np.array([j.ran_s for j in jobs]),
        gpus=np.array([j.gpus for j in jobs]),
        user=np.searchsorted(users, [j.uid for j in jobs]).astype(np.int32),
        model=np.full(len(jobs), -1, dtype=np.int32),
        ending=np.zeros(len(jobs), dtype=np.int8),
        users=tuple(map(str, users)),
    )
    scenario = Scenario(
        trace=trace,
        shape=sample.shape,
        habits=JobBehaviour(
            opted_in_frac=sum(j.opted_in for j in jobs) / len(jobs),
            checkpoint_every_s=_CHECKPOINT_EVERY_S,
        ),
        epoch_s=begin_s,
    )
    limits = Settings(
        partitions=frozenset({"gpu"}),
        band_width=settings.band_width,
        window=settings.window,
        preemption=settings.preemption,
    )
    plain = simulate_plain(scenario, on_step=steps(0, "plain Slurm")).records
    served = simulate_slurm(
        scenario, policy=policy, settings=limits, on_step=steps(1, "the configured policy")
    ).records
    if not (plain.finished.all() and served.finished.all()):
        msg = "in the simulation some jobs were never served: the policy passes nobody by"
        raise ConfigError(msg)
    return plain, served


def compared(
    sample: Sample,
    plain: Records,
    served: Records,
    *,
    everything: Sample,
    never_ran: int,
    name_of: Names,
) -> Simulated:
    """The jobs with a known end, by user, account and size.

    Args:
        plain, served: What became of *sample* under plain Slurm, and under the policy.
        everything: The jobs and the cluster that *sample* is of.
    """
    counted = np.array([j.how != "V" for j in sample.jobs])
    jobs = [j for j in sample.jobs if j.how != "V"]
    waits_s = plain.wait_s[counted], served.wait_s[counted]
    jcts_s = plain.jct_s[counted], served.jct_s[counted]
    later_s = jcts_s[1] - jcts_s[0]
    same_s = np.maximum(SAME_S, SAME_SHARE * jcts_s[0])

    def balance(group: str, rows: Sequence[int]) -> Balance:
        at = list(rows)
        helped = int((-later_s > same_s)[at].sum())
        hurt = int((later_s > same_s)[at].sum())
        return Balance(
            group=group,
            jobs=len(at),
            helped=helped,
            hurt=hurt,
            same=len(at) - helped - hurt,
            plain_wait_s=_mean(waits_s[0][at]),
            policy_wait_s=_mean(waits_s[1][at]),
            plain_jct_s=_mean(jcts_s[0][at]),
            policy_jct_s=_mean(jcts_s[1][at]),
            worst_s=float(later_s[at].max()) if hurt else 0.0,
        )

    real_s = np.array([j.start_s - j.submit_s for j in jobs])
    came = real_s >= 0
    return Simulated(
        total=balance("all", range(len(jobs))),
        by=by_group([(j.uid, j.account, j.gpus) for j in jobs], balance, name_of),
        real_wait_s=_mean(real_s[came]),
        model_wait_s=_mean(waits_s[0][came]),
        preemptions=int(served.preemptions.sum()),
        lost_gpu_h=max(0.0, float((served.all_lost_gpu_s - plain.all_lost_gpu_s).sum())) / HOUR_S,
        open_ended=len(sample.jobs) - len(jobs),
        never_ran=never_ran,
        unfit=sample.unfit,
        jobs_taken=len(sample.jobs),
        jobs_in_all=len(everything.jobs),
        gpus=sample.shape.gpus,
        gpus_in_all=everything.shape.gpus,
    )


def _mean(values: F64) -> float:
    return float(values.mean()) if len(values) else math.nan


def sampled(everything: Sample, most: int) -> Sample:
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
    n, whole_gpus = len(everything.jobs), everything.shape.gpus
    if n <= most:
        return everything
    fit = _on_share(everything, most)
    gpus = fit.shape.gpus
    jobs = max(1, round(n * gpus / whole_gpus))
    if jobs > _MOST_TOO_MANY * most:
        msg = (
            f"there are {n:,} jobs, and a sample of {most:,} needs a part of the nodes that is "
            f"smaller than one; take --simulate {math.ceil(jobs / 1000) * 1000}"
        )
        raise SlurmDlError(msg)
    left_out = _left_out(everything, fit)
    if left_out > _MOST_LEFT_OUT:
        # What fits fewer nodes fits more.
        larger = range(most + 1, n)
        enough = bisect_left(
            larger, -_MOST_LEFT_OUT, key=lambda m: -_left_out(everything, _on_share(everything, m))
        )
        msg = (
            f"{left_out:.0%} of the GPU time is of jobs that are too large for a sample of "
            f"{most:,} of {n:,} jobs on {gpus:,.0f} of {whole_gpus:,.0f} GPUs; "
            f"take --simulate {most + 1 + enough}"
        )
        raise SlurmDlError(msg)
    ran_before = np.array([j.start_s < j.submit_s for j in fit.jobs])
    count = min(len(fit.jobs), max(1, round(len(fit.jobs) * gpus / whole_gpus)))
    rows = _one_of_each(np.lexsort((fit.gpu_s, ran_before)), fit.gpu_s, count)
    return dataclasses.replace(fit, jobs=tuple(fit.jobs[i] for i in sorted(rows)))


def _on_share(everything: Sample, jobs: int) -> Sample:
    """What fits the share of the nodes that *jobs* of the jobs get, of each group one at least."""
    share = jobs / len(everything.jobs)
    groups = (
        dataclasses.replace(g, nodes=max(1, round(g.nodes * share)))
        for g in everything.shape.groups
    )
    return everything.on(ClusterShape(tuple(groups)))


def _left_out(everything: Sample, fit: Sample) -> float:
    """The share of the GPU time of *everything* that is not of *fit*, 0 to 1."""
    return 1 - float(fit.gpu_s.sum() / everything.gpu_s.sum())


def _one_of_each(order: npt.NDArray[np.int64], gpu_s: F64, count: int) -> list[int]:
    """A row of each of *count* stretches of *order*, whose sum is near *count* means."""
    rows, owed_s = [], 0.0
    for stretch in np.array_split(order, count):
        owed_s += float(gpu_s[stretch].mean())
        row = int(stretch[np.abs(gpu_s[stretch] - owed_s).argmin()])
        owed_s -= float(gpu_s[row])
        rows.append(row)
    return rows
