"""How often the simulated daemon looks and how fast it writes: dlschedd's own rules.

And one rule that the daemon does not have: until when a look would bring nothing new. A decision
depends on the snapshot alone; if that has not changed but for its time, only what depends on time
can make it another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import numpy as np

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.preemption.eligibility import waiting
from slurm_dl.engine.settings import External, Preemption, Settings
from slurm_dl.model.handover import Handover
from slurm_dl.model.jobs import F64, PENDING, RUNNING, Bool
from slurm_dl.model.plan import OpenHandover
from slurm_dl.simulation.slurm.overheads import SlurmCosts


def delay_after(cycle: Cycle, costs: SlurmCosts) -> float:
    """Time from the beginning of *cycle* to that of the next, seconds; as dlschedd has it."""
    if not cycle.acting:
        return costs.poll_s
    delay_s = costs.fast_poll_s if has_handovers(cycle) else costs.poll_s
    return until_wake(delay_s, cycle.plan.wake_at_s - cycle.snapshot.now_s, costs)


def until_wake(delay_s: float, wake_in_s: float, costs: SlurmCosts) -> float:
    """*delay_s*, cut short by a plan that changes by itself in *wake_in_s*; seconds."""
    if wake_in_s <= 0:
        return delay_s
    return max(costs.fast_poll_s, min(delay_s, wake_in_s))


def has_handovers(cycle: Cycle) -> bool:
    """Whether hand-overs are under way after *cycle*."""
    opened = any(isinstance(done.action, OpenHandover) for done in cycle.done)
    return opened or bool(cycle.snapshot.handovers)


class Quiet(NamedTuple):
    """Until when looks bring nothing new unless something happens; epoch seconds, inf: for ever."""

    until_s: float  # The first look at or after this is a real one
    before_s: float  # The last look before this is a real one


NEVER_QUIET: Final = Quiet(-math.inf, -math.inf)  # The very next look may bring something new


def quiet_until(cycle: Cycle, settings: Settings, *, by_tier: bool) -> Quiet:
    """Until when looks after *cycle* bring nothing new unless something happens.

    Args:
        by_tier: The policy preempts by tier alone. The ranks of others may move with each look,
            so more of their looks are done: next to every instant, and during hand-overs all.
    """
    snap, limits = cycle.snapshot, settings.preemption
    if not cycle.acting or cycle.plan.actions:
        return NEVER_QUIET
    steers = [s for s in snap.steers.values() if s.kind != "started"]
    if any(s.avoid or s.job_id not in cycle.plan.held for s in steers):
        return NEVER_QUIET  # A steer ends by the clock.
    if not all(h.signalled and h.purpose == "preempt" for h in snap.handovers):
        return NEVER_QUIET
    jobs, memory, now_s = snap.jobs, snap.memory, snap.now_s
    if not by_tier and (snap.handovers or snap.seen.begins.keys() - cycle.plan.held):
        return NEVER_QUIET
    waits = waiting(snap)
    # It is overdue when it has waited for longer.
    overdue_s = memory.waiting_since_s[waits] + (settings.overdue.after_s or math.inf) + 1.0
    ends = [until_s for h in snap.handovers for until_s in _ends_of(h, limits)]
    passed_s = memory.waiting_since_s[waits] + (settings.overdue.pass_s or math.inf) + 1.0
    # The begin time of a job that is put off is moved on by the clock.
    ends += [s.not_before_s - settings.placement.defer_s / 2 for s in steers]
    times = [overdue_s, passed_s, np.array(ends)]
    if limits.enabled and (snap.seen.begins or waits.any()):
        if limits.max_gpus_per_hour and snap.preempted_gpus_last_hour:
            return NEVER_QUIET
        running = jobs.state == RUNNING
        freed = running & _may_be_displaced(cycle, settings, overdue_s, by_tier=by_tier)
        tried = memory.fruitless > 0
        pauses = 2.0 ** np.minimum(memory.fruitless[tried] - 1, 10)
        times += [
            jobs.start_s[freed] + limits.min_quantum_s,
            memory.last_preempted_s[freed] + limits.cooldown_s,
            jobs.start_s[running] + jobs.limit_s[running] - limits.limit_reserve_s + 1.0,
            memory.last_fruitless_s[tried] + limits.handover_timeout_s * pauses,
        ]
    if settings.defragment.enabled:
        times.append(memory.waiting_since_s[waits] + settings.defragment.after_s)
    later = np.concatenate(times)
    until_s = exact_s = float(later[later > now_s].min(initial=math.inf))
    # Plans go by whole seconds.
    until_s = math.floor(until_s) if until_s < math.inf else until_s
    # The ledger moves the beginning of the waiting of held jobs on with each look.
    before_s = min((begin_s - 1.0 for begin_s in snap.seen.begins.values()), default=math.inf)
    if not by_tier:
        before_s = min(before_s, exact_s)
        if not cycle.plan.lease_s:
            before_s = min(before_s, cycle.plan.wake_at_s)
    return Quiet(min(until_s, cycle.plan.wake_at_s), before_s)


def _may_be_displaced(
    cycle: Cycle, settings: Settings, overdue_s: F64, *, by_tier: bool
) -> Bool | Literal[True]:
    """``(n,)`` bool: others may get the job's GPUs once what protects it is over.

    Where tiers alone decide, jobs of the best tier that waits or of a better one are served before
    all that wait.
    """
    snap, tier, limits = cycle.snapshot, cycle.plan.tier, settings.preemption
    one_kind = isinstance(settings.mode, External) and snap.rates is None
    if not by_tier or not one_kind or (overdue_s <= snap.now_s).any():
        return True
    jobs, waits = snap.jobs, snap.jobs.state == PENDING
    best = tier[waits].min(initial=np.iinfo(tier.dtype).max)
    # Those that may be preempted no more for another reason close nodes to gangs.
    lasting = snap.memory.preemptions >= limits.max_preemptions
    reserve_s = max(limits.min_quantum_s, limits.cooldown_s) + limits.limit_reserve_s
    may: Bool = (tier > best) | lasting | (jobs.limit_s <= reserve_s)
    return may


def _ends_of(handover: Handover, limits: Preemption) -> Iterator[float]:
    """When the time of its next steps is over, epoch seconds."""
    grace_s = [victim.contract.grace_s for victim in handover.victims]
    yield handover.opened_s + limits.handover_timeout_s + max(grace_s)
    for victim in handover.victims:
        yield victim.signalled_s + victim.contract.grace_s
        yield victim.gone_s + limits.start_margin_s
        yield victim.gone_s + limits.handover_timeout_s


class Writes:
    """The daemon's token bucket for writes of the order; a rate of 0 does not limit them."""

    def __init__(self, costs: SlurmCosts, now_s: float) -> None:
        self._rate_per_s = costs.writes_per_s
        self._capacity = max(costs.writes_burst, costs.writes_per_s * costs.poll_s)
        self._tokens = self._capacity
        self._at_s = now_s

    def refill(self, now_s: float) -> None:
        """Put in what has come together since the last time."""
        more = (now_s - self._at_s) * self._rate_per_s
        self._tokens = min(self._capacity, self._tokens + more)
        self._at_s = now_s

    def take(self) -> bool:
        """Take one if there is one."""
        if not self._rate_per_s:
            return True
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
