"""The endpoint: what it answers, and to how many clients that mean it no good."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confined import directives, words
from hypothesis import example, given
from hypothesis import strategies as st
from patience import eventually

from slurm_dl import logging_setup
from slurm_dl.config import Config
from slurm_dl.daemon.metrics import endpoint as endpoint_module
from slurm_dl.daemon.metrics import http_request
from slurm_dl.daemon.metrics import http_server as server_module
from slurm_dl.daemon.metrics.counters import MetricsTally
from slurm_dl.daemon.metrics.endpoint import Endpoint
from slurm_dl.daemon.metrics.http_request import MAX_REQUEST_BYTES, HttpRequest, RefusedError, parse
from slurm_dl.daemon.metrics.http_server import MOST_CONNECTIONS, MetricsServer
from slurm_dl.daemon.published_state import Board, PublishedState
from slurm_dl.model.errors import ConfigError

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


class Site:
    """A server, what it was asked, and what went wrong in it."""

    def __init__(self) -> None:
        self.accepts: list[str] = []
        self.bugs: list[Exception] = []
        self.text: Callable[[str], tuple[bytes, str]] = self._text
        self.server = MetricsServer(
            "127.0.0.1",
            0,
            text=lambda accept: self.text(accept),  # noqa: PLW0108 - as it is then
            on_bug=self.bugs.append,
        )

    def _text(self, accept: str) -> tuple[bytes, str]:
        self.accepts.append(accept)
        return b"a 1\n", "text/plain; version=0.0.4"

    def connect(self) -> socket.socket:
        """A connection; nothing is sent yet."""
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=20)

    def says(self, data: bytes) -> bytes:
        """All that is answered to *data*; nothing if the connection is cut."""
        with self.connect() as sock:
            with contextlib.suppress(OSError):
                sock.sendall(data)
            return everything(sock)

    def status(self, data: bytes) -> int:
        """The status of the answer."""
        return int(self.says(data).split(b" ", 2)[1])

    def get(self, path: str, method: str = "GET", **headers: str) -> Any:  # noqa: ANN401
        """Response and body by the standard library's client."""
        client = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        with contextlib.closing(client):
            client.request(method, path, headers=headers)
            response = client.getresponse()
            return response, response.read()


def everything(sock: socket.socket) -> bytes:
    received = []
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            received.append(chunk)
    return b"".join(received)


@pytest.fixture
def site() -> Iterator[Site]:
    """A server on a free port of the loopback."""
    made = Site()
    yield made
    made.server.close()
    assert not made.server._open


def test_metrics_are_given_in_the_format_that_was_asked_for(site: Site) -> None:
    """The header goes to the library; length and type are told; one answer to a connection."""
    response, body = site.get("/metrics?x=1", aCCept="application/openmetrics-text")

    assert (response.status, body) == (200, b"a 1\n")
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4"
    assert response.headers["Content-Length"] == "4"
    assert response.headers["Connection"] == "close"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert site.accepts == ["application/openmetrics-text"]


@pytest.mark.parametrize("path", ["/metrics", "/-/healthy"])
def test_head_is_an_answer_without_its_body(site: Site, path: str) -> None:
    """With the length that the body would have."""
    response, body = site.get(path, "HEAD")
    assert (response.status, body) == (200, b"")
    assert int(response.headers["Content-Length"]) > 0
    # The library's client would not look at a body.
    assert site.says(f"HEAD {path} HTTP/1.1\r\n\r\n".encode()).endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /-/healthy HTTP/1.0\n\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/ HTTP/1.1\r\n\r\n", 404),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET http://x/metrics HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"GET /metrics HTTP/1x1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1 and more\r\n\r\n", 400),
        (b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + b"A" * 101 + b": b\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"get /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /me\x00trics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nAccept: a\x1b[2J\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"x" * MAX_REQUEST_BYTES, 431),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"x" * MAX_REQUEST_BYTES + b"\r\n\r\n", 431),
        (b"A" * (4 * MAX_REQUEST_BYTES), 431),
    ],
)
def test_only_what_is_there_is_answered(site: Site, data: bytes, status: int) -> None:
    """Everything else is refused with the status that says why, and the next one is served."""
    assert site.status(data) == status
    assert site.status(GET) == 200
    assert site.bugs == []


