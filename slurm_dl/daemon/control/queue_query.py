"""A part of the queue in somebody's order: what one answer of the control socket shows.

A watcher shows two dozen of 100,000 jobs and asks again every two seconds. So the order is found
over columns, and rows for people are built for the jobs that are shown alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_dl.daemon.control.wire_format import QueueRequest
from slurm_dl.daemon.published_state import LETTERS, LIVE, is_pending_part, row, text_of
from slurm_dl.engine.cycle import Cycle
from slurm_dl.json_types import JsonObject
from slurm_dl.model.ids import JobId, has_task
from slurm_dl.model.jobs import F64, I64, Bool, JobState
from slurm_dl.model.snapshot import JobText, Observed

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
class Page:
    """The part that was asked for."""

    jobs: list[JsonObject]  # Its rows
    total: int  # Jobs that pass the filter and the search, shown or not
    at: int | None  # Place of the job to locate among them, from 0; None if it is not there


def page(
    cycle: Cycle,
    wanted: QueueRequest,
    states: Collection[JobState] = LIVE,
    owner: int | None = None,
) -> Page:
    """The jobs that are asked for.

    Args:
        states: What the words of ``wanted.state`` mean.
        owner: Uid of the only user whose jobs may be shown; None: everybody's.
    """
    rows = _chosen(cycle.snapshot.seen, wanted, states, owner)
    if wanted.search:
        rows = _with(cycle, rows, wanted.search.casefold())
    rows = rows[_sorted(cycle, rows, wanted.sort)]
    end = None if wanted.limit is None else wanted.offset + wanted.limit
    shown = rows[wanted.offset : end].tolist()
    at = None
    if wanted.locate is not None:
        found = np.flatnonzero(cycle.snapshot.jobs.job_id[rows] == wanted.locate)
        at = int(found[0]) if len(found) else None
    return Page(jobs=[row(cycle, i) for i in shown], total=len(rows), at=at)


def _chosen(
    seen: Observed, wanted: QueueRequest, states: Collection[JobState], owner: int | None
) -> I64:
    """The rows of the jobs that pass the filters, in Slurm's order."""
    jobs = seen.jobs
    mask: Bool = np.isin(jobs.state, [int(s) for s in states])
    if owner is not None:
        mask &= jobs.uid == owner
    if wanted.partition:
        known = [i for i, name in enumerate(seen.partitions) if name in set(wanted.partition)]
        also = [
            job_id for job_id, parts in seen.also_in.items() if not set(parts).isdisjoint(known)
        ]
        mask &= np.isin(jobs.partition, known) | np.isin(jobs.job_id, also)
    if wanted.node:
        names = frozenset(wanted.node)
        node_rows = [i for i, name in enumerate(seen.nodes.name) if name in names]
        holders = seen.held.job[np.isin(seen.held.node, node_rows)]
        on_nodes = np.zeros(len(jobs), dtype=np.bool_)
        on_nodes[holders] = True
        mask &= on_nodes
    found = np.flatnonzero(mask)
    tests = _word_tests(wanted)
    if not tests:
        return found
    passes = [
        all(
            test(text_of(seen, JobId(int(jobs.job_id[i]))), str(int(jobs.uid[i]))) for test in tests
        )
        for i in found
    ]
    return found[np.array(passes, dtype=np.bool_)]


def _word_tests(wanted: QueueRequest) -> list[Callable[[JobText, str], bool]]:
    """Tests of a job's texts and its owner's uid."""
    tests: list[Callable[[JobText, str], bool]] = []
    if users := frozenset(wanted.user):
        tests.append(lambda text, uid: text.user in users or uid in users)
    if accounts := frozenset(wanted.account):
        tests.append(lambda text, _: text.account in accounts)
    if qos := frozenset(wanted.qos):
        tests.append(lambda text, _: text.qos in qos)
    if names := frozenset(wanted.name):
        tests.append(lambda text, _: text.name in names)
    if jobs := frozenset(wanted.job):
        tests.append(lambda text, _: _is_one_of(text.label, jobs))
    return tests


def _is_one_of(label: str, jobs: Collection[str]) -> bool:
    """Whether *jobs* has the job, the array or the het job, or a task that waits in the record."""
    whole = re.split(r"[_+]", label, maxsplit=1)[0]
    if label in jobs or whole in jobs:
        return True
    if not is_pending_part(label):
        return False
    tasks = [job.partition("_")[2] for job in jobs if job.startswith(f"{whole}_")]
    return any(_TASK.fullmatch(task) and has_task(label, int(task)) for task in tasks)


_TASK = re.compile(r"\d{1,10}", re.ASCII)


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
        parts = "\n".join(seen.partitions[p] for p in cycle.snapshot.partitions_of(i))
        texts = f"{words.label}\n{words.name}\n{words.user}\n{words.account}\n{parts}"
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
