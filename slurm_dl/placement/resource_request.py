"""Requests of pending jobs on each of their nodes, and the jobs as schemes see them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, Bool
from slurm_dl.model.nodes import OtherGres
from slurm_dl.model.profile import Profile
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.reservations import Unreserved, eligible


@dataclass(frozen=True, slots=True)
class Ask:
    """The share of one node, the same on each of *n_nodes* nodes.

    Attributes:
        n_nodes: Nodes.
        gpus: GPUs on each; whole unless the job asks for shares of a GPU.
        cpus: CPUs on each.
        mem_mb: Memory on each, MB.
        gres: ``(g,)`` units on each of `free_resources.total_gres`; empty if it asks for none.
    """

    n_nodes: int
    gpus: float
    cpus: int
    mem_mb: int
    gres: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ResourceRequest:
    """Request of a pending job.

    Attributes:
        key: Equal for jobs that ask for the same.
        asks: The ways in which it may lie on nodes, fewest nodes first; the first is what the
            job asks for, others are there only if its owner gave a range of nodes.
        exclusive: It wants nodes on which nothing else runs.
        place: Equal for jobs with the same *allowed*.
        allowed: ``(m,)`` bool, nodes it may use at all, and of which no reservation of others
            would begin before its time limit if it started now.
    """

    key: tuple[object, ...]
    asks: tuple[Ask, ...]
    exclusive: bool
    place: tuple[object, ...]
    allowed: Bool

    @property
    def n_nodes(self) -> int:
        """The fewest nodes it may have."""
        return self.asks[0].n_nodes

    @property
    def gpus(self) -> float:
        """GPUs on each of these."""
        return self.asks[0].gpus

    @property
    def cpus(self) -> int:
        """CPUs on each of these."""
        return self.asks[0].cpus

    @property
    def mem_mb(self) -> int:
        """Memory on each of these, MB."""
        return self.asks[0].mem_mb

    @property
    def gres(self) -> tuple[float, ...]:
        """Units of each GRES on each of these; empty if it asks for none."""
        return self.asks[0].gres

    def ask(self, n_nodes: int) -> Ask:
        """Request on each of *n_nodes* nodes, which must be one of its ways."""
        return next(ask for ask in self.asks if ask.n_nodes == n_nodes)


class ResourceRequests:
    """Requests of the pending jobs of one snapshot; equal ones are computed once."""

    def __init__(self, snap: Snapshot) -> None:
        self._snap = snap
        self._unreserved = Unreserved(snap)
        self._places: dict[tuple[object, ...], tuple[Bool, float]] = {}
        self._needs: dict[tuple[object, ...], ResourceRequest] = {}

    def of(self, row: int) -> ResourceRequest:
        """Request of the job at *row* on each node, evenly split.

        A job that names GPUs in all and no node count gets the fewest nodes that could hold it.
        """
        jobs = self._snap.jobs
        place = self._place_of(row)
        gpus, n_nodes = float(jobs.gpus[row]), int(jobs.n_nodes[row])
        claim = self._snap.seen.claim(JobId(int(jobs.job_id[row])))
        most_nodes = claim.most_nodes
        cpus, mem_mb = int(jobs.cpus[row]), int(jobs.mem_mb[row])
        if most_nodes is not None:
            # Of a job with a range of nodes Slurm tells one CPU and no memory while it waits.
            cpus = max(cpus, math.ceil((claim.cpus_per_gpu or 0) * gpus))
            mem_mb = max(mem_mb, math.ceil((claim.mem_mb_per_gpu or 0) * gpus))
        exclusive = bool(jobs.exclusive[row])
        other = self._snap.seen.gres
        gres = () if other is None else other.asked.get(JobId(int(jobs.job_id[row])), ())
        kind, typed = int(jobs.gpu_type[row]), self._snap.seen.nodes.by_type
        asked = (place, gpus, n_nodes, most_nodes, cpus, mem_mb, exclusive, gres)
        need = self._needs.get(asked)
        if need is None:
            allowed, most = self._places[place]
            if most > 0:
                n_nodes = max(n_nodes, math.ceil(gpus / most))
            asks = tuple(
                dataclasses.replace(ask, gres=gres_of(gres, ask.gpus, kind, other, typed))
                for ask in _asks(gpus, cpus, mem_mb, n_nodes, most_nodes or n_nodes)
            )
            need = ResourceRequest((*place, *asks, exclusive), asks, exclusive, place, allowed)
            self._needs[asked] = need
        return need

    def _place_of(self, row: int) -> tuple[object, ...]:
        """Key of the nodes on which the job may run, in the places that were computed."""
        snap, nodes = self._snap, self._snap.seen.nodes
        job_id = JobId(int(snap.jobs.job_id[row]))
        choice = snap.choice(job_id)
        key: tuple[object, ...] = (
            int(snap.jobs.partition[row]),
            snap.seen.also_in.get(job_id, ()),
            int(snap.jobs.gpu_type[row]),
            None if choice is None else choice.tobytes(),
        )
        unreserved = self._unreserved.at(row, snap.now_s) if snap.seen.blocked else None
        if unreserved is not None:
            key = (*key, unreserved.tobytes())
        if key not in self._places:
            allowed = nodes.up & eligible(snap, row)
            most = float(nodes.of_type(int(snap.jobs.gpu_type[row]))[allowed].max(initial=0.0))
            if unreserved is not None:
                # After *most*: a job that fits a reserved node only does not ask for more nodes.
                allowed &= unreserved
            allowed.setflags(write=False)
            self._places[key] = allowed, most
        return key


def gres_of(
    asked: tuple[float, ...], gpus: float, kind: int, other: OtherGres | None, typed: F64 | None
) -> tuple[float, ...]:
    """Units of a share of each of `free_resources.total_gres`; empty if of none.

    Args:
        asked: What it takes of `Observed.gres`.
        gpus: Its GPUs, and *kind* their type; -1: any.
        typed: `Nodes.by_type`.
    """
    if typed is None or kind < 0:
        return asked
    others = asked or (0.0,) * (0 if other is None else len(other.names))
    return (*others, *(gpus * (t == kind) for t in range(len(typed))))


def _asks(gpus: float, cpus: int, mem_mb: int, n_nodes: int, most_nodes: int) -> Iterator[Ask]:
    """The even splits from *n_nodes* to *most_nodes*; the first always, rounded up."""
    whole = gpus == int(gpus)
    # A whole GPU on each: whoever claims thousands of nodes does not cost thousands of steps.
    for n in range(n_nodes, max(n_nodes, min(most_nodes, int(gpus))) + 1):
        if n > n_nodes and not (whole and gpus % n == 0):
            continue
        share = math.ceil(gpus / n) if whole else gpus / n
        yield Ask(n, float(share), math.ceil(cpus / n), math.ceil(mem_mb / n))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingJob:
    """A waiting job, as a scheme sees it.

    Attributes:
        row: Its row in `Jobs`.
        need: What it asks of its nodes, and in which ways it may lie on them.
        profile: Its model's profile; None if it names none that there is.
        account: Its account; empty if it has none.
        waited_s: Seconds it has waited for room since it last ran or was submitted.
        left_s: Seconds it is expected to run; inf if unknown.
        limit_s: Its time limit, seconds; inf if none.
    """

    row: int
    job_id: JobId
    need: ResourceRequest
    profile: Profile | None = None
    account: str = ""
    waited_s: float = 0.0
    left_s: float = float("inf")
    limit_s: float = float("inf")

    def network_mb_s(self, ask: Ask) -> float | None:
        """MB a second that each of its nodes sends to others; None if unknown."""
        if ask.n_nodes == 1:
            return 0.0
        each = None if self.profile is None else self.profile.load.network_mb_s
        return None if each is None else each * ask.gpus

    def pcie_mb_s(self, ask: Ask) -> float | None:
        """MB a second over PCIe on each of its nodes; None if unknown."""
        each = None if self.profile is None else self.profile.load.pcie_mb_s
        return None if each is None else each * ask.gpus

    @property
    def gpus(self) -> float:
        """GPUs in all, as asked for."""
        return self.need.gpus * self.need.n_nodes
