"""Which of the two readers of the queue is used, and why.

`auto` takes pyslurm where it can be imported and is of the release that belongs to the
controller's, and goes back to Slurm's commands where it fails. Whatever was asked for, pyslurm is
believed only after it has said the same of the jobs there are as squeue: one that was built for
another Slurm reads other fields than it says, without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.snapshot import JobText
from slurm_dl.slurm.pyslurm.worker_process import (
    EndedError,
    PausedError,
    PyslurmProcess,
    environment,
    probe,
)
from slurm_dl.slurm.pyslurm.worker_queue import PyslurmQueue
from slurm_dl.slurm.read.gpu_holdings import Holdings
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.job_values import FINISHED
from slurm_dl.slurm.read.node_choices import Exclusions
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.read.queue_reader import CliQueue, QueueReader, ReaderChoice
from slurm_dl.slurm.releases import Release, parse_release, series_of
from slurm_dl.slurm.tool_runner import Slurm

Wanted = Literal["auto", "cli", "pyslurm"]

MOST_FAILURES = 3
"""Polls in a row that pyslurm may fail, in `auto`, before it is left alone."""


def reader_choice(slurm: Slurm, wanted: Wanted, version: str) -> ReaderChoice:
    """Which reader a daemon would begin with on this cluster.

    Args:
        version: SLURM_VERSION of ``scontrol show config``.

    Raises:
        ClusterError: *version* is none, or pyslurm is asked for and cannot work.
    """
    if wanted == "cli":
        return CliQueue(slurm, _CONFIGURED_CLI).choice
    choice = _choose(parse_release(version), environment(slurm.slurm_conf))
    if wanted == "pyslurm" and choice.reader == "cli":
        msg = f"cluster.reader is pyslurm, but {choice.reason}"
        raise ClusterError(msg)
    return choice


def make_queue(
    slurm: Slurm, wanted: Wanted, on_choice: Callable[[ReaderChoice], None]
) -> QueueReader:
    """The reader of the queue as configured; nothing is read or started yet.

    Args:
        on_choice: Told which reader `auto` takes, at the first reading and when that changes.
    """
    if wanted == "cli":
        return CliQueue(slurm, _CONFIGURED_CLI)
    process = PyslurmProcess(environment(slurm.slurm_conf), timeout_s=slurm.timeout_s)
    queue = CheckedQueue(PyslurmQueue(slurm, process), CliQueue(slurm))
    if wanted == "pyslurm":
        return queue
    env = environment(slurm.slurm_conf)
    return AutoQueue(queue, CliQueue(slurm), lambda release: _choose(release, env), on_choice)


def _choose(release: Release, env: dict[str, str]) -> ReaderChoice:
    belongs = series_of(release).pyslurm
    if not belongs:
        return ReaderChoice("cli", f"there is no pyslurm for Slurm {release}")
    try:
        version = probe(env)
    except ClusterError as err:
        return ReaderChoice("cli", str(err))
    if _series(version) != _series(belongs):
        why = f"pyslurm {version} does not belong to Slurm {release} (pyslurm {belongs} does)"
        return ReaderChoice("cli", why)
    return ReaderChoice(
        "pyslurm", f"pyslurm {version} can be imported and belongs to Slurm {release}"
    )


def _series(version: str) -> list[str]:
    """Its first two numbers are Slurm's, the minor one without its 0: ``25.5.0``."""
    return version.split(".")[:2]


_CONFIGURED_CLI = "cluster.reader is cli"


class CheckedQueue:
    """pyslurm, compared with squeue until one comparison with jobs in it has come out right."""

    def __init__(self, queue: QueueReader, cli: CliQueue) -> None:
        """Read from *queue*, and from *cli* to compare."""
        self._queue = queue
        self._cli = cli
        self._checked = False

    @property
    def choice(self) -> ReaderChoice | None:
        """See `QueueReader.choice`."""
        return self._queue.choice

    def read(
        self, reader: JobReader, site: ClusterReading, *, now_s: float
    ) -> tuple[JobTable, Exclusions]:
        """See `QueueReader.read`.

        Raises:
            ClusterError: Also: it is not what squeue says.
        """
        checked, self._checked = self._checked, False
        seen = self._queue.read(reader, site, now_s=now_s)
        if not checked:
            compared, difference = disagreement(
                seen[0], self._cli.table(reader, site, now_s=now_s), began_s=now_s
            )
            if difference:
                msg = f"pyslurm and squeue disagree: {difference}; is it built for this Slurm?"
                raise ClusterError(msg)
            checked = compared > 0
        # After a failure it may be another worker that answers next, on another libslurm.
        self._checked = checked
        return seen

    def learn_splits(self, holdings: Holdings, table: JobTable) -> None:
        """See `QueueReader.learn_splits`."""
        self._queue.learn_splits(holdings, table)

    def set_site_factor(self, job_id: JobId, value: int) -> bool:
        """See `QueueReader.set_site_factor`: not before it has been compared."""
        try:
            return self._checked and self._queue.set_site_factor(job_id, value)
        except EndedError:
            self._checked = False
            raise

    def ask_again(self, job_id: JobId) -> None:
        """See `QueueReader.ask_again`."""
        self._queue.ask_again(job_id)

    def forget(self) -> None:
        """See `QueueReader.forget`."""
        self._queue.forget()

    def close(self) -> None:
        """See `QueueReader.close`."""
        self._queue.close()


