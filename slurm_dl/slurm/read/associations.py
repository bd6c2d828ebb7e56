"""Running jobs that their account or QOS would keep from starting again after a requeue.

``scontrol show assoc_mgr flags=assoc,qos`` lists the associations and QOS that slurmctld knows,
with each limit and what is used of it: ``gres/gpu=8(3)``. It does not say which QOS a user may use.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.snapshot import JobText
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.tool_runner import Slurm

_ASSOCIATION: Final = re.compile(
    r"\A\S* Account=(\S+) UserName=([^\s(]*)(?:\(([0-9]+)\))? Partition=(\S*) Priority=\S* ID="
)
_QOS: Final = re.compile(r"\A([^\s(]+)\([0-9]+\)\s")
_PARENT: Final = re.compile(r" ParentAccount=([^\s(]*)")
_LIMITS: Final = re.compile(r" GrpWall=(\S*)(?:[^\n]*\n){1,9}? *GrpTRESMins=(\S*)")
_LIMIT: Final = re.compile(r"([^=,]+)=([0-9]{1,19})\(([0-9]{1,19})(?:\.[0-9]+)?\)")
_HELD: Final = frozenset({"cpu", "mem", "node", "billing", "gres/gpu"})
"""TRES of which every job of a GPU partition holds some."""
_KEPT_S: Final = 60.0


class _Records:
    """Limits of associations, by account, user or uid, and partition, and of QOS.

    Raises:
        ValueError: Some are missing or cannot be read.
    """

    def __init__(self, text: str) -> None:
        self.limits: dict[tuple[str, str, str], dict[str, bool]] = {}
        self.parents: dict[str, str] = {}
        self.qos: dict[str, dict[str, bool]] = {}
        associations, _, qos = text.partition("\nQOS Records")
        for body in associations.split("\nClusterName=")[1:]:
            account, user, uid, partition = _groups(_ASSOCIATION, body)
            self.parents.setdefault(account, _groups(_PARENT, body)[0])
            # squeue has the uid of a user whose name its host does not know.
            for name in {user.lower(), uid if user else ""}:
                self.limits[account, name, partition] = _limits(body)
        for body in qos.split("\nQOS=")[1:]:
            self.qos[_groups(_QOS, body)[0]] = _limits(body)
        # Under PrivateData ordinary users see no association but their own.
        if ("root", "", "") not in self.limits or not self.qos:
            raise ValueError

    def used_up(self, job: JobText, own: dict[str, bool], part_qos: str, held: set[str]) -> bool:
        """Whether a limit on what is *held* is known to keep *job* waiting."""
        of_qos = [self.qos[name] for name in {job.qos, part_qos} & self.qos.keys()]
        chain, account, seen = [own], job.account, set[str]()
        while account in self.parents and account not in seen:
            chain.append(self.limits.get((account, "", ""), {}))
            seen.add(account)
            account = self.parents[account]
        for limit in held:
            # A limit of the job's or the partition's QOS comes instead of those of associations.
            # Which of the two QOS comes first is not told, so both have to be used up.
            first = [limits[limit] for limits in of_qos if limit in limits]
            if all(first) if first else any(limits.get(limit) for limits in chain):
                return True
        return False


def _groups(pattern: re.Pattern[str], body: str) -> tuple[str, ...]:
    found = pattern.search(body)
    if found is None:
        raise ValueError
    return found.groups(default="")


def _limits(body: str) -> dict[str, bool]:
    """Of each TRES with a limit, and of ``GrpWall``, whether it is used up."""
    text = "GrpWall={},{}".format(*_groups(_LIMITS, body))
    if text.count("=") == text.count("=N("):
        return {}
    return {
        name if name == "GrpWall" else f"GrpTRESMins ({name})": int(used) >= int(most)
        for name, most, used in _LIMIT.findall(text)
    }


def barred(
    text: str,
    jobs: Mapping[JobId, JobText],
    partitions: Mapping[JobId, str],
    *,
    enforced: frozenset[str],
    held: Mapping[JobId, frozenset[str]],
    partition_qos: Mapping[str, str],
) -> set[JobId]:
    """Those of *jobs* that Slurm would not start again.

    Args:
        text: What scontrol says; nothing follows from it if it is empty or not whole.
        enforced: Words of AccountingStorageEnforce, as in `SiteConfig.enforced`.
        held: TRES that jobs hold, such as ``gres/gpu``; GrpTRESMins of others do not bind them.
        partition_qos: The QOS of each partition that has one.
    """
    words = enforced | ({"limits", "qos"} if "all" in enforced else set())
    found: set[JobId] = set()
    try:
        records = _Records(text if words & {"associations", "limits", "qos", "safe"} else "")
    except ValueError:
        return found
    for job_id, job in jobs.items():
        user, partition = job.user.lower(), partitions.get(job_id, "")
        if not (partition and user and job.account):
            continue
        anywhere = records.limits.get((job.account, user, ""))
        own = records.limits.get((job.account, user, partition), anywhere)
        # Of a QOS that was deleted squeue no longer has the name.
        gone = own is None or ("qos" in words and job.qos not in records.qos)
        if own is not None and not gone and words & {"limits", "safe"}:
            binding = {f"GrpTRESMins ({name})" for name in held.get(job_id, ())} | {"GrpWall"}
            gone = records.used_up(job, own, partition_qos.get(partition, ""), binding)
        if gone:
            found.add(job_id)
    return found


class BarredJobs:
    """The running jobs that were found to be barred, asked about as seldom as may be.

    Attributes:
        found: Their ids.
    """

    def __init__(self, slurm: Slurm) -> None:
        """Read through *slurm*; nothing is known yet."""
        self.found: set[JobId] = set()
        self._slurm = slurm
        self._text = ""
        self._until_s = -math.inf

    def ask(
        self,
        jobs: Collection[JobId],
        table: JobTable,
        site: ClusterReading,
        words: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Find out about *jobs* of *table* that run; one scontrol at most, and one a minute.

        Args:
            words: Of each partition, as `partition_values` has them.
        """
        rows = [
            (job, row)
            for row, job in enumerate(table.texts)
            if job in jobs and table.state[row] is JobState.RUNNING
        ]
        if not (rows and site.config.enforced and site.config.accounting):
            return
        if time.monotonic() >= self._until_s:
            self._until_s, self._text = time.monotonic() + _KEPT_S, ""
            with suppress(ClusterError):  # Nothing follows from what may not be read.
                self._text = self._slurm.run("scontrol", "show", "assoc_mgr", "flags=assoc,qos")
        self.found |= barred(
            self._text,
            {job: table.texts[job] for job, _ in rows},
            {job: site.partitions[table.partition[row]] for job, row in rows},
            enforced=site.config.enforced,
            held={
                job: _HELD | ({f"gres/gpu:{kind}"} if (kind := table.gpu_type[row]) else set())
                for job, row in rows
            },
            partition_qos={name: of.get("QoS", "") for name, of in words.items()},
        )
