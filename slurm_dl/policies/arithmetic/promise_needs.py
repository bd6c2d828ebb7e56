"""Needs of jobs that may be promised something: run time, units of resources, latest start."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, PENDING, Bool, Origin
from slurm_dl.model.promise import Estimate, PromiseTerms
from slurm_dl.model.sizes import AS_ASKED
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.arithmetic.calendar import Need, Resource
from slurm_dl.policies.arithmetic.supply_and_demand import rates_of

FOREVER_S: Final = 10**10  # A run time that nobody knows


def whole_s(at_s: float) -> int:
    """*at_s* rounded up, but for the rounding of sums."""
    return math.ceil(min(at_s, 100.0 * FOREVER_S) - 1e-3)


def part_of(gpus: float, each: float) -> float:
    """GPUs of a node that count if only *each* together do."""
    return math.floor(gpus / each + 1e-9) * each


class Choice(NamedTuple):
    """A size that a job may be promised."""

    size: int  # Index into `Snapshot.sizes`, or `AS_ASKED`
    gpus: float
    rate: float = 1.0  # Its speed; 1 is that of the size asked for
    nodes: int = 0  # 0: as many as the job asks for


class PromiseNeeds:
    """Needs of the jobs of one snapshot, by row.

    Attributes:
        quotas: The limits that each job counts in, and its units.
    """

    def __init__(self, snap: Snapshot, terms: PromiseTerms, margin: float) -> None:
        """See `promises.promised`."""
        self._snap, self._terms, self._margin = snap, terms, margin
        counts = {} if snap.seen.quotas is None else snap.seen.quotas.counts
        ids = snap.jobs.job_id.tolist()
        self.quotas = {row: counts[JobId(j)] for row, j in enumerate(ids) if j in counts}
        self._known: dict[tuple[int, bool], Need] = {}
        self._rates = rates_of(snap)
        self._places: dict[int, list[int]] = {}
        for at, row in enumerate(snap.seen.held.job.tolist()):
            self._places.setdefault(row, []).append(at)
        held, nodes = snap.seen.held, snap.seen.nodes
        typed = held.gpus_by_type(nodes, len(snap.seen.gpu_types))
        kinds = {one.kind for one in terms.groups}
        self._by_kind = {kind: held.gpus if kind < 0 else typed[kind] for kind in kinds}
        self._there = [snap.seen.nodes.of_type(one.kind) * one.nodes for one in terms.groups]
        self._capacity = [
            sum(part_of(gpus, one.each) for gpus in there.tolist())
            for one, there in zip(terms.groups, self._there, strict=True)
        ]

    def dues_s(self, row: int) -> tuple[int, ...]:
        """Deadlines of a job that count, that of the highest value first, whole epoch seconds."""
        snap = self._snap
        due_s = math.inf if snap.due_s is None else float(snap.due_s[row])
        if not math.isfinite(due_s):
            return ()
        curve = snap.curves.get(JobId(int(snap.jobs.job_id[row])))
        return (math.floor(due_s),) if curve is None else tuple(map(math.floor, curve.due_s))

    def rests_on(self, row: int) -> Estimate:
        """Origin of the run time of a job."""
        known = self._snap.left_from
        origin = Origin.DECLARED if known is None else Origin(int(known[row]))
        sure = origin == Origin.KNOWN
        guessed = origin in (Origin.HISTORY, Origin.REPORTED) and self._terms.estimate == "history"
        return "history" if sure or guessed else "limit"

    def choices(self, row: int) -> list[Choice]:
        """The sizes that a job may be promised, fewest GPUs first; each is faster than the last.

        One that runs, or is not elastic, has the one that it holds or asks for.
        """
        sizes, jobs = self._snap.sizes, self._snap.jobs
        gpus, found = float(jobs.gpus[row]), list[Choice]()
        if jobs.state[row] == PENDING and sizes is not None:
            found = self.sizes_of(row)
        return found or [Choice(AS_ASKED, gpus, self._rate(row))]

    def sizes_of(self, row: int) -> list[Choice]:
        """The sizes of an elastic job, likewise; none of another."""
        sizes, found = self._snap.sizes, list[Choice]()
        if sizes is not None:
            for i in sizes.of(row):
                if not found or sizes.rate[i] > found[-1].rate:
                    found.append(
                        Choice(i, float(sizes.gpus[i]), float(sizes.rate[i]), int(sizes.nodes[i]))
                    )
        return found

    def _rate(self, row: int) -> float:
        """Speed of a job in the size that it holds or asks for."""
        sizes = self._snap.sizes
        at = AS_ASKED if sizes is None else sizes.held(row, float(self._snap.jobs.gpus[row]))
        return 1.0 if sizes is None or at == AS_ASKED else float(sizes.rate[at])

    def needs_s(self, row: int, rate: float | None = None) -> int:
        """Seconds that a job is still going to run, with the margin.

        Args:
            rate: Its speed; None: that of the size it holds or asks for.
        """
        return whole_s(self.left_s(row, rate))

    def left_s(self, row: int, rate: float | None = None) -> float:
        """Likewise, not rounded; `FOREVER_S` if its time limit would end it before."""
        rate = self._rate(row) if rate is None else rate
        jobs, left_s = self._snap.jobs, float(self._snap.left_s[row])
        limit_s = float(jobs.limit_s[row])
        if jobs.state[row] > PENDING:
            limit_s = max(0.0, float(jobs.start_s[row]) + limit_s - self._snap.now_s)
        if self.rests_on(row) == "history":
            rates = self._rates[row]
            slowest = float(rates[rates > 0].min(initial=1.0)) if (rates > 0).any() else 1.0
            needs_s = min(left_s / slowest * (1 + self._margin), limit_s)
        else:
            # What is left of a time limit over all runs; each run has the whole of it at most.
            declared = self._snap.left_from is None or (
                self._snap.left_from[row] == Origin.DECLARED and math.isfinite(left_s)
            )
            needs_s = min(left_s, limit_s) if declared else limit_s
        needs_s /= rate
        return FOREVER_S if rate < 1 and needs_s > limit_s + 1 else min(needs_s, FOREVER_S)

    def end_s(self, row: int, rate: float | None = None) -> int:
        """End of the job if it runs from now on; the same at each look at an exact run time."""
        return whole_s(self._snap.now_s + self.left_s(row, rate))

    def gpus(self, row: int) -> float:
        """GPUs of a job as they are counted; see `counted`."""
        return self.counted(row, Choice(AS_ASKED, float(self._snap.jobs.gpus[row])))

    def counted(self, row: int, one: Choice) -> float:
        """GPUs of a job in a size as they are counted: a power of two on a node, or whole nodes.

        Counted are GPUs, not nodes, and what lies askew would fit nowhere.
        """
        jobs, group, gpus = self._snap.jobs, int(self._terms.group[row]), one.gpus
        n_nodes = one.nodes or int(jobs.n_nodes[row])
        if group < 0:
            return gpus
        home = self._terms.groups[group]
        node = float(self._snap.seen.nodes.of_type(home.kind)[home.nodes].max(initial=1.0))
        each = node if jobs.exclusive[row] else gpus / n_nodes
        if jobs.exclusive[row]:
            gpus = max(gpus, n_nodes * node)
        if each >= node:
            return math.ceil(gpus / node - 1e-9) * node
        return n_nodes * min(2.0 ** math.ceil(math.log2(each) - 1e-9), node)

    def of(self, row: int, *, promised: bool = True) -> Need:
        """All that a job holds while it runs, with a promise or without.

        Of one that runs without its GPUs: see `holds`.
        """
        if (row, promised) not in self._known:
            self._known[row, promised] = self._need_of(row, promised=promised)
        return self._known[row, promised]

    def _need_of(self, row: int, *, promised: bool) -> Need:
        waits = bool(self._snap.jobs.state[row] == PENDING)
        return self._need(row, self.gpus(row), nodes=waits, promised=promised)

    def of_size(self, row: int, one: Choice, *, promised: bool = True) -> Need:
        """All that a job holds while it runs in a size; of one that runs as `of`."""
        if one.size == AS_ASKED:
            return self.of(row, promised=promised)
        return self.at_size(row, one, promised=promised)

    def at_size(self, row: int, one: Choice, *, promised: bool = True) -> Need:
        """All that a job holds while it runs in a size, on any nodes."""
        asked = float(self._snap.jobs.gpus[row])
        need = self._need(row, self.counted(row, one), nodes=True, promised=promised)
        more = max(1.0, one.gpus / asked) if asked else 1.0
        units = {r: u * more if r[0] == "quota" else u for r, u in need.units.items()}
        return Need(units, need.courteous, need.relies)

    def _need(self, row: int, gpus: float, *, nodes: bool, promised: bool) -> Need:
        terms, home = self._terms, int(self._terms.group[row])
        units: dict[Resource, float] = {}
        if nodes:
            units = {
                ("nodes", g): min(gpus, self._capacity[g])
                for g in terms.meets[row].nonzero()[0].tolist()
            }
        courteous = frozenset(r for r in units if r != ("nodes", home) or not promised)
        limits: dict[Resource, float] = {("quota", q): u for q, u in self.quotas.get(row, ())}
        units |= limits
        if not promised:
            return Need(units, courteous | limits.keys())
        owners: list[tuple[str, int | str]] = [("user", int(self._snap.jobs.uid[row]))]
        if account := terms.owners.get(row):
            owners.append(("account", account))
        for place, where in enumerate(terms.places):
            if where.jobs is None or where.jobs[row]:
                units["share", place] = gpus
                units |= {("owner", *owner, place): gpus for owner in owners}
        return Need(units, courteous, frozenset(limits) | {("nodes", home)})

    def there(self, group: int) -> F64:
        """``(m,)`` GPUs of each node that count in a group."""
        return self._there[group]

    def capacity(self, group: int) -> float:
        """GPUs of a group."""
        return self._capacity[group]

    def on_nodes(self, row: int) -> Need:
        """GPUs that a running job holds of each group."""
        held = {("nodes", g): float(sum(gpus.values())) for g, gpus in self._on(row).items()}
        return Need({resource: units for resource, units in held.items() if units})

    def holds(self, until_s: Mapping[int, int]) -> Iterator[tuple[Need, int]]:
        """Units of each group that running jobs hold, and when each part is given back.

        What they leave of a node in pieces too small for a group's jobs counts as held.

        Args:
            until_s: When each running job gives its GPUs back, epoch seconds, by row.
        """
        by_node: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for row, end_s in until_s.items():
            for g, gpus in self._on(row).items():
                for node, held in gpus.items():
                    by_node.setdefault((g, node), []).append((end_s, held))
        for (g, node), holders in by_node.items():
            each, there = self._terms.groups[g].each, float(self.there(g)[node]) if node >= 0 else 0
            free = there - sum(held for _, held in holders)
            for end_s, held in sorted(holders):
                if node < 0:
                    yield Need({("nodes", g): held}), end_s
                    continue
                before, free = part_of(max(free, 0.0), each), free + held
                if gained := part_of(max(free, 0.0), each) - before:
                    yield Need({("nodes", g): gained}), end_s

    def _on(self, row: int) -> dict[int, dict[int, float]]:
        """GPUs that a running job holds on each node of each group; node -1: of those not known."""
        seen, found = self._snap.seen, dict[int, dict[int, float]]()
        if row not in self._places:
            # Clusters without nodes, and jobs of which Slurm does not say yet where they are.
            gpus = float(seen.jobs.gpus[row])
            return {g: {-1: gpus} for g in self._terms.meets[row].nonzero()[0].tolist()}
        for at in self._places[row]:
            node = int(seen.held.node[at])
            for g, group in enumerate(self._terms.groups):
                if not group.nodes[node]:
                    continue
                gpus = float(self._by_kind[group.kind][at])
                if seen.jobs.exclusive[row]:
                    gpus = float(seen.nodes.of_type(group.kind)[node])
                found.setdefault(g, {})[node] = gpus
        return found


def latest_start(
    due_s: F64,
    needs_s: F64,
    gpus: F64,
    *,
    room: float,
    now_s: float,
    running: Bool | None = None,
) -> F64:
    """``(k,)`` when each job must start at the latest; before now if it is too late.

    A job alone must start at due - needs. With W(D) the GPU-seconds that all jobs due by D need,
    they have to use all GPUs from D - W(D) / GPUs on; the earliest of its own and of these, over
    all D not before its due time, holds. It is the demand bound of earliest-deadline-first
    scheduling, for GPUs that can be divided. Source: Baruah, Rosier and Howell, "Algorithms and
    complexity concerning the preemptive scheduling of periodic, real-time tasks on one processor",
    Real-Time Systems 2, 1990 (processor demand).

    Args:
        due_s: ``(k,)`` when each is to be done, not decreasing.
        needs_s: ``(k,)`` seconds each still runs, finite.
        gpus: ``(k,)`` GPUs of each.
        room: GPUs there are for all of them; with none each counts by itself.
        now_s: The present.
        running: ``(k,)`` bool, jobs that run from now on: what they need falls, and so the instant
            comes later. None: none.
    """
    together_s = np.full(len(due_s), np.inf)
    if room > 0:
        together_s = due_s - np.cumsum(needs_s * gpus) / room
        if running is not None:
            pace = 1.0 - np.cumsum(np.where(running, gpus, 0.0)) / room
            ahead = together_s > now_s
            gap_s = np.where(ahead, together_s - now_s, 0.0)
            later_s = np.divide(gap_s, pace, out=np.full(len(due_s), np.inf), where=pace > 0)
            together_s = np.where(ahead, now_s + later_s, together_s)
    latest_s: F64 = np.minimum(due_s - needs_s, np.minimum.accumulate(together_s[::-1])[::-1])
    return latest_s
