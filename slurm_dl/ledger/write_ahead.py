"""The ledger of facts that Slurm does not keep, and its rule: stored before done.

The ledger lives in memory and in a `Store`. Each step of a hand-over is stored before it is
tried (`begin`) and again once its result is known (`settle`), so a daemon killed at any instant
finds on its next start at least everything it may have done.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from slurm_dl.ledger.apply_observation import (
    FORGET_AFTER_S,
    LEAVE_AFTER_S,
    apply_observation,
    without_ours,
)
from slurm_dl.ledger.attained_service import AttainedService, EndedRun, answers_of, remembered
from slurm_dl.ledger.clock_adjustment import cut, cut_handover, cut_service, cut_steer
from slurm_dl.ledger.completions import endings_of
from slurm_dl.ledger.lease_credits import OWED, Owed
from slurm_dl.ledger.restarts import Restarts, knows, victim_gone, with_victim
from slurm_dl.ledger.run_contracts import broken_contracts, with_run_contracts
from slurm_dl.ledger.store_protocol import HOUR_S, Noted, ShadowJob, Store, StoreChange
from slurm_dl.model.booking import Entry, entry, updated
from slurm_dl.model.breaker import Breaker, BreakerName, Restart, Taken
from slurm_dl.model.handover import Handover, Seal, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import (
    Action,
    Attach,
    Book,
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
    Shrink,
    Signal,
    Trim,
    TripBreaker,
    Unseal,
)
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.model.steer import Steer

_T = TypeVar("_T", bound=Noted)

APART_S = 7 * 24 * HOUR_S
"""Two models that lost on one GPU are kept apart for this long: one bad figure is not for ever."""

STEADY_S = HOUR_S  # What is old is dropped once the clock was not set for this long


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
        self._restarts = Restarts(memory.restarts)
        self._breakers = {b.name: b for b in memory.breakers}
        self._acked: set[JobId] = set()
        self._booked = memory.booked
        self._owed = self._owed_stored = memory.owed
        self._steady_since_s: float | None = None
        self._swept_s = 0.0
        self._strangers = np.zeros(0, dtype=np.int64)
        self.distrust_until_s = memory.distrust_until_s

    @property
    def handovers(self) -> tuple[Handover, ...]:
        """Hand-overs that are not closed."""
        return tuple(self._handovers.values())

    @property
    def booked(self) -> tuple[Entry, ...]:
        """The book, sorted by kind and key."""
        return self._booked

    @property
    def service(self) -> AttainedService:
        """The columns as they stand."""
        return self._service

    def book(self, seen: Observed) -> None:
        """Fold one observation in, and store what it changed."""
        if self._steady_since_s is None:
            self._steady_since_s = seen.now_s
        # Not at once: by a clock that is wrong at the start all that is remembered may look old.
        steady = seen.now_s - self._steady_since_s >= STEADY_S
        before_s = seen.now_s - FORGET_AFTER_S if steady else -math.inf
        applied = apply_observation(
            self._service, without_ours(seen, self._steers), forget_before_s=before_s
        )
        news = self._restarts.news(self._service, applied.service, seen)
        sweeps = steady and seen.now_s - self._swept_s >= LEAVE_AFTER_S
        endings, strangers = endings_of(self._service, applied.service, seen, self._strangers)
        if applied.changed.any() or applied.ended or applied.forgotten or news or endings or sweeps:
            self._store.save(
                StoreChange(
                    jobs=applied.service.take(applied.changed),
                    ended=applied.ended,
                    forgotten=applied.forgotten,
                    endings=endings,
                    over_before_s=before_s if sweeps else None,
                    restarts=news,
                )
            )
        if sweeps:
            self._swept_s = seen.now_s
        # Not before it is stored: what a store that failed lacks is then told anew by the next one.
        self._service, self._strangers = applied.service, strangers
        if self._trimmed:
            self._trimmed.intersection_update(JobId(j) for j in applied.service.job_id.tolist())
        self._restarts.keep(news, seen.now_s)
        runs = [v.run for h in self.handovers for v in h.victims]
        self._acked = {run.job_id for run in runs if seen.has_acknowledged(run)}

    def restore(self, jobs: AttainedService, ended: Sequence[EndedRun]) -> None:
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
        self._store.save(StoreChange(jobs=jobs, ended=ended))
        self._service = AttainedService(**columns)

    def snapshot(self, seen: Observed, partitions: frozenset[str]) -> Snapshot:
        """*seen* with everything remembered beside it.

        How long a job is still to run is taken from its time limit, counted over all its runs.
        """
        seen = with_run_contracts(without_ours(seen, self._steers), self._service)
        memory = remembered(self._service, seen.jobs)
        # As if they came now: behind all that could start.
        queued_s = np.where(memory.queued_s > 0, memory.queued_s, seen.now_s)
        return Snapshot(
            seen=seen,
            memory=dataclasses.replace(memory, queued_s=queued_s),
            left_s=np.maximum(seen.jobs.limit_s - memory.ran_s, 0.0),
            credit_s=None if self._owed is None else self._owed.at(seen),
            managed=np.array([p in partitions for p in seen.partitions], dtype=np.bool_),
            answers=answers_of(self._service),
            handovers=self.handovers,
            steers=dict(self._steers),
            trimmed=frozenset(self._trimmed),
            lost_pairs=tuple(
                sorted(p for p, at_s in self._lost_pairs.items() if seen.now_s - at_s < APART_S)
            ),
            next_handover_id=self._next_id,
            preempted_gpus_last_hour=self._gpus_taken_since(seen.now_s - HOUR_S),
            taken=tuple(self._taken),
            broken=broken_contracts(seen, self._service),
            restarts=self._restarts.all,
            breakers=tuple(self._breakers[name] for name in sorted(self._breakers)),
            booked=self._booked,
        )

    def owe(self, snap: Snapshot, plan: Plan) -> None:
        """Remember what jobs deserve from now on; it is stored once a lease.

        Between, credits follow from the stored ones, the shares and the runs that Slurm lists.
        """
        owed = None if plan.share is None else Owed.after(snap, plan.share, plan.lease_s)
        if owed is None or not owed.is_of_lease(self._owed_stored):
            if owed is not None or self._owed_stored is not None:
                body = None if owed is None else owed.body()
                self._store.save(StoreChange(booked=[entry(OWED, "", body)]))
            self._owed_stored = owed
        self._owed = owed

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
            case TripBreaker(breaker=name, at_s=at_s):
                before = self._breakers.get(name, Breaker(name=name)).at(at_s)
                self._set(action.of(before))
            case Book(entries=entries):
                self._store.save(StoreChange(booked=entries))
                self._booked = updated(self._booked, entries)
            case Trim(job_id=job_id):
                # Tried once: what Slurm does not do then it does not do.
                self._trimmed.add(job_id)
            case Signal(handover_id=hid, run=run):
                self._turn(hid, run.job_id, state=VictimState.SIGNALLING)
            case Shrink(handover_id=hid, run=run):
                self._turn(hid, run.job_id, state=VictimState.SHRINKING)
            case Requeue(handover_id=hid, run=run, ended=ended):
                tries = self._victim(hid, run.job_id).tries + 1 if ended else 0
                self._turn(hid, run.job_id, state=VictimState.REQUEUING, ended=ended, tries=tries)
            case _:
                pass

    def settle(self, action: Action, now_s: float) -> None:
        """Write down that *action* succeeded at *now_s*."""
        match action:
            case SetSiteFactor(job_id=job_id, value=value):
                self._change([job_id], {"site_factor": [value]})
            case Promote(job_id=job_id):
                self._forgive(job_id)
            case Reserve(handover_id=hid) | Unseal(handover_id=hid) if hid is not None:
                seal = Seal.STANDING if isinstance(action, Reserve) else Seal.RELEASED
                self._keep(dataclasses.replace(self._handovers[hid], seal=seal))
            case Attach(handover_id=hid, job_id=job_id):
                handover = self._handovers[hid]
                attached = tuple(dict.fromkeys((*handover.attached, job_id)))
                self._keep(dataclasses.replace(handover, attached=attached))
            case Signal(handover_id=hid, run=run):
                self._turn(hid, run.job_id, state=VictimState.SIGNALLED, signalled_s=now_s)
                self._change([run.job_id], {"last_preempted_s": [now_s]})
            case Requeue(handover_id=hid, run=run, ended=ended) if ended:
                self._turn(hid, run.job_id, tries=0)
            case MarkGone():
                self._mark_gone(action, now_s)
            case CloseHandover():
                self._close(action, now_s)
            case ClearSteer() | ForgetSteer():
                self._let_go(action)
            case _:  # Written down before it was tried, or nothing that is remembered.
                pass

    def reset(self, name: BreakerName, *, by: str, now_s: float) -> Breaker:
        """Let the breaker *name* go; what was before *now_s* does not count for it any more.

        Returns:
            The breaker as it was.

        Raises:
            Exception: The store's own; nothing has changed then.
        """
        before = self._breakers.get(name, Breaker(name=name)).at(now_s)
        self._set(Breaker(name=name, reset_s=now_s, reset_by=by, counts_from=self._next_id))
        return before

    def has_tripped(self, name: BreakerName, now_s: float) -> bool:
        """True if the breaker *name* has tripped and not re-armed by *now_s*."""
        return self._breakers.get(name, Breaker(name=name)).at(now_s).tripped_s > 0

    def clock_was_set(
        self, now_s: float, *, grace_anew: bool = False, distrust_until_s: float | None = None
    ) -> None:
        """Let no recorded instant be later than *now_s*, which the clock shows after it was set.

        Args:
            grace_anew: Whether the time of hand-overs and of graces starts again at *now_s*.
            distrust_until_s: Until when no step of a hand-over is taken; None leaves it as it is.
        """
        service, rows = cut_service(self._service, now_s)
        handovers = [
            (after, "")
            for h in self.handovers
            if (after := cut_handover(h, now_s, grace_anew=grace_anew)) != h
        ]
        steers = [new for s in self._steers.values() if (new := cut_steer(s, now_s)) != s]
        restarts = [cut(r, now_s, "requeued_s", "settled_s") for r in self._restarts.all]
        breakers = [cut(b, now_s, "tripped_s", "reset_s") for b in self._breakers.values()]
        self._store.save(
            StoreChange(
                jobs=service.take(rows),
                handovers=handovers,
                steers=steers,
                restarts=restarts,
                breakers=breakers,
                cut_to_s=now_s,
                distrust_until_s=distrust_until_s,
            )
        )
        if distrust_until_s is not None:
            self.distrust_until_s = distrust_until_s
        self._steady_since_s = None
        self._service = service
        self._handovers.update({h.handover_id: h for h, _ in handovers})
        self._steers.update({s.job_id: s for s in steers})
        self._restarts = Restarts(restarts)
        self._breakers.update({b.name: b for b in breakers})
        self._taken = [cut(t, now_s, "at_s") for t in self._taken]

    def note(self, rows: Sequence[Noted], unfinished: Sequence[ShadowJob] | None = None) -> None:
        """Store *rows*, kept for others, in place of those with their keys; see `StoreChange`.

        Raises:
            Exception: The store's own; none is stored then.
        """
        if rows or unfinished is not None:
            self._store.save(StoreChange(noted=rows, unfinished=unfinished))

    def noted(self, kind: type[_T], **fields: str) -> tuple[_T, ...]:
        """The rows of *kind* that are kept for others, those with these values in *fields*.

        Raises:
            Exception: The store's own.
        """
        return self._store.noted(kind, **fields)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def _gpus_taken_since(self, when_s: float) -> float:
        """GPUs taken back since then, and those that are about to be."""
        going = [
            v.gives_gpus
            for h in self.handovers
            for v in h.victims
            if v.state is not VictimState.GONE
        ]
        return math.fsum([*(t.gpus for t in self._taken if t.at_s > when_s), *going])

    def _mark_gone(self, action: MarkGone, now_s: float) -> None:
        handover, acked = self._handovers[action.handover_id], action.job_id in self._acked
        gone = victim_gone(handover, action, now_s, self._service, self._restarts, acked=acked)
        self._change(
            [action.job_id],
            gone.columns,
            handovers=[(gone.handover, "")],
            taken=gone.taken,
            restarts=gone.restarts,
        )
        self._handovers[action.handover_id] = gone.handover
        self._taken = [t for t in self._taken if t.at_s > now_s - HOUR_S] + gone.taken
        self._restarts.keep(gone.restarts, now_s)

    def _close(self, action: CloseHandover, now_s: float) -> None:
        known = [j for j in action.fruitless if knows(self._service, j)]
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
        restarts: Sequence[Restart] = (),
    ) -> None:
        """Replace some values of some known jobs, and store those jobs and what goes with them."""
        known = [i for i, j in enumerate(job_ids) if knows(self._service, j)] if columns else []
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
            jobs = after.take(rows)
            self._store.save(
                StoreChange(jobs=jobs, handovers=handovers, taken=taken, restarts=restarts)
            )
        self._service = after

    def _turn(self, handover_id: HandoverId, job_id: JobId, **changes: object) -> None:
        victim = dataclasses.replace(self._victim(handover_id, job_id), **changes)  # type: ignore[arg-type]
        self._keep(with_victim(self._handovers[handover_id], victim))

    def _victim(self, handover_id: HandoverId, job_id: JobId) -> Victim:
        return next(v for v in self._handovers[handover_id].victims if v.run.job_id == job_id)

    def _steer(self, steer: Steer) -> None:
        self._store.save(StoreChange(steers=[steer]))
        self._steers[steer.job_id] = steer

    def _let_go(self, action: ClearSteer | ForgetSteer) -> None:
        steer = self._steers.get(action.job_id)
        if steer is not None and isinstance(action, ForgetSteer) and action.outcome != "gone":
            # Its list stands there as long as it runs, and when it is requeued.
            self._steer(dataclasses.replace(steer, kind="started", not_before_s=0.0))
            return
        self._store.save(StoreChange(let_go=[action.job_id]))
        self._steers.pop(action.job_id, None)

    def _set(self, breaker: Breaker) -> None:
        self._store.save(StoreChange(breakers=[breaker]))
        self._breakers[breaker.name] = breaker

    def _keep(self, handover: Handover) -> None:
        self._store.save(StoreChange(handovers=[(handover, "")]))
        self._handovers[handover.handover_id] = handover
