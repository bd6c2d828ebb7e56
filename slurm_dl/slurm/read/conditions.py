"""Requests of jobs on nodes that are no columns of the queue, read once for each job.

squeue 22.05 tells ``--exclude`` and half of the rest by ``-o`` only: one call, made while there are
pending jobs of which it is not known. What no squeue tells (``--gres-flags``, ``--spread-job``) is
read of a job alone, before anybody is stopped for it: words that its owner writes stand in that
text too, but they can only make it look as if it asked for more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.slurm.read.grammar import NO_WORDS
from slurm_dl.slurm.read.job_table import INT32_MAX, JobTable
from slurm_dl.slurm.read.record_parser import of_jobs
from slurm_dl.slurm.read.tres import parse_memory_mb
from slurm_dl.slurm.tool_runner import Slurm

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
# Of --thread-spec squeue says "1 Threads"; licences may hold blanks, as their owners wrote them.
_LINE = re.compile(
    r"([0-9]{1,10}) (\S*) ([0-9]{1,10}) (\S+) (\S+) (\S+) (\S+) (\S+(?: Threads)?) (\S+) (.*)",
    re.ASCII,
)
_UNSET = NO_WORDS | {"*", "0"}
_SWITCHES = re.compile(r" Switches=([1-9][0-9]{0,8})")
_ALONE = (
    ("--gres-flags", re.compile(r" Gres(?!EnforceBind=No)\w+=(?:Yes|No)\b")),
    ("--spread-job", re.compile(r" SpreadJob=Yes")),
    ("--network", re.compile(r" Network=(?!\(null\))\S")),
    ("--bb", re.compile(r" BurstBuffer=(?!\(null\))\S")),
    ("--switches", _SWITCHES),
    ("--segment", re.compile(r" SegmentSize=[1-9]")),
    ("--cluster-constraint", re.compile(r" ClusterFeatures=(?!\(null\))\S")),
    ("--ntasks-per-socket", re.compile(r" NtasksPerN:B:S:C=[0-9]+:[0-9]+:[1-9]")),
    ("--ntasks-per-core", re.compile(r" NtasksPerN:B:S:C=[0-9]+:[0-9]+:[0-9*]+:[1-9]")),
)
_CPUS_PER_GPU = re.compile(r" CpusPerTres=gres[:/]gpu[:=]([0-9]{1,6})")
_LICENCE = re.compile(r"([^\s,;:|*@()]+)(?:[:*]([0-9]{1,9}))?", re.ASCII)
_LICENCES = re.compile(
    r"^LicenseName=(\S+)\s+Total=([0-9]{1,10}) Used=([0-9]{1,10}) .*?"
    r"\bReserved=([0-9]{1,10}) .*?\bRemote=no",
    re.ASCII | re.MULTILINE,
)
OPTIONS = frozenset({*_OPTIONS, *(option for option, _ in _ALONE)})
"""Options of sbatch for which nodes are not known."""

LICENSES = "--licenses"  # The option that is understood of licences of the cluster's own
SWITCHES = "--switches"  # The option that is understood where the topology is known

PER_CORE = frozenset({"--threads-per-core", "--ntasks-per-core"})
"""Options that ask for nothing where each core has one thread."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Requests of one job on nodes.

    Attributes:
        licences: Names and numbers of those that it needs, all of them; none if that is not known.
    """

    excluded: str = ""  # Node list of its ``--exclude``; empty if there is none
    min_cpus: int = 1  # CPUs that each node must have free
    tmp_mb: int = 0  # Disk under TmpFS that each node must have, MB
    options: tuple[str, ...] = ()  # Options of sbatch whose nodes are not known here
    cpus_per_gpu: int = 0  # CPUs for each GPU
    switches: int = 0  # Most leaf switches, 0 if any number will do
    licences: tuple[tuple[str, int], ...] = ()

    def unknown(self, licences: Collection[str]) -> tuple[str, ...]:
        """Its *options*, but for those on *licences* of this cluster alone."""
        known = self.licences and all(name in licences for name, _ in self.licences)
        return tuple(o for o in self.options if not (known and o == LICENSES))


HOLDING = (JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED)
"""States in which a job counts in limits and holds licences."""

_PLAIN = Conditions()


def read_licences(slurm: Slurm) -> dict[str, tuple[float, float]]:
    """Of each licence of the cluster's own how many jobs may hold, and how many are held."""
    text = ""
    with suppress(ClusterError):  # Those that are not known are not understood.
        text = slurm.run("scontrol", "show", "lic")
    return {
        name: (float(total) - float(reserved), float(used))
        for name, total, used, reserved in _LICENCES.findall(text)
    }


def _asked_licences(text: str) -> tuple[tuple[str, int], ...]:
    """The licences of a list; none if it is not understood, or one of several would do."""
    found = [_LICENCE.fullmatch(word) for word in re.split("[,;]", text.strip(",;"))]
    return tuple((one[1], int(one[2] or 1)) for one in found if one) if all(found) else ()


