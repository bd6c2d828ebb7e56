"""The answers to ``when``, about a job and about jobs that are not submitted yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final

import numpy as np

from slurm_dl.daemon import published_state
from slurm_dl.daemon.control.privacy import Own
from slurm_dl.daemon.control.reception import RequestError
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.daemon.forecast_service import DEADLINE_S, HORIZON_S, WAIT_S, Forecasts, score_of
from slurm_dl.daemon.published_state import LETTERS, PublishedState, reported_left_s, text_of
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.past_reasons import Sight, moment, why_left_out
from slurm_dl.engine.explain.promise_reasons import commitment_cost
from slurm_dl.engine.preemption.eligibility import waits_for
from slurm_dl.forecast.worker import ForecastError
from slurm_dl.json_types import Json, JsonObject, as_list, number
from slurm_dl.model.contract import DEFAULT_GRACE_S, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import COMPLETED, PENDING, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.simulation.forward.initial_state import (
    HypotheticalJob,
    beginning,
    live_jobs,
    node_mask,
    startable,
)
from slurm_dl.text import in_other_case, safe

QUICK_JOBS_PER_S: Final = 200
"""With more jobs for each second of `within_s` hardly a run comes to its end; nobody waits then."""


def of_job(forecasts: Forecasts, now: PublishedState, name: str, sight: Sight) -> JsonObject:
    """Forecast of start and end of the job called *name*.

    Raises:
        RequestError: There is no such job, or none that may be shown; or no answer.
    """
    snap = _cycle(now).snapshot
    found = job_called(now, name, sight)
    if left_out := snap.seen.left_out.get(found):
        raise RequestError(RefusalKind.NOT_READY, " ".join(why_left_out(left_out)))
    row = snap.jobs.rows[found]
    state = JobState(int(snap.jobs.state[row]))
    why_not = _why_not(snap, row)
    answer: JsonObject = {"jobs": [], "runs": 0, "sources": {}}
    if not why_not:
        answer = answer_of(forecasts, now, jobs=(found,))
    jobs = answer["jobs"]
    one = jobs[0] if isinstance(jobs, list) and jobs else {}
    return {
        "now_s": snap.now_s,
        "job": text_of(snap.seen, found).label,
        "state": LETTERS[state],
        "progress": snap.seen.claim(found).progress,
        "left_s": reported_left_s(snap, row),
        "why_not": why_not or (None if one else _TOO_SLOW),
        **_expected(one),
        **_common(forecasts, answer),
    }


def job_called(now: PublishedState, name: str, sight: Sight) -> JobId:
    """The job called *name* in the last snapshot.

    Raises:
        RequestError: There is no such job, or none that may be shown.
    """
    owner = sight.uid if isinstance(sight, Own) else None
    try:
        found = published_state.find_job(_cycle(now).snapshot.seen, name, owner)
    except ValueError as err:
        raise RequestError(RefusalKind.BAD_REQUEST, str(err)) from None
    if isinstance(found, list):
        msg = published_state.not_listed(now, name, found, owner)
        raise RequestError(RefusalKind.NOT_FOUND, msg)
    return found


def expected_start(forecasts: Forecasts, now: PublishedState, job_id: JobId) -> str:
    """A clause on the start of a job for which Slurm has a plan; empty if none is known at once."""
    snap = _cycle(now).snapshot
    if job_id not in snap.seen.planned:
        return ""
    try:
        answer = answer_of(forecasts, now, jobs=(job_id,), within_s=_BESIDE_S)
    except RequestError:
        return ""
    start = _expected(next(iter(as_list(answer["jobs"])), None))["start"]
    median_s = start["median_s"] if isinstance(start, dict) else None
    return f"slurm_dl expects it at {moment(number(median_s))}" if median_s else ""


_BESIDE_S: Final = 3.0  # So long a forecast may take that nobody asked for by itself


def of_jobs(
    forecasts: Forecasts, now: PublishedState, ids: Sequence[int], sight: Sight
) -> JsonObject:
    """Forecasts of the jobs of *ids* that wait for room and may be shown, from the same runs.

    Raises:
        RequestError: There is no answer.
    """
    snap = _cycle(now).snapshot
    jobs = snap.jobs
    may = startable(snap) & (jobs.state == PENDING) & (jobs.gpus > 0) & np.isin(jobs.job_id, ids)
    if isinstance(sight, Own):
        may &= jobs.uid == sight.uid
    known = tuple(JobId(j) for j in jobs.job_id[may].tolist())
    answer: JsonObject = {"jobs": [], "runs": 0, "sources": {}}
    if known:
        answer = answer_of(forecasts, now, jobs=known)
    told = zip(known, as_list(answer["jobs"]), strict=False)
    return {
        "now_s": snap.now_s,
        "jobs": [{"job_id": job_id, **_expected(one)} for job_id, one in told],
        **_common(forecasts, answer),
    }


def _expected(one: Json) -> JsonObject:
    """The answer's fields of one job or shape; null where the worker has none."""
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
    """The reason why there is no forecast of a job; empty if there can be one."""
    jobs = snap.jobs
    if jobs.state[row] >= COMPLETED:
        return "it is over"
    if not jobs.gpus[row] > 0:
        return "it has no GPUs"
    if jobs.state[row] == PENDING and not startable(snap)[row]:
        return waits_for(snap, row)
    if jobs.state[row] == PENDING:
        return _never(snap, row)
    return ""


def _never(snap: Snapshot, row: int) -> str:
    """The reason why the job at *row* would not start on the empty cluster; empty if it would."""
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


