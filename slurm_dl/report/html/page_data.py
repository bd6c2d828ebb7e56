"""A schedule as columns: the fields that `docs/evaluate/report-page.md` lists under "Data format".

Numbers are little-endian typed arrays in base64, a job costs tens of bytes and a run 12 and a few
more for its rows. Times are whole ticks since the first submission; 2^32 - 1 of them means never.
Only what people typed is text.
"""

from __future__ import annotations

import base64
import dataclasses
import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.model.completed_jobs import Records, RunNodes
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64, I32, I64
from slurm_dl.report import summary_metrics, timeline
from slurm_dl.report.export import summary_json
from slurm_dl.report.html.row_packing import Blocks, pack, rectangles
from slurm_dl.report.summary_metrics import Group
from slurm_dl.text import safe

NEVER: Final = 2**32 - 1

MOST_RUNS: Final = 500_000
"""Runs of one page, some 15 MB; a browser draws more, but few people wait for it."""

ENDED, PREEMPTED, MOVED = 0, 1, 2
"""How a run ended: the job was over; it waited again; it went on at once in another run."""

_FINEST_S: Final = 1e-3
_WINDOWS: Final = 800
_MOST_USERS: Final = 200
_LONGEST: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What one policy made of the jobs."""

    label: str  # What the page calls it
    about: tuple[str, ...]  # How it was made, a line each
    records: Records  # The jobs, with their runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the schedules of a page have in common: the jobs and the cluster.

    Attributes:
        accounts: The account of each job, empty for one without; None: nobody knows.
    """

    title: str  # The workload
    cluster: str  # The cluster in words
    node_gpus: tuple[int, ...]  # GPUs of each node
    names: Sequence[str] | None = None  # What each job is called or trains; None: nobody knows
    accounts: Sequence[str] | None = None

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(self.node_gpus)


def page_data(subject: Subject, schedules: Sequence[Schedule]) -> dict[str, object]:
    """All that a page shows, as plain values for `json.dumps`.

    Args:
        schedules: Of the same jobs, at least one.

    Raises:
        ConfigError: There are more runs than a page holds.
        ValueError: The schedules are not of the same jobs, or their runs are not known.
    """
    jobs = schedules[0].records
    if any(s.records.job_id != jobs.job_id for s in schedules):
        msg = "the schedules of a page must be of the same jobs"
        raise ValueError(msg)
    runs = sum(len(s.records.runs) for s in schedules)
    if runs > MOST_RUNS:
        msg = (
            f"{runs:,} runs are too many for a page, which holds {MOST_RUNS:,}: take a shorter "
            "trace, or fewer policies at a time"
        )
        raise ConfigError(msg)
    clock = _Clock.of([s.records for s in schedules])
    return {
        "version": 2,
        "title": _text(subject.title),
        "cluster": _text(subject.cluster),
        "gpus": subject.gpus,
        "nodes": _runs_of(subject.node_gpus),
        "zero_s": clock.zero_s,
        "tick_s": clock.tick_s,
        "end_s": clock.end_s,
        "jobs": _jobs(jobs, subject, clock),
        "schedules": [_schedule(s, subject, clock) for s in schedules],
    }


@dataclass(frozen=True, slots=True)
class _Clock:
    """Ticks since the first submission; they are as fine as 32 bits allow, and a power of ten."""

    zero_s: float
    end_s: float
    tick_s: float

    @classmethod
    def of(cls, all_records: Sequence[Records]) -> _Clock:
        spans = [timeline.span(records) for records in all_records]
        firsts = [first for first, _ in spans if math.isfinite(first)]
        lasts = [last for _, last in spans if math.isfinite(last)]
        submits = [float(r.submit_s.max()) for r in all_records if len(r)]
        zero_s = min(firsts, default=0.0)
        end_s = max(max(lasts + submits, default=0.0) - zero_s, _FINEST_S)
        exponent = max(-3, math.ceil(math.log10(end_s / (NEVER - 1))))
        return cls(zero_s, end_s, 10.0**exponent)

    def ticks(self, times_s: F64) -> I64:
        """*times_s* as ticks; NaN is `NEVER`."""
        known = ~np.isnan(times_s)
        ticks = np.rint((np.where(known, times_s, self.zero_s) - self.zero_s) / self.tick_s)
        return np.where(known, np.clip(ticks, 0, NEVER - 1), NEVER).astype(np.int64)


def _jobs(records: Records, subject: Subject, clock: _Clock) -> dict[str, object]:
    names, name = _numbered(subject.names)
    accounts, account = _numbered(subject.accounts)
    return {
        "id": [_text(job_id) for job_id in records.job_id],
        "user": _u32(records.user),
        "users": [_text(user) for user in records.users],
        "name": _u32(name),
        "names": [_text(text) for text in names],
        "account": _u32(account),
        "accounts": [_text(text) for text in accounts],
        "gpus": _f32(records.gpus),
        "submit": _u32(clock.ticks(records.submit_s)),
    }


