"""A part of the queue in somebody's order: what one answer of the control socket shows.

A watcher shows two dozen of 100,000 jobs and asks again every two seconds. So the order is found
over columns, and rows for people are built for the jobs that are shown alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_dl.daemon.published_state import LETTERS, Filter, chosen, row, text_of
from slurm_dl.engine.cycle import Cycle
from slurm_dl.json_types import JsonObject
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, JobState
from slurm_dl.model.snapshot import JobText

_NONE_LAST = np.inf

_STATE_PLACE: Mapping[JobState, int] = {
    # Running first, then what is about to run.
    JobState.RUNNING: 0,
    JobState.CONFIGURING: 1,
    JobState.COMPLETING: 2,
    JobState.SUSPENDED: 3,
    JobState.PENDING: 4,
    JobState.COMPLETED: 5,
    JobState.FAILED: 6,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWindow:
    """Which part of the jobs that pass a filter, and in which order.

    Attributes:
        by: Words of `SORTS`, each turned round by a ``-`` before it; the first one weighs most.
        search: Only jobs with this text in their id, name, user, account, partition or state;
            upper and lower case are the same.
        offset: Jobs to leave out at the beginning.
        limit: Most jobs to show; None: all.
        locate: Id of a job whose place is asked for; None: of no job.
    """

    by: Sequence[str] = ("rank",)
    search: str = ""
    offset: int = 0
    limit: int | None = None
    locate: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The part that was asked for.

    Attributes:
        jobs: Its rows.
        total: Jobs that pass the filter and the search, shown or not.
        at: Place of the job to locate among them, from 0; None if it is not there.
    """

    jobs: list[JsonObject]
    total: int
    at: int | None


def page(cycle: Cycle, wanted: Filter, order: QueueWindow) -> Page:
    """The jobs that pass the filter, as *order* has them."""
    rows = chosen(cycle.snapshot.seen, wanted)
    if order.search:
        rows = _with(cycle, rows, order.search.casefold())
    rows = rows[_sorted(cycle, rows, order.by)]
    end = None if order.limit is None else order.offset + order.limit
    shown = rows[order.offset : end].tolist()
    at = None
    if order.locate is not None:
        found = np.flatnonzero(cycle.snapshot.jobs.job_id[rows] == order.locate)
        at = int(found[0]) if len(found) else None
    return Page(jobs=[row(cycle, i) for i in shown], total=len(rows), at=at)


def _with(cycle: Cycle, rows: I64, text: str) -> I64:
    seen = cycle.snapshot.seen
    jobs = seen.jobs
    # A partition and a state are shared by many: each is looked at once.
    in_partition = np.array([text in name.casefold() for name in (*seen.partitions, "")])
    in_state = np.array([text in LETTERS[s].casefold() for s in JobState])
    hit = in_partition[jobs.partition[rows]] | in_state[jobs.state[rows]]
    for k in np.flatnonzero(~hit).tolist():
        i = int(rows[k])
        words = text_of(seen, JobId(int(jobs.job_id[i])))
        # Nothing that is searched for can reach over a line break from one field into the next.
        texts = f"{words.label}\n{words.name}\n{words.user}\n{words.account}"
        hit[k] = text in texts.casefold()
    found: I64 = rows[hit]
    return found


def _sorted(cycle: Cycle, rows: I64, by: Sequence[str]) -> I64:
    """The order of *rows*; ties go by rank, then by job id."""
    keys = [_key(cycle, rows, word) for word in (*by, "rank", "job")]
    order: I64 = np.lexsort(keys[::-1])
    return order


def _key(cycle: Cycle, rows: I64, word: str) -> F64:
    turned = word.startswith("-")
    key = _KEYS[word.removeprefix("-")](cycle, rows)
    known = np.isfinite(key)
    return np.where(known, -key, _NONE_LAST) if turned else key


def _place(column: npt.NDArray[Any]) -> F64:
    """Numbers of which a negative one means that there is none."""
    return np.where(column < 0, _NONE_LAST, column.astype(np.float64))


def _state(cycle: Cycle, rows: I64) -> F64:
    places = np.array([_STATE_PLACE[s] for s in JobState], dtype=np.float64)
    return places[cycle.snapshot.jobs.state[rows]]


def _time(cycle: Cycle, rows: I64) -> F64:
    """Seconds of the present run, as `row` shows them."""
    jobs = cycle.snapshot.jobs
    state, start_s = jobs.state[rows], jobs.start_s[rows]
    now_s = np.where(state >= JobState.COMPLETED, jobs.end_s[rows], cycle.snapshot.now_s)
    ran = (state != JobState.PENDING) & (start_s > 0)
    return np.where(ran, np.maximum(now_s - start_s, 0.0), 0.0)


def _partition(cycle: Cycle, rows: I64) -> F64:
    seen = cycle.snapshot.seen
    # -1, several partitions, finds the last one.
    places = np.array([*_alphabetic(list(seen.partitions)).tolist(), _NONE_LAST])
    return places[seen.jobs.partition[rows]]


def _by_text(words: Callable[[JobText], str]) -> Callable[[Cycle, I64], F64]:
    def key(cycle: Cycle, rows: I64) -> F64:
        seen = cycle.snapshot.seen
        ids = seen.jobs.job_id[rows].tolist()
        return _alphabetic([words(text_of(seen, JobId(j))) for j in ids])

    return key


def _alphabetic(names: Sequence[str]) -> F64:
    places = {name: i for i, name in enumerate(sorted(set(names)))}
    return np.array([places[name] for name in names], dtype=np.float64)


_KEYS: Mapping[str, Callable[[Cycle, I64], F64]] = {
    "rank": lambda cycle, rows: _place(cycle.plan.rank[rows]),
    "tier": lambda cycle, rows: _place(cycle.plan.tier[rows]),
    "running": _state,
    "attained": lambda cycle, rows: cycle.snapshot.memory.attained_gpu_s[rows].astype(np.float64),
    "job": lambda cycle, rows: cycle.snapshot.jobs.job_id[rows].astype(np.float64),
    "gpus": lambda cycle, rows: cycle.snapshot.jobs.gpus[rows].astype(np.float64),
    "restarts": lambda cycle, rows: cycle.snapshot.jobs.restarts[rows].astype(np.float64),
    "time": _time,
    "partition": _partition,
    "user": _by_text(lambda text: text.user),
    "account": _by_text(lambda text: text.account),
    "name": _by_text(lambda text: text.name),
}
