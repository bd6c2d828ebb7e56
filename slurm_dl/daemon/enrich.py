"""Estimates about jobs, added to the ledger's snapshot before each decision.

How far jobs say they are, in which sizes they can run, when they are due, how long jobs like them
took, how fast their models are on which GPUs; each with where it is from, so that a policy can tell
a measurement from a guess.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Final

import numpy as np

from slurm_dl.daemon.history_cache import HistoryCache
from slurm_dl.engine.preemption.stopping_cost import setup_s
from slurm_dl.engine.promise_terms import counted_deadlines, promises
from slurm_dl.engine.settings import Deadlines, Preemption
from slurm_dl.estimates.remaining_time import left_of
from slurm_dl.estimates.similar_jobs import expected_s
from slurm_dl.estimates.size_speeds import sizes_of
from slurm_dl.estimates.training_speed import SitePriors, rates_of_jobs
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.jobs import F64
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy

_USUAL: Final = Deadlines()


def learn_on_one_core() -> None:
    """Keep scikit-learn from counting the cores of this machine, for which it starts programs."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


class Enricher:
    """Adds to a snapshot what is known of its jobs.

    Args:
        history: The jobs that are over; None: none are known.
        policy: What goes by them; it is asked about a new history before a cycle waits for it.
        profiles: What is known of models, by name.
        site: What the admin says of GPUs.
        checkpoint_cost_s: Save and restore of a job whose model's profile does not tell, seconds.
        deadlines: Bounds on the deadlines of jobs; None: none counts.
    """

    def __init__(
        self,
        *,
        history: HistoryCache | None = None,
        policy: Policy | None = None,
        profiles: Mapping[str, Profile],
        site: SitePriors,
        checkpoint_cost_s: float = Preemption().checkpoint_cost_s,
        deadlines: Deadlines | None = _USUAL,
    ) -> None:
        self._history = history
        self._policy = policy
        self._profiles = profiles
        self._site = site
        self._checkpoint_cost_s = checkpoint_cost_s
        self._deadlines = deadlines

    def __call__(self, snap: Snapshot) -> Snapshot:
        """*snap* with what is known: `sizes`, `left_s`, `progress`, `due_s`, `rates`, and so on."""
        # What history says of a job goes by the size that it was submitted with.
        snap = dataclasses.replace(snap, sizes=sizes_of(snap, self._profiles, self._site))
        past = NO_PAST
        if self._history is not None:
            past = self._history.look(lambda fresh: self._prepare(fresh, snap))
        snap = dataclasses.replace(snap, progress=progress_of(snap), past=past)
        left = left_of(snap, expected_s(snap))
        rates = rates_of_jobs(snap, self._profiles, self._site)
        return dataclasses.replace(
            snap,
            left_s=left.seconds,
            left_from=left.origin,
            due_s=counted_deadlines(snap, self._deadlines, shared=not promises(self._policy)).due_s,
            rates=None if rates is None else rates.rates,
            rates_from=None if rates is None else rates.origin,
            setup_s=self._setup_s(snap),
        )

    def _setup_s(self, snap: Snapshot) -> F64 | None:
        """Only where it is needed, by the policy or for sizes: it looks at each job's profile."""
        needed = self._policy is not None and "setup_s" in self._policy.about.needs
        if not needed and snap.sizes is None:
            return None
        return setup_s(snap, self._profiles, self._checkpoint_cost_s)

    def _prepare(self, past: Past, snap: Snapshot) -> None:
        """Ask about *snap* what will be asked soon: first answers are slow, and remembered."""
        snap = dataclasses.replace(snap, past=past)
        expected_s(snap)
        if self._policy is not None:
            self._policy.order(snap)


def progress_of(snap: Snapshot) -> F64 | None:
    """``(n,)`` share of its work that each job says it has done; NaN of those that say nothing.

    None if none says anything. `Claim.progress` is checked where comments are read.
    """
    reported = {j: c.progress for j, c in snap.seen.claims.items() if c.progress is not None}
    if not reported:
        return None
    progress = np.full(len(snap.jobs), np.nan)
    row_of = snap.jobs.rows
    for job_id, share in reported.items():
        if job_id in row_of:
            progress[row_of[job_id]] = share
    return progress
