"""The queue by pyslurm, which is asked in a process of its own; see `worker_program`.

One RPC a poll. What pyslurm 25.11.2 cannot tell is asked of squeue and scontrol, and only of the
jobs that need it: requests by job, task and socket once for each job, and how GPUs asked for in
all are spread over several nodes once for each run. The table of its defects is in
docs/adr/0010-pyslurm-reader.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.slurm.pyslurm.worker_process import Answer, PyslurmProcess
from slurm_dl.slurm.read.gpu_holdings import Holdings
from slurm_dl.slurm.read.hostlists import NO_WORDS
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_choices import Exclusions
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.queue_reader import CliQueue, ReaderChoice
from slurm_dl.slurm.read.record_parser import job_records, new_nonce, none_readable
from slurm_dl.slurm.read.squeue_fields import JOB_FIELDS, queue_arguments
from slurm_dl.slurm.read.vocabulary import is_number, one_spelling
from slurm_dl.slurm.tool_runner import Slurm

_REQUESTS = ("tres-per-job", "tres-per-task", "tres-per-socket")
_EXCLUDED = "ExcNodes"
_TOLD = (*(name for name in JOB_FIELDS if name not in _REQUESTS), _EXCLUDED)
_MOST_LABELS = 50_000

Columns = dict[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Told:
    """Exclusions that came with the queue: none is unknown."""

    nodes: Mapping[JobId, str]
    unknown: Collection[JobId] = ()


class PyslurmQueue:
    """The queue by a pyslurm worker, and by *slurm* what that cannot tell."""

    def __init__(self, slurm: Slurm, process: PyslurmProcess) -> None:
        """Ask *process*; nothing is read yet."""
        self.choice = ReaderChoice("pyslurm", "cluster.reader is pyslurm")
        self._process = process
        self._requests = _Requests(slurm)
        self._cli = CliQueue(slurm)
        self._labels: dict[str, str] = {}

    def read(
        self, reader: JobReader, site: ClusterReading, *, now_s: float
    ) -> tuple[JobTable, Exclusions]:
        """See `Queue.read`: one answer of the worker, and a squeue where there are new jobs."""
        columns, unreadable = columns_of(self._process.ask(do="queue"))
        if unreadable and not columns["JobID"]:
            raise none_readable(unreadable)
        columns["JobArrayID"] = [self._label(label) for label in columns["JobArrayID"]]
        columns.update(self._requests.of(columns["JobID"]))
        table = reader.read_columns(columns, site, now_s=now_s)
        table.unreadable += unreadable
        excluding = {
            int(job_id): nodes
            for job_id, nodes in zip(columns["JobID"], columns[_EXCLUDED], strict=True)
            if nodes not in NO_WORDS
        }
        pending = {
            job: excluding[job]
            for job, state in zip(table.texts, table.state, strict=True)
            if state is JobState.PENDING and job in excluding
        }
        return table, _Told(pending)

    def learn_splits(self, holdings: Holdings, table: JobTable) -> None:
        """See `Queue.learn_splits`: by scontrol."""
        # pyslurm's own way, get_resource_layout_per_node, crashes on Slurm 26.05.
        self._cli.learn_splits(holdings, table)

    def set_site_factor(self, job_id: JobId, value: int) -> bool:
        """See `Queue.set_site_factor`: any but 0, which pyslurm does not send."""
        if value == 0:
            return False
        self._process.ask(do="site_factor", job=int(job_id), value=value)
        return True

    def ask_again(self, job_id: JobId) -> None:
        """See `Queue.ask_again`: they come with each reading."""

    def forget(self) -> None:
        """See `Queue.forget`: exclusions come with each reading, requests are asked anew."""
        self._requests.forget()

    def close(self) -> None:
        """See `Queue.close`: the worker ends."""
        self._process.close()

    def _label(self, raw: str) -> str:
        if "[" not in raw:
            return raw
        label = self._labels.get(raw)
        if label is None:
            if len(self._labels) > _MOST_LABELS:
                self._labels.clear()
            # What is no label makes its record unreadable, and no other.
            label = raw
            with suppress(ValueError):
                label = one_spelling(raw)
            self._labels[raw] = label
        return label


class _Requests:
    """Requests by job, task and socket, asked of squeue once for each job."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        self._known: dict[str, tuple[str, ...]] = {}
        self._stale = False

    def forget(self) -> None:
        """Ask about every job anew."""
        self._stale = True

    def of(self, job_ids: Sequence[str]) -> Columns:
        """The three columns of these jobs.

        Raises:
            ClusterError: Slurm is silent, or the answer cannot be read.
        """
        known = {} if self._stale else self._known
        new = [job_id for job_id in job_ids if job_id not in known]
        if len(new) == 1:
            # One job is cheap to ask for; if it has just ended, that is refused.
            with suppress(ClusterError):
                known |= self._ask(f"--jobs={new[0]}")
        if not known.keys() >= set(new):
            known |= self._ask()
        # What is still missing has ended since.
        nothing = ("",) * len(_REQUESTS)
        self._known = {job_id: known.get(job_id, nothing) for job_id in job_ids}
        self._stale = False
        told = zip(*self._known.values(), strict=True) if job_ids else ((),) * len(_REQUESTS)
        return dict(zip(_REQUESTS, told, strict=True))

    def _ask(self, *which: str) -> dict[str, tuple[str, ...]]:
        nonce = new_nonce()
        fields = ("JobID", "JobArrayID", *_REQUESTS)
        text = self._slurm.run("squeue", *which, *queue_arguments(fields, nonce))
        records, _ = job_records(text, nonce, len(fields))
        return {job_id: tuple(rest) for job_id, _, *rest in records}


def columns_of(answer: Answer) -> tuple[Columns, int]:
    """The columns in an answer to ``queue``, of one length, and the jobs the worker could not read.

    Raises:
        ClusterError: It holds something else.
    """
    columns: Any = answer.get("columns")
    unreadable: Any = answer.get("unreadable")
    if wrong := _wrong_columns(columns):
        msg = f"pyslurm: its answer is no queue: {wrong}"
        raise ClusterError(msg)
    if not isinstance(unreadable, int) or unreadable < 0:
        msg = "pyslurm: its answer does not say how many jobs are unreadable"
        raise ClusterError(msg)
    return {name: columns[name] for name in _TOLD}, unreadable


def _wrong_columns(columns: Any) -> str:  # noqa: ANN401 - whatever was in the JSON
    if not isinstance(columns, dict):
        return "it has no columns"
    for name in _TOLD:
        column = columns.get(name)
        if not isinstance(column, list) or not set(map(type, column)) <= {str}:
            return f"{name} is no list of words"
    lengths = {name: len(columns[name]) for name in _TOLD}
    if len(set(lengths.values())) > 1:
        return "its columns are not of one length"
    ids = columns["JobID"]
    if len(set(ids)) != len(ids) or not all(map(is_number, ids)):
        return "its job ids are not different numbers"
    return ""
