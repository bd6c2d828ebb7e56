"""The endpoint: where it listens, whose figures it shows, and clients that mean it no good."""

from __future__ import annotations

import contextlib
import io
import json
import re
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confined import directives, words
from patience import eventually

from slurm_dl import logging_setup
from slurm_dl.config import Config
from slurm_dl.daemon.metrics import endpoint
from slurm_dl.daemon.metrics.counters import MetricsTally
from slurm_dl.daemon.metrics.endpoint import (
    MOST_CONNECTIONS,
    MOST_OF_ADDRESS,
    Endpoint,
    MetricsServer,
)
from slurm_dl.daemon.published_state import Board, PublishedState
from slurm_dl.model.errors import ConfigError

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"GET /large HTTP/1.1\r\n\r\n"


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Gives ``a 1``, or more than the kernel takes off a server's hands."""
    start_response("200 OK", [])
    return [b"x" * (24 << 20)] if environ["PATH_INFO"] == "/large" else [b"a 1\n"]


def connect(port: int, address: str = "127.0.0.1", source: str = "") -> socket.socket:
    return socket.create_connection(
        (address, port), timeout=20, source_address=(source, 0) if source else None
    )


def everything(sock: socket.socket) -> bytes:
    received = []
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            received.append(chunk)
    return b"".join(received)


def fetched(port: int, request: bytes = GET, address: str = "127.0.0.1") -> str:
    with connect(port, address) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(request)
        return everything(sock).decode()


@pytest.fixture
def port() -> Iterator[int]:
    """A server on a free port of the loopback."""
    server = MetricsServer("127.0.0.1", 0, app)
    yield server.server_port
    server.close()


def serving() -> int:
    """So many threads serve a connection."""
    return sum("process_request" in thread.name for thread in threading.enumerate())


def drip(sock: socket.socket) -> None:
    """Send a header without end, byte by byte, until the connection is cut."""
    with contextlib.suppress(OSError):
        for byte in GET[:-2] + b"A: " + b"x" * 60_000:
            sock.sendall(bytes([byte]))
            time.sleep(0.05)


def reset(sock: socket.socket) -> None:
    # Linger 0: closing sends a reset.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.sendall(LARGE)
    sock.close()


def sends(request: bytes) -> Callable[[socket.socket], None]:
    return lambda sock: sock.sendall(request)


