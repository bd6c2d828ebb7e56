"""A private Slurm cluster in one directory: start it, look at it, break it, end it.

It runs beside a production Slurm without touching it: own munge key and socket, own ports, own
state. Its daemons outlive the process that called :meth:`Sandbox.up`.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.sandbox import layout as layouts
from slurm_dl.sandbox import ports, processes, record, slurm_conf
from slurm_dl.sandbox.layout import Layout
from slurm_dl.sandbox.processes import Process
from slurm_dl.sandbox.record import Record
from slurm_dl.sandbox.spec import SandboxSpec
from slurm_dl.sandbox.wait import DeadlinePassedError, eventually

_MUNGED: Final = "munged"
_SLURMCTLD: Final = "slurmctld"
_SLURMD: Final = "slurmd-"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NODE_STATE: Final = re.compile(r"^NodeName=(\S+) .*? State=(\S+)", re.MULTILINE)
_HAS_PROCESSES: Final = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
_ENDED_AT_START_S: Final = 30.0
# slurmctld writes its state when it is told to end.
_TERM_S: Final = 30.0
_SCANCEL_BATCH: Final = 500


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
    """What is alive.

    Attributes:
        directory: The sandbox's directory.
        cluster: Slurm's name of the cluster.
        first_port: slurmctld's port.
        answers: Whether slurmctld answers.
        daemons: Every daemon the sandbox should have.
        nodes: Empty when slurmctld does not answer.
    """

    directory: str
    cluster: str
    first_port: int
    answers: bool
    daemons: tuple[DaemonStatus, ...]
    nodes: tuple[NodeStatus, ...]

    @property
    def is_up(self) -> bool:
        """Whether every daemon lives and slurmctld answers."""
        return self.answers and all(daemon.alive for daemon in self.daemons)


class Sandbox:
    """One sandbox; made by :meth:`up` or :meth:`open`."""

    __slots__ = ("_layout", "_record")

    def __init__(self, layout: Layout, fixed: Record) -> None:
        self._layout = layout
        self._record = fixed

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
        if not layout.record.exists():
            layouts.check_directory(layout, spec or SandboxSpec())
            layouts.make_directory(layout.directory, 0o755)
        layouts.check_reachable(layout.directory)
        with record.locked(layout):
            if layout.record.exists():
                fixed = record.load(layout)
                record.check_same(layout, fixed, spec, port)
            else:
                fixed = record.create(layout, spec or SandboxSpec(), port=port)
            box = cls(layout, fixed)
            box._start_all()
        return box

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Self:
        """The existing sandbox in *directory*, running or not."""
        layout = layouts.resolve(directory)
        return cls(layout, record.load(layout))

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
        slurmds = self.spec.node_names if self.spec.start_slurmd else ()
        return (_MUNGED, _SLURMCTLD, *(f"{_SLURMD}{node}" for node in slurmds))

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
        account = pwd.getpwnam(user) if user is not None else pwd.getpwuid(os.geteuid())
        clean = {
            "PATH": _PATH,
            "LANG": "C.UTF-8",
            "HOME": account.pw_dir,
            "USER": account.pw_name,
            "LOGNAME": account.pw_name,
            # Slurm prints local times; a caller with TZ set expects its own.
            **({"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}),
            **self.env,
            **(env or {}),
        }
        program = argv[0] if "/" in argv[0] else layouts.program(argv[0])
        words = ascii(shlex.join(argv))
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                input=stdin,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                check=False,
                cwd=cwd or self._layout.jobs,
                env=clean,
                user=None if user is None else account.pw_uid,
                group=None if user is None else account.pw_gid,
                extra_groups=(
                    None if user is None else os.getgrouplist(account.pw_name, account.pw_gid)
                ),
            )
        except subprocess.TimeoutExpired as err:
            message = f"{words} did not end within {timeout_s:g} s"
            raise ClusterError(message) from err
        if check and done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            message = f"{words} ended with status {done.returncode}: {said}"
            raise ClusterError(message)
        return done

    def status(self) -> SandboxStatus:
        """Which daemons live, whether slurmctld answers, and the nodes' states."""
        states: dict[str, str] = {}
        answers = False
        # slurmctld's clients try a dead port for seconds.
        if not ports.is_free(self.first_port):
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
                    process is not None and processes.is_alive(process),
                )
                for name in self.daemon_names
                for process in (self._recorded(name),)
            ),
            nodes=tuple(NodeStatus(name, state) for name, state in states.items()),
        )

    def pid(self, name: str) -> int:
        """Process id of a running daemon."""
        return self._alive(name).pid

    def start_daemon(self, name: str) -> None:
        """Start one daemon, if it does not run, and wait until it is in service."""
        self._check_name(name)
        with record.locked(self._layout):
            self._start((name,))
            self._wait_in_service((name,))

    def stop_daemon(self, name: str) -> None:
        """End one daemon as a service manager would, and wait until it is gone."""
        process = self._alive(name)
        with record.locked(self._layout):
            processes.end((process,), term_s=_TERM_S)
            self._process_record(name).unlink(missing_ok=True)

    def kill_daemon(self, name: str, signum: signal.Signals = signal.SIGKILL) -> None:
        """Send one daemon a signal; after SIGKILL, wait until it is gone."""
        process = self._alive(name)
        processes.send(process, signum)
        if signum == signal.SIGKILL:
            processes.wait_gone((process,), 10.0)

    def down(self, *, remove: bool = False) -> tuple[Process, ...]:
        """End every process of the sandbox and no other one; the ones that were ended.

        Jobs that run are cancelled, jobs that wait stay in the queue for the next ``up``.

        Args:
            remove: Delete the directory too, with the queue and the jobs' output.
        """
        if os.geteuid() != 0:
            message = "ending a sandbox needs root: run the same with sudo"
            raise ConfigError(message)
        with record.locked(self._layout):
            self._end_jobs(at_once=remove)
            ended = self._end_daemons()
            if remove:
                shutil.rmtree(self.directory)
        return ended

    # Starting

    def _start_all(self) -> None:
        layouts.make_tree(self._layout, self.spec)
        # Files that are there stay: the admin may have changed them, as on any cluster.
        for path, text in slurm_conf.files(
            self.spec,
            self._layout,
            cluster=self._record.cluster,
            first_port=self.first_port,
        ):
            if not path.exists():
                layouts.write_file(path, text)
        for names in ((_MUNGED,), (_SLURMCTLD,), self.daemon_names[2:]):
            self._start(names)
            self._wait_in_service(names)

    def _start(self, names: Sequence[str]) -> None:
        """Start those of *names* that do not run."""
        missing = tuple(name for name in names if self._recorded_alive(name) is None)
        if not missing:
            return
        self._end_strays(missing)
        for name in missing:
            if name == _MUNGED:
                # A killed munged leaves them behind.
                self._layout.munge_socket.unlink(missing_ok=True)
            else:
                ports.check_free(range(self._port(name), self._port(name) + 1))
        for name in missing:
            processes.spawn(
                name,
                self._argv(name),
                env={"PATH": _PATH, "LANG": "C.UTF-8", **self.env},
                output=self._output(name),
                record=self._process_record(name),
            )

    def _end_strays(self, names: Sequence[str]) -> None:
        """End daemons of ours whose starter died before it wrote their record.

        Job steps are left alone: the new slurmd finds them again.
        """
        holders = processes.daemons_holding([self._output(name) for name in names])
        processes.end(
            (holder for holder in holders if not holder.name.startswith("slurmstepd")),
            term_s=_TERM_S,
        )

    def _argv(self, name: str) -> list[str]:
        munge = self._layout.munge
        match name:
            case "munged":
                return [
                    layouts.program("munged"),
                    "--foreground",
                    f"--socket={self._layout.munge_socket}",
                    f"--key-file={self._layout.munge_key}",
                    f"--pid-file={munge}/munged.pid",
                    f"--seed-file={munge}/munged.seed",
                ]
            case "slurmctld":
                return [layouts.program("slurmctld"), "-D"]
            case _:
                return [layouts.program("slurmd"), "-D", "-N", name.removeprefix(_SLURMD)]

    def _port(self, name: str) -> int:
        """The TCP port a Slurm daemon listens on."""
        return self.first_port + self.daemon_names.index(name) - 1

    def _wait_in_service(self, names: Sequence[str]) -> None:
        """Wait until *names* serve; ClusterError with the daemon's own words if one does not."""
        within_s = _ENDED_AT_START_S + len(names)

        def settled() -> bool:
            return bool(self._first_ended(names)) or not self._out_of_service(names)

        try:
            eventually(settled, within_s, 0.1, what="the daemons")
        except DeadlinePassedError as err:
            late = self._out_of_service(names)[0]
            message = (
                f"{late} is not in service after {within_s:g} s: {self._last_words(late)}"
                f" (log: {self._output(late)}); 'up' again goes on, 'down' ends it"
            )
            raise ClusterError(message) from err
        ended = self._first_ended(names)
        if ended:
            words = self._last_words(ended)
            message = f"{ended} ended at its start: {words} (log: {self._output(ended)})"
            raise ClusterError(message)

    def _first_ended(self, names: Sequence[str]) -> str:
        return next((name for name in names if self._recorded_alive(name) is None), "")

    def _out_of_service(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of *names* that run but do not serve yet."""
        if not names:
            return ()
        if names[0] == _MUNGED:
            return () if self._layout.munge_socket.is_socket() else (_MUNGED,)
        silent = tuple(name for name in names if ports.is_free(self._port(name)))
        if silent:
            return silent
        try:
            states = self._node_states()
        except ClusterError:
            return tuple(names)
        if names[0] == _SLURMCTLD:
            return ()
        return tuple(
            name
            for name in names
            if not _is_in_service(states.get(name.removeprefix(_SLURMD), "UNKNOWN"))
        )

    def _node_states(self) -> dict[str, str]:
        """Every node's state; asked of scontrol, as sinfo leaves out nodes without a partition."""
        text = self.run(["scontrol", "-o", "show", "nodes"]).stdout
        return dict(_NODE_STATE.findall(text))

    # Ending

    def _end_jobs(self, *, at_once: bool) -> None:
        """Cancel what runs, and let nothing start in its place."""
        if ports.is_free(self.first_port) or self._recorded_alive(_SLURMCTLD) is None:
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
            eventually(
                lambda: not self._jobs_with_processes(),
                self.spec.kill_wait_s + 15.0,
                what="jobs to end",
            )
        except ClusterError:
            # A controller that does not answer, a node that is gone: _end_daemons ends the rest.
            return

    def _jobs_with_processes(self) -> list[str]:
        argv = ["squeue", "-ah", "-t", _HAS_PROCESSES, "-o", "%A"]
        return sorted(set(self.run(argv).stdout.split()), key=int)

    def _end_daemons(self) -> tuple[Process, ...]:
        alive = [process for name in self.daemon_names if (process := self._recorded_alive(name))]
        mungeds = tuple(process for process in alive if process.name == _MUNGED)
        ended: list[Process] = []
        # The controller first: it must not see its nodes go. munged last: they all need it.
        for name in (_SLURMCTLD, _SLURMD):
            chosen = (process for process in alive if process.name.startswith(name))
            ended += processes.end(chosen, term_s=_TERM_S)
        ended += self._end_rest(except_for=mungeds)
        ended += processes.end(mungeds, term_s=_TERM_S)
        ended += self._end_rest()
        for name in self.daemon_names:
            self._process_record(name).unlink(missing_ok=True)
        return tuple(ended)

    def _end_rest(self, *, except_for: Iterable[Process] = ()) -> tuple[Process, ...]:
        """End job steps that are left, with their jobs' processes, and unrecorded daemons."""
        spared = {process.pid for process in except_for}
        rest = tuple(
            process
            for process in processes.daemons_holding((self._layout.log, self._layout.munge))
            if process.pid not in spared
        )
        # A slurmstepd never gives up telling a dead slurmctld that its job has ended (22.05.8).
        ended = processes.end(processes.descendants(rest), term_s=1.0)
        return ended + processes.end(rest, term_s=2.0)

    # Records

    def _output(self, name: str) -> Path:
        return self._layout.log / f"{name}.out"

    def _process_record(self, name: str) -> Path:
        return self._layout.run / f"{name}.json"

    def _recorded(self, name: str) -> Process | None:
        return processes.read_record(self._process_record(name))

    def _recorded_alive(self, name: str) -> Process | None:
        process = self._recorded(name)
        return process if process is not None and processes.is_alive(process) else None

    def _alive(self, name: str) -> Process:
        self._check_name(name)
        process = self._recorded_alive(name)
        if process is None:
            message = f"{name} of the sandbox in {self.directory} does not run"
            raise ClusterError(message)
        return process

    def _check_name(self, name: str) -> None:
        if name not in self.daemon_names:
            message = f"the sandbox has no daemon {name!r}, only {', '.join(self.daemon_names[:3])}"
            raise ConfigError(message)

    def _last_words(self, name: str) -> str:
        """The line of a daemon's output that says most about why it does not serve."""
        try:
            text = self._output(name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return "it said nothing"
        lines = text.splitlines()[-200:] or ["it said nothing"]
        for word in ("fatal", "Error:", "error:"):
            for line in reversed(lines):
                if word in line:
                    return line.strip()
        return lines[-1].strip()


def _is_in_service(state: str) -> bool:
    """Whether a node's slurmd has registered; a node that was drained by hand counts."""
    return not state.startswith(("UNKNOWN", "DOWN")) and not (
        "*" in state or "NOT_RESPONDING" in state
    )
