"""Answers about jobs that Slurm no longer lists, from the ledger and the audit log.

``dlqueue --states all`` shows them behind the listed ones for a day. They come from the ledger, so
a daemon that was started a minute ago shows them too.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.control import privacy
from slurm_dl.daemon.control.privacy import Own
from slurm_dl.daemon.published_state import LETTERS
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.past_reasons import Sight, audit_sentences, why_gone
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.ledger.completions import JobEnding, PastJob
from slurm_dl.ledger.sqlite.reader import LedgerReader
from slurm_dl.ledger.sqlite.rows import ANY, Only, RememberedEnding
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, Jobs, JobState
from slurm_dl.model.snapshot import JobText
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


_DIGITS = 18  # More of them no file can hold as a number


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
            "then": None if one.then is None else str(one.then),
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


LISTED_S = 86_400.0  # So long after its end a job is listed
MOST_LISTED = 5_000  # The last ones; each is a row in memory while somebody asks

OVER = frozenset({JobState.COMPLETED, JobState.FAILED})

_Columns = TypeVar("_Columns")


def with_ended(cycle: Cycle, ended: Sequence[RememberedEnding]) -> Cycle:
    """*cycle* as if Slurm had listed the jobs *ended* too, for the list of the queue alone.

    Those that it does list are left as they are. Of a contract it is known that there was one, and
    not which.
    """
    snap, plan = cycle.snapshot, cycle.plan
    seen = snap.seen
    listed = frozenset(seen.jobs.job_id.tolist())
    gone = [one for one in ended if one.ending.job_id not in listed]
    if not gone:
        return cycle
    endings = [one.ending for one in gone]
    rows = _jobs(endings, seen.partitions)
    claims = {e.job_id: Claim(contract=Contract()) for e in endings if e.preemptible}
    memory = _longer(
        snap.memory,
        len(gone),
        attained_gpu_s=[one.attained_gpu_s for one in gone],
        preemptions=[one.preemptions for one in gone],
    )
    none = np.full(len(gone), -1)
    return dataclasses.replace(
        cycle,
        snapshot=dataclasses.replace(
            snap,
            seen=dataclasses.replace(
                seen,
                jobs=Jobs(
                    **{
                        f.name: np.concatenate([getattr(seen.jobs, f.name), getattr(rows, f.name)])
                        for f in dataclasses.fields(Jobs)
                    }
                ),
                texts=_Texts(seen.texts, endings),
                claims={**seen.claims, **claims},
            ),
            memory=memory,
        ),
        plan=dataclasses.replace(
            plan,
            tier=np.concatenate([plan.tier, none.astype(plan.tier.dtype)]),
            rank=np.concatenate([plan.rank, none.astype(plan.rank.dtype)]),
        ),
    )


def _longer(columns: _Columns, more: int, **values: Sequence[float]) -> _Columns:
    """*columns* with *more* rows of *values*, 0 where there are none."""
    longer: dict[str, Any] = {}
    for field in dataclasses.fields(columns):  # type: ignore[arg-type] # a dataclass of columns
        column = getattr(columns, field.name)
        tail = np.array(values.get(field.name, [0] * more), dtype=column.dtype)
        longer[field.name] = np.concatenate([column, tail])
    return type(columns)(**longer)


def _jobs(endings: Sequence[JobEnding], partitions: Sequence[str]) -> Jobs:
    """Columns of *endings*; what nobody shows of a job that is over is left as it is by default."""
    like = JobRow(job_id=0, state=JobState.COMPLETED)
    row_of = {name: i for i, name in enumerate(partitions)}
    columns: dict[str, list[Any]] = {
        f.name: [getattr(like, f.name)] * len(endings) for f in dataclasses.fields(Jobs)
    }
    for name in _KEPT:
        columns[name] = [getattr(e, name) for e in endings]
    columns["partition"] = [row_of.get(e.partition, -1) for e in endings]
    return Jobs.of_columns(columns)


_KEPT = frozenset(f.name for f in dataclasses.fields(Jobs)) & frozenset(
    f.name for f in dataclasses.fields(JobEnding)
) - {"partition"}


class _Texts(Mapping[JobId, JobText]):
    """The words of the jobs that are listed, and of those that ended: of these when asked for."""

    def __init__(self, listed: Mapping[JobId, JobText], endings: Sequence[JobEnding]) -> None:
        self._listed = listed
        self._endings = {e.job_id: e for e in endings}

    def __getitem__(self, job_id: JobId, /) -> JobText:
        ending = self._endings.get(job_id)
        if ending is None:
            return self._listed[job_id]
        return JobText(**{name: getattr(ending, name) for name in _WORDS})

    def __iter__(self) -> Iterator[JobId]:
        yield from self._listed
        yield from self._endings

    def __len__(self) -> int:
        return len(self._listed) + len(self._endings)


_WORDS = tuple(f.name for f in dataclasses.fields(JobText))
