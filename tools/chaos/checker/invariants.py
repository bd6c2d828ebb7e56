"""What must hold after a campaign: one pure function for each invariant.

Each looks at the evidence alone and tells what it looked at, what is wrong, and what it had to let
pass because Slurm's own records cannot tell. What is let pass is counted, so that a campaign in
which nothing could be proven does not look like a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, pairwise
from typing import Final

from tools.chaos.checker import explained
from tools.chaos.checker.explained import BY_ITSELF, WHOLE_S
from tools.chaos.checker.findings import Finding
from tools.chaos.checker.records import Evidence, Job, Life, Mark, Run, gpus_of, jobs_of

SIGNAL_WAY_S: Final = 1.0
"""A signal goes from slurmctld to slurmd to the job; the job writes down when it came."""

TOLD_S: Final = 5.0
"""Slurm knows within this time that a program has ended, and has it on disk."""

DECIDES_S: Final = 10.0
"""From the end of a grace to the requeue: some polls."""

SERVICE_FRAC: Final = 0.01
"""Attained service may be off by this part of the truth."""

AROUND_S: Final = 3.0
"""A run is longer than its program by this at most: the node's way in and out."""

_ASKS: Final = frozenset({"USR1", "USR2", "INT", "HUP"})
"""Signals that Slurm sends to nobody by itself here."""


def lost(evidence: Evidence) -> Finding:
    """Every job came to the end that it should come to, by accounting and by its own words."""
    found = Finding("lost", "no job lost", "jobs")
    for job in jobs_of(evidence):
        found.checked += 1
        last = job.runs[-1] if job.runs else None
        if job.left is not None:
            if not job.left.held:
                what = f"still {job.left.state} at the end ({job.left.reason})"
                found.say(job.label, what, evidence.at_s, "squeue")
        elif last is None:
            what = "accounting has no record of it, and the queue does not list it"
            found.say(job.label, what, job.submission.at_s, "sacct")
        elif not last.is_over:
            what = f"accounting says {last.state}, and the queue does not list it"
            found.say(job.label, what, last.start_s, "sacct, squeue")
        elif last.is_requeued:
            found.say(job.label, f"{last.state} and never put back", last.end_s, "sacct")
        else:
            _judge_end(job, last, evidence, found)
    return found


def _judge_end(job: Job, last: Run, evidence: Evidence, found: Finding) -> None:
    expects = job.submission.expects
    if last.state == "CANCELLED":
        if expects != "cancelled" and not job.did("cancel"):
            what = "cancelled, and its user did not"
            found.say(job.label, what, last.end_s, "sacct, events.jsonl")
        return
    if expects in ("any", "cancelled") or job.did("cancel"):
        return
    if expects == "failed":
        if last.state != "FAILED":
            what = f"ended {last.state}, and its program was to fail"
            found.say(job.label, what, last.end_s, "sacct")
        return
    if last.state != "COMPLETED":
        if explained.node_was_lost(last, evidence) or _fell_with_its_half(job, evidence):
            found.let_pass["ended by a fault on its node"] += 1
            return
        found.say(job.label, f"ended {last.state}, not COMPLETED", last.end_s, "sacct")
    elif job.speaks and not any(explained.completed(life) for life in job.lives_in(last)):
        what = "COMPLETED, and its program did not come to its end"
        found.say(job.label, what, last.end_s, "sacct, the job's output")


def _fell_with_its_half(job: Job, evidence: Evidence) -> bool:
    """Whether another component of a het job was on a node that was lost: Slurm ends them all."""
    halves = frozenset(job.submission.labels) if job.submission.het else frozenset()
    return any(
        run.label in halves and run.state == "NODE_FAIL" and explained.node_was_lost(run, evidence)
        for run in evidence.runs
    )


