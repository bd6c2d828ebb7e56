"""Changes from one look to the next: jobs that end, wishes that begin and end.

A wish is a hand-over in a plan that is not carried out. The same one stands in the plan of every
look until its job starts, so it is kept once: one for one wait of the job that it is for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.cycle import Cycle
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, PENDING, JobState
from slurm_dl.model.plan import OpenHandover
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.shadow.records import (
    LONGEST_NAME,
    MOST_VICTIMS,
    UNSEEN,
    EndedJobRecord,
    WishedHandover,
    WishedVictim,
)
from slurm_dl.shadow.segment_store import JOB, UnfinishedJobs

_SPARE_ACCOUNTS = 100


def standing_of(snap: Snapshot, before: UnfinishedJobs | None) -> UnfinishedJobs:
    """The unfinished jobs with GPUs in managed partitions."""
    jobs, memory = snap.jobs, snap.memory
    ours = snap.managed_jobs & (jobs.gpus > 0) & (jobs.state < COMPLETED)
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
    over = np.flatnonzero(snap.managed_jobs & (jobs.gpus > 0) & (jobs.state >= COMPLETED))
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


MOST_WISHES = 5000
"""Wishes that are remembered at once; more than that are counted as missed."""

FORGOTTEN_S: Final = 240.0
"""Slurm lists a job that is over for ``MinJobAge``, 300 s unless configured. Somewhat less: when
the look before was is known to the minute after a restart."""


class OpenWishes:
    """The wishes that are not over, told look by look.

    Args:
        wishes: Those that were open when the daemon before this one ended.
        seen_s: Its last look, epoch seconds.
    """

    def __init__(self, wishes: Iterable[WishedHandover] = (), seen_s: float = -math.inf) -> None:
        self._open = {w.key: w for w in wishes}
        # Whom a wish wanted last is not kept; if it never wanted others, it is known.
        self._last_runs = {w.key: _runs(w) for w in self._open.values() if not w.others}
        self._seen_s = seen_s

    @property
    def now(self) -> tuple[WishedHandover, ...]:
        """Those that are open."""
        return tuple(self._open.values())

    def take(self, cycle: Cycle) -> tuple[list[WishedHandover], int]:
        """Those that have begun with this look and those that are over; how many were left out."""
        snap, lines, missed = cycle.snapshot, [], 0
        wanted = [a for a in cycle.plan.actions if isinstance(a, OpenHandover)]
        row_of = snap.jobs.rows if wanted or self._open else {}
        for action in wanted:
            wish = _wish_of(snap, row_of, action)
            before = self._open.get(wish.key)
            if before is None:
                if len(self._open) >= MOST_WISHES:
                    missed += 1
                    continue
                self._open[wish.key] = wish
                lines.append(wish)
            else:
                others = _runs(wish) != self._last_runs.get(wish.key, _runs(wish))
                self._open[wish.key] = dataclasses.replace(
                    before, last_s=snap.now_s, others=before.others + others
                )
            self._last_runs[wish.key] = _runs(wish)
        gap = snap.now_s - self._seen_s > FORGOTTEN_S
        for wish in self.now:
            over = _over(snap, row_of, wish, gap=gap)
            if over is not None:
                lines.append(over)
                del self._open[wish.key]
                self._last_runs.pop(wish.key, None)
        self._seen_s = snap.now_s
        return lines, missed


def _runs(wish: WishedHandover) -> tuple[tuple[int, int], ...]:
    return tuple((v.job_id, v.restarts) for v in wish.victims)


def _wish_of(snap: Snapshot, row_of: Mapping[JobId, int], action: OpenHandover) -> WishedHandover:
    handover = action.handover
    jobs = snap.jobs
    lead = handover.beneficiaries[0] if handover.beneficiaries else JobId(0)
    row = row_of.get(lead)
    return WishedHandover(
        key=_key(handover, 0 if row is None else int(jobs.restarts[row])),
        purpose=handover.purpose,
        lead=lead,
        lead_uid=0 if row is None else max(0, int(jobs.uid[row])),
        lead_account=account_of(snap, lead),
        lead_gpus=0.0 if row is None else float(jobs.gpus[row]),
        beneficiaries=tuple(handover.beneficiaries[:MOST_VICTIMS]),
        victims=tuple(
            WishedVictim(
                job_id=v.run.job_id,
                restarts=v.run.restarts,
                uid=max(0, int(jobs.uid[row_of[v.run.job_id]])) if v.run.job_id in row_of else 0,
                account=account_of(snap, v.run.job_id),
                gpus=v.gpus,
                ran_s=max(0.0, snap.now_s - v.run.start_s),
                grace_s=v.contract.grace_s,
            )
            for v in handover.victims[:MOST_VICTIMS]
        ),
        gpus=sum(v.gpus for v in handover.victims),
        why=action.why,
        begin_s=snap.now_s,
        last_s=snap.now_s,
    )


def _key(handover: Handover, restarts: int) -> str:
    """One wait of the best beneficiary; where nobody waits, the runs that would be stopped."""
    if handover.purpose == "preempt":
        return _wait_of(handover.beneficiaries[0], restarts)
    runs = sorted((v.run.job_id, v.run.restarts) for v in handover.victims)
    return f"{handover.purpose} " + ",".join(f"{job}:{n}" for job, n in runs[:20])


def _wait_of(job_id: int, restarts: int) -> str:
    return f"preempt {job_id}:{restarts}"


def _over(
    snap: Snapshot, row_of: Mapping[JobId, int], wish: WishedHandover, *, gap: bool
) -> WishedHandover | None:
    """*wish* with its end, if it is over.

    Args:
        gap: Nobody looked for so long that Slurm may have forgotten a job that is over.
    """
    state, start_s = snap.jobs.state, snap.jobs.start_s
    if wish.lead:
        row = row_of.get(JobId(wish.lead))
        if row is not None and state[row] == PENDING:
            waits_on = _wait_of(wish.lead, int(snap.jobs.restarts[row])) == wish.key
            if waits_on or wish.purpose != "preempt":
                return None
        started_s = 0.0 if row is None else float(start_s[row])
        # Slurm tells whole seconds.
        if started_s >= wish.begin_s - 1:
            return dataclasses.replace(wish, end="started", started_s=started_s)
        return dataclasses.replace(wish, end=UNSEEN if gap and row is None else "gone")
    runs = [(row_of.get(JobId(v.job_id)), v.restarts) for v in wish.victims]
    alive = any(
        row is not None and snap.jobs.restarts[row] == n and PENDING < state[row] < COMPLETED
        for row, n in runs
    )
    return None if alive else dataclasses.replace(wish, end="over")
