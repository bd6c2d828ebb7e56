"""A web server on this host that tells the rate of a service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


@contextmanager
def rate_server(answers: list[bytes]) -> Iterator[str]:
    """Its URL; it answers with the first of *answers* as it is then, empty: with an error."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if answers[0] else 500)
            self.end_headers()
            self.wfile.write(answers[0])

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_port}/rate"
        finally:
            httpd.shutdown()
            thread.join()
