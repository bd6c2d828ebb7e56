"""Rows of the ledger rebuilt from what Slurm's accounting tells of a job's runs.

For jobs of which the ledger has missed something: it was lost, a run began and was requeued while
nobody looked, or the job had run before it was first seen. Accounting tells each run with its
times and GPUs. It does not tell who requeued a job, nor what was forgiven or tried for it; what
cannot be known is taken so that the job is rather spared than preempted once more.

Not a hot path: only jobs that were missed come here, few of them but after the loss of a ledger.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_dl.ledger.attained_service import DTYPES, HOLDS, AttainedService, EndedRun
from slurm_dl.model.jobs import Held, Jobs, JobState
from slurm_dl.model.snapshot import Observed

SETTLED = (*HOLDS, JobState.PENDING, JobState.CONFIGURING)
"""States in which a job can be rebuilt. While it completes, Slurm tells its requeue by halves
(22.05.8: the new restart count with the old submit time); once it is over nobody asks."""

SAME_S = 1.0
"""Instants this close are one: Slurm counts whole seconds, and a requeued job is submitted up to
one second after the end of its run (measured on 22.05.8, 24.11.5, 26.05.5)."""

LONGEST_KNOWN_S = 86_400.0
"""A job that ended by itself can be requeued as long as Slurm remembers it (MinJobAge, 300 s if not
set). What begins a day later under the same id is another job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """One record of accounting: a run, a part of one, or a wait that led to none.

    Attributes:
        eligible_s: From when on it was free to start, epoch seconds; 0 if that is not known.
        elapsed_s: Seconds from start to end, or to when accounting was asked, without those in
            which it was suspended.
    """

    job_id: int
    uid: int
    submit_s: float  # Submission or requeue that led to it, epoch seconds
    start_s: float  # Epoch seconds; 0 if it never started
    end_s: float  # Epoch seconds; 0 if it is not over
    elapsed_s: float
    eligible_s: float = 0.0
    suspended_s: float = 0.0  # Seconds in which it was suspended
    gpus: float | None = None  # GPUs it held; None where accounting does not record them
    is_suspended: bool = False  # It is suspended now
    is_part: bool = False  # The run goes on, resized, in the record after this one
    is_requeued: bool = False  # It ended because the job was put back into the queue, by whomever


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """New rows of the jobs that accounting was asked about.

    Attributes:
        gpus_unknown: Jobs whose GPUs accounting does not record; they were counted with those they
            ask for now.
        short: Jobs of which accounting has fewer runs than Slurm has restarts. They have had at
            least what their row says, and stay incomplete.
    """

    service: AttainedService  # Their rows as they are now to be, in order of job id
    ended: tuple[EndedRun, ...]  # Their runs that are over
    gpus_unknown: frozenset[int]
    short: frozenset[int]


@dataclass(slots=True)
class _Run:
    """The records of one run together."""

    records: list[ReportedRun]

    @property
    def submit_s(self) -> float:
        return self.records[0].submit_s

    @property
    def start_s(self) -> float:
        return self.records[0].start_s

    @property
    def end_s(self) -> float:
        return self.records[-1].end_s

    @property
    def gpus_known(self) -> bool:
        return all(r.gpus is not None for r in self.records if r.start_s)

    def served(self, *, up_to_s: float, gpus: float) -> tuple[float, float]:
        """Seconds and GPU-seconds of service.

        Args:
            up_to_s: Where it is counted to if it is not over, epoch seconds.
            gpus: What it held where accounting does not tell.
        """
        ran_s = gpu_s = before_s = 0.0
        for record in self.records:
            if not record.start_s:
                continue
            # On 22.05.8 the record after a resize has the start of the whole run (measured).
            told_twice_s = max(0.0, before_s - record.start_s)
            elapsed_s = record.elapsed_s
            if not record.end_s and not record.is_suspended:
                # By now, not by when accounting was asked.
                elapsed_s = up_to_s - record.start_s - record.suspended_s
            part_s = max(0.0, elapsed_s - told_twice_s)
            ran_s += part_s
            gpu_s += part_s * (gpus if record.gpus is None else record.gpus)
            before_s = record.end_s
        return ran_s, gpu_s


@dataclass(frozen=True, slots=True)
class _Chain:
    """The runs of one job up to now, oldest first."""

    earlier: list[_Run]  # Runs before the present one
    present: _Run | None  # The run, or the wait, under way; None if accounting does not know it yet
    complete: bool  # There are as many earlier ones as restarts

    @property
    def known(self) -> list[_Run]:
        return self.earlier if self.present is None else [*self.earlier, self.present]

    @property
    def gpus_known(self) -> bool:
        return all(run.gpus_known for run in self.known)


