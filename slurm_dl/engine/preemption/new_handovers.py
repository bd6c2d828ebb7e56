"""For whom to take GPUs back, and from whom: new hand-overs, as data.

Walks the waiting jobs from the best down. What fits into free room is Slurm's to start. For one
that does not fit, a set of worse-placed victims is looked for that makes it startable; the jobs
after it that fit into the same freed room join as further beneficiaries, so that the seal
does not keep the GPUs from those they are for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.fresh_look import THERE_IS_ROOM
from slurm_dl.engine.placing.eligible_nodes import EligibleNodes, anywhere, narrowed
from slurm_dl.engine.placing.free_resources import FreeResources, NodeRows
from slurm_dl.engine.placing.place_waiting import sealed_nodes
from slurm_dl.engine.preemption.eligibility import Victims, not_beneficiary, tried_in_vain
from slurm_dl.engine.preemption.handover_context import DisplacementRule
from slurm_dl.engine.preemption.slurm_refusals import LimitsLeft
from slurm_dl.engine.preemption.surplus import Surplus
from slurm_dl.engine.preemption.victim_choice import choose_victims, reluctance
from slurm_dl.engine.settings import Settings
from slurm_dl.model.handover import Handover, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import I32, Bool, is_in
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.resource_request import ResourceRequest, ResourceRequests

OPEN = -1  # Owner of a node that no hand-over has sealed

MOST_SEARCHES = 32
"""Kinds of jobs (tier and shape) for which victims are looked for in vain in one decision."""

FORBIDDEN = -2  # Owner of a node that a hand-over of an earlier cycle has sealed


_NO_PLACE = "GPUs are taken back for the first jobs of the waiting line only"

_Kind = tuple[object, ...]


@dataclass(slots=True, eq=False)
class _Draft:
    """A hand-over in the making."""

    victims: tuple[int, ...]
    beneficiaries: list[int] = field(default_factory=list)
    nodes: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobRanking:
    """Ranks and targets of jobs, for the search of victims.

    Attributes:
        placed: ``(n,)`` bool, waiting jobs with a SiteFactor of their own. GPUs are taken back for
            no other: its victims would come after it by chance only.
        within: Nodes on which room may be made for a job, or is looked for at all.
        not_kept: Nodes on which jobs may be stopped for a job: none of a higher PriorityTier waits
            for them.
    """

    rule: DisplacementRule  # Which running jobs a waiting job may displace
    rank: I32  # ``(n,)`` rank of each job
    placed: Bool
    target: frozenset[JobId]  # Jobs that should hold GPUs by the policy; they are stopped last
    within: EligibleNodes = anywhere
    not_kept: EligibleNodes = anywhere
    types: EligibleNodes = anywhere  # Nodes of the type of GPUs that the policy chose for a job
    surplus: Surplus | None = None  # Running jobs that give a part of their GPUs back; None: nobody


def new_handovers(
    snap: Snapshot,
    waiting: npt.NDArray[np.int64],
    candidates: Victims,
    standing: JobRanking,
    settings: Settings,
) -> tuple[list[Handover], dict[JobId, str]]:
    """Hand-overs to begin now, and for waiting jobs why nothing is taken back for them.

    Args:
        waiting: Rows of the jobs that could start if there were room, best first.
    """
    if not len(waiting):
        return [], {}
    search = _Search(snap, candidates, standing, settings)
    notes = {}
    ids = map(JobId, snap.jobs.job_id[waiting].tolist())
    kinds = _kinds(snap, waiting, standing)
    for row, job_id, kind in zip(waiting.tolist(), ids, kinds, strict=True):
        if job_id in search.spoken_for:
            continue
        reason = search.in_vain.get(kind) or search.visit(row, kind)
        if reason:
            notes[job_id] = reason
    return [_handover(snap, d, i, standing.surplus) for i, d in enumerate(search.drafts)], notes


class _Search:
    """One walk over the waiting jobs, filling up the room as it goes."""

    def __init__(
        self, snap: Snapshot, candidates: Victims, standing: JobRanking, settings: Settings
    ) -> None:
        self._snap = snap
        self._candidates = candidates
        self._rule, self._within = standing.rule, standing.within
        self._kind_of = standing.rule.kinds()
        self._types, self._rank = standing.types, standing.rank
        self._not_kept = standing.not_kept
        self._placed = standing.placed
        self._limits = settings.preemption
        surplus = standing.surplus
        # What victims hold: of those that shrink, what they give back.
        self._held = snap if surplus is None else surplus.over
        self._available = FreeResources.free_in(snap) if surplus is None else surplus.free(snap)
        self._gives = snap.seen.weighted_gpus() if surplus is None else surplus.given(snap)
        self._leaves = frozenset(candidates.may.tolist()).difference(
            () if surplus is None else surplus.then
        )
        self._may = self._rule.may
        if surplus is not None and len(surplus.rows):
            self._may = self._may | self._rule.target
        self._needs = ResourceRequests(snap)
        self._left = LimitsLeft(snap, snap.handovers)
        self._owner = np.full(len(snap.seen.nodes), OPEN, dtype=np.int64)
        self._owner[sealed_nodes(snap, snap.handovers)] = FORBIDDEN
        self.spoken_for = {b for h in snap.handovers for b in h.beneficiaries}
        self._gpus_last_hour = snap.preempted_gpus_last_hour
        in_target = is_in(snap.jobs.job_id, list(standing.target))
        may = candidates.may
        self._reluctance = functools.cache(lambda: reluctance(snap, may, in_target, settings))
        self._dispensable = may[np.argsort(-standing.rank[may], kind="stable")]
        self._failed: dict[tuple[object, ...], str] = {}
        self._no_room: set[tuple[object, ...]] = set()
        self.in_vain: dict[_Kind | None, str] = {}
        self.drafts: list[_Draft] = []
        self._drop_sealed()

    def visit(self, row: int, kind: _Kind | None = None) -> str:
        """Find room for the waiting job at *row*; why nothing is taken back for it, if so.

        Args:
            kind: See `_kinds`.
        """
        if self._snap.jobs.gpus[row] <= 0:
            return not_beneficiary(self._snap, row, self._may, self._limits)
        need = narrowed(self._needs.of(row), self._within(row))
        if self._fit(row, need, OPEN) == self._snap.jobs.tasks[row]:
            return THERE_IS_ROOM
        need = narrowed(need, self._types(row))
        reason = not_beneficiary(self._snap, row, self._may, self._limits)
        if reason or (self._placed[row] and self._joins(row, need)):
            return reason
        reason = self._opens(row, need) if self._placed[row] else _NO_PLACE
        if reason and kind is not None:
            self.in_vain[kind] = reason
        return reason

    def _place(self, need: ResourceRequest, owner: int) -> NodeRows | None:
        """Nodes for the job among those nobody owns and those of draft *owner*."""
        mine = (self._owner == OPEN) | (self._owner == owner)
        return self._available.place(need, within=mine)

    def _fit(self, row: int, need: ResourceRequest, owner: int, already: int = 0) -> int:
        """Place the job, or as many tasks of the pending array as fit; how many that were."""
        placed = already
        key = (owner, *need.key)
        while placed < self._snap.jobs.tasks[row] and key not in self._no_room:
            if self._left.over(row, owner=owner):
                break
            rows = self._available.place(need, within=self._owner == owner)
            if rows is None:
                # Room only shrinks until the next hand-over is drafted.
                self._no_room.add(key)
                break
            self._available.take(need, rows)
            self._left.plan(owner, row)
            placed += 1
        return placed

    def _joins(self, row: int, need: ResourceRequest) -> bool:
        """Let the job share the room that a hand-over of this plan frees, if it may and fits."""
        fits_in: list[bool] | None = None
        for index, draft in enumerate(self.drafts):
            key = ("join", index, *need.key)
            victims = np.array(draft.victims, dtype=np.int64)
            if key in self._no_room or not self._rule.displaceable(row, victims).all():
                continue
            if len(draft.beneficiaries) >= self._limits.max_beneficiaries:
                continue
            if self._left.over(row, owner=index):
                continue
            if fits_in is None:
                fits_in = self._drafts_with_room(need)
            rows = self._place(need, index) if fits_in[index] else None
            if rows is not None:
                self._seat(row, need, rows, index)
                return True
            self._no_room.add(key)
        return False

    def _drafts_with_room(self, need: ResourceRequest) -> list[bool]:
        """Of each draft whether `_place` would find room for the job: for all at once."""
        there = np.zeros(len(self.drafts), dtype=np.bool_)
        for ask in need.asks:
            owner = self._owner[self._available.fits_on(need, ask)]
            own = np.bincount(owner[owner >= 0], minlength=len(there))
            there |= own + np.count_nonzero(owner == OPEN) >= ask.n_nodes
        return list(there.tolist())

    def _opens(self, row: int, need: ResourceRequest) -> str:
        """Draft a hand-over for the job; the reason if that can't be done."""
        limits = self._limits
        if not limits.enabled:
            return limits.because
        if len(self._snap.handovers) + len(self.drafts) >= limits.max_handovers:
            return f"{limits.max_handovers} hand-overs are under way, the most allowed"
        reason = tried_in_vain(self._snap, row, limits.handover_timeout_s)
        if reason:
            return reason
        key = (int(self._kind_of[row]), self._left.of(row), *need.key)
        if key not in self._failed:
            victims = self._search(row, need)
            if not isinstance(victims, str):
                if self._too_late(row, victims):
                    return "its deadline would pass while the jobs stopped for it save their work"
                self._draft(row, need, victims)
                return ""
            self._failed[key] = victims
        return self._failed[key]

    def _search(self, row: int, need: ResourceRequest) -> tuple[int, ...] | str:
        """The victims whose end makes room for the job, or why there are none."""
        worse = self._dispensable[self._rule.displaceable(row, self._dispensable)]
        if not len(worse):
            return self._nobody_to_stop(row)
        if (not_kept := self._not_kept(row)) is not None:
            worse = _off(self._snap, worse, ~not_kept)
            if not len(worse):
                return "the jobs that may be stopped for it hold nodes that a higher tier waits for"
        if reason := self._left.why_not(row, worse.tolist()):
            return reason
        if len(self._failed) >= MOST_SEARCHES:
            return f"{MOST_SEARCHES} kinds of jobs were looked for in vain; it is for the next look"
        victims = choose_victims(
            self._held,
            self._available,
            need,
            candidates=worse,
            reluctance_gpu_s=self._left.dearer(row, self._reluctance(), worse.tolist()),
            within=self._owner == OPEN,
            at_most=self._limits.max_victims,
        )
        if isinstance(victims, str):
            return victims
        return self._left.why_not(row, victims) or self._too_many(victims) or victims

    def _too_many(self, victims: tuple[int, ...]) -> str:
        """The breaker or limit on GPUs that *victims* would pass; if none, count their GPUs."""
        limits = self._limits
        gpus = float(self._gives[list(victims)].sum())
        if gpus > limits.most_gpus:
            return (
                f"{gpus:.0f} GPUs would have to be taken back for it, and a breaker allows "
                f"{limits.most_gpus:.0f} within an hour"
            )
        if limits.max_gpus_per_hour and self._gpus_last_hour + gpus > limits.max_gpus_per_hour:
            return (
                f"{self._gpus_last_hour:.0f} GPUs were preempted in the last hour, {gpus:.0f} more "
                f"would pass the limit of {limits.max_gpus_per_hour:.0f}"
            )
        self._gpus_last_hour += gpus
        return ""

    def _too_late(self, row: int, victims: tuple[int, ...]) -> bool:
        """Whether Slurm may end the waiting job at *row* before all of *victims* are gone."""
        seen, jobs = self._snap.seen, self._snap.jobs
        deadline_s = seen.deadlines.get(JobId(int(jobs.job_id[row])))
        if deadline_s is None:
            return False
        grace_s = max(victim_of(self._snap, v).contract.grace_s for v in victims)
        return deadline_s < seen.now_s + grace_s + float(jobs.limit_s[row])

    def _draft(self, row: int, need: ResourceRequest, victims: tuple[int, ...]) -> None:
        draft = _Draft(victims)
        index = len(self.drafts)
        self.drafts.append(draft)
        for victim in victims:
            self._available.release(self._held, victim)
            freed = self._snap.seen.held.nodes_of(victim)
            self._owner[freed] = index
            draft.nodes.update(freed.tolist())
        self._failed.clear()
        self._no_room.clear()
        self.in_vain.clear()
        rows = self._place(need, index)
        if rows is None:
            msg = f"victims {victims} were said to make room for row {row}, and do not"
            raise AssertionError(msg)
        self._left.give_back(index, self._leaves.intersection(victims))
        self._seat(row, need, rows, index)

    def _seat(self, row: int, need: ResourceRequest, rows: NodeRows, index: int) -> None:
        self._left.plan(index, row)
        draft = self.drafts[index]
        self._available.take(need, rows)
        self._owner[rows] = index
        draft.nodes.update(rows.tolist())
        draft.beneficiaries.append(row)
        self._fit(row, need, index, already=1)
        self._drop_sealed()

    def _drop_sealed(self) -> None:
        """Drop candidates on nodes of a hand-over: reservations must not overlap."""
        self._dispensable = _off(self._snap, self._dispensable, self._owner != OPEN)

    def _nobody_to_stop(self, row: int) -> str:
        """The reason why no running job may be stopped for the job at *row*."""
        rows, rule = self._candidates.rows, self._rule
        displaceable = rule.displaceable(row, rows)
        if rule.by_tier:
            below = displaceable | (rule.tier[rows] > rule.tier[row])
            nobody, of_these = "no job of a lower tier is running", "of lower tiers"
        elif rule.by_target:
            below = displaceable | (self._rank[rows] > self._rank[row])
            nobody, of_these = "no job that ranks below it is running", "that rank below it"
        else:
            return "the policy preempts no job"
        may = self._candidates.rule == 0
        if (displaceable & may).any():
            return "the running jobs that may be stopped for it give way to other jobs already"
        if (below & may).any():
            return "it does not fit beside the jobs that come before it or may not be stopped"
        rules = self._candidates.rule[below]
        if not len(rules):
            return nobody
        commonest = self._candidates.reasons[int(np.bincount(rules).argmax())]
        return f"none of the {len(rules)} running jobs {of_these} may be stopped: {commonest}"


