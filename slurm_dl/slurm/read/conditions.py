"""What jobs ask of nodes beside the queue's columns, read once for each of them.

squeue 22.05 tells ``--exclude`` and half of the rest by ``-o`` only: one call, made while there are
pending jobs of which it is not known. What no squeue tells (``--gres-flags``, ``--spread-job``) is
read of a job alone, before anybody is stopped for it: words that its owner writes stand in that
text too, but they can only make it look as if it asked for more.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.slurm.read.hostlists import NO_WORDS
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.squeue_fields import of_jobs
from slurm_dl.slurm.read.tres import parse_memory_mb
from slurm_dl.slurm.read.vocabulary import is_number
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped

CONDITION_ARGUMENTS = (
    # --noconvert: 2048 CPUs are not 2K, which any user may ask for.
    *("--noheader", "--all", "--local", "--noconvert", "--array", "--states=PENDING"),
    "--format=%A %x %c %d %H %I %J %X %O %W",
)
"""Arguments for squeue that list the conditions of each pending record."""

_OPTIONS = (
    "--sockets-per-node",
    "--cores-per-socket",
    "--threads-per-core",
    "--core-spec",
    "--contiguous",
    "--licenses",
)
_UNSET = NO_WORDS | {"*", "0"}
_ALONE = (
    ("--gres-flags", re.compile(r"\bGres(?!EnforceBind=No)\w+=(?:Yes|No)\b")),
    ("--spread-job", re.compile(r"\bSpreadJob=Yes")),
    ("--network", re.compile(r"\bNetwork=(?!\(null\))\S")),
    ("--bb", re.compile(r"\bBurstBuffer=(?!\(null\))\S")),
    ("--switches", re.compile(r"\bSwitches=[1-9]")),
    ("--cluster-constraint", re.compile(r"\bClusterFeatures=(?!\(null\))\S")),
    ("--ntasks-per-socket", re.compile(r"\bNtasksPerN:B:S:C=[0-9]+:[0-9]+:[1-9]")),
)
SWITCHES = "--switches"
"""The option that is understood where the topology is known."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What one job asks of nodes.

    Attributes:
        excluded: Node list of its ``--exclude``; empty if there is none.
        min_cpus: CPUs that each node must have free.
        tmp_mb: Disk under TmpFS that each node must have, MB.
        options: Options of sbatch whose nodes are not known here.
    """

    excluded: str = ""
    min_cpus: int = 1
    tmp_mb: int = 0
    options: tuple[str, ...] = ()


_PLAIN = Conditions()


def read_conditions(text: str) -> tuple[dict[JobId, Conditions], list[str]]:
    """Conditions by job id in squeue's answer to `CONDITION_ARGUMENTS`, and the lines left out.

    Raises:
        ClusterError: No line can be read.
    """
    found, left_out = {}, []
    # Slurm takes only names of nodes and licences that there are, but an owner writes them.
    for line in text.splitlines():
        job_id, *words = line.split(" ")
        if not (is_number(job_id) and len(words) == 3 + len(_OPTIONS) and is_number(words[1])):
            left_out.append(line)
            continue
        nodes, min_cpus, tmp, *rest = words
        asked = Conditions(
            excluded="" if nodes in NO_WORDS else nodes,
            min_cpus=int(min_cpus),
            tmp_mb=parse_memory_mb(tmp),
            options=tuple(o for o, word in zip(_OPTIONS, rest, strict=True) if word not in _UNSET),
        )
        found[JobId(int(job_id))] = _PLAIN if asked == _PLAIN else asked
    if left_out and not found:
        msg = f"squeue says {escaped(left_out[0])[:80]!r}, which are no conditions of a job"
        raise ClusterError(msg)
    return found, left_out


class ConditionReader:
    """The conditions of pending jobs, and of the running ones that were asked about."""

    def __init__(self, slurm: Slurm) -> None:
        """Read through *slurm*; nothing is known yet."""
        self._slurm = slurm
        self._known: dict[JobId, Conditions] = {}
        self._to_ask: set[JobId] = set()
        self._alone: dict[JobId, tuple[str, ...]] = {}
        self._unknown: set[JobId] = set()

    def forget(self) -> None:
        """Ask about every job anew: owners may change it while the job waits."""
        self._to_ask |= self._known.keys()
        self._alone.clear()

    def ask_again(self, job_id: JobId) -> None:
        """Ask about this job anew: what it excludes has just been changed, or may have been."""
        self._to_ask.add(job_id)

    def learn(self, table: JobTable) -> None:
        """Ask about those pending jobs of *table* that are new.

        Raises:
            ClusterError: Slurm is silent, or nothing in the answer can be read.
        """
        states = zip(table.texts, table.state, strict=True)
        state = {job: s for job, s in states if s in (JobState.PENDING, JobState.RUNNING)}
        pending = {job for job, s in state.items() if s is JobState.PENDING}
        # Of a job that is requeued all is asked again.
        self._to_ask |= self._known.keys() - pending
        self._known = {job: c for job, c in self._known.items() if job in state}
        self._alone = {job: o for job, o in self._alone.items() if job in pending}
        new = (pending - self._known.keys()) | (pending & self._to_ask)
        if len(new) == 1:
            # One job is cheap to ask for. It may just have ended: then it stays unknown.
            with suppress(ClusterError):
                self._ask(f"--jobs={next(iter(new))}")
        elif new:
            self._ask()
        self._unknown = pending - self._known.keys() | (pending & self._to_ask)
        # squeue counts the CPUs of its tasks alone, whatever --mincpus asks of a node.
        for row, job in enumerate(table.texts):
            least = self._known.get(job, _PLAIN).min_cpus * table.n_nodes[row]
            if least > table.cpus[row] and job in pending:
                table.cpus[row] = least

    def learn_whole(self, jobs: Collection[JobId], pending: Collection[JobId]) -> None:
        """Ask all that there is to know of *jobs*, of which *pending* wait.

        A job that has left meanwhile stays unknown until the next reading.

        Raises:
            ClusterError: Slurm is silent.
        """
        new = [job for job in jobs if job not in self._known or job in self._to_ask]
        if new:
            self._ask("--states=PENDING,RUNNING", *of_jobs(new))
        for job in pending:
            if job in self._alone:
                continue
            try:
                shown = self._slurm.run("scontrol", "show", "job", "--oneliner", str(int(job)))
            except ClusterError:
                self._unknown.add(job)
            else:
                self._alone[job] = tuple(o for o, at in _ALONE if at.search(shown))

    def restricted(self, those: Collection[JobId]) -> dict[JobId, Conditions]:
        """The conditions of *those* jobs that are known to have any but on CPUs."""
        asked = {job: c for job, c in self._known.items() if c is not _PLAIN or job in self._alone}
        return {
            job: c
            for job, c in asked.items()
            if job in those and (c.excluded or c.tmp_mb or self.options(job))
        }

    def options(self, job_id: JobId) -> tuple[str, ...]:
        """Options of sbatch that the job has and whose nodes are not known."""
        known = self._known.get(job_id)
        return (known.options if known else ()) + self._alone.get(job_id, ())

    @property
    def unknown(self) -> Collection[JobId]:
        """Pending jobs of which nothing is known."""
        return self._unknown

    def _ask(self, *which: str) -> None:
        *arguments, output = CONDITION_ARGUMENTS
        found, _ = read_conditions(self._slurm.run("squeue", *arguments, *which, output))
        self._known |= found
        self._to_ask -= found.keys()
