"""What slurmctld says of itself: the words of sdiag."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.nodes import Nodes
from slurm_dl.slurm.controller import ControllerStatus, read_health, rpcs_of
from slurm_dl.slurm.read.node_reader import blocked_by, read_reservations
from slurm_dl.slurm.read.tres import (
    NO_GRES,
    Gres,
    TresRequest,
    job_request,
    parse_gres,
    parse_memory_mb,
    parse_tres,
)

RECORDED = (Path(__file__).parents[1] / "data" / "slurm-22.05" / "sdiag.txt").read_text("utf-8")
"""As 22.05.8 printed it."""

LATER = """\
*******************************************************
sdiag output at Wed Jul 15 17:48:55 2026 (1784137735)
Data since      Wed Jul 15 17:28:49 2026 (1784136529)
*******************************************************
Server thread count:  131
RPC queue enabled:    1
Agent queue size:     0
Agent count:          0
Agent thread count:   0
DBD Agent queue size: 5021

Main schedule statistics (microseconds):
\tLast cycle:   289
\tMax cycle:    1691
\tTotal cycles: 25
\tMean cycle:   513

Backfilling stats
\tLast cycle:   45
\tMean cycle:   60

Remote Procedure Call statistics by message type
\tREQUEST_JOB_INFO                        ( 2003) count:40     ave_time:500000 total_time:20000000 \
queued:3 dropped:0 cycle_last:1 cycle_max:2
"""
"""Later releases have more lines, and more figures behind those there were (enable_rpc_queue)."""


def test_what_a_real_slurmctld_printed_is_read() -> None:
    """Each figure of 22.05.8's text."""
    assert read_health(RECORDED) == ControllerStatus(
        now_s=1795342317.0,
        threads=3,
        agent_queue=0,
        dbd_queue=0,
        last_cycle_s=0.000028,
        mean_cycle_s=0.000028,
        dumps=1,
        dump_total_s=0.000224,
    )
    assert rpcs_of(RECORDED)["REQUEST_SUBMIT_BATCH_JOB"] == (3, 0.014394)
    assert len(rpcs_of(RECORDED)) == 5


def test_later_releases_say_more() -> None:
    """Lines and figures that were added change nothing; nor does backfill's cycle count."""
    assert read_health(LATER) == ControllerStatus(
        now_s=1784137735.0,
        threads=131,
        agent_queue=0,
        dbd_queue=5021,
        last_cycle_s=0.000289,
        mean_cycle_s=0.000513,
        dumps=40,
        dump_total_s=20.0,
    )


def test_what_is_missing_is_unknown() -> None:
    """A release that leaves all else out still tells its time."""
    assert read_health("sdiag output at then (17)\n") == ControllerStatus(now_s=17.0)


@pytest.mark.parametrize("text", ["", "sdiag output at then\n", "Data since x (17)\n", "x" * 9])
def test_an_answer_without_the_time_is_none(text: str) -> None:
    """The time is what it is asked for."""
    with pytest.raises(ClusterError, match="time"):
        read_health(text)


def test_names_of_users_do_not_count_as_figures() -> None:
    """A login name can look like a call; the table by user is not read."""
    forged = "\tREQUEST_JOB_INFO  ( 7) count:1 ave_time:9 total_time:900000000\n"
    head, by_user, rest = RECORDED.partition("Remote Procedure Call statistics by user\n")

    assert read_health(head + by_user + forged + rest) == read_health(RECORDED)


@given(st.text(max_size=400))
def test_no_text_breaks_it(noise: str) -> None:
    """Whatever is printed, it is read or refused in one line."""
    for text in (noise, RECORDED + noise, noise + RECORDED, "sdiag output at " + noise):
        try:
            read_health(text)
        except ClusterError as err:
            assert "\n" not in str(err)  # noqa: PT017 - both ways are right


def test_how_long_a_listing_takes_is_between_two_looks() -> None:
    """Slurm's mean is over a day; a reset of its figures begins anew."""
    early = ControllerStatus(now_s=0.0, dumps=1000, dump_total_s=100.0)
    late = ControllerStatus(now_s=9.0, dumps=1002, dump_total_s=110.0)

    assert early.dump_s_since(None) == pytest.approx(0.1)
    assert late.dump_s_since(early) == pytest.approx(5.0)
    assert early.dump_s_since(late) == pytest.approx(0.1)
    assert late.dump_s_since(late) is None


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


