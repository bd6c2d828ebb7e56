"""Hand-overs that are planned and not carried out: when one begins and how it ends.

The same one stands in the plan of every look until its job starts, so it is kept once: one for one
wait of the job that it is for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Final

from slurm_dl.engine.cycle import Cycle
from slurm_dl.ledger.store_protocol import (
    LONGEST_NAME,
    LONGEST_WHY,
    MOST_VICTIMS,
    UNSEEN,
    PlannedHandover,
    PlannedVictim,
)
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, PENDING
from slurm_dl.model.plan import OpenHandover
from slurm_dl.model.snapshot import Snapshot

MOST_OPEN: Final = 5000
"""Planned hand-overs that are remembered at once; more than that are counted as missed."""

FORGOTTEN_S: Final = 240.0
"""Slurm lists a job that is over for ``MinJobAge``, 300 s unless configured. Somewhat less: when
the look before was is known to the minute after a restart."""


class PlannedHandovers:
    """Those that are not over, look by look.

    Args:
        known: Those that were open when the daemon before this one ended.
        seen_s: Its last look, epoch seconds.
    """

    def __init__(self, known: Iterable[PlannedHandover] = (), seen_s: float = -math.inf) -> None:
        self._open = {p.key: p for p in known}
        # Victims of the last look are not kept; if they never changed, they are known.
        self._last_runs = {p.key: _runs(p) for p in self._open.values() if not p.others}
        self._seen_s = seen_s

    @property
    def open(self) -> tuple[PlannedHandover, ...]:
        """Those that are open."""
        return tuple(self._open.values())

    def take(self, cycle: Cycle) -> tuple[list[PlannedHandover], int]:
        """Those that have begun with this look and those that are over; how many were left out."""
        snap, news, missed = cycle.snapshot, list[PlannedHandover](), 0
        wanted = [a for a in cycle.plan.actions if isinstance(a, OpenHandover)]
        row_of = snap.jobs.rows if wanted or self._open else {}
        for action in wanted:
            planned = _planned(snap, row_of, action)
            before = self._open.get(planned.key)
            if before is None:
                if len(self._open) >= MOST_OPEN:
                    missed += 1
                    continue
                self._open[planned.key] = planned
                news.append(planned)
            else:
                others = _runs(planned) != self._last_runs.get(planned.key, _runs(planned))
                self._open[planned.key] = dataclasses.replace(
                    before, last_s=snap.now_s, others=before.others + others
                )
            self._last_runs[planned.key] = _runs(planned)
        gap = snap.now_s - self._seen_s > FORGOTTEN_S
        for planned in self.open:
            over = _over(snap, row_of, planned, gap=gap)
            if over is not None:
                news.append(over)
                del self._open[planned.key]
                self._last_runs.pop(planned.key, None)
        self._seen_s = snap.now_s
        return news, missed


def account_of(snap: Snapshot, job_id: JobId) -> str:
    """The account of a job, cut to `LONGEST_NAME`; empty if it is not known."""
    text = snap.seen.texts.get(job_id)
    account = "" if text is None else text.account[:LONGEST_NAME]
    return account.encode("utf-8", "replace").decode("utf-8")


def _runs(planned: PlannedHandover) -> tuple[tuple[int, int], ...]:
    return tuple((v.job_id, v.restarts) for v in planned.victims)


def _planned(snap: Snapshot, row_of: Mapping[JobId, int], action: OpenHandover) -> PlannedHandover:
    handover, jobs = action.handover, snap.jobs
    lead = handover.beneficiaries[0] if handover.beneficiaries else JobId(0)
    row = row_of.get(lead)
    return PlannedHandover(
        key=_key(handover, 0 if row is None else int(jobs.restarts[row])),
        purpose=handover.purpose,
        lead=lead,
        lead_uid=0 if row is None else max(0, int(jobs.uid[row])),
        lead_account=account_of(snap, lead),
        lead_gpus=0.0 if row is None else float(jobs.gpus[row]),
        beneficiaries=tuple(handover.beneficiaries[:MOST_VICTIMS]),
        victims=tuple(
            PlannedVictim(
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
        why=action.why[:LONGEST_WHY],
        begin_s=snap.now_s,
        last_s=snap.now_s,
    )


def _key(handover: Handover, restarts: int) -> str:
    """One wait of the best beneficiary; where none waits, the runs that would be stopped."""
    if handover.purpose == "preempt":
        return _wait_of(handover.beneficiaries[0], restarts)
    runs = sorted((v.run.job_id, v.run.restarts) for v in handover.victims)
    return f"{handover.purpose} " + ",".join(f"{job}:{n}" for job, n in runs[:20])


def _wait_of(job_id: int, restarts: int) -> str:
    return f"preempt {job_id}:{restarts}"


def _over(
    snap: Snapshot, row_of: Mapping[JobId, int], planned: PlannedHandover, *, gap: bool
) -> PlannedHandover | None:
    """*planned* with its end, if it is over.

    Args:
        gap: The look before is so old that Slurm may have forgotten a job that is over.
    """
    state, start_s = snap.jobs.state, snap.jobs.start_s
    if planned.lead:
        row = row_of.get(JobId(planned.lead))
        if row is not None and state[row] == PENDING:
            waits_on = _wait_of(planned.lead, int(snap.jobs.restarts[row])) == planned.key
            if waits_on or planned.purpose != "preempt":
                return None
        started_s = 0.0 if row is None else float(start_s[row])
        # Slurm tells whole seconds.
        if started_s >= planned.begin_s - 1:
            return dataclasses.replace(planned, end="started", started_s=started_s)
        return dataclasses.replace(planned, end=UNSEEN if gap and row is None else "gone")
    runs = [(row_of.get(JobId(v.job_id)), v.restarts) for v in planned.victims]
    alive = any(
        row is not None and snap.jobs.restarts[row] == n and PENDING < state[row] < COMPLETED
        for row, n in runs
    )
    return None if alive else dataclasses.replace(planned, end="over")
