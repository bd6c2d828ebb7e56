"""The recorded jobs once more, in the simulator: under plain Slurm, and under the policy.

Both run the same jobs on the same simulated cluster; under the policy dlschedd's own engine serves
them. What really happened is the measure of how far the simulated Slurm is to be believed. If all
jobs take too long, a sample of them is simulated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.config import Config
from slurm_dl.config.engine_settings import profiles_of, settings_of, with_sure_saves
from slurm_dl.engine.settings import Settings
from slurm_dl.ledger.store_protocol import ShadowJob
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.errors import ConfigError, SlurmDlError
from slurm_dl.model.jobs import F64
from slurm_dl.model.trace import Trace
from slurm_dl.policies.base import Policy
from slurm_dl.shadow.report_data import HOUR_S, Balance, Names, Period, Simulated, by_group
from slurm_dl.simulation.cluster_shape import ClusterShape, NodeGroup
from slurm_dl.simulation.slurm.job_columns import JobBehaviour, shapes
from slurm_dl.simulation.slurm.scenario import OnStep, Scenario, simulate_plain, simulate_slurm

SAME_S: Final = 60.0
SAME_SHARE: Final = 0.05
"""A job is neither helped nor hurt if its completion time differs by less than either."""

LEAST_JOBS: Final = 200  # A smaller sample says nothing
_CHECKPOINT_EVERY_S: Final = 3600.0
_LEAST_S: Final = 1.0
_FIRST_PART: Final = 0.6  # Of the time the first try gets so much; a sample gets the rest
_SAFETY: Final = 0.5
_MOST_TOO_MANY: Final = 1.5
_MOST_LEFT_OUT: Final = 0.1
"""Of the GPU time; with less of the load than that, nothing it says would be so."""

Steps = Callable[[int, str], OnStep]
"""Makes of a run's number, 0 or 1, and of its name what is told its steps."""


class _LateError(Exception):
    """The time is over; its argument is the share of both runs that is done."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Jobs that are simulated together, all or some, and the cluster for them."""

    jobs: tuple[ShadowJob, ...]  # As `all_of` has them
    shape: ClusterShape
    begin_s: float  # Of the period, epoch seconds
    never_ran: int  # As in `MinuteTotals`
    unfit: int = 0  # Jobs that were left out: they fit no equal shares of the nodes

    @property
    def gpu_s(self) -> F64:
        """``(n,)`` GPU-seconds of each job."""
        return np.array([j.gpus * j.ran_s for j in self.jobs])

    def on(self, shape: ClusterShape) -> Sample:
        """Those of the jobs that fit equal shares of the nodes of *shape*, on it."""
        node_gpus, fits = shape.nodes().gpus, set[float]()
        for gpus in {j.gpus for j in self.jobs}:
            with contextlib.suppress(ValueError):
                shapes(np.array([gpus]), node_gpus)
                fits.add(gpus)
        fit = tuple(j for j in self.jobs if j.gpus in fits)
        unfit = self.unfit + len(self.jobs) - len(fit)
        return dataclasses.replace(self, jobs=fit, shape=shape, unfit=unfit)


