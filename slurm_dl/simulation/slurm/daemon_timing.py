"""How often the simulated daemon looks and how fast it writes: dlschedd's own rules.

And one rule that the daemon does not have: until when a look would bring nothing new. A decision
depends on the snapshot alone; if that has not changed but for its time, only what depends on time
can make it another one.
"""

from __future__ import annotations

import math

import numpy as np

from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.preemption.eligibility import waiting
from slurm_dl.engine.settings import Settings
from slurm_dl.model.jobs import Held, JobState
from slurm_dl.model.plan import OpenHandover
from slurm_dl.simulation.slurm.overheads import SlurmCosts


def delay_after(cycle: Cycle, costs: SlurmCosts) -> float:
    """Time from the beginning of *cycle* to that of the next, seconds; as dlschedd has it."""
    if not cycle.acting:
        return costs.poll_s
    delay_s = costs.fast_poll_s if has_handovers(cycle) else costs.poll_s
    wake_in_s = cycle.plan.wake_at_s - cycle.snapshot.now_s
    if wake_in_s <= 0:
        return delay_s
    return max(costs.fast_poll_s, min(delay_s, wake_in_s))


def has_handovers(cycle: Cycle) -> bool:
    """Whether hand-overs are under way after *cycle*."""
    opened = any(isinstance(done.action, OpenHandover) for done in cycle.done)
    return opened or bool(cycle.snapshot.handovers)


def quiet_until(cycle: Cycle, settings: Settings) -> float:
    """Until when a look brings nothing new unless something happens; epoch seconds.

    ``-inf`` if the very next look may. ``inf`` if none will.
    """
    snap, limits = cycle.snapshot, settings.preemption
    if not cycle.acting or cycle.plan.actions or has_handovers(cycle):
        return -math.inf
    jobs, memory, now_s = snap.jobs, snap.memory, snap.now_s
    kept = (jobs.state == JobState.PENDING) & (jobs.held != Held.NO) & (memory.ran_s > 0)
    if kept.any():
        return -math.inf  # The ledger moves the beginning of their waiting on with each look.
    if any(steer.kind != "started" for steer in snap.steers.values()):
        return -math.inf  # A steer ends, and a begin time is moved on, by the clock.
    times = [np.array([cycle.plan.wake_at_s])]
    if limits.enabled and waiting(snap).any():
        if limits.max_gpus_per_hour and snap.preempted_gpus_last_hour:
            return -math.inf
        running = jobs.state == JobState.RUNNING
        tried = memory.fruitless > 0
        pauses = 2.0 ** np.minimum(memory.fruitless[tried] - 1, 10)
        times += [
            jobs.start_s[running] + limits.min_quantum_s,
            memory.last_preempted_s[running] + limits.cooldown_s,
            memory.last_fruitless_s[tried] + limits.handover_timeout_s * pauses,
        ]
    if settings.defragment.enabled:
        times.append(memory.waiting_since_s[waiting(snap)] + settings.defragment.after_s)
    later = np.concatenate(times)
    return float(later[later > now_s].min(initial=math.inf))


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
