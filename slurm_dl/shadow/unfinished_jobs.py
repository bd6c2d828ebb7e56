"""The unfinished jobs of a look, and those that have ended since the one before.

What becomes of a job is told by two looks side by side; nothing here remembers anything.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, PENDING, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.shadow.records import LONGEST_NAME, EndedJobRecord
from slurm_dl.shadow.segment_store import JOB, UnfinishedJobs

_SPARE_ACCOUNTS = 100


def standing_of(snap: Snapshot, before: UnfinishedJobs | None) -> UnfinishedJobs:
    """The unfinished jobs with GPUs in managed partitions."""
    jobs, memory = snap.jobs, snap.memory
    ours = snap.is_managed() & (jobs.gpus > 0) & (jobs.state < COMPLETED)
    rows = np.flatnonzero(ours)
    rows = rows[np.argsort(jobs.job_id[rows], kind="stable")]
    table = np.zeros(len(rows), dtype=JOB)
    table["job_id"] = jobs.job_id[rows]
    table["uid"] = np.maximum(jobs.uid[rows], 0)
    table["gpus"] = jobs.gpus[rows]
    table["tasks"] = jobs.tasks[rows]
    table["submit_s"] = np.maximum(memory.first_submit_s[rows], 0)
    running = jobs.state[rows] > PENDING
    first_s = np.maximum(memory.first_run_s[rows], 0)
    table["start_s"] = np.where(running & (first_s <= 0), jobs.start_s[rows], first_s)
    table["ran_s"] = memory.ran_s[rows]
    table["running"] = running
    if snap.seen.claims:
        willing = [j for j, c in snap.seen.claims.items() if c.contract is not None]
        table["opted_in"] = np.isin(table["job_id"], willing)
    accounts = list(before.accounts) if before is not None else []
    index = {name: i for i, name in enumerate(accounts)}
    known, at = _rows_in(table["job_id"], before)
    if before is not None:
        table["account"][known] = before.jobs["account"][at[known]]
    for i in np.flatnonzero(~known).tolist():
        name = account_of(snap, JobId(int(table["job_id"][i])))
        if name not in index:
            index[name] = len(accounts)
            accounts.append(name)
        table["account"][i] = index[name]
    if len(accounts) > len(table) + _SPARE_ACCOUNTS:
        # Without slurmdbd an account is whatever a user writes: only those in use are kept.
        used, table["account"] = np.unique(table["account"], return_inverse=True)
        accounts = [accounts[i] for i in used.tolist()]
    return UnfinishedJobs(snap.now_s, table, tuple(accounts))


def ended_since(before: UnfinishedJobs, snap: Snapshot) -> list[EndedJobRecord]:
    """Jobs that have ended since *before*, those that came in between too."""
    jobs, memory = snap.jobs, snap.memory
    over = np.flatnonzero(snap.is_managed() & (jobs.gpus > 0) & (jobs.state >= COMPLETED))
    known, at = _rows_in(jobs.job_id[over], before)
    ran = jobs.start_s[over] > 0
    fresh = jobs.end_s[over] > before.now_s
    lines: list[EndedJobRecord] = []
    for i in np.flatnonzero(ran & (known | fresh)).tolist():
        row = int(over[i])
        job_id = JobId(int(jobs.job_id[row]))
        start_s, end_s = float(jobs.start_s[row]), float(jobs.end_s[row])
        first_s = float(memory.first_run_s[row])
        first_s = first_s if 0 < first_s <= start_s else start_s
        text = account_of(snap, job_id)
        account = before.accounts[int(before.jobs["account"][at[i]])] if known[i] else text
        lines.append(
            EndedJobRecord(
                job_id=int(job_id),
                uid=max(0, int(jobs.uid[row])),
                account=text or account,
                gpus=float(jobs.gpus[row]),
                submit_s=min(float(memory.first_submit_s[row]), first_s),
                start_s=first_s,
                ran_s=max(float(memory.ran_s[row]), end_s - start_s, 0.0),
                end_s=max(end_s, first_s),
                how="C" if jobs.state[row] == JobState.COMPLETED else "F",
                opted_in=snap.seen.claim(job_id).contract is not None
                or bool(known[i] and before.jobs["opted_in"][at[i]]),
            )
        )
    lines += _vanished(snap, before)
    return lines


def _vanished(snap: Snapshot, before: UnfinishedJobs) -> list[EndedJobRecord]:
    """Jobs that ran and that Slurm does not list any more."""
    gone = before.jobs[before.jobs["running"] & ~np.isin(before.jobs["job_id"], snap.jobs.job_id)]
    return [
        EndedJobRecord(
            job_id=int(job["job_id"]),
            uid=int(job["uid"]),
            account=before.accounts[int(job["account"])],
            gpus=float(job["gpus"]),
            submit_s=min(float(job["submit_s"]), float(job["start_s"])),
            start_s=float(job["start_s"]),
            ran_s=max(float(job["ran_s"]), 0.0),
            end_s=max(before.now_s, float(job["start_s"])),
            how="V",
            opted_in=bool(job["opted_in"]),
        )
        for job in gone
        if job["gpus"] > 0
    ]


def _rows_in(
    job_id: npt.NDArray[np.int64], standing: UnfinishedJobs | None
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which of *job_id* stand in *standing*, and in which row."""
    if standing is None or not len(standing.jobs):
        return np.zeros(len(job_id), dtype=np.bool_), np.zeros(len(job_id), dtype=np.int64)
    ids = standing.jobs["job_id"]
    at = np.minimum(np.searchsorted(ids, job_id), len(ids) - 1)
    return ids[at] == job_id, at


def account_of(snap: Snapshot, job_id: JobId) -> str:
    """The account of a job, cut to `LONGEST_NAME`; empty if nobody knows it."""
    text = snap.seen.texts.get(job_id)
    return "" if text is None else text.account[:LONGEST_NAME]
