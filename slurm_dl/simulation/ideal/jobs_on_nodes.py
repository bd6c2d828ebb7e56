"""Jobs on nodes: a scheme of placement and rules choose where, and the place changes the speed.

The policy says who is served; then the waiting jobs are put on nodes in its order. Running jobs
that it still wants keep their nodes. Those it does not want are asked in their turn, too: what
nobody better has taken they keep, so nobody is stopped for a job that gets no place. Who gets none
does not start, and its GPUs are offered to the next ones, unless the policy passes nobody by.

Who holds what are three columns with a row for each job and node; a decision builds no object but
for the jobs it places.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.settings import Placement
from slurm_dl.engine.target import NOBODY
from slurm_dl.model.completed_jobs import RunNodes
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETING, F64, RUNNING
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.placement.consolidate import skew
from slurm_dl.placement.scheme import Scheme
from slurm_dl.simulation.cluster_shape import ClusterShape
from slurm_dl.simulation.ideal.active_jobs import ActiveJobs
from slurm_dl.simulation.ideal.placement_model import PlacementChange
from slurm_dl.simulation.ideal.placement_pass import SLACK_GPUS, PlacementPass
from slurm_dl.simulation.ideal.placement_speed import ContentionSpeed, PlacementSpeed, place_speed
from slurm_dl.simulation.outcome import Lay, NodeJournal

Rows = npt.NDArray[np.int64]

Widths = Literal["any", "fewest"]
"""On how many nodes users let their jobs lie: any that split the GPUs evenly, or the fewest."""

_NO_SPEEDS: F64 = np.zeros(0)


class OnNodes:
    """Where the jobs of one simulation lie; see `placement_model.PlacementModel`.

    Args:
        how: Scheme, rules and profiles; its window is how many kinds of jobs may be turned away in
            one decision.
        widths: What the jobs of the trace, which says nothing of nodes, allow.
        contention: How fast what jobs on a node share is.
        journal: Is told which nodes each run held; None: nobody wants to know.

    Raises:
        ValueError: There is no scheme.
    """

    def __init__(
        self,
        trace: Trace,
        shape: ClusterShape,
        how: Placement,
        *,
        skips: bool,
        widths: Widths = "any",
        contention: ContentionSpeed | None = None,
        journal: NodeJournal | None = None,
    ) -> None:
        if how.scheme is None:
            msg = "jobs are put on nodes by a scheme; there is none"
            raise ValueError(msg)
        n = len(trace)
        self._scheme: Scheme = how.scheme
        self._how = how
        self._skips = skips
        self._contention = contention or ContentionSpeed()
        self._journal = journal
        self._trace = trace
        self._shape = shape
        self._nodes = shape.nodes()
        self._profiles = tuple(profile_named(how.profiles, model) for model in trace.models)
        self._claims = _claims(trace, self._profiles, widths)
        self._spots: dict[int, tuple[int, ...]] = {}
        self._known: dict[tuple[int, float, int, int], PlacementSpeed] = {}
        # Who holds what: (k,) by row of the trace, ascending.
        self._job = np.zeros(0, dtype=np.int64)
        self._node = np.zeros(0, dtype=np.int32)
        self._gpus = np.zeros(0)
        self._is_new = False
        self._network = self._per_job(lambda p: p.load.network_mb_s)
        self._pcie = self._per_job(lambda p: p.load.pcie_mb_s)
        self._width = np.zeros(n, dtype=np.int32)
        self._widest = np.zeros(n, dtype=np.int32)
        self._place_speed = np.ones(n)
        self._rung: dict[int, str] = {}
        self._worked_s = np.zeros(n)
        self._node_s = np.zeros(n)
        self._lost_gpu_s = np.zeros(n)

    def claims(self) -> Mapping[JobId, Claim]:
        """See `PlacementModel`: model, and on how many nodes it may lie."""
        return self._claims

    def show(self, jobs: ActiveJobs, now_s: float, /) -> None:
        """See `PlacementModel`: who holds what, and that what is left is done more slowly."""
        slowly = np.flatnonzero(jobs.running & (jobs.speed < 1))
        left_s = (jobs.done_s[slowly] - now_s) * jobs.speed[slowly]
        jobs.left_s[slowly] = np.minimum(jobs.work_s[slowly], left_s)
        jobs.hold(
            Allocations(
                job=jobs.job_id.searchsorted(self._job).astype(np.int32),
                node=self._node.copy(),
                gpus=self._gpus.copy(),
                cpus=np.zeros(len(self._job), dtype=np.int32),
                mem_mb=np.zeros(len(self._job), dtype=np.int64),
            )
        )

    def settle(self, jobs: ActiveJobs, snap: Snapshot, intent: Intent, /) -> PlacementChange:
        """See `PlacementModel`."""
        self._spots = {}
        wanted = np.zeros(len(jobs), dtype=np.bool_)
        wanted[intent.target] = True
        displaced = jobs.running & ~wanted
        asks = intent.ranked[~(jobs.running & wanted)[intent.ranked]]
        free = float(self._nodes.gpus.sum() - jobs.gpus[jobs.running & wanted].sum())
        if not len(asks) or not (displaced.any() or free > SLACK_GPUS):
            return PlacementChange(NOBODY, NOBODY, math.inf)
        # What they hold counts as free while the better ones are placed.
        jobs.state[displaced] = COMPLETING
        gone = np.isin(self._job, jobs.job_id[displaced])
        held = np.bincount(self._node[~gone], weights=self._gpus[~gone], minlength=len(self._nodes))
        walk = PlacementPass(
            snap,
            self._scheme,
            self._how,
            free_gpus=self._nodes.gpus - held,
            profile_of=self._profile_of,
            held_by=self._held_by,
            skips=self._skips,
        )
        walk.serve(asks)
        jobs.state[displaced] = RUNNING
        self._spots = walk.spots
        stops = np.array(sorted(walk.stops), dtype=np.int64)
        starts = np.array(sorted(walk.starts), dtype=np.int64)
        return PlacementChange(stops, starts, walk.look_again_s)

    def enter(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        if not len(rows):
            return
        parts = [(self._job, self._node, self._gpus)]
        for job in jobs.job_id[rows].tolist():
            nodes = self._spots[job]
            gpus = float(self._trace.gpus[job])
            width = len(nodes)
            parts.append((np.full(width, job), np.array(nodes, np.int32), _shares(gpus, width)))
            speed = self._speed_of(job, gpus, nodes)
            self._place_speed[job] = speed.speed
            self._width[job] = width
            self._widest[job] = max(int(self._widest[job]), width)
            if width > math.ceil(gpus / self._shape.largest_node_gpus):
                self._rung[job] = speed.rung
        job, node, held = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = job.argsort(kind="stable")
        self._job, self._node, self._gpus = job[order], node[order], held[order]
        self._is_new = True

    def leave(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        if self._journal is not None:
            for job in jobs.job_id[rows].tolist():
                nodes, gpus = self._held_by(job)
                self._journal.close(nodes.tolist(), gpus.tolist())
        stay = ~np.isin(self._job, jobs.job_id[rows])
        self._job, self._node, self._gpus = self._job[stay], self._node[stay], self._gpus[stay]
        self._is_new = True

    def needs_s(self, jobs: ActiveJobs, rows: Rows, /) -> F64:
        """See `PlacementModel`."""
        needs_s: F64 = jobs.work_s[rows] / jobs.speed[rows]
        return needs_s

    def book(self, jobs: ActiveJobs, rows: Rows, worked_s: F64, /) -> F64:
        """See `PlacementModel`."""
        ids, speed = jobs.job_id[rows], jobs.speed[rows]
        self._worked_s[ids] += worked_s
        self._node_s[ids] += worked_s * self._width[ids]
        self._lost_gpu_s[ids] += worked_s * (1 - speed) * jobs.gpus[rows]
        return worked_s * speed

    def finish(self, jobs: ActiveJobs, rows: Rows, /) -> None:
        """See `PlacementModel`."""
        self.book(jobs, rows, self.needs_s(jobs, rows))
        self.leave(jobs, rows)

    def changed(self, jobs: ActiveJobs, /) -> tuple[Rows, F64]:
        """See `PlacementModel`."""
        if not self._is_new:
            return NOBODY, _NO_SPEEDS
        self._is_new = False
        job, first = np.unique(self._job, return_index=True)
        spans = self._width[self._job] > 1
        slower = self._contention.slowdown(
            self._node,
            self._network[self._job] * self._gpus * spans,
            self._pcie[self._job] * self._gpus,
        )
        worst = np.maximum.reduceat(slower, first) if len(job) else _NO_SPEEDS
        speed = self._place_speed[job] / worst
        rows = jobs.job_id.searchsorted(job)
        others = (speed != jobs.speed[rows]).nonzero()[0]
        return rows[others], speed[others]

    def losses(self) -> Mapping[str, F64]:
        """See `PlacementModel`: being slower than in the best place, and neighbours."""
        return {"placement": self._lost_gpu_s.copy()}

    def lay(self) -> Lay:
        """See `PlacementModel`."""
        worked = self._worked_s > 0
        per = np.where(worked, self._worked_s, np.nan)
        lost_s = self._lost_gpu_s / self._trace.gpus
        skews = self._per_job(skew, unknown=np.nan)
        return Lay(
            gpus=self._trace.gpus,
            nodes=self._node_s / per,
            most_nodes=self._widest.copy(),
            fewest_nodes=np.ceil(self._trace.gpus / self._shape.largest_node_gpus).astype(np.int32),
            speed=1 - lost_s / per,
            skew=skews,
            rungs=dict(sorted(Counter(self._rung.values()).items())),
        )

    def run_nodes(self) -> RunNodes | None:
        """See `PlacementModel`."""
        return None if self._journal is None else self._journal.run_nodes()

    def _profile_of(self, job: int) -> Profile | None:
        model = int(self._trace.model[job])
        return self._profiles[model] if model >= 0 else None

    def _held_by(self, job: int) -> tuple[npt.NDArray[np.int32], F64]:
        lo, hi = self._job.searchsorted([job, job + 1])
        return self._node[lo:hi], self._gpus[lo:hi]

    def _speed_of(self, job: int, gpus: float, nodes: Sequence[int]) -> PlacementSpeed:
        types = set(self._nodes.gpu_type[list(nodes)].tolist())
        alike = len(types) == 1 and not self._nodes.is_mixed[list(nodes)].any()
        kind = types.pop() if alike else -1
        key = (int(self._trace.model[job]), gpus, len(nodes), kind)
        if key not in self._known:
            self._known[key] = place_speed(
                self._profile_of(job),
                gpus=gpus,
                n_nodes=len(nodes),
                largest_node_gpus=self._shape.largest_node_gpus,
                gpu_type=self._shape.gpu_types[kind] if kind >= 0 else "",
            )
        return self._known[key]

    def _per_job(self, of: Callable[[Profile], float | None], unknown: float = 0.0) -> F64:
        """``(n,)`` a figure of each job's profile."""
        values = [unknown if p is None else of(p) for p in self._profiles]
        # The last one is for jobs without a model.
        known = [unknown if v is None else v for v in values] + [unknown]
        column: F64 = np.array(known, dtype=np.float64)[self._trace.model]
        return column