def _off(snap: Snapshot, rows: NodeRows, nodes: Bool) -> NodeRows:
    """Those of the jobs at *rows* that hold none of *nodes*."""
    there = np.zeros(len(snap.jobs), dtype=np.bool_)
    there[snap.seen.held.job[nodes[snap.seen.held.node]]] = True
    return rows[~there[rows]]


def _kinds(
    snap: Snapshot, waiting: npt.NDArray[np.int64], standing: JobRanking
) -> Iterator[_Kind | None]:
    """Of each waiting job what it shares with those that fare as it does; None: it has no like.

    What was looked for in vain for one is not looked for again for the next of its kind: until
    something is freed there is ever less room, and there are ever fewer to stop.
    """
    if standing.within is not anywhere or standing.types is not anywhere:
        yield from [None] * len(waiting)
        return
    jobs, seen = snap.jobs, snap.seen
    alone = snap.memory.fruitless[waiting] > 0
    columns = (
        standing.rule.kinds(),
        standing.placed,
        jobs.partition,
        jobs.gpu_type,
        jobs.gpus,
        jobs.n_nodes,
        jobs.cpus,
        jobs.mem_mb,
        jobs.exclusive,
        # Where nodes are reserved, how long a job may run decides where it may start.
        jobs.limit_s if seen.blocked else jobs.exclusive,
    )
    counts = {} if seen.quotas is None else seen.quotas.counts
    kinds = zip(*(column[waiting].tolist() for column in columns), strict=True)
    ids = jobs.job_id[waiting].tolist()
    spread = (job_id for job_id, claim in seen.claims.items() if claim.most_nodes is not None)
    apart = {*seen.also_in, *seen.choices, *seen.excluded, *seen.deadlines, *spread}
    for job_id, is_alone, kind in zip(ids, alone.tolist(), kinds, strict=True):
        yield None if is_alone or job_id in apart else (*kind, counts.get(job_id))


