"""The pool in which a job is expected to be done first, even if it starts later there.

A pool is the nodes of one GPU type in the same partitions. For a job that may run in several of
them the time until it is done is estimated in each: start-up, wait for the jobs that run there and
those before it, and its run at that type's speed. It goes to the best, or waits for it. Once it has
been sent to one it stays unless another has become clearly better, and not for a while after that.

Source: Apollo, OSDI 2014, section 3 (estimates, correction).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

import numpy as np

from slurm_dl.model.handover import Seal
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool, JobState
from slurm_dl.model.nodes import SLACK
from slurm_dl.model.parameter_bounds import Bound, Bounded, Figures, from_0
from slurm_dl.model.profile import Profile
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.best_fit import free_gpus
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import Ask, PendingJob, ResourceRequest, ResourceRequests
from slurm_dl.placement.scheme import Answer, Placer, Spot, Wait

NEVER_S: Final = 1e9  # Stands for an end that nobody knows; what comes on top of it still counts
MOST_TASKS: Final = 64  # Tasks of one pending array that are waited for by those behind it

_HOLDING = (JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools(Bounded):
    """The pool with the earliest estimated completion, and no move without a clear gain.

    Attributes:
        margin: A job that was sent to one pool goes to another only if it would complete there in
            less time by this part, 0 to 1.
        cooldown_s: A job goes to another pool no sooner than this after it was sent, seconds.
        startup_s: Seconds that a job needs before it trains, by GPU type; 0 where none is given.
        success: Probability, above 0 to 1, that a run succeeds, by GPU type; 1 where none is given.
    """

    name: ClassVar[str] = "pools"
    source: ClassVar[str] = "Apollo, OSDI 2014, section 3"
    interpretation: ClassVar[str] = (
        "Pools are GPU types and sets of partitions. Waits come from list scheduling of GPUs node "
        "by node, in which no job overtakes another, instead of a wait-time matrix. Jobs are "
        "matched one by one, the best first. The expected run time is that on the slowest type. "
        "Success is given, not learnt."
    )

    margin: Annotated[float, Bound("from 0 to below 1", lambda part: 0 <= part < 1)] = 0.2
    cooldown_s: Annotated[float, Bound("0 or more", from_0)] = 600.0
    startup_s: Annotated[
        Mapping[str, float],
        Figures(from_0, wrong="{name} of {key!r} must be 0 or more (got {value})"),
    ] = field(default_factory=dict)
    success: Annotated[
        Mapping[str, float],
        Figures(
            lambda part: 0 < part <= 1,
            wrong="{name} of {key!r} must be above 0 and at most 1 (got {value})",
        ),
    ] = field(default_factory=dict)

    def begin(
        self, snap: Snapshot, _stock: FreeNodes, _profiles: Mapping[str, Profile], /
    ) -> Placer:
        """See `Scheme`."""
        return _Placer(self, snap)


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """Nodes of one GPU type in the same partitions."""

    name: str  # In words
    gpu_type: str
    nodes: Bool  # ``(m,)`` bool
    rows: Sequence[int]  # Their rows in `Nodes`, ascending
    replay: Replay  # What runs there, and who was sent there in this decision


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """A pool that could be chosen for a job, and the times expected there, in seconds from now.

    Attributes:
        within: ``(m,)`` bool, nodes of the pool that hold a share of the job when they are empty.
        elsewhere: There are other pools for it.
        wait_s: Until it starts.
        run_s: From its start to its end, with start-up.
        done_s: Until it is done; a run that fails is begun again.
    """

    pool: _Pool
    ask: Ask
    within: Bool
    elsewhere: bool
    wait_s: float
    run_s: float
    done_s: float

    def in_words(self) -> str:
        if self.done_s >= NEVER_S:
            return f"{self.pool.name}, no end of which is known"
        return (
            f"{self.pool.name}, where it is expected to start in {self.wait_s:.0f} s and to be "
            f"done in {self.done_s:.0f} s"
        )


class _Placer:
    """Sends each job to the pool that is best with those before it on their way."""

    def __init__(self, scheme: Pools, snap: Snapshot) -> None:
        self._scheme, self._snap = scheme, snap
        self._needs = ResourceRequests(snap)
        self._pools = _pools_of(snap)
        self._known: dict[JobId, _Choice | None] = {}

    def place(self, want: PendingJob, offer: CandidateNodes, /) -> Answer:
        """See `Placer`."""
        if want.job_id not in self._known:
            self._known[want.job_id] = self._choose(want)
        choice = self._known[want.job_id]
        if choice is None:
            return _anywhere(want, offer)
        usable, _ = offer.usable(choice.ask)
        where, now_s = offer.stock.conditions(), self._snap.now_s
        rows = np.flatnonzero(choice.within & want.need.allowed & (where >= 0) & usable[where])
        if len(rows) >= choice.ask.n_nodes:
            fullest = np.argsort(offer.stock.gpus[where[rows]], kind="stable")
            nodes = tuple(sorted(rows[fullest[: choice.ask.n_nodes]].tolist()))
            return Spot(nodes=nodes, why=choice.in_words(), expected_start_s=now_s)
        if not choice.elsewhere:
            return _anywhere(want, offer)
        return Wait(
            within=choice.within,
            for_s=self._scheme.cooldown_s,
            why=choice.in_words(),
            expected_start_s=None if choice.wait_s >= NEVER_S else now_s + choice.wait_s,
        )

    def _choose(self, want: PendingJob) -> _Choice | None:
        """The best pool; the job is in its queue from now on."""
        need = self._needs.of(want.row)
        choices = self._choices(want, need)
        if not choices:
            return None
        best = min(choices, key=lambda c: (c.done_s, c.ask.n_nodes))
        before = self._sent_to(want.job_id, need)
        stays = [c for c in choices if c.pool is before]
        if stays:
            kept = min(stays, key=lambda c: c.done_s)
            clear = best.done_s < kept.done_s * (1 - self._scheme.margin)
            if not clear or self._snap.now_s < self._snap.steers[want.job_id].until_s:
                best = kept
        may = best.within[best.pool.rows].tolist()
        for _ in range(min(int(self._snap.jobs.tasks[want.row]), MOST_TASKS)):
            best.pool.replay.admit(best.ask.n_nodes, best.ask.gpus, may, best.run_s)
        return best

    def _choices(self, want: PendingJob, need: ResourceRequest) -> list[_Choice]:
        """Every pool that holds the job when it is empty, in each way that it may lie there."""
        scheme, nodes = self._scheme, self._snap.seen.nodes
        size = nodes.of_type(int(self._snap.jobs.gpu_type[want.row]))
        found: list[tuple[_Pool, Ask, Bool]] = []
        for pool in self._pools:
            for ask in need.asks:
                within = pool.nodes & need.allowed & (size >= ask.gpus)
                within &= (nodes.cpus >= ask.cpus) & (nodes.mem_mb >= ask.mem_mb)
                if int(np.count_nonzero(within)) >= ask.n_nodes:
                    found.append((pool, ask, within))
        types = sorted({pool.gpu_type for pool, _, _ in found})
        several = len({pool.name for pool, _, _ in found}) > 1
        left_s = min(want.left_s, want.limit_s, NEVER_S)
        choices = []
        for pool, ask, within in found:
            kind = pool.gpu_type
            start_s = pool.replay.start_s(ask.n_nodes, ask.gpus, within[pool.rows].tolist())
            wait_s = min(start_s, NEVER_S)
            faster = speed_ups(want.profile, Shape(ask.n_nodes, max(1, int(ask.gpus))), types)
            run_s = scheme.startup_s.get(kind, 0.0) + left_s / faster[kind]
            # A run that fails is begun again: 1/p runs until one succeeds.
            done_s = wait_s + run_s / scheme.success.get(kind, 1.0)
            choices.append(_Choice(pool, ask, within, several, wait_s, run_s, done_s))
        return choices

    def _sent_to(self, job_id: JobId, need: ResourceRequest) -> _Pool | None:
        """The pool that the job was sent to before; None if it was not, or is let go."""
        steer = self._snap.steers.get(job_id)
        if steer is None or steer.kind not in ("spot", "wait") or not steer.avoid:
            return None
        avoid = frozenset(steer.avoid)
        names = self._snap.seen.nodes.name
        left = np.array([name not in avoid for name in names], dtype=np.bool_) & need.allowed
        # A node that is being cleared is in no pool, and neither is one without GPUs.
        of = [pool for pool in self._pools if (left & pool.nodes).any()]
        return of[0] if len(of) == 1 else None


def speed_ups(profile: Profile | None, shape: Shape, types: Sequence[str]) -> Mapping[str, float]:
    """Speed of the model on each type, relative to the slowest of them.

    From the shape itself if it was measured on two or more of the types, else from the nearest
    shape that was; 1 where nothing is known.
    """
    known: dict[Shape, dict[str, float]] = {}
    for speed in () if profile is None else profile.speeds:
        if speed.gpu_type in types:
            known.setdefault(speed.shape, {})[speed.gpu_type] = speed.steps_per_s
    tables = [of for of in known if len(known[of]) > 1]
    if not tables:
        return dict.fromkeys(types, 1.0)
    nearest = min(tables, key=lambda of: (of != shape, abs(of.gpus - shape.gpus), of))
    slowest = min(known[nearest].values())
    return {t: known[nearest].get(t, slowest) / slowest for t in types}


def _pools_of(snap: Snapshot) -> tuple[_Pool, ...]:
    """All pools of the nodes that are up, but what hand-overs are clearing."""
    seen = snap.seen
    nodes, held = seen.nodes, seen.held
    sealed = {n for h in snap.handovers if h.seal is not Seal.RELEASED for n in h.nodes}
    stays = np.isin(snap.jobs.state[held.job], _HOLDING)
    on, gpus = held.node[stays], held.gpus[stays]
    free = nodes.gpus - np.bincount(on, gpus, minlength=len(nodes))
    ends_s = np.minimum(snap.left_s[held.job[stays]], NEVER_S)
    members: dict[tuple[int, tuple[bool, ...]], list[int]] = {}
    kinds = np.where(nodes.is_mixed, np.int16(-1), nodes.gpu_type)
    for n in np.flatnonzero(nodes.up & (nodes.gpus > 0)).tolist():
        if nodes.name[n] not in sealed:
            key = int(kinds[n]), tuple(seen.node_in[:, n].tolist())
            members.setdefault(key, []).append(n)
    pools = []
    for (kind, partitions), rows in sorted(members.items()):
        place = {n: i for i, n in enumerate(rows)}
        mine = np.isin(on, rows)
        places = [place[n] for n in on[mine].tolist()]
        releases = zip(ends_s[mine].tolist(), places, gpus[mine].tolist(), strict=True)
        inside = np.zeros(len(nodes), dtype=np.bool_)
        inside[rows] = True
        gpu_type = seen.gpu_types[kind] if kind >= 0 else ""
        where = [name for name, is_in in zip(seen.partitions, partitions, strict=True) if is_in]
        name = f"{gpu_type or 'GPUs'} in {', '.join(where) or 'no partition'}"
        pools.append(_Pool(name, gpu_type, inside, rows, Replay(free[rows].tolist(), releases)))
    return tuple(pools)


def _anywhere(want: PendingJob, offer: CandidateNodes) -> Answer:
    """For a job that has no choice of pools, or that only several of them hold together."""
    for ask in want.need.asks:
        nodes = offer.best(ask, free_gpus)
        if nodes is not None:
            return Spot(nodes=nodes, why="the fullest nodes it fits on")
    return None


Release = tuple[float, int, float]  # When GPUs come back, seconds from now; which node; how many


class Replay:
    """The nodes of one pool, as the jobs so far will have left them.

    When a job would start, if jobs start in their order and end when expected. List scheduling:
    each job starts as soon as it fits and all before it have started. GPUs are counted node by
    node; a job takes the fullest nodes it fits on.

    Hot path: a job costs as many steps as jobs end before it starts.

    Args:
        free: Free GPUs of each node now.
        releases: What comes back later.
    """

    def __init__(self, free: Sequence[float], releases: Iterable[Release]) -> None:
        self._free = [gpus + SLACK for gpus in free]
        self._releases = list(releases)
        heapq.heapify(self._releases)
        self._now_s = 0.0

    def start_s(self, n_nodes: int, gpus: float, may: Sequence[bool]) -> float:
        """Seconds until the next job could start; inf if it never fits.

        Args:
            gpus: GPUs on each of *n_nodes* nodes.
            may: Nodes it may use.
        """
        open_to = sum(f >= gpus and m for f, m in zip(self._free, may, strict=True))
        if open_to >= n_nodes:
            return self._now_s
        releases, free = self._releases.copy(), dict[int, float]()
        while releases:
            at_s, node, back = heapq.heappop(releases)
            before = free.get(node, self._free[node])
            free[node] = before + back
            open_to += may[node] and before < gpus <= before + back
            if open_to >= n_nodes:
                return max(self._now_s, at_s)
        return float("inf")

    def admit(self, n_nodes: int, gpus: float, may: Sequence[bool], run_s: float) -> float:
        """Let the job be the next; when it starts, as `start_s`. Nothing changes if it never does.

        Args:
            run_s: How long it runs, seconds.
        """
        at_s = self.start_s(n_nodes, gpus, may)
        if at_s == float("inf"):
            return at_s
        self._now_s = at_s
        while self._releases and self._releases[0][0] <= at_s:
            _, node, back = heapq.heappop(self._releases)
            self._free[node] += back
        fitting = [n for n, f in enumerate(self._free) if f >= gpus and may[n]]
        for node in sorted(fitting, key=lambda n: self._free[n])[:n_nodes]:
            self._free[node] -= gpus
            heapq.heappush(self._releases, (at_s + run_s, node, gpus))
        return at_s