def test_a_method_that_is_not_there_says_which_are(site: Site) -> None:
    """As HTTP wants it."""
    response, _ = site.get("/metrics", "PUT")

    assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")


def test_a_bug_in_the_figures_ends_nothing(site: Site) -> None:
    """It is told, the client gets a 500, and the next scrape is served."""
    whole = site.text

    def fails(_: str) -> tuple[bytes, str]:
        raise ZeroDivisionError

    site.text = fails
    assert site.status(GET) == 500
    site.text = whole
    assert site.status(GET) == 200
    (bug,) = site.bugs
    assert isinstance(bug, ZeroDivisionError)


def test_a_request_may_come_byte_by_byte(site: Site) -> None:
    """As long as it comes."""
    with site.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in GET:
            sock.sendall(bytes([byte]))
        assert everything(sock).startswith(b"HTTP/1.1 200 OK\r\n")


def test_silent_clients_hold_up_nobody_and_are_cut(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a request is waited for; others are served meanwhile."""
    with contextlib.ExitStack() as open_ones:
        silent = [open_ones.enter_context(site.connect()) for _ in range(20)]
        for sock in silent[::2]:
            sock.sendall(b"GET /metr")
        assert site.status(GET) == 200
        eventually(lambda: len(site.server._open) == 20, 10, 0.01, what="them to be waited for")
        late = time.monotonic() + server_module.READ_S + 1
        monkeypatch.setattr(server_module.time, "monotonic", lambda: late)
        # Whoever comes next makes the server look at the time.
        assert site.status(GET) == 200
        for sock in silent:
            assert everything(sock) == b""


def test_who_does_not_take_its_answer_holds_up_nobody(site: Site) -> None:
    """An answer larger than what the kernel keeps waits for its client, and nobody else does."""
    large = b"x" * (24 << 20)
    site.text = lambda _: (large, "text/plain")
    with site.connect() as slow:
        slow.sendall(GET)
        eventually(
            lambda: any(c.answer for c in tuple(site.server._open.values())),
            10,
            0.01,
            what="the answer to be stuck",
        )
        assert site.status(b"GET /-/healthy HTTP/1.1\r\n\r\n") == 200
        body = everything(slow).partition(b"\r\n\r\n")[2]
    assert body == large


def test_who_is_silent_is_cut_though_nobody_else_comes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server looks at the time by itself."""
    monkeypatch.setattr(server_module, "READ_S", 0.02)
    with site.connect() as silent:
        assert everything(silent) == b""


def test_who_does_not_take_its_answer_is_cut(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a request may take, an answer has a time of its own."""
    monkeypatch.setattr(server_module, "READ_S", 1000.0)
    monkeypatch.setattr(server_module, "ANSWER_S", 0.02)
    large, asked = b"x" * (24 << 20), threading.Event()

    def text(_: str) -> tuple[bytes, str]:
        asked.set()
        return large, "text/plain"

    site.text = text
    with site.connect() as slow:
        slow.sendall(GET)
        assert asked.wait(60)
        eventually(lambda: not site.server._open, 60, 0.01, what="it to be cut")
        assert len(everything(slow)) < len(large)


def test_who_goes_is_let_go(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a request, or of an answer; at once, not when the time is over."""
    monkeypatch.setattr(server_module, "READ_S", 1000.0)
    monkeypatch.setattr(server_module, "ANSWER_S", 1000.0)
    with site.connect() as half:
        half.sendall(b"GET /metr")
        half.shutdown(socket.SHUT_WR)
        assert everything(half) == b""
    large = b"x" * (24 << 20)
    site.text = lambda _: (large, "text/plain")
    with site.connect() as gone:
        gone.sendall(GET)
        assert gone.recv(1)
        # Linger 0: closing sends a reset.
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    eventually(lambda: not site.server._open, 60, 0.01, what="it to be let go")


def test_an_answer_that_is_taken_in_small_pieces_is_whole(site: Site) -> None:
    """The kernel takes less at a time than it is offered."""
    site.server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    body = b"".join(b"%d\n" % n for n in range(100_000))
    site.text = lambda _: (body, "text/plain")

    assert site.says(GET).partition(b"\r\n\r\n")[2] == body


def test_an_answer_is_not_lost_over_what_was_sent_too_much(site: Site) -> None:
    """Closing a connection with unread bytes would reset it."""
    waiting, go = threading.Event(), threading.Event()

    def held(_: str) -> tuple[bytes, str]:
        waiting.set()
        go.wait(60)
        return b"", "text/plain"

    site.text = held
    with site.connect() as other, site.connect() as sock:
        other.sendall(GET)
        assert waiting.wait(60)
        # All of it is there before the server reads the first of it.
        sock.sendall(b"A" * 100_000)
        go.set()
        said = b"".join(iter(lambda: sock.recv(65536), b""))

    assert said.startswith(b"HTTP/1.1 431 ")


def test_a_scrape_gets_in_where_descriptors_are_short(site: Site) -> None:
    """The oldest connection goes for it."""
    with contextlib.ExitStack() as held:
        sitting = [held.enter_context(site.connect()) for _ in range(3)]
        eventually(lambda: len(site.server._open) == 3, 60, 0.01)
        late = held.enter_context(socket.socket())
        late.settimeout(20)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        most = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir()) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        with contextlib.suppress(OSError):
            while True:
                held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        late.connect(("127.0.0.1", site.server.port))
        late.sendall(GET)
        assert everything(late).startswith(b"HTTP/1.1 200")
        assert everything(sitting[0]) == b""


def test_ipv4_and_ipv6_are_two_places() -> None:
    """Who listens on all of IPv6 leaves IPv4 to others."""
    bugs: list[Exception] = []
    with contextlib.ExitStack() as running:
        six = MetricsServer("::", 0, text=lambda _: (b"6", ""), on_bug=bugs.append)
        running.callback(six.close)
        four = MetricsServer("127.0.0.1", six.port, text=lambda _: (b"4", ""), on_bug=bugs.append)
        running.callback(four.close)

        assert fetched(six.port).endswith("4")
        with socket.create_connection(("::1", six.port), timeout=20) as sock:
            sock.sendall(GET)
            assert everything(sock).endswith(b"6")


def test_a_hundred_at_once_are_all_served(site: Site) -> None:
    """All connect before the first asks."""
    with contextlib.ExitStack() as open_ones:
        socks = [open_ones.enter_context(site.connect()) for _ in range(100)]

        def ask(sock: socket.socket) -> bytes:
            sock.sendall(GET)
            return everything(sock)

        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(ask, socks))

    assert all(a.startswith(b"HTTP/1.1 200") and a.endswith(b"a 1\n") for a in answers)
    assert len(site.accepts) == 100


