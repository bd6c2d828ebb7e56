"""The ledger's side of a snapshot: what Slurm forgets, row by row beside its jobs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from slurm_dl.model.jobs import F64, I16, I32, I64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Remembered:
    """What the ledger adds to each job, as columns beside `Jobs` (n rows, same order).

    Attributes:
        waiting_since_s: ``(n,)`` end of the last run, or the first submit, epoch seconds; for a job
            that is held, or waits for something else than room, about now.
        queued_s: ``(n,)`` its place in the queue: when it could last have started for the first
            time, not held by anybody, without a dependency or a begin time ahead, epoch seconds; of
            a job that may not yet, now. Empty: *first_submit_s*, as in older recordings.
        preemptions: ``(n,)`` int32, how often we have requeued it; where Slurm itself preempts,
            how often it was requeued by anybody.
        last_preempted_s: ``(n,)`` when we last did, epoch seconds; 0 if never. Where Slurm itself
            preempts, for a job that was requeued, the start of its run.
        fruitless: ``(n,)`` int32, hand-overs for it since it last ran after which it did not start.
        first_run_s: ``(n,)`` start of its first run, or of the first after its service was last
            forgiven, epoch seconds; 0 before any.
    """

    attained_gpu_s: F64  # ``(n,)`` GPU-seconds received so far over all runs
    ran_s: F64  # ``(n,)`` wall seconds run so far over all runs
    forgiven_gpu_s: F64  # ``(n,)`` attained service that a promotion took out of the ranking
    forgiven_ran_s: F64  # ``(n,)`` run time that a promotion took out of the ranking
    first_run_s: F64
    first_submit_s: F64  # ``(n,)`` submit time before any requeue, epoch seconds
    waiting_since_s: F64
    preemptions: I32
    last_preempted_s: F64
    fruitless: I32
    last_fruitless_s: F64  # ``(n,)`` end of the last of those, epoch seconds; 0 if none
    site_factor: I64  # ``(n,)`` int64, the SiteFactor last written; 0 if none
    tier: I16  # ``(n,)`` int16, its tier in the last order; -1 if it is new or that is not kept
    place: F64  # ``(n,)`` its place in the last order; 0 if it is new or that is not kept
    queued_s: F64 = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if not len(self.queued_s):
            object.__setattr__(self, "queued_s", self.first_submit_s)
        lengths = {f.name: len(getattr(self, f.name)) for f in dataclasses.fields(self)}
        if len(set(lengths.values())) > 1:
            msg = f"ledger columns differ in length: {lengths}"
            raise ValueError(msg)
        for name in lengths:
            getattr(self, name).setflags(write=False)
