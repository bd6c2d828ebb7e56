"""One job read again, just before something is done to it, and the jobs that depend on it.

Measured on 22.05.8, 24.11.5 and 26.05.5: Slurm gives up a job that depends on a failed one by
afterok at once, and does not look again when that is requeued. The same dependency written anew is
tested anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.handover import Run
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.slurm.read.grammar import address, is_number
from slurm_dl.slurm.read.queue_reader import whole_labels
from slurm_dl.slurm.read.record_parser import (
    job_records,
    new_nonce,
    output_format,
    queue_arguments,
    split_records,
)
from slurm_dl.slurm.read.vocabulary import epoch_s, job_state
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped

_NOW_FIELDS = (
    "JobID",
    "JobArrayID",
    "State",
    "StartTime",
    "RestartCnt",
    "Requeue",
    "Reservation",
    "tres-per-job",
    # What users write comes last.
    "Comment",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """One job as Slurm has it at this moment."""

    address: str  # How the tools must name it
    state: JobState
    run: Run  # Its run, as Slurm tells it; of no meaning for a pending job
    requeueable: bool  # Its Requeue flag is set; the owner may change it at any time
    reservation: str  # Its ReservationName; ``(null)`` if it has none
    in_all: bool  # It asked for GPUs in all its nodes together (--gpus)
    comment: str  # Its comment, with U+FFFD for what cannot be decoded


def job_now(slurm: Slurm, job_id: JobId) -> JobNow | None:
    """Read one job again; None if Slurm does not list it.

    Raises:
        ClusterError: Slurm is silent, or the answer cannot be read.
    """
    nonce = new_nonce()
    try:
        text = slurm.run(
            "squeue",
            f"--jobs={int(job_id)}",
            *queue_arguments(_NOW_FIELDS, nonce),
        )
    except ClusterError:
        # An id that Slurm has forgotten is an error too. A controller that answers is not down.
        slurm.run("scontrol", "ping")
        return None
    records, _ = job_records(text, nonce, len(_NOW_FIELDS))
    labels = {JobId(int(raw_id)): label for raw_id, label, *_ in records if is_number(raw_id)}
    for raw_id, _, state, start, restarts, requeue, reservation, in_all, comment in records:
        # An array's id is also the id of one of its records: only that one is meant.
        if raw_id == str(job_id):
            mine = {job_id: labels[job_id]}
            try:
                now = job_state(state)
                whole = whole_labels(slurm, labels, mine) if now is JobState.PENDING else mine
                if not whole:
                    msg = f"array job {mine[job_id][:40]} changed while it was read"
                    raise ClusterError(msg)
                return JobNow(
                    address=address(whole[job_id]),
                    state=now,
                    run=Run(job_id=job_id, start_s=epoch_s(start), restarts=int(restarts)),
                    requeueable=requeue == "1",
                    reservation=reservation,
                    in_all="gpu" in in_all,
                    comment=comment,
                )
            except ValueError as err:
                msg = f"job {job_id} cannot be read: {escaped(str(err))}"
                raise ClusterError(msg) from None
    return None


MOST_DEPENDANTS = 50
_FIELDS = ("JobArrayID", "Reason", "Dependency")
# "afterok:5_1(failed),after:7+3(unfulfilled)", and "?" between them for any of them.
_TERM = re.compile(r"([a-z]+(?::([0-9_*]+)(?:\+[0-9]+)?)?)\(([a-z]+)\)")


def restore_dependants(slurm: Slurm, job: JobNow) -> None:
    """Write the dependencies anew of waiting jobs that Slurm gave up because of *job* alone.

    Only the first `MOST_DEPENDANTS` by job id: any user may have jobs that wait for another's.

    Raises:
        ClusterError: They could not be read, or Slurm refused one; the others are done.
    """
    nonce = new_nonce()
    # Without --array: the pending tasks of an array have one dependency.
    text = slurm.run(
        *("squeue", "--noheader", "--all", "--local", "--states=PENDING", "--sort=i"),
        f"--Format={output_format(_FIELDS, nonce)}",
    )
    names = {str(job.run.job_id), job.address, f"{job.address.partition('_')[0]}_*"}
    given_up = [
        (label, again)
        for label, reason, dependency in split_records(text, nonce, len(_FIELDS))[0]
        if reason == "DependencyNeverSatisfied" and (again := anew(dependency, names))
    ]
    alike: dict[str, list[str]] = {}
    refusals = []
    for label, again in given_up[:MOST_DEPENDANTS]:
        try:
            named = address(label)
        except ValueError as err:
            refusals.append(str(err))
        else:
            alike.setdefault(again, []).append(named)
    for again, those in alike.items():
        try:
            # Of those in a list scontrol goes on after one that is refused (22.05.8).
            slurm.run("scontrol", "update", f"JobId={','.join(those)}", f"Dependency={again}")
        except ClusterError as err:
            refusals.append(str(err))
    if refusals:
        msg = f"job {job.address} was requeued, but not all that wait for it: {refusals[0]}"
        raise ClusterError(msg)


def anew(dependency: str, names: set[str]) -> str:
    """*dependency* as it can be set, if what failed in it are jobs in *names* alone; else empty."""
    parts = re.split("([,?])", dependency)
    terms = [_TERM.fullmatch(term) for term in parts[::2]]
    failed = {term[2] for term in terms if term and term[3] == "failed"}
    if not (all(terms) and failed and failed <= names):
        return ""
    parts[::2] = [term[1] for term in terms if term]
    return "".join(parts)
