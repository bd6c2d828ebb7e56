"""A private Slurm cluster in one directory: start it, look at it, break it, end it.

It runs beside a production Slurm without touching it: own munge key and socket, own ports, own
state. Its daemons outlive the process that called :meth:`Sandbox.up`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.sandbox import accounting_database, config_files, manifest, process_control
from slurm_dl.sandbox import layout as layouts
from slurm_dl.sandbox.daemons import MUNGED, MYSQLD, SLURMCTLD, SLURMD, SLURMDBD, TERM_S, Daemons
from slurm_dl.sandbox.layout import Layout
from slurm_dl.sandbox.manifest import Record
from slurm_dl.sandbox.process_control import DeadlinePassedError, Process, eventually
from slurm_dl.sandbox.spec import SandboxSpec

_NODE_STATE: Final = re.compile(r"^NodeName=(\S+) .*? State=(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """One daemon: its name, and its pid when it was ever started and not stopped since."""

    name: str
    pid: int | None
    alive: bool


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node and its state in scontrol's words."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """Processes that are alive."""

    directory: str  # The sandbox's directory
    cluster: str  # Slurm's name of the cluster
    first_port: int  # slurmctld's port
    answers: bool  # Whether slurmctld answers
    daemons: tuple[DaemonStatus, ...]  # Every daemon the sandbox should have
    nodes: tuple[NodeStatus, ...]  # Empty when slurmctld does not answer

    @property
    def is_up(self) -> bool:
        """Whether every daemon lives and slurmctld answers."""
        return self.answers and all(daemon.alive for daemon in self.daemons)


def node_states(text: str) -> dict[str, str]:
    """Every node's state from ``scontrol -o show nodes``."""
    return dict(_NODE_STATE.findall(text))


def is_in_service(state: str) -> bool:
    """Whether a node's slurmd has registered; a node that was drained by hand counts."""
    return not state.startswith(("UNKNOWN", "DOWN")) and not (
        "*" in state or "NOT_RESPONDING" in state
    )


_HAS_PROCESSES: Final = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
_START_S: Final = 30.0
_SCANCEL_BATCH: Final = 500


