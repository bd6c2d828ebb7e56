"""What goes wrong: each fault is a context in which something is broken, and mended at its end.

A fault notes its begin before it breaks anything and its end after all is mended, so that a
reader of the events knows what can have been caused by it.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_dl.model.errors import ClusterError
from slurm_dl.sandbox import process_control
from slurm_dl.sandbox.process_control import DeadlinePassedError, eventually
from tools.chaos import schedd as schedds
from tools.chaos.site import Site

_SAVED_WITHIN_S: Final = 12.0
_TAKE_OVER_S: Final = 4.0
_DLCTL: Final = Path(sys.executable).with_name("dlctl")
_BAD_CONFIGS: Final = (
    "manage: {partitions: [gpu]\n",
    "manage: {partitions: [gpu]}\npolicy: {order: no_such_policy}\n",
    "manage: {partitions: [gpu]}\npreemption: {min_quantum_s: -5}\n",
    "manage: {partitions: [gpu]}\npreemption: {min_quantum: 0}\n",
    "manage: {partitions: []}\n",
    "\0\1\2",
    "",
)
_JUMPS_S: Final = (-3600.0, -60.0, -4.0, 4.0, 60.0, 3600.0)

Fault = Callable[[Site, random.Random], AbstractContextManager[None]]


@contextlib.contextmanager
def _noted(site: Site, name: str, **detail: object) -> Iterator[dict[str, object]]:
    """The events around a fault; what is put into the mapping is told with its end."""
    site.event("fault", fault=name, phase="begin", detail=detail)
    found: dict[str, object] = {}
    try:
        yield found
    finally:
        site.event("fault", fault=name, phase="end", detail={**detail, **found})


@contextlib.contextmanager
def schedd_kill(site: Site, _: random.Random) -> Iterator[None]:
    """The daemon is killed, and started again at the end."""
    with _noted(site, "schedd_kill"):
        site.schedd.kill()
        try:
            yield
        finally:
            site.schedd.start()


@contextlib.contextmanager
def schedd_stop(site: Site, _: random.Random) -> Iterator[None]:
    """The daemon stands still, and goes on at the end with what it believed then."""
    with _noted(site, "schedd_stop"):
        site.schedd.send(signal.SIGSTOP)
        try:
            yield
        finally:
            site.schedd.send(signal.SIGCONT)


@contextlib.contextmanager
def slurmctld_kill(site: Site, _: random.Random) -> Iterator[None]:
    """The controller is killed just after it has saved its state."""
    with _noted(site, "slurmctld_kill"), site.quiet:
        _until_saved(site)
        with _away(site, "slurmctld", killed=True):
            yield


@contextlib.contextmanager
def slurmctld_restart(site: Site, _: random.Random) -> Iterator[None]:
    """The controller is stopped as for an upgrade."""
    with _noted(site, "slurmctld_restart"), site.quiet, _away(site, "slurmctld"):
        yield


@contextlib.contextmanager
def slurmd_kill(site: Site, rng: random.Random) -> Iterator[None]:
    """A slurmd dies alone: its jobs go on, and the next one finds them."""
    node = rng.choice(site.box.spec.node_names)
    with _noted(site, "slurmd_kill", node=node), _away(site, f"slurmd-{node}", killed=True):
        yield


@contextlib.contextmanager
def node_loss(site: Site, rng: random.Random) -> Iterator[None]:
    """A node loses its power: everything on it is gone at once, and Slurm is told."""
    node = rng.choice(site.box.spec.node_names)
    with _noted(site, "node_loss", node=node):
        # Before slurmctld knows: it may tell a job to end that is gone already.
        _cut_power(site, node)
        try:
            _node_is(site, node, "DOWN")
            yield
        finally:
            _start_node(site, node)


@contextlib.contextmanager
def munge_stop(site: Site, _: random.Random) -> Iterator[None]:
    """Nobody can prove who he is: every call between Slurm's parts fails."""
    with _noted(site, "munge_stop"), _away(site, "munged"):
        yield


