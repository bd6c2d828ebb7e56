"""Retries of failed jobs by the class of their failure.

A failure of the infrastructure is retried while the job's budget lasts. A user error is retried
once; after the next one the job is requeued held, so that jobs which depend on it are kept. The
class is the user's word (`Claim.failed`): these bounds are all that it can gain, and no place in
the queue. After a failed node Slurm requeues a job by itself, which counts here against nothing.

Source: Jeon et al. (Philly), ATC 2019, sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from slurm_dl.engine.explain.past_reasons import span
from slurm_dl.model.booking import Entry, changes, entry, of_kind
from slurm_dl.model.breaker import NOT_OURS
from slurm_dl.model.contract import FINAL_STATUS
from slurm_dl.model.failure import ENDINGS, Retries
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import Book, Retry
from slurm_dl.model.snapshot import JobText, Snapshot

KIND = "failed"  # Of entries in the book, by job: what is remembered of its failed runs
RETRY_WITHIN_S = 600.0  # So long after its end a job is retried, seconds


class Failed(NamedTuple):
    """One failed run."""

    at_s: float  # When it ended, epoch seconds
    run: int  # Its restart count
    kind: str  # See `FailureClass`
    mark: str


class Verdict(NamedTuple):
    """The fate of a failed job, and why."""

    does: Literal["retry", "hold", "leave"]
    why: str


def verdict(past: tuple[Failed, ...], rules: Retries) -> Verdict:
    """The verdict on the failed runs *past*, of which the last is the present one."""
    last = past[-1]
    alike = [f for f in past if f.kind == last.kind]
    if last.kind == "infrastructure":
        count, most, within = len(alike), rules.infrastructure, span(rules.window_s)
        if count > most:
            left = f"the infrastructure failed; its {most} retries within {within} are used up"
            return Verdict("leave", f"{left}, so it is left as it ended")
        return Verdict("retry", f"the infrastructure failed; retry {count} of {most} in {within}")
    if len(alike) == 1:
        return Verdict("retry", "a user error; it is retried once, and held after the next one")
    same = "the same user error" if alike[-2].mark == last.mark else "a user error"
    told = f"{same} for the second time; it is held until it is mended and released"
    return Verdict("hold", f"{told} (scontrol release JOB)")


def retry_failed(snap: Snapshot, rules: Retries | None) -> Iterator[Book | Retry]:
    """Requeue failed jobs, or leave them; what is remembered is written down before.

    Args:
        rules: None: failed jobs are left as they ended.
    """
    if rules is None:
        return
    known, rows, seen = failed_runs(snap.booked), snap.jobs.rows, snap.seen
    gone = (j for j in known if j not in rows and not seen.may_list(j))
    wanted, retries = [entry(KIND, j, None) for j in gone], list[Retry]()
    for run, failed in _failures(snap):
        past = with_run(known.get(run.job_id, ()), failed, rules)
        wanted.append(entry(KIND, run.job_id, {"runs": [list(f) for f in past]}))
        does, why = verdict(past, rules)
        if does != "leave" and snap.now_s <= failed.at_s + RETRY_WITHIN_S:
            retries.append(Retry(run=run, hold=does == "hold", why=why))
    if entries := changes(snap.booked, wanted):
        yield Book(entries=entries, why="failed runs of jobs")
    yield from retries


def failed_runs(booked: Iterable[Entry]) -> dict[JobId, tuple[Failed, ...]]:
    """The failed runs that are remembered, by job, oldest first."""
    found = of_kind(booked, KIND).items()
    return {JobId(int(j)): tuple(Failed(*run) for run in body["runs"]) for j, body in found}  # type: ignore[misc, union-attr]


def with_run(past: tuple[Failed, ...], new: Failed, rules: Retries) -> tuple[Failed, ...]:
    """*past* and the failed run *new*, without what counts no more."""
    if any(f.run == new.run for f in past):
        return past
    # Held, it ran again: its owner has released it, and it begins anew.
    held = bool(past) and verdict(past, rules).does == "hold"
    errors = [f for f in past if f.kind == "user" and not held]
    others = [f for f in past if f.kind != "user" and new.at_s - f.at_s < rules.window_s]
    # Its owner can requeue it without end, and one more than are retried is enough to remember.
    return (*sorted((*errors, *others[-rules.infrastructure - 1 :])), new)


def _failures(snap: Snapshot) -> Iterator[tuple[Run, Failed]]:
    """Failed runs of jobs that may be requeued.

    Not of a job that was asked to stop: the hand-over requeues it.
    """
    seen, jobs = snap.seen, snap.jobs
    victims = {v.run.job_id for h in snap.handovers for v in h.victims}
    may = snap.managed_jobs & jobs.requeueable & (jobs.state == JobState.FAILED)
    for row in may.nonzero()[0].tolist():
        job_id, run = JobId(int(jobs.job_id[row])), int(jobs.restarts[row])
        claim, text = seen.claim(job_id), seen.texts.get(job_id, JobText(label=""))
        asked = claim.preempted_run == run or job_id in victims
        if claim.contract is None or asked or claim.final_run == run or job_id in seen.cut_short:
            continue
        kind, mark = ENDINGS.get(text.ending), text.ending
        told = seen.failed_with.get(job_id) not in (None, 0, FINAL_STATUS)
        if told and claim.failed is not None and claim.failed.run == run:
            kind, mark = claim.failed.kind, claim.failed.mark
        if kind:
            failed = Failed(float(jobs.end_s[row]), run, kind, mark)
            yield Run(job_id=job_id, start_s=float(jobs.start_s[row]), restarts=run), failed


def failure_reasons(
    snap: Snapshot, booked: Iterable[Entry], job_id: JobId, rules: Retries | None
) -> list[str]:
    """Sentences on a job's last failed run and what follows, and on runs that Slurm requeued."""
    if rules is None:
        return []
    past = failed_runs(booked).get(job_id, ())
    told = [f"Its run {f.run} failed ({f.mark}): {verdict(past, rules).why}." for f in past[-1:]]
    # Of runs before that one it is not remembered whether they were retried.
    after = past[-1].run if past else -1
    return told + [
        f"Its run {restart.restarts} was requeued by Slurm, as after the failure of a node, or by "
        "the job itself. That counts against no retries."
        for restart in snap.restarts
        if (restart.job_id, restart.handover_id) == (job_id, NOT_OURS) and restart.restarts > after
    ]
