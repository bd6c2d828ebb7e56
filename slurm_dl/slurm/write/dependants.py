"""Jobs that wait for a job which failed, and is requeued, wait for it again.

Measured on 22.05.8, 24.11.5 and 26.05.5: Slurm gives up a job that depends on the failed one by
afterok at once, and does not look again when that is requeued. The same dependency written anew is
tested anew.
"""

from __future__ import annotations

import re

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.read.record_parser import new_nonce, output_format, split_records
from slurm_dl.slurm.read.vocabulary import address
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.current_job import JobNow

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