def answer_of(
    forecasts: Forecasts,
    now: PublishedState,
    *,
    jobs: tuple[JobId, ...] = (),
    wanted: tuple[HypotheticalJob, ...] = (),
    within_s: float | None = None,
) -> JsonObject:
    """The worker's answer, within *within_s* seconds; None for the usual time.

    Raises:
        RequestError: There is none, or the queue is too long for *within_s*.
    """
    if within_s is not None and live_jobs(_cycle(now).snapshot.jobs) > QUICK_JOBS_PER_S * within_s:
        msg = f"the queue is too long for a forecast within {within_s:g} s"
        raise RequestError(RefusalKind.FAILED, msg)
    # Who is in a hurry does not wait for the questions of others.
    wait_s, deadline_s = (WAIT_S, DEADLINE_S) if within_s is None else (0.0, within_s)
    try:
        return forecasts.ask(now, jobs=jobs, wanted=wanted, wait_s=wait_s, deadline_s=deadline_s)
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
    within_s: float | None = None,
    uid: int,
    user: str,
) -> JsonObject:
    """Forecasts of jobs of these shapes, each as if it alone were submitted now.

    Each is looked at as a job that has opted in to preemption, and as one that has not.

    Args:
        shapes: ``8`` for 8 GPUs on as few nodes as they fit on, ``2x8`` for 2 nodes with 8 each.
        partition: Empty for the first one that is managed.
        within_s: Run forward for so long, and do not wait for other questions; None for the usual.

    Raises:
        RequestError: There is no such partition or type; the queue is too long for *within_s*; or
            no answer.
    """
    cycle = _cycle(now)
    job = HypotheticalJob(
        gpus=0,
        n_nodes=0,
        partition=0,
        uid=uid,
        user=user,
        name=name,
        limit_s=math.inf if limit_s is None else limit_s,
        contract=usual_contract(now),
    )
    found: list[JsonObject] = []
    wanted: list[HypotheticalJob] = []
    for row, in_shape in shaped(now, shapes, job, partition=partition, gpu_type=gpu_type):
        found.append(row)
        wanted += [] if in_shape is None else [in_shape]
    answer: JsonObject = {"wanted": [], "runs": 0, "sources": {}}
    if wanted:
        # Those without a contract come last: they are left out where time is short.
        without = [replace(job, contract=None) for job in wanted]
        answer = answer_of(forecasts, now, wanted=(*wanted, *without), within_s=within_s)
    outcomes = answer["wanted"]
    told = outcomes if isinstance(outcomes, list) else []
    pairs = zip_longest(wanted, told[: len(wanted)], told[len(wanted) :])
    for row in found:
        asked, one, other = (None, None, None) if row["why_not"] else next(pairs)
        row.update(_expected(one))
        row["no_preempt"] = _expected(other) | _kept(now, asked) if asked and other else None
        row["why_not"] = row["why_not"] or (None if one else _TOO_SLOW)
    rows: list[Json] = list(found)
    return {"now_s": cycle.snapshot.now_s, "shapes": rows, **_common(forecasts, answer)}


def usual_contract(now: PublishedState) -> Contract:
    """As dlsubmit writes it: a job with a longer grace would not be preempted."""
    return Contract(grace_s=min(DEFAULT_GRACE_S, now.config.preemption.max_grace_s))


def shaped(
    now: PublishedState,
    shapes: Sequence[str],
    job: HypotheticalJob,
    *,
    partition: str,
    gpu_type: str,
) -> list[tuple[JsonObject, HypotheticalJob | None]]:
    """The first fields of each shape's answer, and *job* in it; None if it would never start.

    Raises:
        RequestError: There is no such partition or type.
    """
    seen = _cycle(now).snapshot.seen
    where = partition or now.config.manage.partitions[0]
    if where not in seen.partitions:
        known = ", ".join(now.config.manage.partitions)
        msg = f"no partition {safe(where, 80)!r}; those of slurm_dl are {known}"
        raise RequestError(RefusalKind.BAD_REQUEST, msg)
    if gpu_type and gpu_type not in seen.gpu_types:
        msg = f"no GPUs of type {safe(gpu_type, 80)!r}; there are {', '.join(seen.gpu_types)}"
        msg += in_other_case(gpu_type, seen.gpu_types)
        raise RequestError(RefusalKind.BAD_REQUEST, msg)
    at = seen.partitions.index(where)
    kind = seen.gpu_types.index(gpu_type) if gpu_type else -1
    mask = seen.node_in[at] & (seen.nodes.with_type(kind) if kind >= 0 else True)
    sizes = seen.nodes.of_type(kind)[mask]
    found: list[tuple[JsonObject, HypotheticalJob | None]] = []
    for shape in shapes:
        nodes, gpus = _shape(shape, sizes)
        row: JsonObject = {"shape": shape, "gpus": gpus, "n_nodes": nodes, "why_not": None}
        if not nodes:
            row["why_not"] = f"it would never start: no nodes in partition {where} hold it"
            found.append((row, None))
            continue
        one = replace(job, gpus=gpus, n_nodes=nodes, partition=at, gpu_type=kind)
        found.append((row, one))
    return found


def _kept(now: PublishedState, job: HypotheticalJob) -> JsonObject:
    """GPU time that *job* without a contract counts, as nobody can take it back; and its place."""
    cycle = _cycle(now)
    if cycle.settings is None or now.policy is None or cycle.settings.preemption.exempt_accounts:
        return {}  # The job's account is not known.
    snap = beginning(cycle.snapshot, [replace(job, contract=None)])
    cost = commitment_cost(snap, now.policy, cycle.settings, len(snap.jobs) - 1)
    if cost is None:
        return {}
    return {
        "kept_gpu_h": round(cost.gpu_s / 3600, 2),
        "place": cost.place,
        "place_with_contract": cost.place_without,
    }


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
