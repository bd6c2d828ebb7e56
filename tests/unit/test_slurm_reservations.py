"""Reservations of others as Slurm 22.05.8 tells them, on four nodes of 16 CPUs."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.nodes import Nodes
from slurm_dl.slurm.read.node_reader import blocked_by, read_reservations

ROW = (
    "ReservationName={name} StartTime=2026-11-26T05:49:26 EndTime=2026-11-26T06:49:26 "
    "Duration=01:00:00 Nodes={nodes} NodeCnt=1 CoreCnt={cpus} Features=(null) "
    "PartitionName={partition} Flags={flags} TRES=cpu={cpus} Users={users} Groups=(null) "
    "Accounts={accounts} Licenses=(null) State={state} BurstBuffer=(null) Watts=n/a "
    "MaxStartDelay=(null)"
)
START_S = 1795672166.0


def told(**values: object) -> str:
    """A record as it was recorded, but for *values*."""
    usual = {"name": "course", "nodes": "n1", "cpus": 16, "partition": "(null)"}
    usual |= {"flags": "SPEC_NODES", "users": "root", "accounts": "(null)", "state": "INACTIVE"}
    return ROW.format(**usual | values)


@pytest.mark.parametrize(
    ("values", "nodes"),
    [
        ({"flags": "MAINT,SPEC_NODES"}, {"n1"}),
        ({"flags": "MAINT,IGNORE_JOBS,SPEC_NODES", "state": "ACTIVE"}, {"n1"}),
        ({"flags": "DAILY,SPEC_NODES"}, {"n1"}),
        ({"flags": "SPEC_NODES,TIME_FLOAT"}, {"n1"}),
        ({"flags": "FLEX,OVERLAP,SPEC_NODES"}, {"n1"}),
        ({"flags": "OVERLAP,SPEC_NODES,MAGNETIC"}, {"n1"}),
        ({"users": "(null)", "accounts": "x"}, {"n1"}),
        (
            {"flags": "MAINT,SPEC_NODES,ALL_NODES", "nodes": "n[1-4]", "cpus": 64},
            {"n1", "n2", "n3", "n4"},
        ),
        ({"flags": "OVERLAP,REPLACE_DOWN", "nodes": "n[1-2]", "cpus": 32}, {"n1", "n2"}),
        ({"nodes": "n[1-2],gone", "cpus": 48}, {"n1", "n2"}),
        # Of cores and of licences, and what is ours.
        ({"partition": "gpu", "cpus": 4}, set()),
        ({"nodes": "(null)", "cpus": 0, "flags": "ANY_NODES"}, set()),
        ({"name": "slurm_dl_7", "flags": "FLEX,IGNORE_JOBS,SPEC_NODES"}, set()),
    ],
)
def test_whole_nodes_of_others_are_blocked(values: dict[str, object], nodes: set[str]) -> None:
    """Until the reservation has ended, but for the jobs in it."""
    names = ("n1", "n2", "n3", "n4")
    m = len(names)
    cluster = Nodes(
        name=names,
        up=np.ones(m, np.bool_),
        gpus=np.full(m, 2.0),
        gpu_type=np.zeros(m, np.int16),
        cpus=np.full(m, 16, np.int32),
        mem_mb=np.full(m, 1000, np.int64),
        leaf=np.zeros(m, np.int16),
    )
    inside = {JobId(1): ("course",), JobId(2): ("other", "course"), JobId(3): ("other",)}
    seen = read_reservations(told(**values) + "\n")

    blocked = blocked_by(seen, cluster, inside, START_S + 3599)

    assert [{n for n, on in zip(names, b.nodes, strict=True) if on} for b in blocked] == (
        [nodes] if nodes else []
    )
    for one in blocked:
        assert (one.start_s, one.end_s, one.jobs) == (START_S, START_S + 3600, {1, 2})
    assert blocked_by(seen, cluster, inside, START_S + 3600) == ()


@pytest.mark.parametrize("time", ["StartTime", "EndTime"])
def test_a_time_that_is_none_is_an_error(time: str) -> None:
    """Half a picture is never returned."""
    line = told().replace(f"{time}=2026-11-26T0", f"{time}=soon")

    with pytest.raises(ClusterError, match="course"):
        read_reservations(line)