def _numbered(texts: Sequence[str] | None) -> tuple[tuple[str, ...], I64]:
    """Different texts in the order in which they come, and the place of each."""
    known: dict[str, int] = {}
    place = [known.setdefault(text, len(known)) for text in texts or ()]
    return tuple(known), np.array(place, dtype=np.int64)


def _schedule(schedule: Schedule, subject: Subject, clock: _Clock) -> dict[str, object]:
    records = schedule.records
    runs = records.runs
    edges_s = timeline.windows(records, count=_WINDOWS)
    # Asked for first: it says so where the runs are not known.
    used = timeline.gpus_in_use(records).means(edges_s) if len(edges_s) else np.zeros(0)
    waiting = timeline.jobs_waiting(records).means(edges_s) if len(edges_s) else np.zeros(0)
    start, end = clock.ticks(runs.start_s), clock.ticks(runs.end_s)
    job = runs.job.astype(np.int64)
    in_time = np.lexsort((job, end, start))
    start, end, job = start[in_time], end[in_time], job[in_time]
    rows = np.ceil(runs.gpus[in_time]).astype(np.int64)
    if runs.nodes is None:
        blocks = pack(start, end, job=job, gpus=rows, node_gpus=subject.node_gpus)
    else:
        blocks = number(start, end, in_order(runs.nodes, in_time), subject.node_gpus)
    summary = summary_metrics.summarise(records, gpus=subject.gpus)
    return {
        "label": _text(schedule.label),
        "about": [_text(line) for line in schedule.about],
        "start": _u32(clock.ticks(records.start_s)),
        "end": _u32(clock.ticks(records.end_s)),
        "preemptions": _u32(records.preemptions),
        "service_gpu_s": _f32(records.service_gpu_s),
        "lost_gpu_s": _f32(records.all_lost_gpu_s),
        "queue_s": _f32(records.queue_s),
        "success": _u8(records.success),
        "runs": {
            "job": _u32(job),
            "start": _u32(start),
            "end": _u32(end),
            "how": _u8(how_they_ended(job, start, end, records.finished)),
        },
        "blocks": {
            "run": _u32(blocks.run),
            "first": _u32(blocks.first),
            "count": _u32(blocks.count),
        },
        "extra_rows": blocks.extra,
        "nodes_known": runs.nodes is not None,
        "over_time": {
            "from_s": float(edges_s[0] - clock.zero_s) if len(edges_s) else 0.0,
            "step_s": float(edges_s[1] - edges_s[0]) if len(edges_s) else 0.0,
            "gpus_used": _f32(used),
            "jobs_waiting": _f32(waiting),
        },
        "figures": summary_json(summary),
        "users": _owners(
            records, summary_metrics.by_user(records, gpus=subject.gpus), summary.jain
        ),
        "accounts": _accounts(records, subject),
    }


def how_they_ended(job: I64, start: I64, end: I64, finished: npt.NDArray[np.bool_]) -> I64:
    """How each run ended: `ENDED`, `PREEMPTED` or `MOVED`.

    Components of a heterogeneous job run at the same time: what follows a run is the next one of
    its job that begins when it is over, and not one beside it.

    Args:
        job: ``(k,)`` whose run it is.
        start: ``(k,)`` ticks.
        end: ``(k,)`` ticks.
        finished: Of each job, whether it came to an end.
    """
    how = np.full(len(job), PREEMPTED, dtype=np.int64)
    if not len(job):
        return how
    order = np.lexsort((end, start, job))
    job, start, end = job[order], start[order], end[order]
    # Jobs one after the other on one axis.
    first, length = start.min(), end.max() - start.min() + 1
    begins, over = job * length + (start - first), job * length + (end - first)
    # A run of no length is not followed by itself.
    after = np.maximum(np.searchsorted(begins, over), np.arange(1, len(job) + 1))
    within = np.minimum(after, len(job) - 1)
    followed = (after < len(job)) & (job[within] == job)
    how[order[followed & (start[within] == end)]] = MOVED
    how[order[~followed & finished[job]]] = ENDED
    return how


def _accounts(records: Records, subject: Subject) -> dict[str, object] | None:
    """As for users; None where no job has an account."""
    if not any(subject.accounts or ()):
        return None
    names, account = _numbered(subject.accounts)
    of_accounts = dataclasses.replace(records, users=names, user=account.astype(np.int32))
    groups = summary_metrics.by_user(of_accounts, gpus=subject.gpus)
    return _owners(records, groups, summary_metrics.summarise(of_accounts, gpus=subject.gpus).jain)


def _owners(records: Records, groups: Sequence[Group], jain: float) -> dict[str, object]:
    """Those users or accounts with the most service; how many are left out is told."""
    ranked = sorted(groups, key=lambda g: (-g.summary.service_gpu_s, g.label))
    whole_gpu_s = float(records.service_gpu_s.sum())
    return {
        "in_all": len(ranked),
        "jain": jain if math.isfinite(jain) else None,
        "service_gpu_s": whole_gpu_s,
        "shown": [_owner(group) for group in ranked[:_MOST_USERS]],
    }


