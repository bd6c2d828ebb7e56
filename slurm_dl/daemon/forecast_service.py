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
from pathlib import Path
from typing import Final

import numpy as np

from slurm_dl.daemon import published_state
from slurm_dl.daemon.control.privacy import Own
from slurm_dl.daemon.control.socket_server import RequestError
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.daemon.published_state import LETTERS, PublishedState, text_of
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.plan_reasons import Sight
from slurm_dl.engine.preemption.eligibility import WAITS_FOR
from slurm_dl.forecast.calibration import FILE_NAME, ForecastBook, Said
from slurm_dl.forecast.forward_runs import ForecastQuestion
from slurm_dl.forecast.start_time_text import FEW_RUNS
from slurm_dl.forecast.worker import ForecastError, asked_of_worker, run_worker
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, PENDING, Held, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.simulation.forward.initial_state import HypotheticalJob, node_mask, startable
from slurm_dl.text import safe

RUNS: Final = 40
HORIZON_S: Final = 7 * 86400.0
DEADLINE_S: Final = 20.0
WAIT_S: Final = 40.0
"""So long one question waits for those before it."""

FIRST_SAMPLE_S: Final = 60.0
"""After the start; soon, so that what it costs is known soon, too."""

SAMPLE: Final = 10
"""So many waiting jobs are predicted so often, for the score alone."""

_MOST_KEPT: Final = 64

Work = Callable[[bytes, float], JsonObject]


