"""Waiting jobs in the sizes in which they are to start, and notes on the sizes jobs ran in.

Everything after the target sees a waiting job as it is to be: its columns say that size, so that
places, hand-overs and trims need to know nothing of sizes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.placing.eligible_nodes import EligibleNodes, anywhere, narrowed
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.placing.place_waiting import sealed_nodes
from slurm_dl.engine.target import Rows
from slurm_dl.estimates.goodput import with_step
from slurm_dl.estimates.remaining_time import run_began
from slurm_dl.estimates.size_speeds import elastic_rows
from slurm_dl.model.booking import changes, entry, of_kind
from slurm_dl.model.handover import jobs_of
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, COMPLETING, I16, PENDING, Held
from slurm_dl.model.plan import Book, Reshape
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import (
    NO_HISTORY,
    NOT_NOW,
    SIZE,
    SizeHistory,
    Sizes,
    size_histories,
    size_of,
)
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.step_report import StepTime
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests
from slurm_dl.policies.arithmetic.supply_and_demand import type_held

HOPELESS = frozenset({int(Held.LIMIT), int(Held.UNAVAILABLE)})
"""Slurm takes a size that no partition, limit or node allows, and says so of the waiting job."""


def shape_of(sizes: Sizes, size: int) -> Shape:
    """Nodes of the size, and GPUs on each."""
    nodes = int(sizes.nodes[size])
    return Shape(nodes, int(sizes.gpus[size]) // nodes)


def sizes_in(snap: Snapshot, intent: Intent) -> dict[JobId, Shape]:
    """Sizes that elastic jobs of the target should have."""
    sizes, size = snap.sizes, intent.size
    if sizes is None or size is None:
        return {}
    rows = intent.target[size[intent.target] >= 0]
    return {
        JobId(int(snap.jobs.job_id[row])): shape_of(sizes, int(size[row])) for row in rows.tolist()
    }


def at_shapes(snap: Snapshot, shapes: Mapping[int, Shape]) -> Snapshot:
    """*snap* in which the jobs at these rows ask for these shapes.

    CPUs and memory go with the GPUs: as many for each as the job names, or as it asks for now.
    """
    if not shapes:
        return snap
    jobs = snap.jobs
    columns = {name: getattr(jobs, name).copy() for name in ("n_nodes", "gpus", "cpus", "mem_mb")}
    for row, shape in shapes.items():
        claim = snap.seen.claim(JobId(int(jobs.job_id[row])))
        before = max(1.0, float(jobs.gpus[row]))
        cpus = claim.cpus_per_gpu or float(jobs.cpus[row]) / before
        mem_mb = claim.mem_mb_per_gpu or float(jobs.mem_mb[row]) / before
        columns["n_nodes"][row], columns["gpus"][row] = shape.nodes, shape.gpus
        columns["cpus"][row] = shape.nodes * max(1, math.ceil(cpus * shape.gpus_per_node))
        columns["mem_mb"][row] = shape.nodes * math.ceil(mem_mb * shape.gpus_per_node)
    return snap.with_jobs(**columns)


def need_in(snap: Snapshot, row: int, size: int) -> ResourceRequest:
    """Request of the job at *row* in one of its sizes, or as it is."""
    sizes = snap.sizes
    shapes = {} if sizes is None or size < 0 else {row: shape_of(sizes, size)}
    return ResourceRequests(at_shapes(snap, shapes)).of(row)


def at_least_sizes(snap: Snapshot) -> Snapshot:
    """*snap* in which waiting elastic jobs ask for their least sizes."""
    sizes = snap.sizes
    if sizes is None:
        return snap
    firsts = zip(sizes.row.tolist(), sizes.first.tolist(), strict=False)
    return at_shapes(
        snap, {r: shape_of(sizes, i) for r, i in firsts if snap.jobs.state[r] == PENDING}
    )


def moved_rows(snap: Snapshot) -> dict[int, Shape]:
    """Jobs of hand-overs that wait to go on in another size, by row."""
    resized = {v.run.job_id: v.then for h in snap.handovers for v in h.victims if v.then}
    if not resized:
        return {}
    rows = snap.jobs.rows
    return {
        rows[job_id]: then
        for job_id, then in resized.items()
        if job_id in rows and snap.jobs.state[rows[job_id]] == PENDING
    }


def waiting_shapes(
    snap: Snapshot, intent: Intent, served: Rows, most: int, types: EligibleNodes = anywhere
) -> tuple[dict[int, Shape], bool]:
    """Sizes in which waiting jobs are to start, by row, and whether any finds no room now.

    Jobs of hand-overs keep their sizes.

    Each has the size of the target, or the largest smaller one that has room on the nodes now where
    that has none: the target counts GPUs alone. None is smaller than `Order.least`.

    Args:
        served: Rows of the managed live jobs as they are served, best first.
        most: Waiting jobs that are placed at most.
        types: Nodes of the type that the policy chose for a job.
    """
    sizes, size, least = snap.sizes, intent.size, intent.order.least
    if sizes is None or size is None:
        return {}, False
    target = np.zeros(len(snap.jobs), dtype=np.bool_)
    target[intent.target] = True
    busy = jobs_of(snap.handovers)
    rows = served[target[served] & (snap.jobs.state[served] == PENDING)][:most]
    room, open_ = FreeResources.free_in(snap), ~sealed_nodes(snap, snap.handovers)
    needs, found, stuck = ResourceRequests(snap), dict[int, Shape](), False
    for row in rows.tolist():
        if JobId(int(snap.jobs.job_id[row])) in busy:
            continue
        got = int(size[row])
        bound = NOT_NOW if least is None else int(least[row])
        for i in sizes.down_from(row, got, bound):
            need = needs.of(row) if i < 0 else need_in(snap, row, i)
            need = narrowed(need, types(row))
            nodes = room.place(need, within=open_)
            if nodes is not None:
                room.take(need, nodes)
                got = i
                break
        else:
            stuck = True
        if got >= 0:
            found[row] = shape_of(sizes, got)
    return found, stuck


def given_back(snap: Snapshot) -> dict[int, Shape]:
    """Sizes for jobs that can never start in the one they wait in, as Slurm has shown, by row.

    Each the one it had last, or else the one that it asked for.
    """
    jobs, found = snap.jobs, dict[int, Shape]()
    refused = {j: h for j, h in size_histories(snap.booked).items() if h.refused}
    row_of = jobs.rows if refused else {}
    for job_id, history in refused.items():
        row = row_of.get(job_id)
        if row is None or jobs.state[row] != PENDING or size_of(jobs, row) not in history.refused:
            continue
        if snap.managed_jobs[row] and jobs.held[row] in HOPELESS:
            others = [s for s in (history.now, history.asked) if s and s not in history.refused]
            if others:
                found[row] = others[0]
    return found


def last_sizes(snap: Snapshot) -> dict[int, Shape]:
    """Sizes of jobs that wait after they gave nodes back while they ran, by row.

    Slurm would start them on the nodes with which that run began, as soon as its hold is over; its
    record may show either number (22.05.8).
    """
    jobs, found = snap.jobs, dict[int, Shape]()
    busy, histories = jobs_of(snap.handovers), size_histories(snap.booked)
    for row in elastic_rows(snap).tolist() if histories else ():
        history = histories.get(JobId(int(jobs.job_id[row])), NO_HISTORY)
        last = history.now
        waits = jobs.state[row] == PENDING and JobId(int(jobs.job_id[row])) not in busy
        if waits and history.shrunk and last is not None and history.written is None:
            found[row] = last
    return found


def unsized(before: Snapshot, shapes: Mapping[int, Shape]) -> Rows:
    """Rows of the waiting jobs that Slurm, as *before* shows, does not have in these sizes yet."""
    jobs, histories = before.jobs, size_histories(before.booked) if shapes else {}

    def is_new(row: int, shape: Shape) -> bool:
        history = histories.get(JobId(int(jobs.job_id[row])), NO_HISTORY)
        shown = (int(jobs.n_nodes[row]), float(jobs.gpus[row])) == (shape.nodes, shape.gpus)
        return not shown or (history.shrunk and history.written != shape)

    return np.array(
        [row for row, shape in shapes.items() if is_new(row, shape)],
        dtype=np.int64,
    )


def reshapes(
    before: Snapshot, snap: Snapshot, shapes: Mapping[int, Shape], reserved: Collection[JobId]
) -> Iterator[Reshape]:
    """The writes that give waiting jobs the sizes in which *snap* has them.

    Args:
        before: The snapshot with the sizes that Slurm shows.
        reserved: Jobs of hand-overs under way, whose sizes are steps of theirs.
    """
    for row in unsized(before, shapes).tolist():
        if JobId(int(snap.jobs.job_id[row])) not in reserved:
            yield reshape_of(snap, row, why=f"it is to start on {shapes[row].gpus} GPUs")


def reshape_of(snap: Snapshot, row: int, *, why: str) -> Reshape:
    """The write of the request that the waiting job at *row* has in *snap*."""
    jobs = snap.jobs
    nodes = int(jobs.n_nodes[row])
    return Reshape(
        job_id=JobId(int(jobs.job_id[row])),
        shape=Shape(nodes, int(jobs.gpus[row]) // nodes),
        cpus=int(jobs.cpus[row]) // nodes,
        mem_mb=int(jobs.mem_mb[row]) // nodes,
        why=why,
    )


def live_elastic(snap: Snapshot) -> Rows:
    """Rows of the elastic jobs that are not over."""
    if snap.sizes is None:
        return np.zeros(0, dtype=np.int64)
    rows: Rows = snap.sizes.row[snap.jobs.state[snap.sizes.row] < COMPLETING]
    return rows


_DAY_S: Final = 86_400.0

_RACE_S: Final = 3.0
"""A job that starts so soon after a size was decided may have started before it was written."""

_MOST_FITS: Final = 10  # Of a decision

_UNSHOWN_S: Final = 60.0
"""A size that Slurm does not show so long after it was decided is doubtful, and then refused."""


def note_sizes(snap: Snapshot, reshapes: Iterable[Reshape]) -> list[Book]:
    """One `Book` with the entries of elastic jobs that change, or none; see `SizeHistory`.

    A size counts as refused if the job started in another one than was written, or if Slurm says of
    the waiting job that no nodes would ever do, or goes on to show another.

    Args:
        reshapes: The sizes that this decision writes; of jobs that do not wait Slurm takes none.
    """
    written = {action.job_id: action for action in reshapes}
    rows = elastic_rows(snap)
    if not written and not len(rows) and not any(e.kind == SIZE for e in snap.booked):
        return []
    histories, row_of = size_histories(snap.booked), snap.jobs.rows
    running = set(rows[snap.jobs.state[rows] > PENDING].tolist())
    runs = {JobId(int(snap.jobs.job_id[row])) for row in running}
    shrunk = {v.run.job_id: v.then for h in snap.handovers for v in h.victims if v.has_shrunk}
    steps = _new_steps(snap, sorted(running), histories)
    wanted = [
        # Damaged entries; of two with one key the last counts.
        *(entry(SIZE, key, None) for key in of_kind(snap.booked, SIZE)),
        # A job that is not listed need not have left.
        *(entry(SIZE, j, h.body()) for j, h in histories.items() if snap.seen.may_list(j)),
    ]
    for job_id in sorted(({*histories} | {*written} | runs) & row_of.keys()):
        row, history = row_of[job_id], histories.get(job_id)
        if row in running:
            gave = size_of(snap.jobs, row) == shrunk.get(job_id)
            history = _ran(snap, row, history, shrunk=gave)
            if history is not None and row in steps:
                history = with_step(history, steps[row])
        elif snap.jobs.state[row] == PENDING:
            history = _waits(snap, row, history, written.get(job_id))
        elif snap.jobs.state[row] >= COMPLETED:
            history = None
        wanted.append(entry(SIZE, job_id, None if history is None else history.body()))
    entries = changes(snap.booked, wanted)
    return [Book(entries=entries, why="sizes of elastic jobs")] if entries else []


def _new_steps(
    snap: Snapshot, rows: Iterable[int], histories: Mapping[JobId, SizeHistory]
) -> dict[int, StepTime]:
    """Steps that running jobs whose batch adapts report of the size they hold, if they are new.

    A fit takes up to 0.1 s, and a report can be changed at any time: `_MOST_FITS` of them count,
    first those of new configurations, and of the jobs of which least is known. The others do next
    time.
    """
    jobs, found = snap.jobs, list[tuple[tuple[bool, int], int, StepTime]]()
    kinds: I16 | None = None
    for row in rows:
        job_id = JobId(int(jobs.job_id[row]))
        claim = snap.seen.claim(job_id)
        report, shape = claim.steps, size_of(jobs, row)
        if claim.batch != "adapt" or report is None or shape is None:
            continue
        if (report.run, report.gpus) != (int(jobs.restarts[row]), shape.gpus):
            continue
        kinds = type_held(snap.seen, snap.on_type) if kinds is None else kinds
        kind = int(kinds[row])
        step = StepTime(
            nodes=shape.nodes,
            gpus=shape.gpus,
            local_batch=report.local_batch,
            more=report.passes - 1,
            step_s=report.step_s,
            gpu_type=snap.seen.gpu_types[kind] if 0 <= kind < len(snap.seen.gpu_types) else "",
        )
        known = histories.get(job_id, NO_HISTORY).steps
        if step not in known:
            again = any(step.configuration == s.configuration for s in known)
            found.append(((again, len(known)), row, step))
    return {row: step for _, row, step in heapq.nsmallest(_MOST_FITS, found, key=lambda f: f[:2])}


def _ran(
    snap: Snapshot, row: int, history: SizeHistory | None, *, shrunk: bool
) -> SizeHistory | None:
    held = size_of(snap.jobs, row)
    if held is None:
        return history
    after = history or SizeHistory(asked=held)
    resized_s = tuple(s for s in after.resized_s if s > snap.now_s - _DAY_S)
    if after.now not in (None, held):
        resized_s = (*resized_s, snap.now_s)
    if after.now != held:
        after = after.begun(held, run_began(snap, row, after, shrunk=shrunk))
    refused, doubtful = after.refused, after.doubtful
    if after.written not in (None, held):
        at_once = float(snap.jobs.start_s[row]) <= after.written_s + _RACE_S
        if at_once and not doubtful:
            doubtful = True
        else:
            refused |= {after.written}
    shrunk |= after.shrunk and after.written is None
    return replace(
        after,
        written=None,
        refused=refused,
        doubtful=doubtful,
        resized_s=resized_s,
        shrunk=shrunk,
    )


def _waits(
    snap: Snapshot, row: int, history: SizeHistory | None, action: Reshape | None
) -> SizeHistory | None:
    hopeless = int(snap.jobs.held[row]) in HOPELESS
    if hopeless and history is not None and history.written not in (None, history.asked):
        history = replace(history, written=None, refused=history.refused | {history.written})
    if action is None:
        return history
    before = history or SizeHistory(asked=size_of(snap.jobs, row))
    if before.written == action.shape or action.shape in before.refused:
        if before.written is None or snap.now_s - before.written_s <= _UNSHOWN_S:
            return before
        if before.doubtful:
            return replace(before, written=None, refused=before.refused | {action.shape})
        return replace(before, doubtful=True, written_s=snap.now_s)
    # Of a hand-over: we have just requeued it for that.
    requeues = before.requeues + (action.handover_id is not None)
    return replace(before, written=action.shape, written_s=snap.now_s, requeues=requeues)