def twice(evidence: Evidence) -> Finding:
    """No two runs of a job overlap, by accounting and by what its processes wrote."""
    found = Finding("twice", "none run twice at once", "runs")
    for job in jobs_of(evidence):
        found.checked += max(len(job.started), len(job.lives))
        for before, after in pairwise(job.started):
            if before.end_s > after.start_s:
                what = f"a run began {before.end_s - after.start_s:.0f} s before the last was over"
                found.say(job.label, what, after.start_s, "sacct")
            elif not before.is_over:
                found.let_pass["accounting never learnt the end of an earlier run"] += 1
        for one, other in combinations(job.lives, 2):
            if other.first_s > one.last_s:
                continue
            run = job.run_of(one)
            if (
                run is not None
                and run.state == "NODE_FAIL"
                and explained.node_was_lost(run, evidence)
            ):
                found.let_pass["Slurm had lost the node on which the first one went on"] += 1
                continue
            forgot = explained.controller_broke(evidence, one.first_s, other.first_s)
            if one.restart == other.restart and forgot:
                found.let_pass["slurmctld had forgotten that it started the first one"] += 1
                continue
            what = (
                f"processes {one.pid} on {one.node} (restart {one.restart}) and {other.pid} on "
                f"{other.node} (restart {other.restart}) at once for "
                f"{min(one.last_s, other.last_s) - other.first_s:.1f} s"
            )
            found.say(job.label, what, other.first_s, "the job's output")
    return found


def completed(evidence: Evidence) -> Finding:
    """Nothing runs again, or is put back, after it has completed."""
    found = Finding("completed", "none requeued after completion", "completed runs")
    found.due = any(s.expects == "completed" for s in evidence.submissions)
    for job in jobs_of(evidence):
        told = set()
        for life in job.lives:
            end = life.first("end")
            if end is None or not explained.completed(life):
                continue
            found.checked += 1
            again = _back_after(job, life, end, evidence, found)
            if again:
                told.add(job.run_of(life))
                found.say(job.label, again, end.at_s, "the job's output, sacct")
        for run, after in pairwise(job.runs):
            if (
                run.state == "COMPLETED"
                and run not in told
                and not explained.by_user(job, after.submit_s)
            ):
                what = f"a record {after.state} follows the one that COMPLETED"
                found.say(job.label, what, after.submit_s, "sacct")
    return found


def _back_after(job: Job, life: Life, end: Mark, evidence: Evidence, found: Finding) -> str:
    """How a job came back after *life* had ended well; empty if it did not, or may have."""
    run = job.run_of(life)
    later = next((x for x in job.lives if x.first_s > end.at_s), None)
    put_back = run is not None and run.is_requeued
    if later is None and not put_back:
        return ""
    # Of a run that only its outputs know, the time at which it came back is all there is.
    back_s = run.end_s if run is not None and put_back else later.first_s if later else 0.0
    if life.first(BY_ITSELF) or explained.by_user(job, back_s):
        return ""
    if put_back and back_s <= end.at_s + WHOLE_S:
        found.let_pass["put back before Slurm could know of the end"] += 1
        return ""
    if explained.controller_broke(evidence, end.at_s, end.at_s + TOLD_S):
        found.let_pass["ended while Slurm could not be told"] += 1
        return ""
    if run is not None and explained.node_broke(run, evidence):
        found.let_pass["ended on a node that was away"] += 1
        return ""
    how = f"put back {back_s - end.at_s:.0f} s after" if put_back else "run again after"
    return f"{how} its program ended with status 0"


def signal(evidence: Evidence) -> Finding:
    """Nobody is put back who did not agree to it, or whose program did not get its signal."""
    found = Finding("signal", "none preempted without its declared signal", "runs")
    for job in jobs_of(evidence):
        for run in job.started:
            found.checked += 1
            who = explained.who_put_back(job, run, evidence)
            if who:
                found.let_pass[who] += 1
            if job.submission.terms is None or not job.submission.requeueable:
                _judge_unwilling(job, run, evidence, found)
                continue
            _judge_words(job, run, found)
            if who == "" and not explained.asked(job, run):
                _judge_untold(job, run, evidence, found)
    return found


def _judge_words(job: Job, run: Run, found: Finding) -> None:
    """Nobody sends a job another signal than that of its contract."""
    terms = job.submission.terms
    others = _ASKS - {terms.signal if terms is not None else ""}
    for life in job.lives_in(run):
        for mark in life.signals(*others):
            what = f"got {mark.signal}, and its contract names another signal"
            found.say(job.label, what, mark.at_s, "the job's output")


def _judge_untold(job: Job, run: Run, evidence: Evidence, found: Finding) -> None:
    terms = job.submission.terms
    if terms is None:
        return
    told_s = run.end_s - terms.grace_s - DECIDES_S
    if explained.node_broke(run, evidence, since_s=told_s):
        found.let_pass["a node was away: Slurm could not signal, or put it back"] += 1
    elif explained.controller_broke(evidence, told_s, run.end_s):
        found.let_pass["slurmctld was away: a signal may have been lost"] += 1
    else:
        what = f"{run.state} without {terms.signal}"
        found.say(job.label, what, run.end_s, "sacct, the job's output")


