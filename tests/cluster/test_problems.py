"""What an admin changes in Slurm under a running daemon: it says so by itself."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec
from slurm_dl.sandbox.spec import PartitionSpec

pytestmark = pytest.mark.slurm


@pytest.fixture
def place(short_directory: Path) -> Iterator[Schedd]:
    """A daemon, not begun yet, on a cluster of its own."""
    parts = (PartitionSpec("gpu"), PartitionSpec("more"))
    spec = SandboxSpec(groups=(SandboxNodes(1),), partitions=parts)
    box = Sandbox.up(short_directory / "box", spec)
    try:
        with schedd_in(box, short_directory) as daemon:
            yield daemon
    finally:
        box.down(remove=True)


def problems(place: Schedd) -> list[str]:
    """The checks that the status names."""
    return [
        p["check"] for p in json.loads(place.ask("dlctl", "status", "--json").stdout)["problems"]
    ]


def logged(place: Schedd, event: str) -> list[dict[str, str]]:
    """Lines of the log about the partitions."""
    lines = (place.home / "schedd.log").read_text("utf-8").splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return [one for one in told if (one["event"], one.get("check")) == (event, "partitions")]


def test_a_managed_partition_that_is_deleted(place: Schedd) -> None:
    """In the status, the metrics and one line of the log, until it is there again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place.configure(
        manage={"partitions": ["gpu", "more"]},
        metrics={"listen": f"127.0.0.1:{port}"},
        daemon={"log_format": "json"},
    )
    place.start()

    def shown() -> tuple[bool, bool]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return "partitions" in problems(place), (
            'slurm_dl_problem{check="partitions"} 1.0' in text.splitlines()
        )

    for command, event, stands in (
        ("delete PartitionName=more", "problem", True),
        ("create PartitionName=more Nodes=ALL", "problem is gone", False),
    ):
        assert shown() == (not stands, not stands)
        place.box.run(["scontrol", *command.split()])
        for _ in range(2):  # The second time nothing has changed, and nothing is said.
            place.ask("dlctl", "reload")
            seen = place.cycles()
            place.until("a look", lambda seen=seen: place.cycles() > seen + 2)  # type: ignore[misc]
            place.until(event, lambda stands=stands: shown() == (stands, stands))  # type: ignore[misc]
        assert len(logged(place, event)) == 1
    assert [line["level"] for line in logged(place, "problem")] == ["error"]
    assert [line["level"] for line in logged(place, "problem is gone")] == ["info"]
