"""The pending tasks of an array, all of them.

No one listing of squeue has them. Measured on 22.05.8, 24.11.5 and 26.05.5: without ``--array`` the
tasks with a record of their own (requeued or held ones) are folded into the one that the rest
share, and not to be seen; with it the last task is left out where Slurm writes the tasks of the
record with a step, which it does for more than ten (``0-20:2`` ends with 18). So where the tasks
listed go in steps, the folded listing is asked too: it has all, of which the others have records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.record_parser import new_nonce, output_format, split_records
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
        """Put the tasks that squeue left out into *table*.

        Raises:
            ClusterError: Slurm is silent, or the arrays changed between two answers.
        """
        labels = {job: text.label for job, text in table.texts.items()}
        doubtful = {job: labels[job] for job in doubtful_in(labels)}
        new = {job: label for job, label in doubtful.items() if (job, label) not in self._known}
        found = whole_labels(self._slurm, labels, new)
        self._known = {
            (job, label): found.get(job) or self._known[job, label]
            for job, label in doubtful.items()
        }
        if not doubtful:
            return
        row_of = {job_id: row for row, job_id in enumerate(table.job_id)}
        for (job, _), whole in self._known.items():
            table.texts[job] = replace(table.texts[job], label=whole)
            table.tasks[row_of[job]] = tasks_in(whole)


def doubtful_in(labels: Mapping[JobId, str]) -> list[JobId]:
    """The jobs of which a task may have been left out, by *labels* made of what was listed."""
    return [job for job, label in labels.items() if ":" in label]


def folded_arguments(nonce: str) -> tuple[str, ...]:
    """Arguments for squeue that list the pending tasks of each array in one record."""
    return (
        *("--noheader", "--all", "--local", "--states=PENDING"),
        f"--Format={output_format(_FIELDS, nonce)}",
    )


def whole_labels(
    slurm: Slurm, labels: Mapping[JobId, str], doubtful: Collection[JobId]
) -> dict[JobId, str]:
    """The labels of the *doubtful* jobs with all their tasks.

    Args:
        labels: Of every record of the same arrays, as just listed.

    Raises:
        ClusterError: Slurm is silent, or the arrays changed between two answers.
    """
    if not doubtful:
        return {}
    nonce = new_nonce()
    which = ",".join(str(int(job)) for job in doubtful)
    text = slurm.run("squeue", f"--jobs={which}", *folded_arguments(nonce))
    records_of = split_records(text, nonce, 2)[0]
    folded = {int(job_id): label for job_id, label in records_of if is_number(job_id)}
    records = set(labels.values())
    found: dict[JobId, str] = {}
    for job in doubtful:
        try:
            listed = tasks_of(labels[job])
            array = labels[job].partition("_")[0]
            pending = [
                label
                for task in tasks_of(folded.get(job, ""))
                if (label := f"{array}_{task}") not in records
            ]
        except ValueError:
            pending = []
        whole = tasks_as_one(pending) if pending else None
        if whole is None or not set(listed) <= set(tasks_of(whole)):
            msg = f"array job {labels[job][:40]} changed while it was read"
            raise ClusterError(msg)
        found[job] = whole
    return found