class Sandbox:
    """One sandbox; made by :meth:`up` or :meth:`open`."""

    __slots__ = ("_daemons", "_layout", "_record")

    def __init__(self, layout: Layout, fixed: Record) -> None:
        self._layout = layout
        self._record = fixed
        self._daemons = Daemons.of(layout, fixed)

    @classmethod
    def up(
        cls,
        directory: str | os.PathLike[str],
        spec: SandboxSpec | None = None,
        *,
        port: int | None = None,
    ) -> Self:
        """Start the sandbox in *directory*, or what is missing of it.

        Args:
            directory: New, empty or a sandbox's.
            spec: None takes the one that is there, or the default one.
            port: First port of its block; None finds a free block.

        Raises:
            ConfigError: Host, directory, ports or an existing sandbox do not fit.
            ClusterError: A daemon did not come up; calling again goes on from there.
        """
        layout = layouts.resolve(directory)
        layouts.check_host()
        wanted = manifest.load(layout).spec if layout.record.exists() else spec or SandboxSpec()
        if wanted.accounting:
            accounting_database.check_host()
        if not layout.record.exists():
            layouts.check_directory(layout, spec or SandboxSpec())
            layouts.make_directory(layout.directory, 0o755)
        with manifest.locked(layout):
            if layout.record.exists():
                fixed = manifest.load(layout)
                manifest.check_same(layout, fixed, spec, port)
            else:
                fixed = manifest.create(layout, spec or SandboxSpec(), port=port)
            box = cls(layout, fixed)
            box._start_all()
        return box

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Self:
        """The existing sandbox in *directory*, running or not."""
        layout = layouts.resolve(directory)
        return cls(layout, manifest.load(layout))

    @property
    def directory(self) -> Path:
        """Its directory, absolute."""
        return self._layout.directory

    @property
    def spec(self) -> SandboxSpec:
        """What it was made from."""
        return self._record.spec

    @property
    def first_port(self) -> int:
        """The port slurmctld listens on."""
        return self._record.first_port

    @property
    def log_directory(self) -> Path:
        """Where the daemons' logs lie."""
        return self._layout.log

    @property
    def jobs_directory(self) -> Path:
        """A directory every user may write to; :meth:`run` runs commands there."""
        return self._layout.jobs

    @property
    def env(self) -> dict[str, str]:
        """What a command needs in its environment to talk to this cluster."""
        return {"SLURM_CONF": str(self._layout.slurm_conf)}

    @property
    def daemon_names(self) -> tuple[str, ...]:
        """Every daemon the sandbox has, in the order they start."""
        return self._daemons.names

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float = 30.0,
        *,
        check: bool = True,
        user: str | None = None,
        stdin: str = "",
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command against this cluster, in a clean environment.

        Args:
            argv: Program and arguments; no shell sees them.
            timeout_s: The command is killed after that.
            check: Whether an exit status other than 0 is a ClusterError.
            user: Run as this user, with its groups; None for the caller's.
            stdin: What it reads.
            cwd: By default :attr:`jobs_directory`.
            env: Added to the clean environment.
        """
        return process_control.run(
            argv,
            timeout_s,
            check=check,
            user=user,
            stdin=stdin,
            cwd=cwd or self.jobs_directory,
            env={**self.env, **(env or {})},
        )

    def status(self) -> SandboxStatus:
        """Which daemons live, whether slurmctld answers, and the nodes' states."""
        states: dict[str, str] = {}
        answers = False
        # Slurm's commands try a dead controller for seconds, and a dead munged for longer.
        if self._daemons.alive(MUNGED) is not None and self._daemons.listens(SLURMCTLD):
            try:
                states = self._node_states()
                answers = True
            except ClusterError:
                answers = False
        return SandboxStatus(
            directory=str(self.directory),
            cluster=self._record.cluster,
            first_port=self.first_port,
            answers=answers,
            daemons=tuple(
                DaemonStatus(
                    name,
                    process.pid if process is not None else None,
                    process is not None and process_control.is_alive(process),
                )
                for name in self.daemon_names
                for process in (self._daemons.recorded(name),)
            ),
            nodes=tuple(NodeStatus(name, state) for name, state in states.items()),
        )

    def pid(self, name: str) -> int:
        """Process id of a running daemon."""
        return self._alive(name).pid

    def start_daemon(self, name: str) -> None:
        """Start one daemon, if it does not run, and wait until it is in service."""
        self._daemons.check_name(name)
        with manifest.locked(self._layout):
            self._start((name,))

    def stop_daemon(self, name: str) -> None:
        """End one daemon as a service manager would, and wait until it is gone."""
        process = self._alive(name)
        with manifest.locked(self._layout):
            process_control.end((process,), term_s=TERM_S)
            self._daemons.forget(name)

    def kill_daemon(self, name: str, signum: signal.Signals = signal.SIGKILL) -> None:
        """Send one daemon a signal; after SIGKILL, wait until it is gone."""
        process = self._alive(name)
        process_control.send(process, signum)
        if signum == signal.SIGKILL:
            process_control.wait_gone((process,), 10.0)

    def down(self, *, remove: bool = False) -> tuple[Process, ...]:
        """End every process of the sandbox and no other one; the ones that were ended.

        Jobs that run are cancelled, jobs that wait stay in the queue for the next ``up``.

        Args:
            remove: Delete the directory too, with the queue and the jobs' output.
        """
        if os.geteuid() != 0:
            message = "ending a sandbox needs root: run the same with sudo"
            raise ConfigError(message)
        with manifest.locked(self._layout):
            self._end_jobs(at_once=remove)
            ended = self._end_daemons()
            if remove:
                shutil.rmtree(self.directory)
        return ended

    def _alive(self, name: str) -> Process:
        self._daemons.check_name(name)
        process = self._daemons.alive(name)
        if process is None:
            message = f"{name} of the sandbox in {self.directory} does not run"
            raise ClusterError(message)
        return process

    # Starting

    def _start_all(self) -> None:
        layouts.make_tree(self._layout, self.spec)
        # Files that are there stay: the admin may have changed them, as on any cluster.
        for path, text in config_files.files(
            self.spec,
            self._layout,
            cluster=self._record.cluster,
            first_port=self.first_port,
            release=layouts.slurmd_release(),
            only_loopback=layouts.has_only_loopback(),
        ):
            if not path.exists():
                layouts.write_file(path, text)
        self._start((MUNGED,))
        if self.spec.accounting:
            self._start_accounting()
        self._start((SLURMCTLD,))
        self._start(self._daemons.slurmds)

    def _start_accounting(self) -> None:
        accounting_database.prepare(self._layout)
        path = self._layout.slurmdbd_conf
        if not path.exists():
            text = accounting_database.slurmdbd_conf(
                self._layout,
                port=self._daemons.port(SLURMDBD),
                only_loopback=layouts.has_only_loopback(),
            )
            layouts.write_file(path, text, 0o600)
        self._start((MYSQLD,))
        self._start((SLURMDBD,))
        accounting_database.register(self._record.cluster, self.run)

    def _start(self, names: Sequence[str]) -> None:
        """Start *names*, all of one kind, and wait until they serve."""
        env = {"PATH": process_control.PATH, "LANG": "C.UTF-8", **self.env}
        self._daemons.start(names, env=env)
        within_s = _START_S + len(names)

        def settled() -> bool:
            return bool(self._ended(names)) or not self._out_of_service(names)

        try:
            eventually(settled, within_s, 0.1, what="the daemons")
        except DeadlinePassedError as err:
            late = (*self._out_of_service(names), *names)[0]
            words = self._daemons.why_out_of_service(late)
            message = (
                f"{late} is not in service after {within_s:g} s: {words}"
                f" (log: {self._daemons.output(late)}); 'up' again goes on, 'down' ends it"
            )
            raise ClusterError(message) from err
        for name in self._ended(names):
            words = self._daemons.why_out_of_service(name)
            message = f"{name} ended at its start: {words} (log: {self._daemons.output(name)})"
            raise ClusterError(message)

    def _ended(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if self._daemons.alive(name) is None)

    def _out_of_service(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of *names*, all of one kind, that do not serve yet."""
        silent = tuple(name for name in names if not self._daemons.listens(name))
        if silent or names[:1] in {(), (MUNGED,), (MYSQLD,)}:
            return silent
        if names[0] == SLURMDBD:
            return () if accounting_database.slurmdbd_answers(self.run) else tuple(names)
        try:
            states = self._node_states()
        except ClusterError:
            return tuple(names)
        if names[0] == SLURMCTLD:
            return ()
        return tuple(
            name
            for name in names
            if not is_in_service(states.get(name.removeprefix(SLURMD), "UNKNOWN"))
        )

    def _node_states(self) -> dict[str, str]:
        """Every node's state; asked of scontrol, as sinfo leaves out nodes without a partition."""
        return node_states(self.run(["scontrol", "-o", "show", "nodes"]).stdout)

    # Ending

    def _end_jobs(self, *, at_once: bool) -> None:
        """Cancel what runs, and let nothing start in its place."""
        if self._ended((MUNGED, SLURMCTLD)) or not self._daemons.listens(SLURMCTLD):
            return
        try:
            for partition in self.run(["sinfo", "-ah", "-o", "%R"]).stdout.split():
                # Not saved: slurmctld takes the partitions' state from slurm.conf when it starts.
                self.run(["scontrol", "update", f"PartitionName={partition}", "State=DOWN"])
            jobs = self._jobs_with_processes()
            how = ["--signal=KILL"] if at_once else []
            for start in range(0, len(jobs), _SCANCEL_BATCH):
                batch = jobs[start : start + _SCANCEL_BATCH]
                # A job that ended meanwhile makes scancel complain.
                self.run(["scancel", "--quiet", *how, *batch], check=False)
            # A node without slurmd never says that its job has ended.
            patience_s = 1.0 if self._ended(self.daemon_names) else 15.0
            eventually(
                lambda: not self._jobs_with_processes(),
                self.spec.kill_wait_s + patience_s,
                what="jobs to end",
            )
        except ClusterError:
            # A controller that does not answer, a node that is gone: _end_daemons ends the rest.
            return

    def _jobs_with_processes(self) -> list[str]:
        argv = ["squeue", "-ah", "-t", _HAS_PROCESSES, "-o", "%A"]
        return sorted(set(self.run(argv).stdout.split()), key=int)

    def _end_daemons(self) -> tuple[Process, ...]:
        alive = [process for name in self.daemon_names if (process := self._daemons.alive(name))]
        mungeds = tuple(process for process in alive if process.name == MUNGED)
        ended: list[Process] = []
        # The controller first: it must not see its nodes go. munged last: they all need it.
        for name in (SLURMCTLD, SLURMD, SLURMDBD, MYSQLD):
            chosen = (process for process in alive if process.name.startswith(name))
            ended += process_control.end(chosen, term_s=TERM_S)
        ended += self._end_rest(except_for=mungeds)
        ended += process_control.end(mungeds, term_s=TERM_S)
        ended += self._end_rest()
        for name in self.daemon_names:
            self._daemons.forget(name)
        return tuple(ended)

    def _end_rest(self, *, except_for: Iterable[Process] = ()) -> tuple[Process, ...]:
        """End job steps that are left, with their jobs' processes, and unrecorded daemons."""
        spared = {process.pid for process in except_for}
        rest = tuple(
            process
            for process in process_control.daemons_holding((self._layout.log, self._layout.munge))
            if process.pid not in spared
        )
        # A slurmstepd never gives up telling a dead slurmctld that its job has ended (22.05.8).
        ended = process_control.end(process_control.descendants(rest), term_s=1.0)
        return ended + process_control.end(rest, term_s=2.0)
