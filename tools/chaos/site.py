"""The campaign's own place: one directory, a private Slurm in it, the daemon and its small disk.

Whatever is started or mounted here is ended here. The files that the checker reads lie directly
in the directory: submitted.jsonl, events.jsonl, out/, slurm_dl.yaml and state/.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.sandbox import LIVELY_SCHEDULER, Sandbox, SandboxNodes, SandboxSpec
from tools.chaos.schedd import Schedd
from tools.chaos.workload import NODE_GPUS

KILL_WAIT_S: Final = 2
_DISK_MIB: Final = 128
_DISK_FULL: Final = "full"


def spec(nodes: int) -> SandboxSpec:
    """A cluster of *nodes* that requeues and decides within seconds, with accounting."""
    return SandboxSpec(
        groups=(SandboxNodes(nodes=nodes, gpus=NODE_GPUS, cpus=64),),
        nodes_per_leaf=0,
        # The least that Slurm takes; it falls back to its default of 120 s below.
        cred_expire_s=5,
        kill_wait_s=KILL_WAIT_S,
        scheduler_parameters=f"{LIVELY_SCHEDULER},bf_resolution=1",
        slurm_conf_extra=("MinJobAge=300",),
        accounting=True,
    )


class Site:
    """Directory, cluster, daemon, and the two logs of what was done.

    Attributes:
        directory: Everything the campaign makes lies below it.
        box: The private Slurm.
        schedd: The daemon under test.
        quiet: Held by whoever must not be disturbed by submissions and cancellations.
    """

    box: Sandbox
    schedd: Schedd

    def __init__(self, directory: Path | None) -> None:
        """Make the directory, or take an empty one.

        Raises:
            ConfigError: There is something in *directory*.
        """
        if directory is None:
            # /tmp: the path of a slurmd's socket may have 107 bytes.
            directory = Path(tempfile.mkdtemp(prefix=f"slurm_dl-chaos-{os.getpid()}-", dir="/tmp"))
        self.directory = directory.resolve()
        self.directory.mkdir(exist_ok=True, parents=True)
        if any(self.directory.iterdir()):
            message = f"{self.directory} is not empty: name a new directory"
            raise ConfigError(message)
        self.directory.chmod(0o755)
        self.quiet = threading.Lock()
        self._writing = threading.Lock()

    def start(self, nodes: int) -> None:
        """Bring cluster and daemon up.

        Raises:
            ConfigError: Not root, packages are missing, or nothing can be mounted here.
            ClusterError: A daemon did not come up.
        """
        for name in ("out", "work", "runs"):
            (self.directory / name).mkdir()
            (self.directory / name).chmod(0o1777)
        self.box = Sandbox.up(self.directory / "slurm", spec(nodes))
        state = self.directory / "state"
        state.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m,mode=0755", "tmpfs", str(state))
        self.schedd = Schedd(self.directory, self.box.env["SLURM_CONF"])
        self.schedd.start()
        self.schedd.wait_acting(60.0)

    def submitted(self, **fields: object) -> None:
        """Note one submission."""
        self._append("submitted.jsonl", {**fields, "t": time.time()})

    def event(self, event: str, **fields: object) -> None:
        """Note one fault or one action of a user."""
        self._append("events.jsonl", {"t": time.time(), "event": event, **fields})

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """The disk of the daemon's state has no byte left."""
        path = self.directory / "state" / _DISK_FULL
        block = b"\0" * 65536
        try:
            with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(block):
                    pass
            yield
        finally:
            path.unlink(missing_ok=True)

    def close(self, *, keep: bool) -> None:
        """End what runs; remove the directory unless it is to be kept."""
        with contextlib.suppress(AttributeError):
            self.schedd.stop()
        slurm = self.directory / "slurm"
        try:
            if (slurm / "sandbox.json").exists():
                Sandbox.open(slurm).down(remove=not keep)
        finally:
            self._unmount(keep=keep)
            if not keep:
                shutil.rmtree(self.directory, ignore_errors=True)

    def _unmount(self, *, keep: bool) -> None:
        state = self.directory / "state"
        if not state.is_mount():
            return
        saved = self.directory / "state.saved"
        if keep:
            shutil.copytree(state, saved)
        _run("umount", str(state))
        if keep:
            state.rmdir()
            saved.rename(state)

    def _append(self, name: str, line: dict[str, object]) -> None:
        with self._writing, (self.directory / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _run(*argv: str) -> None:
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30)
    except subprocess.CalledProcessError as err:
        message = f"{' '.join(argv)}: {err.stderr.strip()}"
        raise ConfigError(message) from err
    except (OSError, subprocess.TimeoutExpired) as err:
        message = f"{' '.join(argv)}: {err}"
        raise ClusterError(message) from err
