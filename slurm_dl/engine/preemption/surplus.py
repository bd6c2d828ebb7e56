"""GPUs that running elastic jobs hold beyond the size they should have now.

They are lent: whoever should hold GPUs gets them back, whatever its tier, and with or without a
contract of its own. The job goes on in a smaller size, on nodes of its own where it can.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.placing.free_resources import FreeResources, NodeRows
from slurm_dl.engine.preemption.eligibility import Victims, victims
from slurm_dl.engine.settings import Preemption, Resizing
from slurm_dl.engine.sized_target import AS_RANKED, Movable
from slurm_dl.engine.target import NOBODY
from slurm_dl.engine.waiting_sizes import live_elastic, shape_of
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, RUNNING, is_in
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import NO_HISTORY, SizeHistory, Sizes, size_histories
from slurm_dl.model.snapshot import Fixed, Snapshot

_DAY_S = 86_400.0


def lenders(snap: Snapshot, limits: Preemption) -> Victims:
    """The running jobs, and which of them may become smaller.

    A minimum quantum, a pause and a number of preemptions protect the least size of a job alone:
    the rest it got for as long as nobody else wants it.
    """
    most = int(snap.memory.preemptions.max(initial=0)) + 1
    lent = dataclasses.replace(limits, min_quantum_s=0.0, cooldown_s=0.0, max_preemptions=most)
    return victims(snap, lent)


def movable(
    snap: Snapshot, candidates: Victims, lending: Victims | None, resizing: Resizing
) -> Movable:
    """Elastic jobs that give GPUs back though they are not preempted, and those that may grow."""
    rows = live_elastic(snap)
    if not len(rows):
        return AS_RANKED
    giving = _giving(rows, candidates, lending)
    histories = size_histories(snap.booked)
    may_grow = np.ones(len(snap.jobs), dtype=np.bool_)
    for row, job_id in zip(rows.tolist(), snap.jobs.job_id[rows].tolist(), strict=True):
        history = histories.get(JobId(job_id), NO_HISTORY)
        rests = growth_rest(history, resizing, snap.now_s)[0] > 0
        # The size that it asked for stays one of its sizes.
        may_grow[row] = not rests and history.asked not in history.refused
    return Movable(giving=giving, may_grow=may_grow)


def _giving(elastic: NodeRows, candidates: Victims, lending: Victims | None) -> NodeRows:
    """Those of *elastic* that give GPUs back though they are not preempted."""
    if lending is None:
        return NOBODY
    giving = candidates.staying[is_in(candidates.staying, elastic)]
    return giving[~is_in(giving, lending.staying)]


def with_fixed(
    snap: Snapshot, candidates: Victims, lending: Victims | None, *, preempts: bool
) -> Snapshot:
    """*snap* with `Snapshot.fixed`.

    Args:
        candidates: The managed running jobs, and which of them may be preempted.
        lending: Likewise, which of them may become smaller; None: none may.
        preempts: Whether any job may be preempted now.
    """
    fixed = np.full(len(snap.jobs), Fixed.NO, dtype=np.int8)
    fixed[candidates.staying if preempts else candidates.rows] = Fixed.ALL
    fixed[_giving(live_elastic(snap), candidates, lending)] = Fixed.GROWTH
    return snap.derived(fixed=fixed)


def growth_rest(history: SizeHistory, resizing: Resizing, now_s: float) -> tuple[float, str]:
    """Seconds for which a job does not grow after its last changes of size, and the limit's name.

    0 or less, or no name: it may grow.
    """
    newest, limits = sorted(history.resized_s, reverse=True), list[tuple[float, str]]()
    if newest:
        limits += [(newest[0] + resizing.cooldown_s - now_s, "resizing.cooldown_s")]
    if 0 < resizing.max_per_day <= len(newest):
        limits += [(newest[resizing.max_per_day - 1] + _DAY_S - now_s, "resizing.max_per_day")]
    return max(limits, default=(0.0, ""))


@dataclass(frozen=True, slots=True, eq=False)
class Surplus:
    """The running jobs that should be smaller, or are to be where a job finds no room otherwise."""

    then: Mapping[int, Shape]  # Size of each that can keep a part of its nodes, by row
    seats: Mapping[int, NodeRows]  # Rows of the nodes that each of these keeps
    over: Snapshot  # Snapshot in which these hold nothing but what they give back
    rows: NodeRows  # All of them, ascending; who can keep no part of its nodes leaves
    wanted: NodeRows  # Those that should be smaller in any case

    @classmethod
    def of(cls, snap: Snapshot, intent: Intent, *, stuck: bool) -> Self:
        """Of the jobs that *intent* wants smaller.

        Args:
            stuck: Whether a job that should hold GPUs finds no room: the intent counts GPUs, and
                theirs may lie in pieces. Then every job lends what is above its least size.
        """
        jobs, rows = snap.jobs, intent.resized(snap)
        wanted = np.sort(rows[intent.gpus(snap)[rows] < jobs.gpus[rows]])
        if intent.size is None or snap.sizes is None:
            return cls({}, {}, snap, wanted, wanted)
        size = {row: int(intent.size[row]) for row in wanted.tolist()}
        if stuck:
            lent = live_elastic(snap)
            lent = lent[(jobs.state[lent] == RUNNING) & (intent.size[lent] >= 0)]
            size = {row: snap.sizes.of(row).start for row in lent.tolist()} | size
        return cls.from_sizes(snap, size, wanted)

    @classmethod
    def from_sizes(cls, snap: Snapshot, size: Mapping[int, int], wanted: NodeRows = NOBODY) -> Self:
        """Of jobs of which each has at most the given size then, by row."""
        held, sizes = snap.seen.held, snap.sizes
        then, seats = dict[int, Shape](), dict[int, NodeRows]()
        share = np.ones(len(held))
        for row, largest in size.items():
            found = None if sizes is None else _keeps(snap, sizes, row, largest)
            if found is not None:
                then[row], kept = found
                share[kept] = 1 - then[row].gpus_per_node / held.gpus[kept]
                seats[row] = held.node[kept].astype(np.int64)
        every = np.array(sorted({*wanted.tolist(), *then}), dtype=np.int64)
        return cls(then, seats, _with_share(snap, share), every, wanted)

    def free(self, snap: Snapshot) -> FreeResources:
        """Free resources; nodes on which these jobs go on never become empty."""
        room = FreeResources.free_in(snap)
        for nodes in self.seats.values():
            room.jobs_on[nodes] += 1
        return room

    def stays(self, snap: Snapshot, row: int) -> tuple[str, ...]:
        """Names of the nodes on which the job goes on without a requeue; none if it needs one.

        Slurm takes whole nodes alone from a running job, and never that of the batch script, which
        is the first of its nodes and the one where dlrun takes the signal.
        """
        jobs, shape, kept = snap.jobs, self.then.get(row), self.seats.get(row)
        claim = snap.seen.claim(JobId(int(jobs.job_id[row])))
        if shape is None or kept is None or not claim.in_place or claim.contract is None:
            return ()
        held, contract = snap.seen.held, claim.contract
        told = contract.target == "batch" and contract.requeued_by == "daemon"
        whole = (held.gpus[held.job == row] == shape.gpus_per_node).all()
        if not told or not whole or held.nodes_of(row).min() not in kept:
            return ()
        return tuple(snap.seen.nodes.name[node] for node in np.sort(kept).tolist())

    def given(self, snap: Snapshot) -> F64:
        """``(n,)`` GPUs that each job gives back if it is a victim, as they are weighted."""
        given = snap.seen.weighted_gpus().copy()
        for row, shape in self.then.items():
            given[row] *= 1 - shape.gpus / float(snap.jobs.gpus[row])
        return given


def free_and_lent(snap: Snapshot, lending: Victims | None) -> FreeResources:
    """Free resources, and those that elastic jobs hold beyond their least sizes."""
    if snap.sizes is None or lending is None:
        return FreeResources.free_in(snap)
    rows = lending.may[is_in(lending.may, live_elastic(snap))]
    lent = Surplus.from_sizes(snap, {row: snap.sizes.of(row).start for row in rows.tolist()})
    room = lent.free(snap)
    for row in lent.then:
        room.release(lent.over, row)
    return room


def releasing(candidates: Victims, lending: Victims, snap: Snapshot, rows: NodeRows) -> Victims:
    """*candidates*, of which those at *rows*, and those that shrink already, may as *lending*."""
    sized = [v for h in snap.handovers for v in h.victims if v.then is not None]
    shrinks = [v.run.job_id for v in sized if v.gives_gpus > 0]
    of_these = is_in(candidates.rows, rows) | is_in(snap.jobs.job_id[candidates.rows], shrinks)
    last, busy = len(candidates.reasons) - 1, len(lending.reasons) - 1
    rule = np.where(of_these & (lending.rule == 0), 0, candidates.rule)
    rule = np.where(of_these & (lending.rule == busy), last, rule)
    return dataclasses.replace(candidates, rule=rule)


def _keeps(snap: Snapshot, sizes: Sizes, row: int, largest: int) -> tuple[Shape, NodeRows] | None:
    """The largest size up to *largest* that fits into what the job holds, and where.

    The second are rows of `Allocations`. None: no size does, or it is as large as the job.
    """
    if _has_other_gres(snap, row):
        return None
    held = snap.seen.held
    lo, hi = np.searchsorted(held.job, [row, row + 1])
    for i in sizes.down_from(row, largest):
        shape = shape_of(sizes, i)
        if shape.gpus >= snap.jobs.gpus[row]:
            continue
        # Whole nodes come free if it keeps those with the least to give.
        fit = lo + (held.gpus[lo:hi] >= shape.gpus_per_node).nonzero()[0]
        if len(fit) >= shape.nodes:
            return shape, fit[np.argsort(held.gpus[fit], kind="stable")[: shape.nodes]]
    return None


def _with_share(snap: Snapshot, share: F64) -> Snapshot:
    """*snap* in which each row of `Allocations` holds so much of what it held."""
    if (share == 1).all():
        return snap
    held = snap.seen.held
    part = Allocations(
        job=held.job,
        node=held.node,
        gpus=held.gpus * share,
        cpus=np.floor(held.cpus * share).astype(np.int32),
        mem_mb=np.floor(held.mem_mb * share).astype(np.int64),
        by_type=None if held.by_type is None else held.by_type * share,
    )
    return snap.derived(seen=dataclasses.replace(snap.seen, held=part))


def _has_other_gres(snap: Snapshot, row: int) -> bool:
    other = snap.seen.gres
    return other is not None and any(other.asked.get(JobId(int(snap.jobs.job_id[row])), ()))


def is_growing(snap: Snapshot, intent: Intent) -> NodeRows:
    """Rows of the running jobs that should be larger."""
    rows = intent.resized(snap)
    growing: NodeRows = rows[
        (intent.gpus(snap)[rows] > snap.jobs.gpus[rows]) & (snap.jobs.state[rows] == RUNNING)
    ]
    return growing
