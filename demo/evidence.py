"""From what Slurm, the ledger and the trainings' logs say to one record for each job, and doubts.

The records are what the comparison is computed from. A problem is anything that would make the
comparison, or the claim that no work was lost, untrue; one is enough for the demo to fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.arm import Watched
from demo.logs import Between, TrainingLog, read_log
from demo.site import SlurmJob
from demo.workload import Training, Workload
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.model.completed_jobs import JobRecord
from slurm_dl.model.ids import JobId

CLOCK_S = 2.0
"""Slurm keeps whole seconds, so two of its times may differ from ours by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """One preemption as it is billed: a run that was stopped, and the next one that goes on.

    Attributes:
        gpus: GPUs of the job.
        stopping_s: From the signal to the end of the run; 0 if it was not signalled.
        restoring_s: From the start of the next run until the training was where the checkpoint is.
        redone_s: Work of the stopped run that the next one had to do again.
    """

    gpus: float
    stopping_s: float
    restoring_s: float
    redone_s: float

    @property
    def lost_gpu_s(self) -> float:
        """GPU-seconds it cost. Time that a training used between signal and checkpoint counts."""
        parts = (self.stopping_s, self.restoring_s, self.redone_s)
        return self.gpus * sum(max(0.0, part) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One run of a job, epoch seconds."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A job's times over all its runs."""

    submit_s: float
    runs: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One job, with everything that is known of it.

    Attributes:
        between: How it stood before each later run, by restart count.
        signals: When dlschedd signalled it, epoch seconds.
    """

    training: Training
    slurm: SlurmJob
    life: Life
    log: TrainingLog
    between: Mapping[int, Between]
    signals: Sequence[float]

    @property
    def runs(self) -> tuple[Span, ...]:
        """All its runs; the last one in Slurm's own words, as in the other arm."""
        return (
            *self.life.runs[:-1],
            Span(start_s=self.slurm.start_s, end_s=self.slurm.end_s),
        )


def lives_by_slurm(watched: Watched) -> dict[int, Life]:
    """Times of jobs that had one run each, from Slurm's records."""
    return {
        job.job_id: Life(submit_s=job.submit_s, runs=(Span(start_s=job.start_s, end_s=job.end_s),))
        for job in watched.slurm.values()
    }


def lives_by_ledger(ledger: Path, job_ids: Sequence[int]) -> dict[int, Life]:
    """Times of jobs from the ledger, as a requeue makes Slurm forget submit, start and end."""
    store = SqliteStore(ledger)
    try:
        service = store.load().service
        submit_s = dict(zip(service.job_id.tolist(), service.first_submit_s.tolist(), strict=True))
        return {
            job_id: Life(
                submit_s=submit_s[job_id],
                runs=tuple(
                    Span(start_s=run.start_s, end_s=run.end_s)
                    for run in store.runs_of(JobId(job_id))
                ),
            )
            for job_id in job_ids
            if job_id in submit_s
        }
    finally:
        store.close()


def gather(
    workload: Workload, watched: Watched, lives: Mapping[int, Life], runs: Path
) -> tuple[list[Evidence], list[str]]:
    """Everything known of each job, and the jobs of which too little is known.

    Args:
        runs: Directory of the arm's run directories.
    """
    found: list[Evidence] = []
    problems = [watched.unfinished] if watched.unfinished else []
    for training in workload.jobs:
        job_id = watched.submitted.get(training.name)
        if job_id is None:
            problems.append(f"{training.name} was not submitted")
            continue
        slurm, life = watched.slurm.get(job_id), lives.get(job_id)
        if slurm is None or life is None or not life.runs:
            problems.append(f"{training.name} (job {job_id}): no record of it is left")
            continue
        try:
            log = read_log(runs / str(job_id))
        except (ValueError, KeyError) as err:
            problems.append(f"{training.name} (job {job_id}): its log cannot be read: {err}")
            continue
        found.append(
            Evidence(
                training=training,
                slurm=slurm,
                life=life,
                log=log,
                between={r: b for (j, r), b in watched.between.items() if j == job_id},
                signals=watched.signals.get(job_id, []),
            )
        )
    return found, problems


def problems_of(job: Evidence) -> Iterator[str]:
    """What is wrong with one job; nothing if every step was done once, in order, to the end."""
    name = f"{job.training.name} (job {job.slurm.job_id})"
    if job.slurm.state != "CD":
        yield f"{name} ended in state {job.slurm.state}"
    steps = [step for step, _ in job.log.losses]
    if steps != list(range(1, job.training.steps + 1)):
        yield f"{name}: its log does not have each of its {job.training.steps} steps once in order"
    restarts = list(range(job.slurm.restarts + 1))
    if [run.restart for run in job.log.runs] != restarts:
        begun = [run.restart for run in job.log.runs]
        yield f"{name}: Slurm restarted it {restarts[-1]} times, its log has the runs {begun}"
        return
    if len(job.life.runs) != len(restarts):
        yield f"{name}: {len(restarts)} runs by Slurm, {len(job.life.runs)} in the ledger"
    last = job.life.runs[-1]
    if abs(last.start_s - job.slurm.start_s) + abs(last.end_s - job.slurm.end_s) > CLOCK_S:
        yield f"{name}: Slurm and the ledger differ about when its last run was"
    for run in job.log.runs:
        yield from (f"{name}: {doubt}" for doubt in _doubts(run.restart, run.from_step, job))


def _doubts(restart: int, from_step: int, job: Evidence) -> Iterator[str]:
    """Why run *restart* did not go on from where the last checkpoint was."""
    if restart == 0:
        if from_step != 0:
            yield f"its first run began at step {from_step}"
        return
    before = job.between.get(restart)
    if before is None:
        yield f"how it stood before run {restart} was not seen"
    elif from_step != before.saved_step:
        yield f"run {restart} began at step {from_step}, its checkpoint was at {before.saved_step}"
    elif from_step == 0:
        yield f"run {restart} began anew, there was no checkpoint"


def same_training(plain: Sequence[Evidence], ours: Sequence[Evidence]) -> Iterator[str]:
    """Jobs whose losses are not the same, step by step, as in the other arm."""
    losses = {job.training.name: job.log.losses for job in plain}
    for job in ours:
        name = job.training.name
        if name in losses and losses[name] != job.log.losses:
            yield f"{name}: the resumed training has other losses than the uninterrupted one"


def record_of(job: Evidence) -> JobRecord:
    """The job's life as reports read it."""
    runs = job.runs
    gpus = float(job.training.gpus)
    return JobRecord(
        job_id=JobId(job.slurm.job_id),
        user="root",
        gpus=gpus,
        submit_s=job.life.submit_s,
        start_s=runs[0].start_s,
        end_s=runs[-1].end_s,
        service_gpu_s=sum(gpus * (run.end_s - run.start_s) for run in runs),
        lost_gpu_s=sum(stop.lost_gpu_s for stop in interruptions_of(job)),
        preemptions=len(runs) - 1,
        completed=job.slurm.state == "CD",
    )


def interruptions_of(job: Evidence) -> Iterator[Interruption]:
    """Each preemption of the job, as it is billed."""
    logged = {run.restart: run for run in job.log.runs}
    for restart, (stopped, resumed) in enumerate(itertools.pairwise(job.runs), start=1):
        asked = [s for s in job.signals if stopped.start_s <= s <= stopped.end_s + CLOCK_S]
        begun, before = logged.get(restart), job.between.get(restart)
        redone = before.reached_step - begun.from_step if begun and before else 0
        yield Interruption(
            gpus=float(job.training.gpus),
            stopping_s=stopped.end_s - asked[0] if asked else 0.0,
            restoring_s=begun.at_s - resumed.start_s if begun else 0.0,
            redone_s=redone * job.training.step_s,
        )
