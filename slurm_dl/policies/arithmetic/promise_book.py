"""Promises as they stand in the book: what is over is settled, and a calendar shows what is left.

What is promised, a window or a plan of several parts, is found by those who build on it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from slurm_dl.model import booking
from slurm_dl.model.booking import Entry
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, I64, NOT_HELD, PENDING, Bool
from slurm_dl.model.promise import KIND, Cause, Promise, PromiseTerms, promises_in, totals_in
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.calendar import Calendar, Need, Resource
from slurm_dl.policies.arithmetic.promise_needs import FOREVER_S, Choice, PromiseNeeds, whole_s

MOST_HELD_BACK: Final = 1000  # Waiting jobs, best first, that are looked at whether they may start


@dataclass(slots=True)
class PromiseBook:
    """The promises at one look.

    Attributes:
        promises: Of live jobs, by row.
        started: ``(n,)`` bool, jobs that hold GPUs, or are about to.
        book: What has changed.
    """

    snap: Snapshot
    terms: PromiseTerms
    needs: PromiseNeeds
    now_s: int = 0
    calendar: Calendar = field(default_factory=lambda: Calendar(0.0))
    promises: dict[int, Promise] = field(default_factory=dict)
    book: list[Entry] = field(default_factory=list)
    started: Bool = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    def __post_init__(self) -> None:
        jobs = self.snap.jobs
        self.now_s = math.ceil(self.snap.now_s)
        self.calendar = Calendar(self.now_s)
        taking = [b for h in self.snap.handovers for b in h.beneficiaries]
        # Who gets the GPUs of a hand-over has them as good as already.
        self.started = (jobs.state > PENDING) | np.isin(jobs.job_id, taking)

    def settle(self) -> None:
        """Strike out what is over, count it, and let go of what its user has withdrawn."""
        snap, jobs = self.snap, self.snap.jobs
        row_of, ended = jobs.rows, Counter[str]()
        for job_id, promise in promises_in(snap.booked).items():
            row = row_of.get(job_id)
            if row is None or jobs.state[row] >= COMPLETING:
                if promise.says == "yes" and not promise.missed:
                    ended[self._ending(job_id, row, promise)] += 1
            elif promise.says == "yes" and not promise.missed and snap.now_s > promise.due_s + 1:
                because = promise.broken or self.late_because(row)
                ended[because] += 1
                self.say(row, dataclasses.replace(promise, missed=True, broken=because))
                continue
            elif self._is_as_asked(row, promise):
                self.promises[row] = promise
                continue
            elif promise.says == "yes" and not promise.missed:
                ended[promise.broken or "withdrawn"] += 1
            self.book.append(booking.entry(KIND, job_id, None))
        if any(ended.values()):
            self.book.append(totals_in(snap.booked).with_more(ended).entry())

    def _is_as_asked(self, row: int, promise: Promise) -> bool:
        """The deadline is the one that was answered, and the job needs no more than it did then."""
        dues_s = self.needs.dues_s(row)
        if promise.due_s not in dues_s:
            return promise.missed and not dues_s
        if promise.missed or promise.says == "no" or self.snap.jobs.state[row] > PENDING:
            return True
        # A plan of several sizes was answered by the run time in the size that is asked for.
        in_plan = {gpus for *_, gpus in promise.plan}
        rates = [one.rate for one in self.needs.choices(row) if one.gpus in in_plan]
        needs_s = min(self.needs.needs_s(row, rate) for rate in (*rates, None))
        longer = promise.rests_on == "limit" and needs_s > promise.needs_s
        # A plan of an elastic job has sizes of its own.
        sized = self.snap.sizes is not None and row in self.snap.sizes.row
        larger = self.snap.jobs.gpus[row] > promise.gpus and not (promise.plan and sized)
        return not (larger or longer)

    def choice(self, row: int, promise: Promise) -> Choice:
        """The size that was promised to a job that waits, of a plan of several the largest.

        That of one that runs is as it is.
        """
        choices = self.needs.choices(row)
        gpus = max((gpus for *_, gpus in promise.plan), default=0.0)
        return next((one for one in choices if one.gpus == gpus), choices[0])

    def _ending(self, job_id: JobId, row: int | None, promise: Promise) -> str:
        """``kept`` or ``withdrawn``, or why the promise to a job that is over was broken."""
        text = self.snap.seen.texts.get(job_id)
        end_s = self.snap.now_s
        if row is not None:
            end_s = float(self.snap.jobs.end_s[row]) or end_s
        if text is not None and text.ending in ("NODE_FAIL", "BOOT_FAIL"):
            return "node"
        if end_s > promise.due_s + 1:
            return promise.broken or ("estimate" if row is None else self.late_because(row))
        cancelled = text is not None and text.ending.startswith("CANCELLED")
        return promise.broken or "withdrawn" if cancelled else "kept"

    def late_because(self, row: int) -> Cause:
        """The cause if the job at *row* is not done by its deadline."""
        jobs = self.snap.jobs
        if jobs.restarts[row] > self.snap.memory.preemptions[row]:
            return "node"  # Its run was lost: nobody but Slurm requeues a promised job.
        return "estimate" if jobs.state[row] > PENDING else self.cause(row)

    def cause(self, row: int) -> Cause:
        """The reason why no window is left for the job at *row*, which had one."""
        group = int(self.terms.group[row])
        if group < 0 or self.terms.groups[group].is_short:
            return "node"
        return "room" if self.terms.is_preempting else "preemption_off"

    def note(self, row: int, cause: Cause | Literal[""]) -> None:
        """Write down why the promise is broken, the first cause; with none, that it stands."""
        promise = self.promises[row]
        broken = (promise.broken or cause) if cause else ""
        if broken != promise.broken:
            self.say(row, dataclasses.replace(promise, broken=broken))

    def refusal(self, row: int) -> str:
        """The reason why the job is promised nothing, whatever its deadline; empty if none is."""
        if why := self.terms.refused.get(row):
            return why
        if self.needs.needs_s(row) >= FOREVER_S:
            return "it has no time limit"
        group = int(self.terms.group[row])
        if group < 0 or self.needs.capacity(group) < self.needs.gpus(row):
            return "there are too few nodes on which it would come first"
        return ""

    def say(self, row: int, promise: Promise) -> None:
        """Answer the job at *row*, or change the answer."""
        self.promises[row] = promise
        self.book.append(promise.entry(int(self.snap.jobs.job_id[row])))

    def standing(self) -> list[int]:
        """Rows of the jobs with a promise that may be kept, first due first."""
        live = [row for row, p in self.promises.items() if p.says == "yes" and not p.missed]
        return sorted(live, key=lambda r: (self.promises[r].due_s, self.snap.jobs.job_id[r]))

    def new_rows(self) -> list[int]:
        """Rows of the jobs whose deadline is not answered yet, first submitted first."""
        snap, jobs = self.snap, self.snap.jobs
        if snap.due_s is None:
            return []
        live = np.isfinite(snap.due_s) & (jobs.state < COMPLETING) & (jobs.gpus > 0)
        rows = [row for row in live.nonzero()[0].tolist() if row not in self.promises]
        first_s = snap.memory.first_submit_s
        return sorted(rows, key=lambda r: (first_s[r], jobs.job_id[r]))

    def unanswered(self, row: int, lead_s: int = 0) -> Promise:
        """A no to the job at *row*; with the reason, if it is one whatever the deadline."""
        needs, one = self.needs, self.needs.choices(row)[0]
        return Promise(
            says="no",
            due_s=needs.dues_s(row)[0],
            at_s=self.now_s,
            gpus=needs.counted(row, one),
            needs_s=min(needs.needs_s(row, one.rate) + lead_s, FOREVER_S),
            rests_on=needs.rests_on(row),
            why=self.refusal(row),
        )

    def may_start(self, ranked: I64) -> tuple[list[int], float]:
        """Rows of the waiting jobs that may start, the first of *ranked*; and the free GPUs."""
        jobs, nodes = self.snap.jobs, self.snap.seen.nodes
        waits = (jobs.state == PENDING) & (jobs.held == NOT_HELD) & (jobs.gpus > 0) & ~self.started
        holds = (jobs.state > PENDING) & (jobs.state < COMPLETING)
        free = float(nodes.gpus[nodes.up].sum() - jobs.gpus[holds].sum())
        return ranked[waits[ranked]][:MOST_HELD_BACK].tolist(), free

    def open_calendar(self) -> dict[int, int]:
        """Open all resources, less what reservations and the limits of running jobs keep.

        Returns:
            When the GPUs of each running job come back if it has no promise, epoch seconds, by row.
        """
        self._open_resources()
        held = (self.snap.jobs.state > PENDING) & (self.snap.jobs.state < COMPLETING)
        held &= self.snap.jobs.gpus > 0
        return {row: self._hold(row) for row in held.nonzero()[0].tolist()}

    def occupy(self, until_s: Mapping[int, int], promised: Container[int]) -> None:
        """Take the GPUs of running jobs, and of jobs that are about to start.

        Args:
            until_s: When those of each running job come back, epoch seconds, by row.
            promised: Rows of jobs that have taken all that they need.
        """
        for need, end_s in self.needs.holds(until_s):
            self.calendar.take(need, self.now_s, end_s)
        jobs = self.snap.jobs
        for row in (self.started & (jobs.state == PENDING)).nonzero()[0].tolist():
            if row not in promised:
                end = self.now_s + self.terms.lead_s + float(self.terms.holds_s[row])
                self.calendar.take(self.needs.of(row, promised=False), self.now_s, end)

    def _open_resources(self) -> None:
        snap, terms, calendar = self.snap, self.terms, self.calendar
        for g in range(len(terms.groups)):
            calendar.open(("nodes", g), self.needs.capacity(g))
            for begin_s, end_s, gpus in self._reserved(g):
                calendar.take(Need({("nodes", g): gpus}), begin_s, end_s)
        for place, where in enumerate(terms.places):
            calendar.open(("share", place), terms.share * where.gpus)
            for owner in self._owners() if terms.account_share < terms.share else ():
                calendar.open(("owner", *owner, place), terms.account_share * where.gpus)
        quotas = snap.seen.quotas
        if quotas is not None:
            used = quotas.used.copy()
            for row, counts in self.needs.quotas.items():
                for quota, units in counts if snap.jobs.state[row] > PENDING else ():
                    used[quota] -= units
            for quota in {q for counts in self.needs.quotas.values() for q, _ in counts}:
                free = float(quotas.most[quota]) - max(0.0, float(used[quota]))
                calendar.open(("quota", quota), free)

    def _owners(self) -> Iterator[tuple[str, int | str]]:
        rows = self.promises.keys() | set(self.terms.owners)
        if self.snap.due_s is not None:
            rows |= set(np.isfinite(self.snap.due_s).nonzero()[0].tolist())
        yield from {("user", int(self.snap.jobs.uid[row])) for row in rows}
        yield from {("account", account) for account in self.terms.owners.values()}

    def _reserved(self, group: int) -> Iterator[tuple[int, float, float]]:
        """Begin, end and GPUs of the reservations of others on nodes of a group."""
        one, nodes = self.terms.groups[group], self.snap.seen.nodes
        for blocked in self.snap.seen.blocked:
            gpus = float(nodes.of_type(one.kind)[one.nodes & blocked.nodes].sum())
            if gpus:
                yield math.floor(blocked.start_s), math.ceil(min(blocked.end_s, 1e12)), gpus

    def _hold(self, row: int) -> int:
        """Hold the limits of a running job without a promise; when its GPUs come back."""
        promise = self.promises.get(row)
        if promise is None or promise.says == "no" or promise.missed:
            # A limit is freed by the job's end alone: for it nobody is stopped.
            quotas: dict[Resource, float] = {
                ("quota", q): u for q, u in self.needs.quotas.get(row, ())
            }
            self.calendar.take(Need(quotas), self.now_s, self._limit_s(row))
        return self.back_s(row)

    def _limit_s(self, row: int) -> int:
        jobs = self.snap.jobs
        return whole_s(float(jobs.start_s[row] + jobs.limit_s[row]))

    def back_s(self, row: int) -> int:
        """When the GPUs of a running job can be taken back, epoch seconds."""
        back_s = self.snap.now_s + float(self.terms.returns_s[row])
        limit_s = self._limit_s(row)
        return min(limit_s, whole_s(back_s)) if self.terms.is_preempting else limit_s
