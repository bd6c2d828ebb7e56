"""The file that makes a directory a sandbox: spec, id and ports, written before anything else.

Together with the lock it lets a start that broke off be continued, and keeps two commands from
working on one sandbox at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

from pydantic import TypeAdapter, ValidationError

from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.sandbox.config_files import ports_needed
from slurm_dl.sandbox.layout import Layout, check_path, write_file
from slurm_dl.sandbox.ports import claimed_block
from slurm_dl.sandbox.spec import SandboxSpec, differences
from slurm_dl.sandbox.wait_until import DeadlinePassedError, eventually

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Record:
    """What is fixed for a sandbox's life.

    Attributes:
        spec: What was asked for.
        first_port: slurmctld's port; the slurmds' follow.
        sandbox_id: Random; part of the cluster's name.
        format: Of this file.
    """

    spec: SandboxSpec
    first_port: int
    sandbox_id: str = field(default_factory=lambda: secrets.token_hex(4))
    format: int = _FORMAT

    @property
    def cluster(self) -> str:
        """Slurm's name for the cluster."""
        return f"sandbox{self.sandbox_id}"


_RECORD_JSON: Final = TypeAdapter(Record)


@contextlib.contextmanager
def locked(layout: Layout, *, within_s: float = 10.0) -> Iterator[None]:
    """Hold the sandbox against other commands that start or end its daemons."""
    check_path(layout.directory)
    lock_fd = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            eventually(lambda: _try_lock(lock_fd), within_s, 0.1, what="the lock")
        except DeadlinePassedError as err:
            message = (
                f"another command is starting or ending the sandbox in {layout.directory};"
                " try again when it is done"
            )
            raise ClusterError(message) from err
        yield
    finally:
        os.close(lock_fd)


def load(layout: Layout) -> Record:
    """The record of the sandbox in the directory; ConfigError when there is none."""
    try:
        text = layout.record.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as err:
        message = (
            f"no sandbox in {layout.directory}; make one with 'dlctl sandbox up {layout.directory}'"
        )
        raise ConfigError(message) from err
    except PermissionError as err:
        message = f"{layout.record} cannot be read by this user; run the same with sudo"
        raise ConfigError(message) from err
    try:
        record = _RECORD_JSON.validate_json(text)
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{layout.record}: {where or 'file'}: {first['msg']}; restore or delete it"
        raise ConfigError(message) from err
    if record.format != _FORMAT:
        message = (
            f"{layout.record} is of format {record.format}, this program knows {_FORMAT};"
            " use the version that made it, or a new directory"
        )
        raise ConfigError(message)
    return record


def create(layout: Layout, spec: SandboxSpec, *, port: int | None) -> Record:
    """Find ports and write the record of a new sandbox."""
    sandbox_id = secrets.token_hex(4)
    with claimed_block(layout.directory, sandbox_id, ports_needed(spec), first=port) as first_port:
        record = Record(spec, first_port, sandbox_id)
        write_file(layout.record, json.dumps(asdict(record), indent=1) + "\n")
    return record


def check_same(layout: Layout, record: Record, spec: SandboxSpec | None, port: int | None) -> None:
    """Raise ConfigError unless what is asked for is what is there; None asks for nothing."""
    found = differences(record.spec, spec) if spec is not None else ""
    if port is not None and port != record.first_port:
        port_words = f"the first port is {record.first_port}, asked for {port}"
        found = f"{found}; {port_words}" if found else port_words
    if found:
        message = (
            f"the sandbox in {layout.directory} is another one: {found};"
            " leave the options out to resume it, or end it with 'down --remove'"
        )
        raise ConfigError(message)


def _try_lock(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
