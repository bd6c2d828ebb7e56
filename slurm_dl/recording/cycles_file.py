"""A recording: what a daemon saw cycle by cycle, and what was planned, in one file.

JSON lines, compressed where the name ends in ``.gz``. The first line says what it is and with which
policy and limits its plans were made; each further line is a cycle, or a new policy and limits for
the cycles after it. Lines are written whole and handed to the system one by one, so a writer that
is killed leaves a file that lacks its last line at most. Files are read line by line; what they
hold is hostile until it has been checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np

from slurm_dl import __version__
from slurm_dl.engine.settings import Settings
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.plan import Plan
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies import policy_file, registry
from slurm_dl.policies.base import Policy
from slurm_dl.recording.snapshot_file import (
    FormError,
    check,
    from_bytes,
    from_plain,
    to_bytes,
    to_plain,
)
from slurm_dl.text import shown

FORMAT = 4  # What is written

OLDEST = 1
"""What is still read: up to format 3 without places in the queue, before that without sizes, and in
the first format with the shape of a profile's speed as two numbers and its other names as text.
"""

COUNTS_COMMITMENT = 4  # In earlier formats only received GPU time counted

MOST_LINE_BYTES = 256 * 2**20
"""Longest line that is read; a snapshot of 100,000 jobs with its plan takes some 30 MB."""

PRIVATE = 0o600
_GZIP_MAGIC = b"\x1f\x8b"


class RecordingError(ConfigError):
    """A recording that cannot be used; the message begins with file and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What plans depend on besides the snapshot."""

    policy: str  # Name of the policy
    parameters: Mapping[str, Any]  # Its parameters as plain values
    settings: Settings  # The limits of the engine

    @classmethod
    def of(cls, policy: Policy, settings: Settings) -> Self:
        """What *policy* and *settings* come down to.

        Raises:
            TypeError: The policy, the scheme of placement or a rule is no dataclass of values that
                can be kept.
        """
        parameters = to_plain(policy, type(policy))
        setup = cls(policy=policy.name, parameters=parameters, settings=settings)
        to_bytes(setup, cls)
        return setup

    def make(self) -> Policy:
        """The policy, ready to order jobs.

        Raises:
            ConfigError: There is no such policy here, or it refuses its parameters.
        """
        if policy_file.is_file(self.policy):
            # A recording comes from anywhere, and finding a policy in a file runs the file.
            msg = f"policy {shown(self.policy)} of the recording is a file: name one with --policy"
            raise ConfigError(msg)
        kind = registry.find(self.policy)
        try:
            return from_plain(dict(self.parameters), kind)
        except (FormError, TypeError) as err:
            msg = f"policy {self.policy!r} does not take the recorded parameters: {err}"
            raise ConfigError(msg) from None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedCycle:
    """One cycle of a recording."""

    line: int  # Its line in the file, from 1
    setup: Setup  # What was in force
    snapshot: Snapshot
    plan: Plan | None  # What was planned; None if that was not recorded


class Writer:
    """Writes one recording. The file must not be there yet; its owner alone may read it.

    Args:
        where: The file, compressed if its name ends in ``.gz``; or a stream.
        setup: What is in force.
        version: The slurm_dl that makes its plans.

    Raises:
        OSError: It is there already, or cannot be written; so does every other call.
    """

    def __init__(
        self, where: Path | BufferedIOBase, setup: Setup, version: str = __version__
    ) -> None:
        if isinstance(where, Path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file: BufferedIOBase = os.fdopen(os.open(where, flags, PRIVATE), "wb")
        else:
            self._file = where
        self._stream = self._file
        if isinstance(where, Path) and where.suffix == ".gz":
            # Without name and time in it, equal recordings are equal files.
            self._stream = gzip.GzipFile(filename="", mode="wb", fileobj=self._file, mtime=0)
        self._setup = setup
        header = {"recording": FORMAT, "version": version, "setup": to_plain(setup, Setup)}
        self._write(json.dumps(header).encode("ascii"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Bytes in the file so far."""
        return self._file.tell()

    def change(self, setup: Setup) -> None:
        """What follows was made with *setup*."""
        if setup != self._setup:
            self._write(json.dumps({"setup": to_plain(setup, Setup)}).encode("ascii"))
            self._setup = setup

    def write(self, snapshot: Snapshot, plan: Plan | None = None) -> None:
        """Add one cycle."""
        told = b"" if plan is None else b',"plan":' + to_bytes(plan, Plan)
        self._write(b'{"snapshot":%b%b}' % (to_bytes(snapshot, Snapshot), told))

    def close(self) -> None:
        """End the file."""
        with contextlib.closing(self._file):
            if self._stream is not self._file:
                self._stream.close()

    def _write(self, line: bytes) -> None:
        self._stream.write(line + b"\n")
        self._stream.flush()


