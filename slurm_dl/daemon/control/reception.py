"""Users of the control sockets: who may ask, how much, and the form of their answers.

It knows nothing of what is asked; `request_handlers` does. Limits on connections, work
(`LoadLimits`) and unsent bytes are per user, and admins have their own, so nobody can keep an
admin from pausing the daemon.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pwd
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedIOBase
from typing import Any, Final

from slurm_dl.daemon.control.wire_format import MAX_REQUEST_BYTES, RefusalKind
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.errors import ConfigError
from slurm_dl.text import user_name

HEAVY: Final = ("queue", "why", "snapshot")  # Requests whose work grows with the number of jobs
AT_ONCE = 2  # Heavy requests of ordinary users that are answered at once, each of another user
TURN_S = 10.0  # A heavy request waits for its turn for this many seconds at most

UNSENT_PER_USER = 32 * 1024**2
"""Bytes of answers that one ordinary user may leave untaken; one answer may be larger."""

UNSENT_IN_ALL = 128 * 1024**2
"""Bytes of answers that all ordinary users may leave untaken; one answer may be larger."""

ALWAYS_SENT = 64 * 1024  # An answer of at most so many bytes is sent however much is unsent


class BusyError(Exception):
    """A limit is reached; the words go to whoever asked."""


class LoadLimits:
    """The limits of one group, ordinary users or admins; may be called from many threads.

    An answer of the whole queue takes some 0.7 KB and 30 us for each job, and several times that
    memory while it is built. So such answers are built a few at a time, and what is not taken is
    bounded.

    Args:
        per_user: Each user has a part of what the group has; False: anybody may have all of it.
    """

    def __init__(self, *, per_user: bool) -> None:
        self._per_user = per_user
        self._changed = threading.Condition()
        self._building: Counter[int] = Counter()
        self._unsent: Counter[int] = Counter()

    @contextmanager
    def turn(self, uid: int) -> Iterator[None]:
        """The right to build one heavy answer for *uid*; waits up to `TURN_S`.

        Raises:
            BusyError: It did not come in time, or the user leaves too much untaken.
        """
        with self._changed:
            self._check_room(uid, ALWAYS_SENT + 1)
            if not self._changed.wait_for(lambda: self._may_build(uid), TURN_S):
                msg = "too many requests; retry"
                raise BusyError(msg)
            self._building[uid] += 1
        try:
            yield
        finally:
            with self._changed:
                self._building[uid] -= 1
                self._changed.notify_all()

    def hold(self, uid: int, size: int) -> None:
        """Count *size* bytes of an answer as unsent, until `let_go`.

        Raises:
            BusyError: That would be too much; it is not counted.
        """
        with self._changed:
            self._check_room(uid, size)
            self._unsent[uid] += size

    def let_go(self, uid: int, size: int) -> None:
        """They were sent, or never will be."""
        with self._changed:
            self._unsent[uid] -= size

    def _may_build(self, uid: int) -> bool:
        is_next = not (self._per_user and self._building[uid])
        return is_next and self._building.total() < AT_ONCE

    def _check_room(self, uid: int, size: int) -> None:
        if size <= ALWAYS_SENT:
            return
        of_user = UNSENT_PER_USER if self._per_user else math.inf
        for unsent, most in (
            (self._unsent[uid], of_user),
            (self._unsent.total(), UNSENT_IN_ALL),
        ):
            if unsent and unsent + size > most:
                msg = "too many bytes of earlier answers have not been read; retry"
                raise BusyError(msg)


PER_USER = 24  # Connections one ordinary user may have open
IN_ALL = 96  # Connections all ordinary users may have open; admins have as many again
STREAMS = ("record",)  # Requests after whose answer something follows
_GROUP = 100  # Entries that are encoded together


@dataclass(frozen=True, slots=True)
class Peer:
    """The client's user, as the kernel or MUNGE reports it."""

    uid: int  # Their user id
    is_admin: bool  # root, the daemon's own account, or named in ``control.admins``
    host: str = field(default="", compare=False)  # Address of another host; limits do not know it

    @property
    def name(self) -> str:
        """Their login name; the number if they have none."""
        return user_name(self.uid)

    def __str__(self) -> str:
        return f"user {self.name} ({self.uid}){f' from {self.host}' if self.host else ''}"


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
class Connection:
    """One client."""

    peer: Peer | None  # None: not known yet
    address: str = ""  # Its host; empty: this one
    until_s: float = math.inf  # When a request must be there at last, on the monotonic clock


