"""The daemon's end of the control socket: who may ask, how much, how fast.

It knows nothing of what is asked; `request_handlers` does. Each connection has a thread of its own,
so a client that reads slowly, or never, holds up neither the others nor the loop. Limits on size,
time, connections, work (`load_limits`) and unsent bytes are per user, and admins have their own, so
nobody can keep an admin from pausing the daemon.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pwd
import select
import socket
import socketserver
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from slurm_dl.daemon.control.load_limits import HEAVY, BusyError, LoadLimits
from slurm_dl.daemon.control.wire_format import MAX_REQUEST_BYTES, RefusalKind
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.errors import ConfigError
from slurm_dl.text import user_name

READ_S = 10.0
"""A request must have arrived whole within this many seconds."""

SEND_S = 20.0
"""An answer must have been taken within this many seconds."""

PER_USER = 24
"""Connections one ordinary user may have open."""

IN_ALL = 96
"""Connections all ordinary users may have open; admins have as many again."""

_LOOK_S = 0.2
"""Late requests, and the end, are looked for so often."""

_GROUP = 100
"""Entries that are encoded together."""

_LONGEST_PATH = 107
"""``sun_path`` holds 108 bytes, the last of them NUL."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The client's user, as the kernel reports it."""

    uid: int  # Their user id
    is_admin: bool  # root, the daemon's own account, or named in ``control.admins``

    @property
    def name(self) -> str:
        """Their login name; the number if they have none."""
        return user_name(self.uid)

    def __str__(self) -> str:
        return f"user {self.name} ({self.uid})"


class RequestError(Exception):
    """A request that is not answered; the words go to whoever asked.

    Args:
        kind: For a program.
        message: For a person.
    """

    def __init__(self, kind: RefusalKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


Stream = Callable[[BufferedIOBase, Callable[[], bool]], None]
"""Writes to the client until there is no more, or until the second argument, which tells whether
the client has hung up, is true; raises `OSError` if the client is gone."""

Answer = Callable[[JsonObject, Peer], "JsonObject | Stream"]
"""A stream follows an answer without content, and ends the connection."""


@dataclass(slots=True)
class _Connection:
    peer: Peer
    until_s: float = math.inf
    """When a request must be there at last, on the monotonic clock."""


class ControlServer(socketserver.ThreadingUnixStreamServer):
    """Listens on a unix socket and passes requests on, from threads of its own.

    Args:
        path: The socket; an old one in its place is removed.
        mode: Permissions of the socket: who may connect at all.
        admins: Login names or uids that may do what changes something.
        answer: Called with a request and who asks; raises `RequestError` to refuse.
        on_bug: Told of an exception nobody expected.

    Raises:
        ConfigError: The socket cannot be made.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        path: Path,
        *,
        mode: int,
        admins: Collection[str],
        answer: Answer,
        on_bug: Callable[[Exception], None],
    ) -> None:
        self.answer = answer
        self.on_bug = on_bug
        self.limits = {True: LoadLimits(per_user=False), False: LoadLimits(per_user=True)}
        self.open: dict[socket.socket, _Connection] = {}
        self._path = path
        self._mode = mode
        self._admins = uids_of(admins)
        self._lock = threading.Lock()
        super().__init__(str(path), _Conversation)
        self._inode = path.stat().st_ino
        threading.Thread(target=self.serve_forever, args=(_LOOK_S,), daemon=True).start()

    def allow(self, admins: Collection[str]) -> None:
        """Replace the list of admins.

        Raises:
            ConfigError: A name is unknown; the list stays as it was.
        """
        self._admins = uids_of(admins)

    def close(self) -> None:
        """Stop listening, drop every connection, remove the socket."""
        self.shutdown()
        self.server_close()
        self._drop(lambda _: True)
        with contextlib.suppress(OSError):
            # Not a successor's socket of the same name.
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def server_bind(self) -> None:
        """Make the socket, with its mode, in place of one that is left over."""
        path = self._path
        if len(os.fsencode(path)) > _LONGEST_PATH:
            msg = (
                f"paths.run_dir: {path} is longer than the {_LONGEST_PATH} bytes a socket may have"
            )
            raise ConfigError(msg)
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True)
                # Whatever our umask: the socket's own mode says who may connect.
                path.parent.chmod(0o755)
            _clear(path)
            # Nobody may connect before the mode is what it should be.
            old_umask = os.umask(0o177)
            try:
                super().server_bind()
            finally:
                os.umask(old_umask)
            path.chmod(self._mode)
        except OSError as err:
            msg = f"cannot listen on {path}: {err.strerror}; see paths.run_dir"
            raise ConfigError(msg) from err

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - socketserver's
        """Converse with a client in a thread of its own, or tell it to retry."""
        peer = self._peer_of(request)
        with self._lock:
            alike = [c.peer for c in self.open.values() if c.peer.is_admin == peer.is_admin]
            full = len(alike) >= IN_ALL or (not peer.is_admin and alike.count(peer) >= PER_USER)
            if not full:
                self.open[request] = _Connection(peer)
        if full:
            self._turn_away(request, "too many connections; retry")
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._turn_away(request, "this host has no threads left for dlschedd; retry")

    def service_actions(self) -> None:
        """Drop the connections whose request is late, however slowly it drips in."""
        now_s = time.monotonic()
        self._drop(lambda connection: connection.until_s < now_s)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - socketserver's
        """Close a connection, served or not."""
        with self._lock:
            self.open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone, or too slow, is no bug."""
        del request, client_address
        err = sys.exception()
        if isinstance(err, Exception) and not isinstance(err, OSError):
            self.on_bug(err)

    def _peer_of(self, sock: socket.socket) -> Peer:
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", raw)
        # The kernel's uid is unsigned.
        uid %= 1 << 32
        return Peer(uid, uid in self._admins)

    def _turn_away(self, sock: socket.socket, why: str) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.send(_encoded(_refusal(RequestError(RefusalKind.BUSY, why))))
        self.shutdown_request(sock)

    def _drop(self, is_over: Callable[[_Connection], bool]) -> None:
        """Wake the threads of connections, which then close them."""
        with self._lock:
            for sock, connection in self.open.items():
                if is_over(connection):
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)


