"""The control socket over TCP: MUNGE says who asks, and nobody can be in the way of others."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from control_clients import NOBODY, OTHER, as_user, drip, echo, munged, says, until_closed

from slurm_dl.daemon.control import socket_server
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.daemon.control.munge import ANSWER, REQUEST, Munge, MungeError, digest
from slurm_dl.daemon.control.reception import Answer, Peer, Reception, RequestError
from slurm_dl.daemon.control.socket_server import TcpServer
from slurm_dl.daemon.control.tcp_client import TcpServers
from slurm_dl.daemon.control.wire_format import MAX_REQUEST_BYTES, RefusalKind
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import ConfigError

pytestmark = [
    pytest.mark.skipif(shutil.which("munged") is None, reason="MUNGE is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]
US = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def hosts(module_directory: Path) -> Iterator[Callable[[str], str]]:
    """Sockets of MUNGE by host: ``cluster``, and ``stranger`` with another key."""
    keys = {"cluster": secrets.token_bytes(128), "stranger": secrets.token_bytes(128)}
    with contextlib.ExitStack() as services:
        found = {
            name: services.enter_context(munged(module_directory / name, key))
            for name, key in keys.items()
        }
        yield found.__getitem__


Serve = Callable[..., str]


@pytest.fixture
def bugs() -> list[Exception]:
    return []


@pytest.fixture
def serve(hosts: Callable[[str], str], bugs: list[Exception]) -> Iterator[Serve]:
    """A function that starts a server and returns its address; all end with the test."""
    with contextlib.ExitStack() as servers:

        def start(*, answer: Answer = echo, admins: tuple[str, ...] = ()) -> str:
            reception = Reception(admins=admins, answer=answer, on_bug=bugs.append)
            server = TcpServer(("127.0.0.1", 0), munge=Munge(hosts("cluster")), reception=reception)
            servers.callback(server.close)
            return f"127.0.0.1:{server.server_address[1]}"

        yield start


@pytest.fixture
def client(hosts: Callable[[str], str]) -> Callable[..., Client]:
    """A client of these addresses, on a host whose MUNGE is named."""

    def make(*addresses: str, host: str = "cluster", user: str = US, wait_s: float = 10) -> Client:
        to = TcpServers(addresses, munge_socket=hosts(host), daemon_user=user)
        return Client(to, timeout_s=wait_s)

    return make


@pytest.mark.parametrize(("admins", "is_admin"), [((), False), (("nobody",), True)])
def test_munge_says_who_asks(
    admins: tuple[str, ...], serve: Serve, client: Callable[..., Client], *, is_admin: bool
) -> None:
    address = serve(admins=admins)

    answer = as_user(NOBODY, lambda: client(address).ask("hello", text="wörld\x00"))

    assert answer.pop("from") == "127.0.0.1"
    assert answer == {
        "you": NOBODY, "admin": is_admin, "sent": {"request": "hello", "text": "wörld\x00"}
    }  # fmt: skip


def test_words_of_refusals_and_bugs_come_as_on_the_unix_socket(
    serve: Serve, client: Callable[..., Client], bugs: list[Exception]
) -> None:
    address = serve()
    for request, words in (
        ("refuse", "^no such thing$"),
        ("bug", "see its log"),
        ("record", "host"),
    ):
        with pytest.raises(DaemonError, match=words):
            client(address).ask(request)
    assert len(bugs) == 1


def test_the_next_daemon_is_asked_where_one_is_gone_or_stands_by(
    serve: Serve, client: Callable[..., Client]
) -> None:
    def stand_by(_request: JsonObject, _peer: Peer) -> JsonObject:
        raise RequestError(RefusalKind.NOT_READY, "stand-by: ctl2 acts")

    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = f"127.0.0.1:{closed.getsockname()[1]}"
    waits, acts = serve(answer=stand_by), serve()

    assert client(gone, waits, acts).ask("hello")["sent"] == {"request": "hello"}
    with pytest.raises(DaemonError, match="ctl2 acts"):
        client(gone, waits).ask("hello")
    with pytest.raises(DaemonError, match="does not listen"):
        client(gone).ask("hello")


def exchange(address: str, say: Callable[[bytes], bytes]) -> JsonObject:
    """The first line that the server answers to what *say* makes of its nonce."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 10) as sock, sock.makefile("rb") as stream:
        nonce = json.loads(stream.readline())["nonce"].encode()
        sock.sendall(say(nonce))
        answer: JsonObject = json.loads(stream.readline())
        return answer


HELLO = b'{"request": "hello"}'


