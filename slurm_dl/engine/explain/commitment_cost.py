"""Cost of GPU time that nobody can take back: what a waiting job counts for it, and its place.

The same job with a contract stands beside it, so its owner sees what the choice costs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from slurm_dl.engine.intent import places, rank_jobs
from slurm_dl.engine.preemption.broken_contracts import broke_contracts
from slurm_dl.engine.preemption.commitment import with_commitment
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.ids import JobId
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentCost:
    """GPU time that one waiting job counts in advance."""

    gpu_s: float  # GPU-seconds of its next run that nobody can take back
    place: int  # Its place in the policy's order, from 1
    place_without: int  # Its place if it counted none


def commitment_cost(
    snap: Snapshot, policy: Policy, settings: Settings, row: int
) -> CommitmentCost | None:
    """Cost for the waiting job at *row*; None if it counts none, or the policy goes by other."""
    counted = with_commitment(snap, policy, settings.preemption)
    if counted.committed_s is None or not counted.kept()[row] > 0:
        return None
    none = counted.committed_s.copy()
    none[row] = 0.0
    orders = []
    for asked in (counted, dataclasses.replace(counted, committed_s=none)):
        order = policy.order(asked)
        ranks = places(rank_jobs(asked, order, policy.preempts), len(snap.jobs))
        orders.append((order, int(ranks[row]) + 1))
    (one, place), (other, place_without) = orders
    if (one.tier[row], one.key[row]) == (other.tier[row], other.key[row]):
        return None
    return CommitmentCost(
        gpu_s=float(counted.kept()[row]), place=place, place_without=place_without
    )


def commitment_text(snap: Snapshot, cost: CommitmentCost, row: int, limits: Preemption) -> str:
    """*cost* as a sentence for ``dlqueue why``, with what would spare it."""
    claim = snap.seen.claim(JobId(int(snap.jobs.job_id[row])))
    if not snap.jobs.requeueable[row]:
        remedy = "If Slurm could requeue it (--requeue), and with a contract,"
    elif int(snap.jobs.uid[row]) in broke_contracts(snap, limits):
        remedy = "If its user had not forbidden the requeue of a job with a contract,"
    elif claim.contract is None:
        remedy = "With a contract"
    elif claim.contract.grace_s > limits.max_grace_s:
        remedy = "With a grace that the site accepts"
    else:
        remedy = "Without `until`"
    place = ""
    if cost.place != cost.place_without:
        place = f": place {cost.place_without} in place of {cost.place} in the policy's order"
    return (
        f"It counts {cost.gpu_s / 3600:.2f} GPU-hours that nobody can take back from it. "
        f"{remedy} it would count none{place}."
    )