class Recording:
    """Reads one recording, once, from its beginning to its end.

    Args:
        path: Compressed or not, whatever its name.
        stream: What to read in place of the file at *path*.

    Attributes:
        first: What was in force at its beginning.
        version: The slurm_dl that made its plans.
        cut_off: Why its end is missing, with file and line; empty while none is known to be.

    Raises:
        RecordingError: It cannot be opened, or is no recording.
    """

    def __init__(self, path: Path, stream: BufferedReader | None = None) -> None:
        self.path = path
        self.cut_off = ""
        try:
            if stream is None and not path.is_file():
                self._refuse(0, "no such file" if not path.exists() else "not a regular file")
            self._file = path.open("rb") if stream is None else stream
        except OSError as err:
            self._refuse(0, err.strerror or str(err))
        self.size = os.fstat(self._file.fileno()).st_size
        try:
            self._lines = self._whole(self._decompressed())
            self.version, self.first = self._header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def read_bytes(self) -> int:
        """How far into the file the reading has come; its whole is *size*."""
        return self._file.tell()

    def __iter__(self) -> Iterator[RecordedCycle]:
        """The cycles in their order.

        Raises:
            RecordingError: A line is not what it should be.
        """
        setup = self.first
        for number, raw in self._lines:
            try:
                line = from_bytes(raw, _Line)
                if line.setup is not None and line.snapshot is None and line.plan is None:
                    setup = _setup_of(line.setup, self._format)
                    continue
                yield _cycle_of(line, number, setup)
            except FormError as err:
                self._refuse(number, str(err))

    def _header(self) -> tuple[str, Setup]:
        number, raw = next(self._lines, (1, b""))
        if not raw:
            self._refuse(number, "its first line is not whole: nothing was recorded")
        try:
            content = from_bytes(raw, dict[str, Any])
            if "recording" not in content:
                self._refuse(number, "not a recording; 'dlctl record' makes one")
            found = content["recording"]
            if type(found) is not int or not OLDEST <= found <= FORMAT:
                words = f"a recording of format {OLDEST} to {FORMAT} was expected"
                self._refuse(number, f"{words} (got {shown(found)})")
            self._format = found
            version = content.get("version")
            setup = _setup_of(content.get("setup"), found)
        except FormError as err:
            self._refuse(number, str(err))
        return version if isinstance(version, str) else "", setup

    def _decompressed(self) -> BufferedIOBase:
        is_gzip = self._file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        return gzip.GzipFile(fileobj=self._file) if is_gzip else self._file

    def _whole(self, stream: BufferedIOBase) -> Iterator[tuple[int, bytes]]:
        number = 0
        while True:
            number += 1
            try:
                # Bounded, so that a small compressed file cannot fill the memory.
                raw = stream.readline(MOST_LINE_BYTES + 1)
            except EOFError:
                self._cut(number)
                return
            except (OSError, zlib.error) as err:
                self._refuse(number, f"cannot be read: {err}")
            if not raw:
                return
            if len(raw) > MOST_LINE_BYTES:
                self._refuse(number, f"longer than {MOST_LINE_BYTES // 2**20} MiB")
            if not raw.endswith(b"\n"):
                try:
                    from_bytes(raw, dict[str, Any])
                except FormError:
                    self._cut(number)
                    return
            yield number, raw

    def _cut(self, number: int) -> None:
        self.cut_off = (
            f"{self.path}:{number}: the file ends within this line (was its writer killed?); "
            "what stands before it is used"
        )

    def _refuse(self, number: int, text: str) -> NoReturn:
        place = f"{self.path}:{number}" if number else str(self.path)
        msg = f"{place}: {text}"
        raise RecordingError(msg) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A cycle, or what is in force from here on."""

    snapshot: Snapshot | None = None
    plan: Plan | None = None
    setup: dict[str, Any] | None = None


def _setup_of(content: Any, form: int) -> Setup:  # noqa: ANN401 - any JSON
    setup = from_plain(content if form > OLDEST else _renewed(content), Setup, "setup")
    if form >= COUNTS_COMMITMENT:
        return setup
    limits = dataclasses.replace(setup.settings.preemption, commitment="ignored")
    return dataclasses.replace(
        setup, settings=dataclasses.replace(setup.settings, preemption=limits)
    )


def _renewed(content: Any) -> Any:  # noqa: ANN401 - any JSON
    """A setup of format 1 as it is written now."""
    match content:
        case {"settings": {"placement": {"profiles": dict(profiles)} as placement} as limits}:
            own = {n: profiles.get(p) if isinstance(p, str) else p for n, p in profiles.items()}
            placement = {**placement, "profiles": _with_shapes(own)}
            return {**content, "settings": {**limits, "placement": placement}}
    return content


def _with_shapes(content: Any) -> Any:  # noqa: ANN401 - any JSON
    match content:
        case {"nodes": int(nodes), "gpus_per_node": int(gpus)}:
            return f"{nodes}x{gpus}"
        case list():
            return [_with_shapes(one) for one in content]
        case dict():
            return {name: _with_shapes(one) for name, one in content.items()}
    return content


def _cycle_of(line: _Line, number: int, setup: Setup) -> RecordedCycle:
    if line.snapshot is None or line.setup is not None:
        msg = "a snapshot, with or without a plan, was expected"
        raise FormError(msg)
    check(line.snapshot, "snapshot")
    if line.plan is not None:
        _check_rows(line.plan, len(line.snapshot.jobs))
    return RecordedCycle(line=number, setup=setup, snapshot=line.snapshot, plan=line.plan)


def _check_rows(plan: Plan, n: int) -> None:
    for field in dataclasses.fields(plan):
        column = getattr(plan, field.name)
        if isinstance(column, np.ndarray) and column.shape[:1] != (n,):
            msg = f"{n} values were expected, one a job"
            raise FormError(msg, "plan", field.name)
