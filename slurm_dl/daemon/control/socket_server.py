"""The daemon's end of the control socket: who may ask, how much, how fast.

It knows nothing of what is asked; `request_handlers` does. Each connection has a thread of its own,
so a client that reads slowly, or never, holds up neither the others nor the loop. Limits on size,
time, connections, work (`load_limits`) and unsent bytes are per user, and admins have their own, so
nobody can keep an admin from pausing the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import selectors
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_dl.daemon.control.load_limits import HEAVY, BusyError, LoadLimits
from slurm_dl.daemon.control.wire_format import MAX_REQUEST_BYTES, RefusalKind
from slurm_dl.forecast.chunked_json import pieces
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.errors import ConfigError

READ_S = 10.0
"""A request must have arrived whole within this many seconds."""

SEND_S = 20.0
"""An answer must have been taken within this many seconds."""

PER_USER = 24
"""Connections one ordinary user may have open."""

IN_ALL = 96
"""Connections all ordinary users may have open; admins have as many again."""

_LONGEST_PATH = 107
"""``sun_path`` holds 108 bytes, the last of them NUL."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as the kernel says.

    Attributes:
        uid: Their user id.
        is_admin: root, the daemon's own account, or named in ``control.admins``.
    """

    uid: int
    is_admin: bool

    @property
    def name(self) -> str:
        """Their login name; the number if they have none."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

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


Answer = Callable[[JsonObject, Peer], JsonObject]


class ControlServer:
    """Listens on a unix socket and passes requests on, from threads of its own.

    Args:
        path: The socket; an old one in its place is removed.
        mode: Permissions of the socket: who may connect at all.
        admins: Login names or uids that may do what changes something.
        answer: Called with a request and who asks; raises `RequestError` to refuse.
        on_bug: Told of an exception nobody expected, with its request.

    Raises:
        ConfigError: The socket cannot be made.
    """

    def __init__(
        self,
        path: Path,
        *,
        mode: int,
        admins: Collection[str],
        answer: Answer,
        on_bug: Callable[[Exception], None],
    ) -> None:
        self._path = path
        self._admins = uids_of(admins)
        self._answer = answer
        self._on_bug = on_bug
        self._lock = threading.Lock()
        self._open: Counter[Peer] = Counter()
        self._connections: set[socket.socket] = set()
        self._limits = {True: LoadLimits(per_user=False), False: LoadLimits(per_user=True)}
        self._listener = _listen(path, mode)
        self._inode = path.stat().st_ino
        self._stop_r, self._stop_w = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def allow(self, admins: Collection[str]) -> None:
        """Replace the list of admins.

        Raises:
            ConfigError: A name is unknown; the list stays as it was.
        """
        self._admins = uids_of(admins)

    def close(self) -> None:
        """Stop listening, drop every connection, remove the socket."""
        os.write(self._stop_w, b"x")
        self._thread.join()
        self._listener.close()
        with self._lock:
            for sock in self._connections:
                # Wakes the connection's thread, which then closes it.
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            # Not a successor's socket of the same name.
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        os.close(self._stop_r)
        os.close(self._stop_w)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stop_r, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._stop_r in ready:
                    return
                try:
                    sock, _ = self._listener.accept()
                except OSError:
                    # Out of descriptors, or the client is gone already.
                    time.sleep(0.05)
                    continue
                try:
                    self._welcome(sock, self._peer_of(sock))
                except Exception as err:  # noqa: BLE001 - without this thread nobody could pause
                    sock.close()
                    self._on_bug(err)

    def _welcome(self, sock: socket.socket, peer: Peer) -> None:
        with self._lock:
            alike = sum(n for other, n in self._open.items() if other.is_admin == peer.is_admin)
            full = alike >= IN_ALL or (not peer.is_admin and self._open[peer] >= PER_USER)
            if not full:
                self._open[peer] += 1
                self._connections.add(sock)
        if full:
            _turn_away(sock, "too many connections; retry")
            return
        try:
            threading.Thread(
                target=self._converse, args=(sock, peer), name=f"control-{peer.uid}", daemon=True
            ).start()
        except RuntimeError:
            self._forget(sock, peer)
            _turn_away(sock, "this host has no threads left for dlschedd; retry")

    def _peer_of(self, sock: socket.socket) -> Peer:
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", raw)
        # The kernel's uid is unsigned.
        uid %= 1 << 32
        return Peer(uid, uid in self._admins)

    def _converse(self, sock: socket.socket, peer: Peer) -> None:
        limits = self._limits[peer.is_admin]
        try:
            with sock, contextlib.suppress(OSError):
                for line in _requests(sock):
                    answer = self._reply(line, peer, limits)
                    try:
                        sock.settimeout(SEND_S)
                        sock.sendall(answer)
                    finally:
                        limits.let_go(peer.uid, len(answer))
        finally:
            self._forget(sock, peer)

    def _forget(self, sock: socket.socket, peer: Peer) -> None:
        with self._lock:
            self._connections.discard(sock)
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]

    def _reply(self, line: bytes, peer: Peer, limits: LoadLimits) -> bytes:
        """The answer as it is sent; its bytes count as unsent."""
        try:
            request = _decoded(line)
            turn = (
                limits.turn(peer.uid)
                if request.get("request") in HEAVY
                else contextlib.nullcontext()
            )
            # Encoded within the turn: that takes as much time and memory as the answer itself.
            with turn:
                answer = _encoded({"ok": True, "result": self._answer(request, peer)})
                limits.hold(peer.uid, len(answer))
                return answer
        except RequestError as err:
            refusal = err
        except BusyError as err:
            refusal = RequestError(RefusalKind.BUSY, str(err))
        except Exception as err:  # noqa: BLE001 - one bad request must not end the thread unseen
            self._on_bug(err)
            refusal = RequestError(RefusalKind.INTERNAL, "dlschedd could not answer; see its log")
        answer = _encoded(_refusal(refusal))
        limits.hold(peer.uid, len(answer))
        return answer


