"""What an admin changes in Slurm under a running daemon: it says so by itself."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakeSandbox
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import SandboxNodes, SandboxSpec
from slurm_dl.sandbox.spec import PartitionSpec

pytestmark = pytest.mark.slurm


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    """A daemon, not begun yet, on a cluster of its own."""
    parts = (PartitionSpec("gpu"), PartitionSpec("more"))
    spec = SandboxSpec(groups=(SandboxNodes(1),), partitions=parts)
    with schedd_in(make_sandbox(spec), short_directory) as daemon:
        yield daemon


def logged(place: Schedd) -> list[tuple[str, str]]:
    """Level and event of the lines about the partitions."""
    lines = (place.home / "schedd.log").read_text("utf-8").splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return [(one["level"], one["event"]) for one in told if one.get("check") == "partitions"]


def test_a_managed_partition_that_is_deleted(place: Schedd) -> None:
    """In the status, the metrics and one line of the log, until it is there again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{free.getsockname()[1]}"
    parts = {"partitions": ["gpu", "more"]}
    place.configure(manage=parts, metrics={"listen": url}, daemon={"log_format": "json"})
    place.start()

    def shown() -> tuple[bool, bool]:
        told = json.loads(place.ask("dlctl", "status", "--json").stdout)["problems"]
        with urllib.request.urlopen(f"http://{url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        metric = 'slurm_dl_problem{check="partitions"} 1.0' in text.splitlines()
        return "partitions" in [problem["check"] for problem in told], metric

    told = [("error", "problem"), ("info", "problem is gone")]
    for nth, command in enumerate(
        ("delete PartitionName=more", "create PartitionName=more Nodes=ALL")
    ):
        stands = nth == 0
        assert (shown(), logged(place)) == ((not stands,) * 2, told[:nth])
        place.box.run(["scontrol", *command.split()])
        for _ in range(2):  # The second time nothing has changed, and nothing is said.
            place.ask("dlctl", "reload")
            seen = place.cycles()
            place.until("a look", lambda seen=seen: place.cycles() > seen + 2)
            place.until(command, lambda stands=stands: shown() == (stands, stands))
            assert logged(place) == told[: nth + 1]
