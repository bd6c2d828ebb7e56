"""What comes through sockets and pipes: requests of users, answers, the pyslurm worker's words."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from slurm_dl.daemon.control import reception
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.daemon.control.reception import RequestError
from slurm_dl.daemon.control.requests import parse
from slurm_dl.daemon.control.tcp_client import TcpError, nonce_of, unsealed
from slurm_dl.daemon.published_state import find_job
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import ClusterError
from slurm_dl.recording.snapshot_file import decode, encode
from slurm_dl.slurm.pyslurm.reader import FIELDS, answer_in, jobs_in
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.record_parser import JOB_FIELDS
from slurm_dl.testing.situations import situations
from tools.fuzz.said import site
from tools.fuzz.target import Target, text


def _request(data: bytes) -> None:
    """Every line of one connection, as the server takes them."""
    for line in data.split(b"\n")[:-1]:
        parse(reception._decoded(line))  # noqa: SLF001 - the parser itself


def _from_server(data: bytes) -> None:
    """Both lines without a credential that a server may send, in either place."""
    for line in data.split(b"\n"):
        for read in (nonce_of, unsealed):
            with contextlib.suppress(TcpError):
                read(line, "ctl1:6822")


class _Told(Client):
    """A client that has got its answer."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(Path("/nowhere"))
        self._raw = raw

    def _line(self, request: JsonObject) -> bytes:
        del request
        return self._raw


def _answer(data: bytes) -> object:
    # "busy" is worth another try, which takes its time.
    return _Told(data.partition(b"\n")[0].replace(b"busy", b"b")).ask("status")


def _job_name(data: bytes) -> object:
    return find_job(situations()[0].snap.seen, text(data))


def _worker_answer(data: bytes) -> object:
    answer = answer_in(data)
    if answer is None:
        return None
    told = [dict(zip(FIELDS, job, strict=True)) for job in jobs_in(answer)[0]]
    records = [[words.get(name, "") for name in JOB_FIELDS] for words in told]
    reader = JobReader(ClaimReader(max_grace_s=600))
    return reader.read_records(records, site(), now_s=500.0)


def _snapshot(data: bytes) -> object:
    content = json.loads(data)
    return decode(content) if isinstance(content, dict) else None


TARGETS = (
    Target(
        name="snapshot",
        parse=_snapshot,
        own=(ValueError, RecursionError),
        source="snapshots that dlctl snapshot wrote",
        parser="recording.snapshot_file.decode",
        seeds=(json.dumps(encode(situations()[0].snap)).encode(),),
    ),
    Target(
        name="request",
        parse=_request,
        own=(RequestError,),
        source="the control socket: any user with access to it",
        parser="daemon.control.reception, daemon.control.requests.parse",
        seeds=(
            b'{"request": "status"}\n{"request": "queue", "user": ["ada"]}\n',
            b'{"request": "why", "job": "123_7"}\n{"request": "pause", "reason": "x"}\n',
        ),
    ),
    Target(
        name="tcp-server",
        parse=_from_server,
        source="whatever listens on the port that a client asks",
        parser="daemon.control.tcp_client",
        seeds=(
            b'{"slurm_dl": 1, "nonce": "00ff"}\n{"ok": false, "kind": "busy", "error": "retry"}',
            b'{"ok": false, "kind": "denied", "error": "MUNGE"}\n{"ok": true, "result": {}}',
        ),
    ),
    Target(
        name="answer",
        parse=_answer,
        own=(DaemonError,),
        source="the control socket, for dlctl and dlqueue",
        parser="daemon.control.client.Client.ask",
        seeds=(b'{"ok": true, "result": {"a": [1]}}\n', b'{"ok": false, "error": "\\u001b[2J"}\n'),
    ),
    Target(
        name="job-name",
        parse=_job_name,
        own=(ValueError,),
        source="names of jobs in requests",
        parser="daemon.published_state.find_job",
        seeds=(b"123", b"123_7", b"123+1"),
    ),
    Target(
        name="pyslurm-answer",
        parse=_worker_answer,
        own=(ClusterError,),
        source="the pyslurm worker, the process that runs libslurm",
        parser="slurm.pyslurm.reader.answer_in, jobs_in",
        seeds=(
            json.dumps({"jobs": [["7"] * len(FIELDS)], "unreadable": 0}).encode() + b"\n",
            b'{"error": "x"}\n',
        ),
    ),
)
