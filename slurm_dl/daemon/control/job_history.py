"""Answers about jobs that Slurm no longer lists, from the ledger and the audit log."""

from __future__ import annotations

import weakref
from collections.abc import Collection

from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.control import privacy
from slurm_dl.daemon.control.ended_jobs import LISTED_S, MOST_LISTED, with_ended
from slurm_dl.daemon.control.privacy import Own
from slurm_dl.daemon.published_state import LETTERS
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.past_reasons import Sight, why_gone
from slurm_dl.engine.explain.plan_reasons import audit_sentences
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.ledger.job_past import PastJob
from slurm_dl.ledger.sqlite.ending_rows import ANY, Only
from slurm_dl.ledger.sqlite.reader import LedgerReader
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.ids import JobId
from slurm_dl.text import safe

_GPU_S_PER_GPU_H = 3600.0


class JobHistory:
    """Answers what became of jobs; may be asked from many threads.

    Args:
        reader: Reads the ledger; None: there is none, and nothing is known.
    """

    def __init__(self, reader: LedgerReader | None = None) -> None:
        self._reader = reader
        self._listed: tuple[weakref.ref[Cycle], Cycle] | None = None

    def of(self, job_id: JobId) -> PastJob | None:
        """The ledger's record of the job; None while the ledger cannot be read."""
        try:
            return None if self._reader is None else self._reader.past(job_id)
        except SlurmDlError:
            return None

    def listed(self, cycle: Cycle, only: Only = ANY) -> Cycle:
        """*cycle* with the jobs of a day that Slurm does not list any more; see `with_ended`.

        Args:
            only: At least these. There is an end to how many are listed, and others must not
                leave no room for them.
        """
        last = self._listed
        if only == ANY and last is not None and last[0]() is cycle:
            return last[1]
        now_s = cycle.snapshot.now_s
        try:
            ended = (
                self._reader.ended_since(now_s - LISTED_S, now_s, MOST_LISTED, only)
                if self._reader
                else ()
            )
        except SlurmDlError:
            return cycle
        longer = with_ended(cycle, ended)
        if only == ANY and longer is not cycle:
            # Nothing ends between two looks, as far as anybody knows. It goes with its cycle:
            # nobody may ask again for days.
            self._listed = weakref.ref(cycle, self._drop), longer
        return longer

    def _drop(self, gone: weakref.ref[Cycle]) -> None:
        if self._listed is not None and self._listed[0] is gone:
            self._listed = None

    def gone(self, name: str, sight: Sight, audit: AuditLog, now_s: float) -> JsonObject | None:
        """The answer about a job that is not listed; None if there is none that may be given.

        Args:
            now_s: When Slurm was looked at last, epoch seconds: nothing has ended later.
        """
        job_id = self._job_named(name, now_s)
        past = None if job_id is None else self.of(job_id)
        if job_id is None or past is None:
            return None
        if isinstance(sight, Own):
            # Whose it was must be known: a number says nothing.
            if past.uids != {sight.uid}:
                return None
            sight = Own(sight.uid, frozenset({*sight.ids, job_id}))
        history = audit.history(job_id)
        sentences = [*why_gone(past, sight), *audit_sentences(history, sight)]
        return {
            "job": None,
            "past": past_object(past, sight),
            "sentences": [safe(s, 1000) for s in sentences],
            "history": list(privacy.history_for(history, sight)),
        }

    def _job_named(self, name: str, now_s: float) -> JobId | None:
        try:
            found = None if self._reader is None else self._reader.named(name, now_s)
        except SlurmDlError:
            return None
        if found is None and name.isascii() and name.isdecimal() and len(name) <= _DIGITS:
            return JobId(int(name))
        return found


def users_shown(sight: Sight, users: Collection[str]) -> tuple[str, ...] | None:
    """Users whose jobs are shown, of *users* if any are named; None: all users."""
    if isinstance(sight, Own):
        return (str(sight.uid),)
    return tuple(users) or None


_DIGITS = 18
"""More of them no file can hold as a number."""


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
        "ended": None if past.ending is None else _ended(past.ending),
        "runs": runs,
        "gave_way": gave_way,
    }


def _ended(ending: JobEnding) -> JsonObject:
    return {
        "job": ending.label,
        "name": ending.name,
        "user": ending.user or str(ending.uid),
        "state": LETTERS[ending.state],
        "ending": ending.how,
        "reason": ending.reason,
        "at_s": ending.end_s or ending.seen_s,
    }
