"""The recorder of shadow mode: what a report needs of each cycle goes into the ledger.

That is each planned hand-over, a row of totals a minute, and the jobs that have run and are not
over, or vanished; how jobs ended the ledger keeps anyway. It is written by the daemon's loop, in
transactions of milliseconds. Files that versions before wrote are read once, then removed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from slurm_dl import logging_setup
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.daemon.systemd_notify import notify
from slurm_dl.engine.cycle import Cycle
from slurm_dl.ledger.apply_observation import FORGET_AFTER_S
from slurm_dl.ledger.sqlite.store import StoreError
from slurm_dl.ledger.store_protocol import (
    LONGEST_NAME,
    UNSEEN,
    MinuteTotals,
    Noted,
    PlannedHandover,
    PlannedVictim,
    ShadowJob,
)
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.logging_setup import logger
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, I64, NOT_HELD, PENDING, Bool, is_in
from slurm_dl.model.plan import OpenHandover, Plan, TripBreaker
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.shadow.planned_handovers import PlannedHandovers, account_of

MINUTE_S = 60.0  # Looks are added up over so long
UNFINISHED_S = 300.0  # The unfinished jobs are written down so often
FIRST = 100  # Of two orders so many jobs are compared, or half of those that wait if that is less
_MOST_GROUPS = 50
_MOST_UNWRITTEN = 50_000


class ShadowRecorder:
    """An `Observer`; a daemon that acts records nothing.

    Args:
        ledger: The ledger in use; a reload opens another one.
    """

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger
        self._before: Snapshot | None = None
        self._planned: PlannedHandovers | None = None
        self._totals: _Totals | None = None
        self._unwritten: dict[tuple[type, object], Noted] = {}
        self._unfinished: tuple[ShadowJob, ...] | None = None
        self._missed = 0
        self._unfinished_s = -math.inf
        self._is_full = False

    def on_cycle(self, now: PublishedState) -> None:
        """Record one look; see `Observer`."""
        cycle = now.cycle
        if now.live or cycle is None:
            return
        snap = cycle.snapshot
        if self._planned is None:
            try:
                self._planned = self._begun(snap)
            except StoreError as err:
                self._say_full(err)
                return
        elif self._before is not None:
            before = self._before.jobs
            gone = (before.state > PENDING) & ~is_in(before.job_id, snap.jobs.job_id)
            self._keep(jobs_at(self._before, live(self._before) & gone, how="V"))
        news, left_out = self._planned.take(cycle)
        self._missed += left_out
        self._keep(news)
        self._add(now, cycle)
        # Also after a clock that was set back.
        if not 0 <= snap.now_s - self._unfinished_s < UNFINISHED_S:
            self._unfinished_s = snap.now_s
            self._unfinished = tuple(jobs_at(snap, unfinished(snap)))
        self._before = snap
        self._write()

    def close(self) -> None:
        """Write what is not yet written; see `Finishing`."""
        if self._planned is None or self._before is None:
            return
        self._end_minute()
        self._unfinished = tuple(jobs_at(self._before, unfinished(self._before)))
        self._write()

    def abandon(self) -> None:
        """Another daemon writes the ledger now."""
        self._planned = None

    def _begun(self, snap: Snapshot) -> PlannedHandovers:
        """The planned hand-overs of the daemon before; its jobs that are gone have vanished."""
        ledger = self._ledger()
        seen_s = max((m.to_s for m in ledger.noted(MinuteTotals)), default=-math.inf)
        jobs = ledger.noted(ShadowJob, how="")
        known = is_in(np.array([job.job_id for job in jobs], dtype=np.int64), snap.jobs.job_id)
        self._keep(
            dataclasses.replace(job, how="V")
            for job, listed in zip(jobs, known.tolist(), strict=True)
            if not listed
        )
        return PlannedHandovers(ledger.noted(PlannedHandover, end=""), seen_s)

    def _add(self, now: PublishedState, cycle: Cycle) -> None:
        """Count the look; a minute is written when it is over, and its first look at once."""
        now_s = cycle.snapshot.now_s
        if self._totals is not None and not self._totals.goes_on(now, now_s):
            self._end_minute()
        if self._totals is None:
            self._totals = _Totals(now, now_s)
        self._totals.add(cycle)
        if self._totals.looks == 1:
            self._keep([self._totals.row(0)])

    def _end_minute(self) -> None:
        if self._totals is None or self._planned is None:
            return
        self._keep([self._totals.row(self._missed), *self._planned.open])
        self._totals, self._missed = None, 0

    def _keep(self, rows: Iterable[Noted]) -> None:
        for row in rows:
            match row:
                case PlannedHandover(key=key) | MinuteTotals(from_s=key) | ShadowJob(job_id=key):
                    self._unwritten[type(row), key] = row

    def _write(self) -> None:
        try:
            self._ledger().note(tuple(self._unwritten.values()), self._unfinished)
        except StoreError as err:
            self._say_full(err)
            surplus = len(self._unwritten) - _MOST_UNWRITTEN
            for oldest in [*self._unwritten][: max(0, surplus)]:
                del self._unwritten[oldest]
                self._missed += 1
            return
        self._unwritten.clear()
        self._unfinished = None
        if self._is_full:
            self._is_full = False
            logging_setup.logger().info("what shadow mode sees is kept again")

    def _say_full(self, err: StoreError) -> None:
        if not self._is_full:
            self._is_full = True
            logging_setup.logger().warning("what shadow mode sees cannot be kept", because=str(err))


def live(snap: Snapshot) -> Bool:
    """``(n,)`` bool, jobs with GPUs in managed partitions that are not over."""
    return snap.managed_jobs & (snap.jobs.gpus > 0) & (snap.jobs.state < COMPLETED)


def unfinished(snap: Snapshot) -> Bool:
    """``(n,)`` bool, those of them that have run."""
    started = (snap.memory.first_run_s > 0) | (snap.jobs.state > PENDING) & (snap.jobs.start_s > 0)
    return live(snap) & started & (snap.memory.ran_s > 0)


def jobs_at(snap: Snapshot, mask: Bool, how: str = "") -> Iterable[ShadowJob]:
    """The jobs of *mask* as they are in *snap*."""
    jobs, memory = snap.jobs, snap.memory
    for row in np.flatnonzero(mask).tolist():
        job_id = JobId(int(jobs.job_id[row]))
        start_s = float(memory.first_run_s[row]) or float(jobs.start_s[row])
        yield ShadowJob(
            job_id=job_id,
            uid=max(0, int(jobs.uid[row])),
            account=account_of(snap, job_id),
            gpus=float(jobs.gpus[row]),
            submit_s=min(float(memory.first_submit_s[row]), start_s),
            start_s=start_s,
            ran_s=max(float(memory.ran_s[row]), 0.0),
            end_s=max(snap.now_s, start_s),
            how=how or ("" if jobs.state[row] > PENDING else "W"),
            opted_in=snap.seen.claim(job_id).contract is not None,
        )


class _Totals:
    """Looks of one minute that are being added up."""

    def __init__(self, now: PublishedState, now_s: float) -> None:
        self._settings = _settings_of(now)
        self.looks = 0
        self._from_s = self._to_s = now_s
        self._gpus = self._held = self._waiting = 0.0
        self._compared = self._first_other = 0
        self._others = 0.0
        self._wishes = self._tripped = self._never_ran = 0
        self._shape: tuple[tuple[int, int, str], ...] = ()

    def goes_on(self, now: PublishedState, now_s: float) -> bool:
        """True if a look at *now_s* belongs to these."""
        return _settings_of(now) == self._settings and 0 <= now_s - self._from_s < MINUTE_S

    def add(self, cycle: Cycle) -> None:
        """Count a look."""
        snap, seen, jobs = cycle.snapshot, cycle.snapshot.seen, cycle.snapshot.jobs
        self.looks += 1
        self._to_s = snap.now_s
        ours = seen.node_in[snap.managed].any(axis=0) & seen.nodes.up
        self._gpus = float(seen.nodes.gpus[ours].sum())
        self._held = float(seen.held.gpus[ours[seen.held.node]].sum())
        waits = snap.managed_jobs & (jobs.state == PENDING) & (jobs.gpus > 0)
        self._waiting += float(jobs.tasks[waits].sum())
        self._never_ran = int(jobs.tasks[live(snap) & ~unfinished(snap)].sum())
        if (compared := order_distance(snap, cycle.plan)) is not None:
            first_other, others = compared
            self._compared += 1
            self._first_other += first_other
            self._others += others
        kinds = [type(action) for action in cycle.plan.actions]
        self._wishes = max(self._wishes, kinds.count(OpenHandover))
        self._tripped += TripBreaker in kinds
        groups = np.stack([seen.nodes.gpus[ours].astype(np.int64), seen.nodes.gpu_type[ours]])
        pairs, counts = np.unique(groups.astype(np.int64), axis=1, return_counts=True)
        self._shape = tuple(
            (int(n), int(gpus), _type_name(seen.gpu_types, int(t)))
            for (gpus, t), n in zip(pairs.T.tolist(), counts.tolist(), strict=True)
            if gpus > 0
        )[:_MOST_GROUPS]

    def row(self, missed: int) -> MinuteTotals:
        """The looks so far."""
        policy, mode = self._settings
        return MinuteTotals(
            from_s=self._from_s,
            to_s=self._to_s,
            looks=self.looks,
            missed=missed,
            policy=policy[:LONGEST_NAME],
            mode=mode,
            gpus=self._gpus,
            held=self._held,
            waiting=self._waiting / max(1, self.looks),
            compared=self._compared,
            first_other=self._first_other,
            others=self._others / max(1, self._compared),
            wishes=self._wishes,
            tripped=self._tripped,
            shape=self._shape,
            never_ran=self._never_ran,
        )


def _settings_of(now: PublishedState) -> tuple[str, str]:
    preemption = now.config.preemption
    return str(now.config.policy.order), preemption.mode if preemption.enabled else "off"


def _type_name(names: tuple[str, ...], index: int) -> str:
    return names[index][:LONGEST_NAME] if 0 <= index < len(names) else ""


def order_distance(snap: Snapshot, plan: Plan) -> tuple[bool, float] | None:
    """The plan's order against Slurm's: by priority, then by submission, then by number.

    Only jobs count that could start if there were room. Where Slurm's backfill would start a job
    out of turn, neither order says so.

    Returns:
        True if another job is first; and of the first jobs, the share that Slurm's order does not
        have among its first. None if fewer than two jobs wait.
    """
    jobs = snap.jobs
    could = (jobs.state == PENDING) & (jobs.held == NOT_HELD) & (plan.rank >= 0) & (jobs.gpus > 0)
    rows: I64 = np.flatnonzero(could)
    n = len(rows)
    if n <= 1:
        return None
    k = max(1, min(FIRST, n // 2))
    ours = rows[np.argsort(plan.rank[rows], kind="stable")[:k]]
    slurms = rows[np.lexsort((jobs.job_id[rows], jobs.submit_s[rows], -jobs.priority[rows]))[:k]]
    common = len(np.intersect1d(ours, slurms))
    return bool(ours[0] != slurms[0]), 1.0 - common / k


DIRECTORY: Final = "shadow"
_FILE = re.compile(r"[0-9]{12}\.jsonl|wishes\.jsonl")
_MOST_BYTES = 64 << 20
_LARGEST = 1e13  # No number of ours is so large
_KINDS: Final[dict[str, type]] = {
    "job": ShadowJob, "wish": PlannedHandover, "looks": MinuteTotals
}  # fmt: skip
_ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {w: TypeAdapter(k) for w, k in _KINDS.items()}


def import_segments(state_dir: Path, ledger: Ledger) -> None:
    """Take what is in *state_dir* of a version before; what cannot be read is left out and logged.

    What cannot be stored stays there, and the next start tries again.
    """
    directory = state_dir / DIRECTORY
    if not directory.is_dir():
        return
    try:
        _import(directory, ledger)
    except (OSError, StoreError, ValueError) as err:
        logger().warning("files of shadow mode are not in the ledger", because=str(err))
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _import(directory: Path, ledger: Ledger) -> None:
    jobs, never_ran = _unfinished(directory / "standing.npz")
    ledger.note((), jobs)
    planned: dict[str, PlannedHandover] = {}
    minutes: list[MinuteTotals] = []
    count = bad = 0
    for path in sorted(p for p in directory.iterdir() if _FILE.fullmatch(p.name)):
        # A start may take a minute for each file.
        notify("EXTEND_TIMEOUT_USEC=60000000", "STATUS=reading files of shadow mode")
        try:
            is_old = path.stat().st_mtime < time.time() - FORGET_AFTER_S
            rows = [] if is_old else list(_rows(path))
        except OSError as err:
            logger().warning("a file of shadow mode is left out", file=path.name, because=str(err))
            continue
        for row in rows:
            if isinstance(row, PlannedHandover):
                planned[row.key] = _joined(planned.get(row.key, row), row)
        minutes += [row for row in rows if isinstance(row, MinuteTotals)]
        # One that was gone after a restart may have been seen to end before it.
        ended = sorted((r for r in rows if isinstance(r, ShadowJob)), key=lambda r: r.how != "V")
        ledger.note(ended)
        count, bad = count + len(rows), bad + rows.count(None)
    if minutes:
        minutes[-1] = replace(minutes[-1], never_ran=never_ran)
    ledger.note([*minutes, *planned.values()])
    logger().info("files of shadow mode are in the ledger now", rows=count - bad, unreadable=bad)


def _unfinished(path: Path) -> tuple[list[ShadowJob], int]:
    """The jobs in *path* that had run and were not over, and how many had never run.

    Nothing is known if it is not there, or is not what it should be.
    """
    names = ("job_id", "uid", "gpus", "submit_s", "start_s", "ran_s", "opted_in")
    try:
        with np.load(path, allow_pickle=False) as found:
            jobs, accounts, now_s = found["jobs"], found["accounts"], float(found["now_s"])
        has_run = (jobs["start_s"] > 0) & (jobs["ran_s"] > 0)
        kept = [
            _ADAPTERS["job"].validate_python(
                {name: row[name].item() for name in names}
                | {"account": str(accounts[row["account"]]), "end_s": now_s, "how": ""}
            )
            for row in jobs[has_run]
        ]
        return kept, int(jobs["tasks"][~has_run].sum())
    except (
        *(EOFError, LookupError, MemoryError, OSError, RuntimeError, SyntaxError, TypeError),
        *(ValueError, zipfile.BadZipFile, zlib.error),
    ):
        return [], 0


def _rows(path: Path) -> Iterator[Noted | None]:
    """One for each line; None for a damaged one."""
    with path.open("rb") as file:
        for line in filter(None, file.read(_MOST_BYTES).split(b"\n")):
            if not line.startswith(b'["open"'):
                yield row_of(line)


def row_of(line: bytes) -> Noted | None:
    """The row that a *line* is: a JSON array of a word and the fields in their order."""
    try:
        word, *values = json.loads(
            line, parse_int=_bounded, parse_float=_bounded, parse_constant=_bounded
        )
        kind = _KINDS[word]
        if kind is PlannedHandover:
            values[7] = [_named(PlannedVictim, victim) for victim in values[7]]
        row: Noted = _ADAPTERS[word].validate_python(_named(kind, values))
    except (LookupError, RecursionError, TypeError, ValueError):
        return None
    return row


def _bounded(text: str) -> float:
    value = float(text)
    if not abs(value) < _LARGEST:
        raise ValueError(text)
    return int(value) if value.is_integer() else value


def _named(kind: type, values: list[object]) -> dict[str, object]:
    return dict(zip((field.name for field in fields(kind)), values, strict=False))


def _joined(before: PlannedHandover, row: PlannedHandover) -> PlannedHandover:
    """Two lines of one planned hand-over; one that a look missed was begun anew and goes on."""
    is_back = before.end in {"gone", UNSEEN} and row.begin_s > before.last_s
    ended = row if is_back or row.end or not before.end else before
    return replace(
        before,
        last_s=max(before.last_s, row.last_s),
        others=max(before.others, row.others),
        end=ended.end,
        started_s=ended.started_s,
    )
