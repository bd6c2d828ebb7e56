"""The file that makes a directory a sandbox: spec, id and ports, written before anything else.

Together with the lock it lets a start that broke off be continued, and keeps two commands from
working on one sandbox at the same time.

The ports are a block that no other sandbox and no other program of this host uses. A probe alone is
not enough: a sandbox that is down keeps its ports in slurm.conf, and two that come up at the same
time would probe the same ones free. So claims are written to one small file, under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from slurm_dl.files import replace_file
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.sandbox.config_files import ports_needed
from slurm_dl.sandbox.layout import Layout, check_path, write_file
from slurm_dl.sandbox.process_control import DeadlinePassedError, eventually
from slurm_dl.sandbox.spec import SandboxSpec, differences

# Below Linux' ephemeral ports (32768 and up), above Slurm's own and most services'.
FLOOR: Final = 17_000
CEILING: Final = 32_000
_LOWEST: Final = 1_024
_HIGHEST: Final = 65_535

CLAIMS: Final = Path("/run/slurm_dl-sandbox-ports.json")


@dataclass(frozen=True, slots=True)
class PortClaim:
    """One sandbox's block; it counts as long as its record in *directory* names *sandbox_id*."""

    directory: str
    sandbox_id: str
    first: int
    count: int

    def overlaps(self, first: int, count: int) -> bool:
        """Whether the block of *count* ports from *first* shares a port with this one."""
        return first < self.first + self.count and self.first < first + count


_CLAIMS_JSON: Final = TypeAdapter(tuple[PortClaim, ...])


def is_free(port: int) -> bool:
    """Whether nobody listens on *port*, on any address of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Slurm does it: connections that linger in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def check_free(ports: range) -> None:
    """Raise ConfigError for the first of *ports* that somebody listens on."""
    for port in ports:
        if not is_free(port):
            message = (
                f"port {port} is taken by another program; find it with"
                f" 'ss -ltnp sport = :{port}', or make a sandbox on other ports with --port"
            )
            raise ConfigError(message)


@contextlib.contextmanager
def claimed_block(
    directory: Path, sandbox_id: str, count: int, *, first: int | None = None
) -> Iterator[int]:
    """The first port of a free block; it is the sandbox's when the body ends without error.

    The body writes the sandbox's record, which makes the claim last.

    Args:
        directory: The sandbox's.
        sandbox_id: As in its record.
        count: Ports needed.
        first: Take exactly the block from here, or fail.

    Raises:
        ConfigError: No free block, or the one asked for is taken.
    """
    lock_fd = os.open(CLAIMS.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        others = tuple(claim for claim in _read() if _counts(claim, directory))
        if first is None:
            first = _find(directory, count, others)
        else:
            _check_asked(first, count, others)
        yield first
        _write((*others, PortClaim(str(directory), sandbox_id, first, count)))
    finally:
        os.close(lock_fd)


def _find(directory: Path, count: int, others: tuple[PortClaim, ...]) -> int:
    step = max(count, 16)
    slots = (CEILING - FLOOR) // step
    # Sandboxes begin their search in different places, so that one that is down is rarely
    # in the way of a program that came later.
    start = zlib.crc32(os.fsencode(directory))
    for offset in range(slots):
        first = FLOOR + (start + offset) % slots * step
        if any(claim.overlaps(first, count) for claim in others):
            continue
        if all(is_free(port) for port in range(first, first + count)):
            return first
    message = (
        f"no {count} free ports in a row between {FLOOR} and {CEILING};"
        " remove sandboxes you no longer need, or name the first port with --port"
    )
    raise ConfigError(message)


def _check_asked(first: int, count: int, others: tuple[PortClaim, ...]) -> None:
    if not _LOWEST <= first <= _HIGHEST + 1 - count:
        message = (
            f"port {first}: {count} ports from there do not lie between {_LOWEST} and {_HIGHEST}"
        )
        raise ConfigError(message)
    for claim in others:
        if claim.overlaps(first, count):
            message = (
                f"ports {first}-{first + count - 1} overlap those of the sandbox in"
                f" {claim.directory}; choose another --port or leave it out"
            )
            raise ConfigError(message)
    check_free(range(first, first + count))


def _counts(claim: PortClaim, directory: Path) -> bool:
    if claim.directory == str(directory):
        return False
    try:
        text = (Path(claim.directory) / "sandbox.json").read_text(encoding="utf-8")
    except OSError:
        return False
    # The id is random: finding it in the record is proof enough, whatever the record's version.
    return claim.sandbox_id in text


def _read() -> tuple[PortClaim, ...]:
    try:
        return _CLAIMS_JSON.validate_json(CLAIMS.read_bytes())
    except FileNotFoundError:
        return ()
    except ValidationError as err:
        message = f"{CLAIMS} cannot be read as a list of port claims; delete it and try again"
        raise ConfigError(message) from err


def _write(claims: tuple[PortClaim, ...]) -> None:
    text = json.dumps([asdict(claim) for claim in claims], indent=1) + "\n"
    with replace_file(CLAIMS, mode=0o666, durable=False) as file:
        file.write(text.encode())


_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Record:
    """What is fixed for a sandbox's life.

    Attributes:
        sandbox_id: Random; part of the cluster's name.
    """

    spec: SandboxSpec  # What was asked for
    first_port: int  # slurmctld's port; the slurmds' follow
    sandbox_id: str = field(default_factory=lambda: secrets.token_hex(4))
    format: int = _FORMAT  # Of this file

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
