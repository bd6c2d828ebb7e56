"""The pending tasks of an array, all of them.

No one listing of squeue has them. Measured on 22.05.8, 24.11.5 and 26.05.5: without ``--array`` the
tasks with a record of their own (requeued or held ones) are folded into the one that the rest
share, and not to be seen; with it the last task is left out where Slurm writes the tasks of the
record with a step, which it does for more than ten (``0-20:2`` ends with 18). So where the tasks
listed go in steps, the folded listing is asked too: it has all, of which the others have records.

Owners start, cancel and change tasks between the two answers, as often as they like. An array of
which the two disagree is left out of one look, and is never an error of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.snapshot import LeftOut
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.record_parser import new_nonce, of_jobs, output_format, split_records
from slurm_dl.slurm.read.vocabulary import is_number, tasks_as_one, tasks_in, tasks_of
from slurm_dl.slurm.tool_runner import Slurm

_FIELDS = ("JobID", "JobArrayID")


class ArrayTasks:
    """Completes tables; remembers what was found out while the listing says the same."""

    def __init__(self, slurm: Slurm) -> None:
        """Ask *slurm*; nothing is known yet."""
        self._slurm = slurm
        self._known: dict[tuple[JobId, str], str] = {}

    def forget(self) -> None:
        """Ask about every array anew."""
        self._known.clear()

    def complete(self, table: JobTable) -> None:
        """Put the tasks that squeue left out into *table*; leave out what changed meanwhile.

        Raises:
            ClusterError: Slurm is silent.
        """
        labels = {job: text.label for job, text in table.texts.items()}
        doubtful = {
            job: label
            for (job, label), state in zip(labels.items(), table.state, strict=True)
            if state is JobState.PENDING and _is_doubtful(label)
        }
        new = {job: label for job, label in doubtful.items() if (job, label) not in self._known}
        found = whole_labels(self._slurm, labels, new)
        self._known = {
            (job, label): found.get(job) or self._known[job, label]
            for job, label in doubtful.items()
            if job in found or (job, label) in self._known
        }
        if not doubtful:
            return
        row_of = {job_id: row for row, job_id in enumerate(table.job_id)}
        for (job, _), whole in self._known.items():
            table.texts[job] = replace(table.texts[job], label=whole)
            table.tasks[row_of[job]] = tasks_in(whole)
        changed = new.keys() - found.keys()
        table.leave_out({j: LeftOut(uid=table.uid[row_of[j]], label=labels[j]) for j in changed})


def _is_doubtful(label: str) -> bool:
    """Whether a task may have been left out of a pending job, by its *label* as listed."""
    return ":" in label


def folded_arguments(nonce: str) -> tuple[str, ...]:
    """Arguments for squeue that list the pending tasks of each array in one record."""
    return (
        *("--noheader", "--all", "--local", "--states=PENDING"),
        f"--Format={output_format(_FIELDS, nonce)}",
    )


def whole_labels(
    slurm: Slurm, labels: Mapping[JobId, str], pending: Mapping[JobId, str]
) -> dict[JobId, str]:
    """The labels of *pending* jobs with all their tasks, but for jobs that changed meanwhile.

    No more is listed of a job that does not wait: an array that is over goes in steps, too.

    Args:
        labels: Of every record of the same arrays, as just listed.
        pending: Those of them that are asked for.

    Raises:
        ClusterError: Slurm is silent.
    """
    found = {job: label for job, label in pending.items() if not _is_doubtful(label)}
    doubtful = pending.keys() - found.keys()
    if not doubtful:
        return found
    nonce = new_nonce()
    text = slurm.run("squeue", *of_jobs(doubtful), *folded_arguments(nonce))
    records_of = split_records(text, nonce, 2)[0]
    folded = {int(job_id): label for job_id, label in records_of if is_number(job_id)}
    records = set(labels.values())
    for job in doubtful:
        array = labels[job].partition("_")[0]
        try:
            listed = tasks_of(labels[job])
            tasks = [t for t in tasks_of(folded.get(job, "")) if f"{array}_{t}" not in records]
        except ValueError:
            continue
        whole = tasks_as_one([f"{array}_{task}" for task in tasks]) if tasks else None
        if whole is not None and set(listed) <= set(tasks):
            found[job] = whole
    return found
