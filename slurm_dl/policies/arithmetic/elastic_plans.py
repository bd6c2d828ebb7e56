"""Plans of jobs with deadlines whose size may change from slot to slot.

Each promised job has a plan: in the slots before its deadline, filled backwards, as many GPUs as
the minimum satisfactory share, or the largest of its smaller sizes where fewer are free. Plans are
made anew at each look, first due first; where one would not fit, all keep those they had.

Source: Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep
Learning", ASPLOS 2023, section 4 (minimum satisfactory share, elastic resource allocation).
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_dl.model.jobs import COMPLETING, F64, I32, I64, PENDING, Bool
from slurm_dl.model.promise import Piece, PromiseTerms
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.calendar import Need
from slurm_dl.policies.arithmetic.promise_book import PromiseBook
from slurm_dl.policies.arithmetic.promise_needs import Choice, PromiseNeeds
from slurm_dl.policies.arithmetic.promises import Promised
from slurm_dl.policies.arithmetic.slots import SlotTable, pieces_of, slot_at

_ROUNDING: Final = 1e-6  # Of work, seconds
_NO_SIZE: Final = -1

Plan = I64
"""``(slots,)`` index of a size in each slot from the one under way on, or -1: none."""


def minimum_share(largest: I64, rate: F64, work_s: float, lasts_s: F64) -> Plan | None:
    """The plan of the least size with which a job is done in time; None if no size is enough.

    Slots are filled from the last one backwards with that size, or with the largest smaller one
    that is free, until the work is done.

    Args:
        largest: ``(slots,)`` index of the largest size that is free in each slot, -1: none. The
            deadline is the end of the last one.
        rate: ``(sizes,)`` speed in each size, fewest GPUs first.
        work_s: What is left, seconds at speed 1.
        lasts_s: ``(slots,)`` length of each slot, seconds.
    """
    for most in range(len(rate)):
        plan = np.minimum(largest, most)
        if done_s(plan, rate, lasts_s) >= work_s - _ROUNDING:
            return latest_part(plan, rate, work_s, lasts_s)
    return None


def done_s(plan: Plan, rate: F64, lasts_s: F64) -> float:
    """Work that a plan does, seconds at speed 1."""
    return float((np.append(rate, 0.0)[plan] * lasts_s[: len(plan)]).sum())


def latest_part(plan: Plan, rate: F64, work_s: float, lasts_s: F64) -> Plan:
    """The latest slots of a plan that do the work; all of it if they do not."""
    done = np.cumsum((np.append(rate, 0.0)[plan] * lasts_s[: len(plan)])[::-1])
    used = int(done.searchsorted(work_s - _ROUNDING)) + 1 if work_s > _ROUNDING else 0
    part = plan.copy()
    part[: max(len(plan) - used, 0)] = _NO_SIZE
    return part


def planned(
    snap: Snapshot, terms: PromiseTerms, ranked: I64, *, margin: float, slot_s: float
) -> Promised:
    """Keep the promises of the book, and answer new deadlines.

    Args:
        ranked: Rows of the jobs in the order in which they are served without promises, best first.
        margin: Share of a run time that is added where it is no time limit, 0 or more.
        slot_s: Length of a slot, seconds, above 0.
    """
    look = _Plans(snap, terms, PromiseNeeds(snap, terms, margin), slot_s=slot_s)
    look.settle()
    look.keep()
    look.answer()
    return look.result(ranked)


@dataclass(slots=True)
class _Plans(PromiseBook):
    """One look; its steps are called in the order of `planned`."""

    slot_s: float = 60.0
    free: SlotTable = field(init=False)  # Without what is promised
    left: SlotTable = field(init=False)  # With it
    lasts_s: F64 = field(init=False)  # Length of each slot, of the one under way what is left of it
    plans: dict[int, Plan] = field(default_factory=dict)  # Of promised jobs, by row
    _of: dict[int, _Sizes] = field(default_factory=dict)

    def keep(self) -> None:
        """Plan the promises of the book anew, or keep the plans that they have."""
        rows = self.standing()
        until_s = self.open_calendar()
        for row in rows:
            until_s.pop(row, None)
        self.occupy(until_s, rows)
        dues_s = [self.promises[row].due_s for row in rows]
        dues_s += [due_s for row in self.new_rows() for due_s in self.needs.dues_s(row)]
        self.free = SlotTable(self.calendar, self.slot_s, max(dues_s, default=0))
        self.lasts_s = np.full(len(self.free), self.slot_s, dtype=np.float64)
        self.lasts_s[0] = (self.free.first + 1) * self.slot_s - self.snap.now_s
        found = self._all_anew(rows)
        if found is None:
            found = self.free.copy(), {row: self._kept(row) for row in rows}
            for row, plan in found[1].items():
                self._take(found[0], row, plan)
        self.left, self.plans = found
        for row in rows:
            done = done_s(self.plans[row], self._sizes(row).rate, self.lasts_s)
            short = done < self._work_s(row) - _ROUNDING
            self.note(row, self.late_because(row) if short else "")

    def answer(self) -> None:
        """Promise new jobs a plan, or say no, by their first submission."""
        for row in self.new_rows():
            dues_s = self.needs.dues_s(row)
            no = self.unanswered(row)
            self.promises[row] = no
            if not no.why and not any(self._admit(row, due_s) for due_s in dues_s):
                no = dataclasses.replace(no, why="no plan in its sizes leaves all others theirs")
            if row not in self.plans:
                self.say(row, no)

    def _admit(self, row: int, due_s: int) -> bool:
        """Plan for one more job: all anew, or else it alone in what the others leave."""
        self.promises[row] = dataclasses.replace(self.promises[row], says="yes", due_s=due_s)
        ids = self.snap.jobs.job_id
        rows = sorted([*self.plans, row], key=lambda r: (self.promises[r].due_s, ids[r]))
        found = self._all_anew(rows)
        if found is not None:
            self.left, self.plans = found
        elif (alone := self._plan(self.left, row)) is not None:
            self.plans[row] = alone
            self._take(self.left, row, alone)
        return row in self.plans

    def _all_anew(self, rows: Iterable[int]) -> tuple[SlotTable, dict[int, Plan]] | None:
        table, plans = self.free.copy(), dict[int, Plan]()
        for row in rows:
            plan = self._plan(table, row)
            if plan is None:
                return None
            plans[row] = plan
            self._take(table, row, plan)
        return table, plans

    def _plan(self, table: SlotTable, row: int) -> Plan | None:
        slots = slot_at(self.promises[row].due_s, self.slot_s) - table.first
        mine = self._sizes(row)
        largest = table.largest(mine.needs, max(slots, 0))
        if self.lasts_s[0] < self.slot_s - _ROUNDING and len(largest):
            # The slot under way is not whole any more: its sizes stay as they are.
            largest[0] = self._size_now(row)
        return minimum_share(largest, mine.rate, self._work_s(row), self.lasts_s)

    def _kept(self, row: int) -> Plan:
        mine, first = self._sizes(row), self.free.first
        plan = np.full(len(self.free), _NO_SIZE, dtype=np.int64)
        for begin_s, end_s, gpus in self.promises[row].plan:
            slots = slice(
                max(slot_at(begin_s, self.slot_s) - first, 0),
                max(slot_at(end_s, self.slot_s) - first, 0),
            )
            plan[slots] = mine.gpus.index(gpus) if gpus in mine.gpus else _NO_SIZE
        return latest_part(plan, mine.rate, self._work_s(row), self.lasts_s)

    def _take(self, table: SlotTable, row: int, plan: Plan) -> None:
        for i, need in enumerate(self._sizes(row).needs):
            at = (plan == i).nonzero()[0]
            if len(at):
                table.take(need, at + table.first)

    def _sizes(self, row: int) -> _Sizes:
        if row not in self._of:
            needs, jobs = self.needs, self.snap.jobs
            found = needs.sizes_of(row) or [Choice(AS_ASKED, float(jobs.gpus[row]))]
            self._of[row] = _Sizes(
                [one.size for one in found],
                [one.gpus for one in found],
                np.array([one.rate for one in found]),
                [needs.at_size(row, one) for one in found],
            )
        return self._of[row]

    def _work_s(self, row: int) -> float:
        """What is left at speed 1; with the time of a start, at full speed, if it waits."""
        start_s = 0.0 if self.started[row] else self.terms.lead_s
        return self.needs.left_s(row, 1.0) + start_s * float(self._sizes(row).rate.max())

    def _size_now(self, row: int) -> int:
        """The size that a job has under its plan; -1: none."""
        now_s, mine = self.snap.now_s, self._sizes(row)
        under = any(begin_s <= now_s < end_s for begin_s, end_s, _ in self.promises[row].plan)
        if not (under and self.started[row]):
            return _NO_SIZE
        holds = float(self.snap.jobs.gpus[row])
        return sum(gpus <= holds for gpus in mine.gpus) - 1

    # The sizes of now.

    def result(self, ranked: I64) -> Promised:
        """All that the decision goes by."""
        n, waits = len(self.snap.jobs), self.snap.jobs.state == PENDING
        planned_now, later = np.zeros((2, n), dtype=np.bool_)
        due_s, begin_s = np.full((2, n), np.inf)
        for row, plan in self.plans.items():
            promise, pieces = self.promises[row], self._pieces(row, plan)
            begin = pieces[0][0] if pieces else self.now_s
            end = pieces[-1][1] if pieces else self.now_s
            self.say(row, dataclasses.replace(promise, begin_s=begin, end_s=end, plan=pieces))
            due_s[row], begin_s[row] = promise.due_s, begin
            # Who is done but for rounding, or late, runs on.
            planned_now[row] = not pieces or begin <= self.snap.now_s
            later[row] = not planned_now[row]
        barred = self._barred(ranked)
        least = np.full(n, AS_ASKED, dtype=np.int32)
        for row in planned_now.nonzero()[0].tolist():
            least[row] = self._sizes(row).sizes[max(int(self.plans[row][:1].max(initial=0)), 0)]
        return Promised(
            running=planned_now & ~waits,
            pressing=planned_now & waits,
            barred=barred,
            begin_s=np.where(later & waits, begin_s, np.inf),
            due_s=due_s,
            book=tuple(self.book),
            size=None if self.snap.sizes is None else self._now(planned_now, ranked, barred),
            least=None if self.snap.sizes is None else least,
            later=later,
        )

    def _pieces(self, row: int, plan: Plan) -> tuple[Piece, ...]:
        slots = (plan != _NO_SIZE).nonzero()[0]
        gpus = np.array(self._sizes(row).gpus)[plan[slots]]
        return pieces_of(slots + self.free.first, gpus, self.slot_s)

    def _barred(self, ranked: I64) -> Bool:
        """``(n,)`` bool, waiting jobs whose GPUs would not be back when a plan needs them."""
        jobs, holds_s = self.snap.jobs, self.terms.holds_s
        barred = np.zeros(len(jobs), dtype=np.bool_)
        rows, _ = self.may_start(ranked[holds_s[ranked] > 0])
        for row in rows:
            if row in self.plans or not self.plans:
                continue
            need = self.needs.of(row, promised=False)
            until = math.ceil((self.snap.now_s + float(holds_s[row])) / self.slot_s)
            fits = self.left.fits(need)[: until - self.left.first]
            barred[row] = not fits.all()
            if fits.all():
                self.left.take(need, np.arange(len(fits)) + self.left.first)
        return barred

    def _now(self, planned_now: Bool, ranked: I64, barred: Bool) -> I32:
        """``(n,)`` sizes: those of the plans, then the least for all others, then more by saving.

        The next size goes to the job that saves most GPU time by it for each GPU that it has more,
        or that costs least. So does the paper; the artefact has the opposite sign.
        """
        snap, nodes = self.snap, self.snap.seen.nodes
        size = np.full(len(snap.jobs), AS_ASKED, dtype=np.int32)
        live = snap.jobs.state < COMPLETING
        behind = sorted(
            (r for r in self.plans if not planned_now[r]), key=lambda r: self.promises[r].due_s
        )
        others = [r for r in ranked.tolist() if live[r] and not barred[r] and r not in self.plans]
        free = float(nodes.gpus[nodes.up].sum())
        at = dict[int, int]()
        for row in self.plans:
            if planned_now[row]:
                plan = self.plans[row]
                at[row] = max(int(plan[0]) if len(plan) else 0, 0)
                free -= self._sizes(row).gpus[at[row]]
        for row in (*behind, *others):
            if self._sizes(row).gpus[0] <= free + _ROUNDING:
                at[row] = 0
                free -= self._sizes(row).gpus[0]
            elif snap.sizes is not None and snap.sizes.of(row):
                size[row] = NOT_NOW
        self._grow(at, free)
        for row, i in at.items():
            size[row] = self._sizes(row).sizes[i]
        size[barred] = NOT_NOW
        return size

    def _grow(self, at: dict[int, int], free: float) -> None:
        offers: list[tuple[float, int]] = []

        def offer(row: int) -> None:
            mine, i = self._sizes(row), at[row]
            if i + 1 < len(mine.gpus):
                spends = [
                    mine.gpus[k] * self._left_s(row) / float(mine.rate[k]) for k in (i, i + 1)
                ]
                saves = (spends[0] - spends[1]) / (mine.gpus[i + 1] - mine.gpus[i])
                heapq.heappush(offers, (-saves, row))

        for row in at:
            offer(row)
        while offers:
            _, row = heapq.heappop(offers)
            gpus = self._sizes(row).gpus
            more = gpus[at[row] + 1] - gpus[at[row]]
            if more <= free + _ROUNDING:
                free -= more
                at[row] += 1
                offer(row)

    def _left_s(self, row: int) -> float:
        left_s = float(self.snap.left_s[row])
        return left_s if math.isfinite(left_s) else 0.0


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The k sizes of one job, fewest GPUs first."""

    sizes: Sequence[int]  # Indices into `Snapshot.sizes`, or `AS_ASKED`
    gpus: list[float]
    rate: F64
    needs: Sequence[Need]
