"""Nodes for waiting jobs, by the configured scheme and rules, best jobs first."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_dl.engine.placing.eligible_nodes import EligibleNodes, anywhere, narrowed
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.engine.preemption.eligibility import waiting
from slurm_dl.engine.settings import Placement
from slurm_dl.engine.site_factors import in_window
from slurm_dl.engine.target import Rows
from slurm_dl.model.handover import Handover, Seal
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import PENDING, Bool, Held, is_in
from slurm_dl.model.nodes import Nodes
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.candidate_nodes import CandidateNodes
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.resource_request import PendingJob, ResourceRequest, ResourceRequests
from slurm_dl.placement.scheme import Answer, Placer, Scheme, Spot, Wait

MOST_TASKS = 64  # Tasks of one pending array that are placed in one decision
MOST_NAMED = 3  # Nodes that are named in words


@dataclass(frozen=True, slots=True)
class Placed:
    """Decisions on the waiting jobs that were considered.

    Attributes:
        waits: Jobs that had better wait, and where.
    """

    spots: Mapping[JobId, Spot] = field(default_factory=dict)  # Jobs that may start now, and where
    waits: Mapping[JobId, Wait] = field(default_factory=dict)
    held: frozenset[JobId] = frozenset()  # Those of *waits* that the policy bars

    def without(self, jobs: Collection[JobId]) -> Placed:
        """The same, but for *jobs*."""
        return Placed(
            {job_id: spot for job_id, spot in self.spots.items() if job_id not in jobs},
            {job_id: wait for job_id, wait in self.waits.items() if job_id not in jobs},
            self.held.difference(jobs),
        )


def place_waiting(
    snap: Snapshot,
    ranked: Rows,
    reserved: Collection[JobId],
    how: Placement,
    within: EligibleNodes = anywhere,
) -> Placed:
    """Ask the scheme about the jobs that wait, in the order in which they are to be served.

    Args:
        ranked: Rows of the managed live jobs, best first.
        reserved: Jobs that a hand-over makes room for: where they go is settled.
        within: Nodes on which a job may be placed.
    """
    if how.scheme is None:
        return Placed()
    gpus = snap.jobs.gpus
    rows = to_place(snap, ranked, (gpus > 0) & (gpus == np.floor(gpus)), how)
    if not len(rows):
        return Placed()
    at_work = _Placing(snap, how, how.scheme)
    spots: dict[JobId, Spot] = {}
    waits: dict[JobId, Wait] = {}
    for want in wants_of(snap, rows, reserved, how, within):
        match at_work.place(want):
            case Spot() as spot:
                spots[want.job_id] = spot
            case Wait() as wait:
                waits[want.job_id] = wait
            case None:
                pass
    return Placed(spots, waits)


def place_notes(snap: Snapshot, placed: Placed) -> dict[JobId, str]:
    """In words, where each placed job should go."""
    names = snap.seen.nodes.name
    notes = {}
    for job_id, spot in placed.spots.items():
        shown = ", ".join(names[n] for n in spot.nodes[:MOST_NAMED])
        left = len(spot.nodes) - MOST_NAMED
        more = f" and {left} more" if left > 0 else ""
        notes[job_id] = f"it is to start on {shown}{more} ({spot.why})"
    for job_id, wait in placed.waits.items():
        longest = "" if wait.for_s == float("inf") else f", {wait.for_s:.0f} s at most"
        notes[job_id] = wait.why if job_id in placed.held else f"it waits for {wait.why}{longest}"
    return notes


def settling(snap: Snapshot, how: Placement) -> Bool:
    """``(n,)`` bool: jobs that dlsubmit put off for a moment, so that they can be placed.

    A job that was requeued keeps its interval; nobody knows better than Slurm what it is for.
    """
    jobs, begins, now_s = snap.jobs, snap.seen.begins, snap.now_s
    put_off = snap.managed_jobs & (jobs.state == PENDING) & (jobs.held == Held.BEGIN_TIME)
    # Slurm says BeginTime for a while longer, until its scheduler has looked: a job that is placed
    # stays placed.
    placed = is_in(jobs.job_id, [j for j, s in snap.steers.items() if s.kind != "started"])
    # Who may not start for long is not to take the place of those who may.
    far = is_in(jobs.job_id, [j for j, at_s in begins.items() if at_s > now_s + how.settle_s])
    mask: Bool = put_off & (jobs.restarts == 0) & ~far
    mask &= placed | (now_s - jobs.submit_s < how.settle_s)
    return mask


def with_settling(snap: Snapshot, how: Placement, *, holds: bool) -> Snapshot:
    """*snap*, in which jobs that dlsubmit put off for a moment wait for room.

    So the policy can choose a type for those that are placed, and bar them where it *holds* jobs.
    """
    chooses = how.scheme is not None and len(snap.seen.gpu_types) > 1
    if not (chooses or holds) or not how.settle_s:
        return snap
    mask = settling(snap, how)
    if not mask.any():
        return snap
    held = np.where(mask, np.int8(Held.NO), snap.jobs.held).astype(np.int8)
    return snap.with_jobs(held=held)


def to_place(snap: Snapshot, ranked: Rows, those: Bool, how: Placement) -> Rows:
    """Rows of the jobs that wait for room, or would but for what we or dlsubmit put before them.

    Args:
        ranked: Rows of the managed live jobs, best first.
        those: ``(n,)`` bool, the jobs that are asked about.
    """
    jobs = snap.jobs
    ready = waiting(snap) | settling(snap, how)
    put_off = snap.managed_jobs & (jobs.state == PENDING) & (jobs.held == Held.BEGIN_TIME)
    begins, now_s = snap.seen.begins, snap.now_s
    ours = {j: s.since_s for j, s in snap.steers.items() if s.puts_off(now_s, begins.get(j))}
    for row in np.flatnonzero(put_off & is_in(jobs.job_id, list(ours))).tolist():
        ready[row] |= jobs.submit_s[row] <= ours[JobId(int(jobs.job_id[row]))]
    mine = (ready & those)[ranked]
    rows: Rows = ranked[mine & in_window(snap, ranked, mine, how.window)]
    return rows


def wants_of(
    snap: Snapshot,
    rows: Rows,
    reserved: Collection[JobId],
    how: Placement,
    within: EligibleNodes = anywhere,
) -> Iterator[PendingJob]:
    """The jobs at *rows* as a scheme sees them; none whose request is not understood."""
    needs = ResourceRequests(snap)
    jobs, memory, seen = snap.jobs, snap.memory, snap.seen
    sealed = sealed_nodes(snap, snap.handovers)
    counted = seen.gres is not None or seen.nodes.by_type is not None
    free = FreeResources.free_in(snap) if counted else None
    for row in rows.tolist():
        job_id = JobId(int(jobs.job_id[row]))
        if job_id in reserved:
            continue
        need = narrowed(needs.of(row), within(row))
        need = _without(need, sealed) if sealed.any() else need
        if free is not None and need.gres:
            # By what is free now: what jobs placed before it will take is not counted.
            least = np.array(need.gres)[:, np.newaxis]
            need = _without(need, np.logical_or.reduce(free.gres < least, axis=0))
        if not need.allowed.any():
            continue  # What its owner asks for is not understood, or is not there.
        model = seen.claim(job_id).model
        text = seen.texts.get(job_id)
        yield PendingJob(
            row=row,
            job_id=job_id,
            need=need,
            profile=None if model is None else how.profiles.get(model),
            account="" if text is None else text.account,
            waited_s=max(0.0, snap.now_s - float(memory.waiting_since_s[row])),
            left_s=float(snap.left_s[row]),
            limit_s=float(jobs.limit_s[row]),
        )


class _Placing:
    """One walk over the waiting jobs, filling up the stock as it goes."""

    def __init__(self, snap: Snapshot, how: Placement, scheme: Scheme) -> None:
        self._snap = snap
        self._stock = FreeNodes.of(snap, how.profiles)
        self._whole = FreeResources.unoccupied(snap)
        self._strict = tuple(rule for rule in how.rules if rule.strict)
        all_strict = len(self._strict) == len(how.rules)
        self._rule_sets = (how.rules,) if all_strict else (how.rules, self._strict)
        self._placer: Placer = scheme.begin(snap, self._stock, how.profiles)
        self._ruled_out: Wait | None = None

    def place(self, want: PendingJob) -> Answer:
        answer = self._ask(want)
        if isinstance(answer, Spot):
            self._stock.take(want, answer.nodes)
            for _ in range(1, min(int(self._snap.jobs.tasks[want.row]), MOST_TASKS)):
                more = self._ask(want)
                if not isinstance(more, Spot):
                    break
                self._stock.take(want, more.nodes)
        elif isinstance(answer, Wait):
            # Strict rules must hold for whoever comes later, even if this one starts first. And
            # what they leave to it now must not go to others again and again.
            meant = self._left_by_rules(want) if answer is self._ruled_out else answer.within
            if meant is not None:
                self._stock.expect(want, meant.nonzero()[0].tolist())
        return answer

    def _left_by_rules(self, want: PendingJob) -> Bool | None:
        """``(m,)`` bool, where it could be one day; None if it could not start there at all."""
        first = want.need.asks[0]
        if not holds(self._whole, want.need.allowed, want, first.n_nodes):
            return None
        return CandidateNodes(self._stock, want, self._strict).within_rules(first)

    def _ask(self, want: PendingJob) -> Answer:
        kept = self._kept(want)
        wait: Wait | None = None
        for rules in self._rule_sets:
            for one in (kept, want):
                if one is None:
                    continue
                answer = self._placer.place(one, CandidateNodes(self._stock, one, rules))
                if isinstance(answer, Spot):
                    return answer
                wait = answer
        if wait is not None and not self._is_sound(want, wait):
            wait = None
        return self._wait_by_rules(want, wait) if self._strict else wait

    def _is_sound(self, want: PendingJob, wait: Wait) -> bool:
        """Whether *want* could start at all on the nodes that it is to wait for."""
        if wait.within is None:
            return True
        within = wait.within & want.need.allowed
        return any(holds(self._whole, within, want, a.n_nodes) for a in want.need.asks)

    def _kept(self, want: PendingJob) -> PendingJob | None:
        """*want*, on the nodes that are left to it since it was last steered; None if it was not.

        Where it may stay with its nodes nothing has to be written.
        """
        steer = self._snap.steers.get(want.job_id)
        if steer is None or not steer.avoid or steer.kind == "started":
            return None
        need = _without(want.need, named(self._snap.seen.nodes, steer.avoid))
        return dataclasses.replace(want, need=need) if need.allowed.any() else None

    def _wait_by_rules(self, want: PendingJob, answer: Wait | None) -> Wait:
        """Nodes on which *want* may start later without breaking a strict rule."""
        if answer is not None and answer.within is None:
            return answer
        candidates = CandidateNodes(self._stock, want, self._strict)
        names = ", ".join(rule.name for rule in self._strict)
        # Slurm may start it in any of its ways: the nodes must do for all that they are enough for.
        by_rules = [candidates.within_rules(ask) for ask in want.need.asks]
        within: Bool = np.logical_and.reduce(by_rules)
        if answer is not None and answer.within is not None:
            only_first = int(np.count_nonzero(answer.within)) <= want.need.n_nodes
            within = answer.within & (by_rules[0] if only_first else within)
        for ask in want.need.asks:
            if holds(self._whole, within, want, ask.n_nodes):
                for_s = float("inf") if answer is None else answer.for_s
                why = f"nodes that the rule {names} allows" if answer is None else answer.why
                return Wait(within=within, for_s=for_s, why=why)
        self._ruled_out = Wait(
            within=None, for_s=float("inf"), why=f"nodes that the rule {names} allows"
        )
        return self._ruled_out


def _without(need: ResourceRequest, nodes: Bool) -> ResourceRequest:
    """*need*, on other nodes than these alone."""
    allowed = need.allowed & ~nodes
    allowed.setflags(write=False)
    place = (*need.place, allowed.tobytes())
    return dataclasses.replace(need, allowed=allowed, place=place, key=(need.key, place))


def holds(whole: FreeResources, within: Bool, want: PendingJob, n_nodes: int) -> bool:
    """Whether *want* could start on *n_nodes* of the nodes *within* if nobody else were there.

    Slurm refuses a job for good (BadConstraints) that is kept from all nodes it could ever have.

    Args:
        whole: What nodes have if no job runs.
    """
    fits = whole.fits_on(want.need, want.need.ask(n_nodes)) & within
    return int(np.count_nonzero(fits)) >= n_nodes


def named(nodes: Nodes, names: Collection[str]) -> Bool:
    """``(m,)`` bool, the nodes with these names; names that are not there any more do no harm."""
    wanted = frozenset(names)
    return np.array([name in wanted for name in nodes.name], dtype=np.bool_)


def sealed_nodes(snap: Snapshot, handovers: Iterable[Handover]) -> Bool:
    """``(m,)`` bool, the nodes that *handovers* keep for their own jobs."""
    sealed = (h for h in handovers if h.seal is not Seal.RELEASED)
    return named(snap.seen.nodes, {name for h in sealed for name in h.nodes})