BOTH = (("a100", 4.0), ("v100", 2.0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gres:gpu:a100:4", Gres(4, "a100")),
        ("gres:gpu:4", Gres(4)),
        ("gres:gpu", Gres(1)),
        ("gres:gpu:a100", Gres(1, "a100")),
        ("gres/gpu:a100:4", Gres(4, "a100")),
        ("gres/gpu:4", Gres(4)),
        ("gres/gpu=4", Gres(4)),
        ("gres/gpu:a100=4", Gres(4, "a100")),
        ("gres/gpu=4,gres/gpu:a100=4", Gres(4, "a100")),
        ("gres/gpu:a100=4,gres/gpu=4", Gres(4, "a100")),
        ("gres/gpu=6,gres/gpu:a100=4,gres/gpu:v100=2", Gres(6, by_type=BOTH)),
        ("gpu:a100:2(IDX:0-1)", Gres(2, "a100")),
        ("gpu:a100:3(IDX:0,2-3),shard:a100:8(0/8,8/8)", Gres(3, "a100", shards=8)),
        ("gpu:a100:4(S:0-1),gpu:v100:2(S:2-3)", Gres(6, by_type=BOTH)),
        ("gpu:3090:2", Gres(2, "3090")),
        ("gpu:a100_3g.20gb:2", Gres(2, "a100_3g.20gb")),
        ("gpu:1K", Gres(1024)),
        ("gpu:no_consume", Gres(1)),
        ("gpu:1", Gres(1)),
        ("gres:gpu:2,gres:nic:1", Gres(2)),
        ("gres:shard:4", Gres(shards=4)),
        ("gres/mps:50", Gres(mps=50)),
        ("cpu:4,gres/gpu:1", Gres(1)),
        ("craynetwork:4", NO_GRES),
        ("gres:mygpu:4", NO_GRES),
        ("(null)", NO_GRES),
        ("N/A", NO_GRES),
        ("", NO_GRES),
        ("gpu:,gpu:(S:0)", NO_GRES),
    ],
)
def test_gpus_are_counted_once_in_every_spelling(text: str, expected: Gres) -> None:
    """Each release's spelling gives the same count, and totals do not add to their parts."""
    assert parse_gres(text) == expected


@pytest.mark.parametrize(
    ("text", "mb"),
    [
        ("62.50G", 64000),
        ("1000M", 1000),
        ("4000", 4000),
        ("1T", 2**20),
        ("2048K", 2),
        ("4Gn", 4096),
        ("2Gc", 2048),
        ("0", 0),
        ("", 0),
        ("x", 0),
    ],
)
def test_memory_is_read_in_its_unit(text: str, mb: int) -> None:
    """Slurm writes memory with a unit of its choice; without one it is MB."""
    assert parse_memory_mb(text) == mb


def test_tres_gives_nodes_memory_and_gpus() -> None:
    """A TRES string without GPUs has none; AccountingStorageTRES may not list them."""
    tres = parse_tres("cpu=8,mem=62.50G,node=2,billing=8,gres/gpu=4,gres/gpu:a100=4")

    assert (tres.nodes, tres.mem_mb, tres.gres) == (2, 64000, Gres(4, "a100"))
    assert parse_tres("cpu=8,node=2,billing=8").gres == NO_GRES


def request(alloc: str = "cpu=1,node=1", **asked: str | int) -> TresRequest:
    fields = {f"per_{unit}": "N/A" for unit in ("node", "job", "task", "socket")}
    return job_request(alloc, **fields | {"nodes": 1, "tasks": 1, "sockets": 1} | asked)


@pytest.mark.parametrize(
    ("made", "gpus", "even"),
    [
        (request("cpu=1,node=2,gres/gpu=4", nodes=2, per_job="gres:gpu:9"), 4, False),
        (request("cpu=1,node=2,gres/gpu=4", nodes=2, per_node="gres:gpu:2"), 4, True),
        (request("cpu=1,node=2", nodes=2, per_node="gres:gpu:2"), 4, True),
        (request("cpu=1,node=2", nodes=2, per_job="gres:gpu:6"), 6, False),
        (request("cpu=1,node=1", nodes=1, per_job="gres:gpu:6"), 6, True),
        (request("cpu=1,node=2", nodes=2, tasks=3, per_task="gres:gpu:1"), 3, False),
        (request("cpu=1,node=2", nodes=2, sockets=2, per_socket="gres:gpu:1"), 4, True),
        (request(per_job="gres:gpu:3", per_task="gres:gpu:1", tasks=3), 3, True),
        (request(), 0, True),
    ],
)
def test_gpus_come_from_the_most_direct_statement(
    made: TresRequest,
    gpus: float,
    even: bool,  # noqa: FBT001
) -> None:
    """TRES first, then the job's total, then node, task and socket times their number."""
    assert (made.gres.gpus, made.even) == (gpus, even)


def test_completing_job_holds_only_what_its_remaining_nodes_had() -> None:
    """Slurm counts down the nodes of a completing job but not its TRES."""
    alloc = "cpu=8,mem=8G,node=4,gres/gpu=16"

    assert request(alloc, nodes=1).gres.gpus == 4
    assert request(alloc, nodes=1).mem_mb == 2048
    assert request("cpu=8,node=4", nodes=1, per_node="gres:gpu:4").gres.gpus == 4


def test_type_is_taken_from_the_request_where_tres_names_none() -> None:
    """AccountingStorageTRES=gres/gpu counts GPUs without their type."""
    made = request("node=1,gres/gpu=2", per_node="gres:gpu:a100:2")

    assert made.gres == Gres(2, "a100")
