"""sd_notify: the datagram systemd expects, and silence where there is no systemd."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from slurm_dl.daemon.systemd_notify import notify, watchdog_s


@pytest.mark.parametrize("abstract", [False, True])
def test_lines_arrive_as_one_datagram(abstract: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """All lines of a call come together, also over an abstract socket."""
    name = f"@slurm_dl_test_{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(5)

        assert notify("READY=1", "STATUS=a\nb", environ={"NOTIFY_SOCKET": name})

        assert manager.recv(1000) == b"READY=1\nSTATUS=a b"


@pytest.mark.parametrize("where", ["", "relative", "/nowhere/at/all", "@slurm_dl_nobody_is_here"])
def test_nobody_listening_is_no_error(where: str) -> None:
    """Without a service manager, or with one that is gone, the daemon goes on."""
    assert not notify("READY=1", environ={"NOTIFY_SOCKET": where})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "junk"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "90000000"}, 90.0),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": str(os.getpid())}, 90.0),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_the_watchdog_is_ours_or_nobodys(environ: dict[str, str], expected: float | None) -> None:
    """The period is read only if it is meant for this process."""
    assert watchdog_s(environ) == expected
