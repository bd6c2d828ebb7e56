"""The contract that a run began with: it holds until the run ends, whatever its owner changes.

The comment of a job belongs to its owner, who may take the contract out of it once the job runs, or
ask for a longer grace. What is easier to preempt counts at once, what is harder from the next run
on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.ledger.attained_service import HOLDS, AttainedService, Column
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I32, PENDING, Bool, Jobs, is_in
from slurm_dl.model.snapshot import Observed

BROKEN: Final = "broken_contract"  # Kind of the entries in the book that say who broke one, by uid
NEVER_PROTECTED = 0.0  # In the column of `Claim.until`: there is none


def note_contracts(
    col: dict[str, Column], at: npt.NDArray[np.int64], jobs: Jobs, seen: Observed, new: Bool
) -> None:
    """Book the contracts that *seen* tells: of waiting jobs the last one, of runs the strictest.

    Args:
        at: ``(len(jobs),)`` rows of *jobs* in the columns *col*.
        new: ``(len(jobs),)`` bool, jobs that are seen for the first time.
    """
    terms, grace_s, until = _told(seen.claims, jobs)
    has, runs = terms > 0, np.isin(jobs.state, HOLDS)
    for row in (new & runs).nonzero()[0].tolist():
        # A task of an array has waited under the number of the array.
        text = seen.texts.get(JobId(int(jobs.job_id[row])))
        array, _, task = ("", "", "") if text is None else text.label.partition("_")
        if task and array.isdecimal():
            for found in np.flatnonzero(col["job_id"] == int(array)).tolist():
                for name in _COLUMNS:
                    col[name][at[row]] = col[name][found]
    had = col["run_terms"][at] > 0
    # A job that Slurm may not requeue has agreed to nothing.
    anew = (jobs.state == PENDING) | (runs & ~had)
    valid = has & jobs.requeueable
    told: tuple[Column, ...] = (terms, grace_s, until)
    for name, column in zip(_COLUMNS, told, strict=True):
        col[name][at[anew]] = np.where(valid, column, 0)[anew]
    both = runs & had & has
    k = at[both]
    col["run_terms"][k] = terms[both]
    col["run_grace_s"][k] = np.minimum(col["run_grace_s"][k], grace_s[both])
    free = (col["run_until"][k] == NEVER_PROTECTED) | (until[both] == NEVER_PROTECTED)
    later = np.maximum(col["run_until"][k], until[both])
    col["run_until"][k] = np.where(free, NEVER_PROTECTED, later)


_COLUMNS = ("run_terms", "run_grace_s", "run_until")


def _told(claims: Mapping[JobId, Claim], jobs: Jobs) -> tuple[I32, F64, F64]:
    """``(n,)`` terms, grace and `until` that each of *jobs* claims; 0 without a contract.

    Claims are read once for each comment, and many jobs have one comment.
    """
    kinds: dict[int, int] = {}
    kind = [kinds.setdefault(id(claim), len(kinds)) for claim in claims.values()]
    of_kind: dict[int, Claim] = dict(zip(kind, claims.values(), strict=True))
    table = np.array(
        [
            (0, 0, 0) if (c := claim.contract) is None
            else (c.terms, c.grace_s, claim.until or NEVER_PROTECTED)
            for claim in of_kind.values()
        ] or [(0, 0, 0)],
        dtype=np.float64,
    )  # fmt: skip
    ids = np.fromiter(claims, np.int64, len(claims))
    order = ids.argsort(kind="stable")
    place = np.searchsorted(ids[order], jobs.job_id)
    there = np.append(ids[order], -1)[place] == jobs.job_id
    which = np.append(np.array(kind, dtype=np.int64)[order], 0)[place]
    told = np.where(there[:, None], table[which], 0.0)
    return told[:, 0].astype(np.int32), told[:, 1], told[:, 2]


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
