"""One decision on nodes: the jobs that hold none are asked in the order in which they are served.

It goes as `slurm_dl.engine.placing.place_waiting` does, and ends as soon as there is no GPU left to
give. Nobody is asked who wants more GPUs than are free, or the same as somebody for whom there was
no place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.settings import Placement
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, PENDING
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import PendingJob, ResourceRequests
from slurm_dl.placement.scheme import Answer, Placer, Scheme, Spot, Wait

Rows = npt.NDArray[np.int64]

SLACK_GPUS: Final = 1e-9  # Ten tenths of a GPU are one, whatever the rounding of their sum


class PlacementPass:
    """One walk over the jobs; what came of it stands in its attributes.

    Attributes:
        stops: Rows of running jobs whose nodes somebody else gets.
        starts: Rows of jobs that start now.
        spots: Where, by job id.
        look_again_s: Least time for which a job is told to wait, seconds; inf if nobody is.

    Args:
        snap: Jobs whose nodes are up for others are ending in it.
        free_gpus: ``(m,)`` GPUs free on each node, those of such jobs too.
        profile_of: A job's profile, by id.
        held_by: The nodes a running job has and its GPUs on each, by id.
        skips: Whether those behind one that gets no place are served.
    """

    def __init__(
        self,
        snap: Snapshot,
        scheme: Scheme,
        how: Placement,
        *,
        free_gpus: F64,
        profile_of: Callable[[int], Profile | None],
        held_by: Callable[[int], tuple[npt.NDArray[np.int32], F64]],
        skips: bool,
    ) -> None:
        self.stops: list[int] = []
        self.starts: list[int] = []
        self.spots: dict[int, tuple[int, ...]] = {}
        self.look_again_s = math.inf
        self._snap = snap
        self._rules = how.rules
        self._strict = tuple(rule for rule in how.rules if rule.strict)
        self._stock = FreeNodes.of(snap, how.profiles)
        self._placer: Placer = scheme.begin(snap, self._stock, how.profiles)
        self._needs = ResourceRequests(snap)
        self._free = free_gpus.copy()
        self._left = float(free_gpus.sum())
        self._profile_of = profile_of
        self._held_by = held_by
        self._skips = skips
        self._goes_on = True
        self._most_waits = how.window
        self._in_vain: set[tuple[object, ...]] = set()

    def serve(self, rows: Rows) -> None:
        """Ask the jobs at *rows*, which hold nothing or may have to give it away, best first."""
        jobs = self._snap.jobs
        gpus = jobs.gpus[rows].tolist()
        waits = (jobs.state[rows] == PENDING).tolist()
        for row, wanted, is_waiting in zip(rows.tolist(), gpus, waits, strict=True):
            if self._left <= SLACK_GPUS:
                if is_waiting:
                    continue
                self.stops.append(row)
            elif is_waiting or not self._stays(row):
                if not is_waiting:
                    self.stops.append(row)
                self._start(row, wanted)

    def _stays(self, row: int) -> bool:
        """Whether a running job keeps its nodes: nobody better has taken anything of them."""
        want = self._want(row)
        nodes, gpus = self._held_by(want.job_id)
        if not (self._free[nodes] >= gpus - SLACK_GPUS).all():
            return False
        self._take(want, nodes.tolist(), gpus)
        return True

    def _start(self, row: int, gpus: float) -> None:
        if not self._goes_on:
            return
        answer: Answer = None
        if gpus <= self._left + SLACK_GPUS and self._most_waits > 0:
            answer = self._ask(self._want(row))
        if isinstance(answer, Spot):
            self.starts.append(row)
        else:
            self._goes_on = self._skips

    def _ask(self, want: PendingJob) -> Answer:
        kind = (want.need.key, None if want.profile is None else want.profile.name)
        if kind in self._in_vain:
            return None
        answer = self._placer.place(want, CandidateNodes(self._stock, want, self._rules))
        if not isinstance(answer, Spot) and len(self._strict) < len(self._rules):
            answer = self._placer.place(want, CandidateNodes(self._stock, want, self._strict))
        match answer:
            case Spot(nodes=nodes):
                self.spots[want.job_id] = nodes
                self._take(want, nodes, want.need.ask(len(nodes)).gpus)
            case Wait(for_s=for_s, within=within):
                self._most_waits -= 1
                self.look_again_s = min(self.look_again_s, for_s)
                if within is not None:
                    # Strict rules must hold for whoever comes later.
                    self._stock.expect(want, np.flatnonzero(within).tolist())
            case None:
                self._in_vain.add(kind)
        return answer

    def _take(self, want: PendingJob, nodes: Sequence[int], gpus: F64 | float) -> None:
        self._stock.take(want, nodes)
        self._free[list(nodes)] -= gpus
        self._left -= float(self._snap.jobs.gpus[want.row])

    def _want(self, row: int) -> PendingJob:
        snap = self._snap
        job_id = JobId(int(snap.jobs.job_id[row]))
        return PendingJob(
            row=row,
            job_id=job_id,
            need=self._needs.of(row),
            profile=self._profile_of(job_id),
            waited_s=max(0.0, snap.now_s - float(snap.memory.waiting_since_s[row])),
            left_s=float(snap.left_s[row]),
        )
