"""The stand-by: what it waits for, what it says, and where slurmctld has to be."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from patience import eventually

from slurm_dl import logging_setup
from slurm_dl.config import load_with_origins, show
from slurm_dl.daemon.control.reception import Peer, RequestError
from slurm_dl.daemon.preconditions import PauseSwitch, WithdrawnError
from slurm_dl.daemon.published_state import PublishedState
from slurm_dl.daemon.takeover.lease import LeaseWatch, LockedError, held, shared
from slurm_dl.daemon.takeover.standby import ControllerHostCheck, Standby
from slurm_dl.ledger.sqlite.lease_row import LeaseRow
from slurm_dl.ledger.sqlite.store import LeaseState
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.controller import ControllerHost, acting, read_ping, same_host

# As recorded on a pair of 22.05.8; the banner comes with any that is down.
BANNER = f"{'*' * 41}\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n{'*' * 41}\n"
BOTH_UP = "Slurmctld(primary) at ctla is UP\nSlurmctld(backup) at ctlb is UP\n"
PRIMARY_DOWN = "Slurmctld(primary) at ctla is DOWN\nSlurmctld(backup) at ctlb is UP\n" + BANNER
ALL_DOWN = "Slurmctld(primary) at ctla is DOWN\nSlurmctld(backup) at ctlb is DOWN\n" + BANNER
ALONE = "Slurmctld(primary) at vm is UP\n"


@pytest.mark.parametrize(
    ("text", "host"),
    [(BOTH_UP, "ctla"), (PRIMARY_DOWN, "ctlb"), (ALL_DOWN, ""), (ALONE, "vm"), ("junk\n", "")],
)
def test_who_acts(text: str, host: str) -> None:
    """The first that is up; a backup that stands by is up, too."""
    assert acting(read_ping(text)) == host


def test_the_ping_is_read_in_order() -> None:
    """More than one backup is numbered; the order is that of slurm.conf."""
    text = BOTH_UP.replace("(backup)", "(backup1)") + "Slurmctld(backup2) at c.site.org is DOWN\n"
    assert read_ping(text) == (
        ControllerHost("ctla", is_up=True),
        ControllerHost("ctlb", is_up=True),
        ControllerHost("c.site.org", is_up=False),
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a", "a", True),
        ("A", "a", True),
        ("a", "a.site.org", True),
        ("a.x.org", "a.site.org", False),
        ("a", "b", False),
        ("a1", "a", False),
    ],
)
def test_names_of_hosts(one: str, other: str, *, same: bool) -> None:
    """A domain that one of them leaves out does not make another host."""
    assert same_host(one, other) is same
    assert same_host(other, one) is same


class Pings:
    """What the controllers say, and a clock."""

    def __init__(self) -> None:
        self.text = BOTH_UP
        self.now_s = 0.0
        self.asked = 0

    def __call__(self) -> tuple[ControllerHost, ...]:
        """One ping."""
        self.asked += 1
        if self.text == ALL_DOWN:
            msg = "scontrol ping failed (exit 1)"
            raise ClusterError(msg)
        return read_ping(self.text)

    def host_check(self, host: str) -> ControllerHostCheck:
        """The check of a daemon on *host*."""
        return ControllerHostCheck(self, host=host, every_s=15.0, clock=lambda: self.now_s)


def test_the_daemon_gives_up_when_slurmctld_is_elsewhere_twice() -> None:
    """The first time it only stops acting: one lost ping is no failover."""
    pings = Pings()
    beside = pings.host_check("ctla.site.org")
    assert beside.why_not() == ""
    pings.text = PRIMARY_DOWN
    assert beside.why_not() == ""
    assert pings.asked == 1
    pings.now_s = 15
    assert beside.why_not() == "slurmctld acts on ctlb, and this is ctla.site.org"
    pings.text = BOTH_UP
    pings.now_s = 30
    assert beside.why_not() == ""
    pings.text = PRIMARY_DOWN
    pings.now_s = 45
    beside.why_not()
    pings.now_s = 60
    with pytest.raises(WithdrawnError, match="slurmctld acts on ctlb"):
        beside.why_not()


def test_nobody_gives_up_while_no_slurmctld_answers() -> None:
    """There is nowhere to go; whoever was elsewhere is still elsewhere."""
    pings = Pings()
    here, there = pings.host_check("ctla"), pings.host_check("ctlb")
    there_at_first = there.elsewhere()
    assert there_at_first
    here.why_not()
    pings.text = ALL_DOWN
    for pings.now_s in (15, 30, 45):
        assert here.why_not() == ""
        assert there.elsewhere() == there_at_first


def test_a_host_that_is_no_controllers_says_so() -> None:
    """Or it would wait for ever, and nobody knew why."""
    assert Pings().host_check("login1").elsewhere() == (
        "slurmctld acts on ctla, and this is login1, which is none of its hosts"
    )


class Place:
    """A stand-by over a real row."""

    def __init__(
        self, directory: Path, host_check: ControllerHostCheck | None = None, lease_s: float = 5.0
    ) -> None:
        self.log = io.StringIO()
        logging_setup.configure(level="debug", form="json", stream=self.log)
        self.row = LeaseRow(directory / "ledger.sqlite")
        text = f"manage: {{partitions: [gpu]}}\npaths: {{state_dir: {directory}}}\n"
        (directory / "dl.yaml").write_text(text, "utf-8")
        config, origins = load_with_origins(directory / "dl.yaml")
        rows = tuple(show(config, origins))
        self.standby = Standby(
            LeaseWatch(self.row, lease_s=lease_s, stall_s=60),
            host_check,
            PublishedState(config=config, config_rows=rows, started_s=time.time(), live=True),
            logging_setup.logger(),
        )

    def said(self) -> list[str]:
        """The events of the log."""
        return [json.loads(line)["event"] for line in self.log.getvalue().splitlines()]


def _other(row: LeaseRow, lease_s: float = 60.0) -> LeaseState:
    other = row.take(row.read(), lease_s)
    assert other is not None
    return other


HOST, PID = socket.gethostname(), os.getpid()
THERE = re.escape(f"{HOST} acts (pid {PID}")


def test_a_lease_that_nobody_holds_is_taken_at_once(tmp_path: Path) -> None:
    """A first start waits for nothing, and says nothing of standing by."""
    place = Place(tmp_path)
    lease = place.standby.wait()
    assert lease.generation == 1
    assert place.standby.took == "nobody held the lease"
    assert place.said() == []


def test_a_stand_by_says_who_acts(tmp_path: Path) -> None:
    """Status and configuration are answered; for the rest it names the one to ask."""
    place = Place(tmp_path)
    _other(place.row)

    def end() -> None:
        eventually(lambda: "stands by" in place.said(), 10, what="it to stand by")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    assert place.standby.wait() is None
    thread.join(20)
    assert place.said() == ["stands by", "stopping"]
    words = place.standby.doing
    assert re.fullmatch(rf"stand-by: {THERE}, renewed \d+ s ago\)", words)

    admin = Peer(0, is_admin=True)
    PauseSwitch(tmp_path).on(by="ann", reason="", now_s=1.0)
    status = place.standby.answer({"request": "status"}, admin)
    assert status["doing"] == words
    standby = status["standby"]
    assert (standby["host"], standby["pid"], standby["generation"]) == (HOST, PID, 1)
    assert status["paused"] == {"by": "ann", "since_s": 1.0, "reason": ""}
    assert place.standby.answer({"request": "config"}, admin)["values"]
    for request in ("pause", "resume", "reload", "queue", "snapshot"):
        with pytest.raises(RequestError, match=THERE):
            place.standby.answer({"request": request}, admin)
    assert place.row.read().count == 0
    assert not (tmp_path / "audit.jsonl").exists()


def test_it_takes_over_when_the_other_is_silent(tmp_path: Path) -> None:
    """Once the lease has stood still for its length, and not before; it says of whom."""
    place = Place(tmp_path, lease_s=0.4)
    _other(place.row, lease_s=0.4)
    lease = place.standby.wait()
    assert lease.generation == 2
    assert place.standby.took.startswith(f"{HOST} (pid {PID}) was silent for ")
    assert place.said() == ["stands by", "takes over"]


def test_it_waits_for_slurmctld_to_come_here(tmp_path: Path) -> None:
    """A free lease is left alone while slurmctld acts elsewhere."""
    pings = Pings()
    place = Place(tmp_path, pings.host_check("ctlb"))

    def comes() -> None:
        eventually(lambda: "stands by" in place.said(), 10, what="it to stand by")
        assert place.standby.doing == "stand-by: slurmctld acts on ctla, and this is ctlb"
        assert place.row.read().is_free
        pings.text = PRIMARY_DOWN
        pings.now_s = 100

    thread = threading.Thread(target=comes)
    thread.start()
    lease = place.standby.wait()
    thread.join(20)
    assert lease is not None
    assert pings.asked == 2


def test_those_that_share_keep_out_who_does_not(tmp_path: Path) -> None:
    """Many may share a directory; one that wants it alone is refused, and the other way round."""
    with shared(tmp_path), shared(tmp_path), pytest.raises(LockedError), held(tmp_path):
        pass
    with held(tmp_path), pytest.raises(LockedError, match=str(os.getpid())), shared(tmp_path):
        pass


def test_a_shared_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """It is not mounted: a ledger of our own in its place would let two act."""
    gone = tmp_path / "share" / "slurm_dl"

    with pytest.raises(ConfigError, match="No such file"), shared(gone):
        pytest.fail("it was held")
    assert not gone.exists()