def chain_of(records: Iterable[ReportedRun], *, uid: int, submit_s: float, restarts: int) -> _Chain:
    """The runs that lead to the present state of a job.

    Ids are used again after a reset of a cluster. So only records of the same user count, of those
    only the *restarts* runs just before the present one, and none before a gap that no requeue
    explains.

    Args:
        records: Everything accounting has under this job id, in any order.
        submit_s: The job's present submit time, which a requeue sets anew, epoch seconds.
    """
    of_user = sorted(
        (r for r in records if r.uid == uid), key=lambda r: (r.submit_s, r.end_s or np.inf)
    )
    runs: list[_Run] = []
    is_open = False
    for record in of_user:
        if is_open:
            runs[-1].records.append(record)
        else:
            runs.append(_Run([record]))
        is_open = record.is_part
    runs = [run for run in runs if run.submit_s <= submit_s + SAME_S]
    present = None
    if runs:
        away_s = submit_s - runs[-1].submit_s
        # A run that has just been requeued may be as near; only one that is not over is this one.
        if not away_s or (away_s <= SAME_S and not runs[-1].end_s):
            present = runs.pop()
    earlier = _of_one_job(runs[-restarts:], submit_s) if restarts else []
    return _Chain(earlier, present, complete=len(earlier) == restarts)


def _of_one_job(runs: list[_Run], submit_s: float) -> list[_Run]:
    """Those of *runs* after the last that cannot have led to the next one.

    Args:
        submit_s: What the last of them led to.
    """
    for i in reversed(range(len(runs))):
        next_s = runs[i + 1].submit_s if i + 1 < len(runs) else submit_s
        is_requeued, end_s = runs[i].records[-1].is_requeued, runs[i].end_s
        if end_s and not is_requeued and next_s - end_s > LONGEST_KNOWN_S:
            return runs[i + 1 :]
    return runs


def rebuild(
    service: AttainedService, seen: Observed, runs: Sequence[ReportedRun], asked: Collection[int]
) -> Rebuilt:
    """The rows of the jobs *asked* about, as they would be had nothing been missed.

    Where accounting has every run with its GPUs, the service is what it says. Else what the ledger
    has counted is never made less: records may have been purged, or be still on their way.

    Args:
        service: The ledger after it has booked *seen*.
        seen: The cluster now.
        runs: Records of accounting; those of other jobs are passed over.
        asked: Ids of jobs in the ledger. Those that are not `SETTLED` are passed over.
    """
    records: defaultdict[int, list[ReportedRun]] = defaultdict(list)
    for record in runs:
        records[record.job_id].append(record)
    jobs = seen.jobs
    wanted = np.isin(jobs.job_id, list(asked)) & np.isin(jobs.job_id, service.job_id)
    wanted &= np.isin(jobs.state, SETTLED)
    places = np.flatnonzero(wanted)
    places = places[np.argsort(jobs.job_id[places], kind="stable")]
    rows = service.rows_of(jobs.job_id[places])
    columns = {name: column[rows].copy() for name, column in service.columns().items()}
    ended: list[EndedRun] = []
    gpus_unknown: set[int] = set()
    short: set[int] = set()
    weighted = seen.weighted_gpus()
    weight = weighted / np.maximum(jobs.gpus, np.finfo(np.float64).tiny)
    jobs = dataclasses.replace(jobs, gpus=weighted)
    for k, i in enumerate(places.tolist()):
        job_id, gpus = int(jobs.job_id[i]), float(jobs.gpus[i])
        if seen.weights:
            # Of earlier runs it is not told which type they had: as if it were that of this one.
            records[job_id] = [
                dataclasses.replace(run, gpus=run.gpus and run.gpus * float(weight[i]))
                for run in records[job_id]
            ]
        chain = chain_of(
            records[job_id],
            uid=int(jobs.uid[i]),
            submit_s=float(jobs.submit_s[i]),
            restarts=int(jobs.restarts[i]),
        )
        row = {name: column[k].item() for name, column in columns.items()}
        ended += _fill(row, chain, jobs, i, now_s=seen.now_s)
        for name, value in row.items():
            columns[name][k] = value
        if gpus and not chain.gpus_known:
            gpus_unknown.add(job_id)
        if row["incomplete"]:
            short.add(job_id)
    return Rebuilt(
        service=AttainedService(**{name: columns[name] for name in DTYPES}),
        ended=tuple(ended),
        gpus_unknown=frozenset(gpus_unknown),
        short=frozenset(short),
    )


@dataclass(frozen=True, slots=True)
class _Had:
    """Sums over the earlier runs."""

    ran_s: float
    gpu_s: float
    first_run_s: float
    last_end_s: float
    ended: tuple[EndedRun, ...]


