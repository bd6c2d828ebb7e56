"""The answer to ``promises``: the deadlines that were answered, and how many were kept."""

from __future__ import annotations

import dataclasses

from slurm_dl.daemon.control.privacy import Own
from slurm_dl.daemon.published_state import text_of
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.explain.past_reasons import Sight
from slurm_dl.engine.explain.promise_reasons import spare_s, state_of
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.ids import JobId
from slurm_dl.model.promise import Promise, promises_in, totals_in


def promises_of(cycle: Cycle, sight: Sight) -> JsonObject:
    """Promises of the jobs that may be named, by deadline; the totals only to whom all may be."""
    booked, rows = cycle.booked, cycle.snapshot.jobs.rows
    found = sorted(promises_in(booked).items(), key=lambda one: (one[1].due_s, one[0]))
    totals: Json = None if isinstance(sight, Own) else dataclasses.asdict(totals_in(booked))
    return {
        "now_s": cycle.snapshot.now_s,
        "promises": [_object(cycle, j, rows.get(j), p) for j, p in found if sight.knows(j)],
        "totals": totals,
    }


def _object(cycle: Cycle, job_id: JobId, row: int | None, promise: Promise) -> JsonObject:
    snap, spare = cycle.snapshot, None
    state = state_of(snap, row, promise)
    if row is not None and state in {"waiting", "running"}:
        spare = round(spare_s(snap, row, promise), 1)
    return {
        "job": text_of(snap.seen, job_id).label,
        "job_id": job_id,
        "state": state,
        "spare_s": spare,
        **dataclasses.asdict(promise),
    }