def _judge_unwilling(job: Job, run: Run, evidence: Evidence, found: Finding) -> None:
    no = "it declared no signal" if job.submission.terms is None else "it may not be requeued"
    marks = [m for life in job.lives_in(run) for m in life.signals(*_ASKS)]
    if explained.who_put_back(job, run, evidence) == "":
        if not marks and explained.node_broke(run, evidence, since_s=run.end_s):
            found.let_pass["a node was away: Slurm could not signal, or put it back"] += 1
        else:
            found.say(job.label, f"{run.state}, and {no}", run.end_s, "sacct")
    elif marks:
        what = f"got {marks[0].signal}, and {no}"
        found.say(job.label, what, marks[0].at_s, "the job's output")


def quantum(evidence: Evidence) -> Finding:
    """Nobody is told to go, or put back untold, before its run has had its quantum."""
    found = Finding("quantum", "none preempted inside its quantum", "runs told to go")
    found.due = _has_terms(evidence)
    least_s = evidence.min_quantum_s
    for job in jobs_of(evidence):
        for run in job.started:
            asked = explained.asked(job, run)
            if asked:
                at_s, by = asked[0].at_s, "the job's output, sacct"
                what = f"{asked[0].signal} {at_s - run.start_s:.1f} s after its run began"
            elif (
                job.submission.terms is not None
                and explained.who_put_back(job, run, evidence) == ""
                and not explained.node_broke(run, evidence, since_s=run.end_s)
            ):
                at_s, by = run.end_s, "sacct"
                what = f"{run.state} {at_s - run.start_s:.0f} s after its run began"
            else:
                continue
            if _gpus(job, job.lives_in(run), run.gpus)[1] > job.submission.least_gpus:
                # The quantum protects the least size alone.
                found.let_pass["it held more than its least size"] += 1
                continue
            found.checked += 1
            if at_s - run.start_s < least_s - WHOLE_S:
                found.say(job.label, f"{what}, the quantum is {least_s:g} s", at_s, by)
    return found


def grace(evidence: Evidence) -> Finding:
    """Nobody who was told to go is put back before its grace is over, but who said it is ready."""
    found = Finding("grace", "none stopped inside its grace", "runs put back after a signal")
    found.due = False
    for job in jobs_of(evidence):
        terms = job.submission.terms
        for run in job.started:
            asked = explained.asked(job, run)
            if terms is None or not asked or explained.who_put_back(job, run, evidence) != "":
                continue
            found.checked += 1
            if explained.said_ready(job, run, asked[0].at_s):
                found.let_pass["it said that it was ready"] += 1
                continue
            had_s = run.end_s - asked[0].at_s
            if had_s < terms.grace_s - WHOLE_S - SIGNAL_WAY_S:
                what = (
                    f"{run.state} {had_s:.1f} s after {terms.signal}, its grace is "
                    f"{terms.grace_s:g} s, and it said nothing"
                )
                found.say(job.label, what, run.end_s, "the job's output, sacct")
    return found


def held(evidence: Evidence) -> Finding:
    """Nobody is left held."""
    found = Finding("held", "none held", "jobs")
    for job in jobs_of(evidence):
        found.checked += 1
        left = job.left
        if left is None or not left.held:
            continue
        launch = "launch failed" in left.reason or left.reason == "JobHoldMaxRequeue"
        if launch and explained.any_node_broke(evidence):
            found.let_pass["held by Slurm, which could not launch it on a broken node"] += 1
            continue
        found.say(job.label, f"held at the end ({left.reason})", evidence.at_s, "squeue")
    return found


