"""The control socket: who may ask, how much, and that nobody can be in the way of others."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from control_clients import NOBODY, OTHER, as_user, drip, echo, says, until_closed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_dl.daemon.control import reception, socket_server
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.daemon.control.reception import Answer, Peer, Reception, uids_of
from slurm_dl.daemon.control.socket_server import ControlServer
from slurm_dl.daemon.control.wire_format import MAX_REQUEST_BYTES
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import ConfigError

Serve = Callable[..., Path]


def nobody_special() -> Reception:
    return Reception(admins=(), answer=echo, on_bug=lambda _: None)


@pytest.fixture
def bugs() -> list[Exception]:
    return []


@pytest.fixture
def serve(short_directory: Path, bugs: list[Exception]) -> Iterator[Serve]:
    """A function that starts a server and returns its socket; all end with the test."""
    with contextlib.ExitStack() as servers:

        def start(
            *, mode: int = 0o666, admins: tuple[str, ...] = (), answer: Answer = echo
        ) -> Path:
            path = short_directory / "run" / "s"
            reception = Reception(admins=admins, answer=answer, on_bug=bugs.append)
            server = ControlServer(path, mode=mode, reception=reception)
            servers.callback(server.close)
            return path

        yield start


def exchange(path: Path, raw: bytes) -> bytes:
    """What the server says to *raw* until it closes."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        # The server may have heard enough before we have said all.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
        return until_closed(sock)


def rest_of(sock: socket.socket) -> bytes:
    """What is still to be read, until the end of the stream."""
    sock.shutdown(socket.SHUT_WR)
    return until_closed(sock)


def test_a_question_gets_its_answer(serve: Serve) -> None:
    """The result of the request comes back, and only that."""
    answer = Client(serve()).ask("hello", text="wörld\x00")

    assert answer["sent"] == {"request": "hello", "text": "wörld\x00"}


def test_many_requests_on_one_connection(serve: Serve) -> None:
    """Each line gets its own answer, in order."""
    raw = b"".join(json.dumps({"request": str(i)}).encode() + b"\n" for i in range(5))

    answers = [json.loads(line) for line in exchange(serve(), raw).splitlines()]

    assert [a["result"]["sent"]["request"] for a in answers] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_socket_has_the_configured_mode(mode: int, serve: Serve) -> None:
    """Who may connect at all is what the configuration says, whatever the umask."""
    old = os.umask(0o077)
    try:
        path = serve(mode=mode)
    finally:
        os.umask(old)

    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize(
    ("admins", "is_admin"), [((), False), (("nobody",), True), ((str(NOBODY),), True)]
)
def test_the_kernel_says_who_asks(admins: tuple[str, ...], is_admin: bool, serve: Serve) -> None:  # noqa: FBT001
    """A client's uid is the kernel's word, and its name or number in the list makes an admin."""
    client = Client(serve(admins=admins))

    answer = as_user(NOBODY, lambda: client.ask("hello"))

    assert (answer["you"], answer["admin"]) == (NOBODY, is_admin)


def test_root_and_the_daemons_account_are_admins() -> None:
    """Nobody has to be named for the machine's admin to be in charge."""
    assert uids_of([]) == {0, os.geteuid()}


def test_an_unknown_admin_is_a_mistake_in_the_configuration() -> None:
    """A typing error must not silently leave somebody without rights."""
    with pytest.raises(ConfigError, match=r"control.admins: no user 'no-such-user'"):
        uids_of(["no-such-user"])


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_closed_socket_is_explained(serve: Serve) -> None:
    """A user who may not connect is told so, and whom to ask."""
    client = Client(serve(mode=0o600))

    answer = as_user(NOBODY, lambda: client.ask("hello"))

    assert "no permission" in str(answer["error"])
    assert "control.socket_mode" in str(answer["error"])


def test_a_daemon_that_is_not_there_is_explained(short_directory: Path) -> None:
    """The message names the socket and says what to do."""
    with pytest.raises(DaemonError, match="systemctl start dlschedd") as caught:
        Client(short_directory / "s").ask("status")

    assert str(short_directory / "s") in str(caught.value)


def test_a_refusal_is_an_error_with_its_words(serve: Serve) -> None:
    """What the daemon refuses reaches the user as it was said."""
    with pytest.raises(DaemonError, match=r"^no such thing$"):
        Client(serve()).ask("refuse")


def test_a_bug_in_an_answer_is_reported_and_harms_nobody(
    serve: Serve, bugs: list[Exception]
) -> None:
    """The client is told to look into the log, the log is told, and the next request works."""
    path = serve()

    with pytest.raises(DaemonError, match="see its log"):
        Client(path).ask("bug")

    assert [type(bug) for bug in bugs] == [ZeroDivisionError]
    assert Client(path).ask("hello")["sent"] == {"request": "hello"}