class Forecasts:
    """Forecasts of one daemon, and how good they were; a `Observer`.

    Args:
        state_dir: Where the score is kept.
        work: Runs forward; see `run_worker`.
    """

    def __init__(self, state_dir: Path, work: Work = run_worker) -> None:
        self._work = work
        self._one = threading.Lock()
        self._of: Cycle | None = None
        self._kept: dict[tuple[ForecastQuestion, float], JsonObject] = {}
        self._book = ForecastBook(state_dir / FILE_NAME)
        self._outcomes: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._began_s = time.monotonic()
        self._sampled_s = -math.inf
        self._sampler: threading.Thread | None = None
        self._random = random.Random(0)  # noqa: S311 - a sample
        self.score = self._book.score
        """How often the last ranges held; replaced as a whole, to be read from any thread."""

    def on_cycle(self, now: PublishedState) -> None:
        """Judge what was said, and say something of some more jobs now and then; see `Observer`.

        How often is `forecasts.sample_every_s` of the configuration in force.
        """
        if now.cycle is None:
            return
        while not self._outcomes.empty():
            self._book.say(self._outcomes.get())
        self._book.see(now.cycle.snapshot)
        self.score = self._book.score
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
        may = startable(snap) & (jobs.gpus > 0) & (jobs.tasks == 1) & snap.is_managed()
        rows = np.flatnonzero(may)
        ids = [JobId(j) for j in jobs.job_id[rows].tolist() if not self._book.has(j)]
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
        """What the worker says of *jobs* and *wanted* in the last snapshot of *now*.

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
        row_of, answer = snap.jobs.row_of(), found.get("jobs")
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
                    Said(
                        job_id=int(job_id),
                        asked_s=snap.now_s,
                        low_s=low_s,
                        median_s=median_s,
                        high_s=high_s,
                    )
                )


@functools.cache
def forecasts_of(state_dir: Path) -> Forecasts:
    """The forecasts of the daemon of this process: one at a time means one object."""
    return Forecasts(state_dir)


def score_of(forecasts: Forecasts) -> JsonObject:
    """How good the ranges were, for an answer."""
    score = forecasts.score
    error_s = score.median_error_s
    return {
        "ranges": score.ranges,
        "held": score.held,
        "median_error_s": None if math.isnan(error_s) else round(error_s, 1),
    }


def of_job(forecasts: Forecasts, now: PublishedState, name: str, sight: Sight) -> JsonObject:
    """When the job called *name* starts and ends.

    Raises:
        RequestError: There is no such job, or none that may be shown; or no answer.
    """
    cycle = _cycle(now)
    snap = cycle.snapshot
    try:
        found = published_state.find_job(
            snap.seen, name, sight.uid if isinstance(sight, Own) else None
        )
    except ValueError as err:
        raise RequestError(RefusalKind.BAD_REQUEST, str(err)) from None
    if isinstance(found, list):
        hint = f"; did you mean {' or '.join(found)}?" if found else ": Slurm no longer lists it"
        raise RequestError(RefusalKind.NOT_FOUND, f"no job {name} in the last snapshot{hint}")
    row = snap.jobs.row_of()[found]
    state = JobState(int(snap.jobs.state[row]))
    why_not = _why_not(snap, row)
    answer: JsonObject = {"jobs": [], "runs": 0, "sources": {}}
    if not why_not:
        answer = _answer(forecasts, now, jobs=(found,))
    jobs = answer["jobs"]
    one = jobs[0] if isinstance(jobs, list) and jobs else {}
    return {
        "now_s": snap.now_s,
        "job": text_of(snap.seen, found).label,
        "state": LETTERS[state],
        "why_not": why_not or (None if one else _TOO_SLOW),
        **_expected(one),
        **_common(forecasts, answer),
    }


def _expected(one: Json) -> JsonObject:
    """What an answer tells of one job or shape; nulls where the worker has nothing."""
    answer = one if isinstance(one, dict) else {}
    return {name: answer.get(name) for name in ("start", "end", "until_s")}


_TOO_SLOW = (
    f"the queue is too long for a forward run within {DEADLINE_S:.0f} s; ask again when it is "
    "shorter"
)


def _cycle(now: PublishedState) -> Cycle:
    if now.cycle is None:
        raise RequestError(RefusalKind.NOT_READY, "dlschedd has not seen the cluster yet")
    return now.cycle


def _why_not(snap: Snapshot, row: int) -> str:
    """Why nothing can be said of a job; empty if something can."""
    jobs = snap.jobs
    if jobs.state[row] >= COMPLETED:
        return "it is over"
    if not jobs.gpus[row] > 0:
        return "it has no GPUs"
    if jobs.state[row] == PENDING and not startable(snap)[row]:
        return WAITS_FOR[Held(int(jobs.held[row]))]
    if jobs.state[row] == PENDING:
        return _never(snap, row)
    return ""


def _never(snap: Snapshot, row: int) -> str:
    """Why the job at *row* would not start on the empty cluster; empty if it would."""
    n_nodes = max(1, int(snap.jobs.n_nodes[row]))
    mask = node_mask(snap, row)
    share = float(snap.jobs.gpus[row]) / n_nodes
    fits = mask & (snap.seen.nodes.gpus >= share - 1e-9)
    there = int(np.count_nonzero(fits))
    if there < n_nodes:
        return f"it never starts: {n_nodes} nodes with {share:g} GPUs each, and there are {there}"
    up = int(np.count_nonzero(fits & snap.seen.nodes.up))
    if up < n_nodes:
        return f"it waits for nodes to come up: {n_nodes} are needed, {up} of them are up"
    return ""


def _answer(
    forecasts: Forecasts,
    now: PublishedState,
    *,
    jobs: tuple[JobId, ...] = (),
    wanted: tuple[HypotheticalJob, ...] = (),
) -> JsonObject:
    try:
        return forecasts.ask(now, jobs=jobs, wanted=wanted)
    except ForecastError as err:
        raise RequestError(RefusalKind.FAILED, safe(str(err), 500)) from None


def _common(forecasts: Forecasts, answer: JsonObject) -> JsonObject:
    return {
        "runs": answer["runs"],
        "horizon_s": HORIZON_S,
        "sources": answer["sources"],
        "score": score_of(forecasts),
    }


def of_shapes(
    forecasts: Forecasts,
    now: PublishedState,
    shapes: Sequence[str],
    *,
    partition: str = "",
    gpu_type: str = "",
    limit_s: float | None = None,
    name: str = "",
    uid: int,
    user: str,
) -> JsonObject:
    """When jobs of these shapes would start and end if they were submitted now, each by itself.

    Args:
        shapes: ``8`` for 8 GPUs on as few nodes as they fit on, ``2x8`` for 2 nodes with 8 each.
        partition: Empty for the first one that is managed.

    Raises:
        RequestError: There is no such partition or type; or no answer.
    """
    cycle = _cycle(now)
    seen = cycle.snapshot.seen
    where = partition or now.config.manage.partitions[0]
    if where not in seen.partitions:
        known = ", ".join(now.config.manage.partitions)
        msg = f"no partition {safe(where, 80)!r}; those of slurm_dl are {known}"
        raise RequestError(RefusalKind.BAD_REQUEST, msg)
    if gpu_type and gpu_type not in seen.gpu_types:
        msg = f"no GPUs of type {safe(gpu_type, 80)!r}; there are {', '.join(seen.gpu_types)}"
        raise RequestError(RefusalKind.BAD_REQUEST, msg)
    at, kind = seen.partitions.index(where), -1
    if gpu_type:
        kind = seen.gpu_types.index(gpu_type)
    mask = seen.node_in[at] & ((seen.nodes.gpu_type == kind) if kind >= 0 else True)
    sizes = seen.nodes.gpus[mask]
    found: list[JsonObject] = []
    wanted: list[HypotheticalJob] = []
    for shape in shapes:
        nodes, gpus = _shape(shape, sizes)
        row: JsonObject = {"shape": shape, "gpus": gpus, "n_nodes": nodes, "why_not": None}
        if not nodes:
            row["why_not"] = f"it would never start: no nodes in partition {where} hold it"
        else:
            wanted.append(
                HypotheticalJob(
                    gpus=gpus,
                    n_nodes=nodes,
                    partition=at,
                    uid=uid,
                    user=user,
                    name=name,
                    gpu_type=kind,
                    limit_s=math.inf if limit_s is None else limit_s,
                )
            )
        found.append(row)
    answer: JsonObject = {"wanted": [], "runs": 0, "sources": {}}
    if wanted:
        answer = _answer(forecasts, now, wanted=tuple(wanted))
    outcomes = answer["wanted"]
    left = iter(outcomes if isinstance(outcomes, list) else [])
    for row in found:
        one = None if row["why_not"] else next(left, None)
        row.update(_expected(one))
        row["why_not"] = row["why_not"] or (None if one else _TOO_SLOW)
    rows: list[Json] = list(found)
    return {"now_s": cycle.snapshot.now_s, "shapes": rows, **_common(forecasts, answer)}


def _shape(text: str, sizes: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[int, int]:
    """Nodes and GPUs of a shape; no nodes if those of *sizes* GPUs cannot hold it."""
    first, x, second = text.partition("x")
    if x:
        nodes, each = int(first), int(second)
        fits = nodes and each and np.count_nonzero(sizes >= each) >= nodes
        return nodes if fits else 0, nodes * each
    gpus = int(first)
    for nodes in range(1, min(gpus, len(sizes)) + 1):
        if gpus % nodes == 0 and np.count_nonzero(sizes >= gpus // nodes) >= nodes:
            return nodes, gpus
    return 0, gpus
