"""Running jobs that their account or QOS would keep from starting again after a requeue.

``scontrol show assoc_mgr flags=assoc,qos`` lists the associations and QOS that slurmctld knows,
with each limit and what is used of it: ``gres/gpu=8(3)``. It does not say which QOS a user may use.
"""

from __future__ import annotations

import itertools
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
from slurm_dl.text import escaped

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

    def used_up(self, job: JobText, own: dict[str, bool], part_qos: str, held: set[str]) -> str:
        """Words for a limit that keeps a job waiting; empty if none is known to."""
        names = sorted({job.qos, part_qos} & self.qos.keys())
        of_qos = {f"QOS {escaped(name, 80)}": self.qos[name] for name in names}
        chain, account = {"its association": own}, job.account
        while (who := f"account {escaped(account, 80)}") not in chain and account in self.parents:
            chain[who] = self.limits.get((account, "", ""), {})
            account = self.parents[account]
        for limit in sorted(held & {*itertools.chain(*chain.values(), *of_qos.values())}):
            # A limit of the job's or the partition's QOS comes instead of those of associations.
            # Which of the two QOS comes first is not told, so both have to be used up.
            first = {who: limits[limit] for who, limits in of_qos.items() if limit in limits}
            if all(first.values()):
                for who in first or (who for who, limits in chain.items() if limits.get(limit)):
                    return f"{who} has used up {escaped(limit, 80)}"
        return ""


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
) -> dict[JobId, str]:
    """Of *jobs*, those that Slurm would not start again, with a clause that says why.

    Args:
        text: What scontrol says; nothing follows from it if it is empty or not whole.
        enforced: Words of AccountingStorageEnforce, as in `SiteConfig.enforced`.
        held: TRES that jobs hold, such as ``gres/gpu``; GrpTRESMins of others do not bind them.
        partition_qos: The QOS of each partition that has one.
    """
    words = enforced | ({"limits", "qos"} if "all" in enforced else set())
    found: dict[JobId, str] = {}
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
        if own is None:
            names = f"account {escaped(job.account, 80)}, user {escaped(job.user, 80)}"
            found[job_id] = f"its association ({names}) is gone"
        elif "qos" in words and job.qos not in records.qos:
            # Of a QOS that was deleted squeue no longer has the name.
            found[job_id] = f"QOS {escaped(job.qos, 80)} is gone" if job.qos else "its QOS is gone"
        elif words & {"limits", "safe"}:
            binding = {f"GrpTRESMins ({name})" for name in held.get(job_id, ())} | {"GrpWall"}
            why = records.used_up(job, own, partition_qos.get(partition, ""), binding)
            found |= {job_id: why} if why else {}
    return found


class BarredJobs:
    """The running jobs that were found to be barred, asked about as seldom as may be.

    Attributes:
        found: By job id, with a clause that says why.
    """

    def __init__(self, slurm: Slurm) -> None:
        """Read through *slurm*; nothing is known yet."""
        self.found: dict[JobId, str] = {}
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
