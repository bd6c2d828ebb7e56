"""Tell systemd how the daemon is: one datagram to the socket it names, and nothing else.

It stands alone so that the daemon needs neither libsystemd nor a package for fifteen lines.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(*lines: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send *lines* such as ``READY=1`` to the service manager, if there is one.

    Never an error: a daemon that works must not die because nobody listens.

    Returns:
        Whether the datagram was sent.
    """
    where = environ.get("NOTIFY_SOCKET", "")
    if not where.startswith(("/", "@")):
        return False
    # "@" stands for the NUL byte that begins an abstract socket's name.
    address = "\0" + where[1:] if where.startswith("@") else where
    message = "\n".join(line.replace("\n", " ") for line in lines)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            # A full queue must not hold the daemon up.
            out.setblocking(False)
            out.sendto(message.encode("utf-8", "replace"), address)
    except OSError:
        return False
    return True


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Longest interval of ``WATCHDOG=1`` that systemd allows, seconds; None if it wants none."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0:
        return None
    if pid and pid != str(os.getpid()):
        return None
    return int(usec) / 1e6