def profile_named(profiles: Mapping[str, Profile], model: str) -> Profile | None:
    """The profile of what a trace calls *model*; None if there is none.

    Case, signs, and what stands in brackets do not matter: ``ResNet-50 (batch size 64)`` is
    ``resnet50``.
    """
    if model in profiles:
        return profiles[model]
    wanted = _plain(model)
    return next((p for name, p in sorted(profiles.items()) if _plain(name) == wanted), None)


def _plain(model: str) -> str:
    return re.sub(r"\([^()]*\)|[^a-z0-9]", "", model.casefold())


def _claims(trace: Trace, profiles: Sequence[Profile | None], widths: Widths) -> dict[JobId, Claim]:
    """What each job says of itself, by row of the trace; equal ones are one object."""
    made: dict[tuple[int, float], Claim] = {}
    claims = {}
    for job, (model, gpus) in enumerate(
        zip(trace.model.tolist(), trace.gpus.tolist(), strict=True)
    ):
        if (model, gpus) not in made:
            profile = profiles[model] if model >= 0 else None
            made[model, gpus] = Claim(
                model=None if profile is None else profile.name,
                most_nodes=max(1, int(gpus)) if widths == "any" else None,
            )
        claims[JobId(job)] = made[model, gpus]
    return claims


def _shares(gpus: float, width: int) -> F64:
    """``(width,)`` GPUs on each node, whole ones if the job's are, as even as can be."""
    if gpus != int(gpus):
        return np.full(width, gpus / width)
    least, more = divmod(int(gpus), width)
    shares = np.full(width, float(least))
    shares[:more] += 1
    return shares
