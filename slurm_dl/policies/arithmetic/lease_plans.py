"""Promises that jobs are done by their deadlines: each is a plan of whole leases, kept in the book.

A job's plan has as many leases as it needs, as late as can be. Leases that it did without, because
it ran on GPUs that were left over, are dropped afterwards, the earliest first; what it lacks is
filled up where there is room. For a newcomer the plans of others move only if all jobs still have
all their leases before their deadlines.

A job that cannot be stopped once it runs has its leases in a row.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_dl.model.booking import Entry
from slurm_dl.model.jobs import F64, I64, PENDING, Bool
from slurm_dl.model.promise import Piece, Promise, PromiseTerms
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.calendar import Calendar, Need
from slurm_dl.policies.arithmetic.lease_packing import LeaseNeed, latest, pack, pack_exactly
from slurm_dl.policies.arithmetic.promise_book import PromiseBook
from slurm_dl.policies.arithmetic.promise_needs import FOREVER_S, PromiseNeeds, whole_s
from slurm_dl.policies.arithmetic.slots import SlotTable, pieces_of, slot_at

_ROUNDING: Final = 1e-9
_HOUR_S: Final = 3600.0
_INSTANT_S: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRules:
    """The parameters of `chronus.Chronus`."""

    lease_s: float = 1200.0
    margin: float = 0.1
    restart_s: float = 30.0
    node_limit: int = 0  # 0: plans are packed by the greedy rule alone


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leased:
    """The plans that stand after a look."""

    now: Bool  # ``(n,)`` bool, jobs that have the lease under way
    due_s: F64  # ``(n,)`` deadline that each is promised, epoch seconds; inf for the others
    slack_s: F64  # ``(n,)`` seconds between its end, in leases without a gap, and that deadline
    begin_s: F64  # ``(n,)`` begin of the first lease of each waiting one; inf for the others
    barred: Bool  # ``(n,)`` bool, waiting jobs that may not start: they would take others' leases
    book: tuple[Entry, ...]  # What has changed


def leased(snap: Snapshot, terms: PromiseTerms, ranked: I64, rules: LeaseRules) -> Leased:
    """Keep the plans of the book, and answer new deadlines.

    Args:
        ranked: Rows of the jobs in the order in which they are served without promises, best first.
    """
    look = _Look(snap, terms, PromiseNeeds(snap, terms, rules.margin), rules=rules)
    look.settle()
    look.keep()
    for row in look.new_rows():
        look.answer(row)
    barred = look.early(ranked)
    return look.result(barred)


@dataclass(slots=True)
class _Look(PromiseBook):
    """One look at the plans; its steps are called in the order of `leased`."""

    rules: LeaseRules = LeaseRules()
    plans: dict[int, list[int]] = field(default_factory=dict)  # From the lease under way on, by row
    lease: int = 0  # The one under way
    _held_s: dict[int, int] = field(default_factory=dict)  # End of their holds, by running row
    _needs: dict[int, Need] = field(default_factory=dict)  # In a lease to come, by row
    table: SlotTable = field(default_factory=lambda: SlotTable(Calendar(0.0), 1.0, 0.0))

    @property
    def _end_s(self) -> float:
        return (self.lease + 1) * self.rules.lease_s

    # Plans of the book.

    def keep(self) -> None:
        """Bring the plans up to what the jobs have done so far."""
        self.lease = slot_at(self.snap.now_s, self.rules.lease_s)
        rows, self._held_s = self.standing(), self.open_calendar()
        for row in rows:
            self.plans[row] = self._leases_in(self.promises[row])
            if row in self._held_s:
                if self.lease in self.plans[row]:
                    self._held_s[row] = max(self._held_s[row], whole_s(self._end_s))
                self.calendar.take(self.needs.of(row), self.now_s, self._held_s[row])
        self.occupy(self._held_s, rows)
        due_s = [at_s for row in self.new_rows() for at_s in self.needs.dues_s(row)]
        due_s += [self.promises[row].due_s for row in rows]
        self.table = SlotTable(self.calendar, self.rules.lease_s, max(due_s, default=0))
        for row in rows:
            self._drop_surplus(row)
            self._take(row)
        for row in rows:
            self._fill(row)

    def _leases_in(self, promise: Promise) -> list[int]:
        """The leases of a plan that are not over; a window of another policy is a plan as well."""
        lease_s, found = self.rules.lease_s, list[int]()
        for begin_s, end_s, _ in promise.plan or ((promise.begin_s or 0, promise.end_s or 0, 0),):
            # Pieces are in whole seconds.
            first, before = (
                math.ceil((begin_s - 0.5) / lease_s),
                math.floor((end_s + 0.5) / lease_s),
            )
            found += range(max(first, self.lease), before)
        return found

    def _drop_surplus(self, row: int) -> None:
        later = self._later(row)
        # One too many is kept rather than one too few: it can be dropped later.
        wanted = self._wanted(row, self._useful_s(row) / self.rules.lease_s)
        gone = set(later[: max(0, len(later) - wanted)])
        self.plans[row] = [lease for lease in self.plans[row] if lease not in gone]

    def _fill(self, row: int) -> None:
        """Find leases for a job that has too few left: it started late, or it runs longer."""
        wanted, runs = self._wanted(row), self.snap.jobs.state[row] > PENDING
        is_late = wanted > len(self._later(row))
        if self._is_lasting(row) and runs:
            is_late = self.needs.end_s(row) > self.promises[row].due_s
        elif is_late:
            now = [] if self._is_lasting(row) else self.plans[row][: -len(self._later(row)) or None]
            self._take(row, times=-1)
            one = self._lease_need(row, wanted if now else self._total(row), self.lease + 1)
            found = latest(dataclasses.replace(one, need=one.need.without_shares()), self.table)
            if found is not None:
                self.plans[row], is_late = [*now, *found.tolist()], False
            self._take(row)
        self.note(row, self.late_because(row) if is_late else "")

    # New deadlines.

    def answer(self, row: int) -> None:
        """Promise a new job a plan, or say no."""
        asked_s = self.needs.dues_s(row)
        promise = self.unanswered(row)
        if why := promise.why or self._refusal(row):
            self.say(row, dataclasses.replace(promise, why=why))
            return
        for due_s in asked_s:
            self.promises[row] = dataclasses.replace(promise, says="yes", due_s=due_s)
            plan = self._planned(row)
            if plan is not None:
                self.plans[row] = plan
                self._take(row)
                return
        why = "its leases would be in use or promised, or its share be spent"
        self.say(row, dataclasses.replace(promise, nearest_s=self._nearest_s(row), why=why))

    def _refusal(self, row: int) -> str:
        if self._useful_s(row) <= 0:
            return "a lease is over before a job has started"
        if self._is_lasting(row) and self.started[row]:
            return "nobody takes its GPUs back: it runs to its end without a promise"
        return ""

    def _planned(self, row: int) -> list[int] | None:
        """The leases of a newcomer; None if there is no room."""
        one = self._lease_need(row, self._total(row), self._first())
        if one.before - one.first < one.leases:
            return None
        found = latest(one, self.table)
        if found is None and self.terms.most_per_hour == math.inf:
            found = self._anew(one)
        plan = None if found is None else found.tolist()
        return None if plan is None or self._is_over_budget(row, plan) else plan

    def _first(self) -> int:
        """The first lease that newcomers may have: not the one under way, but at its begin."""
        begun = self.snap.now_s - self.lease * self.rules.lease_s > _INSTANT_S
        return self.lease + begun

    def _anew(self, one: LeaseNeed) -> I64 | None:
        """Plan all jobs anew, if the newcomer fits with all of them; its leases."""
        rows = [row for row in self.plans if not self._is_lasting(row)]
        before, self.table = self.table, self.table.copy()
        for row in rows:
            self._take(row, times=-1, later=True)
        if latest(one, self.table) is None:
            self.table = before
            return None
        wanted = [self._lease_need(r, len(self._to_come(r)), self.lease + 1) for r in rows]
        found = pack([*wanted, one], self.table)
        if found is None and self.rules.node_limit:
            found = pack_exactly([*wanted, one], self.table, self.rules.node_limit)
        if found is None:
            self.table = before
            return None
        for row, mine in zip(rows, found, strict=False):
            gone = set(self._to_come(row))
            self.plans[row] = [lease for lease in self.plans[row] if lease not in gone]
            self.plans[row] += mine.tolist()
            self.table.take(self._need(row), mine)
        return found[-1]

    def _is_over_budget(self, row: int, plan: list[int]) -> bool:
        """True if more GPUs would have to be taken back within an hour than may be."""
        if self.terms.most_per_hour == math.inf:
            return False
        near, all_plans = _HOUR_S / self.rules.lease_s, {**self.plans, row: plan}
        begins = [(t, self.promises[r].gpus) for r, p in all_plans.items() for t in _begins(p)]
        return any(
            sum(gpus for t, gpus in begins if abs(t - mine) < near) > self.terms.most_per_hour
            for mine in _begins(plan)
        )

    def _nearest_s(self, row: int) -> int | None:
        """The earliest end that could be promised without moving a plan, but for one in a row."""
        if self._is_lasting(row):
            return None
        first, count = self._first(), max(1, self._total(row))
        room = self.table.fits(self._need(row)).nonzero()[0] + self.table.first
        room = room[room >= first]
        beyond = max(self.table.first + len(self.table), first)
        last = room[count - 1] if len(room) >= count else beyond + count - len(room) - 1
        return math.ceil((int(last) + 1) * self.rules.lease_s)

    # Early starts.

    def early(self, ranked: I64) -> Bool:
        """``(n,)`` bool, waiting jobs that could not be stopped in time for others' leases."""
        jobs, snap, holds_s = self.snap.jobs, self.snap, self.terms.holds_s
        barred = np.zeros(len(jobs), dtype=np.bool_)
        beyond = snap.now_s + holds_s > self._end_s + _INSTANT_S
        rows, free = self.may_start(ranked[beyond[ranked]])
        for row in rows if self.plans else ():
            plan = self.plans.get(row)
            if plan is not None and self.lease in plan:
                continue
            need = self.needs.of(row, promised=plan is not None)
            last = slot_at(snap.now_s + float(holds_s[row]) - _INSTANT_S, self.rules.lease_s)
            rest = np.array(sorted(set(range(self.lease + 1, last + 1)) - set(plan or ())))
            at = rest[rest < self.table.first + len(self.table)].astype(np.int64)
            barred[row] = not self.table.fits(need)[at - self.table.first].all()
            if not barred[row] and jobs.gpus[row] <= free:
                free -= jobs.gpus[row]
                self.table.take(need, at)
        return barred

    def result(self, barred: Bool) -> Leased:
        """All that the decision goes by."""
        n = len(self.snap.jobs)
        now, (begin_s, due_s, slack_s) = np.zeros(n, dtype=np.bool_), np.full((3, n), np.inf)
        for row, plan in self.plans.items():
            promise, pieces = self.promises[row], self._pieces(row)
            if promise.plan != pieces or promise.at_s == self.now_s:
                span = (pieces[0][0], pieces[-1][1]) if pieces else (None, None)
                self.say(
                    row, dataclasses.replace(promise, plan=pieces, begin_s=span[0], end_s=span[1])
                )
            now[row], due_s[row] = self.lease in plan, promise.due_s
            leases = self.needs.left_s(row) / self._useful_s(row)
            slack_s[row] = promise.due_s - self.snap.now_s - leases * self.rules.lease_s
            if plan and self.snap.jobs.state[row] == PENDING:
                begin_s[row] = plan[0] * self.rules.lease_s
        return Leased(
            now=now, due_s=due_s, slack_s=slack_s, begin_s=begin_s, barred=barred,
            book=tuple(self.book),
        )  # fmt: skip

    def _pieces(self, row: int) -> tuple[Piece, ...]:
        leases = np.array(self.plans[row], dtype=np.int64)
        gpus = np.full(len(leases), float(self.snap.jobs.gpus[row]))
        return pieces_of(leases, gpus, self.rules.lease_s)

    # What a job needs.

    def _useful_s(self, row: int) -> float:
        """Seconds of a lease in which a job trains; the others go into its start."""
        lease_s, gpus = self.rules.lease_s, max(1.0, float(self.snap.jobs.gpus[row]))
        start_s = max((1 + math.log2(gpus)) * self.rules.restart_s, self.terms.lead_s)
        return min(lease_s / (1 + start_s / lease_s), lease_s - self.terms.lead_s)

    def _total(self, row: int, less_s: float = 0.0) -> int:
        """Leases in which a job does what is left of it, but for *less_s*."""
        useful_s, left_s = self._useful_s(row), self.needs.left_s(row) - less_s
        return max(0, math.ceil(left_s / useful_s - _ROUNDING)) if useful_s > 0 else FOREVER_S

    def _wanted(self, row: int, part: float = 1.0) -> int:
        """Leases after the one under way that a job with a plan needs.

        Args:
            part: Share of what is left of this lease in which a running job trains.
        """
        if self.lease not in self.plans[row]:
            return self._total(row)
        rest_s = self._end_s - self.snap.now_s
        waits = self.snap.jobs.state[row] == PENDING
        return self._total(row, min(self._useful_s(row), rest_s) if waits else part * rest_s)

    def _is_lasting(self, row: int) -> bool:
        """True if the job cannot be stopped at the end of a lease."""
        return float(self.terms.holds_s[row]) + self.terms.lead_s > self.rules.lease_s

    def _later(self, row: int) -> list[int]:
        """The leases of a plan after the one under way."""
        return [lease for lease in self.plans[row] if lease > self.lease]

    def _to_come(self, row: int) -> list[int]:
        """Likewise, of those that the job does not hold already."""
        held_s = self._held_s.get(row, 0)
        return [t for t in self._later(row) if t * self.rules.lease_s >= held_s - _INSTANT_S]

    def _take(self, row: int, times: int = 1, *, later: bool = False) -> None:
        """Hold the leases of a plan; with *times* -1 give them back."""
        mine = self._to_come(row)
        if not later and row not in self._held_s:
            mine = self.plans[row]
        self.table.take(self._need(row), np.array(mine, dtype=np.int64), times)

    def _need(self, row: int) -> Need:
        if row not in self._needs:
            waits = self.snap.jobs.state[row] == PENDING
            held = self.needs.choices(row)[0]
            self._needs[row] = self.needs.of(row) if waits else self.needs.at_size(row, held)
        return self._needs[row]

    def _lease_need(self, row: int, leases: int, first: int) -> LeaseNeed:
        return LeaseNeed(
            need=self._need(row),
            gpus=self.needs.gpus(row),
            leases=leases,
            first=max(first, math.ceil(self._held_s.get(row, 0) / self.rules.lease_s - _ROUNDING)),
            before=slot_at(self.promises[row].due_s, self.rules.lease_s),
            together=self._is_lasting(row),
        )


def _begins(plan: list[int]) -> list[int]:
    """The leases of a plan in which its job has to be started."""
    return [lease for lease in plan if lease - 1 not in plan]
