"""Watches the cycles of shadow mode and keeps what a report needs: jobs, wishes, look-outs.

The work is done in a thread of its own; a look that comes while it is busy is counted as missed.
A daemon that is started again goes on with the wishes and the jobs that the one before left.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurm_dl import logging_setup
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.engine.cycle import Cycle
from slurm_dl.model.jobs import NOT_HELD, PENDING
from slurm_dl.model.plan import OpenHandover, Plan, TripBreaker
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.shadow.look_changes import OpenWishes, ended_since, standing_of
from slurm_dl.shadow.records import LONGEST_NAME, Line, Lookout, written
from slurm_dl.shadow.segment_store import DIRECTORY, SegmentStore, UnfinishedJobs

LOOKOUT_S = 60.0
"""Looks are added up over so long."""

STAND_S = 300.0
"""The unfinished jobs and the open wishes are written down so often."""

CLOSE_S = 5.0
"""The end of the daemon waits for this thread so long."""

_MOST_GROUPS = 50
_MOST_UNWRITTEN = 50_000


class ShadowObserver:
    """The daemon's end: hands each look of shadow mode over to the recorder's thread.

    Args:
        state_dir: Where the daemon keeps what it remembers.
    """

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / DIRECTORY
        self._looks: queue.Queue[PublishedState | None] = queue.Queue(maxsize=2)
        self._thread: threading.Thread | None = None
        self._missed = 0
        self._broken = False
        self._ended = threading.Event()

    def on_cycle(self, now: PublishedState) -> None:
        """See `Observer`; takes microseconds."""
        if now.live or now.cycle is None or self._broken:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="shadow", daemon=True)
            self._thread.start()
        try:
            self._looks.put_nowait(now)
        except queue.Full:
            self._missed += 1

    def close(self, within_s: float = CLOSE_S) -> None:
        """Keep what has been seen, and end the thread; what takes longer is lost, and said."""
        if self._thread is None or not self._thread.is_alive():
            return
        until_s = time.monotonic() + within_s
        with contextlib.suppress(queue.Full):
            self._looks.put(None, timeout=within_s)
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if self._thread.is_alive():
            self.abandon()
            logging_setup.logger().warning(
                "the last looks of shadow mode are not kept", because="disk hangs"
            )

    def abandon(self) -> None:
        """End the thread; nothing more is written than what is being written just now."""
        self._ended.set()
        with contextlib.suppress(queue.Full):
            self._looks.put_nowait(None)

    def _work(self) -> None:
        try:
            recorder = Recorder(SegmentStore(self._directory))
            while (now := self._looks.get()) is not None and not self._ended.is_set():
                missed, self._missed = self._missed, 0
                recorder.take(now, missed=missed)
            if not self._ended.is_set():
                recorder.close()
        except Exception:  # noqa: BLE001 - the daemon goes on; this thread has no more to say
            logging_setup.logger().exception("bug in the recorder of shadow mode; it keeps no more")
            self._broken = True


class Recorder:
    """Turns looks into lines, and has them written.

    Args:
        store: Where they go.
        lookout_s: See `LOOKOUT_S`.
    """

    def __init__(self, store: SegmentStore, *, lookout_s: float = LOOKOUT_S) -> None:
        self._store = store
        store.tidy()
        self._lookout_s = lookout_s
        self._before = store.standing()
        self._wishes = OpenWishes(*store.open_wishes())
        self._tally: _Tally | None = None
        self._unwritten: list[bytes] = []
        self._missed = 0
        self._stood_s = 0.0
        self._full = False

    def take(self, now: PublishedState, *, missed: int = 0) -> None:
        """Take one look in.

        Args:
            missed: Looks before it that were not taken in.
        """
        cycle = now.cycle
        if cycle is None:
            return
        self._missed += missed
        lines: list[Line] = []
        standing = standing_of(cycle.snapshot, self._before)
        if self._before is not None:
            lines += ended_since(self._before, cycle.snapshot)
        wishes, left_out = self._wishes.take(cycle)
        self._missed += left_out
        lines += wishes
        self._before = standing
        lines += self._look_out(now, cycle)
        self._write(lines)
        # Also after a clock that was set back.
        if not 0 <= cycle.snapshot.now_s - self._stood_s < STAND_S:
            self._stand(standing)

    def close(self) -> None:
        """Write down what is not yet written."""
        if self._before is None or self._tally is None:
            return
        self._write([self._tally.line(self._missed)])
        self._missed = 0
        self._stand(self._before)

    def _look_out(self, now: PublishedState, cycle: Cycle) -> list[Line]:
        """The looks so far as a line, if it is time for one."""
        now_s = cycle.snapshot.now_s
        done: list[Line] = []
        if self._tally is not None and not self._tally.goes_on(now, now_s, self._lookout_s):
            done.append(self._tally.line(self._missed))
            self._missed = 0
            self._tally = None
        if self._tally is None:
            self._tally = _Tally(now, now_s)
        self._tally.add(cycle)
        if self._tally.looks == 1:
            # The first look says at once what the cluster is like.
            done.append(self._tally.line(0))
        return done

    def _write(self, lines: list[Line]) -> None:
        self._unwritten += map(written, lines)
        if not self._unwritten:
            return
        try:
            self._store.append(self._unwritten)
        except OSError as err:
            self._say_full(err)
            # Whether a part of them is there is not known: said twice does no harm.
            surplus = len(self._unwritten) - _MOST_UNWRITTEN
            if surplus > 0:
                del self._unwritten[:surplus]
                self._missed += surplus
            return
        self._unwritten = []
        if self._full:
            self._full = False
            logging_setup.logger().info("what shadow mode sees is kept again")

    def _stand(self, standing: UnfinishedJobs) -> None:
        try:
            self._store.stand(standing)
            self._store.hold(standing.now_s, self._wishes.now)
        except OSError as err:
            self._say_full(err)
            return
        self._stood_s = standing.now_s

    def _say_full(self, err: OSError) -> None:
        if not self._full:
            self._full = True
            why = err.strerror or str(err)
            logging_setup.logger().warning("what shadow mode sees cannot be kept", because=why)


class _Tally:
    """Looks that are being added up."""

    def __init__(self, now: PublishedState, now_s: float) -> None:
        self._settings = _settings_of(now)
        self.looks = 0
        self._from_s = self._to_s = now_s
        self._gpus = self._held = self._waiting = 0.0
        self._compared = OrderDistance()
        self._wishes = self._tripped = 0
        self._shape: tuple[tuple[int, int, str], ...] = ()

    def goes_on(self, now: PublishedState, now_s: float, most_s: float) -> bool:
        """Whether a look at *now_s* belongs to these."""
        return _settings_of(now) == self._settings and 0 <= now_s - self._from_s < most_s

    def add(self, cycle: Cycle) -> None:
        """Count a look."""
        snap, seen = cycle.snapshot, cycle.snapshot.seen
        self.looks += 1
        self._to_s = snap.now_s
        ours = seen.node_in[snap.managed].any(axis=0) & seen.nodes.up
        on_ours = ours[seen.held.node]
        self._gpus = float(seen.nodes.gpus[ours].sum())
        self._held = float(seen.held.gpus[on_ours].sum())
        waits = snap.managed_jobs & (snap.jobs.state == PENDING) & (snap.jobs.gpus > 0)
        self._waiting += float(snap.jobs.tasks[waits].sum())
        self._compared = self._compared.plus(compare(snap, cycle.plan))
        kinds = [type(action) for action in cycle.plan.actions]
        self._wishes = max(self._wishes, kinds.count(OpenHandover))
        self._tripped += TripBreaker in kinds
        types = seen.nodes.gpu_type[ours]
        pairs, counts = np.unique(
            np.stack([seen.nodes.gpus[ours].astype(np.int64), types.astype(np.int64)]),
            axis=1,
            return_counts=True,
        )
        self._shape = tuple(
            (int(n), int(gpus), _type_name(seen.gpu_types, int(t)))
            for (gpus, t), n in zip(pairs.T.tolist(), counts.tolist(), strict=True)
            if gpus > 0
        )[:_MOST_GROUPS]

    def line(self, missed: int) -> Lookout:
        """The looks so far."""
        policy, mode = self._settings
        n = self._compared.looks
        return Lookout(
            from_s=self._from_s,
            to_s=self._to_s,
            looks=self.looks,
            missed=missed,
            policy=policy,
            mode=mode,
            gpus=self._gpus,
            held=self._held,
            waiting=self._waiting / max(1, self.looks),
            compared=n,
            first_other=self._compared.first_other,
            others=self._compared.others / max(1, n),
            wishes=self._wishes,
            tripped=self._tripped,
            shape=self._shape,
        )


def _settings_of(now: PublishedState) -> tuple[str, str]:
    preemption = now.config.preemption
    policy = now.config.policy
    return str(policy.order), preemption.mode if preemption.enabled else "off"


def _type_name(names: tuple[str, ...], index: int) -> str:
    return names[index][:LONGEST_NAME] if 0 <= index < len(names) else ""


# How far the order of the waiting jobs is from Slurm's: of one look, and of many.
FIRST = 100
"""The jobs that are first are so many, or half of those that wait if that is less."""


@dataclass(frozen=True, slots=True)
class OrderDistance:
    """Looks at two orders of the same jobs, added up.

    Attributes:
        looks: Looks with at least two jobs.
        first_other: Of those, looks where another job is first.
        others: Sum over looks of the share of the first jobs that the other order does not have
            among its first.
    """

    looks: int = 0
    first_other: int = 0
    others: float = 0.0

    def plus(self, more: OrderDistance) -> OrderDistance:
        """Both together."""
        return OrderDistance(
            self.looks + more.looks, self.first_other + more.first_other, self.others + more.others
        )


def compare(snap: Snapshot, plan: Plan) -> OrderDistance:
    """The plan's order beside Slurm's: by priority, then by submission, then by number.

    Only jobs count that could start if there were room. Where Slurm's backfill would start a job
    out of turn, neither order says so.
    """
    jobs = snap.jobs
    could = (jobs.state == PENDING) & (jobs.held == NOT_HELD) & (plan.rank >= 0) & (jobs.gpus > 0)
    rows = np.flatnonzero(could)
    n = len(rows)
    if n <= 1:
        return OrderDistance()
    k = max(1, min(FIRST, n // 2))
    ours = rows[np.argsort(plan.rank[rows], kind="stable")[:k]]
    slurms = rows[np.lexsort((jobs.job_id[rows], jobs.submit_s[rows], -jobs.priority[rows]))[:k]]
    common = len(np.intersect1d(ours, slurms))
    return OrderDistance(1, int(ours[0] != slurms[0]), 1.0 - common / k)