def uids_of(admins: Collection[str]) -> frozenset[int]:
    """Who may do what changes something: root, this process's account, and *admins*.

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


def _listen(path: Path, mode: int) -> socket.socket:
    if len(os.fsencode(path)) > _LONGEST_PATH:
        msg = f"paths.run_dir: {path} is longer than the {_LONGEST_PATH} bytes a socket may have"
        raise ConfigError(msg)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            # Whatever our umask: the socket's own mode says who may connect.
            path.parent.chmod(0o755)
        _clear(path)
        # Nobody may connect before the mode is what it should be.
        old_umask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(old_umask)
        path.chmod(mode)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as err:
        listener.close()
        msg = f"cannot listen on {path}: {err.strerror}; see paths.run_dir"
        raise ConfigError(msg) from err
    except ConfigError:
        listener.close()
        raise
    return listener


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


def _requests(sock: socket.socket) -> Iterator[bytes]:
    """Request lines as they come; ends at the end of the stream or when one is late."""
    buffer = bytearray()
    deadline = time.monotonic() + READ_S
    while True:
        end = buffer.find(b"\n")
        if end >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            yield line
            deadline = time.monotonic() + READ_S
            continue
        if len(buffer) > MAX_REQUEST_BYTES:
            # Too much to be a request. It is answered once and read no further.
            yield bytes(buffer)
            return
        left = deadline - time.monotonic()
        if left <= 0:
            return
        sock.settimeout(left)
        chunk = sock.recv(65536)
        if not chunk:
            return
        buffer += chunk


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
    # In pieces, as the loop waits for the interpreter's lock while one is encoded.
    return b"".join((*(piece.encode("ascii") for piece in pieces(answer)), b"\n"))


def _turn_away(sock: socket.socket, why: str) -> None:
    sock.setblocking(False)
    with contextlib.suppress(OSError), sock:
        sock.send(_encoded(_refusal(RequestError(RefusalKind.BUSY, why))))


def _refusal(err: RequestError) -> JsonObject:
    return {"ok": False, "kind": err.kind, "error": str(err)}
