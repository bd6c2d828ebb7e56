"""What became of jobs: what the daemon answers of those that Slurm does not list any more.

It is put together from the ledger, which knows runs and hand-overs, from the last listing, which
knew the name and the owner, and from the audit log.
"""

from __future__ import annotations

from collections.abc import Callable

from slurm_dl.apps import privacy
from slurm_dl.apps.audit import AuditLog
from slurm_dl.apps.commandline import safe
from slurm_dl.apps.finished import Finished
from slurm_dl.apps.privacy import Own
from slurm_dl.apps.wire import Json, JsonObject
from slurm_dl.engine.explain import Sight, told
from slurm_dl.engine.explain_past import PastJob, why_gone
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.ids import JobId

_GPU_S_PER_GPU_H = 3600.0


def _unknown(_: JobId) -> PastJob | None:
    return None


class Pasts:
    """Answers what became of jobs; may be asked from many threads.

    Args:
        read: What the ledger knows of a job, read anew; may raise a `SlurmDlError`.
        finished: The jobs that ended last.
    """

    def __init__(
        self,
        read: Callable[[JobId], PastJob | None] = _unknown,
        finished: Finished | None = None,
    ) -> None:
        self._read = read
        self._finished = finished or Finished()

    def of(self, job_id: JobId) -> PastJob | None:
        """What the ledger knows; nothing while it cannot be read: the rest is worth having."""
        try:
            return self._read(job_id)
        except SlurmDlError:
            return None

    def gone(self, name: str, sight: Sight, audit: AuditLog) -> JsonObject | None:
        """The answer about a job that is not listed; None if there is none that may be given."""
        last = self._finished.find(name)
        if last is None and not (name.isascii() and name.isdecimal()):
            return None
        job_id = last.job_id if last else JobId(int(name))
        past = self.of(job_id)
        if past is None:
            return None
        if isinstance(sight, Own):
            # Whose it was must be known: a number says nothing.
            uids = past.uids | ({last.uid} if last else frozenset())
            if uids != {sight.uid}:
                return None
            sight = Own(sight.uid, frozenset({*sight.ids, job_id}))
        history = audit.history(job_id)
        label, ending = (last.label, last.ending) if last else (str(job_id), "")
        sentences = [*why_gone(past, label, ending, sight), *told(history, sight)]
        return {
            "job": None,
            "past": past_object(past, sight),
            "sentences": [safe(s, 1000) for s in sentences],
            "history": list(privacy.history_for(history, sight)),
        }


def past_object(past: PastJob, sight: Sight) -> JsonObject:
    """*past* for a program; of the jobs it gave way to, those that may be named."""
    runs: list[Json] = [
        {
            "start_s": run.start_s,
            "end_s": run.end_s,
            "gpu_h": round(run.gpu_s / _GPU_S_PER_GPU_H, 4),
        }
        for run in past.runs
    ]
    gave_way: list[Json] = [
        {
            "at_s": one.at_s,
            "notice_s": one.notice_s or None,
            "gpus": one.gpus,
            "handover": one.handover_id,
            "purpose": one.purpose,
            "beneficiaries": [j for j in one.beneficiaries if sight.knows(j)],
            "signal": one.signal or None,
        }
        for one in past.gave_way
    ]
    return {
        "job_id": past.job_id,
        "attained_gpu_h": round(past.attained_gpu_s / _GPU_S_PER_GPU_H, 4),
        "ran_s": past.ran_s,
        "first_submit_s": past.first_submit_s or None,
        "last_seen_s": past.last_seen_s or None,
        "preemptions": past.preemptions,
        "incomplete": past.incomplete,
        "runs": runs,
        "gave_way": gave_way,
    }