def _handover(snap: Snapshot, draft: _Draft, index: int, surplus: Surplus | None) -> Handover:
    names, then = snap.seen.nodes.name, {} if surplus is None else surplus.then

    def stays(row: int) -> tuple[str, ...]:
        return () if surplus is None else surplus.stays(snap, row)

    shrink = [row for row in draft.victims if row in then]
    seats = {n for row in shrink for n in surplus.seats[row].tolist()} if surplus else set[int]()
    return Handover(
        handover_id=HandoverId(snap.next_handover_id + index),
        opened_s=snap.now_s,
        beneficiaries=tuple(JobId(int(snap.jobs.job_id[r])) for r in draft.beneficiaries),
        victims=tuple(victim_of(snap, row, then.get(row), stays(row)) for row in draft.victims),
        nodes=tuple(names[n] for n in sorted(draft.nodes)),
        seats=tuple(names[n] for n in sorted(seats)),
    )


def next_id(snap: Snapshot, under_way: Iterable[Handover]) -> HandoverId:
    """The number of the next hand-over beside those *under_way*."""
    return HandoverId(max([snap.next_handover_id, *(h.handover_id + 1 for h in under_way)]))


def victim_of(
    snap: Snapshot, row: int, then: Shape | None = None, stays: tuple[str, ...] = ()
) -> Victim:
    """The run at *row* as a victim, which goes on in the size *then*; None: it leaves.

    Args:
        stays: See `Victim.stays`.
    """
    jobs = snap.jobs
    job_id = JobId(int(jobs.job_id[row]))
    contract = snap.seen.claim(job_id).contract
    if contract is None:
        msg = f"job {job_id} was chosen as a victim without a contract"
        raise AssertionError(msg)
    run = Run(job_id, float(jobs.start_s[row]), int(jobs.restarts[row]))
    gpus = float(snap.seen.weighted_gpus()[row])
    fewer = 0.0 if then is None else max(0.0, 1 - then.gpus / float(jobs.gpus[row]))
    gives = None if then is None else gpus * fewer
    return Victim(run=run, gpus=gpus, contract=contract, then=then, gives=gives, stays=stays)
