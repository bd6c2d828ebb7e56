"""Queries of Slurm's accounting about runs that the daemon has missed.

Asked is only about jobs that the ledger marks as incomplete: of those there are many after the
loss of a ledger, some after an outage, and none in an ordinary poll. An accounting that does not
answer, or does not know yet, is asked again after ever longer pauses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from structlog.typing import FilteringBoundLogger

from slurm_dl.backoff import Backoff
from slurm_dl.ledger.rebuild_from_accounting import SETTLED, Rebuilt, rebuild
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.snapshot import Observed
from slurm_dl.slurm.accounting.job_runs import Accounting, Told
from slurm_dl.slurm.accounting.query import NoAccountingError

LEAST_PAUSE_S = 60.0
"""Between two questions, whatever is missing: jobs that flap must not make it one a poll."""

LONGEST_PAUSE_S = 3600.0
PAUSES = Backoff(LEAST_PAUSE_S, 2.0, LONGEST_PAUSE_S)

MISSED = "runs that nobody saw are not counted, such jobs rank too high"


class LedgerRecovery:
    """Completes a ledger out of accounting, now and then.

    Args:
        accounting: Slurm's accounting; None: it is not asked, and nothing is said of it.
        log: For people.
        within_s: A question takes no longer than this, seconds.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        accounting: Accounting | None,
        log: FilteringBoundLogger,
        *,
        within_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accounting = accounting
        self._log = log
        self._within_s = within_s
        self._clock = clock
        self._asked_s = -math.inf
        self._failures = 0
        self._pause_s = LEAST_PAUSE_S
        self._vain: dict[int, tuple[int, float]] = {}
        """Jobs about which accounting had not all to say when it was last asked: how often in a
        row, and until when each rests."""

    def complete(self, ledger: Ledger, seen: Observed) -> None:
        """Restore what *ledger* lacks about the jobs *seen*, if it is time to ask."""
        if self._accounting is None or not ledger.service.incomplete.any():
            return
        missing = _incomplete(ledger, seen)
        self._vain = {job_id: self._vain[job_id] for job_id in missing if job_id in self._vain}
        due = self._due(missing)
        if not due:
            return
        self._asked_s = self._clock()
        try:
            answer = self._accounting.runs(due, within_s=self._within_s)
        except ClusterError as err:
            self._failed(err, jobs=len(due))
            return
        rebuilt = rebuild(ledger.service, seen, answer.runs, answer.asked)
        ledger.restore(rebuilt.service, rebuilt.ended)
        self._succeeded(answer, rebuilt, left=len(due) - len(answer.asked))

    def _due(self, jobs: Sequence[int]) -> list[int]:
        now_s = self._clock()
        if now_s - self._asked_s < self._pause_s:
            return []
        return [j for j in jobs if j not in self._vain or self._vain[j][1] <= now_s]

    def _failed(self, err: ClusterError, *, jobs: int) -> None:
        never = isinstance(err, NoAccountingError)
        self._failures += 1
        self._pause_s = LONGEST_PAUSE_S if never else PAUSES.pause_s(self._failures)
        say = self._log.warning if self._failures == 1 else self._log.debug
        event = "no accounting" if never else "accounting does not answer"
        say(event, error=str(err), jobs=jobs, because=MISSED, next_in_s=round(self._pause_s))

    def _succeeded(self, answer: Told, rebuilt: Rebuilt, *, left: int) -> None:
        known_vain = rebuilt.short <= self._vain.keys()
        self._failures, self._pause_s = 0, LEAST_PAUSE_S
        now_s = self._clock()
        for job_id in answer.asked:
            times, _ = self._vain.pop(job_id, (0, 0.0))
            if job_id in rebuilt.short:
                self._vain[job_id] = times + 1, now_s + PAUSES.pause_s(times + 1)
        restored = len(rebuilt.service) - len(rebuilt.short)
        quiet = not restored and known_vain and not left
        say = self._log.debug if quiet else self._log.info
        say(
            "rebuilt from accounting",
            jobs=restored,
            runs=len(rebuilt.ended),
            gpus_as_asked_for_now=len(rebuilt.gpus_unknown),
            told_too_little=len(rebuilt.short),
            unreadable=answer.unreadable,
            left=left,
        )


def _incomplete(ledger: Ledger, seen: Observed) -> list[int]:
    """Jobs in the queue of which something is missing, in order of job id."""
    service = ledger.service
    there = seen.jobs.job_id[np.isin(seen.jobs.state, SETTLED)]
    missing = service.incomplete & np.isin(service.job_id, there)
    return [int(job_id) for job_id in service.job_id[missing]]
