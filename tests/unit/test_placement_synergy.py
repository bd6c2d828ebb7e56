"""Synergy: parts, knees, who gives back; an oracle that tries everything says what is feasible."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
    HostAllotment,
    HostDemand,
    ServerTenant,
    Share,
    SynergyServer,
    demand,
    knee,
    proportional,
    tune,
)

HOST = Host(gpus=8, cpus=24, mem_mb=500_000)  # A server of the paper's cluster: 3 CPUs a GPU.
HUNGRY = Profile(
    name="hungry",
    host=tuple(
        HostRate(cpus_per_gpu=c, mem_mb_per_gpu=62_500, rate=r)
        for c, r in ((3, 0.4), (6, 0.7), (9, 0.96), (12, 1.0))
    ),
)


def settled(
    servers: Sequence[SynergyServer], job: int, wish: HostDemand, tuned: HostAllotment
) -> list[SynergyServer]:
    """The servers once *tuned* has been done."""
    after = list(servers)
    for (i, other), left in tuned.given_back.items():
        tenants = tuple(replace(t, has=left) if t.job == other else t for t in after[i].tenants)
        after[i] = replace(after[i], tenants=tenants)
    for i, share in tuned.gets.items():
        tenant = ServerTenant(job=job, gpus=wish.gpus, has=share)
        after[i] = replace(after[i], tenants=(*after[i].tenants, tenant))
    return after


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


def test_the_knee_is_the_least_that_is_nearly_the_best() -> None:
    """9 CPUs give 96 % of the speed with 12; 6 give 70 %."""
    assert knee(HUNGRY) == (9, 62_500)
    assert knee(Profile(name="unknown")) is None


def test_a_demand_is_the_part_or_more() -> None:
    """Never more than the node has; a model that can use less than its part gets its part."""
    modest = Profile(name="modest", host=(HostRate(cpus_per_gpu=1, mem_mb_per_gpu=9, rate=1),))

    assert demand(HUNGRY, HOST, 1) == Share(9, 62_500)
    assert demand(HUNGRY, HOST, 4) == Share(24, 250_000)
    assert demand(modest, HOST, 2) == demand(None, HOST, 2) == Share(6, 125_000)


def test_tuning_step_by_step() -> None:
    """With all it wants; then with its part; then those with more than theirs give back."""
    wish = HostDemand(n_servers=1, gpus=2, share=Share(18, 125_000))
    first = tune([SynergyServer(host=HOST)], wish)
    assert first == HostAllotment(gets={0: Share(18, 125_000)})

    after = settled([SynergyServer(host=HOST)], 1, wish, first)
    second = tune(after, wish)
    assert second == HostAllotment(gets={0: Share(6, 125_000)})

    after = settled(after, 2, wish, second)
    third = tune(after, wish)
    assert third == HostAllotment(
        gets={0: Share(6, 125_000)}, given_back={(0, 1): Share(6, 125_000)}
    )

    fixed = [
        replace(after[0], tenants=tuple(replace(t, may_change=False) for t in after[0].tenants))
    ]
    assert tune(fixed, wish) is None


def test_the_most_cpus_for_each_gpu_give_back_first() -> None:
    """And nobody after it does not have to any more."""
    tenants = (
        ServerTenant(job=1, gpus=4, has=Share(14, 1000)),
        ServerTenant(job=2, gpus=1, has=Share(9, 1000)),
    )

    tuned = tune(
        [SynergyServer(host=HOST, tenants=tenants)],
        HostDemand(n_servers=1, gpus=1, share=Share(3, 9)),
    )

    assert tuned == HostAllotment(gets={0: Share(3, 9)}, given_back={(0, 2): Share(3, 1000)})


def test_a_server_on_which_fewer_give_back_comes_first() -> None:
    """Two would have to on the first one, one has to on the second."""
    two = tuple(ServerTenant(job=j, gpus=3, has=Share(12, 9)) for j in (1, 2))
    one = (ServerTenant(job=3, gpus=6, has=Share(24, 9)),)
    wish = HostDemand(n_servers=1, gpus=2, share=Share(6, 9))

    tuned = tune(
        [SynergyServer(host=HOST, tenants=two), SynergyServer(host=HOST, tenants=one)], wish
    )

    assert tuned == HostAllotment(gets={1: Share(6, 9)}, given_back={(1, 3): Share(18, 9)})


hosts = st.builds(Host, gpus=st.integers(1, 4), cpus=st.integers(0, 12), mem_mb=st.integers(0, 12))
shares = st.builds(Share, st.integers(0, 12), st.integers(0, 12))
wishes = st.builds(
    HostDemand, n_servers=st.integers(1, 2), gpus=st.sampled_from([0.5, 1, 2, 3]), share=shares
)


@given(st.lists(hosts, min_size=1, max_size=3), st.lists(wishes, max_size=8))
def test_nobody_ever_gets_less_than_the_lesser_of_part_and_wish(
    given_hosts: list[Host], wanted: list[HostDemand]
) -> None:
    """At every moment, on every server; and no server gives what it has not."""
    servers = [SynergyServer(host=host) for host in given_hosts]
    for job, wish in enumerate(wanted):
        tuned = tune(servers, wish)
        if tuned is None:
            continue
        assert len(tuned.gets) == wish.n_servers
        servers = settled(servers, job, wish, tuned)
        for server in servers:
            assert server.free_gpus >= 0
            assert server.free.covers(Share(0, 0))
            for tenant in server.tenants:
                least = wanted[tenant.job].share.no_more_than(
                    proportional(server.host, tenant.gpus)
                )
                assert tenant.has.covers(least)
                assert wanted[tenant.job].share.covers(tenant.has)


@given(st.lists(hosts, min_size=1, max_size=3), st.lists(wishes, max_size=8), wishes)
def test_whoever_finds_the_gpus_finds_room(
    given_hosts: list[Host], wanted: list[HostDemand], last: HostDemand
) -> None:
    """Where all can change, no GPU is stranded for lack of CPUs or memory."""
    servers = [SynergyServer(host=host) for host in given_hosts]
    for job, wish in enumerate(wanted):
        tuned = tune(servers, wish)
        servers = servers if tuned is None else settled(servers, job, wish, tuned)

    enough = sum(server.free_gpus >= last.gpus for server in servers) >= last.n_servers

    assert (tune(servers, last) is not None) == enough


def fits_somehow(servers: Sequence[SynergyServer], wish: HostDemand) -> bool:
    """Try every set of servers, every set of jobs on them that give back, and both shares."""

    def possible(server: SynergyServer) -> bool:
        if server.free_gpus < wish.gpus:
            return False
        reduced = wish.share.no_more_than(proportional(server.host, wish.gpus))
        changing = [t for t in server.tenants if t.may_change]
        for n in range(len(changing) + 1):
            for some in itertools.combinations(changing, n):
                left = [
                    t.has.no_more_than(proportional(server.host, t.gpus)) if t in some else t.has
                    for t in server.tenants
                ]
                cpus = server.host.cpus - sum(share.cpus for share in left)
                mem_mb = server.host.mem_mb - sum(share.mem_mb for share in left)
                if cpus >= reduced.cpus and mem_mb >= reduced.mem_mb:
                    return True
        return False

    return any(
        all(possible(server) for server in some)
        for some in itertools.combinations(servers, wish.n_servers)
    )


@st.composite
def servers_with_tenants(draw: st.DrawFn) -> SynergyServer:
    """A server on which nobody has what is not there, some of whose jobs cannot change."""
    server = SynergyServer(host=draw(hosts))
    for job in range(draw(st.integers(0, 3))):
        gpus = draw(st.sampled_from([0.5, 1, 2]))
        if gpus > server.free_gpus:
            continue
        free = server.free
        has = Share(draw(st.integers(0, free.cpus)), draw(st.integers(0, free.mem_mb)))
        tenant = ServerTenant(job=job, gpus=gpus, has=has, may_change=draw(st.booleans()))
        server = replace(server, tenants=(*server.tenants, tenant))
    return server


@given(st.lists(servers_with_tenants(), min_size=1, max_size=3), wishes)
def test_feasibility_is_that_of_trying_everything(
    servers: list[SynergyServer], wish: HostDemand
) -> None:
    assert (tune(servers, wish) is not None) == fits_somehow(servers, wish)


MIX = [
    *[HostDemand(n_servers=1, gpus=1, share=Share(9, 62_500))] * 2,
    HostDemand(n_servers=2, gpus=2, share=Share(12, 125_000)),
    HostDemand(n_servers=1, gpus=2, share=Share(4, 200_000)),
    *[HostDemand(n_servers=1, gpus=1, share=Share(9, 30_000))] * 8,
]
"""16 GPUs in all: jobs that want three times their CPUs, one much memory, one on two servers."""


def test_the_mix_strands_gpus_and_tuning_strands_none() -> None:
    """As they ask, 10 of 16 GPUs find no CPUs or memory; tuned, each job starts."""
    servers = [SynergyServer(host=HOST), SynergyServer(host=HOST)]
    started = 0
    for job, wish in enumerate(MIX):
        fits = [
            i
            for i, s in enumerate(servers)
            if s.free_gpus >= wish.gpus and s.free.covers(wish.share)
        ]
        if len(fits) >= wish.n_servers:
            gets = dict.fromkeys(fits[: wish.n_servers], wish.share)
            servers = settled(servers, job, wish, HostAllotment(gets=gets))
            started += 1
    assert started < len(MIX)
    assert sum(server.free_gpus for server in servers) == 10

    servers = [SynergyServer(host=HOST), SynergyServer(host=HOST)]
    for job, wish in enumerate(MIX):
        tuned = tune(servers, wish)
        assert tuned is not None, job
        servers = settled(servers, job, wish, tuned)
    assert sum(server.free_gpus for server in servers) == 0


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
