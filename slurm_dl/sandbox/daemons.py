"""A sandbox's daemons by name: how each is started, where it listens and logs, whether it lives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_dl.model.errors import ConfigError
from slurm_dl.sandbox import accounting_database, manifest, process_control
from slurm_dl.sandbox import layout as layouts
from slurm_dl.sandbox.config_files import slurmdbd_port
from slurm_dl.sandbox.layout import Layout
from slurm_dl.sandbox.manifest import Record
from slurm_dl.sandbox.process_control import Process

MUNGED: Final = "munged"
MYSQLD: Final = "mysqld"
SLURMDBD: Final = "slurmdbd"
SLURMCTLD: Final = "slurmctld"
SLURMD: Final = "slurmd-"  # What a slurmd's name begins with; the node's name follows

# slurmctld writes its state when it is told to end.
TERM_S: Final = 30.0

_ERROR: Final = re.compile(r"fatal|\[ERROR\]|[Ee]rror:")
_HARMLESS: Final = re.compile(r" mpi/|MPI: |state (save )?file|not recommended")
"""Told at every first start on Debian: no PMIx, no saved state, MariaDB's buffers."""


@dataclass(frozen=True, slots=True)
class Daemons:
    """The daemons of one sandbox."""

    layout: Layout  # Its directory
    fixed: Record  # Its record
    names: tuple[str, ...]  # All of them, in the order they start

    @classmethod
    def of(cls, layout: Layout, fixed: Record) -> Daemons:
        """Those that the sandbox's spec asks for."""
        nodes = fixed.spec.node_names if fixed.spec.start_slurmd else ()
        storage = (MYSQLD, SLURMDBD) if fixed.spec.accounting else ()
        slurmds = (f"{SLURMD}{node}" for node in nodes)
        return cls(layout, fixed, (MUNGED, *storage, SLURMCTLD, *slurmds))

    @property
    def slurmds(self) -> tuple[str, ...]:
        """Those of the nodes, in Slurm's order."""
        return tuple(name for name in self.names if name.startswith(SLURMD))

    def check_name(self, name: str) -> None:
        """Raise ConfigError when there is no such daemon."""
        if name not in self.names:
            message = f"the sandbox has no daemon {name!r}, only {', '.join(self.names[:3])}, ..."
            raise ConfigError(message)

    def recorded(self, name: str) -> Process | None:
        """The process that was started last and not stopped; it may have died."""
        return process_control.read_record(self._record(name))

    def alive(self, name: str) -> Process | None:
        """The running process."""
        process = self.recorded(name)
        return process if process is not None and process_control.is_alive(process) else None

    def forget(self, name: str) -> None:
        """Drop the record of a process that was ended."""
        self._record(name).unlink(missing_ok=True)

    def port(self, name: str) -> int:
        """The TCP port a Slurm daemon listens on."""
        if name == SLURMDBD:
            return slurmdbd_port(self.fixed.spec, self.fixed.first_port)
        if name == SLURMCTLD:
            return self.fixed.first_port
        return self.fixed.first_port + 1 + self.slurmds.index(name)

    def listens(self, name: str) -> bool:
        """Whether somebody listens where this daemon should."""
        if name == MUNGED:
            return self.layout.munge_socket.is_socket()
        if name == MYSQLD:
            return accounting_database.server_answers(self.layout)
        return not manifest.is_free(self.port(name))

    def output(self, name: str) -> Path:
        """What it has printed since its start."""
        return self.layout.log / f"{name}.out"

    def why_out_of_service(self, name: str) -> str:
        """The first cause in its output, then the end, often a consequence ("... failed")."""
        try:
            text = self.output(name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            text = ""
        lines = [line.strip() for line in text.splitlines()] or ["it printed nothing"]
        errors = [line for line in lines if _ERROR.search(line) and not _HARMLESS.search(line)]
        if not errors:
            return lines[-1]
        last = next((line for line in reversed(errors) if "fatal" in line), errors[-1])
        return " ... ".join(dict.fromkeys((errors[0], last)))

    def start(self, names: Sequence[str], *, env: Mapping[str, str]) -> None:
        """Start those of *names* that do not run, without waiting for them.

        Raises:
            ConfigError: Another program has taken a port.
        """
        missing = tuple(name for name in names if self.alive(name) is None)
        if not missing:
            return
        self._end_strays(missing)
        for name in missing:
            if name == MUNGED:
                # A killed munged leaves it behind.
                self.layout.munge_socket.unlink(missing_ok=True)
            elif name == MYSQLD:
                self.layout.database_socket.unlink(missing_ok=True)
            else:
                manifest.check_free(range(self.port(name), self.port(name) + 1))
        for name in missing:
            process_control.spawn(
                name,
                self._argv(name),
                env={**env, "MYSQL_UNIX_PORT": str(self.layout.database_socket)}
                if name == SLURMDBD
                else env,
                output=self.output(name),
                record=self._record(name),
            )

    def _end_strays(self, names: Sequence[str]) -> None:
        """End daemons of ours whose starter died before it wrote their record.

        Job steps are left alone: the new slurmd finds them again.
        """
        holders = process_control.daemons_holding([self.output(name) for name in names])
        process_control.end(
            (holder for holder in holders if not holder.name.startswith("slurmstepd")),
            term_s=TERM_S,
        )

    def _argv(self, name: str) -> list[str]:
        if name == MUNGED:
            munge = self.layout.munge
            return [
                layouts.program("munged"),
                "--foreground",
                f"--socket={self.layout.munge_socket}",
                f"--key-file={self.layout.munge_key}",
                f"--pid-file={munge}/munged.pid",
                f"--seed-file={munge}/munged.seed",
            ]
        if name == MYSQLD:
            return accounting_database.server_argv(self.layout)
        if name in {SLURMCTLD, SLURMDBD}:
            return [layouts.program(name), "-D"]
        return [layouts.program("slurmd"), "-D", "-N", name.removeprefix(SLURMD)]

    def _record(self, name: str) -> Path:
        return self.layout.run / f"{name}.json"
