"""Limits of accounts and QOS, read as seldom as may be, and licences: what they leave to jobs.

What is used is counted anew from each reading of the queue; the limits may be a minute old.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Final

import numpy as np

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.limits import Quotas
from slurm_dl.model.nodes import Allocations
from slurm_dl.slurm.read.associations import (
    JOBS,
    BarredCandidate,
    Limit,
    Records,
    barred,
    candidate,
    in_force,
    records_of,
)
from slurm_dl.slurm.read.conditions import HOLDING, ConditionReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.releases import Release
from slurm_dl.slurm.tool_runner import Slurm

_KEPT_S: Final = 60.0
_NESTS: Final = Release(23, 2, 0)

_OF_ONE: Final = frozenset(
    {"GrpWall", "GrpTRESMins", "MaxWallPJ", "MaxTRESPJ", "MaxTRESPN", "MaxTRESMinsPJ"}
)
"""Limits that a job keeps or passes whatever other jobs hold."""

_TOLD: Final = frozenset({"MaxWallPJ"})
"""Limits that Slurm gives as the reason of a job that waits, if they bind it."""

_LICENCE: Final = "licences"
_UNREAD: Final = "one hand-over at a time"
_MOST_MIN: Final = 366.0 * 24 * 60


class AccountLimits:
    """Limits of accounts and QOS, asked about as seldom as may be: once a minute at most.

    Attributes:
        barred: Ids of the running jobs that were found to be barred.
    """

    def __init__(self, slurm: Slurm) -> None:
        """Read through *slurm*; nothing is known yet."""
        self.barred: set[JobId] = set()
        self._slurm = slurm
        self._text: str | None = None
        self._read_s = 0.0
        self._until_s = -math.inf

    def ask(
        self, jobs: Collection[JobId], table: JobTable, site: ClusterReading, now_s: float
    ) -> None:
        """Find out about *jobs* of *table*, for and from which GPUs are to be taken.

        Args:
            now_s: When the table was read, epoch seconds.
        """
        if not (site.config.enforced and site.config.accounting and jobs):
            return
        self._read(now_s)
        asked = {
            job: candidate(table, row, site.partitions[table.partition[row]], now_s)
            for row, job in enumerate(table.texts)
            if job in jobs and table.state[row] is JobState.RUNNING
        }
        self.barred |= barred(
            self._text or "",
            asked,
            enforced=site.config.enforced,
            partitions=site.words,
            # 22.05.8 admits the account alone (measured); of later releases nothing is concluded.
            nested=site.config.release >= _NESTS,
        )

    def quotas(
        self,
        table: JobTable,
        site: ClusterReading,
        held: Allocations,
        conditions: ConditionReader,
        now_s: float,
    ) -> Quotas | None:
        """The quotas in which waiting jobs of *table* count; None if there are none.

        Limits are no older than a minute; before `ask` has read any, or a job has a deadline,
        licences alone count.

        Args:
            now_s: When the table was read, epoch seconds.
        """
        counted = _QuotaCounts(table, site, held, conditions, now_s)
        asks = any(claim.due_s is not None for claim in table.claims.values())
        if asks and self._text is None and site.config.enforced and site.config.accounting:
            self._read(now_s)
        found = counted.quotas(self._text, self._read_s)
        if found is not None and self._text is not None and self._read(now_s):
            found = counted.quotas(self._text, self._read_s)
        return found

    def _read(self, now_s: float) -> bool:
        """Read the limits if they are old; whether they were."""
        if time.monotonic() < self._until_s:
            return False
        self._until_s, self._text, self._read_s = time.monotonic() + _KEPT_S, "", now_s
        with suppress(ClusterError):  # Nothing follows from what may not be read.
            self._text = self._slurm.run("scontrol", "show", "assoc_mgr", "flags=assoc,qos")
        return True


class _QuotaCounts:
    """Counts what the jobs of one reading hold and ask for together."""

    def __init__(
        self,
        table: JobTable,
        site: ClusterReading,
        held: Allocations,
        conditions: ConditionReader,
        now_s: float,
    ) -> None:
        self._table, self._site, self._held, self._now_s = table, site, held, now_s
        asked = conditions.items() if site.config.licences else ()
        self._licences = {job: one.licences for job, one in asked}
        self._safe = "safe" in in_force(site.config.enforced)
        self._limits: dict[Limit, int] = {}

    def quotas(self, text: str | None, read_s: float) -> Quotas | None:
        """The quotas in which waiting jobs count; None if there are none.

        Args:
            text: What scontrol says of accounts and QOS, empty if it does not; None: not asked.
            read_s: When it did, epoch seconds.
        """
        table, site = self._table, self._site
        words = in_force(site.config.enforced) if site.config.accounting else frozenset()
        asked = text is not None and not words.isdisjoint({"limits", "qos", "safe"})
        waits = _waiting(table) if asked or site.config.licences else []
        if not waits:
            return None
        records = records_of(text or "") if asked else None
        if records is not None and words.isdisjoint({"limits", "safe"}):
            asked, records = False, None
        self._limits = {}
        alike: dict[tuple[object, ...], dict[int, float]] = {}
        counts: dict[JobId, dict[int, float]] = {}
        for row in waits:
            job = JobId(table.job_id[row])
            of, is_new = table.texts[job], table.submit_s[row] > read_s
            where = (table.partition[row], table.also_in.get(job), table.exclusive[row])
            who = (of.user, of.account, of.qos, where, is_new)
            size = (table.n_nodes[row], table.gpus[row], table.gpu_type[row], table.cpus[row])
            more = (table.mem_mb[row], table.limit_s[row], table.gres.get(job))
            key = (who, size, more, self._licences.get(job))
            if key not in alike:
                alike[key] = self._asks(row, records, asked=asked, is_new=is_new)
            counts[job] = alike[key]
        return self._together(counts, self._running(records)) if self._limits else None

    def _together(
        self, asks: Mapping[JobId, Mapping[int, float]], holds: Mapping[JobId, Mapping[int, float]]
    ) -> Quotas:
        limits = list(self._limits)
        used = np.array([one.used if one.name in _OF_ONE else 0.0 for one in limits], np.float64)
        for each in holds.values():
            for index, units in each.items():
                used[index] += units
        told = [one.used if one.name == _LICENCE else 0.0 for one in limits]
        return Quotas(
            names=tuple(map(_in_words, limits)),
            most=np.array([one.most for one in limits], np.float64),
            used=np.maximum(used, told),
            counts={
                job: tuple(each.items()) for by in (asks, holds) for job, each in by.items() if each
            },
            one_at_a_time=frozenset(n for n, one in enumerate(limits) if one.name == _UNREAD),
        )

    def _asks(
        self, row: int, records: Records | None, *, asked: bool, is_new: bool
    ) -> dict[int, float]:
        """Units of the waiting job at *row*, by quota."""
        job, part_qos = self._candidate(row)
        found: dict[int, float] = {}
        unread = []
        if records is not None:
            binding = records.binding(job.text, job.partition, part_qos)
            for limit in (one for one in binding if one.name not in _TOLD):
                if limit.name in _OF_ONE and not (limit.name == "GrpTRESMins" and self._safe):
                    if job.is_barred_by(limit, safe=False):
                        found[self._index(limit._replace(used=limit.most))] = 1.0
                elif units := _units(job, limit, job.limit_min):
                    found[self._index(limit)] = units
            # Of a QOS without jobs no limits on each user and account are told.
            names = dict.fromkeys((part_qos, job.text.qos)) if is_new else ()
            unread = [f"QOS {name}" for name in names if name in records.unused]
        elif asked:
            of = {"user": job.text.user, "account": job.text.account, "QOS": job.text.qos}
            unread = [f"{kind} {name}" for kind, name in of.items() if name]
        for whose in unread:
            found[self._index(Limit((whose, ""), _UNREAD, JOBS, 1.0, 0.0))] = 1.0
        for name, (most, used) in self._site.config.licences.items():
            if units := job.tres.get(f"license/{name}", 0.0):
                found[self._index(Limit(("", ""), _LICENCE, f"license/{name}", most, used))] = units
        return found

    def _running(self, records: Records | None) -> dict[JobId, dict[int, float]]:
        """Units of running jobs, by quota."""
        table = self._table
        nodes: dict[int, dict[int, JobId]] = {}
        found: dict[JobId, dict[int, float]] = {}
        holders: dict[tuple[object, ...], list[tuple[int, Limit]]] = {}
        of_holder: dict[tuple[str, str], list[tuple[int, Limit]]] = defaultdict(list)
        for limit, index in self._limits.items():
            of_holder[limit.holder].append((index, limit))
        for row, job_id in enumerate(table.texts):
            if table.state[row] not in HOLDING:
                continue
            of = table.texts[job_id]
            key = (of.user, of.account, of.qos, table.partition[row])
            job: BarredCandidate | None = None
            if key not in holders:
                job, part_qos = self._candidate(row)
                whose = {("", "")}
                whose |= records.holders(of, job.partition, part_qos) if records else set()
                holders[key] = [one for w in whose for one in of_holder.get(w, ())]
            for index, limit in holders[key]:
                job = job or self._candidate(row)[0]
                if units := _units(job, limit, job.left_min):
                    found.setdefault(job_id, {})[index] = units
                    if limit.tres == "node" and not _in_minutes(limit):
                        nodes.setdefault(index, {})[row] = job_id
        for index, jobs in nodes.items():
            for row, share in self._shares_of_nodes(jobs):
                found[jobs[row]][index] = share
        return found

    def _shares_of_nodes(self, rows: Collection[int]) -> Iterator[tuple[int, float]]:
        """Nodes of the jobs at *rows*: one that some of them share counts once (22.05.8)."""
        here = np.isin(self._held.job, list(rows))
        on, whose = self._held.node[here], self._held.job[here]
        share = 1.0 / np.maximum(1, np.bincount(on))[on]
        for row in np.unique(whose).tolist():
            yield row, float(share[whose == row].sum())

    def _candidate(self, row: int) -> tuple[BarredCandidate, str]:
        """The job at *row*, and the QOS of its partition."""
        at = self._table.partition[row]
        partition = self._site.partitions[at] if at >= 0 else ""
        licences = self._licences.get(JobId(self._table.job_id[row]), ())
        job = candidate(self._table, row, partition, self._now_s, licences)
        if self._table.exclusive[row] and self._table.state[row] is JobState.PENDING and at >= 0:
            # Whole nodes count, the largest that it may get.
            nodes, n_nodes = self._site.nodes, self._table.n_nodes[row]
            there = self._site.node_in[at] & nodes.up
            for name, column in (("cpu", nodes.cpus), ("gres/gpu", nodes.gpus)):
                job.tres[name] = max(job.tres[name], n_nodes * float(column[there].max(initial=0)))
        # A job of several partitions may start in the one whose QOS has room.
        also = self._table.also_in.get(JobId(self._table.job_id[row]), ())
        words = [self._site.words.get(self._site.partitions[p], {}) for p in (at, *also)]
        qos = {of.get("QoS", "") for of in words} if at >= 0 else set()
        return job, qos.pop() if len(qos) == 1 else ""

    def _index(self, limit: Limit) -> int:
        return self._limits.setdefault(limit, len(self._limits))


def _waiting(table: JobTable) -> list[int]:
    """Rows of the pending jobs that ask for GPUs; none if all of them are held."""
    rows = [
        row
        for row, state in enumerate(table.state)
        if state is JobState.PENDING and table.gpus[row] > 0
    ]
    return rows if any(table.held[row] is Held.NO for row in rows) else []


def _units(job: BarredCandidate, limit: Limit, minutes: float) -> float:
    if limit.name == _UNREAD or (limit.name in _OF_ONE and limit.used == limit.most):
        return 0.0
    return job.units(limit.tres) * (min(minutes, _MOST_MIN) if _in_minutes(limit) else 1.0)


def _in_minutes(limit: Limit) -> bool:
    return "Mins" in limit.name


def _in_words(limit: Limit) -> str:
    if limit.name == _UNREAD:
        return f"one hand-over at a time, as the limits of {limit.holder[0]} are not known,"
    if limit.name == _LICENCE:
        return f"licences {limit.tres.partition('/')[2]}={limit.most:.0f}"
    tres = "" if limit.tres == JOBS or limit.name.endswith("Wall") else f" {limit.tres}"
    return f"{limit.holder[0]}: {limit.name}{tres}={limit.most:.0f}"
