"""What we remember and Slurm does not, and the rule that it is written down before it is done.

The ledger lives in memory and in a `Store`. Each step of a hand-over is stored before it is
tried (`begin`) and again once its result is known (`settle`), so a daemon killed at any instant
finds on its next start at least everything it may have done.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from slurm_dl.engine.credits import Owed
from slurm_dl.engine.service import EndedRun, Service, fold, remembered
from slurm_dl.model.handover import Handover, Seal, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held
from slurm_dl.model.plan import (
    Action,
    Attach,
    ClearSteer,
    CloseHandover,
    ForgetSteer,
    MarkGone,
    OpenHandover,
    Plan,
    Promote,
    Requeue,
    Reserve,
    SetSiteFactor,
    SetSteer,
    Signal,
    Trim,
    Unseal,
)
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.model.steer import Steer

HOUR_S = 3600.0

APART_S = 7 * 24 * HOUR_S
"""Two models that lost on one GPU are kept apart for this long: one bad figure is not for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """GPUs that were taken back from one run.

    Attributes:
        at_s: When the run was seen gone, epoch seconds.
        gpus: GPUs it held.
        notice_s: Time from the signal until it was gone, seconds.
    """

    at_s: float
    job_id: JobId
    gpus: float
    notice_s: float
    handover_id: HandoverId


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Everything a store holds."""

    service: Service
    handovers: tuple[Handover, ...]
    next_handover_id: HandoverId
    taken: tuple[Taken, ...]
    steers: tuple[Steer, ...] = ()
    lost_pairs: Mapping[tuple[str, ...], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """What a store has to write, all of it or nothing.

    Attributes:
        jobs: Jobs to insert or replace.
        ended: Runs that are over.
        forgotten: Ids of jobs to drop.
        handovers: Hand-overs to insert or replace, each with why it is closed; empty if it is not.
        taken: GPUs that were taken back.
        steers: Steers to insert or replace.
        let_go: Ids of jobs whose steers are over.
    """

    jobs: Service | None = None
    ended: Sequence[EndedRun] = ()
    forgotten: Sequence[int] = ()
    handovers: Sequence[tuple[Handover, str]] = ()
    taken: Sequence[Taken] = ()
    steers: Sequence[Steer] = ()
    let_go: Sequence[int] = ()


class Store(Protocol):
    """Where the ledger survives the daemon. Every call is durable when it returns."""

    def load(self) -> Memory:
        """All that is stored."""

    def save(self, change: Change, /) -> None:
        """Write *change*."""

    def close(self) -> None:
        """Let go of the file."""


class Ledger:
    """The memory of one daemon; the only mutable thing the engine has."""

    def __init__(self, store: Store) -> None:
        self._store = store
        memory = store.load()
        self._service = memory.service
        self._handovers = {h.handover_id: h for h in memory.handovers}
        self._next_id = memory.next_handover_id
        self._taken = [*memory.taken]
        self._steers = {s.job_id: s for s in memory.steers}
        self._trimmed: set[JobId] = set()
        self._lost_pairs = dict(memory.lost_pairs)
        self._doubted: set[JobId] = set()
        self._owed: Owed | None = None

    @property
    def handovers(self) -> tuple[Handover, ...]:
        """Hand-overs that are not closed."""
        return tuple(self._handovers.values())

    @property
    def service(self) -> Service:
        """The columns as they stand."""
        return self._service

    def book(self, seen: Observed) -> None:
        """Fold one observation in, and store what it changed."""
        folded = fold(self._service, self._without_ours(seen))
        self._service = folded.service
        self._trimmed.difference_update(JobId(j) for j in folded.forgotten)
        if folded.changed.any() or folded.ended or folded.forgotten:
            self._store.save(
                Change(
                    jobs=folded.service.take(folded.changed),
                    ended=folded.ended,
                    forgotten=folded.forgotten,
                )
            )

    def restore(self, jobs: Service, ended: Sequence[EndedRun]) -> None:
        """Take rows that were rebuilt from elsewhere in place of the present ones, and store them.

        Args:
            jobs: Rows of jobs that are known.
            ended: Runs of theirs that are over.

        Raises:
            ValueError: A job is not known.
        """
        if not np.isin(jobs.job_id, self._service.job_id).all():
            msg = "only jobs that the ledger knows can be restored"
            raise ValueError(msg)
        if not len(jobs):
            return
        rows = self._service.rows_of(jobs.job_id)
        columns = {name: column.copy() for name, column in self._service.columns().items()}
        for name, column in jobs.columns().items():
            columns[name][rows] = column
        self._store.save(Change(jobs=jobs, ended=ended))
        self._service = Service(**columns)

    def snapshot(self, seen: Observed, partitions: frozenset[str]) -> Snapshot:
        """*seen* with everything remembered beside it.

        How long a job is still to run is taken from its time limit, counted over all its runs.
        """
        seen = self._without_ours(seen)
        memory = remembered(self._service, seen.jobs)
        return Snapshot(
            seen=seen,
            memory=memory,
            left_s=np.maximum(seen.jobs.limit_s - memory.ran_s, 0.0),
            credit_s=None if self._owed is None else self._owed.at(seen),
            managed=np.array([p in partitions for p in seen.partitions], dtype=np.bool_),
            handovers=self.handovers,
            steers=dict(self._steers),
            trimmed=frozenset(self._trimmed),
            lost_pairs=tuple(
                sorted(p for p, at_s in self._lost_pairs.items() if seen.now_s - at_s < APART_S)
            ),
            next_handover_id=self._next_id,
            preempted_gpus_last_hour=self._gpus_taken_since(seen.now_s - HOUR_S),
        )

    def owe(self, snap: Snapshot, plan: Plan) -> None:
        """Remember what jobs deserve from now on; a daemon that starts anew owes nobody anything.

        Credits are good for a few leases and no more, so they are not stored.
        """
        self._owed = None if plan.share is None else Owed.after(snap, plan.share, plan.lease_s)

    def _without_ours(self, seen: Observed) -> Observed:
        """*seen*, in which jobs that only we put off wait for room, as they do.

        They may be preempted for, and their waiting counts. So do those whose begin time is over
        and of which Slurm does not know it yet.
        """
        if not seen.begins:
            return seen
        jobs, now_s = seen.jobs, seen.now_s
        over = {job_id for job_id, begin_s in seen.begins.items() if begin_s <= now_s}
        ours = {
            job_id: steer.since_s
            for job_id, steer in self._steers.items()
            if steer.puts_off(now_s, seen.begins.get(job_id))
        }
        held = jobs.held.copy()
        named = np.isin(jobs.job_id, [*over, *ours])
        for row in np.flatnonzero(named & (held == Held.BEGIN_TIME)).tolist():
            job_id = JobId(int(jobs.job_id[row]))
            if job_id in over or jobs.submit_s[row] <= ours[job_id]:
                held[row] = Held.NO
        return dataclasses.replace(seen, jobs=dataclasses.replace(jobs, held=held))

    def doubt(self, unhonoured: Collection[JobId]) -> bool:
        """Forget the SiteFactors that Slurm no longer counts, so that they are written once more.

        Somebody may have reset them. Where it does not help Slurm does not honour them, and they
        are left alone until it does.

        Returns:
            Whether any was forgotten.
        """
        settled = {
            j
            for j in self._doubted
            if j not in unhonoured
            and (not _has(self._service, j) or self._service.site_factor[self._row(j)] > 0)
        }
        self._doubted -= settled
        anew = [j for j in unhonoured if j not in self._doubted]
        self._doubted.update(anew)
        self._change(anew, {"site_factor": [0] * len(anew)})
        return bool(anew)

    def begin(self, action: Action) -> None:
        """Write down that *action* is about to be tried, where that matters after a crash."""
        match action:
            case OpenHandover(handover=handover):
                self._next_id = HandoverId(max(self._next_id, handover.handover_id + 1))
                self._keep(handover)
                if handover.purpose == "split":
                    self._lost_pairs[handover.apart] = handover.opened_s
            case SetSteer(steer=steer):
                # Before it is done: what may stand in Slurm must be known to be ours.
                self._steer(steer)
            case Trim(job_id=job_id):
                # Tried once: what Slurm does not do then it does not do.
                self._trimmed.add(job_id)
            case Signal(handover_id=hid, run=run):
                self._turn(hid, run.job_id, state=VictimState.SIGNALLING)
            case Requeue(handover_id=hid, run=run):
                self._turn(hid, run.job_id, state=VictimState.REQUEUING)
            case _:
                pass

    def settle(self, action: Action, now_s: float) -> None:
        """Write down that *action* succeeded at *now_s*."""
        match action:
            case SetSiteFactor(job_id=job_id, value=value):
                self._change([job_id], {"site_factor": [value]})
            case Promote(job_id=job_id):
                self._forgive(job_id)
            case Reserve(handover_id=hid):
                self._keep(dataclasses.replace(self._handovers[hid], seal=Seal.STANDING))
            case Attach(handover_id=hid, job_id=job_id):
                handover = self._handovers[hid]
                attached = (*handover.attached, job_id)
                self._keep(dataclasses.replace(handover, attached=attached))
            case Signal(handover_id=hid, run=run):
                self._turn(hid, run.job_id, state=VictimState.SIGNALLED, signalled_s=now_s)
                self._change([run.job_id], {"last_preempted_s": [now_s]})
            case MarkGone():
                self._mark_gone(action, now_s)
            case Unseal(handover_id=hid) if hid is not None:
                self._keep(dataclasses.replace(self._handovers[hid], seal=Seal.RELEASED))
            case CloseHandover():
                self._close(action, now_s)
            case ClearSteer() | ForgetSteer():
                self._let_go(action)
            case _:  # Written down before it was tried, or nothing that is remembered.
                pass

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def _gpus_taken_since(self, when_s: float) -> float:
        """GPUs taken back since then, and those that are about to be."""
        going = [
            v.gpus for h in self.handovers for v in h.victims if v.state is not VictimState.GONE
        ]
        return math.fsum([*(t.gpus for t in self._taken if t.at_s > when_s), *going])

    def _mark_gone(self, action: MarkGone, now_s: float) -> None:
        handover = self._handovers[action.handover_id]
        victim = next(v for v in handover.victims if v.run.job_id == action.job_id)
        gone = dataclasses.replace(
            victim, state=VictimState.GONE, gone_s=now_s, outcome=action.outcome
        )
        after = _with(handover, gone)
        told = victim.state is not VictimState.CHOSEN
        columns: dict[str, list[float]] = {}
        if told and action.outcome == "requeued" and _has(self._service, action.job_id):
            times = int(self._service.preemptions[self._row(action.job_id)])
            columns["preemptions"] = [times + 1]
        if action.outcome == "refused":
            columns["last_preempted_s"] = [now_s]
        taken = []
        if told and action.outcome in ("requeued", "finished"):
            taken = [
                Taken(
                    at_s=now_s,
                    job_id=action.job_id,
                    gpus=victim.gpus,
                    notice_s=now_s - victim.signalled_s if victim.signalled_s else 0.0,
                    handover_id=action.handover_id,
                )
            ]
        self._change([action.job_id], columns, handovers=[(after, "")], taken=taken)
        self._handovers[action.handover_id] = after
        self._taken = [t for t in self._taken if t.at_s > now_s - HOUR_S] + taken

    def _close(self, action: CloseHandover, now_s: float) -> None:
        known = [j for j in action.fruitless if _has(self._service, j)]
        times = [int(self._service.fruitless[self._row(j)]) + 1 for j in known]
        handover = self._handovers[action.handover_id]
        self._change(
            known,
            {"fruitless": times, "last_fruitless_s": [now_s] * len(known)},
            handovers=[(handover, action.outcome)],
        )
        del self._handovers[action.handover_id]

    def _forgive(self, job_id: JobId) -> None:
        row = self._row(job_id)
        forgiven = {
            "forgiven_gpu_s": [float(self._service.attained_gpu_s[row])],
            "forgiven_ran_s": [float(self._service.ran_s[row])],
        }
        self._change([job_id], forgiven)

    def _row(self, job_id: JobId) -> int:
        return int(self._service.rows_of(np.array([job_id], dtype=np.int64))[0])

    def _change(
        self,
        job_ids: Sequence[JobId],
        columns: Mapping[str, Sequence[float]],
        *,
        handovers: Sequence[tuple[Handover, str]] = (),
        taken: Sequence[Taken] = (),
    ) -> None:
        """Replace some values of some known jobs, and store those jobs and what goes with them."""
        known = [i for i, j in enumerate(job_ids) if _has(self._service, j)] if columns else []
        rows = self._service.rows_of(np.array([job_ids[i] for i in known], dtype=np.int64))
        after = self._service
        if known:
            replaced = {}
            for name, values in columns.items():
                column = getattr(self._service, name).copy()
                column[rows] = [values[i] for i in known]
                replaced[name] = column
            after = dataclasses.replace(self._service, **replaced)
        if known or handovers or taken:
            self._store.save(Change(jobs=after.take(rows), handovers=handovers, taken=taken))
        self._service = after

    def _turn(self, handover_id: HandoverId, job_id: JobId, **changes: object) -> None:
        handover = self._handovers[handover_id]
        victim = next(v for v in handover.victims if v.run.job_id == job_id)
        self._keep(_with(handover, dataclasses.replace(victim, **changes)))  # type: ignore[arg-type]

    def _steer(self, steer: Steer) -> None:
        self._store.save(Change(steers=[steer]))
        self._steers[steer.job_id] = steer

    def _let_go(self, action: ClearSteer | ForgetSteer) -> None:
        steer = self._steers.get(action.job_id)
        if steer is not None and isinstance(action, ForgetSteer) and action.outcome != "gone":
            # Its list stands there as long as it runs, and when it is requeued.
            self._steer(dataclasses.replace(steer, kind="started", not_before_s=0.0))
            return
        self._store.save(Change(let_go=[action.job_id]))
        self._steers.pop(action.job_id, None)

    def _keep(self, handover: Handover) -> None:
        self._store.save(Change(handovers=[(handover, "")]))
        self._handovers[handover.handover_id] = handover


def _with(handover: Handover, victim: Victim) -> Handover:
    victims = (victim if v.run.job_id == victim.run.job_id else v for v in handover.victims)
    return dataclasses.replace(handover, victims=tuple(victims))


def _has(service: Service, job_id: JobId) -> bool:
    row = int(np.searchsorted(service.job_id, job_id))
    return row < len(service) and int(service.job_id[row]) == job_id
