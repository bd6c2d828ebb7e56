"""The queue: squeue's words into columns.

A hot path: 20,000 queued jobs at every poll, 100,000 at worst. The text is turned into columns
of length n_jobs directly; no object is made per job except the words that people read. Values
that repeat (limits, resources, reasons) are parsed once and remembered.

A record with a field that is not of its type is left out and told, never guessed, and never an
error of the whole: users write and time what stands in records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from slurm_dl.model.contract import NO_CLAIM
from slurm_dl.model.handover import RESERVATION_PREFIX
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.snapshot import JobText, LeftOut
from slurm_dl.slurm.read.comment_claims import CLAIM_KEY, ClaimReader, with_wckey
from slurm_dl.slurm.read.grammar import NO_WORDS, is_number, tasks_in
from slurm_dl.slurm.read.job_table import (
    FINISHED,
    INT32_MAX,
    NOTHING,
    JobTable,
    count_of,
    gpus_of,
    node_list,
    nodes_of,
    rows_of,
    start_s_of,
    whole_of,
)
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.record_parser import (
    JOB_FIELDS,
    in_known_words,
    none_readable,
    one_per_job,
    raw_records,
    split_fields,
)
from slurm_dl.slurm.read.tres import TresRequest, job_request, nodes_in
from slurm_dl.slurm.read.vocabulary import CUT_SHORT, epoch_s, held, job_state, limit_s
from slurm_dl.text import escaped

_WHOLES = ("JobID", "UserID", "RestartCnt", "PriorityLong")
_COUNTS = ("NumNodes", "NumTasks", "NumCPUs")
_TIMES = ("SubmitTime", "StartTime", "EndTime", "EligibleTime")
_REQUEST_FIELDS = (
    "tres-alloc",
    "tres-per-node",
    "tres-per-job",
    "tres-per-task",
    "tres-per-socket",
    "Sockets",
    "NumNodes",
    "NumTasks",
)

# "NO" is --exclusive; the others keep the nodes from other users, groups or switches' jobs.
_EXCLUSIVE = frozenset({"NO", "USER", "MCS", "TOPO"})
# Of these Slurm decides by who else is there.
_UNMODELLED = _EXCLUSIVE - {"NO"}
_SEVERAL_TYPES = "GPUs of several types"
# Who runs may be moved: it has to be known where else it may go.
MAY_START = frozenset({JobState.PENDING, JobState.RUNNING})

# Records split into fields at a time: 100,000 at once would be 3 million strings.
_CHUNK = 4_000
# What repeats is remembered, and most of what does not goes with the jobs it was about.
_REMEMBERED = 1_000
_REMEMBERED_PER_JOB = 2
_LONGEST_LABEL = 200
_V = TypeVar("_V")


class _Memo(dict[str, _V], Generic[_V]):
    """Computes what it lacks; `forget` empties it once it holds more than that."""

    def __init__(self, compute: Callable[[str], _V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: str) -> _V:
        value = self[key] = self._compute(key)
        return value

    def forget(self, most: int) -> None:
        if len(self) > most:
            self.clear()


class JobReader:
    """Reads one squeue output after the other, remembering what repeats."""

    def __init__(self, claims: ClaimReader) -> None:
        """Read comments with *claims*."""
        self._claims = claims
        self._states = _Memo(job_state)
        self._reasons = _Memo(held)
        self._limits = _Memo(limit_s)
        self._tasks = _Memo(tasks_in)
        self._node_lists = _Memo(node_list)
        self._escaped = _Memo(escaped)
        self._nodes = _Memo(nodes_in)
        self._requests: dict[tuple[str, ...], TresRequest] = {}
        self._now_s = 0.0
        # What has to be of its type; all else is taken as it is.
        self._strict: dict[str, Callable[[str], object]] = {
            "State": self._states.__getitem__,
            "JobArrayID": self._tasks.__getitem__,
            "TimeLimit": self._limits.__getitem__,
            "NodeList": self._node_lists.__getitem__,
            **dict.fromkeys(_COUNTS, count_of),
            **dict.fromkeys(_WHOLES, whole_of),
            **dict.fromkeys((*_TIMES, "Deadline"), epoch_s),
        }

    def read(self, text: str, nonce: str, site: ClusterReading, *, now_s: float) -> JobTable:
        """The jobs in *text*, in its order.

        Args:
            now_s: When the reading began, epoch seconds; what is eligible later is held.

        Raises:
            ClusterError: The output is cut short, or nothing in it can be read.
        """
        raw, left_out = one_per_job(raw_records(text, nonce), nonce)
        parts = (
            split_fields(raw[first : first + _CHUNK], nonce, len(JOB_FIELDS))
            for first in range(0, len(raw), _CHUNK)
        )
        parts = (in_known_words(records, site.config.release) for records in parts)
        return self._read(parts, len(raw) + left_out, site, now_s)

    def read_records(
        self, records: Sequence[Sequence[str]], site: ClusterReading, *, now_s: float
    ) -> JobTable:
        """The jobs of *records*: `JOB_FIELDS` of each in squeue's words, each job id once.

        Raises:
            ClusterError: Nothing in them can be read.
        """
        parts = (records[first : first + _CHUNK] for first in range(0, len(records), _CHUNK))
        return self._read(parts, len(records), site, now_s)

    def _read(
        self,
        parts: Iterable[Sequence[Sequence[str]]],
        n_records: int,
        site: ClusterReading,
        now_s: float,
    ) -> JobTable:
        self._forget(_REMEMBERED + _REMEMBERED_PER_JOB * n_records)
        self._now_s = now_s
        table = self._table((), site)
        for records in parts:
            try:
                part = self._table(records, site)
            except ValueError:
                faults = [self._fault(record) for record in records]
                readable = [r for r, fault in zip(records, faults, strict=True) if not fault]
                part = self._table(readable, site)
                table.left_out |= dict(filter(None, map(_left_out, records, faults)))
            table.extend(part)
        table.unreadable = n_records - len(table.job_id)
        # No user can bring about a state that nobody knows: that is another Slurm.
        known = table.job_id or any(one.field != "State" for one in table.left_out.values())
        if n_records and not known:
            raise none_readable(n_records)
        return table

    def _fault(self, record: Sequence[str]) -> str:
        """The first field of *record* that is not understood; empty if there is none."""
        for name, value in zip(JOB_FIELDS, record, strict=True):
            try:
                if name in self._strict:
                    self._strict[name](value)
            except ValueError:
                return name
        return ""

    def _table(self, records: Sequence[Sequence[str]], site: ClusterReading) -> JobTable:
        columns = zip(*records, strict=True) if records else ((),) * len(JOB_FIELDS)
        raw: dict[str, tuple[str, ...]] = dict(zip(JOB_FIELDS, columns, strict=True))
        state = [self._states[v] for v in raw["State"]]
        whole = {name: [whole_of(v) for v in raw[name]] for name in _WHOLES}
        count = {name: [count_of(v) for v in raw[name]] for name in _COUNTS}
        # Measured on 22.05.8: NumNodes of a pending job with -c may be too large. Here it is too
        # small for GPUs in all (--gpus), which need as many nodes as there are nodes' worth of.
        allocated = zip(count["NumNodes"], raw["tres-alloc"], strict=True)
        count["NumNodes"] = [self._nodes[alloc] or n for n, alloc in allocated]
        times = {name: [epoch_s(v) for v in raw[name]] for name in _TIMES}
        due_s = {v: epoch_s(v) for v in set(raw["Deadline"])}
        requests = self._requests_of(raw, count)
        most_gpus = max(1.0, float(site.nodes.gpus.max(initial=0.0)))
        tracks_memory = site.config.tracks_memory
        job_id = [JobId(v) for v in whole["JobID"]]
        rows = site.partition_row
        limits = [self._limits[v] for v in raw["TimeLimit"]]
        several = {v: r for v in set(raw["Partition"]) if "," in v and (r := rows_of(v, rows))}
        held = [
            self._held(*row)
            for row in zip(
                state,
                raw["Reason"],
                raw["Reservation"],
                whole["PriorityLong"],
                times["EligibleTime"],
                strict=True,
            )
        ]
        return JobTable(
            job_id=whole["JobID"],
            state=state,
            held=held,
            partition=[
                several[v][0] if v in several and s is JobState.PENDING else rows.get(v, -1)
                for s, v in zip(state, raw["Partition"], strict=True)
            ],
            uid=whole["UserID"],
            tasks=[self._tasks[v] for v in raw["JobArrayID"]],
            n_nodes=[
                max(n, math.ceil(request.gres.gpus / most_gpus))
                for n, request in zip(count["NumNodes"], requests, strict=True)
            ],
            gpus=[gpus_of(r, site) for r in requests],
            gpu_type=[r.gres.gpu_type for r in requests],
            cpus=count["NumCPUs"],
            mem_mb=[r.mem_mb if tracks_memory else 0 for r in requests],
            submit_s=times["SubmitTime"],
            start_s=[
                start_s_of(*row)
                for row in zip(
                    state, times["StartTime"], times["EndTime"], raw["NodeList"], strict=True
                )
            ],
            end_s=[
                0.0 if s is JobState.PENDING else v
                for s, v in zip(state, times["EndTime"], strict=True)
            ],
            limit_s=limits,
            restarts=[min(v, INT32_MAX) for v in whole["RestartCnt"]],
            priority=whole["PriorityLong"],
            requeueable=[
                requeue == batch == "1" and het in NOTHING
                for requeue, batch, het in zip(
                    raw["Requeue"], raw["BatchFlag"], raw["HetJobID"], strict=True
                )
            ],
            exclusive=[v in _EXCLUSIVE for v in raw["OverSubscribe"]],
            nodes=[
                nodes_of(s, self._node_lists[v])
                for s, v in zip(state, raw["NodeList"], strict=True)
            ],
            even=[r.even for r in requests],
            counted=[r.counted for r in requests],
            claims={
                job: with_wckey(claim, wckey, limit)
                for job, comment, wckey, limit in zip(
                    job_id, raw["Comment"], raw["WCKey"], limits, strict=True
                )
                if CLAIM_KEY in comment and (claim := self._claims.read(comment)) != NO_CLAIM
            },
            texts=self._texts(job_id, raw),
            reserved={
                job: name
                for job, name, s in zip(job_id, raw["Reservation"], state, strict=True)
                if name.startswith(RESERVATION_PREFIX) and s not in FINISHED
            },
            inside={
                job: tuple(name.split(","))
                for job, name, s in zip(job_id, raw["Reservation"], state, strict=True)
                if name not in NOTHING
                and not name.startswith(RESERVATION_PREFIX)
                and s not in FINISHED
            },
            begins={
                job: begin_s
                for job, why, begin_s in zip(job_id, held, times["EligibleTime"], strict=True)
                if why is Held.BEGIN_TIME and begin_s > 0
            },
            planned={
                job: start_s
                for job, s, why, start_s in zip(
                    job_id, state, held, times["StartTime"], strict=True
                )
                if start_s > self._now_s and why is Held.NO and s is JobState.PENDING
            },
            eligible={
                job: eligible_s
                for job, s, submit_s, eligible_s in zip(
                    job_id, state, times["SubmitTime"], times["EligibleTime"], strict=True
                )
                if eligible_s > submit_s and s in MAY_START
            },
            also_in={
                job: several[name][1:]
                for job, name, s in zip(job_id, raw["Partition"], state, strict=True)
                if name in several and s is JobState.PENDING and several[name][1:]
            },
            restricted={
                job: (nodes, features, n_nodes)
                for job, s, nodes, features, n_nodes in zip(
                    job_id, state, raw["ReqNodes"], raw["Feature"], count["NumNodes"], strict=True
                )
                if s in MAY_START and not (nodes in NO_WORDS and features in NO_WORDS)
            },
            gang_parts={
                job
                for job, s, het in zip(job_id, state, raw["HetJobID"], strict=True)
                if s is JobState.PENDING and het not in NOTHING
            },
            deadlines={
                job: due_s[v]
                for job, s, v in zip(job_id, state, raw["Deadline"], strict=True)
                if due_s[v] and s in MAY_START
            },
            gres={
                job: request.others
                for job, s, request in zip(job_id, state, requests, strict=True)
                if request.others and s in MAY_START
            },
            unmodelled={
                job: f"--exclusive={word.lower()}" if word in _UNMODELLED else _SEVERAL_TYPES
                for job, s, word, request in zip(
                    job_id, state, raw["OverSubscribe"], requests, strict=True
                )
                if (word in _UNMODELLED or request.several_types) and s is JobState.PENDING
            },
            cut_short={
                job for job, word in zip(job_id, raw["State"], strict=True) if word in CUT_SHORT
            },
        )

    def _requests_of(
        self, raw: dict[str, tuple[str, ...]], count: dict[str, list[int]]
    ) -> list[TresRequest]:
        known = self._requests
        requests = []
        keys = zip(*(raw[name] for name in _REQUEST_FIELDS), strict=True)
        for key, nodes, tasks in zip(keys, count["NumNodes"], count["NumTasks"], strict=True):
            request = known.get(key)
            if request is None:
                alloc, per_node, per_job, per_task, per_socket, sockets, *_ = key
                request = known[key] = job_request(
                    alloc,
                    per_node=per_node,
                    per_job=per_job,
                    per_task=per_task,
                    per_socket=per_socket,
                    nodes=nodes,
                    tasks=tasks,
                    sockets=int(sockets) if is_number(sockets) else 1,
                )
            requests.append(request)
        return requests

    def _held(
        self, state: JobState, reason: str, reservation: str, priority: int, eligible_s: float
    ) -> Held:
        if state is not JobState.PENDING:
            return Held.NO
        why = self._reasons[reason]
        if why in {Held.NO, Held.RESERVATION} and reservation not in NOTHING:
            ours = reservation.startswith(RESERVATION_PREFIX)
            why = Held.NO if ours else Held.RESERVATION
        if why is not Held.NO:
            return why
        if priority == 0:
            return Held.USER_OR_ADMIN
        # Measured on 22.05.8: until the scheduler has looked at it, a job that was just requeued
        # says None and only this time tells of its safety interval.
        return Held.BEGIN_TIME if eligible_s > self._now_s else Held.NO

    def _texts(
        self, job_id: Sequence[JobId], raw: dict[str, tuple[str, ...]]
    ) -> dict[JobId, JobText]:
        shown = self._escaped
        columns = zip(
            job_id,
            raw["JobArrayID"],
            map(escaped, raw["Name"]),
            (shown[v] for v in raw["UserName"]),
            (shown[v] for v in raw["Account"]),
            (shown[v] for v in raw["QOS"]),
            (shown[v] for v in raw["Reason"]),
            raw["NodeList"],
            (word if self._states[word] in FINISHED else "" for word in raw["State"]),
            strict=True,
        )
        return {
            job: JobText(
                label=label,
                name=name,
                user=user,
                account="" if account in NOTHING else account,
                qos="" if qos in NOTHING else qos,
                reason=reason,
                nodes=nodes,
                ending=ending,
            )
            for job, label, name, user, account, qos, reason, nodes, ending in columns
        }

    def _forget(self, most: int) -> None:
        memos = (self._states, self._reasons, self._limits, self._tasks, self._node_lists)
        for memo in (*memos, self._escaped, self._nodes):
            memo.forget(most)
        if len(self._requests) > most:
            self._requests.clear()
        self._claims.forget(most)


def _left_out(record: Sequence[str], fault: str) -> tuple[JobId, LeftOut] | None:
    """The job of a *record* with a *fault*, by its id; None if there is none, or no id either."""
    raw = dict(zip(JOB_FIELDS, record, strict=True))
    if not fault or fault == "JobID":
        return None
    uid = int(raw["UserID"]) if is_number(raw["UserID"]) else -1
    return JobId(int(raw["JobID"])), LeftOut(
        uid=uid, label=escaped(raw["JobArrayID"])[:_LONGEST_LABEL], field=fault
    )
