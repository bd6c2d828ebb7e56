"""CPUs and memory beside GPUs: each job's fair part of a node, what it can use, and who gives back.

A job that takes more CPUs or memory than its part of the node leaves GPUs there that nobody can
use. Everybody may have more as long as nobody lacks it; when somebody does, those who have more
than their part go back to it. Nobody gets less than the lesser of part and wish.

Source: Synergy, OSDI 2022, sections 3.2 (sensitivity, knee) and 4.2 (Synergy-TUNE).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_dl.model.profile import Profile

NEAR_BEST = 0.95
"""A share is enough if it is this near to the fastest: Synergy allows a job 5 % (section 3.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Resources of a whole node that jobs may use."""

    gpus: int  # At least 1
    cpus: int
    mem_mb: int


@dataclass(frozen=True, slots=True)
class Share:
    """CPUs and memory of one node."""

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
    """A job on a server."""

    job: int  # Names it, on all its servers alike
    gpus: float  # GPUs it has there; part of one if it shares it
    has: Share  # CPUs and memory it has there
    keeps: Share  # The least it may be left with; *has* if it gives nothing back


@dataclass(frozen=True, slots=True, kw_only=True)
class SynergyServer:
    """A node and the jobs on it."""

    free_gpus: float
    free: Share
    tenants: tuple[ServerTenant, ...] = ()


def proportional(host: Host, gpus: float) -> Share:
    """The part of *host* that goes with *gpus* of its GPUs, rounded down: all parts fit together.

    Raises:
        ValueError: It has not so many GPUs.
    """
    if not 0 < gpus <= host.gpus:
        msg = f"no part of a host with {host.gpus} GPUs goes with {gpus}"
        raise ValueError(msg)
    return Share(int(host.cpus * gpus / host.gpus), int(host.mem_mb * gpus / host.gpus))


def demand(profile: Profile | None, host: Host, gpus: float) -> Share:
    """Share of *host* for a job: its part, or more if its model is nearly at its fastest with that.

    Never more than the host has, and where nothing is known of the model its part. Of several
    measured pairs with which it is that fast the one with the fewest CPUs: these run out first.
    """
    part = proportional(host, gpus)
    measured = () if profile is None else profile.host
    best = max((at.rate for at in measured), default=0.0)
    if not best > 0:
        return part
    fast = [at for at in measured if at.rate >= NEAR_BEST * best]
    knee = min((at.cpus_per_gpu, at.mem_mb_per_gpu) for at in fast)
    cpus, mem_mb = (math.ceil(each * gpus) for each in knee)
    return Share(max(part.cpus, min(cpus, host.cpus)), max(part.mem_mb, min(mem_mb, host.mem_mb)))


def givers(
    servers: Sequence[SynergyServer], *, n_servers: int, gpus: float, share: Share
) -> Mapping[int, tuple[int, ...]] | None:
    """Servers for a job, and on each the jobs that go back to what they keep so that it fits.

    Of the servers with enough free GPUs those come first where the fewest jobs give back, and of
    these the fullest. On a server the job with the most CPUs for each GPU gives back first.

    Args:
        gpus: GPUs that the job needs on each of *n_servers* servers.
        share: CPUs and memory likewise.

    Returns:
        Ids of jobs by place of the server in *servers*; None if too few servers have the GPUs, or
        the jobs there keep too much.
    """
    with_gpus = [i for i, server in enumerate(servers) if server.free_gpus >= gpus]
    back = {i: _give_back(servers[i], share) for i in with_gpus}
    possible = [
        (len(found), servers[i].free_gpus, i) for i in with_gpus if (found := back[i]) is not None
    ]
    if len(possible) < n_servers:
        return None
    return {i: back[i] or () for _, _, i in sorted(possible)[:n_servers]}


def _give_back(server: SynergyServer, share: Share) -> tuple[int, ...] | None:
    """Jobs that give back until *share* is free; None if it cannot be."""
    free, gave = server.free, list[int]()
    more = [t for t in server.tenants if t.keeps != t.has]
    for tenant in sorted(more, key=lambda t: (-t.has.cpus / t.gpus, t.job)):
        if free.covers(share):
            break
        has, keeps = tenant.has, tenant.keeps
        free = Share(free.cpus + has.cpus - keeps.cpus, free.mem_mb + has.mem_mb - keeps.mem_mb)
        gave.append(tenant.job)
    return tuple(gave) if free.covers(share) else None
