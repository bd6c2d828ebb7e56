"""CPUs and memory beside GPUs: each job's fair part of a node, what it can use, and who gives back.

A job that takes more CPUs or memory than its part of the node leaves GPUs there that nobody can
use. Everybody may have more as long as nobody lacks it; when somebody does, those who have more
than their part go back to it. Nobody gets less than the lesser of part and wish.

Source: Synergy, OSDI 2022, sections 3.2 (sensitivity, knee) and 4.2 (Synergy-TUNE).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_dl.model.profile import Profile

NEAR_BEST = 0.95
"""A share is enough if it is this near to the fastest: Synergy allows a job 5 % (section 3.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Resources of a whole node.

    Attributes:
        gpus: GPUs, at least 1.
        cpus: CPUs that jobs may use.
        mem_mb: Memory that jobs may use, MB.
    """

    gpus: int
    cpus: int
    mem_mb: int

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.cpus < 0 or self.mem_mb < 0:
            msg = f"a host has at least one GPU and nothing below 0 (got {self})"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Share:
    """CPUs and memory of one node.

    Attributes:
        cpus: CPUs.
        mem_mb: Memory, MB.
    """

    cpus: int
    mem_mb: int

    def covers(self, other: Share) -> bool:
        """It has no less of either."""
        return self.cpus >= other.cpus and self.mem_mb >= other.mem_mb

    def no_more_than(self, other: Share) -> Share:
        """The lesser of both, each for itself."""
        return Share(min(self.cpus, other.cpus), min(self.mem_mb, other.mem_mb))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTenant:
    """A job on a server.

    Attributes:
        job: Names it, on all its servers alike.
        gpus: GPUs it has there; part of one if it shares it.
        has: CPUs and memory it has there.
        may_change: It can be given less now. Slurm changes no running job, so only one that is
            about to be started again can.
    """

    job: int
    gpus: float
    has: Share
    may_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SynergyServer:
    """A node and who is on it."""

    host: Host
    tenants: tuple[ServerTenant, ...] = ()

    @property
    def free_gpus(self) -> float:
        """GPUs nobody has."""
        return self.host.gpus - sum(tenant.gpus for tenant in self.tenants)

    @property
    def free(self) -> Share:
        """CPUs and memory nobody has."""
        return Share(
            self.host.cpus - sum(tenant.has.cpus for tenant in self.tenants),
            self.host.mem_mb - sum(tenant.has.mem_mb for tenant in self.tenants),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDemand:
    """Request of a job on each of its servers, the same on all.

    Attributes:
        n_servers: Servers.
        gpus: GPUs on each.
        share: CPUs and memory on each.
    """

    n_servers: int
    gpus: float
    share: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAllotment:
    """Allotment with which a job can be started.

    Attributes:
        gets: What it gets, by the place of the server in the list that was given.
        given_back: What is left to jobs that give back, by server and job.
    """

    gets: Mapping[int, Share]
    given_back: Mapping[tuple[int, int], Share] = field(default_factory=dict)


def proportional(host: Host, gpus: float) -> Share:
    """The part of *host* that goes with *gpus* of its GPUs, rounded down: all parts fit together.

    Raises:
        ValueError: It has not so many GPUs.
    """
    if not 0 < gpus <= host.gpus:
        msg = f"no part of a host with {host.gpus} GPUs goes with {gpus}"
        raise ValueError(msg)
    return Share(int(host.cpus * gpus / host.gpus), int(host.mem_mb * gpus / host.gpus))


def knee(profile: Profile) -> tuple[float, float] | None:
    """CPUs and MB of memory for each GPU, the fewest with which the model is nearly at its fastest.

    Of several such pairs the one with the fewest CPUs: these run out first. None if nobody has
    measured it.
    """
    best = max((at.rate for at in profile.host), default=0.0)
    enough = [
        (at.cpus_per_gpu, at.mem_mb_per_gpu) for at in profile.host if at.rate >= NEAR_BEST * best
    ]
    return min(enough) if best > 0 else None


def demand(profile: Profile | None, host: Host, gpus: float) -> Share:
    """Share of *host* for a job: its part, or the amount that its model can use if that is more.

    Never more than the host has, and where nothing is known of the model its part.
    """
    part = proportional(host, gpus)
    wanted = None if profile is None else knee(profile)
    if wanted is None:
        return part
    cpus, mem_mb = (math.ceil(each * gpus) for each in wanted)
    return Share(max(part.cpus, min(cpus, host.cpus)), max(part.mem_mb, min(mem_mb, host.mem_mb)))


def tune(servers: Sequence[SynergyServer], wish: HostDemand) -> HostAllotment | None:
    """Start a job with what it wants, else with its part, else by having others give back.

    First with all it wants. If that does not fit and it wants more than its part, with its part.
    If that does not fit, on the servers with enough GPUs those that have more than their part go
    back to it, the most CPUs for each GPU first, until it fits; servers where fewer have to come
    first.

    Returns:
        None if too few servers have the GPUs, or too many of the jobs there cannot change.
    """
    with_gpus = [i for i, server in enumerate(servers) if server.free_gpus >= wish.gpus]
    # The fullest servers first: empty ones stay whole for those who need them so.
    with_gpus.sort(key=lambda i: (servers[i].free_gpus, i))
    reduced = {
        i: wish.share.no_more_than(proportional(servers[i].host, wish.gpus)) for i in with_gpus
    }
    for gets in (dict.fromkeys(with_gpus, wish.share), reduced):
        fitting = [i for i in with_gpus if servers[i].free.covers(gets[i])]
        if len(fitting) >= wish.n_servers:
            return HostAllotment(gets={i: gets[i] for i in fitting[: wish.n_servers]})
    back = {i: _give_back(servers[i], reduced[i]) for i in with_gpus}
    possible = [
        (len(found), place, i)
        for place, i in enumerate(with_gpus)
        if (found := back[i]) is not None
    ]
    chosen = [i for _, _, i in sorted(possible)[: wish.n_servers]]
    if len(chosen) < wish.n_servers:
        return None
    return HostAllotment(
        gets={i: reduced[i] for i in chosen},
        given_back={(i, job): left for i in chosen for job, left in (back[i] or {}).items()},
    )


def _give_back(server: SynergyServer, share: Share) -> dict[int, Share] | None:
    """Shares of jobs after they give back so that *share* is free; None if it cannot be."""
    free, left = server.free, dict[int, Share]()
    more = []
    for tenant in server.tenants:
        keeps = tenant.has.no_more_than(proportional(server.host, tenant.gpus))
        if tenant.may_change and keeps != tenant.has:
            more.append((-tenant.has.cpus / tenant.gpus, tenant.job, tenant, keeps))
    for _, _, tenant, keeps in sorted(more, key=lambda entry: entry[:2]):
        if free.covers(share):
            break
        free = Share(
            free.cpus + tenant.has.cpus - keeps.cpus, free.mem_mb + tenant.has.mem_mb - keeps.mem_mb
        )
        left[tenant.job] = keeps
    return left if free.covers(share) else None
