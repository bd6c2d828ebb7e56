"""Estimates about jobs, added to the ledger's snapshot before each decision.

How far jobs say they are, in which sizes they can run, when they are due, how long jobs like them
took, how fast their models are on which GPUs; each with where it is from, so that a policy can tell
a measurement from a guess.
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from structlog.typing import FilteringBoundLogger

from slurm_dl.daemon.replica_counts import ReplicaCount
from slurm_dl.engine.preemption.stopping_cost import setup_s
from slurm_dl.engine.promise_terms import counted_deadlines, promises
from slurm_dl.engine.settings import Deadlines, Preemption
from slurm_dl.estimates.remaining_time import left_of
from slurm_dl.estimates.similar_jobs import expected_s
from slurm_dl.estimates.size_speeds import sizes_of
from slurm_dl.estimates.training_speed import SitePriors, rates_of_jobs
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.jobs import F64
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.slurm.accounting.past_jobs import PastReader
from slurm_dl.slurm.accounting.query import NoAccountingError

LONGEST_PAUSE_S = 600.0
"""After a read that failed the next one comes no later than this, if it may come at all."""

FIRST_WAIT_S = 10.0  # The first look waits for so long, so that a first plan need not do without
NO_HISTORY = "run times are not predicted from history"


class HistoryCache:
    """The jobs that are over, read again now and then, beside the loop: no cycle waits for it.

    A read runs in a thread of its own. Until it is done, and when it fails, what was read last
    stands.

    Args:
        reader: Reads them; called by one thread at a time.
        log: For people.
        every_s: Seconds from one read to the next.
        clock: Seconds that only go forward.
        first_wait_s: The first look waits for the first read so long, seconds.
    """

    def __init__(
        self,
        reader: PastReader,
        log: FilteringBoundLogger,
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._reader = reader
        self._log = log
        self._every_s = every_s
        self._clock = clock
        self._wait_s = first_wait_s
        self._past = NO_PAST
        self._next_s = -math.inf
        self._thread: threading.Thread | None = None
        self._failing = False

    def look(self, prepare: Callable[[Past], None] = lambda _: None) -> Past:
        """The jobs that are over, as of the last read; begins another one if it is time to.

        Args:
            prepare: Called with what a read that begins now finds, before anybody else sees it,
                in the thread that reads.
        """
        if self._clock() >= self._next_s and (self._thread is None or not self._thread.is_alive()):
            self._next_s = self._clock() + self._every_s
            # It only reads: the process need not wait for it to end.
            self._thread = threading.Thread(
                target=self._read, args=(prepare,), name="history", daemon=True
            )
            self._thread.start()
            self._thread.join(self._wait_s)
            self._wait_s = 0.0
        return self._past

    def wait(self, within_s: float) -> None:
        """Wait for a read that is under way, seconds at most."""
        if self._thread is not None:
            self._thread.join(within_s)

    def _read(self, prepare: Callable[[Past], None]) -> None:
        began_s = self._clock()
        try:
            past = self._reader.read()
            prepare(past)
        except ClusterError as err:
            self._failed(err)
        except Exception as err:  # noqa: BLE001 - see below
            # The thread must not end without a word, nor with it all later reads.
            self._log.exception("bug in reading history", because=NO_HISTORY)
            self._failed(err)
        else:
            news = self._failing or not len(self._past) or not len(past)
            self._past, self._failing = past, False
            say = self._log.info if news else self._log.debug
            say(
                "history read from accounting",
                jobs=len(past),
                users=len(past.users),
                took_s=round(self._clock() - began_s, 1),
            )

    def _failed(self, err: Exception) -> None:
        never = isinstance(err, NoAccountingError)
        if not never:
            self._next_s = min(self._next_s, self._clock() + LONGEST_PAUSE_S)
        first, self._failing = not self._failing, True
        say = self._log.warning if first else self._log.debug
        say(
            "no accounting" if never else "accounting does not answer",
            error=str(err),
            because=NO_HISTORY if not len(self._past) else "the history read last is kept",
            jobs=len(self._past),
            next_in_s=round(self._next_s - self._clock()),
        )


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
        services: Services of the site.
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
        services: Sequence[ReplicaCount] = (),
    ) -> None:
        self._history = history
        self._policy = policy
        self._profiles = profiles
        self._site = site
        self._checkpoint_cost_s = checkpoint_cost_s
        self._deadlines = deadlines
        self.services = services

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
        shared = not promises(self._policy)
        counted = counted_deadlines(snap, self._deadlines, shared=shared)
        return dataclasses.replace(
            snap,
            left_s=left.seconds,
            left_from=left.origin,
            due_s=counted.due_s,
            curves=counted.curves,
            rates=None if rates is None else rates.rates,
            rates_from=None if rates is None else rates.origin,
            setup_s=self._setup_s(snap),
            services=tuple(service.look(snap) for service in self.services),
        )

    def go_on(self, before: Enricher) -> None:
        """Keep the counts of *before*: the rates of its services may be unknown now."""
        known = {count.name: count for count in before.services}
        for count in self.services:
            count.go_on(known.get(count.name, count))

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
