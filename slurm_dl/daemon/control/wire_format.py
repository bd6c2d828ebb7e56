"""The form of what goes over the control socket: JSON lines, requests and answers.

Both ends import it, so it is light: no pydantic, no numpy. The requests themselves are checked
by the server alone.
"""

from __future__ import annotations

from enum import StrEnum

PROTOCOL = 1
"""Raised when an answer changes in a way that an older command could misread."""

MAX_REQUEST_BYTES = 256 * 1024
"""Longest request line; a node list of some ten thousand names fits."""

SOCKET_NAME = "dlschedd.sock"


class RefusalKind(StrEnum):
    """Reason of a refusal, as a word that a program can test."""

    BAD_REQUEST = "bad_request"
    DENIED = "denied"
    BUSY = "busy"
    """Too many connections; worth another try."""
    NOT_FOUND = "not_found"
    NOT_READY = "not_ready"
    """The daemon has not seen the cluster yet."""
    FAILED = "failed"
    INTERNAL = "internal"
