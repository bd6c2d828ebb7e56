"""Pairs of jobs on one GPU that are slower than they would be taking turns: who is to leave.

By their own words one of the two is the slower, and slower than it would be taking turns. That one
is stopped and put back into the queue as in any preemption, and under all of its limits, but for
nobody: it only has to go. The two models are not paired again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from slurm_dl.engine.preemption.eligibility import protections
from slurm_dl.engine.preemption.new_handovers import next_id, victim_of
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.nodes import SharedGpu
from slurm_dl.model.profile import Profile
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.gpu_packing import PART_BELOW, Models


def split(
    snap: Snapshot, under_way: Collection[Handover], settings: Settings
) -> tuple[list[Handover], dict[JobId, str]]:
    """The hand-overs that part losing pairs, as many as may be begun now, and why, by victim.

    Args:
        under_way: Hand-overs that are open or begun by this decision.
    """
    limits = settings.preemption
    if not settings.placement.pack or not limits.enabled:
        return [], {}
    per_hour = limits.max_gpus_per_hour or math.inf
    left_gpus = per_hour - snap.preempted_gpus_last_hour
    busy = {v.run.job_id for h in under_way for v in h.victims}
    first = next_id(snap, under_way)
    drafts: list[Handover] = []
    notes: dict[JobId, str] = {}
    for losing in losing_pairs(snap, settings.placement.profiles, limits):
        gpus = float(snap.seen.weighted_gpus()[losing.row])
        if len(under_way) + len(drafts) >= limits.max_handovers or gpus > left_gpus:
            break
        if gpus > limits.most_gpus:
            continue
        victim = victim_of(snap, losing.row)
        if victim.run.job_id in busy:
            continue
        left_gpus -= gpus
        notes[victim.run.job_id] = losing.why
        drafts.append(
            Handover(
                handover_id=HandoverId(first + len(drafts)),
                opened_s=snap.now_s,
                beneficiaries=(),
                victims=(victim,),
                nodes=(),
                purpose="split",
                apart=tuple(sorted(losing.models)),
            )
        )
    return drafts, notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Losing:
    """A job that had better not go on beside its neighbour."""

    row: int  # Its row in `Jobs`: by their own words the slower of the two
    models: Models  # Names of the two models, empty for one that has no profile
    why: str  # In words, with both speeds


def losing_pairs(
    snap: Snapshot, profiles: Mapping[str, Profile], limits: Preemption
) -> tuple[Losing, ...]:
    """Of each pair that is slower together than taking turns, the job that is to leave.

    A speed is known by what the job reports and by its model's profile for one GPU of that type. If
    one of the two is known alone, that job leaves if it is slower than taking turns. The job must
    have opted in to preemption, and its lease must be over.

    Source: Gavel, OSDI 2020, after Gandiva, OSDI 2018 (a pair is undone where the sum of relative
    speeds is below 1).
    """
    rows = snap.jobs.rows if snap.seen.shared else {}
    found = (_losing(snap, gpu, rows, profiles, limits) for gpu in snap.seen.shared)
    return tuple(losing for losing in found if losing is not None)


def _losing(
    snap: Snapshot,
    gpu: SharedGpu,
    rows: Mapping[JobId, int],
    profiles: Mapping[str, Profile],
    limits: Preemption,
) -> Losing | None:
    jobs = snap.jobs
    pair = [rows[job_id] for job_id in gpu.jobs if job_id in rows]
    if len(gpu.jobs) != 2 or any(jobs.state[row] != JobState.RUNNING for row in pair):  # noqa: PLR2004
        return None
    gpu_type = snap.seen.gpu_type_on(gpu.node)
    speeds = [_relative_speed(snap, row, profiles, gpu_type) for row in pair]
    known = {row: speed for row, speed in zip(pair, speeds, strict=True) if speed is not None}
    turns = PART_BELOW * len(known) / len(pair)
    if sum(known.values()) >= turns:
        return None
    # Who says less of himself than is true goes himself. If that one may not be stopped nobody is:
    # else a job that cannot be preempted could say what takes its neighbour off the GPU.
    _, _, slower = min((speed, -float(jobs.start_s[row]), row) for row, speed in known.items())
    if why_not_split(snap, slower, limits):
        return None
    named = [profiles.get(snap.seen.claim(job_id).model or "") for job_id in gpu.jobs]
    who = f"jobs {gpu.jobs[0]} and {gpu.jobs[1]} on one GPU reach"
    if len(known) < len(pair):
        who = f"job {jobs.job_id[slower]}, which shares its GPU, reaches"
    return Losing(
        row=slower,
        # By the names of their profiles: a job may give an alias.
        models=frozenset("" if profile is None else profile.name for profile in named),
        why=f"{who} {sum(known.values()):.2f} of the speed of one alone",
    )


def why_not_split(snap: Snapshot, row: int, limits: Preemption) -> str:
    """The reason why the running job at *row* may not be taken off its GPU; empty if it may."""
    rules = protections(snap, np.array([row], dtype=np.int64), limits)
    # The last is that it is part of a hand-over: it may be of its own.
    return next((reason for mask, reason, _ in rules[:-1] if mask[0]), "")


def _relative_speed(
    snap: Snapshot, row: int, profiles: Mapping[str, Profile], gpu_type: str
) -> float | None:
    """The rate that the job reports over that of its model alone on one GPU; None if unknown.

    Both are under the same hints.
    """
    claim = snap.seen.claim(JobId(int(snap.jobs.job_id[row])))
    profile = None if claim.model is None else profiles.get(claim.model)
    alone = None if profile is None else profile.speed(Shape(1, 1), gpu_type, hints=claim.hints)
    if alone is None or claim.rate is None:
        return None
    return claim.rate / alone.steps_per_s
