"""Promises that jobs are done by their deadlines: each is one whole window, kept in the book.

A window is given as late as it can be, once, to jobs in the order of their first submission, and is
never moved for another job. A job that runs under a promise is not to be preempted. One that waits
needs its GPUs from the begin of its window on; before that it may start where that leaves all other
windows free. Jobs without a promise may not start where nobody could take their GPUs back in time.

Windows are lost only with nodes, or to jobs that the calendar could not foresee; then they are
fitted again in the order of their deadlines.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from slurm_dl.model import booking
from slurm_dl.model.booking import Entry
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, I64, NOT_HELD, PENDING, Bool
from slurm_dl.model.promise import (
    KIND,
    Cause,
    Promise,
    PromiseTerms,
    promises_in,
    totals_in,
)
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.calendar import Calendar, Need, Resource
from slurm_dl.policies.arithmetic.promise_needs import FOREVER_S, PromiseNeeds, whole_s

_HOUR_S: Final = 3600.0
MOST_HELD_BACK: Final = 1000  # Waiting jobs, best first, that are looked at whether they may start


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Promised:
    """The promises that stand after a look.

    Attributes:
        running: ``(n,)`` bool, jobs that run under one.
        pressing: ``(n,)`` bool, waiting jobs that need their GPUs now.
        barred: ``(n,)`` bool, waiting jobs that may not start yet.
        begin_s: ``(n,)`` begin of the window of each waiting job, epoch seconds; inf: it has none.
        due_s: ``(n,)`` deadline of each job with a promise, epoch seconds; inf for the others.
        book: What has changed.
    """

    running: Bool
    pressing: Bool
    barred: Bool
    begin_s: F64
    due_s: F64
    book: tuple[Entry, ...]


def promised(snap: Snapshot, terms: PromiseTerms, ranked: I64, margin: float) -> Promised:
    """Keep the promises of the book, and answer new deadlines.

    Args:
        ranked: Rows of the jobs in the order in which they are served without promises, best first.
        margin: Share of a run time that is added where it is no time limit, 0 or more.
    """
    look = _Look(snap, terms, PromiseNeeds(snap, terms, margin))
    look.settle()
    look.keep()
    look.answer()
    barred = look.early(ranked)
    return look.result(barred)


@dataclass(slots=True)
class _Look:
    """One look at the promises; its steps are called in the order of `promised`."""

    snap: Snapshot
    terms: PromiseTerms
    needs: PromiseNeeds
    now_s: int = 0
    calendar: Calendar = field(default_factory=lambda: Calendar(0.0))
    promises: dict[int, Promise] = field(default_factory=dict)  # Of live jobs, by row
    windows: dict[int, tuple[int, int]] = field(default_factory=dict)  # That are kept, by row
    book: list[Entry] = field(default_factory=list)
    _started: Bool = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    def __post_init__(self) -> None:
        jobs = self.snap.jobs
        self.now_s = math.ceil(self.snap.now_s)
        self.calendar = Calendar(self.now_s)
        taking = [b for h in self.snap.handovers for b in h.beneficiaries]
        # Who gets the GPUs of a hand-over has them as good as already.
        self._started = (jobs.state > PENDING) | np.isin(jobs.job_id, taking)

    # The book.

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
                because = promise.broken or self._late_because(row)
                ended[because] += 1
                self._say(row, dataclasses.replace(promise, missed=True, broken=because))
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
        due_s = self.needs.due_s(row)
        if promise.due_s != due_s:
            return promise.missed and due_s is None
        if promise.missed or promise.says == "no" or self.snap.jobs.state[row] > PENDING:
            return True
        longer = promise.rests_on == "limit" and self.needs.needs_s(row) > promise.needs_s
        return self.snap.jobs.gpus[row] <= promise.gpus and not longer

    def _ending(self, job_id: JobId, row: int | None, promise: Promise) -> str:
        """``kept`` or ``withdrawn``, or why the promise to a job that is over was broken."""
        text = self.snap.seen.texts.get(job_id)
        end_s = self.snap.now_s
        if row is not None:
            end_s = float(self.snap.jobs.end_s[row]) or end_s
        if text is not None and text.ending in ("NODE_FAIL", "BOOT_FAIL"):
            return "node"
        if end_s > promise.due_s + 1:
            return promise.broken or ("estimate" if row is None else self._late_because(row))
        cancelled = text is not None and text.ending.startswith("CANCELLED")
        return promise.broken or "withdrawn" if cancelled else "kept"

    def _late_because(self, row: int) -> Cause:
        jobs = self.snap.jobs
        if jobs.restarts[row] > self.snap.memory.preemptions[row]:
            return "node"  # Its run was lost: nobody but Slurm requeues a promised job.
        return "estimate" if jobs.state[row] > PENDING else self._cause(row)

    def _cause(self, row: int) -> Cause:
        """The reason why no window is left for the job at *row*, which had one."""
        group = int(self.terms.group[row])
        if group < 0 or self.terms.groups[group].is_short:
            return "node"
        return "room" if self.terms.is_preempting else "preemption_off"

    def keep(self) -> None:
        """Find the windows that are promised already; those that do not fit any more anew."""
        live = [row for row, p in self.promises.items() if p.says == "yes" and not p.missed]
        by_due = sorted(live, key=lambda r: (self.promises[r].due_s, self.snap.jobs.job_id[r]))
        self._open_calendar()
        running = [r for r in by_due if self._started[r]]
        held = self.snap.jobs.state > PENDING
        held &= (self.snap.jobs.state < COMPLETING) & (self.snap.jobs.gpus > 0)
        until_s = {row: self._hold(row) for row in held.nonzero()[0].tolist()}
        for row in running:
            until_s[row] = self._keep_running(row, until_s.get(row, self.now_s))
        for need, end_s in self.needs.holds(until_s):
            self.calendar.take(need, self.now_s, end_s)
        for row in (self._started & ~held).nonzero()[0].tolist():
            if row not in running and self.snap.jobs.state[row] == PENDING:
                end = self.now_s + self.terms.lead_s + float(self.terms.holds_s[row])
                self.calendar.take(self.needs.of(row, promised=False), self.now_s, end)
        waiting = [r for r in by_due if not self._started[r]]
        # Who has lost its window gets another only in what the others leave.
        for row in sorted(waiting, key=lambda r: bool(self.promises[r].broken)):
            self._keep_waiting(row)

    def _keep_running(self, row: int, back_s: int) -> int:
        """End of the hold of its GPUs, epoch seconds; *back_s*: without a promise."""
        promise, jobs = self.promises[row], self.snap.jobs
        since_s = max(float(jobs.start_s[row]), promise.at_s)
        lasts = jobs.state[row] > PENDING and self.now_s > since_s + promise.needs_s + 1
        if lasts and promise.rests_on != "limit":
            self._break(row, "estimate")
            return back_s
        end_s = max(self.now_s + 1, self.needs.end_s(row))
        self._break(row, "" if end_s <= promise.due_s else self._late_because(row))
        self._take(row, self.now_s, end_s)
        return end_s

    def _keep_waiting(self, row: int) -> None:
        promise, group = self.promises[row], int(self.terms.group[row])
        if group < 0 or self.needs.capacity(group) < self.needs.gpus(row):
            self._break(row, self._cause(row))
            return
        begin_s, end_s = promise.begin_s or 0, promise.end_s or 0
        needs_s, need = self.needs.needs_s(row), self.needs.of(row).without_shares()
        lasts_s = needs_s + math.ceil(self.terms.lead_s)
        found_s = None
        if begin_s <= self.now_s:
            # A job that ran and is back in the queue need not begin at once.
            if self.snap.memory.ran_s[row] > 0 and self.now_s + lasts_s < promise.due_s:
                found_s = self.calendar.latest_s(need, lasts_s, promise.due_s)
            if found_s is None or found_s <= self.now_s:
                self._keep_pressing(row, need, needs_s)
                return
        elif not promise.broken and self.calendar.fits(need, begin_s, end_s):
            self._take(row, begin_s, end_s)
            return
        else:
            found_s = self.calendar.latest_s(need, lasts_s, promise.due_s)
        if found_s is None:
            self._break(row, self._cause(row))
            return
        begin = math.floor(found_s)
        moved = dataclasses.replace(promise, begin_s=begin, end_s=begin + lasts_s, broken="")
        self._say(row, moved)
        self._take(row, begin, begin + lasts_s)

    def _keep_pressing(self, row: int, need: Need, needs_s: int) -> None:
        """Serve a job whose window has begun, even if late: it seldom runs for its time limit."""
        promise = self.promises[row]
        begin_s, end_s = promise.begin_s or 0, promise.end_s or 0
        until_s = max(end_s, self.now_s + needs_s)
        self.windows[row] = (begin_s, end_s)
        if self.calendar.fits(need, self.now_s, until_s):
            self._take(row, begin_s, until_s)
        late = self.now_s + needs_s > promise.due_s
        self._break(row, self._cause(row) if late else "")

    def _break(self, row: int, cause: Cause | Literal[""]) -> None:
        """Write down why the promise is broken, the first cause; with none, that it stands."""
        promise = self.promises[row]
        broken = (promise.broken or cause) if cause else ""
        if broken != promise.broken:
            self._say(row, dataclasses.replace(promise, broken=broken))

    def answer(self) -> None:
        """Promise new jobs a window, or say no, by their first submission."""
        snap, jobs = self.snap, self.snap.jobs
        if snap.due_s is None:
            return
        live = np.isfinite(snap.due_s) & (jobs.state < COMPLETING) & (jobs.gpus > 0)
        rows = [row for row in live.nonzero()[0].tolist() if row not in self.promises]
        first_s = snap.memory.first_submit_s
        for row in sorted(rows, key=lambda r: (first_s[r], jobs.job_id[r])):
            self._answer(row)

    def _answer(self, row: int) -> None:
        due_s = self.needs.due_s(row) or 0
        needs_s = self.needs.needs_s(row)
        lead_s = 0 if self._started[row] else math.ceil(self.terms.lead_s)
        promise = Promise(
            says="no",
            due_s=due_s,
            at_s=self.now_s,
            gpus=self.needs.gpus(row),
            needs_s=min(needs_s + lead_s, FOREVER_S),
            rests_on=self.needs.rests_on(row),
        )
        if why := self._refusal(row):
            self._say(row, dataclasses.replace(promise, why=why))
            return
        need, lasts_s = self.needs.of(row), needs_s + lead_s
        begin_s: float | None = None
        if not self._started[row]:
            begin_s = self.calendar.latest_s(need, lasts_s, due_s)
        elif self.now_s + lasts_s <= due_s and self._may_go_on(row, need, self.now_s + lasts_s):
            begin_s = self.now_s
        if begin_s is None or self._is_over_budget(row, begin_s):
            early_s = self.calendar.earliest_s(need, lasts_s)
            nearest_s = None if early_s is None else math.ceil(early_s) + lasts_s
            why = "its GPUs would be in use or promised, or its share be spent"
            if self.now_s + lasts_s > due_s:
                why = "its run time, with what it takes to free GPUs, ends later"
            self._say(row, dataclasses.replace(promise, nearest_s=nearest_s, why=why))
            return
        begin = math.floor(begin_s)
        self._say(
            row, dataclasses.replace(promise, says="yes", begin_s=begin, end_s=begin + lasts_s)
        )
        self._take(row, begin, begin + lasts_s)

    def _may_go_on(self, row: int, need: Need, end_s: int) -> bool:
        """True if nobody has to take back the GPUs of a job that runs, or is about to."""
        if self.snap.jobs.state[row] == PENDING:
            return self.calendar.fits(need, self.now_s, end_s)
        nodes, back_s = self.needs.on_nodes(row), self._back_s(row)
        if not (
            self.calendar.fits(need, self.now_s, end_s)
            and self.calendar.fits(nodes, min(back_s, end_s), end_s)
        ):
            return False
        self.calendar.take(nodes, back_s, end_s)
        return True

    def _is_over_budget(self, row: int, begin_s: float) -> bool:
        """True if more GPUs would have to be taken back within an hour than may be."""
        near = [r for r, (first_s, _) in self.windows.items() if abs(first_s - begin_s) < _HOUR_S]
        gpus = sum(self.promises[r].gpus for r in near if not self._started[r])
        return not self._started[row] and gpus + self.needs.gpus(row) > self.terms.most_per_hour

    def _refusal(self, row: int) -> str:
        """The reason why the job is promised nothing, whatever its deadline; empty if none is."""
        if why := self.terms.refused.get(row):
            return why
        if self.needs.needs_s(row) >= FOREVER_S:
            return "it has no time limit"
        group = int(self.terms.group[row])
        if group < 0 or self.needs.capacity(group) < self.needs.gpus(row):
            return "there are too few nodes on which it would come first"
        return ""

    # Early starts.

    def early(self, ranked: I64) -> Bool:
        """``(n,)`` bool, waiting jobs that may not start now: they would take a window."""
        jobs = self.snap.jobs
        barred = np.zeros(len(jobs), dtype=np.bool_)
        if not self.windows:
            return barred
        waits = (jobs.state == PENDING) & (jobs.held == NOT_HELD) & (jobs.gpus > 0)
        rows = ranked[(waits & ~self._started)[ranked]][:MOST_HELD_BACK]
        nodes, holding = self.snap.seen.nodes, (jobs.state > PENDING) & (jobs.state < COMPLETING)
        free = float(nodes.gpus[nodes.up].sum() - jobs.gpus[holding].sum())
        for row in rows.tolist():
            window = self.windows.get(row)
            if window is not None and window[0] <= self.now_s:
                continue
            need = self.needs.of(row, promised=window is not None)
            end_s = self.needs.end_s(row) if window else self.now_s + float(self.terms.holds_s[row])
            if window is not None:
                self.calendar.take(need, *window, times=-1)
            barred[row] = not self.calendar.fits(need, self.now_s, end_s)
            if window is not None:
                self.calendar.take(need, *window)
            displaces = window is not None or self.terms.holds_s[row] < jobs.limit_s[row]
            starts = displaces or jobs.gpus[row] <= free
            if not barred[row] and starts:
                free -= jobs.gpus[row] if window is None else 0
                until_s = end_s if window is None else min(end_s, window[0])
                self.calendar.take(need, self.now_s, until_s)
        return barred

    def result(self, barred: Bool) -> Promised:
        """All that the decision goes by."""
        n = len(self.snap.jobs)
        running, pressing = np.zeros((2, n), dtype=np.bool_)
        begin_s, due_s = np.full((2, n), np.inf)
        for row, (first_s, _) in self.windows.items():
            due_s[row] = self.promises[row].due_s
            if self.snap.jobs.state[row] > PENDING:
                running[row] = True
            else:
                pressing[row], begin_s[row] = first_s <= self.now_s, first_s
        return Promised(
            running=running,
            pressing=pressing,
            barred=barred,
            begin_s=begin_s,
            due_s=due_s,
            book=tuple(self.book),
        )

    # What a job needs.

    def _say(self, row: int, promise: Promise) -> None:
        self.promises[row] = promise
        self.book.append(promise.entry(int(self.snap.jobs.job_id[row])))

    def _take(self, row: int, begin_s: int, end_s: int) -> None:
        self.windows[row] = (begin_s, end_s)
        self.calendar.take(self.needs.of(row), begin_s, end_s)

    # What there is.

    def _open_calendar(self) -> None:
        """Open all resources, less what jobs without a promise and reservations keep."""
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
        return self._back_s(row)

    def _limit_s(self, row: int) -> int:
        jobs = self.snap.jobs
        return whole_s(float(jobs.start_s[row] + jobs.limit_s[row]))

    def _back_s(self, row: int) -> int:
        back_s = self.snap.now_s + float(self.terms.returns_s[row])
        limit_s = self._limit_s(row)
        return min(limit_s, whole_s(back_s)) if self.terms.is_preempting else limit_s