class _Conversation(socketserver.StreamRequestHandler):
    """One connection: request lines, each answered before the next is read."""

    server: ControlServer

    def handle(self) -> None:
        mine = self.server.open[self.request]
        peer, limits = mine.peer, self.server.limits[mine.peer.is_admin]
        self.connection.settimeout(SEND_S)
        is_whole = True
        while is_whole:
            mine.until_s = time.monotonic() + READ_S
            line = self.rfile.readline(MAX_REQUEST_BYTES + 1)
            mine.until_s = math.inf
            is_whole = line.endswith(b"\n")
            if not is_whole and len(line) <= MAX_REQUEST_BYTES:
                return
            answer, stream = self._reply(line.removesuffix(b"\n"), peer, limits)
            try:
                self.wfile.write(answer)
            finally:
                limits.let_go(peer.uid, len(answer))
            if stream is not None:
                stream(self.wfile, self._has_hung_up)
                return

    def _has_hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, 0)
        # A client that only has no more to say is no POLLHUP.
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def _reply(self, line: bytes, peer: Peer, limits: LoadLimits) -> tuple[bytes, Stream | None]:
        """The answer as it is sent, and what follows it; its bytes count as unsent."""
        try:
            request = _decoded(line)
            turn = (
                limits.turn(peer.uid)
                if request.get("request") in HEAVY
                else contextlib.nullcontext()
            )
            # Encoded within the turn: that takes as much time and memory as the answer itself.
            with turn:
                result = self.server.answer(request, peer)
                content, stream = (result, None) if isinstance(result, dict) else ({}, result)
                answer = _encoded({"ok": True, "result": content})
                limits.hold(peer.uid, len(answer))
                return answer, stream
        except RequestError as err:
            refusal = err
        except BusyError as err:
            refusal = RequestError(RefusalKind.BUSY, str(err))
        except Exception as err:  # noqa: BLE001 - one bad request must not end the thread unseen
            self.server.on_bug(err)
            refusal = RequestError(RefusalKind.INTERNAL, "dlschedd could not answer; see its log")
        answer = _encoded(_refusal(refusal))
        limits.hold(peer.uid, len(answer))
        return answer, None


def uids_of(admins: Collection[str]) -> frozenset[int]:
    """Users that may send requests with effects: root, this process's account, and *admins*.

    Looked up once, because a name service can be slow and everybody's connection would wait.

    Raises:
        ConfigError: A name is unknown on this machine.
    """
    uids = {0, os.geteuid()}
    for name in admins:
        try:
            is_uid = name.isascii() and name.isdecimal()
            uids.add(int(name) if is_uid else pwd.getpwnam(name).pw_uid)
        except KeyError:
            msg = f"control.admins: no user {name!r} on this machine"
            raise ConfigError(msg) from None
    return frozenset(uids)


def _clear(path: Path) -> None:
    """Remove the socket of a daemon that is gone: the caller holds the lock it would hold."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        msg = f"{path} is in the way and is no socket: move it, or set paths.run_dir"
        raise ConfigError(msg)
    path.unlink()


def _decoded(line: bytes) -> JsonObject:
    if len(line) > MAX_REQUEST_BYTES:
        msg = f"a request may have {MAX_REQUEST_BYTES} bytes"
        raise RequestError(RefusalKind.BAD_REQUEST, msg)
    try:
        request: Json = json.loads(line)
    except (ValueError, RecursionError):
        msg = "a request is one line of JSON"
        raise RequestError(RefusalKind.BAD_REQUEST, msg) from None
    if not isinstance(request, dict):
        msg = "a request is a JSON object"
        raise RequestError(RefusalKind.BAD_REQUEST, msg)
    return request


def _encoded(answer: JsonObject) -> bytes:
    return "".join((*pieces(answer), "\n")).encode("ascii")


def pieces(value: Json) -> Iterator[str]:
    """The JSON of *value*; entries of a list or of a large object go in groups.

    An encoder holds the interpreter's lock until it is done, half a second at fifty thousand jobs.
    Between two pieces the loop may run.
    """
    match value:
        case list() if value:
            parts: Iterator[Any] = (value[at : at + _GROUP] for at in range(0, len(value), _GROUP))
        case dict() if len(value) > _GROUP:
            items = iter(value.items())
            parts = iter(lambda: dict(itertools.islice(items, _GROUP)), {})
        case dict() if value:
            for number, (key, inner) in enumerate(value.items()):
                yield f"{', ' if number else '{'}{json.dumps(key)}: "
                yield from pieces(inner)
            yield "}"
            return
        case _:
            yield json.dumps(value)
            return
    first, last = "[]" if isinstance(value, list) else "{}"
    for number, part in enumerate(parts):
        yield f"{', ' if number else first}{json.dumps(part)[1:-1]}"
    yield last


def _refusal(err: RequestError) -> JsonObject:
    return {"ok": False, "kind": err.kind, "error": str(err)}
