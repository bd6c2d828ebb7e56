"""The sizes that elastic jobs may have here, and how fast each job is in them.

*Asked size*: the one a job was submitted with. As long as nothing is written down of a job, nobody
but its owner chose the size that its record shows; from then on the book keeps it. What its comment
says counts only for entries that do not tell, so that no comment makes a job smaller than it is.

*Rate*: speed in a size / speed in the asked size, from the best that is known of the job, where
speed is share of its whole work a second:

1. What it reports itself (`Origin.REPORTED`). In a size k that it ran in for long enough its speed
   is v(k) = progress / time there. With two such sizes,

       v(k) = v(m) S(k) / S(m)     in every other size, m the one it ran in with about as many GPUs,
       rate(k) = v(k) / v(asked).

2. rate(k) = S(k) / S(asked), S in samples a second by `training_speed.speed_of`.

Of a job whose batch adapts, and that reports its steps, speed is the goodput fitted to them.

A job's work is a number of samples, so S is what counts whether its global batch grows with the
GPUs ("gpu") or stays ("fixed"), where samples a second are B times the steps. They differ in what a
profile says that tells steps without a batch. `speed_of` takes such a step to hold one sample of
each GPU, as of a batch that grows. A step of a fixed batch is the same work in every shape, so
there S is the steps a second, times a number that cancels out.

*By type*: the rate in a size, times S(k) there on GPUs of the type / S(k) on the type of which the
job could have most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from slurm_dl.estimates.goodput import goodput_in
from slurm_dl.estimates.remaining_time import LEAST_PROGRESS, LEAST_RUN_S, spent_by_size
from slurm_dl.estimates.training_speed import SitePriors, SpeedEstimate, speed_of
from slurm_dl.model.contract import Batch, Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, I64, Bool, Origin
from slurm_dl.model.profile import Profile
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import SizeHistory, Sizes, size_histories, size_of
from slurm_dl.model.snapshot import Snapshot


def elastic_rows(snap: Snapshot) -> I64:
    """Rows of the managed jobs that wait or run and whose claims name sizes, increasing.

    Not of array jobs and parts of heterogeneous ones, of jobs with shares of a GPU or nodes for
    themselves, nor of those that Slurm may lay on any number of nodes.
    """
    naming = {j: c for j, c in snap.seen.claims.items() if c.sizes and c.most_nodes is None}
    if not naming:
        return np.zeros(0, dtype=np.int64)
    jobs, row_of, texts = snap.jobs, snap.jobs.rows, snap.seen.texts
    sharing = {job for device in snap.seen.shared for job in device.jobs}
    plain = (jobs.state < COMPLETING) & (jobs.tasks == 1) & ~jobs.exclusive & snap.managed_jobs
    plain &= (jobs.gpus >= 1) & (jobs.gpus == np.floor(jobs.gpus))
    rows = [
        row_of[j]
        for j in naming
        if j in row_of
        and j not in sharing
        and plain[row_of[j]]
        and not (j in texts and {"_", "+"} & set(texts[j].label))
    ]
    return np.array(sorted(rows), dtype=np.int64)


def sizes_of(snap: Snapshot, profiles: Mapping[str, Profile], site: SitePriors) -> Sizes | None:
    """The sizes that Slurm may give each elastic job; None if no job has two.

    Those that it refused the job, or that its nodes could not hold if all were up and free, are
    left out, but for the asked one.
    """
    rows = elastic_rows(snap)
    if not len(rows):
        return None
    histories, room, table = size_histories(snap.booked), _Room(snap), _Table(profiles, site)
    found = list[_Found]()
    for row in rows.tolist():
        job_id = JobId(int(snap.jobs.job_id[row]))
        claim, history = snap.seen.claim(job_id), histories.get(job_id)
        asked = _asked(snap, row, claim, history)
        if asked is None:
            continue
        refused = frozenset() if history is None else history.refused
        could = set(claim.sizes) - refused - {asked}
        shapes = sorted(
            {asked} | {s for s in could if room.holds(row, s)}, key=lambda s: (s.gpus, s)
        )
        if len(shapes) > 1:
            at = shapes.index(asked)
            plain = speeds = table.speeds(claim, tuple(shapes), room.kind(row))
            if history is not None:
                speeds = _reported(snap, row, history, shapes, speeds)
                speeds = _by_goodput(claim, history, shapes, speeds)
            rate = _samples(speeds) / speeds[at].samples_per_s
            kinds = snap.seen.gpu_types
            on = [_samples(table.speeds(claim, tuple(shapes), kind)) for kind in kinds]
            there = [room.holds(row, s, k) for k in range(len(kinds)) for s in shapes]
            ratio = np.where(there, np.ravel(on) / np.tile(_samples(plain), len(kinds)), 0.0)
            by_type = ratio.reshape(len(kinds), len(shapes)).T
            found.append(_Found(row, shapes, at, rate, [e.origin for e in speeds], by_type))
    has = snap.seen.nodes.totals(snap.seen.nodes.gpus > 0, len(snap.seen.gpu_types))[1:] > 0
    return _columns(found, has) if found else None


def _asked(snap: Snapshot, row: int, claim: Claim, history: SizeHistory | None) -> Shape | None:
    if history is None:
        return size_of(snap.jobs, row)
    return history.asked or claim.asked or claim.sizes[0]


class _Found(NamedTuple):
    """The k sizes of one job."""

    row: int
    shapes: list[Shape]
    asked: int  # Index of the asked size
    rate: F64  # ``(k,)`` speed, 1 in the asked size
    origin: list[Origin]
    ratio: F64  # ``(k, t)`` speed on each type / *rate*; 0 where its nodes do not hold the size


def _samples(speeds: Sequence[SpeedEstimate]) -> F64:
    return np.array([speed.samples_per_s for speed in speeds])


def _columns(found: Sequence[_Found], kinds: Bool) -> Sizes:
    """The table; *kinds*: ``(t,)`` bool, GPU types that some node has."""
    first = np.cumsum([0, *(len(one.shapes) for one in found)], dtype=np.int64)
    flat = [shape for one in found for shape in one.shapes]
    rate, ratio = (np.concatenate([one[i] for one in found]) for i in (3, 5))
    alike = bool(np.isclose(ratio[:, kinds], 1).all())
    return Sizes(
        row=np.array([one.row for one in found], dtype=np.int64),
        first=first,
        gpus=np.array([shape.gpus for shape in flat], dtype=np.float64),
        nodes=np.array([shape.nodes for shape in flat], dtype=np.int32),
        rate=rate,
        origin=np.array([origin for one in found for origin in one.origin], dtype=np.int8),
        asked=first[:-1] + np.array([one.asked for one in found], dtype=np.int64),
        on_type=None if alike else rate[:, None] * ratio,
    )


def _reported(
    snap: Snapshot,
    row: int,
    history: SizeHistory,
    shapes: Sequence[Shape],
    speeds: list[SpeedEstimate],
) -> list[SpeedEstimate]:
    """*speeds* as the job itself reports them; as they are if it tells of fewer than two sizes."""
    spent = spent_by_size(snap, row, history)
    measured = {
        i: spent[shape].progress / spent[shape].ran_s
        for i, shape in enumerate(shapes)
        if shape in spent
        and spent[shape].ran_s >= LEAST_RUN_S
        and spent[shape].progress >= LEAST_PROGRESS
    }
    if len(measured) < 2:  # noqa: PLR2004 - one speed has no ratio
        return speeds
    after = []
    for i, (shape, speed) in enumerate(zip(shapes, speeds, strict=True)):
        if i in measured:
            after.append(SpeedEstimate(measured[i], Origin.REPORTED))
            continue
        near = min(measured, key=lambda m: abs(math.log(shapes[m].gpus / shape.gpus)))
        ratio = speed.samples_per_s / speeds[near].samples_per_s
        after.append(SpeedEstimate(measured[near] * ratio, speed.origin))
    return after


def _by_goodput(
    claim: Claim, history: SizeHistory, shapes: Sequence[Shape], speeds: list[SpeedEstimate]
) -> list[SpeedEstimate]:
    """Goodput where the batch adapts and steps are reported; else *speeds* as they are."""
    if claim.batch != "adapt" or claim.steps is None or not history.throughput:
        return speeds
    found = goodput_in(shapes, history, claim.steps)
    if found is None:
        return speeds
    return [SpeedEstimate(value, Origin.REPORTED) for value in found.tolist()]


class _Room:
    """Nodes that a job could have if all were up and free."""

    def __init__(self, snap: Snapshot) -> None:
        self._snap = snap
        self._known: dict[tuple[object, ...], tuple[tuple[F64, ...], str]] = {}

    def holds(self, row: int, shape: Shape, kind: int = -1) -> bool:
        """True if one of its partitions has the nodes for *shape*, all of this type; -1: any."""
        asks = int(self._snap.jobs.gpu_type[row])
        if 0 <= asks != kind >= 0:
            return False
        return any(
            len(gpus) - int(gpus.searchsorted(shape.gpus_per_node)) >= shape.nodes
            for gpus in self._of(row, kind)[0]
        )

    def kind(self, row: int) -> str:
        """The GPU type it asks for, else the one of most of the GPUs it could have."""
        return self._of(row)[1]

    def _of(self, row: int, kind: int = -1) -> tuple[tuple[F64, ...], str]:
        """GPUs of the nodes of each of its partitions, increasing, and the type."""
        snap, seen, jobs = self._snap, self._snap.seen, self._snap.jobs
        parts, kind = snap.partitions_of(row), max(kind, int(jobs.gpu_type[row]))
        choice = snap.choice(JobId(int(jobs.job_id[row])))
        key = parts, kind, None if choice is None else choice.tobytes()
        if key not in self._known:
            allowed = np.ones(len(seen.nodes), dtype=np.bool_) if choice is None else choice
            if kind >= 0:
                allowed = allowed & seen.nodes.with_type(kind)
            there = seen.node_in[list(parts)] & allowed
            gpus = seen.nodes.of_type(kind)
            within = np.asarray(there.any(axis=0))
            totals = seen.nodes.totals(within, len(seen.gpu_types))[1:]
            kind = int(totals.argmax()) if kind < 0 and totals.any() else kind
            self._known[key] = (
                tuple(np.sort(gpus[nodes]) for nodes in there),
                seen.gpu_types[kind] if kind >= 0 else "",
            )
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Table:
    """Samples a second by model and size; jobs that are alike are looked up once."""

    profiles: Mapping[str, Profile]
    site: SitePriors
    known: dict[tuple[object, ...], list[SpeedEstimate]] = field(default_factory=dict)

    def speeds(self, claim: Claim, shapes: tuple[Shape, ...], kind: str) -> list[SpeedEstimate]:
        key = claim.model, claim.batch, shapes, kind
        if key not in self.known:
            profile = None if claim.model is None else self.profiles.get(claim.model)
            profile = None if profile is None else _with_steps(profile, claim.batch)
            self.known[key] = [speed_of(profile, shape, kind, self.site) for shape in shapes]
        return self.known[key]


def _with_steps(profile: Profile, batch: Batch) -> Profile:
    """*profile* whose steps that tell no batch are the same work in every shape, if *batch* is."""
    speeds = profile.speeds
    if batch != "fixed" or any(speed.batch is not None for speed in speeds):
        return profile
    work = math.lcm(*(speed.shape.gpus for speed in speeds))
    whole = (replace(speed, batch=work // speed.shape.gpus) for speed in speeds)
    return replace(profile, speeds=tuple(whole))
