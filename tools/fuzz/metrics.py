"""What comes through the endpoint for Prometheus: requests, and what their client accepts."""

from __future__ import annotations

from slurm_dl.daemon.metrics.exposition import Exposition
from slurm_dl.daemon.metrics.http_request import RefusedError, parse
from slurm_dl.daemon.metrics.samples import WaitingDaemonMetrics
from tools.fuzz.target import Target

_EXPOSITION = Exposition(WaitingDaemonMetrics("fifo", "off", "starting").figures)


def _request(data: bytes) -> object:
    """A request as the server reads it, then the format that it is answered in."""
    request = parse(data)
    return None if request is None else _EXPOSITION.text(request.accept)


TARGETS = (
    Target(
        name="metrics-request",
        parse=_request,
        own=(RefusedError,),
        source="the endpoint for Prometheus: any client that reaches its address",
        parser="daemon.metrics.http_request.parse, exposition.Exposition.text",
        seeds=(
            b"GET /metrics HTTP/1.1\r\nHost: a:9477\r\nAccept: text/plain;version=0.0.4\r\n\r\n",
            b"HEAD /-/healthy?a=b HTTP/1.0\n\n",
            b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n",
        ),
    ),
)