def test_a_stolen_credential_is_good_for_nothing(serve: Serve, hosts: Callable[[str], str]) -> None:
    """Neither again, nor on another connection, nor with another request, nor another service."""
    address, munge = serve(), Munge(hosts("cluster"))
    seen: list[bytes] = []

    def honest(nonce: bytes) -> bytes:
        seen.append(munge.encode(digest(REQUEST, nonce, HELLO)))
        return seen[0] + b" " + HELLO + b"\n"

    assert exchange(address, honest)["ok"] is True
    attacks: dict[str, Callable[[bytes], bytes]] = {
        "again": lambda _: seen[0] + b" " + HELLO + b"\n",
        "another request": lambda n: (
            munge.encode(digest(REQUEST, n, HELLO)) + b' {"request": "pause"}\n'
        ),
        "another nonce": lambda n: (
            munge.encode(digest(REQUEST, n[::-1], HELLO)) + b" " + HELLO + b"\n"
        ),
        "an answer": lambda n: munge.encode(digest(ANSWER, n, HELLO)) + b" " + HELLO + b"\n",
        "another service": lambda _: munge.encode(b"") + b" " + HELLO + b"\n",
        "another key": lambda n: (
            Munge(hosts("stranger")).encode(digest(REQUEST, n, HELLO)) + b" " + HELLO + b"\n"
        ),
        "none": lambda _: b" " + HELLO + b"\n",
        "nonsense": lambda _: b"MUNGE:" + b"A" * 300 + b": " + HELLO + b"\n",
    }  # fmt: skip
    for name, attack in attacks.items():
        answer = exchange(address, attack)
        assert (answer["ok"], answer["kind"]) == (False, "denied"), name


def test_who_answers_is_the_daemon_and_what_it_says_is_its_own(
    hosts: Callable[[str], str], client: Callable[..., Client]
) -> None:
    """A program of another user on the port, or one that changes answers on their way."""

    def impostor(sock: socket.socket, sealed: Callable[[bytes, bytes, bytes], bytes]) -> None:
        with sock.accept()[0] as peer, peer.makefile("rb") as stream:
            peer.sendall(b'{"slurm_dl": 1, "nonce": "00"}\n')
            request = stream.readline().partition(b" ")[2].rstrip(b"\n")
            answer = b'{"ok": true, "result": {}}\n'
            peer.sendall(answer + sealed(b"00", request, answer) + b"\n")

    munge = Munge(hosts("cluster"))

    def by_nobody(nonce: bytes, request: bytes, answer: bytes) -> bytes:
        payload = digest(ANSWER, nonce, request, answer)
        made = as_user(NOBODY, lambda: {"is": munge.encode(payload).decode()})
        return str(made["is"]).encode()

    frauds: dict[str, tuple[Callable[[bytes, bytes, bytes], bytes], str]] = {
        "another user": (by_nobody, "not as root"),
        "changed": (lambda n, r, _: munge.encode(digest(ANSWER, n, r, b"{}\n")), "changed"),
        "of another request": (lambda n, _, a: munge.encode(digest(ANSWER, n, b"", a)), "changed"),
        "unsigned": (lambda *_: b"", "without an answer"),
        "nonsense": (lambda *_: b"MUNGE:AAAA:", "MUNGE"),
    }
    for name, (sealed, words) in frauds.items():
        with socket.create_server(("127.0.0.1", 0)) as sock:
            there = threading.Thread(target=impostor, args=(sock, sealed), daemon=True)
            there.start()
            with pytest.raises(DaemonError, match=words):
                client(f"127.0.0.1:{sock.getsockname()[1]}").ask("hello")
            there.join(10)
            assert not there.is_alive(), name


def test_another_users_answer_cannot_be_read(hosts: Callable[[str], str]) -> None:
    """The credential below an answer is for the user who asked."""
    sealed = Munge(hosts("cluster")).encode(b"x", for_uid=NOBODY)

    refused = as_user(OTHER, lambda: {"error": _why_not(hosts("cluster"), sealed)})

    assert "nauthorized" in str(refused["error"])


def _why_not(at: str, credential: bytes) -> str:
    try:
        Munge(at).decode(credential)
    except MungeError as err:
        return str(err)
    return ""


def test_an_old_credential_is_no_good_and_the_clock_is_named(hosts: Callable[[str], str]) -> None:
    """As MUNGE sees it, a credential of a host whose clock is slow is old."""
    at = hosts("cluster")
    old = subprocess.run(
        [shutil.which("munge") or "", f"--socket={at}", "--ttl=1", "--string=x"],
        capture_output=True,
        check=True,
    ).stdout
    time.sleep(2.1)

    with pytest.raises(MungeError, match="clock"):
        Munge(at).decode(old.strip())


