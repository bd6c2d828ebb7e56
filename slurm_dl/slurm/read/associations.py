"""Running jobs that their account, QOS or partition would keep from starting again.

``scontrol show assoc_mgr flags=assoc,qos`` lists the associations and QOS that slurmctld knows,
with each limit and what is used of it: ``gres/gpu=8(3)``. It does not say which QOS a user may use.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.snapshot import JobText
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import ClusterReading
from slurm_dl.slurm.releases import Release
from slurm_dl.slurm.tool_runner import Slurm

_ASSOCIATION: Final = re.compile(
    r"\A\S* Account=(\S+) UserName=([^\s(]*)(?:\(([0-9]+)\))? Partition=(\S*) Priority=\S* ID="
)
_QOS: Final = re.compile(r"\A([^\s(]+)\([0-9]+\)\s")
_PARENT: Final = re.compile(r" ParentAccount=([^\s(]*)")
_LIMITS: Final = re.compile(
    r" (GrpWall|GrpTRES|GrpTRESMins|GrpTRESRunMins|MaxWallPJ|MaxTRESPJ|MaxTRESMinsPJ)=(\S*)"
)
_AMOUNT: Final = re.compile(r"([^=,]+)=([0-9]{1,19}|N)(?:\(([0-9]{1,19})(?:\.[0-9]+)?\))?(?=,|\Z)")
_KEPT_S: Final = 60.0
_NESTS: Final = Release(23, 2, 0)

Limits = Mapping[str, Mapping[str, tuple[float, float]]]
"""Of each limit by its name, and of each TRES, the most that is allowed and what is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarredCandidate:
    """A running job that would start again.

    Attributes:
        text: Names of its user, account and QOS.
        partition: Name of its partition.
        tres: Units that it holds, such as ``gres/gpu``; 0 if how many is not known.
        limit_min: Its time limit, minutes.
        left_min: What is left of it, minutes.
    """

    text: JobText
    partition: str
    tres: Mapping[str, float]
    limit_min: float
    left_min: float

    def reached(self, limits: Limits, *, safe: bool) -> Iterator[tuple[str, bool]]:
        """Each of *limits* on something that the job holds, and whether it could not start by it.

        Args:
            safe: Slurm starts only jobs whose whole run is within GrpTRESMins.
        """
        running = limits.get("GrpTRESRunMins", {})
        for limit, amounts in limits.items():
            for name, (most, used) in amounts.items():
                units = self.tres.get(name, 0.0)
                needed = 0.0
                if limit == "MaxWallPJ":
                    needed = self.limit_min
                elif limit in ("GrpTRES", "MaxTRESPJ"):
                    needed = units
                elif limit == "MaxTRESMinsPJ":
                    needed = units * self.limit_min
                elif limit == "GrpTRESMins" and safe:
                    others = max(0.0, running.get(name, (0.0, 0.0))[1] - units * self.left_min)
                    needed = used + others + units * self.limit_min
                used_up = limit in ("GrpWall", "GrpTRESMins") and used >= most
                if most < math.inf and limit != "GrpTRESRunMins" and name in {*self.tres, "wall"}:
                    yield f"{limit} {name}", used_up or needed > most


class _Records:
    """Limits of associations, by account, user or uid, and partition, and of QOS.

    Raises:
        ValueError: Some are missing or cannot be read.
    """

    def __init__(self, text: str) -> None:
        self.limits: dict[tuple[str, str, str], Limits] = {}
        self.parents: dict[str, str] = {}
        self.qos: dict[str, Limits] = {}
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

    def accounts(self, account: str) -> list[str]:
        """The *account* and those above it."""
        found: list[str] = []
        while account in self.parents and account not in found:
            found.append(account)
            account = self.parents[account]
        return found

    def keep(self, job: BarredCandidate, own: Limits, part_qos: str, *, safe: bool) -> bool:
        """Whether a limit is known to keep *job* waiting; *own* are those of its association."""
        names = {job.text.qos, part_qos} & self.qos.keys()
        of_qos = [dict(job.reached(self.qos[name], safe=safe)) for name in names]
        above = [self.limits.get((a, "", ""), {}) for a in self.accounts(job.text.account)]
        reached = dict(job.reached(own, safe=safe))
        for limits in above:
            for limit, is_reached in job.reached(limits, safe=safe):
                if limit.startswith("Grp"):  # Those of a job are the association's own.
                    reached[limit] = reached.get(limit, False) or is_reached
        # A limit of the job's or the partition's QOS comes instead of those of associations.
        # Which of the two QOS comes first is not told, so both have to be used up.
        for limit in {limit for limits in of_qos for limit in limits}:
            reached[limit] = all(limits[limit] for limits in of_qos if limit in limits)
        return any(reached.values())


