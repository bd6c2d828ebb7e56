"""Limits of accounts and QOS, and the running jobs that they would keep from starting again.

``scontrol show assoc_mgr flags=assoc,qos`` lists the associations and QOS that slurmctld knows,
with each limit and what is used of it: ``gres/gpu=8(3)``. It does not say which QOS a user may use.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from slurm_dl.model.ids import JobId
from slurm_dl.model.snapshot import JobText
from slurm_dl.slurm.read.job_table import JobTable

_ASSOCIATION: Final = re.compile(
    r"\A\S* Account=(.+?) UserName=([^\s(]*)(?:\(([0-9]+)\))? Partition=(\S*) Priority=\S* ID="
)
_QOS: Final = re.compile(r"\A(.+)\([0-9]+\)\s*\n")
_PARENT: Final = re.compile(r" ParentAccount=(?:([^\n]+?)\([0-9]+\))?(?= |\n)")
# Most limits are not set, and their values are passed over at once.
_LIMITS: Final = re.compile(
    r" (GrpTRESRunMins|(?:GrpWall|GrpJobs|GrpTRES|GrpTRESMins|MaxWallPJ|MaxTRES(?:PJ|PN|MinsPJ)"
    r"|MaxJobs|Max(?:Jobs|TRES|TRESRunMins)P[UA])(?!=(?:N\(|(?:[^\s=,]+=N\([0-9.]*\),?)*\s)))"
    r"=(\S*)"
)
_AMOUNT: Final = re.compile(r"([^=,]+)=([0-9]{1,19}|N)(?:\(([0-9]{1,19})(?:\.[0-9]+)?\))?(?=,|\Z)")
_CHECKED: Final = frozenset({"associations", "limits", "qos", "safe"})

JOBS, _WALL = "jobs", "wall"
"""Limits on the number of jobs and on time stand beside those on a TRES under these words."""


class Limit(NamedTuple):
    """One limit on one TRES."""

    holder: tuple[str, str]  # Whose jobs count in it: of the job, one of its `Records.holders`
    name: str
    tres: str
    most: float  # Units, or minutes of them
    used: float  # The same, when the limits were read
    running: float = 0.0  # Unit-minutes that running jobs had left then, under GrpTRESMins


Limits = tuple[Limit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarredCandidate:
    """A running job that would start again."""

    text: JobText  # Names of its user, account and QOS
    partition: str  # Name of its partition
    tres: dict[str, float]  # Units that it holds, such as ``gres/gpu``; 0 if how many is not known
    limit_min: float  # Its time limit, minutes
    left_min: float  # What is left of it, minutes

    def units(self, tres: str) -> float:
        """Number of *tres* that it takes; 1 of ``jobs``."""
        return 1.0 if tres == JOBS else self.tres.get(tres, 0.0)

    def is_barred_by(self, limit: Limit, *, safe: bool) -> bool:
        """Whether it could not start by *limit*, whatever other jobs do.

        Args:
            safe: Slurm starts only jobs whose whole run is within GrpTRESMins.
        """
        units, needed = self.units(limit.tres), 0.0
        if limit.tres not in {*self.tres, _WALL}:
            return False
        if limit.name == "MaxWallPJ":
            needed = self.limit_min
        elif limit.name in ("GrpTRES", "MaxTRESPJ"):
            needed = units
        elif limit.name == "MaxTRESPN":
            needed = units / max(1.0, self.units("node"))
        elif limit.name == "MaxTRESMinsPJ":
            needed = units * self.limit_min
        elif limit.name == "GrpTRESMins" and safe:
            others = max(0.0, limit.running - units * self.left_min)
            needed = limit.used + others + units * self.limit_min
        used_up = limit.name in ("GrpWall", "GrpTRESMins") and limit.used >= limit.most
        return used_up or needed > limit.most


class Records:
    """Limits of associations, by account, user or uid, and partition, and of QOS.

    Attributes:
        unused: QOS without jobs: Slurm tells no limits on each of their users and accounts.

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
                whose = f"user {name} in " * bool(name) + f"account {account}"
                whose += f", {partition}" * bool(partition)
                self.limits[account, name, partition] = _limits(whose, body)
        self.unused: set[str] = set()
        for body in qos.split("\nQOS=")[1:]:
            name = _groups(_QOS, body)[0]
            self.qos[name] = _limits(f"QOS {name}", body)
            self.unused |= {name} if "PU=" not in body else set()
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

    def own(self, text: JobText, partition: str) -> Limits | None:
        """The limits of the association of a job; None if there is none."""
        user = text.user.lower()
        of_all = self.limits.get((text.account, user, ""))
        return self.limits.get((text.account, user, partition), of_all)

    def binding(self, text: JobText, partition: str, part_qos: str) -> Iterator[Limit]:
        """The limits that count for a job.

        A limit of the partition's QOS comes before that of the job's QOS, and either instead of
        those of associations.
        """
        by_qos: set[tuple[str, str]] = set()
        for name in dict.fromkeys((part_qos, text.qos)):
            of = self.qos.get(name, ())
            for one in of:
                scope = {"U": f"user {text.user}", "A": f"account {text.account}"}
                whose = scope[one.name[-1]] if one.name.endswith(("PU", "PA")) else ""
                if (one.name, one.tres) not in by_qos:
                    yield one._replace(holder=(one.holder[0], whose))
            by_qos |= {(one.name, one.tres) for one in of}
        if {("MaxJobsPU", JOBS), ("MaxJobsPA", JOBS)} & by_qos:
            by_qos.add(("MaxJobs", JOBS))
        of = self.own(text, partition) or ()
        for account in self.accounts(text.account):
            above = self.limits.get((account, "", ""), ())
            # The others of a job are the association's own.
            of += tuple(one for one in above if one.name.startswith("Grp"))
        yield from (one for one in of if (one.name, one.tres) not in by_qos)

    def holders(self, text: JobText, partition: str, part_qos: str) -> set[tuple[str, str]]:
        """Holders of the limits in which a running job counts."""
        found = {(f"account {account}", "") for account in self.accounts(text.account)}
        found |= {one.holder for one in self.own(text, partition) or ()}
        for name in {text.qos, part_qos} & self.qos.keys():
            whose = ("", f"user {text.user}", f"account {text.account}")
            found |= {(f"QOS {name}", one) for one in whose}
        return found