class AutoQueue:
    """pyslurm where it fits and works, Slurm's commands otherwise.

    A poll in which pyslurm fails is read by the commands; after `MOST_FAILURES` in a row all are.
    """

    def __init__(
        self,
        pyslurm: QueueReader,
        cli: QueueReader,
        choose: Callable[[Release], ReaderChoice],
        on_choice: Callable[[ReaderChoice], None],
    ) -> None:
        """Choose at the first reading, when the controller's release is known."""
        self._pyslurm = pyslurm
        self._cli = cli
        self._choose = choose
        self._on_choice = on_choice
        self.choice: ReaderChoice | None = None
        self._failures = 0
        self._last = cli

    def read(
        self, reader: JobReader, site: ClusterReading, *, now_s: float
    ) -> tuple[JobTable, Exclusions]:
        """See `QueueReader.read`."""
        if self.choice is None:
            self._settle(self._choose(site.config.release))
        if not self._trusts_pyslurm:
            return self._by_commands(reader, site, now_s=now_s)
        try:
            seen = self._pyslurm.read(reader, site, now_s=now_s)
        except ClusterError as err:
            # Where Slurm itself is silent this fails as well, and it was not pyslurm's fault.
            seen = self._by_commands(reader, site, now_s=now_s)
            # A poll in a pause says nothing new about it.
            self._failures += not isinstance(err, PausedError)
            if self._failures >= MOST_FAILURES:
                self._pyslurm.close()
                why = f"pyslurm failed {self._failures} times in a row, at last so: {err}"
                self._settle(ReaderChoice("cli", why))
            return seen
        self._failures = 0
        self._last = self._pyslurm
        return seen

    def learn_splits(self, holdings: Holdings, table: JobTable) -> None:
        """See `QueueReader.learn_splits`."""
        self._last.learn_splits(holdings, table)

    def set_site_factor(self, job_id: JobId, value: int) -> bool:
        """See `QueueReader.set_site_factor`: where pyslurm cannot, scontrol may."""
        try:
            return self._last.set_site_factor(job_id, value)
        except ClusterError:
            return False

    def ask_again(self, job_id: JobId) -> None:
        """See `QueueReader.ask_again`: of whichever reads next."""
        self._pyslurm.ask_again(job_id)
        self._cli.ask_again(job_id)

    def forget(self) -> None:
        """See `QueueReader.forget`."""
        self._pyslurm.forget()
        self._cli.forget()

    def close(self) -> None:
        """See `QueueReader.close`."""
        self._pyslurm.close()
        self._cli.close()

    @property
    def _trusts_pyslurm(self) -> bool:
        return self.choice is not None and self.choice.reader == "pyslurm"

    def _by_commands(
        self, reader: JobReader, site: ClusterReading, *, now_s: float
    ) -> tuple[JobTable, Exclusions]:
        seen = self._cli.read(reader, site, now_s=now_s)
        self._last = self._cli
        return seen

    def _settle(self, choice: ReaderChoice) -> None:
        self.choice = choice
        self._on_choice(choice)


_COMPARED = (
    *("uid", "partition", "n_nodes", "gpus", "gpu_type", "cpus", "mem_mb", "submit_s"),
    *("limit_s", "restarts", "requeueable", "exclusive", "nodes"),
)
"""What of a job does not change as long as its state does not, unless its owner changes it."""


def disagreement(one: JobTable, other: JobTable, *, began_s: float) -> tuple[int, str]:
    """How many jobs of both tables were compared, and in words where they differ first.

    Jobs that changed their state between the two readings are left out.

    Args:
        one: pyslurm's, read first.
        other: squeue's, read then.
        began_s: When the reading of the first began, epoch seconds.
    """
    row_of = {job_id: row for row, job_id in enumerate(other.job_id)}
    compared = 0
    for row, job_id in enumerate(one.job_id):
        at = row_of.get(job_id)
        if at is None or one.state[row] is not other.state[at]:
            continue
        compared += 1
        for name in _COMPARED:
            a, b = getattr(one, name)[row], getattr(other, name)[at]
            if a != b:
                return compared, f"job {job_id} has {name} {a!r} and {b!r}"
        key = JobId(job_id)
        if one.claims.get(key) != other.claims.get(key):
            return compared, f"job {job_id} has another comment"
        if _words(one.texts[key]) != _words(other.texts[key]):
            return compared, f"job {job_id} has another name, account or QOS"
    if one.job_id and other.job_id and not compared:
        return 0, "they have no job in common"
    missing = _missing(one, other, began_s)
    if len(missing) > one.unreadable:
        return compared, f"{len(missing)} jobs are missing, job {missing[0]} first"
    return compared, ""


def _words(text: JobText) -> tuple[str, str, str]:
    # Labels and reasons change while a job waits.
    return text.name, text.account, text.qos


def _missing(one: JobTable, other: JobTable, began_s: float) -> list[int]:
    """Jobs of *other* that were there when *one* was read and are not in it."""
    told = set(one.job_id)
    rows = zip(other.job_id, other.state, other.submit_s, other.start_s, strict=True)
    # A task of an array has a job id of its own from its start on, or from its cancellation.
    return [
        job_id
        for job_id, state, submit_s, start_s in rows
        if job_id not in told and state not in FINISHED and submit_s < began_s and start_s < began_s
    ]
