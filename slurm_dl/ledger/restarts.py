"""Fate of victims that have ended: whether they run again, and what becomes of their hand-over.

Restarts are folded out of observations, as attained service is, and kept by the ledger. Only what
is known to be bad counts as bad: a job that waits for its turn, was cancelled, or has left the list
unseen says nothing about whether jobs can be restarted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_dl.ledger.attained_service import AttainedService
from slurm_dl.model.breaker import OWNER_UNKNOWN, Fate, Restart, Taken
from slurm_dl.model.handover import Handover, Run, Victim, VictimState
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import PENDING, RUNNING, Held, JobState, is_in
from slurm_dl.model.plan import MarkGone
from slurm_dl.model.snapshot import Observed

SOON_S = 300.0  # A job that fails within this of its restart has failed to restart
FOLLOWED_S = 86_400.0  # What became of a job is remembered for this long after it was put back

_Run = tuple[JobId, int]


class Restarts:
    """Fates of the jobs that were requeued within a day.

    Hot where nothing happens: a look costs no more than what is still open.
    """

    def __init__(self, known: Iterable[Restart]) -> None:
        self._by_run = {_key(r): r for r in known}
        self._open = {key: r for key, r in self._by_run.items() if r.fate == "open"}
        self._all: tuple[Restart, ...] | None = None

    @property
    def all(self) -> tuple[Restart, ...]:
        """All of them, those that were put back first before the others."""
        if self._all is None:
            self._all = tuple(self._by_run.values())
        return self._all

    def of(self, run: Run) -> Restart | None:
        """The record of the job whose *run* was ended; None if it is not followed."""
        return self._by_run.get((run.job_id, run.restarts))

    def news(
        self, before: AttainedService, after: AttainedService, seen: Observed
    ) -> list[Restart]:
        """New records from *seen*: jobs that were requeued, and changed fates of earlier ones.

        Args:
            before: The ledger's columns before *seen* was folded in.
            after: The same after that.
        """
        new = {_key(r): r for r in _put_back(before, after, seen)}
        changed = {_key(r): r for r in _settled([*self._open.values(), *new.values()], seen)}
        return [*{**new, **changed}.values()]

    def keep(self, news: Iterable[Restart], now_s: float) -> None:
        """Take *news* in, and forget what is a day old."""
        for restart in news:
            key = _key(restart)
            self._by_run[key] = restart
            self._open.pop(key, None)
            if restart.fate == "open":
                self._open[key] = restart
            self._all = None
        while self._by_run:
            oldest = next(iter(self._by_run))
            if now_s - self._by_run[oldest].requeued_s < FOLLOWED_S:
                break
            del self._by_run[oldest]
            self._open.pop(oldest, None)
            self._all = None


def _key(restart: Restart) -> _Run:
    return restart.job_id, restart.restarts


def _put_back(before: AttainedService, after: AttainedService, seen: Observed) -> Iterator[Restart]:
    """Runs of jobs that opted in which ended in a requeue, whoever asked for it."""
    ran = np.flatnonzero(before.run_start_s > 0)
    if not len(ran) or not len(after):
        return
    now = np.minimum(after.rows_of(before.job_id[ran]), len(after) - 1)
    same = after.job_id[now] == before.job_id[ran]
    again = same & (after.restarts[now] > before.restarts[ran])
    for old, new in zip(ran[again].tolist(), now[again].tolist(), strict=True):
        job_id = JobId(int(before.job_id[old]))
        if seen.claim(job_id).contract is not None:
            yield Restart(
                job_id=job_id,
                restarts=int(after.restarts[new]) - 1,
                gpus=float(before.run_gpus[old]),
                requeued_s=seen.now_s,
            )


def _settled(going: Sequence[Restart], seen: Observed) -> Iterator[Restart]:
    """Those of *going* of which *seen* tells something new."""
    if not going:
        return
    wanted = np.array([r.job_id for r in going], dtype=np.int64)
    rows = np.flatnonzero(is_in(seen.jobs.job_id, wanted)).tolist()
    row_of = {int(seen.jobs.job_id[row]): row for row in rows}
    for restart in going:
        row = row_of.get(restart.job_id)
        if row is not None:
            after = _after(restart, row, seen)
        elif seen.may_list(restart.job_id):
            continue
        else:
            after = _with(restart, "unknown", seen.now_s)
        if after is not restart:
            yield after


def _after(restart: Restart, row: int, seen: Observed) -> Restart:
    jobs, now_s = seen.jobs, seen.now_s
    state = int(jobs.state[row])
    again = int(jobs.restarts[row]) - restart.restarts
    start_s, fate = 0.0, restart.fate
    if state == PENDING and _is_stuck(row, again, seen):
        fate = "stuck"
    elif again != 1:
        fate = "unknown"  # It was put back once more, or the id is another job's by now.
    elif state == JobState.COMPLETED:
        fate = "well"
    elif state in (RUNNING, JobState.FAILED) and jobs.start_s[row] > 0:
        start_s = float(jobs.start_s[row])
        ended = state == JobState.FAILED
        ran_s = (float(jobs.end_s[row]) if ended else now_s) - start_s
        if ran_s >= SOON_S:
            fate = "well"
        elif ended:
            fate = "unknown" if restart.job_id in seen.cut_short else "failed"
    elif state == JobState.FAILED:
        fate = "unknown"  # It never started: somebody cancelled it while it waited.
    if restart.uid == OWNER_UNKNOWN:
        restart = dataclasses.replace(restart, uid=int(jobs.uid[row]))
    return _with(restart, fate, now_s, start_s)


def _is_stuck(row: int, again: int, seen: Observed) -> bool:
    """Slurm has put a pending job aside because it cannot start it.

    Measured on 22.05.8: a job whose prolog fails is requeued by Slurm, counts a restart and has
    priority 0 and the reason ``launch failed requeued held``. ``JobHeldAdmin`` is an admin's own
    hold as well, but that counts no restart.
    """
    if again < 1 or seen.jobs.priority[row] > 0:
        return False
    if seen.jobs.held[row] not in (Held.USER_OR_ADMIN, Held.UNAVAILABLE):
        return False
    text = seen.texts.get(JobId(int(seen.jobs.job_id[row])))
    reason = "" if text is None else text.reason.replace("_", " ")
    word = reason.split(" ")[0].rstrip(",(")
    if word in ("BadConstraints", "JobHoldMaxRequeue") or reason.startswith("launch failed"):
        return True
    return word == "JobHeldAdmin" and again > 1


def _with(restart: Restart, fate: Fate, now_s: float, start_s: float = 0.0) -> Restart:
    settled_s, restarted_s = 0.0 if fate == "open" else now_s, start_s or restart.restarted_s
    if (fate, settled_s, restarted_s) == (restart.fate, restart.settled_s, restart.restarted_s):
        return restart
    return dataclasses.replace(restart, fate=fate, settled_s=settled_s, restarted_s=restarted_s)


@dataclass(frozen=True, slots=True)
class VictimGone:
    """The changes to store, all at once."""

    handover: Handover  # The hand-over as it is now
    columns: Mapping[str, Sequence[float]]  # New values of the job, by the ledger's columns
    taken: list[Taken]  # Its GPUs, if they were taken back
    restarts: list[Restart]  # What is to be followed of it, if it is back in the queue


def victim_gone(
    handover: Handover,
    action: MarkGone,
    now_s: float,
    service: AttainedService,
    restarts: Restarts,
    *,
    acked: bool,
) -> VictimGone:
    """Effects of *action*, by which a victim of *handover* has left its GPUs.

    Args:
        service: The ledger's columns.
        restarts: What is followed already.
        acked: The run had acknowledged.
    """
    victim = next(v for v in handover.victims if v.run.job_id == action.job_id)
    gone = dataclasses.replace(victim, state=VictimState.GONE, gone_s=now_s, outcome=action.outcome)
    was_signalled = victim.state is not VictimState.CHOSEN
    columns: dict[str, list[float]] = {}
    goes_on = action.outcome in ("requeued", "shrunk")
    if was_signalled and goes_on and knows(service, action.job_id):
        row = int(np.searchsorted(service.job_id, action.job_id))
        # A job that goes on in another size was not preempted.
        more = victim.then is None
        columns["preemptions"] = [int(service.preemptions[row]) + more]
        # A job that requeues itself does so once it has saved.
        by_itself = victim.state is not VictimState.REQUEUING
        # One that shrinks had acknowledged, and has taken that back to go on.
        saved = (
            acked
            or action.outcome == "shrunk"
            or (by_itself and victim.contract.requeued_by == "job")
        )
        columns["last_answer"] = [1 if saved else -1]
    if action.outcome == "refused" or (was_signalled and not victim.signalled_s):
        # Nobody wrote down when it was signalled, if it was.
        columns["last_preempted_s"] = [now_s]
    taken = []
    # Slurm may have forgotten by the next look how it ended; its GPUs were given up.
    if was_signalled and action.outcome in ("requeued", "shrunk", "finished", "left"):
        taken = [
            Taken(
                at_s=now_s,
                job_id=action.job_id,
                gpus=victim.gives_gpus,
                notice_s=now_s - victim.signalled_s if victim.signalled_s else 0.0,
                handover_id=action.handover_id,
            )
        ]
    back = _return_of(action, victim, now_s, restarts) if was_signalled else []
    return VictimGone(with_victim(handover, gone), columns, taken, back)


def _return_of(action: MarkGone, victim: Victim, now_s: float, restarts: Restarts) -> list[Restart]:
    """The restart to follow of a victim that is back in the queue."""
    if action.outcome != "requeued":
        return []
    run = victim.run
    seen = restarts.of(run) or Restart(
        job_id=run.job_id, restarts=run.restarts, gpus=victim.gpus, requeued_s=now_s
    )
    return [dataclasses.replace(seen, handover_id=action.handover_id)]


def with_victim(handover: Handover, victim: Victim) -> Handover:
    """*handover* with *victim* in place of what it had of that job."""
    victims = (victim if v.run.job_id == victim.run.job_id else v for v in handover.victims)
    return dataclasses.replace(handover, victims=tuple(victims))


def knows(service: AttainedService, job_id: JobId) -> bool:
    """Whether *service* has a row of the job."""
    row = int(np.searchsorted(service.job_id, job_id))
    return row < len(service) and int(service.job_id[row]) == job_id