@given(raw=st.binary(max_size=300))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_garbage_gets_a_refusal_or_nothing(
    raw: bytes, serve: Serve, bugs: list[Exception], garbage: list[Path]
) -> None:
    """Whatever bytes come, each line has one answer in JSON and no bug is met."""
    if not garbage:
        garbage.append(serve())

    said = exchange(garbage[0], raw)

    answers = [json.loads(line) for line in said.splitlines()]
    assert all(isinstance(a["ok"], bool) for a in answers)
    assert len(answers) == raw.count(b"\n")
    assert bugs == []


@pytest.fixture
def garbage() -> list[Path]:
    """Holds the socket of the one server that all examples share."""
    return []


def test_fifty_clients_at_once_are_all_served(serve: Serve) -> None:
    """As many as a busy login node has; none is lost and none gets another's answer."""
    path = serve()

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda i: Client(path).ask(str(i)), range(50)))

    assert [a["sent"] for a in answers] == [{"request": str(i)} for i in range(50)]


def read_late(sock: socket.socket) -> None:
    sock.sendall(b'{"request": "big"}\n')
    sock.recv(1, socket.MSG_PEEK)  # The answer is on its way, and stuck once the buffers are full.
    time.sleep(2 * socket_server.SEND_S)


NOTHING = rb"\Z"
REFUSED = rb'\{"ok": false, "kind": "bad_request", "error": "[^\n]*\n\Z'
A_PART = rb'\{"ok": true, [^\n]*\Z'


