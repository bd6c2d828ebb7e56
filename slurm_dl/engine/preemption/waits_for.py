"""Cause that keeps a pending job from starting whatever is free, in words.

Slurm's reasons are those of its `job_reason_codes` page; what they mean is told in its words.
"""

from __future__ import annotations

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held
from slurm_dl.model.snapshot import JobText, Snapshot

_WAITS_FOR = {
    Held.USER_OR_ADMIN: "it is held (scontrol release lets it go)",
    Held.DEPENDENCY: "it waits for another job (dependency)",
    Held.BEGIN_TIME: "it is not eligible yet (begin time, or the interval after a requeue)",
    Held.LIMIT: "it would pass a limit of its account, QOS or partition",
    Held.RESERVATION: "it waits for a reservation",
    Held.BY_HAND: "its priority was set by hand (Priority={priority}): slurm_dl leaves it alone",
    Held.UNAVAILABLE: "what it asks for is not available (constraints, nodes, licences)",
}

_BY_REASON = (
    ("DependencyNeverSatisfied", "the job that it depends on has ended otherwise: it never starts"),
    ("JobHeldUser", "it is held by its user (scontrol release lets it go)"),
    ("JobHeldAdmin", "it is held by an admin"),
    ("JobHoldMaxRequeue", "Slurm holds it: it was requeued too often"),
    ("Cleaning", "Slurm still cleans up after its last run"),
    ("JobArrayTaskLimit", "its array has as many tasks running as its own %N allows"),
    ("PartitionTimeLimit", "its time limit is above that of its partition"),
    ("PartitionNodeLimit", "it asks for a number of nodes that its partition does not allow"),
    ("PartitionDown", "its partition is down"),
    ("PartitionInactive", "its partition is inactive"),
    ("Assoc", "it would pass a limit of its account or user ({reason})"),
    ("MaxPoweredUpNodes", "as many nodes are powered up as the site allows"),
    ("QOSNotAllowed", "its account or partition does not allow its QOS"),
    ("QOS", "it would pass a limit of its QOS ({reason})"),
    ("Max", "it would pass a limit of its QOS or account ({reason})"),
    ("Licenses", "the licences that it asks for are in use"),
    ("BadConstraints", "no nodes have what it asks for (constraints)"),
    ("ReservationDeleted", "the reservation that it asks for is gone"),
)
"""By the first words of Slurm's reason, longer ones first."""


def waits_for(snap: Snapshot, row: int) -> str:
    """Why no GPUs are taken back for the pending job at *row*, whatever its rank."""
    jobs = snap.jobs
    text = snap.seen.texts.get(JobId(int(jobs.job_id[row])), JobText(label=""))
    cause, reason = Held(int(jobs.held[row])), text.reason.partition(",")[0].partition(" ")[0]
    words = _WAITS_FOR[cause]
    if cause is not Held.BY_HAND:
        words = next((w for first, w in _BY_REASON if reason.startswith(first)), words)
    return words.format(priority=int(jobs.priority[row]), reason=reason)
