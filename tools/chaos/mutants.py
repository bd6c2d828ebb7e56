"""dlschedd with one fault built in: what the checker must be able to catch.

    python mutants.py NAME PREFIX dlschedd's options ...

NAME is one of `MUTANTS`, or ``sound``. PREFIX begins the names of the daemon's reservations, so
that several daemons with partitions of their own can live on one cluster.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from slurm_dl.cli.dlschedd.command import main
from slurm_dl.engine.preemption import eligibility, handover_protocol, handover_verdicts
from slurm_dl.engine.preemption.handover_context import HandoverContext
from slurm_dl.ledger import write_ahead
from slurm_dl.ledger.apply_observation import AppliedObservation, apply_observation
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import RESERVATION_PREFIX, Run, Victim, VictimState
from slurm_dl.model.jobs import JobState
from slurm_dl.model.plan import MarkGone, Requeue, Signal
from slurm_dl.slurm.read import comment_claims
from slurm_dl.slurm.write import actions
from slurm_dl.slurm.write.current_job import JobNow, job_now

LATER_S: Final = 4.0
"""How long after a job has completed it is put back; Slurm's seconds are whole ones."""


def _scontrol(*argv: str) -> None:
    _run("scontrol", *argv)


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def requeue_without_signal() -> None:
    """Victims are told nothing and put back when their grace is over."""

    def silent(self: actions.Actor, action: Signal) -> None:
        del self, action

    _put(actions.Actor, "_signal", silent)


def ignores_quantum() -> None:
    """Whoever has just begun may be stopped."""
    sound = eligibility.protections

    def hasty(snap: Any, rows: Any, limits: Any) -> Any:  # noqa: ANN401 - passed through
        return sound(snap, rows, dataclasses.replace(limits, min_quantum_s=0.0))

    _put(eligibility, "protections", hasty)


def ignores_grace() -> None:
    """Victims are put back as soon as they have been told."""
    sound = handover_protocol._requeues  # noqa: SLF001 - a mutation is inside

    def hasty(handover: Any, left: list[Victim], context: HandoverContext) -> Any:  # noqa: ANN401
        told = [
            dataclasses.replace(v, contract=dataclasses.replace(v.contract, grace_s=0.1))
            for v in left
        ]
        return sound(handover, told, context)

    _put(handover_protocol, "_requeues", hasty)


def takes_everybody() -> None:
    """Jobs that declared nothing are taken for such as agreed to USR1."""
    sound = comment_claims.ClaimReader._parse  # noqa: SLF001 - a mutation is inside

    def presumptuous(self: comment_claims.ClaimReader, comment: str) -> Any:  # noqa: ANN401
        claim = sound(self, comment)
        contract = claim.contract or Contract(signal="USR1", target="batch", grace_s=8.0)
        return dataclasses.replace(claim, contract=contract)

    _put(comment_claims.ClaimReader, "_parse", presumptuous)


def requeues_ended() -> None:
    """A victim that completed in its grace is put back, as a plain ``scontrol requeue`` would."""
    sound = write_ahead.Ledger.begin

    def begin(self: write_ahead.Ledger, action: Any) -> None:  # noqa: ANN401
        sound(self, action)
        if isinstance(action, MarkGone) and action.outcome == "finished":
            threading.Timer(LATER_S, _scontrol, ("requeue", str(action.job_id))).start()

    _put(write_ahead.Ledger, "begin", begin)


def holds_victims() -> None:
    """Victims are put back and held."""

    def hold(self: actions.Actor, action: Requeue) -> None:
        del self
        _scontrol("requeuehold", "Incomplete", str(action.run.job_id))

    _put(actions.Actor, "_requeue", hold)


def loses_a_job() -> None:
    """Victims are cancelled."""

    def cancel(self: actions.Actor, action: Requeue) -> None:
        del self
        _run("scancel", str(action.run.job_id))

    _put(actions.Actor, "_requeue", cancel)


