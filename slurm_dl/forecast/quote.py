"""The verdict on the deadline of a job that nobody has submitted: what the next look would say.

Nothing is booked: two quotes may be given for one place, and the first look decides.
"""

from __future__ import annotations

from dataclasses import replace

from slurm_dl.engine.decide import admit, want
from slurm_dl.engine.preemption.commitment import with_commitment
from slurm_dl.engine.promise_terms import counted_deadlines, promises
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.waiting_sizes import at_shapes, moved_rows
from slurm_dl.estimates.remaining_time import left_of
from slurm_dl.estimates.similar_jobs import expected_s
from slurm_dl.model.ids import JobId
from slurm_dl.model.promise import Promise, promises_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.simulation.forward.initial_state import HypotheticalJob, submitted


def quoted(
    snap: Snapshot, policy: Policy, settings: Settings, job: HypotheticalJob
) -> Promise | None:
    """The promise of *policy* to *job* if it were submitted now; None if it promises nothing.

    A deadline that the site does not count is a no with the reason.

    Args:
        job: It has a deadline.
    """
    if not promises(policy):
        return None
    snap = _limited_like(submitted(snap, [job]))
    job_id = JobId(int(snap.jobs.job_id[-1]))
    left = left_of(snap, expected_s(snap))
    counted = counted_deadlines(snap, settings.deadlines, shared=False)
    snap = replace(snap, left_s=left.seconds, left_from=left.origin)
    snap = with_commitment(snap, policy, settings.preemption)
    snap = at_shapes(snap, moved_rows(snap))
    if why := counted.refused.get(job_id):
        return Promise(
            says="no",
            due_s=int(job.due_s),
            at_s=int(snap.now_s),
            gpus=float(job.gpus),
            needs_s=0,
            rests_on="limit",
            why=f"its deadline does not count: {why}",
        )
    book = want(snap, policy, admit(snap, policy, settings)).policy_order.book
    return promises_in(book).get(job_id)


def _limited_like(snap: Snapshot) -> Snapshot:
    """*snap*, whose last job counts in the limits of another of its user, account and QOS."""
    quotas, texts, last = snap.seen.quotas, snap.seen.texts, len(snap.jobs) - 1
    if quotas is None:
        return snap
    ids, uid, gpus = (c.tolist() for c in (snap.jobs.job_id, snap.jobs.uid, snap.jobs.gpus))
    mine = texts[ids[last]]
    for row in range(last):
        text = texts.get(ids[row])
        if text is None or uid[row] != uid[last] or ids[row] not in quotas.counts:
            continue
        if (text.account, text.qos) == (mine.account, mine.qos) and gpus[row]:
            counts = tuple(
                (q, gpus[last] if units == gpus[row] else units)
                for q, units in quotas.counts[ids[row]]
            )
            more = replace(quotas, counts={**quotas.counts, ids[last]: counts})
            return replace(snap, seen=replace(snap.seen, quotas=more))
    return snap
