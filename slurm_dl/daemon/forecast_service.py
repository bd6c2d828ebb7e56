"""The daemon's side of ``when``: one question at a time, answers kept for a snapshot, and a score.

The forward runs are another process' (`forecast.worker`); here is who may ask what, and what is
said.
"""

from __future__ import annotations

import functools
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from slurm_dl.daemon.control.reception import RequestError
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.engine.cycle import Cycle
from slurm_dl.forecast.calibration import ForecastBook
from slurm_dl.forecast.forward_runs import ForecastQuestion
from slurm_dl.forecast.start_time_text import FEW_RUNS
from slurm_dl.forecast.worker import ForecastError, asked_of_worker, run_worker
from slurm_dl.json_types import JsonObject
from slurm_dl.ledger.sqlite.store import StoreError
from slurm_dl.ledger.store_protocol import ForecastRange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import PENDING
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.simulation.forward.initial_state import HypotheticalJob, startable

RUNS: Final = 40
HORIZON_S: Final = 7 * 86400.0
DEADLINE_S: Final = 20.0
WAIT_S: Final = 40.0  # So long one question waits for those before it
FIRST_SAMPLE_S: Final = 60.0  # After the start; soon, so that what it costs is known soon, too
SAMPLE: Final = 10  # So many waiting jobs are predicted so often, for the score alone
_MOST_KEPT: Final = 64

Work = Callable[[bytes, float], JsonObject]


class Forecasts:
    """Forecasts of one daemon, and how good they were; a `Observer`.

    Args:
        work: Runs forward; see `run_worker`.

    Attributes:
        ledger: The ledger in use, where the score is kept; None keeps none.
    """

    def __init__(self, work: Work = run_worker) -> None:
        self.ledger: Callable[[], Ledger] | None = None
        self._work = work
        self._one = threading.Lock()
        self._of: Cycle | None = None
        self._kept: dict[tuple[ForecastQuestion, float], JsonObject] = {}
        self._book: ForecastBook | None = None
        self._outcomes: queue.SimpleQueue[ForecastRange] = queue.SimpleQueue()
        self._began_s = time.monotonic()
        self._sampled_s = -math.inf
        self._sampler: threading.Thread | None = None
        self._random = random.Random(0)  # noqa: S311 - a sample
        self.score = ForecastBook().score
        """How often the last ranges held; replaced as a whole, to be read from any thread."""

    def on_cycle(self, now: PublishedState) -> None:
        """Judge what was said, and say something of some more jobs now and then; see `Observer`.

        How often is ``forecasts.sample_every_s`` of the configuration in force.
        """
        if now.cycle is None:
            return
        if self._book is None:
            try:
                self._book = ForecastBook(self.ledger)
            except StoreError:
                return  # It is read at the next look.
        book = self._book
        while not self._outcomes.empty():
            book.say(self._outcomes.get())
        book.see(now.cycle.snapshot)
        self.score = book.score
        every_s, at_s = now.config.forecasts.sample_every_s, time.monotonic()
        if not every_s or at_s < self._began_s + FIRST_SAMPLE_S:
            return
        if at_s < self._sampled_s + every_s:
            return
        if self._sampler is not None and self._sampler.is_alive():
            return
        self._sampled_s = at_s
        snap = now.cycle.snapshot
        jobs = snap.jobs
        may = startable(snap) & (jobs.gpus > 0) & (jobs.tasks == 1) & snap.managed_jobs
        rows = np.flatnonzero(may)
        ids = [JobId(j) for j in jobs.job_id[rows].tolist() if not book.has(j)]
        if ids:
            chosen = tuple(sorted(self._random.sample(ids, min(SAMPLE, len(ids)))))
            self._sampler = threading.Thread(
                target=self._sample, args=(now, chosen), name="when", daemon=True
            )
            self._sampler.start()

    def _sample(self, now: PublishedState, jobs: tuple[JobId, ...]) -> None:
        try:
            self.ask(now, jobs=jobs, wait_s=0.0, deadline_s=now.config.forecasts.sample_s)
        except (ForecastError, RequestError):
            return

    def ask(
        self,
        now: PublishedState,
        *,
        jobs: tuple[JobId, ...] = (),
        wanted: tuple[HypotheticalJob, ...] = (),
        wait_s: float = WAIT_S,
        deadline_s: float = DEADLINE_S,
    ) -> JsonObject:
        """The worker's forecast of *jobs* and *wanted* in the last snapshot of *now*.

        Args:
            wait_s: So long it waits for the questions before it.
            deadline_s: So long it is run forward.

        Raises:
            RequestError: Others ask, or there is no snapshot.
            ForecastError: The worker failed.
        """
        cycle = now.cycle
        if cycle is None:
            raise RequestError(RefusalKind.NOT_READY, "dlschedd has not seen the cluster yet")
        # Slurm's own scheduler and the daemon's look each have a period.
        blur_s = now.config.daemon.poll_s + 30.0
        question = ForecastQuestion(
            jobs=jobs, wanted=wanted, runs=RUNS, horizon_s=HORIZON_S, blur_s=blur_s
        )
        if not self._one.acquire(timeout=wait_s):
            msg = "others ask for forecasts, and there is one at a time; try again in a minute"
            raise RequestError(RefusalKind.FAILED, msg)
        try:
            if self._of is not cycle:
                self._of, self._kept = cycle, {}
            # What came of less time says less.
            found = self._kept.get((question, deadline_s))
            if found is None:
                content = asked_of_worker(now.config, cycle.snapshot, question, deadline_s)
                found = self._work(content, deadline_s)
                if len(self._kept) < _MOST_KEPT:
                    self._kept[question, deadline_s] = found
        finally:
            self._one.release()
        self._remember(cycle.snapshot, jobs, found)
        return found

    def _remember(self, snap: Snapshot, jobs: Sequence[JobId], found: JsonObject) -> None:
        if int(str(found["runs"])) < FEW_RUNS:
            return
        row_of, answer = snap.jobs.rows, found.get("jobs")
        for job_id, one in zip(jobs, answer if isinstance(answer, list) else [], strict=False):
            row = row_of[job_id]
            # The number of an array's record is the last task's, and the forecast the first one's.
            is_one = snap.jobs.state[row] == PENDING and snap.jobs.tasks[row] == 1
            if not is_one or not isinstance(one, dict):
                continue
            start = one["start"]
            if isinstance(start, dict) and start["low_s"] is not None:
                low_s, median_s, high_s = (
                    float(str(value)) if (value := start[key]) is not None else math.inf
                    for key in ("low_s", "median_s", "high_s")
                )
                self._outcomes.put(
                    ForecastRange(
                        job_id=int(job_id),
                        asked_s=snap.now_s,
                        low_s=low_s,
                        median_s=median_s,
                        high_s=high_s,
                    )
                )


@functools.cache
def forecasts_of_daemon() -> Forecasts:
    """The forecasts of the daemon of this process: one at a time means one object."""
    return Forecasts()


def score_of(forecasts: Forecasts) -> JsonObject:
    """Accuracy of earlier ranges, for an answer."""
    score = forecasts.score
    error_s = score.median_error_s
    return {
        "ranges": score.ranges,
        "held": score.held,
        "median_error_s": None if math.isnan(error_s) else round(error_s, 1),
    }