def _owner(group: Group) -> Mapping[str, object]:
    summary = group.summary
    figures = {
        "jobs": summary.jobs,
        "service_gpu_s": summary.service_gpu_s,
        "avg_jct_s": summary.jct_s.mean,
        "avg_queue_s": summary.queue_s.mean,
        "avg_rho": summary.rho.mean,
        "max_rho": summary.rho.max,
        "unfair_frac": summary.unfair_frac,
    }
    finite = {k: float(v) if math.isfinite(v) else None for k, v in figures.items()}
    return {"name": _text(group.label), **finite}


def _runs_of(node_gpus: Sequence[int]) -> list[list[int]]:
    """``[nodes, GPUs of each]`` for each stretch of like nodes."""
    return [[len(list(alike)), gpus] for gpus, alike in itertools.groupby(node_gpus)]


def _text(text: str) -> str:
    return safe(text, _LONGEST)


def _u32(column: npt.NDArray[np.int32] | I64) -> str:
    return _base64(column.astype("<u4"))


def _u8(column: I64 | npt.NDArray[np.bool_]) -> str:
    return _base64(column.astype("u1"))


def _f32(column: F64) -> str:
    return _base64(column.astype("<f4"))


def _base64(column: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(column.tobytes()).decode("ascii")


def number(start: F64 | I64, end: F64 | I64, nodes: RunNodes, node_gpus: Sequence[int]) -> Blocks:
    """Put runs on the rows of their nodes so that no two are on one row at the same time.

    These are the rows on which a run is drawn where its nodes are known. Simulators count the GPUs
    of a node and do not number them. So they are numbered here: a run gets the lowest numbers that
    are free on each of its nodes, who ends before who starts. It depends on nothing but the runs
    and their nodes.

    A part of a GPU is a row, too. Where jobs share GPUs more may be on a node than it has rows;
    they are on extra ones.

    Args:
        start: ``(k,)`` when each run starts, in any unit.
        end: ``(k,)`` when it ends; a run that ends when it starts is on no row.
        nodes: On which nodes the runs are, by row of *start*.
        node_gpus: Rows of each node, from the top.

    Raises:
        ValueError: A run or a node is none of those.
    """
    if _reaches_out(nodes.run, len(start)):
        msg = f"nodes of run {nodes.run.max()}, and there are {len(start)} runs"
        raise ValueError(msg)
    if _reaches_out(nodes.node, len(node_gpus)):
        msg = f"a run on node {nodes.node.max()}, and there are {len(node_gpus)} nodes"
        raise ValueError(msg)
    edges = np.concatenate([[0], np.cumsum(np.asarray(node_gpus, dtype=np.int64))]).tolist()
    node_of = np.repeat(np.arange(len(node_gpus)), node_gpus).tolist()
    rows = len(node_of)
    # A range that goes up is a heap.
    free = [list(range(first, last)) for first, last in itertools.pairwise(edges)]
    spare: list[int] = []
    extra = 0
    held: dict[int, list[int]] = {}
    at = np.searchsorted(nodes.run, np.arange(len(start) + 1)).tolist()
    on, wanted = nodes.node.tolist(), np.ceil(nodes.gpus).astype(np.int64).tolist()
    lasting = (end > start).nonzero()[0]
    starts = lasting[np.lexsort((lasting, start[lasting]))]
    ends = lasting[np.lexsort((lasting, end[lasting]))].tolist()
    end_of = end.tolist()
    over = 0
    for run, start_at in zip(starts.tolist(), start[starts].tolist(), strict=True):
        while end_of[ends[over]] <= start_at:
            for row in held[ends[over]]:
                heapq.heappush(free[node_of[row]] if row < rows else spare, row)
            over += 1
        mine = []
        for part in range(at[run], at[run + 1]):
            numbers = free[on[part]]
            for _ in range(wanted[part]):
                if numbers:
                    mine.append(heapq.heappop(numbers))
                elif spare:
                    mine.append(heapq.heappop(spare))
                else:
                    mine.append(rows + extra)
                    extra += 1
        held[run] = sorted(mine)
    return rectangles(held, lambda row: node_of[row] if row < rows else -1, extra=extra)


def _reaches_out(index: I32, count: int) -> bool:
    return len(index) > 0 and bool(index.min() < 0 or index.max() >= count)


def in_order(nodes: RunNodes, order: I64) -> RunNodes:
    """The same where the runs stand in another order.

    Args:
        order: ``(k,)`` which run stands at each place now.
    """
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    run = place[nodes.run]
    by_run = np.argsort(run, kind="stable")
    return RunNodes(run=run[by_run], node=nodes.node[by_run], gpus=nodes.gpus[by_run])
