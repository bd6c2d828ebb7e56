"""Watches the cycles of shadow mode and keeps what a report needs: jobs, wishes, look-outs.

A wish is a hand-over in a plan that is not carried out. The same one stands in the plan of every
look until its job starts, so it is kept once: one for one wait of the job that it is for.
The work is done in a thread of its own; a look that comes while it is busy is counted as missed.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slurm_dl.apps import logs
from slurm_dl.apps.published import Published
from slurm_dl.apps.shadow.lines import (
    LONGEST_NAME,
    MOST_VICTIMS,
    EndedJob,
    Line,
    Lookout,
    Wish,
    WishedVictim,
    written,
)
from slurm_dl.apps.shadow.order import Compared, compare
from slurm_dl.apps.shadow.store import DIRECTORY, JOB, Standing, Store
from slurm_dl.engine.loop import Cycle
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, PENDING, JobState
from slurm_dl.model.plan import OpenHandover, TripBreaker
from slurm_dl.model.snapshot import Snapshot

LOOKOUT_S = 60.0
"""Looks are added up over so long."""

STAND_S = 300.0
"""The unfinished jobs are written down so often."""

MOST_WISHES = 5000
"""Wishes that are remembered at once; more than that are counted as missed."""

_MOST_GROUPS = 50
_SPARE_ACCOUNTS = 100
_MOST_UNWRITTEN = 50_000


class Watch:
    """The daemon's end: hands each look of shadow mode over to the recorder's thread.

    Args:
        state_dir: Where the daemon keeps what it remembers.
    """

    def __init__(self, state_dir: Path) -> None:
        self._recorder = Recorder(Store(state_dir / DIRECTORY))
        self._looks: queue.Queue[Published | None] = queue.Queue(maxsize=2)
        self._thread: threading.Thread | None = None
        self._missed = 0
        self._broken = False

    def saw(self, now: Published) -> None:
        """See `Watcher`; takes microseconds."""
        if now.live or now.cycle is None or self._broken:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="shadow", daemon=True)
            self._thread.start()
        try:
            self._looks.put_nowait(now)
        except queue.Full:
            self._missed += 1

    def close(self, within_s: float = 10.0) -> None:
        """Take in what is still to be taken in, and end the thread."""
        if self._thread is not None and self._thread.is_alive():
            self._looks.put(None, timeout=within_s)
            self._thread.join(within_s)

    def _work(self) -> None:
        while (now := self._looks.get()) is not None:
            missed, self._missed = self._missed, 0
            try:
                self._recorder.take(now, missed=missed)
            except Exception:  # noqa: BLE001 - the daemon goes on; this thread has no more to say
                logs.logger().exception("bug in the recorder of shadow mode; it keeps no more")
                self._broken = True
                return


class Recorder:
    """Turns looks into lines, and has them written.

    Args:
        store: Where they go.
        lookout_s: See `LOOKOUT_S`.
    """

    def __init__(self, store: Store, *, lookout_s: float = LOOKOUT_S) -> None:
        self._store = store
        self._lookout_s = lookout_s
        self._before = store.standing()
        self._wishes: dict[str, Wish] = {}
        self._last_victims: dict[str, tuple[tuple[int, int], ...]] = {}
        self._tally: _Tally | None = None
        self._unwritten: list[bytes] = []
        self._missed = 0
        self._stood_s = 0.0
        self._full = False

    def take(self, now: Published, *, missed: int = 0) -> None:
        """Take one look in.

        Args:
            missed: Looks before it that were not taken in.
        """
        cycle = now.cycle
        if cycle is None:
            return
        self._missed += missed
        lines: list[Line] = []
        standing = _standing(cycle.snapshot, self._before)
        if self._before is not None:
            lines += _ended(cycle.snapshot, self._before)
        lines += self._wished(cycle)
        self._before = standing
        lines += self._look_out(now, cycle)
        self._write(lines)
        if cycle.snapshot.now_s - self._stood_s >= STAND_S:
            self._stand(standing)

    def _look_out(self, now: Published, cycle: Cycle) -> list[Line]:
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

    def _wished(self, cycle: Cycle) -> list[Line]:
        """Wishes that have begun, and those that are over."""
        snap, lines = cycle.snapshot, []
        row_of = {}
        wanted = [a for a in cycle.plan.actions if isinstance(a, OpenHandover)]
        if wanted or self._wishes:
            row_of = snap.jobs.row_of()
        for action in wanted:
            wish = _wish_of(snap, row_of, action)
            victims = tuple((v.job_id, v.restarts) for v in wish.victims)
            before = self._wishes.get(wish.key)
            if before is None:
                if len(self._wishes) >= MOST_WISHES:
                    self._missed += 1
                    continue
                self._wishes[wish.key] = wish
                lines.append(wish)
            else:
                changed = victims != self._last_victims[wish.key]
                self._wishes[wish.key] = dataclasses.replace(
                    before, last_s=snap.now_s, others=before.others + changed
                )
            self._last_victims[wish.key] = victims
        for key, wish in tuple(self._wishes.items()):
            over = _over(snap, row_of, wish)
            if over is not None:
                lines.append(over)
                del self._wishes[key], self._last_victims[key]
        return list(lines)

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
            logs.logger().info("what shadow mode sees is kept again")

    def _stand(self, standing: Standing) -> None:
        try:
            self._store.stand(standing)
        except OSError as err:
            self._say_full(err)
            return
        self._stood_s = standing.now_s

    def _say_full(self, err: OSError) -> None:
        if not self._full:
            self._full = True
            why = err.strerror or str(err)
            logs.logger().warning("what shadow mode sees cannot be kept", because=why)


class _Tally:
    """Looks that are being added up."""

    def __init__(self, now: Published, now_s: float) -> None:
        self._settings = _settings_of(now)
        self.looks = 0
        self._from_s = self._to_s = now_s
        self._gpus = self._held = self._waiting = 0.0
        self._compared = Compared()
        self._wishes = self._tripped = 0
        self._shape: tuple[tuple[int, int, str], ...] = ()

    def goes_on(self, now: Published, now_s: float, most_s: float) -> bool:
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
        waits = snap.is_managed() & (snap.jobs.state == PENDING) & (snap.jobs.gpus > 0)
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


def _settings_of(now: Published) -> tuple[str, str]:
    preemption = now.config.preemption
    policy = now.config.policy
    return str(policy.order), preemption.mode if preemption.enabled else "off"


def _type_name(names: tuple[str, ...], index: int) -> str:
    return names[index][:LONGEST_NAME] if 0 <= index < len(names) else ""


# Wishes.


def _wish_of(snap: Snapshot, row_of: Mapping[JobId, int], action: OpenHandover) -> Wish:
    handover = action.handover
    jobs = snap.jobs
    lead = handover.beneficiaries[0] if handover.beneficiaries else JobId(0)
    row = row_of.get(lead)
    return Wish(
        key=_key(handover, 0 if row is None else int(jobs.restarts[row])),
        purpose=handover.purpose,
        lead=lead,
        lead_uid=0 if row is None else max(0, int(jobs.uid[row])),
        lead_account=_account(snap, lead),
        lead_gpus=0.0 if row is None else float(jobs.gpus[row]),
        beneficiaries=tuple(handover.beneficiaries[:MOST_VICTIMS]),
        victims=tuple(
            WishedVictim(
                job_id=v.run.job_id,
                restarts=v.run.restarts,
                uid=max(0, int(jobs.uid[row_of[v.run.job_id]])) if v.run.job_id in row_of else 0,
                account=_account(snap, v.run.job_id),
                gpus=v.gpus,
                ran_s=max(0.0, snap.now_s - v.run.start_s),
                grace_s=v.contract.grace_s,
            )
            for v in handover.victims[:MOST_VICTIMS]
        ),
        gpus=sum(v.gpus for v in handover.victims),
        why=action.why,
        begin_s=snap.now_s,
        last_s=snap.now_s,
    )


def _key(handover: Handover, restarts: int) -> str:
    """One wait of the best beneficiary; where nobody waits, the runs that would be stopped."""
    if handover.purpose == "preempt":
        return _wait_of(handover.beneficiaries[0], restarts)
    runs = sorted((v.run.job_id, v.run.restarts) for v in handover.victims)
    return f"{handover.purpose} " + ",".join(f"{job}:{n}" for job, n in runs[:20])


def _wait_of(job_id: int, restarts: int) -> str:
    return f"preempt {job_id}:{restarts}"


def _over(snap: Snapshot, row_of: Mapping[JobId, int], wish: Wish) -> Wish | None:
    """*wish* with its end, if it is over."""
    state, start_s = snap.jobs.state, snap.jobs.start_s
    if wish.lead:
        row = row_of.get(JobId(wish.lead))
        if row is not None and state[row] == PENDING:
            waits_on = _wait_of(wish.lead, int(snap.jobs.restarts[row])) == wish.key
            if waits_on or wish.purpose != "preempt":
                return None
        started_s = 0.0 if row is None else float(start_s[row])
        # Slurm tells whole seconds.
        if started_s >= wish.begin_s - 1:
            return dataclasses.replace(wish, end="started", started_s=started_s)
        return dataclasses.replace(wish, end="gone")
    runs = [(row_of.get(JobId(v.job_id)), v.restarts) for v in wish.victims]
    alive = any(
        row is not None and snap.jobs.restarts[row] == n and PENDING < state[row] < COMPLETED
        for row, n in runs
    )
    return None if alive else dataclasses.replace(wish, end="over")


def _account(snap: Snapshot, job_id: JobId) -> str:
    text = snap.seen.texts.get(job_id)
    return "" if text is None else text.account[:LONGEST_NAME]


# Jobs.


def _standing(snap: Snapshot, before: Standing | None) -> Standing:
    """The unfinished jobs with GPUs in managed partitions."""
    jobs, memory = snap.jobs, snap.memory
    ours = snap.is_managed() & (jobs.gpus > 0) & (jobs.state < COMPLETED)
    rows = np.flatnonzero(ours)
    rows = rows[np.argsort(jobs.job_id[rows], kind="stable")]
    table = np.zeros(len(rows), dtype=JOB)
    table["job_id"] = jobs.job_id[rows]
    table["uid"] = np.maximum(jobs.uid[rows], 0)
    table["gpus"] = jobs.gpus[rows]
    table["tasks"] = jobs.tasks[rows]
    table["submit_s"] = np.maximum(memory.first_submit_s[rows], 0)
    running = jobs.state[rows] > PENDING
    first_s = np.maximum(memory.first_run_s[rows], 0)
    table["start_s"] = np.where(running & (first_s <= 0), jobs.start_s[rows], first_s)
    table["ran_s"] = memory.ran_s[rows]
    table["running"] = running
    if snap.seen.claims:
        willing = [j for j, c in snap.seen.claims.items() if c.contract is not None]
        table["opted_in"] = np.isin(table["job_id"], willing)
    accounts = list(before.accounts) if before is not None else []
    index = {name: i for i, name in enumerate(accounts)}
    known, at = _rows_in(table["job_id"], before)
    if before is not None:
        table["account"][known] = before.jobs["account"][at[known]]
    for i in np.flatnonzero(~known).tolist():
        name = _account(snap, JobId(int(table["job_id"][i])))
        if name not in index:
            index[name] = len(accounts)
            accounts.append(name)
        table["account"][i] = index[name]
    if len(accounts) > len(table) + _SPARE_ACCOUNTS:
        # Without slurmdbd an account is whatever a user writes: only those in use are kept.
        used, table["account"] = np.unique(table["account"], return_inverse=True)
        accounts = [accounts[i] for i in used.tolist()]
    return Standing(snap.now_s, table, tuple(accounts))


def _ended(snap: Snapshot, before: Standing) -> list[Line]:
    """Jobs that have ended since *before*, those that came in between too."""
    jobs, memory = snap.jobs, snap.memory
    over = np.flatnonzero(snap.is_managed() & (jobs.gpus > 0) & (jobs.state >= COMPLETED))
    known, at = _rows_in(jobs.job_id[over], before)
    ran = jobs.start_s[over] > 0
    fresh = jobs.end_s[over] > before.now_s
    lines: list[Line] = []
    for i in np.flatnonzero(ran & (known | fresh)).tolist():
        row = int(over[i])
        job_id = JobId(int(jobs.job_id[row]))
        start_s, end_s = float(jobs.start_s[row]), float(jobs.end_s[row])
        first_s = float(memory.first_run_s[row])
        first_s = first_s if 0 < first_s <= start_s else start_s
        text = _account(snap, job_id)
        account = before.accounts[int(before.jobs["account"][at[i]])] if known[i] else text
        lines.append(
            EndedJob(
                job_id=int(job_id),
                uid=max(0, int(jobs.uid[row])),
                account=text or account,
                gpus=float(jobs.gpus[row]),
                submit_s=min(float(memory.first_submit_s[row]), first_s),
                start_s=first_s,
                ran_s=max(float(memory.ran_s[row]), end_s - start_s, 0.0),
                end_s=max(end_s, first_s),
                how="C" if jobs.state[row] == JobState.COMPLETED else "F",
                opted_in=snap.seen.claim(job_id).contract is not None
                or bool(known[i] and before.jobs["opted_in"][at[i]]),
            )
        )
    lines += _vanished(snap, before)
    return lines


def _vanished(snap: Snapshot, before: Standing) -> list[Line]:
    """Jobs that ran and that Slurm does not list any more."""
    gone = before.jobs[before.jobs["running"] & ~np.isin(before.jobs["job_id"], snap.jobs.job_id)]
    return [
        EndedJob(
            job_id=int(job["job_id"]),
            uid=int(job["uid"]),
            account=before.accounts[int(job["account"])],
            gpus=float(job["gpus"]),
            submit_s=min(float(job["submit_s"]), float(job["start_s"])),
            start_s=float(job["start_s"]),
            ran_s=max(float(job["ran_s"]), 0.0),
            end_s=max(before.now_s, float(job["start_s"])),
            how="V",
            opted_in=bool(job["opted_in"]),
        )
        for job in gone
        if job["gpus"] > 0
    ]


def _rows_in(
    job_id: npt.NDArray[np.int64], standing: Standing | None
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which of *job_id* stand in *standing*, and in which row."""
    if standing is None or not len(standing.jobs):
        return np.zeros(len(job_id), dtype=np.bool_), np.zeros(len(job_id), dtype=np.int64)
    ids = standing.jobs["job_id"]
    at = np.minimum(np.searchsorted(ids, job_id), len(ids) - 1)
    return ids[at] == job_id, at
