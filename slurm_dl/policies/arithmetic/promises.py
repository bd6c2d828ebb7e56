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
import itertools
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_dl.model.booking import Entry
from slurm_dl.model.jobs import F64, I32, I64, PENDING, Bool
from slurm_dl.model.promise import Promise, PromiseTerms
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.calendar import Need
from slurm_dl.policies.arithmetic.promise_book import PromiseBook
from slurm_dl.policies.arithmetic.promise_needs import Choice, PromiseNeeds

_HOUR_S: Final = 3600.0
MOST_GPU_TIME: Final = 1.5  # Of a larger size, as a multiple


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
        size: ``(n,)`` see `Order.size`; None: no job is elastic.
        least: ``(n,)`` see `Order.least`.
        later: ``(n,)`` bool, jobs whose plan has no GPUs for them now; None: no job.
    """

    running: Bool
    pressing: Bool
    barred: Bool
    begin_s: F64
    due_s: F64
    book: tuple[Entry, ...]
    size: I32 | None = None
    least: I32 | None = None
    later: Bool | None = None


def promised(
    snap: Snapshot, terms: PromiseTerms, ranked: I64, margin: float, slot_s: int = 1
) -> Promised:
    """Keep the promises of the book, and answer new deadlines.

    Args:
        ranked: Rows of the jobs in the order in which they are served without promises, best first.
        margin: Share of a run time that is added where it is no time limit, 0 or more.
        slot_s: Windows begin and end at whole multiples of it, seconds.
    """
    look = _Look(snap, terms, PromiseNeeds(snap, terms, margin), slot_s=slot_s)
    look.settle()
    look.keep()
    look.answer()
    barred = look.early(ranked)
    return look.result(barred)


@dataclass(slots=True)
class _Look(PromiseBook):
    """One look at the promises; its steps are called in the order of `promised`."""

    slot_s: int = 1
    windows: dict[int, tuple[int, int]] = field(default_factory=dict)  # That are kept, by row
    size: dict[int, int] = field(default_factory=dict)  # Of waiting jobs that may start, by row

    def keep(self) -> None:
        """Find the windows that are promised already; those that do not fit any more anew."""
        by_due = self.standing()
        until_s = self.open_calendar()
        running = [r for r in by_due if self.started[r]]
        for row in running:
            until_s[row] = self._keep_running(row, until_s.get(row, self.now_s))
        self.occupy(until_s, running)
        waiting = [r for r in by_due if not self.started[r]]
        # Who has lost its window gets another only in what the others leave.
        for row in sorted(waiting, key=lambda r: bool(self.promises[r].broken)):
            self._keep_waiting(row)

    def _keep_running(self, row: int, back_s: int) -> int:
        """End of the hold of its GPUs, epoch seconds; *back_s*: without a promise."""
        promise, jobs = self.promises[row], self.snap.jobs
        since_s = max(float(jobs.start_s[row]), promise.at_s)
        lasts = jobs.state[row] > PENDING and self.now_s > since_s + promise.needs_s + 1
        if lasts and promise.rests_on != "limit":
            self.note(row, "estimate")
            return back_s
        end_s = max(self.now_s + 1, self.needs.end_s(row))
        self.note(row, "" if end_s <= promise.due_s else self.late_because(row))
        end_s = self._whole(end_s)
        self._take(row, self.now_s, end_s)
        return end_s

    def _keep_waiting(self, row: int) -> None:
        promise, group = self.promises[row], int(self.terms.group[row])
        if group < 0 or self.needs.capacity(group) < promise.gpus:
            self.note(row, self.cause(row))
            return
        begin_s, end_s = promise.begin_s or 0, promise.end_s or 0
        needs_s = self.needs.needs_s(row, self.choice(row, promise).rate)
        need = self._need(row).without_shares()
        lasts_s = self._whole(needs_s + math.ceil(self.terms.lead_s))
        due_s = promise.due_s // self.slot_s * self.slot_s
        found_s = None
        if begin_s <= self.now_s:
            # A job that ran and is back in the queue need not begin at once.
            if self.snap.memory.ran_s[row] > 0 and self.now_s + lasts_s < promise.due_s:
                found_s = self.calendar.latest_s(need, lasts_s, due_s)
            if found_s is None or found_s <= self.now_s:
                self._keep_pressing(row, need, needs_s)
                return
        elif not promise.broken and self.calendar.fits(need, begin_s, end_s):
            self._take(row, begin_s, end_s)
            return
        else:
            found_s = self.calendar.latest_s(need, lasts_s, due_s)
        if found_s is None:
            self.note(row, self.cause(row))
            return
        begin = math.floor(found_s)
        self.say(row, dataclasses.replace(_window(promise, begin, begin + lasts_s), broken=""))
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
        self.note(row, self.cause(row) if late else "")

    def answer(self) -> None:
        """Promise new jobs a window, or say no, by their first submission."""
        for row in self.new_rows():
            self._answer(row)

    def _answer(self, row: int) -> None:
        dues_s, choices = self.needs.dues_s(row), self.needs.choices(row)
        lead_s = 0 if self.started[row] else math.ceil(self.terms.lead_s)
        no = self.unanswered(row, lead_s)
        if no.why:
            self.say(row, no)
            return
        for due_s, one in itertools.product(dues_s, choices):
            lasts_s = self._whole(self.needs.needs_s(row, one.rate) + lead_s)
            need = self.needs.of_size(row, one)
            begin_s: float | None = None
            if not self.started[row]:
                whole_s = due_s // self.slot_s * self.slot_s
                begin_s = self.calendar.latest_s(need, lasts_s, whole_s)
            elif self.now_s + lasts_s <= due_s and self._may_go_on(row, need, self.now_s + lasts_s):
                begin_s = self.now_s
            gpus = self.needs.counted(row, one)
            if begin_s is not None and not self._is_over_budget(row, gpus, begin_s):
                begin = math.floor(begin_s)
                plan = () if one.size == AS_ASKED else ((begin, begin + lasts_s, one.gpus),)
                yes = dataclasses.replace(no, says="yes", due_s=due_s, gpus=gpus, needs_s=lasts_s)
                self.say(row, _window(dataclasses.replace(yes, plan=plan), begin, begin + lasts_s))
                self._take(row, begin, begin + lasts_s)
                return
        self._say_no(row, no, lead_s)

    def _say_no(self, row: int, no: Promise, lead_s: int) -> None:
        ends_s, lasts_s = list[int](), list[int]()
        for one in self.needs.choices(row):
            lasts_s.append(self.needs.needs_s(row, one.rate) + lead_s)
            early_s = self.calendar.earliest_s(self.needs.of_size(row, one), lasts_s[-1])
            ends_s += [] if early_s is None else [math.ceil(early_s) + lasts_s[-1]]
        why = "its GPUs would be in use or promised, or its share be spent"
        if self.now_s + min(lasts_s) > self.needs.dues_s(row)[-1]:
            why = "its run time, with what it takes to free GPUs, ends later"
        self.say(row, dataclasses.replace(no, nearest_s=min(ends_s, default=None), why=why))

    def _may_go_on(self, row: int, need: Need, end_s: int) -> bool:
        """True if nobody has to take back the GPUs of a job that runs, or is about to."""
        if self.snap.jobs.state[row] == PENDING:
            return self.calendar.fits(need, self.now_s, end_s)
        nodes, back_s = self.needs.on_nodes(row), self.back_s(row)
        if not (
            self.calendar.fits(need, self.now_s, end_s)
            and self.calendar.fits(nodes, min(back_s, end_s), end_s)
        ):
            return False
        self.calendar.take(nodes, back_s, end_s)
        return True

    def _is_over_budget(self, row: int, mine: float, begin_s: float) -> bool:
        """True if more GPUs would have to be taken back within an hour than may be."""
        near = [r for r, (first_s, _) in self.windows.items() if abs(first_s - begin_s) < _HOUR_S]
        gpus = sum(self.promises[r].gpus for r in near if not self.started[r])
        return not self.started[row] and gpus + mine > self.terms.most_per_hour

    # Early starts.

    def early(self, ranked: I64) -> Bool:
        """``(n,)`` bool, waiting jobs that may not start now: they would take a window.

        The size of the others is chosen: the largest that takes no window and costs no more than
        `MOST_GPU_TIME` times the GPU time of the smallest, or of the one that is promised.
        """
        jobs = self.snap.jobs
        barred = np.zeros(len(jobs), dtype=np.bool_)
        if not self.windows and self.snap.sizes is None:
            return barred
        rows, free = self.may_start(ranked)
        for row in rows:
            window = self.windows.get(row)
            if window is not None and window[0] <= self.now_s:
                self.size[row] = self.choice(row, self.promises[row]).size
                continue
            if window is not None:
                self.calendar.take(self._need(row), *window, times=-1)
            one, need, end_s = self._early_choice(row)
            if window is not None:
                self.calendar.take(self._need(row), *window)
            # Slurm would start it in the smaller size that it shows while others hold its GPUs.
            smaller = window is not None and one.gpus > max(free, float(jobs.gpus[row]))
            barred[row] = need is None or smaller
            if need is None or smaller:
                continue
            self.size[row] = one.size
            displaces = window is not None or self.terms.holds_s[row] < jobs.limit_s[row]
            if displaces or one.gpus <= free:
                free -= one.gpus if window is None else 0
                until_s = end_s if window is None else min(end_s, window[0])
                self.calendar.take(need, self.now_s, until_s)
        return barred

    def _early_choice(self, row: int) -> tuple[Choice, Need | None, float]:
        """Size, need and end of a job that starts now; no need: it would take a window."""
        choices, promised = self.needs.choices(row), row in self.windows
        answer = self.promises.get(row)
        least = choices[0] if answer is None else self.choice(row, answer)
        most = MOST_GPU_TIME * least.gpus / least.rate
        for one in reversed(choices):
            if one.gpus < least.gpus or (one.gpus / one.rate > most and one != least):
                continue
            end_s = self.now_s + float(self.terms.holds_s[row])
            if promised:
                end_s = self._whole(self.needs.end_s(row, one.rate))
            need = self.needs.of_size(row, one, promised=promised)
            if self.calendar.fits(need, self.now_s, end_s):
                return one, need, end_s
        return least, None, 0.0

    def result(self, barred: Bool) -> Promised:
        """All that the decision goes by."""
        n = len(self.snap.jobs)
        running, pressing = np.zeros((2, n), dtype=np.bool_)
        begin_s, due_s = np.full((2, n), np.inf)
        size = least = None
        if self.snap.sizes is not None:
            size, least = np.full((2, n), AS_ASKED, dtype=np.int32)
            size[list(self.size)] = list(self.size.values())
            size[barred] = NOT_NOW
            # In a smaller size it would run longer than was looked at, into other windows.
            # Where the promise is broken, its time limit would end it.
            for row in self.standing():
                least[row] = self.size.get(row, self.choice(row, self.promises[row]).size)
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
            size=size,
            least=least,
        )

    def _whole(self, at_s: int) -> int:
        """*at_s* rounded up to whole slots."""
        return -(-at_s // self.slot_s) * self.slot_s

    def _need(self, row: int) -> Need:
        """The need of a job with a promise."""
        promise = self.promises[row]
        if promise.plan and self.snap.jobs.state[row] == PENDING:
            return self.needs.of_size(row, self.choice(row, promise))
        return self.needs.of(row)

    def _take(self, row: int, begin_s: int, end_s: int) -> None:
        self.windows[row] = (begin_s, end_s)
        self.calendar.take(self._need(row), begin_s, end_s)


def _window(promise: Promise, begin_s: int, end_s: int) -> Promise:
    """The promise with its window there."""
    plan = tuple((begin_s, end_s, gpus) for *_, gpus in promise.plan)
    return dataclasses.replace(promise, begin_s=begin_s, end_s=end_s, plan=plan)