@contextlib.contextmanager
def slurmdbd_stop(site: Site, rng: random.Random) -> Iterator[None]:
    """Accounting is away, in an orderly way or not; slurmctld remembers what it has to tell."""
    kills = rng.random() < 0.5  # noqa: PLR2004 - half of them
    with _noted(site, "slurmdbd_stop", killed=kills), _away(site, "slurmdbd", killed=kills):
        yield


@contextlib.contextmanager
def ledger_full(site: Site, _: random.Random) -> Iterator[None]:
    """The disk with ledger and audit log has no byte left."""
    with _noted(site, "ledger_full"), site.full_disk():
        yield


@contextlib.contextmanager
def clock_jump(site: Site, rng: random.Random) -> Iterator[None]:
    """The clock of dlschedd's host is wrong, by seconds or by an hour, either way."""
    jump_s = rng.choice(_JUMPS_S)
    new = site.schedd.skew.with_suffix(".new")

    def jump(seconds: float) -> None:
        new.write_text(f"{seconds:g}", encoding="ascii")
        new.replace(site.schedd.skew)

    with _noted(site, "clock_jump", jump_s=jump_s):
        jump(jump_s)
        try:
            yield
        finally:
            jump(0.0)


@contextlib.contextmanager
def bad_config(site: Site, rng: random.Random) -> Iterator[None]:
    """The configuration is read again while it is wrong, and again when it is right."""
    text = rng.choice(_BAD_CONFIGS)
    with _noted(site, "bad_config", text=text):
        site.schedd.configure(text)
        site.schedd.reload()
        try:
            yield
        finally:
            site.schedd.configure(site.schedd.good_config)
            site.schedd.reload()


@contextlib.contextmanager
def two_daemons(site: Site, _: random.Random) -> Iterator[None]:
    """A second daemon is started on the same state: it refuses or stands by, and is ended."""
    with _noted(site, "two_daemons") as found:
        second = site.schedd.spawn()
        try:
            yield
        finally:
            refused = second.poll() is not None
            found["second"] = f"refused: {second.returncode}" if refused else "stood by"
            if not refused:
                schedds.end(second)


@contextlib.contextmanager
def takeover(site: Site, _: random.Random) -> Iterator[None]:
    """The daemon is killed while a second one is there, which may take over."""
    with _noted(site, "takeover") as found:
        second = site.schedd.spawn()
        try:
            yield
        finally:
            site.schedd.kill()
            try:
                second.wait(_TAKE_OVER_S)
            except subprocess.TimeoutExpired:
                site.schedd.adopt(second)
                found["second"] = "took over"
            else:
                found["second"] = f"refused: {second.returncode}"
                site.schedd.start()


@contextlib.contextmanager
def size_ignored(site: Site, _: random.Random) -> Iterator[None]:
    """Slurm says of each change of a job's size that all is well, and makes none."""
    flag = site.schedd.deafness
    with _noted(site, "size_ignored") as found:
        flag.touch()
        try:
            yield
        finally:
            found["ignored"] = len(flag.read_text(encoding="utf-8").splitlines())
            flag.unlink()


@contextlib.contextmanager
def release_all(site: Site, _: random.Random) -> Iterator[None]:
    """The daemon is ended and the cluster given back to plain Slurm, until the daemon is back."""
    with _noted(site, "release_all") as found, site.quiet:
        site.schedd.stop()
        before = _waiting(site)
        argv = [str(_DLCTL), "release-all", "--yes", "--config", str(site.schedd.config)]
        done = site.box.run(argv, 60.0, check=False)
        if done.returncode:
            # A job may start or end meanwhile: it asks to be run again then.
            found["first"] = f"{done.stdout}{done.stderr}"[-600:]
            done = site.box.run(argv, 60.0, check=False)
        after = _waiting(site)
        # One that has run meanwhile waits in the size of that run.
        found["sizes"] = {j: w[1] for j, w in after.items() if before.get(j, ("",))[0] == w[0]}
        found["changed"] = sum(before[j] != after[j] for j in before.keys() & after.keys())
        found["error"] = done.stderr[-300:] if done.returncode else ""
        try:
            yield
        finally:
            site.schedd.start()