@functools.lru_cache(1)
def records_of(text: str) -> Records | None:
    """The records in *text*; None if it is not whole. One text serves for many looks."""
    try:
        return Records(text)
    except ValueError:
        return None


def _groups(pattern: re.Pattern[str], body: str) -> tuple[str, ...]:
    found = pattern.search(body)
    if found is None:
        raise ValueError
    return found.groups(default="")


def _limits(whose: str, body: str) -> Limits:
    if " GrpWall=" not in body or " GrpTRESMins=" not in body:
        raise ValueError
    found: list[Limit] = []
    running: dict[str, float] = {}
    for name, value in dict(_LIMITS.findall(body)).items():
        # A limit on time or jobs has no TRES before it.
        text = f"{_WALL if 'Wall' in name else JOBS}={value}" if "TRES" not in name else value
        for tres, most, told in _AMOUNT.findall(text):
            used = float(told or 0)
            if name == "GrpTRESRunMins":
                running[tres] = used
            if most != "N":
                found.append(Limit((whose, ""), name, tres, float(most), used))
    return tuple(one._replace(running=running.get(one.tres, 0.0)) for one in found)


def _admits(words: Mapping[str, str], accounts: Collection[str], qos: str) -> bool:
    for kind, names in (("Accounts", list(accounts)), ("Qos", [qos])):
        allowed = words.get(f"Allow{kind}", "ALL")
        if allowed not in ("ALL", "(null)"):
            if set(names).isdisjoint(allowed.split(",")):
                return False
        elif names[0] in words.get(f"Deny{kind}", "(null)").split(","):
            return False
    return True


def in_force(enforced: frozenset[str]) -> frozenset[str]:
    """The words of AccountingStorageEnforce and what they imply."""
    return enforced | (_CHECKED if "all" in enforced else frozenset())


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
    found: set[JobId] = set()
    words = in_force(enforced)
    records = records_of(text) if words & _CHECKED else None
    if records is None:
        return found
    for job_id, job in jobs.items():
        of, user = job.text, job.text.user.lower()
        if not (job.partition and user and of.account):
            continue
        part = partitions.get(job.partition, {})
        accounts = records.accounts(of.account) if nested else [of.account]
        admitted = user == "root" or _admits(part, accounts, of.qos)
        # Of a QOS that was deleted squeue no longer has the name.
        if (
            records.own(of, job.partition) is None
            or not admitted
            or ("qos" in words and of.qos not in records.qos)
        ):
            found.add(job_id)
        elif words & {"limits", "safe"}:
            limits = records.binding(of, job.partition, part.get("QoS", ""))
            if any(job.is_barred_by(limit, safe="safe" in words) for limit in limits):
                found.add(job_id)
    return found


def candidate(
    table: JobTable,
    row: int,
    partition: str,
    now_s: float,
    licences: Collection[tuple[str, int]] = (),
) -> BarredCandidate:
    """The job of *table* at *row*, with the *licences* that it asks for."""
    tres = {"cpu": float(table.cpus[row]), "node": float(table.n_nodes[row]), "billing": 0.0}
    tres |= {"mem": float(table.mem_mb[row]), "gres/gpu": table.gpus[row]}
    if kind := table.gpu_type[row]:
        tres[f"gres/gpu:{kind}"] = table.gpus[row]
    job_id = JobId(table.job_id[row])
    for name, per_node in table.gres.get(job_id, ()):
        tres[f"gres/{name}"] = per_node * table.n_nodes[row]
    for name, count in licences:
        tres[f"license/{name}"] = tres.get(f"license/{name}", 0.0) + count
    limit_s = table.limit_s[row]
    return BarredCandidate(
        text=table.texts[job_id],
        partition=partition,
        tres=tres,
        limit_min=limit_s / 60,
        left_min=max(0.0, limit_s - (now_s - table.start_s[row])) / 60,
    )
