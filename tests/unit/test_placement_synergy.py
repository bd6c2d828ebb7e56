"""Synergy: parts, knees, who gives back; an oracle that tries everything says what is feasible."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from build import observed, running, snapshot
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.daemon.control.status_answer import stranded_by_group
from slurm_dl.model.nodes import Allocations
from slurm_dl.model.profile import HostRate, Profile
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.synergy import (
    Host,
    ServerTenant,
    Share,
    SynergyServer,
    demand,
    givers,
    proportional,
)

HOST = Host(gpus=8, cpus=24, mem_mb=500_000)  # A server of the paper's cluster: 3 CPUs a GPU.
HUNGRY = Profile(
    name="hungry",
    host=tuple(
        HostRate(cpus_per_gpu=c, mem_mb_per_gpu=62_500, rate=r)
        for c, r in ((3, 0.4), (6, 0.7), (9, 0.96), (12, 1.0))
    ),
)


@pytest.mark.parametrize(
    ("gpus", "share"),
    [
        (1, Share(3, 62_500)),
        (8, Share(24, 500_000)),
        (0.5, Share(1, 31_250)),
        (5, Share(15, 312_500)),
    ],
)
def test_parts(gpus: float, share: Share) -> None:
    assert proportional(HOST, gpus) == share


@pytest.mark.parametrize("gpus", [0, -1, 9])
def test_no_part_goes_with_gpus_that_are_not_there(gpus: float) -> None:
    with pytest.raises(ValueError, match="no part of a host with 8 GPUs"):
        proportional(HOST, gpus)


@pytest.mark.parametrize(
    ("profile", "gpus", "share"),
    [
        # 9 CPUs give 96 % of the speed with 12; 6 give 70 %.
        (HUNGRY, 1, Share(9, 62_500)),
        # A node has no more.
        (HUNGRY, 4, Share(24, 250_000)),
        # It could use less than its part.
        (replace(HUNGRY, host=HUNGRY.host[:1]), 2, Share(6, 125_000)),
        (Profile(name="unknown"), 2, Share(6, 125_000)),
        (None, 2, Share(6, 125_000)),
    ],
)
def test_a_demand_is_the_part_or_the_least_that_is_nearly_the_best(
    profile: Profile | None, gpus: float, share: Share
) -> None:
    assert demand(profile, HOST, gpus) == share


def tenant(job: int, gpus: float, cpus: int, *, keeps: int | None = None) -> ServerTenant:
    """A job with so many CPUs; it keeps its part, or *keeps* of them."""
    part = proportional(HOST, gpus).cpus
    has = Share(cpus, 1000)
    return ServerTenant(
        job=job, gpus=gpus, has=has, keeps=Share(min(cpus, part if keeps is None else keeps), 1000)
    )


def server(*tenants: ServerTenant) -> SynergyServer:
    """A server of 8 GPUs, 24 CPUs with these on it."""
    return SynergyServer(
        free_gpus=8 - sum(t.gpus for t in tenants),
        free=Share(24 - sum(t.has.cpus for t in tenants), 500_000 - 1000 * len(tenants)),
        tenants=tenants,
    )


@pytest.mark.parametrize(
    ("servers", "n_servers", "expected"),
    [
        ([server(tenant(1, 4, 14), tenant(2, 1, 9))], 1, {0: (2,)}),
        ([server(tenant(1, 3, 12), tenant(2, 3, 12)), server(tenant(3, 6, 24))], 1, {1: (3,)}),
        ([server(tenant(1, 2, 24)), server(tenant(1, 2, 24))], 2, {0: (1,), 1: (1,)}),
        ([server(tenant(1, 2, 24)), server()], 2, {1: (), 0: (1,)}),
        ([server(tenant(1, 2, 24, keeps=24))], 1, None),
        ([server(tenant(1, 7, 24))], 1, None),
    ],
    ids=["most CPUs a GPU", "fewest jobs", "a gang", "one is free", "keeps all", "no GPUs"],
)
def test_who_gives_back(
    servers: list[SynergyServer], n_servers: int, expected: dict[int, tuple[int, ...]] | None
) -> None:
    """So that two GPUs with 6 CPUs come free on each of *n_servers* servers."""
    assert givers(servers, n_servers=n_servers, gpus=2, share=Share(6, 9)) == expected


shares = st.builds(Share, st.integers(0, 12), st.integers(0, 12))


@st.composite
def servers_with_tenants(draw: st.DrawFn) -> SynergyServer:
    """A server of jobs of which each keeps no more than it has."""
    tenants = []
    for job in range(draw(st.integers(0, 3))):
        has, least = draw(shares), draw(shares)
        gpus = draw(st.sampled_from([0.5, 1, 2]))
        tenants.append(ServerTenant(job=job, gpus=gpus, has=has, keeps=least.no_more_than(has)))
    free_gpus = draw(st.integers(0, 4))
    return SynergyServer(free_gpus=free_gpus, free=draw(shares), tenants=tuple(tenants))


def room_on(server: SynergyServer, gave: Collection[int], share: Share) -> bool:
    """Whether *share* is free there once these have given back."""
    left = [t.keeps if t.job in gave else t.has for t in server.tenants]
    cpus = server.free.cpus + sum(t.has.cpus for t in server.tenants) - sum(s.cpus for s in left)
    mem = server.free.mem_mb + sum(t.has.mem_mb for t in server.tenants)
    return cpus >= share.cpus and mem - sum(s.mem_mb for s in left) >= share.mem_mb


@given(
    st.lists(servers_with_tenants(), min_size=1, max_size=3),
    st.integers(1, 2),
    st.sampled_from([0.5, 1, 2, 3]),
    shares,
)
def test_feasibility_is_that_of_trying_everything(
    servers: list[SynergyServer], n_servers: int, gpus: float, share: Share
) -> None:
    """All subsets of the jobs on each server; and who is named is enough, and no last one idle."""
    found = givers(servers, n_servers=n_servers, gpus=gpus, share=share)
    possible = [
        server.free_gpus >= gpus
        and any(
            room_on(server, some, share)
            for n in range(len(server.tenants) + 1)
            for some in itertools.combinations([t.job for t in server.tenants], n)
        )
        for server in servers
    ]
    assert (found is not None) == (sum(possible) >= n_servers)
    for i, jobs in (found or {}).items():
        assert room_on(servers[i], jobs, share)
        assert not jobs or not room_on(servers[i], jobs[:-1], share)


def stock(*taken: tuple[float, int, int]) -> FreeNodes:
    """Nodes of 4 GPUs, 64 CPUs and 1000 MB, and what one job on each has of it."""
    m = len(taken)
    seen = observed([running(j, gpus=taken[j][0]) for j in range(m)], nodes=(4,) * m)
    held = Allocations(
        job=np.arange(m, dtype=np.int32),
        node=np.arange(m, dtype=np.int32),
        gpus=np.array([t[0] for t in taken]),
        cpus=np.array([t[1] for t in taken], dtype=np.int32),
        mem_mb=np.array([t[2] for t in taken], dtype=np.int64),
    )
    return FreeNodes.of(snapshot(replace(seen, held=held)), {})


@pytest.mark.parametrize(
    ("smallest", "stranded"),
    [(None, 1 + 3 + 2), (Share(1, 0), 1), (Share(0, 1), 3), (Share(0, 0), 0), (Share(2, 101), 6)],
)
def test_strands(smallest: Share | None, stranded: float) -> None:
    """GPUs on nodes without CPUs, without memory, with some of each; a full node strands none."""
    nodes = stock((3, 64, 100), (1, 10, 1000), (2, 63, 900), (4, 64, 1000), (1, 16, 250))

    assert float(stranded_by_group(nodes, smallest) @ nodes.count) == stranded
