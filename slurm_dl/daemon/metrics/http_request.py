"""What a client of the endpoint asks for, from the bytes it has sent; pure.

A request is a line and headers, no body: whatever else is sent is refused, and the connection is
closed after one answer in any case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_REQUEST_BYTES: Final = 8192
"""Prometheus sends less than 500."""

_END = re.compile(rb"\r?\n\r?\n")
_LINE = re.compile(r"([A-Z]{1,16}) ([!-~]{1,2000}) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):[ \t]*((?:[!-~][ -~]*)?)")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request: its method, the path without what follows ``?``, and what it accepts."""

    method: str
    path: str
    accept: str = ""


class RefusedError(Exception):
    """No request that can be answered; with the status that says so."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def parse(data: bytes) -> HttpRequest | None:
    """The request that *data* begins with; None while it has not come to its end.

    Raises:
        RefusedError: It is none, or too long.
    """
    end = _END.search(data[: MAX_REQUEST_BYTES + 1])
    if end is None:
        if len(data) > MAX_REQUEST_BYTES:
            raise RefusedError(431)
        return None
    first, *rest = data[: end.start()].decode("latin-1").replace("\r\n", "\n").split("\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise RefusedError(400)
    accept = ""
    for header in rest:
        found = _HEADER.fullmatch(header)
        if found is None:
            raise RefusedError(400)
        if found[1].lower() == "accept":
            accept = found[2]
    return HttpRequest(method=line[1], path=line[2].partition("?")[0], accept=accept)
