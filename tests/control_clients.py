"""Clients of the control sockets, good and bad, for tests of both."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - another user may not read Python here, to import it late
import json
import os
import pwd
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_dl.daemon.control.client import DaemonError
from slurm_dl.daemon.control.reception import Peer, RequestError
from slurm_dl.daemon.control.wire_format import RefusalKind
from slurm_dl.json_types import JsonObject

NOBODY = pwd.getpwnam("nobody").pw_uid
OTHER = pwd.getpwnam("daemon").pw_uid


def echo(request: JsonObject, peer: Peer) -> JsonObject:
    if request.get("request") == "bug":
        msg = "a bug"
        raise ZeroDivisionError(msg)
    if request.get("request") == "refuse":
        raise RequestError(RefusalKind.NOT_FOUND, "no such thing")
    return {"you": peer.uid, "from": peer.host, "admin": peer.is_admin, "sent": request}


def as_user(uid: int, act: Callable[[], JsonObject]) -> JsonObject:
    """What *act* returns in a child process that has become *uid*."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            try:
                answer = act()
            except DaemonError as err:
                answer = {"error": str(err)}
            os.write(write_end, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as stream:
        raw = stream.read()
    os.waitpid(pid, 0)
    answer: JsonObject = json.loads(raw)
    return answer


def until_closed(sock: socket.socket) -> bytes:
    """All that is still said, until the server ends the connection."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(1 << 20):
            said += chunk
    return said


def drip(sock: socket.socket) -> None:
    """A request, each byte within the time that a whole one may take, and all of it much later."""
    with contextlib.suppress(BrokenPipeError):
        for byte in b'{"request": "hello"}           \n':
            sock.sendall(bytes((byte,)))
            time.sleep(0.1)


def says(raw: bytes) -> Callable[[socket.socket], None]:
    def say(sock: socket.socket) -> None:
        # The server may have heard enough before we have said all.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(raw)

    return say


@contextlib.contextmanager
def munged(directory: Path, key: bytes) -> Iterator[str]:
    """The socket of a MUNGE service with this key, which ends with the block."""
    directory.mkdir(mode=0o755)
    (directory / "key").write_bytes(key)
    (directory / "key").chmod(0o600)
    path = directory / "socket"
    argv = [
        "munged", "--foreground", "--force", f"--socket={path}", f"--key-file={directory}/key",
        f"--pid-file={directory}/pid", f"--seed-file={directory}/seed",
    ]  # fmt: skip
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while not path.is_socket():
            assert process.poll() is None, "munged has ended"
            assert time.monotonic() < until, "munged does not listen"
            time.sleep(0.02)
        yield str(path)
    finally:
        process.terminate()
        process.wait(10)