@pytest.mark.parametrize(
    ("behave", "hears"),
    [
        pytest.param(says(b""), NOTHING, id="silent"),
        pytest.param(says(b'{"request"'), NOTHING, id="half a request"),
        pytest.param(drip, NOTHING, id="byte by byte"),
        pytest.param(read_late, A_PART, id="does not read"),
        pytest.param(says(b"x" * (4 * MAX_REQUEST_BYTES)), REFUSED, id="endless line"),
        pytest.param(says(b"[" * 100_000 + b"\n"), REFUSED, id="deep"),
        pytest.param(says(b"9" * 100_000 + b"\n"), REFUSED, id="huge number"),
        pytest.param(says(b'{"a":' * 40_000 + b"\n"), REFUSED, id="deep object"),
        pytest.param(says(b"null\n"), REFUSED, id="no object"),
        pytest.param(says(b"\xff\xfe\n"), REFUSED, id="no UTF-8"),
    ],
)
def test_a_bad_client_is_refused_or_dropped_and_in_nobodys_way(
    behave: Callable[[socket.socket], None],
    hears: bytes,
    serve: Serve,
    bugs: list[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it hears until the server ends the connection; others are served meanwhile."""
    monkeypatch.setattr(socket_server, "READ_S", 1.0)
    monkeypatch.setattr(socket_server, "SEND_S", 1.0)

    def answer(request: JsonObject, peer: Peer) -> JsonObject:
        return {"x": "x" * 3_000_000} if request["request"] == "big" else echo(request, peer)

    path = serve(answer=answer)
    with contextlib.ExitStack() as clients:
        pool = clients.enter_context(ThreadPoolExecutor(10))
        socks = [clients.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(10)]
        for sock in socks:
            sock.settimeout(20)
            sock.connect(str(path))
        ways = [pool.submit(behave, sock) for sock in socks]

        assert Client(path, timeout_s=5).ask("hello")["sent"] == {"request": "hello"}
        for sock, way in zip(socks, ways, strict=True):
            way.result()
            said = until_closed(sock)
            assert re.match(hears, said), said[:200]
    assert bugs == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("bound", ["PER_USER", "IN_ALL"])
def test_users_who_take_all_connections_leave_admins_theirs(
    bound: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user is told to come back later while root is still served."""
    monkeypatch.setattr(reception, bound, 5)
    path = serve()
    ready, told = os.pipe()
    waits, over = os.pipe()

    def hoard() -> JsonObject:
        socks = [socket.socket(socket.AF_UNIX) for _ in range(5)]
        for sock in socks:
            sock.connect(str(path))
            sock.sendall(b'{"request": "x"}\n')
            sock.recv(1000)  # It is being served: the connection counts.
        late = exchange(path, b"")
        os.write(told, b"x")
        os.read(waits, 1)
        return {"late": json.loads(late or b"null")}

    with ThreadPoolExecutor(1) as pool:
        hoarded = pool.submit(as_user, NOBODY, hoard)
        os.read(ready, 1)
        try:
            answer = json.loads(exchange(path, b'{"request": "hello"}\n'))
        finally:
            os.write(over, b"x")
    for end in (ready, told, waits, over):
        os.close(end)

    assert hoarded.result()["late"] == {
        "ok": False,
        "kind": "busy",
        "error": "too many connections; retry",
    }
    assert answer["result"]["admin"] is True


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_user_who_reads_no_answers_fills_no_memory_and_is_in_nobodys_way(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held for one user is bounded; others are served meanwhile, they afterwards."""
    answer_bytes, most_bytes = 2_000_000, 9_000_000
    monkeypatch.setattr(reception, "UNSENT_PER_USER", most_bytes)
    monkeypatch.setattr(socket_server, "SEND_S", 5.0)
    building, at_once = Counter[int](), Counter[int]()

    def queue(request: JsonObject, peer: Peer) -> JsonObject:
        if request["request"] == "status":
            return {"doing": "acting"}
        building[peer.uid] += 1
        at_once[peer.uid] = max(at_once[peer.uid], building[peer.uid])
        time.sleep(0.02)
        building[peer.uid] -= 1
        return {"jobs": "x" * answer_bytes}

    path = serve(answer=queue)

    def hoard() -> JsonObject:
        socks = [socket.socket(socket.AF_UNIX) for _ in range(reception.PER_USER)]
        for sock in socks:
            sock.connect(str(path))
            sock.sendall(b'{"request": "queue"}\n')
        begun = [sock.recv(12) for sock in socks]
        os.write(told, b"x")
        time.sleep(2 * socket_server.SEND_S)
        answers = [first + rest_of(sock) for first, sock in zip(begun, socks, strict=True)]
        return {
            "begun": sum(b"true" in first for first in begun),
            "busy": sum(b'"busy"' in answer for answer in answers),
            "whole": sum(len(answer) > answer_bytes for answer in answers),
            "later": len(str(Client(path).ask("queue")["jobs"])),
        }

    ready, told = os.pipe()
    with ThreadPoolExecutor(1) as pool:
        hoarded = pool.submit(as_user, NOBODY, hoard)
        os.read(ready, 1)
        began_s = time.monotonic()
        doing = Client(path).ask("status")["doing"]
        other = as_user(OTHER, lambda: {"length": len(str(Client(path).ask("queue")["jobs"]))})
        took_s = time.monotonic() - began_s
        said = hoarded.result()
    os.close(ready)
    os.close(told)

    assert (doing, other) == ("acting", {"length": answer_bytes})
    assert took_s < socket_server.SEND_S
    assert at_once[NOBODY] == 1
    held = most_bytes // answer_bytes
    assert said == {
        "begun": held,
        "busy": reception.PER_USER - held,
        "whole": 0,
        "later": answer_bytes,
    }


def test_closing_removes_the_socket_and_its_connections(short_directory: Path) -> None:
    """After the end nothing is left for a command to wait at."""
    path = short_directory / "s"
    server = ControlServer(path, mode=0o600, reception=nobody_special())
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        sock.sendall(b'{"request": "x"}\n')
        sock.recv(1000)

        server.close()

        assert sock.recv(10) == b""
    assert not path.exists()


def test_a_dead_daemons_socket_is_replaced(serve: Serve, short_directory: Path) -> None:
    """After a crash the next daemon listens in the same place."""
    (short_directory / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_directory / "run" / "s"))

    assert Client(serve()).ask("hello")["sent"] == {"request": "hello"}


def test_a_host_without_threads_is_survived(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes meanwhile is told to retry; afterwards everybody is served again."""
    path = serve()
    with monkeypatch.context() as patch:
        start = threading.Thread.start

        def no_more(thread: threading.Thread) -> None:
            if "process_request_thread" in thread.name:
                msg = "can't start new thread"
                raise RuntimeError(msg)
            start(thread)

        patch.setattr(threading.Thread, "start", no_more)
        said = [json.loads(exchange(path, b'{"request": "x"}\n')) for _ in range(30)]

    assert {answer["kind"] for answer in said} == {"busy"}
    assert Client(path).ask("hello")["sent"] == {"request": "hello"}


def test_a_file_in_the_way_is_not_removed(serve: Serve, short_directory: Path) -> None:
    """Something that is no socket is not ours to delete."""
    (short_directory / "run").mkdir()
    (short_directory / "run" / "s").write_text("precious", "utf-8")

    with pytest.raises(ConfigError, match="is no socket"):
        serve()

    assert (short_directory / "run" / "s").read_text("utf-8") == "precious"


def test_a_path_too_long_for_a_socket_is_named(short_directory: Path) -> None:
    """The error says which setting, not just 'path too long'."""
    path = short_directory / ("x" * 120)

    with pytest.raises(ConfigError, match=r"paths.run_dir"):
        ControlServer(path, mode=0o600, reception=nobody_special())


@pytest.mark.parametrize(
    ("size", "is_read"), [(MAX_REQUEST_BYTES, True), (MAX_REQUEST_BYTES + 1, False)]
)
def test_the_longest_request_is_read(size: int, is_read: bool, serve: Serve) -> None:  # noqa: FBT001
    """One byte more is refused."""
    raw = b'{"request": "x", "y": "' + b"y" * (size - 25) + b'"}\n'

    assert json.loads(exchange(serve(), raw))["ok"] is is_read