def _waiting(site: Site) -> dict[str, tuple[str, str]]:
    """Restarts and size of each job of ours that waits."""
    columns = "JobID:12,RestartCnt:8,NumNodes:10,tres-per-node:40"
    text = site.box.run(["squeue", "-ahr", "--me", "-t", "PENDING", "-O", columns]).stdout
    words = [line.split() for line in text.splitlines()]
    return {w[0]: (w[1], f"{w[2].partition('-')[0]}x{w[3].rpartition(':')[2]}") for w in words}


@dataclass(frozen=True, slots=True)
class Kind:
    """A fault that can be injected.

    Attributes:
        fault: Makes the context.
        longest_s: It lasts at most this long.
        ours: Whether it hits dlschedd and not Slurm; then it can come during one of Slurm's.
    """

    fault: Fault
    longest_s: float
    ours: bool


KINDS: Final = {
    "schedd_kill": Kind(schedd_kill, 5.0, ours=True),
    "schedd_stop": Kind(schedd_stop, 15.0, ours=True),
    "slurmctld_kill": Kind(slurmctld_kill, 8.0, ours=False),
    "slurmctld_restart": Kind(slurmctld_restart, 5.0, ours=False),
    "slurmd_kill": Kind(slurmd_kill, 8.0, ours=False),
    "node_loss": Kind(node_loss, 6.0, ours=False),
    "munge_stop": Kind(munge_stop, 8.0, ours=False),
    "slurmdbd_stop": Kind(slurmdbd_stop, 15.0, ours=False),
    "ledger_full": Kind(ledger_full, 8.0, ours=True),
    "clock_jump": Kind(clock_jump, 12.0, ours=True),
    "bad_config": Kind(bad_config, 5.0, ours=True),
    "two_daemons": Kind(two_daemons, 8.0, ours=True),
    "takeover": Kind(takeover, 5.0, ours=True),
    "size_ignored": Kind(size_ignored, 15.0, ours=True),
    # Not of ours: it needs a Slurm that answers.
    "release_all": Kind(release_all, 3.0, ours=False),
}


@contextlib.contextmanager
def _away(site: Site, daemon: str, *, killed: bool = False) -> Iterator[None]:
    """One of Slurm's daemons is ended, and started again at the end."""
    end = site.box.kill_daemon if killed else site.box.stop_daemon
    end(daemon)
    try:
        yield
    finally:
        site.box.start_daemon(daemon)


def _until_saved(site: Site) -> None:
    """Wait for slurmctld to save its jobs; it may have nothing new to save."""
    state = site.box.directory / "state" / "job_state"
    began_s = time.time()
    with contextlib.suppress(DeadlinePassedError):
        eventually(
            lambda: state.exists() and state.stat().st_mtime > began_s,
            _SAVED_WITHIN_S,
            0.02,
            what="slurmctld to save its jobs",
        )


def _cut_power(site: Site, node: str) -> None:
    """Kill slurmd, the job steps' daemons and what they started, until nothing is left."""
    logs = site.box.log_directory
    marks = (logs / f"slurmd-{node}.log", logs / f"slurmd-{node}.out")
    while daemons := process_control.daemons_holding(marks):
        # Listed before: who has lost his parent is found no more.
        jobs = process_control.descendants(daemons)
        for process in (*daemons, *jobs):
            process_control.send(process, signal.SIGKILL)
        process_control.wait_gone((*daemons, *jobs), 10.0)


def _node_is(site: Site, node: str, state: str) -> None:
    update = ["scontrol", "update", f"NodeName={node}", f"State={state}"]
    reason = ["Reason=chaos"] if state == "DOWN" else []
    # A controller that is away for a moment is another fault's doing.
    eventually(lambda: site.box.run([*update, *reason]), 60.0, 1.0, what=f"{node} to be {state}")


def _start_node(site: Site, node: str) -> None:
    # Not through start_daemon's wait for service: the node is DOWN until it is resumed.
    with contextlib.suppress(ClusterError):
        _node_is(site, node, "RESUME")
    site.box.start_daemon(f"slurmd-{node}")
    states = {found.name: found.state for found in site.box.status().nodes}
    if states.get(node, "").startswith(("DOWN", "DRAIN")):
        _node_is(site, node, "RESUME")
