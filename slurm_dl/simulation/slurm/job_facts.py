"""What is known of the jobs on a simulated Slurm: the same that the ideal cluster tells."""

from __future__ import annotations

import dataclasses

import numpy as np

from slurm_dl.engine.preemption.setup_cost import setup_s
from slurm_dl.engine.settings import Preemption
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.estimate_origin import Origin
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, RUNNING, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.job_knowledge import NOTHING, TraceKnowledge, TraceTexts, past_of
from slurm_dl.simulation.slurm.job_columns import JobColumns
from slurm_dl.simulation.slurm.simulated_cluster import FIRST_JOB_ID


class JobFacts:
    """Adds to a snapshot how long its jobs have left, their names, and the jobs that are over.

    Args:
        jobs: The jobs of the simulated Slurm.
        needs: What the policy needs, see `About.needs`.
        epoch_s: Epoch seconds of the trace's zero.
    """

    def __init__(
        self,
        trace: Trace,
        jobs: JobColumns,
        *,
        needs: tuple[str, ...],
        epoch_s: float,
        known: TraceKnowledge = NOTHING,
    ) -> None:
        self._trace, self._jobs, self._epoch_s, self._known = trace, jobs, epoch_s, known
        self._remembers = bool({"accounts", "history"} & set(needs))
        self._measures = "setup_s" in needs
        self._texts = TraceTexts(trace)
        self._past = NO_PAST

    def __call__(self, snap: Snapshot) -> Snapshot:
        """*snap* with all that is known."""
        row = snap.jobs.job_id - FIRST_JOB_ID
        need_s = self._jobs.need_s[row]
        done_s = np.clip(self._worked_s(row, snap.now_s - self._epoch_s), 0.0, need_s)
        known, foreseen = self._known, self._known.foreseen_s is not None
        more = dataclasses.replace(
            snap,
            left_s=known.left_s(row, done_s, need_s - done_s),
            left_from=np.full(len(row), Origin.HISTORY if foreseen else Origin.KNOWN, np.int8),
            progress=done_s / need_s,
            due_s=None if known.due_s is None else known.due_s[row] + self._epoch_s,
            rates=None if known.rates is None else known.rates[row],
            past=self._so_far() if self._remembers else NO_PAST,
            setup_s=setup_s(snap, {}, Preemption().checkpoint_cost_s) if self._measures else None,
        )
        if not (self._remembers or known.texts):
            return more
        texts = {JobId(r + FIRST_JOB_ID): self._texts[JobId(r)] for r in row.tolist()}
        return dataclasses.replace(more, seen=dataclasses.replace(snap.seen, texts=texts))

    def _worked_s(self, row: I64, now_s: float) -> F64:
        """``(len(row),)`` work done by the jobs, as far as a run under way has got, too."""
        jobs = self._jobs
        done_s = jobs.saved_s[row]
        runs = (jobs.state[row] == RUNNING).nonzero()[0]
        # Work that has not been stopped goes on until now.
        until_s = np.fmin(jobs.stopped_s[row[runs]], now_s)
        done_s[runs] += np.maximum(until_s - jobs.work_from_s[row[runs]], 0.0)
        return done_s

    def _so_far(self) -> Past:
        """The jobs that are over; told anew when there are more."""
        jobs = self._jobs
        rows = np.isin(jobs.state, (JobState.COMPLETED, JobState.FAILED)).nonzero()[0]
        rows = rows[np.argsort(jobs.end_s[rows], kind="stable")]
        if len(rows) == len(self._past):
            return self._past
        self._past = past_of(
            self._trace,
            rows,
            gpus=jobs.gpus[rows],
            submit_s=jobs.first_submit_s[rows] + self._epoch_s,
            start_s=jobs.first_start_s[rows] + self._epoch_s,
            end_s=jobs.end_s[rows] + self._epoch_s,
            ran_s=np.maximum(jobs.service_gpu_s[rows] / jobs.gpus[rows], 1e-3),
        )
        return self._past