@functools.lru_cache(1)
def _records(text: str) -> _Records | None:
    """What *text* tells; None if it is not whole. One text serves for many looks."""
    try:
        return _Records(text)
    except ValueError:
        return None


def _groups(pattern: re.Pattern[str], body: str) -> tuple[str, ...]:
    found = pattern.search(body)
    if found is None:
        raise ValueError
    return found.groups(default="")


def _limits(body: str) -> Limits:
    told = dict(_LIMITS.findall(body))
    if "GrpWall" not in told or "GrpTRESMins" not in told:
        raise ValueError
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for limit, value in told.items():
        # A limit on time has no TRES before it.
        text = f"wall={value}" if "Wall" in limit else value
        is_limited = text.count("=") > text.count("=N(")
        if is_limited or (limit == "GrpTRESRunMins" and "GrpTRESMins" in found):
            found[limit] = {
                name: (math.inf if most == "N" else float(most), float(used or 0))
                for name, most, used in _AMOUNT.findall(text)
            }
    return found


def _admits(words: Mapping[str, str], accounts: Collection[str], qos: str) -> bool:
    """Whether a partition with these *words* takes jobs of *qos* and one of *accounts*."""
    for kind, names in (("Accounts", list(accounts)), ("Qos", [qos])):
        allowed = words.get(f"Allow{kind}", "ALL")
        if allowed not in ("ALL", "(null)"):
            if set(names).isdisjoint(allowed.split(",")):
                return False
        elif names[0] in words.get(f"Deny{kind}", "(null)").split(","):
            return False
    return True


def barred(
    text: str,
    jobs: Mapping[JobId, BarredCandidate],
    *,
    enforced: frozenset[str],
    partitions: Mapping[str, Mapping[str, str]],
    nested: bool = False,
) -> set[JobId]:
    """Those of *jobs* that Slurm would not start again.

    Args:
        text: What scontrol says; nothing follows from it if it is empty or not whole.
        enforced: Words of AccountingStorageEnforce, as in `SiteConfig.enforced`.
        partitions: Words of each, as `partition_values` has them.
        nested: A partition that admits an account may admit those below it, too.
    """
    words = enforced | ({"limits", "qos", "safe"} if "all" in enforced else set())
    found: set[JobId] = set()
    records = _records(text) if words & {"associations", "limits", "qos", "safe"} else None
    if records is None:
        return found
    for job_id, job in jobs.items():
        of, user = job.text, job.text.user.lower()
        if not (job.partition and user and of.account):
            continue
        anywhere = records.limits.get((of.account, user, ""))
        own = records.limits.get((of.account, user, job.partition), anywhere)
        part = partitions.get(job.partition, {})
        accounts = records.accounts(of.account) if nested else [of.account]
        admitted = user == "root" or _admits(part, accounts, of.qos)
        # Of a QOS that was deleted squeue no longer has the name.
        if own is None or not admitted or ("qos" in words and of.qos not in records.qos):
            found.add(job_id)
        elif words & {"limits", "safe"}:
            kept = records.keep(job, own, part.get("QoS", ""), safe="safe" in words)
            found |= {job_id} if kept else set()
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
        now_s: float,
    ) -> None:
        """Find out about *jobs* of *table* that run; one scontrol at most, and one a minute.

        Args:
            words: Of each partition, as `partition_values` has them.
            now_s: When the table was read, epoch seconds.
        """
        if not (site.config.enforced and site.config.accounting):
            return
        asked = {
            job: _candidate(table, row, site.partitions[table.partition[row]], now_s)
            for row, job in enumerate(table.texts)
            if job in jobs and table.state[row] is JobState.RUNNING
        }
        if asked and time.monotonic() >= self._until_s:
            self._until_s, self._text = time.monotonic() + _KEPT_S, ""
            with suppress(ClusterError):  # Nothing follows from what may not be read.
                self._text = self._slurm.run("scontrol", "show", "assoc_mgr", "flags=assoc,qos")
        self.found |= barred(
            self._text,
            asked,
            enforced=site.config.enforced,
            partitions=words,
            # 22.05.8 admits the account alone (measured); of later releases nothing is concluded.
            nested=site.config.release >= _NESTS,
        )


def _candidate(table: JobTable, row: int, partition: str, now_s: float) -> BarredCandidate:
    tres = {"cpu": float(table.cpus[row]), "node": float(table.n_nodes[row]), "billing": 0.0}
    tres |= {"mem": float(table.mem_mb[row]), "gres/gpu": table.gpus[row]}
    if kind := table.gpu_type[row]:
        tres[f"gres/gpu:{kind}"] = table.gpus[row]
    limit_s = table.limit_s[row]
    return BarredCandidate(
        text=table.texts[JobId(table.job_id[row])],
        partition=partition,
        tres=tres,
        limit_min=limit_s / 60,
        left_min=max(0.0, limit_s - (now_s - table.start_s[row])) / 60,
    )
