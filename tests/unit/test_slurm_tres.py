from __future__ import annotations

import pytest

from slurm_dl.slurm.read.tres import (
    NO_GRES,
    Gres,
    TresRequest,
    job_request,
    parse_gres,
    parse_memory_mb,
    parse_tres,
)

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
