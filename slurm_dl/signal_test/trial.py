"""The order of a trial: start, train, signal, save and stop, requeue, train again.

It follows what the daemon does with a job that gives way: the signal of the contract, then the
requeue at the acknowledgement (only if the daemon is to requeue), or at the end of the grace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from slurm_dl.signal_test.local_trial import LocalJob
from slurm_dl.signal_test.slurm_trial import SlurmJob
from slurm_dl.signal_test.verdict import Look, Observations, Return

SETTLE_S = 5.0
"""Between the first sign that a script can take the signal and the signal, where it reports no
steps: a handler is often there before the first step."""

SILENT_S = 30.0
"""A job that reports nothing, and shows no handler, is taken to train after so long."""


Job = LocalJob | SlurmJob


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of *job*.

    Attributes:
        after_s: Send the signal so long after the start; None: once it trains.
        within_s: Longest wait until it trains, before and after the requeue.
        say: Is told what is waited for.
        sleep: Waits for so many seconds; what it raises ends the trial.
    """

    job: Job
    after_s: float | None
    within_s: float
    say: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> Observations:
        """Do it; what was seen.

        Raises:
            ClusterError: Slurm refused something or was silent.
        """
        job = self.job
        self.say("waiting until the job trains")
        ready, look = self._until_it_trains(None, reports=False)
        facts = Observations(contract=job.contract, ready=ready, processes=job.processes())
        if not ready:
            return replace(
                facts, end=look.end, killed_by=look.killed_by, last_words=job.last_words()
            )
        run, listened = look.run, job.files.listens(look.run)
        before = job.files.traces(run)
        self.say(f"sending {job.contract.signal}, and waiting for the checkpoint")
        job.signal()
        facts = self._watch(facts, run)
        facts = replace(
            facts,
            dlrun_took_it=job.files.is_asked(run),
            last_step=job.files.step(run),
            script_listens=listened or job.files.listens(run),
            checkpoint=job.files.written(before, run),
        )
        if facts.ended_s is not None and not facts.requeued_itself:
            return replace(facts, last_words=job.last_words())
        self.say("the job is put back; waiting until it trains again")
        job.requeue()
        ready, end = self._until_it_trains(look, reports=facts.last_step is not None)
        step = job.files.step(run + 1)
        facts = replace(facts, back=Return(trained=bool(ready), first_step=step, end=end.end))
        return facts if ready else replace(facts, last_words=job.last_words())

    def _until_it_trains(self, last: Look | None, *, reports: bool) -> tuple[str, Look]:
        """Wait until the job trains, in a later run than *last*, or ends, or the time is over.

        Args:
            reports: Only a report counts, because the run before made some.

        Returns:
            By what it was seen to train, empty if it was not; and the last look at it.
        """
        job = self.job
        deadline_s = time.monotonic() + self.within_s
        since_s = able_since_s = first_step = None
        while True:
            look, now_s = job.look(), time.monotonic()
            if look.state == "running" and (last is None or look.run > last.run):
                since_s = since_s or now_s
                step = job.files.step(look.run)
                first_step = step if first_step is None else first_step
                # Before the signal it has to get somewhere; after the requeue the first report
                # tells where it goes on.
                if step is not None and (last or (self.after_s is None and step != first_step)):
                    return f"it reported step {step}", look
                if not able_since_s and _is_able(job, look.run):
                    able_since_s = now_s
                by_time = not reports and (step is None or self.after_s is not None)
                if by_time and (ready := self._by_time(now_s, since_s, able_since_s)):
                    return ready, look
            if look.state == "over" or now_s > deadline_s:
                return "", look
            self.sleep(job.every_s)

    def _by_time(self, now_s: float, since_s: float, able_since_s: float | None) -> str:
        """The sign that a run trains which has reported nothing; empty if there is none yet."""
        if self.after_s is None and able_since_s and now_s - able_since_s >= SETTLE_S:
            return f"it could take {self.job.contract.signal} since {SETTLE_S:g} s"
        least_s = SILENT_S if self.after_s is None else self.after_s
        return f"it had run for {least_s:g} s" if now_s - since_s >= least_s else ""

    def _watch(self, facts: Observations, run: int) -> Observations:
        """Until the job has acknowledged, ended or put itself back, or its grace is over."""
        contract = self.job.contract
        began_s = time.monotonic()
        while True:
            look, waited_s = self.job.look(), time.monotonic() - began_s
            if look.run > run or look.state == "waiting":
                return replace(facts, requeued_itself=True, ended_s=waited_s)
            if look.state == "over":
                return replace(facts, ended_s=waited_s, end=look.end, killed_by=look.killed_by)
            if look.acked and facts.acked_s is None:
                facts = replace(facts, acked_s=waited_s)
            is_acked = facts.acked_s is not None and contract.requeued_by == "daemon"
            if is_acked or waited_s >= contract.grace_s:
                return facts
            self.sleep(self.job.every_s)


def _is_able(job: Job, run: int) -> bool:
    """A process has a handler of its own; one that listens by slurm_dl.job will report steps."""
    return not job.files.listens(run) and any(
        p.signal == "catches" and not p.is_first for p in job.processes()
    )
