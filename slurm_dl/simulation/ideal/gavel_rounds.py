"""Gavel's own rounds: shares become turns by the fraction of time that jobs have had.

A policy says for which share X[m, j] of the time job m had best run on type j. Shares are found
anew after jobs came or went, and not sooner than 1,920 s after the last time. In each round the
jobs go through the types, the fastest first, and those with the highest

    X[m, j] / (time that m has had on j / time that all jobs have had on j)

run, times counted since the shares were found. Both begin with half a round for each job, so that
the first priorities are in the order of the shares. Jobs without a share take the GPUs that are
left over. A job that came after the shares were found holds its place, but does not run. A policy
that packs has shares for pairs of jobs, too: a pair runs as one job does, and both go on at their
speeds beside each other; see `gavel_turns`.

A round is 360 s or shorter: every job does as many whole steps as fit, and the round is over with
the last of them. Work is counted in steps. Nothing costs anything.

Source: stanford-futuredata/gavel, commit c4fa400, scheduler/scheduler.py; the mechanism is that of
Narayanan et al., OSDI 2020, section 5.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slurm_dl.engine.intent import Intent
from slurm_dl.engine.target import NOBODY
from slurm_dl.model.jobs import COMPLETING, F64, I16, I64
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.policies.arithmetic.supply_and_demand import gpus_by_type
from slurm_dl.policies.base import by_share
from slurm_dl.policies.gavel.objectives import isolated
from slurm_dl.policies.gavel.packed import Couples, GavelGandiva
from slurm_dl.policies.gavel.pool import Sharing, entrants
from slurm_dl.simulation.ideal.gavel_turns import Turns
from slurm_dl.simulation.ideal.simulator import IdealCluster
from slurm_dl.simulation.job_knowledge import TraceKnowledge

_LEAST_KEPT_S: Final = 1920.0
"""Shares are kept so long at least, but for the first (minimum_time_between_allocation_resets)."""

_SHUFFLER: Final = 5  # What Gavel adds to its seed for the order of the types
_ROUNDING: Final = 1e-6  # Steps that sums of steps may be off


class GavelRounds(IdealCluster):
    """One simulation in rounds; see the module.

    Args:
        known: Its rates are steps a second, above 0 on one type at least.
    """

    def __init__(
        self,
        *,
        trace: Trace,
        known: TraceKnowledge,
        seed: int,
        **given: Any,  # noqa: ANN401 - all that an ideal cluster takes
    ) -> None:
        super().__init__(trace=trace, known=known, seed=seed, **given)
        assert known.rates is not None  # noqa: S101 - the preset brings them
        n, kinds = known.rates.shape
        self._round_s = self._clockwork.round_s
        # Gavel's code names v100, p100 and k80 in this order.
        self._fastest_first = (-known.rates.sum(axis=0)).argsort(kind="stable").tolist()
        self._queues = self._policy.name == "gavel_fifo"
        self._draw = random.Random(seed).sample  # noqa: S311 - Gavel's own
        self._shuffler = random.Random(seed + _SHUFFLER)  # noqa: S311 - Gavel's own
        assert isinstance(self._policy, Sharing)  # noqa: S101 - the preset has no other policies
        self._shares: Sharing = self._policy
        self._blind = not (self._shares.packs or "rates" in self._shares.about.needs)
        pairs = known.pair_rates if self._shares.packs else None
        self._turns = Turns(known.rates, trace.gpus, pairs, self._round_s / 2)
        self._entered = 0
        # What runs in the round under way: rows of the turns, and types.
        self._teams: tuple[I64, I64] = (NOBODY, NOBODY)
        self._couples: Couples = frozenset()
        self._share: F64 = np.zeros((n, kinds))
        # Time that the work done so far would have taken each alone on its part of the cluster, and
        # its speed there and work left when the shares were found.
        self._alone_s, self._alone_speed = np.zeros(n), np.full(n, math.inf)
        self._left_then = self._work_s.copy()
        self._is_stale = False
        self._shared_s = self._last_end_s = 0.0

    def run(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Round by round, until nothing more can happen; see `simulator.simulate`."""
        jobs = self._jobs
        while True:
            arrived = self._arrived
            self._admit()
            self._is_stale |= self._arrived > arrived
            progress(self._arrived - jobs.alive)
            coming_s = self._submits[self._arrived]
            if jobs.alive:
                self._begin_round()
                if jobs.running.any():
                    self._end_round()
                    continue
            if not jobs.alive and self._is_due():
                # Gavel finds shares for nobody, too, and keeps them as long.
                self._shared_s, self._is_stale = self._now_s, False
            if coming_s < math.inf:
                self._now_s = coming_s
            elif jobs.alive and self._is_stale:
                self._shared_s = 0.0  # nobody is to come: whoever is here gets a share now
            else:
                return

    def _begin_round(self) -> None:
        """Stop and start jobs for the round that begins now."""
        jobs, now_s = self._jobs, self._now_s
        self._decisions += 1
        self._account()
        snap = jobs.snapshot(now_s)
        alive = np.zeros(len(self._trace), dtype=np.bool_)
        alive[jobs.job_id[self._alive()]] = True
        self._turns.keep(alive)
        self._turns.add(np.arange(self._entered, self._arrived))
        self._entered = self._arrived
        if self._is_due():
            self._find_shares(snap)
        kinds = list(self._fastest_first)
        if self._blind:
            self._shuffler.shuffle(kinds)
        self._teams = self._turns.chosen(gpus_by_type(snap), kinds, queues=self._queues)
        ids, team, side = self._turns.members(self._teams[0])
        rows, on = jobs.job_id.searchsorted(ids), self._teams[1][team]
        kind: I16 = np.full(len(jobs), -1, dtype=np.int16)
        kind[rows] = on
        change = self._where.settle(
            jobs, snap, Intent(by_share(self._share[jobs.job_id]), rows, rows, kind)
        )
        self._stop(change.stops)
        self._start(change.starts)
        jobs.speed[rows] = self._turns.speed[self._teams[0][team], side, on]

    def _is_due(self) -> bool:
        kept_s = self._now_s - self._shared_s
        return self._is_stale and (kept_s >= _LEAST_KEPT_S or self._shared_s == 0)

    def _find_shares(self, snap: Snapshot) -> None:
        """Find shares for the jobs that are here; what each is owed of the old ones is kept."""
        self._turns.settle(self._now_s - self._shared_s)
        self._show_alone(snap)
        if isinstance(self._shares, GavelGandiva):
            found, self._couples = self._shares.regrouped(snap, self._couples, self._draw)
        else:
            found = self._shares.solved(snap)
        ids = snap.jobs.job_id
        self._share[:] = 0.0
        self._share[ids] = found.share
        self._turns.share(self._share, found.paired.at(ids))
        self._shared_s, self._is_stale = self._now_s, False

    def _show_alone(self, snap: Snapshot) -> None:
        """Show progress so that done / (speed alone now) is the sum of the parts of each moment."""
        who = entrants(snap, len(snap.jobs))
        ids, left = snap.jobs.job_id[who.rows], snap.left_s[who.rows]
        self._alone_s[ids] += (self._left_then[ids] - left) / self._alone_speed[ids]
        self._alone_speed[ids] = speed = (who.rates * isolated(who)).sum(axis=1)
        self._left_then[ids] = left
        done = self._alone_s[ids] * speed
        self._jobs.progress[who.rows] = done / (done + left)

    def _end_round(self) -> None:
        """Let the running jobs do the steps that fit, up to the end of the last.

        Both jobs of a pair end with the later one.
        """
        jobs, now_s = self._jobs, self._now_s
        ids, team, _ = self._turns.members(self._teams[0])
        rows = jobs.job_id.searchsorted(ids)
        speed = jobs.speed[rows]
        fit = np.maximum(np.floor(speed * self._round_s), 1.0)
        steps = np.minimum(fit, jobs.work_s[rows])
        done = jobs.work_s[rows] <= fit + _ROUNDING
        team_end_s = np.zeros(len(self._teams[0]))
        np.maximum.at(team_end_s, team, now_s + np.where(done, jobs.work_s[rows], steps) / speed)
        self._turns.ran(*self._teams, team_end_s - self._last_end_s)
        ends_s = team_end_s[team]
        jobs.done_s[rows] = np.where(done, ends_s, math.inf)
        rest, steps, end_s = ids[~done], steps[~done], float(ends_s.max())
        for instant_s in np.unique(ends_s[done]).tolist():
            self._now_s = instant_s
            self._complete()
            self._is_stale = True
        self._now_s = self._last_end_s = end_s
        rows = jobs.job_id.searchsorted(rest)
        jobs.work_s[rows] -= steps
        self._begin_stretch(rows, np.zeros(len(rows)))
        self._events += 1

    def _alive(self) -> npt.NDArray[np.int64]:
        return (self._jobs.state < COMPLETING).nonzero()[0]
