"""Readers of the queue: the interface, and the reader that uses Slurm's commands.

Nodes, topology, reservations and the configuration are read by the commands in any case: seldom,
and with what other bindings have no words for.

No one listing of squeue has all pending tasks of an array. Measured on 22.05.8, 24.11.5 and
26.05.5: without ``--array`` the tasks with a record of their own (requeued or held ones) are folded
into the one that the rest share, and not to be seen; with it the last task is left out where Slurm
writes the tasks of the record with a step, which it does for more than ten (``0-20:2`` ends with
18). So where the tasks listed go in steps, the folded listing is asked too: it has all, of which
the others have records. Owners start, cancel and change tasks between the two answers. An array of
which the two disagree is left out of one look, and is never an error of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.snapshot import LeftOut
from slurm_dl.slurm.read.conditions import ConditionReader
from slurm_dl.slurm.read.gpu_holdings import Holdings, splits_in
from slurm_dl.slurm.read.grammar import is_number, tasks_as_one, tasks_in, tasks_of
from slurm_dl.slurm.read.job_details import job_details
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.record_parser import (
    job_fields,
    job_records,
    new_nonce,
    of_jobs,
    output_format,
    queue_arguments,
    split_records,
)
from slurm_dl.slurm.tool_runner import Slurm


@dataclass(frozen=True, slots=True)
class ReaderChoice:
    """A reader of the queue by its name, and why it is this one, as one clause."""

    reader: Literal["cli", "pyslurm"]
    reason: str


class CliQueue:
    """The queue by squeue, which every release has; read again and again."""

    choice = ReaderChoice("cli", "cluster.reader is cli")

    def __init__(self, slurm: Slurm) -> None:
        """Read through *slurm*; nothing is read yet."""
        self._slurm = slurm
        self._conditions = ConditionReader(slurm)
        self._arrays = ArrayTasks(slurm)

    def read(
        self, reader: JobReader, site: ClusterReading, *, now_s: float
    ) -> tuple[JobTable, ConditionReader]:
        """All jobs, as *reader* understands them, and what the pending ones ask of nodes.

        One squeue, and others where new jobs or changed arrays wait.

        Args:
            now_s: When the reading began, epoch seconds.

        Raises:
            ClusterError: They could not be read whole.
        """
        table = self.table(reader, site, now_s=now_s)
        self._conditions.learn(table, licences=bool(site.config.licences))
        return table, self._conditions

    def table(self, reader: JobReader, site: ClusterReading, *, now_s: float) -> JobTable:
        """The jobs alone.

        Raises:
            ClusterError: They could not be read whole.
        """
        nonce = new_nonce()
        fields = job_fields(site.config.release)
        text = self._slurm.run("squeue", *queue_arguments(fields, nonce))
        table = reader.read(text, nonce, site, now_s=now_s)
        self._arrays.complete(table)
        return table

    def learn_splits(self, holdings: Holdings, table: JobTable, site: ClusterReading) -> None:
        """Tell *holdings* the splits of *table* that it lacks; what cannot be told waits."""
        rows = holdings.unknown(table, site)
        if not rows:
            return
        found = job_details(self._slurm, table, rows, holdings.doubled)
        if found is not None:  # Until it is known the job counts as spread evenly.
            detail, asked = found
            wanted = {table.job_id[row] for row in asked}
            holdings.learn(splits_in(detail, wanted), table, asked, site)

    def set_site_factor(self, job_id: JobId, value: int) -> bool:  # noqa: ARG002 - see `PyslurmQueue`
        """Set the SiteFactor of one job that is no array's and no gang's; False: not by this way.

        Raises:
            ClusterError: Slurm refused.
        """
        return False

    def ask_again(self, job_id: JobId) -> None:
        """Ask anew at the next reading what this job asks of nodes, and which it excludes."""
        self._conditions.ask_again(job_id)

    def forget(self) -> None:
        """Ask anew about what owners may have changed while their jobs wait."""
        self._conditions.forget()
        self._arrays.forget()

    def close(self) -> None:
        """End what runs for it. It may be read again."""


_STATUS_FIELDS = ("JobID", "exit_code")


class ExitStatuses:
    """Statuses of the listed jobs that have a contract and are in Slurm's state FAILED.

    The reason is no substitute: of a batch shell that died of a signal it is JobLaunchFailure
    (22.05.8).
    """

    def __init__(self, slurm: Slurm) -> None:
        """Ask *slurm*; nothing is asked yet."""
        self._slurm = slurm
        self._told: dict[tuple[JobId, int], int] = {}
        self.known: dict[JobId, int | None] = {}

    def learn(self, table: JobTable) -> None:
        """Set *known* to the statuses of the jobs in *table*, as a shell has them.

        None of those of which squeue tells nothing now: they are asked for again next time.
        """
        restarts = dict(zip(table.job_id, table.restarts, strict=True))
        failed = {
            job: (job, restarts[job])
            for job, claim in table.claims.items()
            if claim.contract is not None and table.texts[job].ending == "FAILED"
        }
        self._told = {run: self._told[run] for run in failed.values() if run in self._told}
        if new := [job for job, run in failed.items() if run not in self._told]:
            with suppress(ClusterError):
                told = self._ask(new)
                self._told |= {failed[job]: how for job, how in told.items() if job in failed}
        self.known = {job: self._told.get(run) for job, run in failed.items()}

    def _ask(self, jobs: list[JobId]) -> dict[JobId, int]:
        nonce = new_nonce()
        text = self._slurm.run("squeue", *of_jobs(jobs), *queue_arguments(_STATUS_FIELDS, nonce))
        records, _ = job_records(text, nonce, len(_STATUS_FIELDS))
        return {JobId(int(job)): shell_status(how) or 0 for job, how in records if is_number(job)}


def shell_status(text: str) -> int | None:
    """The exit status in a shell of what squeue says; None if that is no status.

    22.05 gives the wait status as a number, 24.11 and 26.05 ``status:signal``.
    """
    code, colon, by = text.partition(":")
    if not (is_number(code) and (is_number(by) or not colon)):
        return None
    signal = int(by) if colon else int(code) & 0x7F
    return 128 + signal if signal else int(code) if colon else int(code) >> 8


_ARRAY_FIELDS = ("JobID", "JobArrayID")


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
        f"--Format={output_format(_ARRAY_FIELDS, nonce)}",
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
