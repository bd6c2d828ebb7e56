"""Slurm takes GPUs back by itself: all we do is to give each job its SiteFactor.

Inside one QOS whose PreemptMode has WITHIN, Slurm preempts a running job for a waiting one as soon
as the priority of the waiting one is higher. Which priorities jobs have is up to us: waiting ones
have the band of their tier, running ones half a band more::

    B = band width, K tiers, W = what all other priority factors can add up to, W < B / 2

    waiting in tier t:   (K - t) B       ... (K - t) B + W
    running in tier t:   (K - t) B + B/2 ... (K - t) B + B/2 + W
    shielded:            K B + B/2       ... K B + B/2 + W

So a waiting job exceeds the running ones of worse tiers and no other, whatever its age, its
fair-share or its QOS add; half a band is the hysteresis that keeps jobs of one tier from
displacing each other. A shielded job is exceeded by nobody who waits. A running job of a
higher PriorityTier stands half a band above all that wait in a lower one on nodes of its partition.

The minimum quantum and the grace are Slurm's here (PreemptExemptTime, GraceTime of the QOS).
Who is preempted for whom is Slurm's choice too, among those below. The other way is
`external_mode`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.preemption.eligibility import Victims, not_beneficiary, victims, waiting
from slurm_dl.engine.preemption.handover_context import DisplacementRule, HandoverContext
from slurm_dl.engine.preemption.handover_protocol import steps_of, strays
from slurm_dl.engine.preemption.handover_verdicts import judge
from slurm_dl.engine.preemption.mode import DecisionContext, Handovers, PreemptionSteps
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.engine.site_factors import (
    highest_site_factor,
    in_levels,
    in_window,
    rewritten,
    undone,
    wanted_site_factor,
)
from slurm_dl.engine.target import Rows, pools
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import I64, Bool, JobState
from slurm_dl.model.plan import Action, SetSiteFactor
from slurm_dl.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class NativeEngine:
    """SiteFactors of waiting and of running jobs, and nothing else.

    Hand-overs that were begun before Slurm was to preempt by itself are brought to their end:
    undone if nobody has been signalled, gone through with otherwise.
    """

    settings: Settings
    qos: str

    def recount(self, snap: Snapshot, /) -> Snapshot:
        """*snap* with Slurm's restart counts in place of our own preemptions.

        Slurm does not tell a job that it put back from one that put itself back.
        """
        jobs, memory = snap.jobs, snap.memory
        again = (jobs.state == JobState.RUNNING) & (jobs.restarts > 0)
        counted = dataclasses.replace(
            memory,
            preemptions=np.maximum(memory.preemptions, jobs.restarts),
            last_preempted_s=np.maximum(
                memory.last_preempted_s, np.where(again, jobs.start_s, 0.0)
            ),
        )
        return snap.derived(memory=counted)

    def undone(self, snap: Snapshot, /) -> tuple[JobId, ...]:
        """Waiting jobs, and the running ones inside the QOS; see `Engine`."""
        state, managed = snap.jobs.state, snap.managed_jobs
        waits = np.flatnonzero(managed & (state == JobState.PENDING))
        runs = np.flatnonzero(managed & (state > JobState.PENDING) & (state < JobState.COMPLETING))
        rows = np.concatenate([waits, runs[self._inside(snap, runs)]])
        return undone(snap, rows, self.settings.band_width)

    def candidates(self, snap: Snapshot, /) -> Victims:
        """Jobs that may be preempted; see `Engine`."""
        return victims(snap, _ours(self.settings.preemption))

    def handovers(self, context: DecisionContext, /) -> Handovers:
        """Verdicts on what is left of hand-overs; none is opened. See `Engine`."""
        judged = HandoverContext(
            snap=context.snap,
            needs=context.needs,
            free=context.free,
            rule=DisplacementRule(
                target=np.zeros(len(context.snap.jobs), dtype=np.bool_),
                tier=_levels(context).order.tier,
                by_target=False,
                by_tier=True,
                may=context.may_displace,
                priority_tier=context.snap.priority_tiers(),
            ),
            candidates=context.candidates,
            limits=_none_begun(self.settings.preemption),
        )
        return Handovers(
            judged=judged,
            verdicts={h.handover_id: judge(h, judged) for h in context.snap.handovers},
        )

    def preemption_steps(
        self, context: DecisionContext, handovers: Handovers, /
    ) -> PreemptionSteps:
        """Remaining steps of hand-overs, and the SiteFactors; see `Engine`."""
        order = _levels(context).order
        bands = wanted_site_factor(order, self.settings)
        snap, ranked = context.snap, context.intent.ranked
        running = ranked[snap.jobs.state[ranked] != JobState.PENDING]
        running = running[self._inside(snap, running)]
        shields = self._shields(context, running)
        wanted = bands.copy()
        # What may displace nobody waits in the last tier: Slurm finds no running job below it.
        barred = ranked[
            (snap.jobs.state[ranked] == JobState.PENDING) & ~context.may_displace[ranked]
        ]
        wanted[barred[self._inside(snap, barred)]] = self.settings.band_width
        wanted[running] += self.settings.band_width // 2
        self._raise_by_tier(snap, ranked, running, wanted)
        wanted[list(shields)] = highest_site_factor(order.tiers, self.settings.band_width)
        kind = _kind(snap, ranked, wanted, self.settings)
        # A job of an open hand-over has the place that its hand-over needs.
        busy = [v.run.job_id for h in snap.handovers for v in h.victims]
        busy += [b for h in snap.handovers for b in h.beneficiaries]
        kind[np.isin(snap.jobs.job_id[ranked], busy)] = _NOT
        # Stable: best first inside each kind.
        at = np.argsort(kind, kind="stable")
        at = at[kind[at] < _NOT]
        writes = [
            SetSiteFactor(
                job_id=JobId(int(snap.jobs.job_id[row])),
                value=int(wanted[row]),
                why=shields.get(row, _WHY[of_kind]),
            )
            for row, of_kind in zip(ranked[at].tolist(), kind[at].tolist(), strict=True)
        ]
        return PreemptionSteps(
            steps=tuple(self._finish(handovers, bands)),
            writes=tuple(writes),
            notes=self._notes(context, wanted, np.sort(wanted[running])),
        )

    def _raise_by_tier(self, snap: Snapshot, ranked: Rows, running: Rows, wanted: I64) -> None:
        """Raise running jobs above all that wait in a lower PriorityTier on nodes of theirs.

        Slurm compares the priorities alone when it preempts.
        """
        if (tiers := snap.priority_tiers()) is None:
            return
        waits = ranked[snap.jobs.state[ranked] == JobState.PENDING]
        waits = waits[self._inside(snap, waits)]
        for pool in pools(snap):
            pending, runs = pool.of(waits), pool.of(running)
            for tier in np.unique(tiers[runs]).tolist():
                best = wanted[pending[tiers[pending] < tier]].max(initial=0)
                mine = runs[tiers[runs] == tier]
                wanted[mine] = np.maximum(wanted[mine], best + self.settings.band_width // 2)

    def _inside(self, snap: Snapshot, rows: Rows) -> Bool:
        """``(len(rows),)`` bool: in the QOS inside which Slurm preempts."""
        texts = snap.seen.texts
        ids = snap.jobs.job_id[rows].tolist()
        return np.array(
            [(t := texts.get(JobId(j))) is not None and t.qos == self.qos for j in ids],
            dtype=np.bool_,
        )

    def _shields(self, context: DecisionContext, running: Rows) -> dict[int, str]:
        """Those of the rows *running* that nobody may exceed, each with the reason."""
        rows = running.tolist()
        if not self.settings.preemption.enabled:
            return dict.fromkeys(rows, f"{_NOBODY}: {self.settings.preemption.because}")
        if context.preempts == "never":
            return dict.fromkeys(rows, f"{_NOBODY}: the policy preempts nobody")
        candidates = context.candidates
        ruled = dict(zip(candidates.rows.tolist(), candidates.rule.tolist(), strict=True))
        shields = {
            row: f"{_NOBODY}: {candidates.reasons[rule]}"
            for row in rows
            if (rule := ruled.get(row))
        }
        # Slurm would preempt these too, opted in or not; nobody there could save their work.
        idle = {
            JobState.CONFIGURING: "its nodes are not ready",
            JobState.SUSPENDED: "it is suspended",
        }
        for row in rows:
            if why := idle.get(JobState(int(context.snap.jobs.state[row]))):
                shields[row] = f"{_NOBODY}: {why}"
        return shields

    def _finish(self, handovers: Handovers, bands: I64) -> list[Action]:
        judged = handovers.judged
        steps: list[Action] = [*strays(judged.snap, judged.rows)]
        for handover in judged.snap.handovers:
            verdict = handovers.verdicts[handover.handover_id]
            steps += steps_of(handover, verdict, judged, bands)
        return steps

    def _notes(self, context: DecisionContext, wanted: I64, running: I64) -> dict[JobId, str]:
        """A note for each waiting job: what Slurm may preempt for it, as far as known.

        Args:
            running: What the running jobs in the QOS should have, ascending.
        """
        snap, ranked = context.snap, context.intent.ranked
        ready = waiting(snap)[ranked]
        rows = ranked[ready & in_window(snap, ranked, ready, self.settings.window)]
        below = np.searchsorted(running, wanted[rows])
        inside = self._inside(snap, rows)
        notes = {}
        for row, n_below, is_inside in zip(
            rows.tolist(), below.tolist(), inside.tolist(), strict=True
        ):
            if reason := not_beneficiary(snap, row, context.may_displace, self.settings.preemption):
                note = reason
            elif not self.settings.preemption.enabled:
                note = self.settings.preemption.because
            elif not is_inside:
                note = f"Slurm preempts for jobs of QOS {self.qos} only"
            elif not n_below:
                note = f"no job that it may displace is running in QOS {self.qos}"
            else:
                note = f"Slurm may preempt for it any of {n_below} running jobs of lower tiers"
            notes[JobId(int(snap.jobs.job_id[row]))] = note
        return notes


def _levels(context: DecisionContext) -> Intent:
    return in_levels(context.snap, context.preempts, context.intent, context.candidates.staying)


def _none_begun(limits: Preemption) -> Preemption:
    """*limits* under which hand-overs that have signalled nobody are undone."""
    if not limits.enabled:
        return limits
    return dataclasses.replace(limits, enabled=False, because="Slurm itself preempts")


def _ours(limits: Preemption) -> Preemption:
    """The limits that we keep by shields; Slurm keeps the minimum quantum itself.

    Every shield is a write, and a job takes it along if it is requeued: none where Slurm's own
    limit does as well, none for mere thrift (the reserve before the time limit).
    """
    cooldown_s = limits.cooldown_s if limits.cooldown_s > limits.min_quantum_s else 0.0
    return dataclasses.replace(
        limits, min_quantum_s=0.0, limit_reserve_s=0.0, cooldown_s=cooldown_s
    )


_PENDING_DOWN, _RUNNING_UP, _PENDING_UP, _RUNNING_DOWN, _NOT = range(5)

_NOBODY = "no waiting job may exceed it"

_WHY = {
    _PENDING_DOWN: "it waits with its tier's band: no running job of its tier may give way to it",
    _RUNNING_UP: "it runs: half a band above those who wait in its tier",
    _PENDING_UP: "its place in the order",
    _RUNNING_DOWN: "it changed its tier: better ones may displace it",
}


def _kind(snap: Snapshot, ranked: Rows, wanted: I64, settings: Settings) -> I64:
    """``(len(ranked),)`` what kind of write each job needs, in the order of writing.

    First whatever makes a preemption less likely, then what makes one more likely: Slurm may
    look between any two writes, and where the writes end early nobody has been displaced who
    should not have been. What must be lowered is lowered outside the window too: a job that ran
    brings the SiteFactor of a running one back into the queue.
    """
    before, after = snap.memory.site_factor[ranked], wanted[ranked]
    waits = snap.jobs.state[ranked] == JobState.PENDING
    near = in_window(snap, ranked, waits, settings.window)
    # Nothing was written as far as we remember, and yet there is something: the ledger was lost.
    priority, again = snap.jobs.priority[ranked], rewritten(snap, ranked)
    unknown = (before == 0) & (priority >= after + settings.band_width // 2)
    high, low = again & (priority > before), again & (priority < before)
    kinds: I64 = np.select(
        [
            waits & ((after < before) | unknown | high),
            ~waits & ((after > before) | low),
            waits & ((after > before) | low) & near,
            ~waits & ((after < before) | high),
        ],
        [_PENDING_DOWN, _RUNNING_UP, _PENDING_UP, _RUNNING_DOWN],
        default=_NOT,
    ).astype(np.int64)
    return kinds