def _had(chain: _Chain, *, job_id: int, submit_s: float, gpus: float) -> _Had:
    ran_s = gpu_s = first_run_s = last_end_s = 0.0
    ended = []
    submits = [run.submit_s for run in chain.earlier[1:]] + [submit_s]
    for run, next_submit_s in zip(chain.earlier, submits, strict=False):
        if not run.start_s:
            continue
        # Where its end never reached accounting, it was over when the job was submitted anew.
        end_s = run.end_s or next_submit_s
        run_s, run_gpu_s = run.served(up_to_s=end_s, gpus=gpus)
        first_run_s = first_run_s if ran_s else run.start_s
        ran_s += run_s
        gpu_s += run_gpu_s
        last_end_s = max(last_end_s, end_s)
        ended.append(EndedRun(job_id=job_id, start_s=run.start_s, end_s=end_s, gpu_s=run_gpu_s))
    return _Had(ran_s, gpu_s, first_run_s, last_end_s, tuple(ended))


def _fill(
    row: dict[str, float], chain: _Chain, jobs: Jobs, i: int, *, now_s: float
) -> tuple[EndedRun, ...]:
    """Put what *chain* tells of the job at *i* into its *row*; its runs that are over."""
    gpus, state = float(jobs.gpus[i]), JobState(int(jobs.state[i]))
    submit_s, start_s = float(jobs.submit_s[i]), float(jobs.start_s[i])
    had = _had(chain, job_id=int(row["job_id"]), submit_s=submit_s, gpus=gpus)
    ran_s, gpu_s, first_run_s = had.ran_s, had.gpu_s, had.first_run_s
    row["incomplete"] = not chain.complete
    # The ledger first saw the job after a requeue.
    if chain.earlier and row["first_submit_s"] > chain.earlier[0].submit_s + SAME_S:
        _spare(row, chain)
    if chain.earlier and row["queued_s"] > chain.earlier[0].start_s > 0:
        # The ledger did not see that run.
        first = chain.earlier[0].records[0]
        row["queued_s"] = min(max(first.submit_s, first.eligible_s), first.start_s)
    if chain.complete and chain.gpus_known:
        # All is told. What the ledger counted of a run it saw late is more by its suspensions.
        row["ran_s"] = row["attained_gpu_s"] = row["run_gpu_s"] = 0.0
    if chain.known:
        row["first_submit_s"] = min(row["first_submit_s"], chain.known[0].submit_s)
    if state in HOLDS and start_s > 0:
        first_run_s = first_run_s if ran_s else start_s
        if chain.present and chain.present.start_s:
            run_s, run_gpu_s = chain.present.served(up_to_s=now_s, gpus=gpus)
        elif state is JobState.RUNNING:
            run_s, run_gpu_s = now_s - start_s, (now_s - start_s) * gpus
        else:
            run_s, run_gpu_s, row["incomplete"] = 0.0, 0.0, True
        ran_s += min(run_s, now_s - start_s)
        row["run_gpu_s"] = max(row["run_gpu_s"], run_gpu_s)
        gpu_s += row["run_gpu_s"]
    else:
        _wait(row, chain, had, now_s=now_s, held=jobs.held[i] != Held.NO)
    row["ran_s"] = max(row["ran_s"], ran_s)
    row["attained_gpu_s"] = max(row["attained_gpu_s"], gpu_s)
    # Forgiven may have been what it never had: a suspension that was taken for service.
    row["forgiven_ran_s"] = min(row["forgiven_ran_s"], row["ran_s"])
    row["forgiven_gpu_s"] = min(row["forgiven_gpu_s"], row["attained_gpu_s"])
    if first_run_s and not row["forgiven_ran_s"]:
        row["first_run_s"] = min(row["first_run_s"] or first_run_s, first_run_s)
    return had.ended


def _wait(row: dict[str, float], chain: _Chain, had: _Had, *, now_s: float, held: bool) -> None:
    """Since when a job has been waiting that is not running."""
    eligible_s = chain.present.records[0].eligible_s if chain.present else 0.0
    if held:
        row["waiting_since_s"] = now_s
    elif had.last_end_s:
        since_s = max(row["waiting_since_s"], had.last_end_s, eligible_s)
        row["waiting_since_s"] = min(since_s, now_s)
    elif chain.complete:
        row["waiting_since_s"] = min(max(row["first_submit_s"], eligible_s), now_s)


def _spare(row: dict[str, float], chain: _Chain) -> None:
    """Take each requeue before the ledger knew the job for a preemption of ours."""
    unseen = [
        run.end_s
        for run in chain.earlier
        if run.records[-1].is_requeued and run.start_s and run.end_s <= row["first_submit_s"]
    ]
    row["preemptions"] += len(unseen)
    row["last_preempted_s"] = max([row["last_preempted_s"], *unseen])
