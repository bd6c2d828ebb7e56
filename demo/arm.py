"""One arm: submit the workload on time, watch it to its end, remember what was seen.

Under plain Slurm the watching asks squeue, with slurm_dl it asks dlschedd's control socket and
reads its audit log, as dlqueue and an admin would.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ClusterShell.NodeSet import NodeSet

from demo import logs
from demo.frames import Event, Frame, Row, Strip
from demo.site import Daemon, Site, SlurmJob
from demo.workload import Training, Workload
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import ClusterError, SlurmDlError

LOOK_EVERY_S = 0.5
_HOLDING = ("R", "CG", "CF", "S")
_SHOWN_JOBS = 3

SETTLE_S = 2.0
"""After a job is seen back in the queue: its last run has ended by then, and the next one cannot
have begun, as Slurm holds a requeued job for cred_expire + 1 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What was seen of an arm that has ended.

    Attributes:
        submitted: Job id of each training, by name.
        slurm: Every job by Slurm's last word on it.
        between: For each job and restart count, how it stood before that run began.
        signals: For each job, when dlschedd signalled it, epoch seconds.
        unfinished: Why the arm was ended before its jobs were; empty if they were.
    """

    submitted: dict[str, int]
    slurm: dict[int, SlurmJob]
    between: dict[tuple[int, int], logs.Between]
    signals: dict[int, list[float]]
    unfinished: str


class Arm:
    """One arm of the comparison.

    Args:
        name: For people.
        directory: Name of its directory below the site's.
        daemon: None for plain Slurm.
        show: Called with each frame.
    """

    def __init__(
        self,
        name: str,
        directory: str,
        site: Site,
        workload: Workload,
        *,
        daemon: Daemon | None,
        show: Callable[[Frame], None],
    ) -> None:
        self._name = name
        self._directory = directory
        self._site = site
        self._workload = workload
        self._daemon = daemon
        self._show = show
        self._trainings = {job.name: job for job in workload.jobs}
        self._submitted: dict[str, int] = {}
        self._refused: SlurmDlError | None = None
        self._stop = threading.Event()
        self._began_s = 0.0
        self._strip = Strip()
        self._events: list[Event] = []
        self._states: dict[int, str] = {}
        self._back_since_s: dict[tuple[int, int], float] = {}
        self._between: dict[tuple[int, int], logs.Between] = {}
        self._resumed: set[tuple[int, int]] = set()
        self._signals: dict[int, list[float]] = {}
        self._audit_read = 0

    def run(self) -> Watched:
        """Play the whole workload.

        Raises:
            SlurmDlError: A job could not be submitted, Slurm or dlschedd is gone.
        """
        self._began_s = time.time()
        submitter = threading.Thread(target=self._submit_all, name="submitter")
        submitter.start()
        try:
            unfinished = self._watch()
        finally:
            self._stop.set()
            submitter.join()
        return Watched(
            submitted=dict(self._submitted),
            slurm=self._site.jobs(),
            between=self._between,
            signals=self._signals,
            unfinished=unfinished,
        )

    def _submit_all(self) -> None:
        try:
            for job in self._workload.jobs:
                due_s = self._began_s + job.arrive_s
                if self._stop.wait(max(0.0, due_s - time.time())):
                    return
                self._submitted[job.name] = self._site.submit(job, self._directory)
        except SlurmDlError as err:
            self._refused = err

    def _watch(self) -> str:
        while True:
            began_s = time.monotonic()
            if self._refused is not None:
                raise self._refused
            rows = self._look()
            over = sum(row.state not in {"PD", *_HOLDING} for row in rows)
            at_s = time.time() - self._began_s
            self._show(
                Frame(
                    arm=self._name,
                    at_s=at_s,
                    jobs=len(self._trainings),
                    rows=rows,
                    slots=self._strip.update(rows),
                    events=tuple(self._events),
                )
            )
            if over == len(self._trainings):
                return ""
            if at_s > self._workload.patience_s:
                return f"{len(self._trainings) - over} jobs had not ended after {at_s:.0f} s"
            time.sleep(max(0.0, LOOK_EVERY_S - (time.monotonic() - began_s)))

    def _look(self) -> tuple[Row, ...]:
        names = {job_id: name for name, job_id in self._submitted.copy().items()}
        found = self._by_slurm() if self._daemon is None else self._by_daemon(self._daemon)
        rows = tuple(
            self._row(seen, self._trainings[names[seen.job_id]])
            for seen in found
            if seen.job_id in names
        )
        if self._daemon is not None:
            self._read_audit(self._daemon.audit_log, names)
        ended = [name for row in rows for name in self._note(row)]
        if ended:
            self._tell("end", f"{', '.join(ended)} finished")
        return rows

    def _by_slurm(self) -> Iterator[_Seen]:
        for job in self._site.jobs().values():
            yield _Seen(job.job_id, job.state, job.restarts, job.nodes, None, None)

    def _by_daemon(self, daemon: Daemon) -> Iterator[_Seen]:
        answer = daemon.ask("queue", state=["all"])
        listed = answer.get("jobs") if answer is not None else None
        jobs = [j for j in listed if isinstance(j, dict)] if isinstance(listed, list) else []
        for job in sorted(jobs, key=_id_of):
            tier = job["tier"]
            yield _Seen(
                job_id=_id_of(job),
                state=str(job["state"]),
                restarts=int(str(job["restarts"])),
                nodes=str(job["nodes"]),
                tier=tier if isinstance(tier, int) else None,
                attained_gpu_s=float(str(job["attained_gpu_h"])) * 3600,
            )

    def _row(self, seen: _Seen, training: Training) -> Row:
        holds = seen.state in _HOLDING
        return Row(
            job_id=seen.job_id,
            name=training.name,
            state=seen.state,
            gpus=training.gpus,
            tier=seen.tier,
            attained_gpu_s=seen.attained_gpu_s,
            restarts=seen.restarts,
            nodes=tuple(NodeSet(seen.nodes)) if holds and seen.nodes else (),
            progress=min(1.0, logs.steps_done(self._run_dir(seen.job_id)) / training.steps),
        )

    def _run_dir(self, job_id: int) -> Path:
        return self._site.runs(self._directory) / str(job_id)

    def _tell(self, kind: str, text: str, at_s: float | None = None) -> None:
        when_s = (at_s or time.time()) - self._began_s
        self._events.append(Event(at_s=when_s, kind=kind, text=text))

    def _note(self, row: Row) -> Iterator[str]:
        """Take up what has become of a job since the last look; its name if it has just ended."""
        before = self._states.get(row.job_id)
        self._states[row.job_id] = row.state
        this_run = row.job_id, row.restarts
        if row.state == "PD" and row.restarts and this_run not in self._between:
            since_s = self._back_since_s.setdefault(this_run, time.monotonic())
            if time.monotonic() - since_s >= SETTLE_S:
                self._between[this_run] = logs.read_between(self._run_dir(row.job_id))
        if row.restarts and this_run not in self._resumed:
            runs = logs.read_log(self._run_dir(row.job_id)).runs
            if runs and runs[-1].restart == row.restarts:
                self._resumed.add(this_run)
                steps = self._trainings[row.name].steps
                text = f"{row.name} resumes at step {runs[-1].from_step} of {steps}"
                self._tell("resume", text, runs[-1].at_s)
        if row.state == "CD" and before != "CD":
            yield row.name
        elif row.state not in {"PD", "CD", *_HOLDING} and before != row.state:
            self._tell("end", f"{row.name} FAILED ({row.state})")

    def _read_audit(self, path: Path, names: dict[int, str]) -> None:
        """Take up the lines that dlschedd has added since the last look."""
        with path.open("rb") as file:
            file.seek(self._audit_read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._audit_read += len(whole)
        for raw in whole.splitlines():
            line = json.loads(raw)
            if line["result"] != "ok":
                continue
            self._take_up(line, names)

    def _take_up(self, line: JsonObject, names: dict[int, str]) -> None:
        job_id, at_s = line["job"], float(str(line["epoch_s"]))
        name = names.get(job_id, str(job_id)) if isinstance(job_id, int) else ""
        if line["action"] == "signal" and isinstance(job_id, int):
            self._signals.setdefault(job_id, []).append(at_s)
            self._tell("preempt", f"{name} is asked for a checkpoint", at_s)
        elif line["action"] == "requeue":
            self._tell("preempt", f"{name} is requeued: {line['reason']}", at_s)
        elif line["action"] == "open_handover":
            self._tell("preempt", _opened(line, names), at_s)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A job as either source tells of it."""

    job_id: int
    state: str
    restarts: int
    nodes: str
    tier: int | None
    attained_gpu_s: float | None


def _id_of(job: JsonObject) -> int:
    return int(str(job["job_id"]))


def _opened(line: JsonObject, names: dict[int, str]) -> str:
    """For whom GPUs are taken back, in a few words."""
    details = line["details"]
    handover = details.get("handover") if isinstance(details, dict) else None
    served = handover.get("beneficiaries") if isinstance(handover, dict) else None
    if not isinstance(served, list):
        msg = f"audit log: no beneficiaries in {json.dumps(line)[:200]}"
        raise ClusterError(msg)
    known = [names.get(int(str(job)), str(job)) for job in served]
    more = f" and {len(known) - _SHOWN_JOBS} more" if len(known) > _SHOWN_JOBS else ""
    verb = "comes" if len(known) == 1 else "come"
    return f"{', '.join(known[:_SHOWN_JOBS])}{more} {verb} first: taking GPUs back"