def test_a_scrape_gets_in_however_many_sit_there(site: Site) -> None:
    """Where there are too many connections the oldest goes."""
    with contextlib.ExitStack() as open_ones:
        sitting = [open_ones.enter_context(site.connect()) for _ in range(2 * MOST_CONNECTIONS)]
        assert site.status(GET) == 200
        assert len(site.server._open) <= MOST_CONNECTIONS
        assert everything(sitting[0]) == b""
        sitting[-1].sendall(GET)
        assert everything(sitting[-1]).startswith(b"HTTP/1.1 200")


def test_garbage_is_survived(site: Site) -> None:
    """Bytes at random, resets, ends in the middle: the thread lives on."""
    chaos = [bytes([n % 256]) * (n * 37 % 20000) for n in range(60)]
    for data in chaos:
        with site.connect() as sock, contextlib.suppress(OSError):
            # Linger 0: closing sends a reset, with what was sent on the way.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.sendall(data)
    assert site.status(GET) == 200
    assert site.bugs == []


def open_descriptors() -> int:
    """Of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_it_has_one_thread_and_gives_back_what_it_took() -> None:
    """No thread for each client; after its end neither thread, descriptor nor port is left."""
    before, descriptors = threading.active_count(), open_descriptors()
    made = Site()
    with made.connect() as one, made.connect() as other:
        for sock in (one, other):
            sock.sendall(b"GET /")
        eventually(lambda: len(made.server._open) == 2, 10, 0.01)
        assert threading.active_count() == before + 1
        made.server.close()
        assert everything(one) == everything(other) == b""
    assert threading.active_count() == before
    assert open_descriptors() == descriptors
    with pytest.raises(ConnectionRefusedError):
        made.connect()
    # The port is free at once for the next daemon.
    again = MetricsServer("127.0.0.1", made.server.port, text=made.text, on_bug=made.bugs.append)
    again.close()


@given(st.binary(max_size=400), st.integers(0, 400))
@example(b"\r\n\r\n", 2)
@example(GET + GET, len(GET))
def test_a_request_in_pieces_is_the_request(data: bytes, cut: int) -> None:
    """What was read stays what it was when more comes; nothing but `RefusedError` leaves it."""

    def read(part: bytes) -> HttpRequest | int | None:
        try:
            return parse(part)
        except RefusedError as err:
            return err.status

    begun = read(data[:cut])
    if begun is not None:
        assert read(data) == begun
    whole = read(data + b"\r\n\r\n")
    assert whole is not None


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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def fetched(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(GET)
        return everything(sock).decode()


def test_without_an_address_there_is_no_endpoint(log: io.StringIO) -> None:
    """Off unless it is asked for: no thread, no port."""
    before = threading.active_count()
    with contextlib.closing(Endpoint(config(""), logging_setup.logger())) as endpoint:
        assert endpoint.port is None
        assert threading.active_count() == before
    assert log.getvalue() == ""


def test_a_port_that_is_taken_is_an_error_at_the_start(taken: int) -> None:
    """It says where, why, and which key."""
    with pytest.raises(ConfigError, match=rf"metrics.listen.*127.0.0.1:{taken}.*in use"):
        Endpoint(config(f"127.0.0.1:{taken}"), logging_setup.logger())


def test_an_address_of_another_host_is_an_error_at_the_start() -> None:
    """One of the addresses that are for documents."""
    with pytest.raises(ConfigError, match=r"metrics.listen: cannot listen on 192.0.2.1:9477"):
        Endpoint(config("192.0.2.1:9477"), logging_setup.logger())


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An admin who has asked for metrics is to know that there are none."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ConfigError, match=r"install slurm-dl\[metrics\]"):
        Endpoint(config(f"127.0.0.1:{free_port()}"), logging_setup.logger())
    # Whoever does not ask for it does not need it.
    Endpoint(config(""), logging_setup.logger()).close()


def test_a_reload_moves_it(log: io.StringIO) -> None:
    """The old port is given back, the new one answers; empty ends it."""
    old, new = free_port(), free_port()
    with contextlib.closing(
        Endpoint(config(f"127.0.0.1:{old}"), logging_setup.logger())
    ) as endpoint:
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
    with contextlib.closing(
        Endpoint(config(f"127.0.0.1:{old}"), logging_setup.logger())
    ) as endpoint:
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
    with contextlib.closing(
        Endpoint(config(f"127.0.0.1:{port}"), logging_setup.logger())
    ) as endpoint:
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


def test_a_bug_is_said_once_for_each_kind_and_counted_at_each_scrape(log: io.StringIO) -> None:
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


def test_kinds_of_bugs_that_are_said_are_bounded(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, the log is not filled; all are counted."""
    monkeypatch.setattr(endpoint_module, "_MOST_KINDS", 1)
    port = free_port()
    told = config(f"127.0.0.1:{port}")
    now = PublishedState(config=told, config_rows=(), started_s=1.0, live=True)
    pause = Breaks(KeyError, ZeroDivisionError)
    with (
        contextlib.closing(Endpoint(told, logging_setup.logger())) as endpoint,
        endpoint.showing(Board(now), MetricsTally(), audit=Says(), pause=pause),
    ):
        for _ in range(2):
            assert fetched(port).startswith("HTTP/1.1 500")
        assert "slurm_dl_scrape_errors_total 2.0" in fetched(port)
    assert log.getvalue().count("bug in the metrics") == 1


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
        "9477",
        ":9477",
        "localhost:9477",
        "127.0.0.1",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "127.0.0.1:080",
        "127.0.0.1.1:80",
        "256.0.0.1:80",
        "::1:9477",
        "[127.0.0.1]:9477",
        "[::1%lo]:9477",
        "127.0.0.1:9477 ",
        "١٢٧.0.0.1:80",
        "http://127.0.0.1:9477",
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


def test_a_header_of_blanks_takes_no_time_that_grows_with_its_square() -> None:
    """Counted, not timed: the text behind the blanks has one beginning only."""
    value = http_request._HEADER.fullmatch("Accept: \t  text/plain  ")
    assert value is not None
    assert value[2] == "text/plain  "
    assert http_request._HEADER.fullmatch("A:" + " " * 8000 + "\x01") is None
    assert http_request._HEADER.fullmatch("A:   ") is not None