def test_fifty_clients_at_once_are_all_served(serve: Serve, client: Callable[..., Client]) -> None:
    address = serve()

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda i: client(address).ask(str(i)), range(50)))

    assert [a["sent"] for a in answers] == [{"request": str(i)} for i in range(50)]


NOTHING = rb"\Z"
DENIED = rb'\{"ok": false, "kind": "denied", "error": "[^\n]*\n\Z'


@pytest.mark.parametrize(
    ("behave", "hears"),
    [
        pytest.param(says(b""), NOTHING, id="silent"),
        pytest.param(says(b"MUNGE:AAA"), NOTHING, id="half a credential"),
        pytest.param(drip, NOTHING, id="byte by byte"),
        pytest.param(says(b"x" * (2 * MAX_REQUEST_BYTES)), NOTHING, id="endless line"),
        pytest.param(says(b"\n"), DENIED, id="empty line"),
        pytest.param(says(b"\x00\xff\n"), DENIED, id="no text"),
        pytest.param(says(b"GET / HTTP/1.1\r\n\r\n"), DENIED, id="a browser"),
    ],
)
def test_a_bad_client_is_refused_or_dropped_and_in_nobodys_way(
    behave: Callable[[socket.socket], None],
    *,
    hears: bytes,
    serve: Serve,
    client: Callable[..., Client],
    bugs: list[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as there are places for clients that nobody knows yet, and ten more."""
    monkeypatch.setattr(socket_server, "ARRIVAL_S", 1.0)
    monkeypatch.setattr(socket_server, "STRANGERS", 20)
    host, port = (address := serve()).split(":")
    with contextlib.ExitStack() as clients:
        pool = clients.enter_context(ThreadPoolExecutor(30))
        socks = [
            clients.enter_context(socket.create_connection((host, int(port)), 20))
            for _ in range(30)
        ]
        ways = [pool.submit(behave, sock) for sock in socks]

        assert client(address, wait_s=5).ask("hello")["sent"] == {"request": "hello"}
        for sock, way in zip(socks, ways, strict=True):
            way.result()
            said = until_closed(sock)
            _, _, after = said.partition(b"\n")
            assert re.match(hears, after) or not after, after[:200]
    assert bugs == []


def test_an_address_that_is_taken_or_a_host_without_munge_is_a_clear_mistake(
    hosts: Callable[[str], str], tmp_path: Path
) -> None:
    reception = Reception(admins=(), answer=echo, on_bug=lambda _: None)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match=r"control\.listen"),
    ):
        TcpServer(taken.getsockname(), munge=Munge(hosts("cluster")), reception=reception)
    with pytest.raises(ConfigError, match=str(tmp_path / "none")):
        TcpServer(("127.0.0.1", 0), munge=Munge(str(tmp_path / "none")), reception=reception)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, ".ctl"])
def test_a_server_that_is_no_host_name_is_told(host: str) -> None:
    with pytest.raises(DaemonError):
        Client(TcpServers([f"{host}:6822"]), 2).ask("queue")


def test_a_server_that_drips_does_not_hold_a_command_beyond_its_time() -> None:
    """Each byte comes within the time that the whole answer may take."""
    over = threading.Event()

    def drip(listening: socket.socket) -> None:
        sock, _ = listening.accept()
        with sock:
            while not over.wait(0.3):
                try:
                    sock.sendall(b" ")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=(listening,), daemon=True).start()
        asks = threading.Thread(
            target=lambda: _asked(f"127.0.0.1:{listening.getsockname()[1]}"), daemon=True
        )
        asks.start()
        asks.join(4.0)
        held = asks.is_alive()
        over.set()
        asks.join(10)
    assert not held


def _asked(address: str) -> None:
    with pytest.raises(DaemonError):
        Client(TcpServers([address]), 1.0).ask("status")


def test_clients_that_nobody_knows_have_no_more_places_than_are_said(
    hosts: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come faster than those that give way can end: the next one must end another."""
    monkeypatch.setattr(socket_server, "STRANGERS", 20)
    reception = Reception(admins=(), answer=lambda *_: {}, on_bug=lambda _: None)
    ended: list[object] = []
    server = TcpServer(("127.0.0.1", 0), munge=Munge(hosts("cluster")), reception=reception)
    # Threads that have no time yet: nobody is taken off the list.
    monkeypatch.setattr(server, "converse", lambda *_: None)
    pairs = [socket.socketpair() for _ in range(40)]
    for ours, _ in pairs:
        server.process_request(ours, ("127.0.0.1", 1))
    for _, theirs in pairs:
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            ended.append(theirs.recv(1))
    reception.open.clear()
    server.close()
    for pair in pairs:
        for sock in pair:
            sock.close()
    assert len(ended) == 20
