"""Wishes that are not over: begun once, ended once, whatever the looks between them plan.

A wish is a hand-over in a plan that is not carried out. The same one stands in the plan of every
look until its job starts, so it is kept once: one for one wait of the job that it is for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Final

from slurm_dl.engine.cycle import Cycle
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, PENDING
from slurm_dl.model.plan import OpenHandover
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.shadow.records import MOST_VICTIMS, UNSEEN, WishedHandover, WishedVictim
from slurm_dl.shadow.unfinished_jobs import account_of

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
        row_of = snap.jobs.row_of() if wanted or self._open else {}
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