def read_conditions(text: str) -> tuple[dict[JobId, Conditions], list[str]]:
    """Conditions by job id in squeue's answer to `CONDITION_ARGUMENTS`, and the lines left out."""
    found, left_out = {}, []
    for line in text.splitlines():
        if not (match := _LINE.fullmatch(line)):
            left_out.append(line)
            continue
        job_id, nodes, min_cpus, tmp, *rest = match.groups()
        asked = Conditions(
            excluded="" if nodes in NO_WORDS else nodes,
            min_cpus=int(min_cpus),
            tmp_mb=parse_memory_mb(tmp),
            options=tuple(o for o, word in zip(_OPTIONS, rest, strict=True) if word not in _UNSET),
            licences=() if rest[-1] in _UNSET else _asked_licences(rest[-1]),
        )
        found[JobId(int(job_id))] = _PLAIN if asked == _PLAIN else asked
    return found, left_out


class ConditionReader:
    """Asks about each pending job once, and about running ones before they are stopped.

    Attributes:
        unknown: Pending jobs of which nothing is known.
    """

    def __init__(self, slurm: Slurm) -> None:
        """Read through *slurm*; nothing is known yet."""
        self._conditions: dict[JobId, Conditions] = {}
        self.unknown: set[JobId] = set()
        self._slurm = slurm
        self._known: set[JobId] = set()
        self._known_whole: set[JobId] = set()
        self._known_running: set[JobId] = set()
        self._alone: dict[JobId, Conditions] = {}

    def forget(self) -> None:
        """Ask about every job anew: owners may change it while the job waits."""
        self._known.clear()

    def ask_again(self, job_id: JobId) -> None:
        """Ask about this job anew: what it asks for has just been changed, or may have been."""
        self._known.discard(job_id)

    def learn(self, table: JobTable, *, licences: bool = False) -> None:
        """Ask about those pending jobs of *table* that are new, and correct its CPUs.

        Args:
            licences: There are some: ask about running jobs too, which may hold them.

        Raises:
            ClusterError: Slurm is silent.
        """
        pending = _in_state(table, JobState.PENDING)
        running = _in_state(table, *HOLDING) if licences else set()
        for by_id in (self._conditions, self._alone):
            for job in by_id.keys() - table.texts.keys():
                del by_id[job]
        self._known_running = running & (self._known_running | self._known)
        # Of a job that is requeued all is asked again.
        self._known &= pending
        self._known_whole &= pending
        new = (pending - self._known) | (running - self._known_running)
        states = ("--states=PENDING,RUNNING,CONFIGURING,SUSPENDED",) if running else ()
        if len(new) == 1:
            # One job is cheap to ask for. It may just have ended: then it stays unknown.
            with suppress(ClusterError):
                self._ask(*states, f"--jobs={next(iter(new))}")
        elif new:
            self._ask(*states)
        self._known_running |= running & self._known
        self.unknown = pending - self._known
        self._raise_cpus(table)

    def learn_whole(self, jobs: Collection[JobId], table: JobTable) -> None:
        """Ask all that there is to know of *jobs* of *table*, and correct its CPUs.

        A job that has left meanwhile stays unknown until the next reading.

        Raises:
            ClusterError: Slurm is silent.
        """
        new = [job for job in jobs if job not in self._known]
        if new:
            self._ask("--states=PENDING,RUNNING", *of_jobs(new))
        for job in _in_state(table, JobState.PENDING).intersection(jobs) - self._known_whole:
            try:
                shown = self._slurm.run("scontrol", "show", "job", "--oneliner", str(int(job)))
            except ClusterError:
                self.unknown.add(job)
                continue
            self._known_whole.add(job)
            # Others than the real words may be forged, by what its owner wrote.
            self._alone[job] = Conditions(
                options=tuple(option for option, at in _ALONE if at.search(shown)),
                cpus_per_gpu=max(map(int, _CPUS_PER_GPU.findall(shown)), default=0),
                switches=min(map(int, _SWITCHES.findall(shown)), default=0),
            )
        self._raise_cpus(table)

    def items(self) -> Iterator[tuple[JobId, Conditions]]:
        """The jobs that are known to have conditions, also those that run since."""
        for job, asked in self._conditions.items():
            # Most jobs have conditions (-c is one), and few were asked about alone.
            if alone := self._alone.get(job):
                options = asked.options + alone.options
                yield job, replace(asked, options=options, switches=alone.switches)
            else:
                yield job, asked
        for job in self._alone.keys() - self._conditions.keys():
            yield job, self._alone[job]

    def _raise_cpus(self, table: JobTable) -> None:
        """Of a pending job squeue counts the CPUs of its tasks, whatever else it asks of a node."""
        for row, job in enumerate(table.texts) if self._conditions or self._alone else ():
            if table.state[row] is JobState.PENDING:
                at_least = self._conditions.get(job, _PLAIN).min_cpus * table.n_nodes[row]
                of_gpus = self._alone.get(job, _PLAIN).cpus_per_gpu * int(table.gpus[row])
                table.cpus[row] = min(max(table.cpus[row], at_least, of_gpus), INT32_MAX)

    def _ask(self, *which: str) -> None:
        *arguments, output = CONDITION_ARGUMENTS
        found, _ = read_conditions(self._slurm.run("squeue", *arguments, *which, output))
        self._known |= found.keys()
        self._known_whole -= found.keys()
        self._conditions |= found
        for job in [job for job, asked in found.items() if asked is _PLAIN]:
            del self._conditions[job]


def _in_state(table: JobTable, *states: JobState) -> set[JobId]:
    rows = zip(table.texts, table.state, strict=True)
    return {job for job, state in rows if state in states}