def service(evidence: Evidence) -> Finding:
    """The ledger's attained service is what accounting says the job had, within 1 %.

    A whole second for each run is allowed, if that is more. Where Slurm's records give two answers
    (a program that lived on after its run was ended, a record that was overwritten), anything
    between them is right. A run of which accounting has lost the record counts by what its program
    wrote, and one of which it has lost the GPUs by those that its program saw, or
    by any of its sizes if it saw none.
    """
    found = Finding("service", "attained service within 1 % of the truth", "jobs in the ledger")
    found.due = any(s.gpus for s in evidence.submissions)
    for job in jobs_of(evidence):
        if not job.submission.gpus or not job.started:
            continue
        booked = (evidence.ledger or {}).get(job.runs[0].job)
        if booked is None:
            found.let_pass["not in the ledger, or not any more"] += 1
            continue
        if any(not run.is_over for run in job.started):
            found.let_pass["accounting does not know the end of a run"] += 1
            continue
        low = high = slack = 0.0
        for run in job.started:
            least_s, most_s = _held_s(job, run)
            # A slurmctld that comes back may record a run without the GPUs that it has.
            few, many = _gpus(job, job.lives_in(run), run.gpus)
            low += few * least_s
            high += many * most_s
            slack += many * WHOLE_S
            if few < many:
                found.let_pass["nobody wrote down in which of its sizes it ran"] += 1
        for life in job.unrecorded:
            few, many = _gpus(job, (life,))
            low += few * (life.last_s - life.first_s)
            high += many * (life.last_s - life.first_s + AROUND_S)
            slack += many * WHOLE_S
        slack = max(slack, SERVICE_FRAC * high)
        if booked.incomplete and booked.attained_gpu_s < low:
            found.let_pass["the ledger itself calls it a lower bound"] += 1
            continue
        found.checked += 1
        if low - slack <= booked.attained_gpu_s <= high + slack:
            continue
        truth = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        what = f"the ledger says {booked.attained_gpu_s:g} GPU-seconds, accounting {truth}"
        found.say(job.label, what, job.started[-1].end_s, "ledger.sqlite, sacct")
    return found


def _gpus(job: Job, lives: Iterable[Life], told: float = 0.0) -> tuple[float, float]:
    """GPUs of a run at least and at most: as accounting *told*, as its program saw, or as named."""
    seen = [gpus_of(life.size) for life in lives if life.size]
    named = [gpus_of(size) for size in job.submission.sizes]
    known = [told] if told else seen or named or [job.submission.gpus]
    return min(known), max(known)


def _held_s(job: Job, run: Run) -> tuple[float, float]:
    """For how long at least, and at most, a run had its GPUs, seconds."""
    least_s = most_s = run.elapsed_s
    if run.is_requeued:
        # A record that was overwritten ends with the requeue: the program had ended before.
        ends = [m.at_s for life in job.lives_in(run) for m in life.marks if m.event == "end"]
        if ends:
            least_s = max(0.0, least_s - max(0.0, run.end_s - max(ends)))
    if run.is_requeued or run.state == "NODE_FAIL":
        given_back = [r.submit_s for r in job.runs if r.submit_s >= run.end_s]
        if given_back:
            most_s += min(given_back) - run.end_s
    return least_s, most_s


def reservations(evidence: Evidence) -> Finding:
    """No reservation of ours is left."""
    found = Finding("reservations", "every reservation of ours gone", "hand-overs")
    found.due = False
    found.checked = evidence.handovers
    for name, end_s in evidence.reservations.items():
        if end_s <= evidence.at_s:
            found.let_pass["lapsed, and Slurm still lists it"] += 1
        else:
            what = f"keeps nodes for {end_s - evidence.at_s:.0f} s more"
            found.say(name, what, evidence.at_s, "scontrol show reservation")
    return found


def sizes(evidence: Evidence) -> Finding:
    """A job runs in a size that its user named, and has the one asked for when it is let go."""
    found = Finding("sizes", "none in a size that nobody named", "runs")
    found.due = any(s.gpus for s in evidence.submissions)
    for job in jobs_of(evidence):
        named = job.submission.sizes
        seen = [(run.size, run.start_s, "sacct") for run in job.started]
        seen += [(life.size, life.first_s, "the job's output") for life in job.lives]
        for size, at_s, by in seen:
            found.checked += by == "sacct"
            if not size or size in named or (not named and gpus_of(size) == job.submission.gpus):
                continue
            what = f"ran in {size}, not in {', '.join(named) or job.submission.gpus}"
            found.say(job.label, what, at_s, by)
        for release in evidence.releases:
            left = release.sizes.get(job.label, "")
            if named and left not in ("", named[0]):
                what = f"waits in {left} after release-all, and asked for {named[0]}"
                found.say(job.label, what, release.at_s, "squeue")
    for release in evidence.releases:
        if release.error:
            found.say("release-all", release.error, release.at_s, "its status")
    return found


INVARIANTS: Final[tuple[Callable[[Evidence], Finding], ...]] = (
    lost,
    twice,
    completed,
    signal,
    quantum,
    grace,
    held,
    service,
    reservations,
    sizes,
)
"""All of them, in the order in which they are told."""


def _has_terms(evidence: Evidence) -> bool:
    return any(s.terms is not None and s.requeueable for s in evidence.submissions)
