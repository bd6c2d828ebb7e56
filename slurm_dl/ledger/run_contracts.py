"""The contract that a run began with: it holds until the run ends, whatever its owner changes.

The comment of a job belongs to its owner, who may take the contract out of it once the job runs, or
ask for a longer grace. What is easier to preempt counts at once, what is harder from the next run
on.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from slurm_dl.ledger.attained_service import HOLDS, AttainedService, Column
from slurm_dl.model.contract import Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import PENDING, Jobs
from slurm_dl.model.membership import is_in
from slurm_dl.model.snapshot import Observed

NEVER_PROTECTED = 0.0
"""In the column of `Claim.until`: there is none."""


def note_contracts(
    col: dict[str, Column], at: npt.NDArray[np.int64], jobs: Jobs, seen: Observed
) -> None:
    """Book the contracts that *seen* tells: of waiting jobs the last one, of runs the strictest.

    Args:
        at: ``(len(jobs),)`` rows of *jobs* in the columns *col*.
    """
    told = [
        (job_id, claim.contract.terms, claim.contract.grace_s, claim.until or NEVER_PROTECTED)
        for job_id, claim in seen.claims.items()
        if claim.contract is not None
    ]
    now = np.array(sorted(told), dtype=np.float64).reshape(-1, 4)
    has = is_in(jobs.job_id, now[:, 0].astype(np.int64).tolist())
    terms, grace_s, until = np.zeros(len(jobs), np.int32), np.zeros(len(jobs)), np.zeros(len(jobs))
    where = np.searchsorted(now[:, 0], jobs.job_id[has])
    terms[has], grace_s[has], until[has] = now[where, 1], now[where, 2], now[where, 3]
    had = col["run_terms"][at] > 0
    runs = np.isin(jobs.state, HOLDS)
    # A job that Slurm may not requeue has agreed to nothing.
    anew = (jobs.state == PENDING) | (runs & ~had)
    valid = has & jobs.requeueable
    for name, column in (("run_terms", terms), ("run_grace_s", grace_s), ("run_until", until)):
        col[name][at[anew]] = np.where(valid, column, 0)[anew]
    both = runs & had & has
    k = at[both]
    col["run_terms"][k] = terms[both]
    col["run_grace_s"][k] = np.minimum(col["run_grace_s"][k], grace_s[both])
    free = (col["run_until"][k] == NEVER_PROTECTED) | (until[both] == NEVER_PROTECTED)
    later = np.maximum(col["run_until"][k], until[both])
    col["run_until"][k] = np.where(free, NEVER_PROTECTED, later)


def with_run_contracts(seen: Observed, service: AttainedService) -> Observed:
    """*seen*, in which jobs that run have the contract that their run began with."""
    runs = is_in(service.job_id, seen.jobs.job_id[np.isin(seen.jobs.state, HOLDS)].tolist())
    held = {}
    rows = service.take(runs & (service.run_terms > 0))
    for job_id, terms, grace_s, until in zip(
        *(rows.job_id.tolist(), rows.run_terms.tolist()),
        *(rows.run_grace_s.tolist(), rows.run_until.tolist()),
        strict=True,
    ):
        claim = seen.claim(JobId(job_id))
        contract = claim.contract or Contract.of_terms(terms, grace_s)
        if contract.grace_s > grace_s:
            contract = dataclasses.replace(contract, grace_s=grace_s)
        if contract != claim.contract or claim.until != (until or None):
            # Who took the contract out hides its saves, too, and is not spared for that.
            saved_s = int(seen.now_s) if claim.contract is None else claim.saved_s
            held[JobId(job_id)] = dataclasses.replace(
                claim, contract=contract, until=until or None, saved_s=saved_s, unreadable=False
            )
    return dataclasses.replace(seen, claims={**seen.claims, **held}) if held else seen


def broken_contracts(seen: Observed, service: AttainedService) -> frozenset[JobId]:
    """Jobs whose run began with a contract, and that Slurm may not requeue any more."""
    jobs = seen.jobs
    bound = service.job_id[service.run_terms > 0]
    broken = np.isin(jobs.state, HOLDS) & ~jobs.requeueable & is_in(jobs.job_id, bound.tolist())
    return frozenset(map(JobId, jobs.job_id[broken].tolist()))
