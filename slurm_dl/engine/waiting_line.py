"""The order in which Slurm is to serve the waiting jobs: a line, with a SiteFactor for each place.

Of each PriorityTier, the highest first, come overdue jobs, then those that should hold GPUs now,
then the others by their rank, and last jobs without GPUs and those that the policy bars.
Each of the first places has a SiteFactor of its own, a whole number of band widths (its label), so
no factor of the site's mixes them; the rest of the line has 0.
A label that is still right stays, see `labels`.

Partitions that share nodes, or a job that may start in either, have one line. Running jobs keep
what they have: Slurm does not look at it until they are requeued.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.settings import Settings
from slurm_dl.engine.site_factors import HIGHEST_SITE_FACTOR, in_window, is_undone
from slurm_dl.engine.target import NOBODY, Rows, pools
from slurm_dl.model.jobs import COMPLETING, I64, NOT_HELD, PENDING, Bool, Held, is_in
from slurm_dl.model.snapshot import Snapshot

PLACES: Final = 50  # Waiting jobs of each partition that have a place of their own
FEWEST_LABELS: Final = 64  # A band width that leaves fewer labels is refused
WIDEST_BAND: Final = HIGHEST_SITE_FACTOR // FEWEST_LABELS  # The largest band width
_SOON_S: Final = 300.0  # A job whose begin time is this near has its place already


def labels_in(band_width: int) -> int:
    """Number of labels."""
    return HIGHEST_SITE_FACTOR // band_width


class WaitingLine:
    """The waiting jobs in the order in which Slurm is to serve them.

    Args:
        intent: The policy's order, and who should hold GPUs.
        settings: Says who decides between equals of the policy.
        guaranteed: ``(n,)`` bool, jobs that are guaranteed nodes. They come first, and have the
            upper half of the labels, also while they run; None: nothing is guaranteed.
    """

    def __init__(
        self, snap: Snapshot, intent: Intent, settings: Settings, guaranteed: Bool | None = None
    ) -> None:
        self._snap, self._intent, self._settings = snap, intent, settings
        self._guaranteed = guaranteed
        self._priority_tier = snap.priority_tiers()

    @functools.cached_property
    def _line(self) -> tuple[Rows, I64]:
        """Rows of the waiting jobs, first place first, and the place of each."""
        snap, guaranteed = self._snap, self._guaranteed
        rows, section = self._sections()
        if guaranteed is not None:
            at = np.argsort(~guaranteed[rows], kind="stable")
            rows, section = rows[at], section[at]
        if self._priority_tier is not None:
            at = np.argsort(-self._priority_tier[rows], kind="stable")
            rows, section = rows[at], section[at]
        place = np.arange(len(rows))
        if self._settings.equals == "site" and len(rows):
            place = self._shared_places(rows, section)
            own = self._own_priority(rows)
            at = np.lexsort([snap.jobs.job_id[rows], -own, place])
            rows, place = rows[at], place[at]
        return rows, place

    def _own_priority(self, rows: Rows) -> I64:
        """``(len(rows),)`` what Slurm's own factors make of each job's priority."""
        snap, width = self._snap, self._settings.band_width
        own: I64 = snap.jobs.priority[rows] - snap.memory.site_factor[rows]
        # Where an older SiteFactor counts it is a whole number of bands too.
        older = is_undone(snap, rows, width)
        own[older] = (snap.jobs.priority[rows[older]] + width // 2) % width - width // 2
        return own

    def served(self) -> Rows:
        """Rows of the managed live jobs as they are served, best first.

        Jobs that are not in the line (running, held) stay where the policy ranks them.
        """
        served = self._intent.ranked.copy()
        in_line = np.zeros(len(self._snap.jobs), dtype=np.bool_)
        rows, _ = self._line
        in_line[rows] = True
        served[in_line[served]] = rows
        return served

    @functools.cached_property
    def site_factors(self) -> I64:
        """``(n,)`` SiteFactor that each job should have; 0 for waiting jobs without a place."""
        snap, guaranteed, width = self._snap, self._guaranteed, self._settings.band_width
        told: I64 = snap.memory.site_factor.astype(np.int64)
        wanted = told.copy()
        wanted[snap.jobs.state == PENDING] = 0
        most = labels_in(width)
        if guaranteed is None:
            sections = [(np.ones(len(told), dtype=np.bool_), 0, most)]
        else:
            half = most // 2
            sections = [(guaranteed, half, most), (~guaranteed, 0, half)]
            runs = (snap.jobs.state > PENDING) & (snap.jobs.state < COMPLETING)
            above = told > half * width
            wanted[runs & guaranteed & ~above] = (half + 1) * width
            wanted[runs & ~guaranteed & above] = 0
        every_row, every_place = self._line
        for line in self._lines():
            for section, low, high in sections:
                at = line[section[every_row[line]]]
                rows, place = every_row[at], every_place[at]
                first = self._first_places(rows, place, (high - low) // 2)
                rows, place = rows[first], place[first]
                labels = self._labels(told[rows] // width - low, place, high - low)
                wanted[rows] = (labels + low) * width
        return wanted

    def _sections(self) -> tuple[Rows, I64]:
        """The jobs in the line by rank inside each section, and the number of the section."""
        snap, intent = self._snap, self._intent
        jobs, ranked = snap.jobs, intent.ranked
        could = (jobs.state[ranked] == PENDING) & self._keeps_place(ranked)
        rows = ranked[could]
        first = is_in(rows, intent.target)
        last = jobs.gpus[rows] <= 0
        if intent.order.barred is not None:
            last |= intent.order.barred[rows] & ~first
        section = np.where(first, 1, np.where(last, 3, 2))
        overdue = intent.overdue[is_in(intent.overdue, rows)]
        if len(overdue):
            others = ~is_in(rows, overdue)
            rows = np.concatenate([overdue, rows[others]])
            section = np.concatenate([np.zeros(len(overdue), dtype=np.int64), section[others]])
        at = np.argsort(section, kind="stable")
        return rows[at], section[at]

    def _keeps_place(self, rows: Rows) -> Bool:
        """``(len(rows),)`` bool: it waits for room, or for a begin time that is near."""
        snap = self._snap
        held = snap.jobs.held[rows]
        keeps: Bool = held == NOT_HELD
        soon = held == Held.BEGIN_TIME
        if soon.any():
            later = [j for j, at_s in snap.seen.begins.items() if at_s > snap.now_s + _SOON_S]
            keeps |= soon & ~is_in(snap.jobs.job_id[rows], later)
        return keeps

    def _shared_places(self, rows: Rows, section: I64) -> I64:
        """``(len(rows),)`` one place for all jobs that the policy does not tell apart."""
        order = self._intent.order
        key = order.key[rows]
        if np.array_equal(order.key, self._snap.memory.queued_s):
            key = np.zeros(len(rows))  # The place in the queue is no preference.
        tie = np.zeros(len(rows)) if order.tie is None else order.tie[rows]
        # The target is chosen by that place among equals, and the site may choose another.
        kind = np.where(section == 1, 2, section)
        # Overdue jobs have their own order.
        alone = np.where(section == 0, np.arange(len(rows)), -1)
        first = np.zeros(len(rows)) if self._priority_tier is None else self._priority_tier[rows]
        columns = np.column_stack([first, kind, order.tier[rows], key, tie, alone])
        _, found, of = np.unique(
            columns.astype(np.float64), axis=0, return_index=True, return_inverse=True
        )
        place: I64 = np.argsort(np.argsort(found))[of.reshape(-1)]
        return place

    def _lines(self) -> Iterator[Rows]:
        """The places in the line of each set of partitions that share nodes or jobs."""
        snap, (rows, _) = self._snap, self._line
        there = pools(snap)
        if len(there) == 1:
            yield np.arange(len(rows))
            return
        groups = [set(pool.partitions or ()) for pool in there]
        for also in set(snap.seen.also_in.values()):
            ids = [j for j, parts in snap.seen.also_in.items() if parts == also]
            own = snap.jobs.partition[is_in(snap.jobs.job_id, ids)].tolist()
            joined = {*also, *own}
            touched = [g for g in groups if g & joined]
            if touched:
                groups = [g for g in groups if g not in touched]
                groups.append(set().union(*touched))
        for group in groups:
            yield np.flatnonzero(is_in(snap.jobs.partition[rows], list(group)))

    def _first_places(self, rows: Rows, place: I64, most: int) -> Bool:
        """``(len(rows),)`` bool: among the first places of its partition, and of *most* in all."""
        everybody = np.ones(len(rows), dtype=np.bool_)
        window = self._settings.window
        if self._settings.equals == "submission":
            first = in_window(self._snap, rows, everybody, min(window, PLACES))
        else:
            first = in_window(self._snap, rows, everybody, window)
            first &= is_in(place, np.unique(place)[:PLACES])
        if np.count_nonzero(first) > most:
            first &= is_in(place, np.unique(place[first])[:most])
        return first

    @staticmethod
    def _labels(told: I64, place: I64, most: int) -> I64:
        """``(len(told),)`` labels of the jobs, those of one place the same."""
        usable = np.where((told >= 1) & (told <= most), told, 0)
        if (place[1:] > place[:-1]).all():
            return np.array(relabel(usable.tolist(), most), dtype=np.int64)
        _, of = np.unique(place, return_inverse=True)
        of = of.reshape(-1)
        shared = np.zeros(int(of.max(initial=-1)) + 1, dtype=np.int64)
        if len(shared) == len(told):
            shared[of] = usable
        else:
            for at in range(len(shared)):
                counts = np.bincount(usable[of == at], minlength=2)
                counts[0] = 0
                shared[at] = counts.argmax() if counts.any() else 0
        new = np.array(relabel(shared.tolist(), most), dtype=np.int64)
        labels: I64 = new[of] if len(new) else NOBODY
        return labels


MOST_MOVED: Final = 3
"""If more labels than this would have to change, all places are labelled anew, with gaps."""


def relabel(labels: Sequence[int], most: int) -> list[int]:
    """New labels, strictly falling from at most *most* to at least 1.

    A label that was given before stays where it still fits. So a job that comes or goes costs one
    write or none, not one for every job behind it.

    Args:
        labels: What each place of the line has now, first place first; 0: none.
        most: Highest label; no less than ``len(labels)``.
    """
    if all(high > low for high, low in itertools.pairwise([most + 1, *labels, 0])):
        return list(labels)
    new = _between_kept(labels, most)
    moved = sum(before not in (0, after) for before, after in zip(labels, new, strict=True))
    return _spread(len(labels), most) if moved > MOST_MOVED else new


def keep(labels: Sequence[int], most: int) -> list[int]:
    """The most places whose labels may stay: they fall, and leave room for the places between.

    It is the longest subsequence in which ``label + place`` does not grow (patience sorting).
    """
    ends: list[int] = []
    last: list[int] = []
    before = [-1] * len(labels)
    for place, label in enumerate(labels):
        # There must be room below for those behind, and above for those before.
        if not len(labels) - place <= label <= most - place:
            continue
        value = -(label + place)
        at = bisect.bisect_right(ends, value)
        before[place] = last[at - 1] if at else -1
        ends[at : at + 1], last[at : at + 1] = [value], [place]
    kept = []
    place = last[-1] if last else -1
    while place >= 0:
        kept.append(place)
        place = before[place]
    return kept[::-1]


def _between_kept(labels: Sequence[int], most: int) -> list[int]:
    """Labels that are kept, and others as evenly as can be between them.

    Before the first kept one they are close above it, behind the last one close below it: most
    jobs come at an end.
    """
    new, count = list(labels), len(labels)
    kept = [(place, labels[place]) for place in keep(labels, most)]
    if not kept:
        return _spread(count, most)
    first, label = kept[0]
    new[:first] = range(label + first, label, -1)
    for (i, high), (j, low) in itertools.pairwise(kept):
        new[i + 1 : j] = [high - (k * (high - low)) // (j - i) for k in range(1, j - i)]
    behind, label = kept[-1]
    new[behind + 1 :] = range(label - 1, label - count + behind, -1)
    return new


def _spread(count: int, most: int) -> list[int]:
    """Labels with gaps, and room above the first and below the last."""
    top = most - most // 8
    gap = max(1, (top - 1) // max(count + count // 2, 1))
    low = top - gap * (count - 1)
    return [top - gap * k if low >= 1 else count - k for k in range(count)]
