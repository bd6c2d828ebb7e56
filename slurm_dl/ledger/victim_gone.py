"""Effects of a victim's end on its hand-over, its job and its GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_dl.ledger.attained_service import AttainedService
from slurm_dl.ledger.restarts import Restarts
from slurm_dl.model.breaker import Restart, Taken
from slurm_dl.model.handover import Handover, Victim, VictimState
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import MarkGone


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
    if was_signalled and action.outcome == "requeued" and knows(service, action.job_id):
        row = int(np.searchsorted(service.job_id, action.job_id))
        # A job that goes on in another size was not preempted.
        more = victim.then is None
        columns["preemptions"] = [int(service.preemptions[row]) + more]
        # A job that requeues itself does so once it has saved.
        by_itself = victim.state is not VictimState.REQUEUING
        saved = acked or (by_itself and victim.contract.requeued_by == "job")
        columns["last_answer"] = [1 if saved else -1]
    if action.outcome == "refused" or (was_signalled and not victim.signalled_s):
        # Nobody wrote down when it was signalled, if it was.
        columns["last_preempted_s"] = [now_s]
    taken = []
    # Slurm may have forgotten by the next look how it ended; its GPUs were given up.
    if was_signalled and action.outcome in ("requeued", "finished", "left"):
        taken = [
            Taken(
                at_s=now_s,
                job_id=action.job_id,
                gpus=victim.gives_gpus,
                notice_s=now_s - victim.signalled_s if victim.signalled_s else 0.0,
                handover_id=action.handover_id,
            )
        ]
    back = _put_back(action, victim, now_s, restarts) if was_signalled else []
    return VictimGone(with_victim(handover, gone), columns, taken, back)


def _put_back(action: MarkGone, victim: Victim, now_s: float, restarts: Restarts) -> list[Restart]:
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