def simulated(
    period: Period,
    config: Config,
    *,
    most_jobs: int,
    within_s: float,
    name_of: Names,
    say: Callable[[str], None],
) -> Simulated:
    """The simulator's answer for *period*.

    Args:
        most_jobs: Of more than so many jobs a sample is taken.
        within_s: After a part of this a sample is taken, and after all of it there is nothing.
        say: Told how far it is, a line at a time.

    Raises:
        SlurmDlError: There is nothing to say; says why.
    """
    whole = all_of(period)
    n = len(whole.jobs)
    if all(j.how not in {"C", "F"} for j in whole.jobs):
        msg = "no job has ended in that time"
        raise SlurmDlError(msg)
    settings = with_sure_saves(settings_of(config, profiles_of(config)))
    began_s, most = monotonic(), min(most_jobs, n)
    for part in (_FIRST_PART, 1.0):
        try:
            sample = sampled(whole, most)
        except SlurmDlError as err:
            # In the second try more jobs alone would take too long again.
            more = " and allow more time with --within" if part == 1 else ""
            msg = f"{err}{more}"
            raise SlurmDlError(msg) from None
        taken, gpus = len(sample.jobs), sample.shape.gpus
        what = "" if sample is whole else f" of {n:,} jobs on {gpus:,} of {whole.shape.gpus:,} GPUs"
        steps = _steps(f"{taken:,}{what or ' jobs'}", taken, say, began_s + part * within_s)
        try:
            runs = both(sample, config.policy.make(), settings, steps)
        except _LateError as late:
            (share,) = late.args
            most = max(LEAST_JOBS, int(_SAFETY * share * taken))
            say(f"  that takes too long: {share:.0%} of it is done")
        else:
            return compared(sample, whole, *runs, name_of)
    msg = f"it was not done within {within_s / 60:,.0f} min; allow more with --within"
    raise SlurmDlError(msg)


def _steps(what: str, jobs: int, say: Callable[[str], None], until_s: float) -> Steps:
    """Say a line for each tenth of a run, and end it when the time is over."""

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
            if monotonic() >= until_s:
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
    begin_s, end_s = period.begin_s, period.end_s
    groups = [
        NodeGroup(nodes=nodes, gpus=gpus, gpu_type=kind or "gpu")
        for nodes, gpus, kind in period.last.shape
        if nodes > 0 and gpus > 0
    ]
    if not groups:
        msg = "no node with GPUs was up"
        raise SlurmDlError(msg)
    ended = [j for j in period.ended if j.end_s > begin_s and j.submit_s < end_s]
    known = {j.job_id for j in ended}
    others = [j for j in period.unfinished if j.job_id not in known and j.submit_s < end_s]
    jobs = []
    for job in (*ended, *others):
        submit_s, ran_s = max(job.submit_s, begin_s), min(job.ran_s, job.end_s - begin_s)
        jobs.append(dataclasses.replace(job, submit_s=submit_s, ran_s=max(ran_s, _LEAST_S)))
    # What ran at the beginning comes first, and so starts first.
    jobs.sort(key=lambda j: (j.submit_s, j.start_s >= j.submit_s, j.job_id))
    shape = ClusterShape(tuple(groups))
    return Sample(tuple(jobs), shape, begin_s, period.last.never_ran).on(shape)


def both(
    sample: Sample, policy: Policy, settings: Settings, steps: Steps
) -> tuple[Records, Records]:
    """What becomes of the jobs under plain Slurm, and under the policy.

    Args:
        settings: The engine's limits as configured; placement and breakers are left out.

    Raises:
        ConfigError: The policy cannot run there, or never served some of the jobs.
    """
    jobs, begin_s = sample.jobs, sample.begin_s
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
    opted_in = sum(j.opted_in for j in jobs) / len(jobs)
    habits = JobBehaviour(opted_in_frac=opted_in, checkpoint_every_s=_CHECKPOINT_EVERY_S)
    scenario = Scenario(trace=trace, shape=sample.shape, habits=habits, epoch_s=begin_s)
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
    sample: Sample, whole: Sample, plain: Records, served: Records, name_of: Names
) -> Simulated:
    """The jobs with a known end, by user, account and size.

    Args:
        whole: The jobs and the cluster that *sample* is of.
        plain, served: The fate of *sample* under plain Slurm, and under the policy.
    """
    counted = np.array([j.how in {"C", "F"} for j in sample.jobs])
    jobs = list(itertools.compress(sample.jobs, counted))
    columns = (plain.wait_s, served.wait_s, plain.jct_s, served.jct_s)
    plain_wait_s, _, plain_jct_s, policy_jct_s = times_s = np.stack(columns)[:, counted]
    later_s = policy_jct_s - plain_jct_s
    same_s = np.maximum(SAME_S, SAME_SHARE * plain_jct_s)

    def balance(group: str, rows: Sequence[int]) -> Balance:
        at, n = list(rows), len(rows)
        helped = int((-later_s > same_s)[at].sum())
        hurt = int((later_s > same_s)[at].sum())
        worst_s = float(later_s[at].max()) if hurt else 0.0
        seconds = [*(_mean(column[at]) for column in times_s), worst_s]
        return Balance(group, n, helped, hurt, n - helped - hurt, *seconds)

    real_s = np.array([j.start_s - j.submit_s for j in jobs])
    came = real_s >= 0
    lost_gpu_s = float((served.all_lost_gpu_s - plain.all_lost_gpu_s).sum())
    return Simulated(
        total=balance("all", range(len(jobs))),
        by=by_group([(j.uid, j.account, j.gpus) for j in jobs], balance, name_of),
        real_wait_s=_mean(real_s[came]),
        model_wait_s=_mean(plain_wait_s[came]),
        preemptions=int(served.preemptions.sum()),
        lost_gpu_h=max(0.0, lost_gpu_s) / HOUR_S,
        open_ended=len(sample.jobs) - len(jobs),
        never_ran=sample.never_ran,
        unfit=sample.unfit,
        jobs_taken=len(sample.jobs),
        jobs_in_all=len(whole.jobs),
        gpus=sample.shape.gpus,
        gpus_in_all=whole.shape.gpus,
    )