class Reception:
    """Users and their connections: one for all sockets of a daemon.

    Args:
        admins: Login names or uids that may do what changes something.
        answer: Called with a request and who asks; raises `RequestError` to refuse.
        on_bug: Told of an exception nobody expected.
    """

    def __init__(
        self, *, admins: Collection[str], answer: Answer, on_bug: Callable[[Exception], None]
    ) -> None:
        self.answer = answer
        self.on_bug = on_bug
        self.admins = uids_of(admins)
        self.limits = {True: LoadLimits(per_user=False), False: LoadLimits(per_user=True)}
        self.open: dict[socket.socket, Connection] = {}
        self.lock = threading.Lock()

    def peer(self, uid: int, host: str = "") -> Peer:
        """The user, as they are now."""
        return Peer(uid, uid in self.admins, host)

    def admit(self, sock: socket.socket, peer: Peer) -> bool:
        """Let *peer* have a connection, if they and all users have not too many."""
        with self.lock:
            alike = [
                c.peer for c in self.open.values() if c.peer and c.peer.is_admin == peer.is_admin
            ]
            if len(alike) >= IN_ALL or (not peer.is_admin and alike.count(peer) >= PER_USER):
                return False
            self.open.setdefault(sock, Connection(peer)).peer = peer
            return True

    def drop(self, is_over: Callable[[Connection], bool]) -> None:
        """Wake the threads of connections, which then close them."""
        with self.lock:
            for sock, connection in self.open.items():
                if is_over(connection):
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)

    def reply(
        self, line: bytes, peer: Peer, *, streams: bool = True
    ) -> tuple[bytes, Stream | None]:
        """The answer as it is sent, and what follows it; its bytes count as unsent.

        Args:
            streams: Whether something may follow.
        """
        limits = self.limits[peer.is_admin]
        try:
            request = _decoded(line)
            if not streams:
                _check_whole(request)
            turn = (
                limits.turn(peer.uid)
                if request.get("request") in HEAVY
                else contextlib.nullcontext()
            )
            # Encoded within the turn: that takes as much time and memory as the answer itself.
            with turn:
                result = self.answer(request, peer)
                content, stream = (result, None) if isinstance(result, dict) else ({}, result)
                answer = _encoded({"ok": True, "result": content})
                limits.hold(peer.uid, len(answer))
                return answer, stream
        except RequestError as err:
            refused = err
        except BusyError as err:
            refused = RequestError(RefusalKind.BUSY, str(err))
        except Exception as err:  # noqa: BLE001 - one bad request must not end the thread unseen
            self.on_bug(err)
            refused = RequestError(RefusalKind.INTERNAL, "dlschedd could not answer; see its log")
        answer = refusal(refused)
        limits.hold(peer.uid, len(answer))
        return answer, None

    def sent(self, peer: Peer, answer: bytes) -> None:
        """Count the bytes of *answer* as sent, or given up."""
        self.limits[peer.is_admin].let_go(peer.uid, len(answer))


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


def _check_whole(request: JsonObject) -> None:
    if request.get("request") in STREAMS:
        msg = f"{request['request']} is answered on the daemon's host alone"
        raise RequestError(RefusalKind.DENIED, msg)


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


def refusal(err: RequestError) -> bytes:
    """A refusal as it is sent."""
    return _encoded({"ok": False, "kind": err.kind, "error": str(err)})