@pytest.mark.parametrize(
    ("timeout_s", "misbehave"),
    [
        pytest.param(2.0, sends(b""), id="silent"),
        pytest.param(2.0, sends(b"GET /metr"), id="half a request"),
        pytest.param(2.0, drip, id="slow"),
        pytest.param(2.0, sends(LARGE), id="takes no answer"),
        # These are not waited for.
        pytest.param(1000.0, reset, id="resets"),
        pytest.param(1000.0, sends(b"\x16\x03\x01\x02\r\n\r\n"), id="garbage"),
        pytest.param(1000.0, sends(b"A" * 10_000), id="long line"),
        pytest.param(1000.0, sends(GET[:-2] + b"A: " + b"x" * 10_000), id="long header"),
    ],
)
def test_a_hostile_client_holds_up_nobody_and_is_cut(
    port: int,
    timeout_s: float,
    misbehave: Callable[[socket.socket], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Others are served meanwhile; then its thread is gone, and nothing is printed."""
    monkeypatch.setattr(endpoint, "TIMEOUT_S", timeout_s)
    with contextlib.ExitStack() as hostile:
        for _ in range(5):
            sock = hostile.enter_context(connect(port))
            threading.Thread(target=misbehave, args=(sock,), name="hostile").start()
        assert fetched(port).endswith("a 1\n")
        eventually(lambda: not serving(), 20, 0.05, what="their end")
    assert capfd.readouterr() == ("", "")


def test_connections_are_bounded(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than there may be is closed at once, and takes no thread; a place is given on."""
    monkeypatch.setattr(endpoint, "HEADER_S", 60.0)
    with contextlib.ExitStack() as held:
        last = [1] * MOST_OF_ADDRESS + [2] * (MOST_CONNECTIONS - MOST_OF_ADDRESS)
        sitting = [held.enter_context(connect(port, source=f"127.0.0.{n}")) for n in last]
        for sock in sitting:
            sock.sendall(LARGE)
        for sock in sitting:
            sock.recv(1)  # From now on it is no idle connection.
        eventually(lambda: serving() == MOST_CONNECTIONS, 20, 0.01)
        for _ in range(3):
            assert fetched(port) == ""
        sitting[0].close()
        eventually(lambda: fetched(port).endswith("a 1\n"), 20, 0.05, what="a scrape to get in")


def test_an_address_has_its_share(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is full for one address, and others get in; and none of theirs is cut for it."""
    monkeypatch.setattr(endpoint, "HEADER_S", 60.0)
    with contextlib.ExitStack() as held:
        other = held.enter_context(connect(port, source="127.0.0.2"))
        for _ in range(MOST_OF_ADDRESS):
            sock = held.enter_context(connect(port))
            sock.sendall(LARGE)
            sock.recv(1)
        assert fetched(port) == ""
        other.sendall(GET)
        assert everything(other).endswith(b"a 1\n")


@pytest.mark.parametrize("number", [40, 200])
def test_half_sent_requests_that_are_renewed_keep_no_scrape_out(port: int, number: int) -> None:
    """Attacker and scraper have the same address; each connection that is cut is made again."""
    end, waiting = threading.Event(), selectors.DefaultSelector()

    def begin() -> None:
        sock = connect(port)
        sock.sendall(GET[:-2])
        waiting.register(sock, selectors.EVENT_READ)

    def renew() -> None:
        while not end.is_set():
            for key, _ in waiting.select(0.05):
                waiting.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                begin()

    for _ in range(number):
        begin()
    attacker = threading.Thread(target=renew, name="hostile")
    attacker.start()
    try:
        answers = [fetched(port) for _ in range(20)]
    finally:
        end.set()
        attacker.join(20)
        for key in list(waiting.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    assert [answer.endswith("a 1\n") for answer in answers] == [True] * 20


def test_who_is_connected_at_the_end_is_cut() -> None:
    """Else each reload could leave threads behind."""
    server = MetricsServer("127.0.0.1", 0, app)
    with connect(server.server_port) as silent:
        eventually(serving, 20, 0.01, what="it to be waited for")
        server.close()
        assert everything(silent) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(server.server_port)


def test_ipv4_and_ipv6_are_two_places(port: int) -> None:
    """Who listens on all of IPv6 leaves IPv4 to others."""
    with contextlib.closing(MetricsServer("::", port, app)):
        assert fetched(port, address="::1").endswith("a 1\n")


@pytest.mark.parametrize("accept", ["version=x", "version=1.x", "version=²", "escaping=\xff;;=,"])
def test_an_accept_header_that_cannot_be_read_gets_the_plain_format(accept: str) -> None:
    """A client's mistake is no bug of ours."""
    port = free_port()
    request = f"GET / HTTP/1.1\r\nAccept: application/openmetrics-text;{accept}\r\n\r\n"
    with endpoint_at(f"127.0.0.1:{port}"):
        assert fetched(port, request.encode("latin-1")).split(" ", 2)[1] == "200"


# Where it listens.


def config(listen: str, **more: Any) -> Config:  # noqa: ANN401
    return Config.model_validate(
        {"manage": {"partitions": ["gpu"]}, "metrics": {"listen": listen}, **more}
    )


@pytest.fixture
def log() -> io.StringIO:
    """What the endpoint says."""
    stream = io.StringIO()
    logging_setup.configure(level="debug", form="json", stream=stream)
    return stream


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else has."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def endpoint_at(listen: str) -> contextlib.closing[Endpoint]:
    return contextlib.closing(Endpoint(config(listen), logging_setup.logger()))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_without_an_address_there_is_no_endpoint(log: io.StringIO) -> None:
    """Off unless it is asked for: no thread, no port."""
    before = threading.active_count()
    with endpoint_at(""):
        assert threading.active_count() == before
    assert log.getvalue() == ""


def test_an_address_that_it_cannot_have_is_an_error_at_the_start(taken: int) -> None:
    """It says where, why, and which key; one of the addresses that are for documents."""
    with pytest.raises(ConfigError, match=rf"metrics.listen.*127.0.0.1:{taken}.*in use"):
        endpoint_at(f"127.0.0.1:{taken}")
    with pytest.raises(ConfigError, match=r"metrics.listen: cannot listen on 192.0.2.1:9477"):
        endpoint_at("192.0.2.1:9477")


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An admin who has asked for metrics is to know that there are none."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "slurm_dl.daemon.metrics.exposition", raising=False)

    with pytest.raises(ConfigError, match=r"install slurm-dl\[metrics\]"):
        endpoint_at(f"127.0.0.1:{free_port()}")
    # Whoever does not ask for it does not need it.
    Endpoint(config(""), logging_setup.logger()).close()


def test_a_reload_moves_it(log: io.StringIO) -> None:
    """The old port is given back, the new one answers; empty ends it."""
    old, new = free_port(), free_port()
    with endpoint_at(f"127.0.0.1:{old}") as endpoint:
        assert "slurm_dl_state" in fetched(old)
        endpoint.follow(config(f"127.0.0.1:{new}"))
        assert "slurm_dl_state" in fetched(new)
        with pytest.raises(ConnectionRefusedError):
            fetched(old)
        endpoint.follow(config(""))
        with pytest.raises(ConnectionRefusedError):
            fetched(new)
    said = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["listen"] for line in said] == [f"127.0.0.1:{old}", f"127.0.0.1:{new}"]


def test_a_reload_to_a_port_that_is_taken_is_a_warning(log: io.StringIO, taken: int) -> None:
    """It goes on where it was; the next reload tries again."""
    old = free_port()
    with endpoint_at(f"127.0.0.1:{old}") as endpoint:
        for _ in range(2):
            endpoint.follow(config(f"127.0.0.1:{taken}"))
            assert "slurm_dl_state" in fetched(old)
        warned = [json.loads(s) for s in log.getvalue().splitlines() if '"warning"' in s]
        assert len(warned) == 2
        assert "in use" in warned[0]["because"]


def test_the_same_port_on_more_interfaces_is_a_move(log: io.StringIO) -> None:
    """Only one can have it: the old one ends first."""
    del log
    port = free_port()
    with endpoint_at(f"127.0.0.1:{port}") as endpoint:
        endpoint.follow(config(f"0.0.0.0:{port}"))
        assert endpoint._listen == f"0.0.0.0:{port}"
        assert "slurm_dl_state" in fetched(port)


class Says:
    """A permit that forbids nothing."""

    def why_not(self) -> str:
        """See `Precondition`."""
        return ""


def test_it_shows_who_acts_for_as_long_as_that_lasts(log: io.StringIO) -> None:
    """Before and after a turn it says that this daemon waits."""
    del log
    port = free_port()
    told = config(f"127.0.0.1:{port}", takeover={"enabled": True})
    now = PublishedState(config=told, config_rows=(), started_s=1.0, live=True)
    waits = 'slurm_dl_state{state="standby"} 1.0'
    with contextlib.closing(Endpoint(told, logging_setup.logger())) as endpoint:
        assert waits in fetched(port)
        with endpoint.showing(Board(now), MetricsTally(), audit=Says(), pause=Says()):
            assert 'slurm_dl_state{state="acting"} 1.0' in fetched(port)
        assert waits in fetched(port)


class Breaks:
    """A pause switch that cannot be asked, by errors of these classes in turn, then can."""

    def __init__(self, *errors: type[Exception]) -> None:
        self.errors = list(errors)

    def why_not(self) -> str:
        """See `Precondition`."""
        if not self.errors:
            return ""
        kind, words = self.errors.pop(0), f"number {len(self.errors)}"
        raise kind(words)


def test_a_bug_is_said_once_for_each_kind_and_counted_at_each_scrape(
    log: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    """What it says differs from scrape to scrape, and makes no other kind; the count is shown."""
    port = free_port()
    told = config(f"127.0.0.1:{port}")
    now = PublishedState(config=told, config_rows=(), started_s=1.0, live=True)
    pause = Breaks(*[ZeroDivisionError] * 5, KeyError, ZeroDivisionError)
    with contextlib.closing(Endpoint(told, logging_setup.logger())) as endpoint:
        assert "slurm_dl_scrape_errors_total 0.0" in fetched(port)
        with endpoint.showing(Board(now), MetricsTally(), audit=Says(), pause=pause):
            statuses = [fetched(port).split(" ", 2)[1] for _ in range(7)]
            assert statuses == ["500"] * 7
            assert "slurm_dl_scrape_errors_total 7.0" in fetched(port)
        # It is the process's: a turn that ends does not set it back.
        assert "slurm_dl_scrape_errors_total 7.0" in fetched(port)
    bugs = [json.loads(line) for line in log.getvalue().splitlines() if '"error"' in line]
    kinds = [re.findall(r"ZeroDivisionError|KeyError", json.dumps(b))[0] for b in bugs]
    assert kinds == ["ZeroDivisionError", "KeyError"]
    assert capfd.readouterr() == ("", "")


def test_the_unit_lets_it_listen() -> None:
    """IP sockets are allowed, and nothing in the unit forbids to bind or to be reached."""
    unit = directives()

    assert {"AF_INET", "AF_INET6"} <= set(words(unit, "RestrictAddressFamilies"))
    forbidding = {"IPAddressDeny", "SocketBindDeny", "PrivateNetwork", "RestrictNetworkInterfaces"}
    assert not forbidding & unit.keys()


# The configuration.


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:9477", "[::1]:9477", "0.0.0.0:1", "[::]:65535", "10.1.2.3:80"]
)
def test_an_address_and_a_port_are_taken(listen: str) -> None:
    """IPv6 in brackets."""
    assert config(listen).metrics.listen == listen


@pytest.mark.parametrize(
    "listen",
    [
        *(
            "9477",
            ":9477",
            "localhost:9477",
            "127.0.0.1",
            "127.0.0.1:0",
            "127.0.0.1:65536",
            "127.0.0.1:080",
        ),
        *("127.0.0.1.1:80", "256.0.0.1:80", "::1:9477", "[127.0.0.1]:9477", "[::1%lo]:9477"),
        *("127.0.0.1:9477 ", "١٢٧.0.0.1:80", "http://127.0.0.1:9477"),
    ],
)
def test_anything_else_is_refused_with_an_example(listen: str, tmp_path: Path) -> None:
    """A name would be looked up, and mean another address tomorrow."""
    from slurm_dl.config import load  # noqa: PLC0415

    file = tmp_path / "dl.yaml"
    file.write_text(
        f"manage: {{partitions: [gpu]}}\nmetrics:\n  listen: {json.dumps(listen)}\n", "utf-8"
    )
    with pytest.raises(ConfigError, match=r"dl.yaml:3: metrics.listen.*127\.0\.0\.1:9477"):
        load(file)