def _mean(values: F64) -> float:
    return float(values.mean()) if len(values) else math.nan


def sampled(whole: Sample, most: int) -> Sample:
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
    n, gpus = len(whole.jobs), whole.shape.gpus
    if n <= most:
        return whole
    fit = _on_share(whole, most)
    jobs = max(1, round(n * fit.shape.gpus / gpus))
    if jobs > _MOST_TOO_MANY * most:
        msg = (
            f"there are {n:,} jobs, and a sample of {most:,} needs a part of the nodes that is "
            f"smaller than one; take --simulate {math.ceil(jobs / 1000) * 1000}"
        )
        raise SlurmDlError(msg)

    def left_out(fit: Sample) -> float:
        return 1 - float(fit.gpu_s.sum() / whole.gpu_s.sum())

    if left_out(fit) > _MOST_LEFT_OUT:
        # What fits fewer nodes fits more, so the fewest jobs that would do are found by halving.
        more = range(most + 1, n)
        enough = bisect_left(more, -_MOST_LEFT_OUT, key=lambda m: -left_out(_on_share(whole, m)))
        msg = (
            f"{left_out(fit):.0%} of the GPU time is of jobs that are too large for a sample of "
            f"{most:,} of {n:,} jobs on {fit.shape.gpus:,} of {gpus:,} GPUs; "
            f"take --simulate {most + 1 + enough}"
        )
        raise SlurmDlError(msg)
    ran_before = np.array([j.start_s < j.submit_s for j in fit.jobs])
    count = max(1, round(len(fit.jobs) * fit.shape.gpus / gpus))
    rows = _one_of_each(np.lexsort((fit.gpu_s, ran_before)), fit.gpu_s, count)
    return dataclasses.replace(fit, jobs=tuple(fit.jobs[i] for i in sorted(rows)))


def _on_share(whole: Sample, jobs: int) -> Sample:
    """What fits the share of the nodes that *jobs* of the jobs get, of each group one at least."""
    share = jobs / len(whole.jobs)
    groups = [
        dataclasses.replace(group, nodes=max(1, round(group.nodes * share)))
        for group in whole.shape.groups
    ]
    return whole.on(ClusterShape(tuple(groups)))


def _one_of_each(order: npt.NDArray[np.int64], gpu_s: F64, count: int) -> list[int]:
    """A row of each of *count* stretches of *order*, whose sum is near *count* means."""
    rows, owed_s = [], 0.0
    for stretch in np.array_split(order, count):
        owed_s += float(gpu_s[stretch].mean())
        row = int(stretch[np.abs(gpu_s[stretch] - owed_s).argmin()])
        owed_s -= float(gpu_s[row])
        rows.append(row)
    return rows