def no_compare() -> None:
    """Whatever run a victim is in is taken for the one that was chosen and told."""

    def gone(victim: Victim, context: HandoverContext) -> str:
        row = context.rows.get(victim.run.job_id)
        if row is None:
            return "left"
        state = context.snap.jobs.state[row]
        if state in (JobState.COMPLETED, JobState.FAILED):
            return "finished"
        done = victim.state is VictimState.REQUEUING and state == JobState.PENDING
        return "requeued" if done else ""

    def any_run(self: actions.Actor, run: Run, now: JobNow | None = None) -> JobNow:
        found = now or job_now(self._slurm, run.job_id)
        if found is None:
            msg = f"job {run.job_id} is gone"
            raise ClusterError(msg)
        return found

    _put(handover_verdicts, "gone", gone)
    _put(actions.Actor, "_same_run", any_run)


def forgets_service() -> None:
    """Half of what each job gets is counted."""

    def half(before: Any, seen: Any, *, forget_before_s: float) -> AppliedObservation:  # noqa: ANN401
        folded = apply_observation(before, seen, forget_before_s=forget_before_s)
        after = folded.service
        had = np.zeros(len(after))
        known = np.isin(after.job_id, before.job_id)
        had[known] = before.attained_gpu_s[before.rows_of(after.job_id[known])]
        counted = had + (after.attained_gpu_s - had) / 2
        service = dataclasses.replace(after, attained_gpu_s=counted)
        return dataclasses.replace(folded, service=service)

    _put(write_ahead, "apply_observation", half)


def leaves_reservations() -> None:
    """Reservations are left to lapse."""

    def leave(slurm: Any, name: str) -> str:  # noqa: ANN401
        del slurm, name
        return "gone"

    _put(actions, "unseal", leave)


def starts_twice() -> None:
    """Victims are put back by failing their node, and started elsewhere before they have ended.

    Slurm waits for the end of a run that is requeued, but not where it takes the node for dead.
    The spare nodes of the partition are in MUTANT_SPARE.
    """

    def fail(self: actions.Actor, action: Requeue) -> None:
        del self
        job = str(action.run.job_id)
        node = _run("squeue", "--noheader", f"--jobs={job}", "--format=%N")
        _scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=mutant")
        _scontrol("update", f"NodeName={os.environ['MUTANT_SPARE']}", "State=RESUME")
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            # Refused until the job is pending; then it need not wait for its old credential.
            _scontrol("update", f"JobId={job}", "StartTime=now", "ReservationName=")
            time.sleep(0.2)

    _put(actions.Actor, "_requeue", fail)


MUTANTS: Final[dict[str, tuple[Callable[[], None], frozenset[str]]]] = {
    "requeue-without-signal": (requeue_without_signal, frozenset({"signal"})),
    "ignores-quantum": (ignores_quantum, frozenset({"quantum"})),
    "ignores-grace": (ignores_grace, frozenset({"grace"})),
    "takes-everybody": (takes_everybody, frozenset({"signal"})),
    "requeues-ended": (requeues_ended, frozenset({"completed"})),
    "holds-victims": (holds_victims, frozenset({"held"})),
    "loses-a-job": (loses_a_job, frozenset({"lost"})),
    # A run that nobody told is stopped, and before its quantum.
    "no-compare": (no_compare, frozenset({"signal", "quantum"})),
    "forgets-service": (forgets_service, frozenset({"service"})),
    "leaves-reservations": (leaves_reservations, frozenset({"reservations"})),
    # With the node falls a job that has agreed to nothing.
    "starts-twice": (starts_twice, frozenset({"twice", "signal"})),
}
"""Each fault by name, and the invariants that it breaks."""


def _put(where: object, name: str, what: object) -> None:
    if not hasattr(where, name):
        msg = f"{where} has no {name} any more: the mutation would change nothing"
        raise AttributeError(msg)
    setattr(where, name, what)


def _rename_reservations(prefix: str) -> None:
    usual = RESERVATION_PREFIX
    for module in list(sys.modules.values()):
        if getattr(module, "RESERVATION_PREFIX", None) == usual:
            _put(module, "RESERVATION_PREFIX", prefix)


if __name__ == "__main__":
    NAME, PREFIX = sys.argv.pop(1), sys.argv.pop(1)
    if NAME != "sound":
        MUTANTS[NAME][0]()
    _rename_reservations(PREFIX)
    main()
