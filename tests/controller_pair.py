"""Two slurmctld of one cluster, primary and backup, on what they take for two hosts.

Each lives in a UTS namespace with a host name of its own and a mount namespace with an /etc/hosts
that knows both. They share a StateSaveLocation and listen on 127.0.0.1 and 127.0.0.2.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from patience import eventually

from slurm_dl.sandbox import Sandbox, SandboxSpec

HOSTS = ("ctla", "ctlb")

_ON_HOST = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


@dataclass
class ControllerPair:
    """The pair; `box` has the rest of the cluster, without nodes."""

    box: Sandbox
    alive: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def on(self, host: str, *command: str) -> list[str]:
        """*command* as it is started on one of the hosts; it keeps the process id."""
        hosts = str(self.box.directory / "hosts")
        return ["unshare", "--uts", "--mount", "sh", "-c", _ON_HOST, "sh", hosts, host, *command]

    def start(self, host: str) -> None:
        """Start its slurmctld, and wait until it answers."""
        conf = self.box.directory / f"{host}.conf"
        with (self.box.log_directory / f"{host}.out").open("ab") as log:
            self.alive[host] = subprocess.Popen(
                self.on(host, "slurmctld", "-D", "-f", str(conf)),
                env={**os.environ, **self.box.env, "SLURM_CONF": str(conf)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        eventually(lambda: f"at {host} is UP" in self.ping(), 30.0, what=f"slurmctld of {host}")

    def kill(self, host: str) -> None:
        """End its slurmctld as a host that goes down does."""
        process = self.alive.pop(host)
        process.kill()
        process.wait(20)

    def ping(self) -> str:
        """What ``scontrol ping`` prints."""
        return self.box.run(["scontrol", "ping"], check=False).stdout


@contextmanager
def controller_pair(directory: Path) -> Iterator[ControllerPair]:
    """A cluster with two controllers, both up, the first one acting."""
    box = Sandbox.up(directory / "c", SandboxSpec(start_slurmd=False))
    pair = ControllerPair(box)
    try:
        box.stop_daemon("slurmctld")
        _configure(box)
        for host in HOSTS:
            pair.start(host)
        yield pair
    finally:
        for host in tuple(pair.alive):
            pair.kill(host)
        box.down(remove=True)


def _configure(box: Sandbox) -> None:
    (box.directory / "hosts").write_text("127.0.0.1 localhost ctla\n127.0.0.2 ctlb\n", "utf-8")
    common = Path(box.env["SLURM_CONF"])
    own = ("SlurmctldHost=", "SlurmctldPidFile=", "SlurmctldLogFile=")
    lines = [
        "SlurmctldHost=ctla(127.0.0.1)",
        "SlurmctldHost=ctlb(127.0.0.2)",
        # Each listens on its own address, or the second one finds the port taken.
        "CommunicationParameters=NoCtldInAddrAny",
        "SlurmctldTimeout=10",
        *(line for line in common.read_text("utf-8").splitlines() if not line.startswith(own)),
    ]
    for host, path in [("ctl", common), *((h, box.directory / f"{h}.conf") for h in HOSTS)]:
        # A controller ends the process that the other's pid file names, if it is its own, too.
        files = [
            f"SlurmctldPidFile={box.directory}/run/{host}.pid",
            f"SlurmctldLogFile={box.log_directory}/{host}.log",
        ]
        path.write_text("\n".join([*lines, *files]) + "\n", "utf-8")
