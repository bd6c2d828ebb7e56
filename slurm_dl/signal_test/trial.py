"""The order of a trial: start, train, signal, save and stop, requeue, train again.

It follows what the daemon does with a job that gives way: the signal of the contract, then the
requeue at the acknowledgement (only if the daemon is to requeue), or at the end of the grace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from slurm_dl.model.contract import Contract
from slurm_dl.signal_test.observations import Look, Observations, ObservedProcess, Return
from slurm_dl.signal_test.run_directory import FileReads, RunFiles

SETTLE_S = 5.0
"""Between the first sign that a script can take the signal and the signal, where it reports no
steps: a handler is often there before the first step."""

SILENT_S = 30.0
"""A job that reports nothing, and shows no handler, is taken to train after so long."""


class Job(Protocol):
    """The job that is tried, wherever it runs."""

    contract: Contract
    files: RunFiles
    every_s: float
    """Time between two looks."""

    def start(self) -> None:
        """Start it, if it does not run yet."""

    def look(self) -> Look:
        """How it is now."""

    def processes(self) -> tuple[ObservedProcess, ...]:
        """Its processes; none where they cannot be seen."""

    def signal(self) -> None:
        """Send it the contract's signal as the daemon does."""

    def requeue(self) -> None:
        """Put it back as the daemon does; nothing if it has done that itself."""

    def last_words(self) -> str:
        """The end of its log; the user's text."""


class Limits(NamedTuple):
    """How long a trial waits.

    Attributes:
        after_s: Send the signal so long after the start; None: once it trains.
        within_s: Longest wait until it trains, before and after the requeue.
    """

    after_s: float | None
    within_s: float


def run_trial(job: Job, limits: Limits, say: Callable[[str], None]) -> Observations:
    """Try *job*; what was seen.

    Args:
        say: Is told what is waited for.

    Raises:
        ClusterError: Slurm refused something or was silent.
    """
    facts = Observations(contract=job.contract)
    say("starting the job, and waiting until it trains")
    job.start()
    ready, look = _until_it_trains(job, limits, None, reports=False)
    if not ready:
        return replace(facts, end=look.end, killed_by=look.killed_by, last_words=job.last_words())
    run = look.run
    facts = replace(
        facts,
        ready=ready,
        processes=job.processes(),
        script_listens=job.files.listens(run),
    )
    before, since_s = job.files.stamps(), time.time()
    say(f"sending {job.contract.signal}, and waiting for the checkpoint")
    job.signal()
    facts = _watch(job, facts, run)
    facts = replace(
        facts,
        dlrun_took_it=job.files.is_asked(run),
        last_step=job.files.step(run),
        script_listens=facts.script_listens or job.files.listens(run),
        checkpoint=job.files.written(before, run, since_s),
    )
    if facts.ended_s is not None and not facts.requeued_itself:
        return replace(facts, last_words=job.last_words())
    say("the job is put back; waiting until it trains again")
    reading = FileReads(job.files.paths(facts.checkpoint), job.files.owner)
    job.requeue()
    back, end = _until_it_trains(job, limits, look, reports=facts.last_step is not None)
    facts = replace(
        facts,
        back=Return(
            trained=bool(back),
            first_step=job.files.step(run + 1),
            read=reading.happened(),
            end=end.end,
        ),
    )
    return facts if back else replace(facts, last_words=job.last_words())


def _until_it_trains(job: Job, limits: Limits, last: Look | None, *, reports: bool) -> SeenTraining:
    """Wait until the job trains, in a later run than *last*, or ends, or the time is over."""
    deadline_s = time.monotonic() + limits.within_s
    signs = _Signs(job, limits.after_s, is_back=last is not None, reports=reports)
    while True:
        look, now_s = job.look(), time.monotonic()
        if look.state == "running" and (last is None or look.run > last.run):
            ready = signs.of(look.run, now_s)
            if ready:
                return SeenTraining(ready, look)
        if look.state == "over" or now_s > deadline_s:
            return SeenTraining("", look)
        time.sleep(job.every_s)


class SeenTraining(NamedTuple):
    """By what the job was seen to train, empty if it was not; and the last look at it."""

    ready: str
    look: Look


class _Signs:
    """What tells that one run trains.

    Args:
        is_back: It is the run after the requeue: its first report tells where it goes on.
        reports: Only a report counts, because the run before made some.
    """

    def __init__(self, job: Job, after_s: float | None, *, is_back: bool, reports: bool) -> None:
        self._job = job
        self._after_s = after_s
        self._is_back = is_back
        self._reports = reports
        self._since_s: float | None = None
        self._able_since_s: float | None = None
        self._first_step: int | None = None

    def of(self, run: int, now_s: float) -> str:
        """The sign, in words; empty if there is none yet."""
        self._since_s = now_s if self._since_s is None else self._since_s
        step = self._job.files.step(run)
        if step is not None and (self._is_back or self._after_s is None):
            # Before the signal it has to get somewhere.
            self._first_step = step if self._first_step is None else self._first_step
            if self._is_back or step != self._first_step:
                return f"it reported step {step}"
        elif not self._reports:
            return self._by_time(run, now_s, now_s - self._since_s)
        return ""

    def _by_time(self, run: int, now_s: float, up_s: float) -> str:
        if self._after_s is not None:
            return f"it had run for {self._after_s:g} s" if up_s >= self._after_s else ""
        if self._able_since_s is None and _is_able(self._job, run):
            self._able_since_s = now_s
        if self._able_since_s is not None and now_s - self._able_since_s >= SETTLE_S:
            return f"it could take {self._job.contract.signal} since {SETTLE_S:g} s"
        return f"it had run for {SILENT_S:g} s" if up_s >= SILENT_S else ""


def _is_able(job: Job, run: int) -> bool:
    """A process has a handler of its own; one that listens by slurm_dl.job will report steps."""
    return not job.files.listens(run) and any(
        p.signal == "catches" and not p.is_first for p in job.processes()
    )


def _watch(job: Job, facts: Observations, run: int) -> Observations:
    """Until the job has acknowledged, ended or put itself back, or its grace is over."""
    began_s = time.monotonic()
    while True:
        look, waited_s = job.look(), time.monotonic() - began_s
        if look.run > run or look.state == "waiting":
            return replace(facts, requeued_itself=True, ended_s=waited_s)
        if look.state == "over":
            return replace(facts, ended_s=waited_s, end=look.end, killed_by=look.killed_by)
        if look.acked and facts.acked_s is None:
            facts = replace(facts, acked_s=waited_s)
        if facts.acked_s is not None and job.contract.requeued_by == "daemon":
            return facts
        if waited_s >= job.contract.grace_s:
            return facts
        time.sleep(job.every_s)
