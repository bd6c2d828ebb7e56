"""dlschedd as a real process, in a place where it can be killed, stopped, doubled and misled."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from slurm_dl.client_config import SOCKET_NAME
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.json_types import JsonObject
from slurm_dl.sandbox.process_control import DeadlinePassedError, eventually

SKEWED: Final = Path(__file__).with_name("skewed.py")
MIN_QUANTUM_S: Final = 5
_END_S: Final = 20.0
_ANSWERS_S: Final = 10.0

FAST: Final[Mapping[str, Mapping[str, object]]] = {
    "manage": {"partitions": ["gpu"]},
    "daemon": {"poll_s": 1, "fast_poll_s": 0.5, "nodes_every_s": 10, "shadow": False},
    "policy": {"order": "discrete_las", "parameters": {"thresholds_gpu_s": [40, 5000]}},
    "preemption": {
        "min_quantum_s": MIN_QUANTUM_S,
        "cooldown_s": 5,
        "max_preemptions": 4,
        "max_grace_s": 20,
        "limit_reserve_s": 0,
        "start_margin_s": 20,
        "handover_timeout_s": 60,
        "max_handovers": 6,
        "checkpoint_cost_s": 3,
    },
    "resizing": {"steadiness": 0.1, "cooldown_s": 5, "max_per_day": 4},
    "breakers": {"cluster_share": 0, "failed_share": 0},
    "writes": {"rate_per_s": 100, "burst": 200},
}
"""A daemon in a hurry: seconds where a site has minutes."""


_DEAFNESS: Final = "scontrol_is_deaf"
_DEAF_SCONTROL: Final = """#!/bin/sh
case "$*" in *NumNodes=*) [ -e {flag} ] && echo "$*" >>{flag} && exit 0 ;; esac
exec {scontrol} "$@"
"""


def wrapped_tools(directory: Path) -> Path:
    """Slurm's tools in a directory of their own, scontrol as one that can be made deaf."""
    bin_dir = directory / "bin"
    bin_dir.mkdir()
    scontrol = Path(shutil.which("scontrol") or "/usr/bin/scontrol")
    for tool in scontrol.parent.glob("s*"):
        if tool.name != "scontrol":
            (bin_dir / tool.name).symlink_to(tool)
    own = bin_dir / "scontrol"
    script = _DEAF_SCONTROL.format(flag=directory / _DEAFNESS, scontrol=scontrol)
    own.write_text(script, encoding="ascii")
    own.chmod(0o755)
    return bin_dir


class Schedd:
    """The daemon under test: one process at a time, several over a campaign.

    Attributes:
        config: Its configuration file.
        state: Its state directory.
        skew: File with the seconds by which its clock is wrong.
        log: What all of its processes print.
        deafness: While this file is there, scontrol changes no job's size and says that it did; it
            has a line for each such time.
        starts: How many processes there were.
        deaths: How those ended that nobody had told to.
    """

    def __init__(self, directory: Path, slurm_conf: str) -> None:
        self.config = directory / "slurm_dl.yaml"
        self.state = directory / "state"
        self.skew = directory / "skew"
        self.log = directory / "dlschedd.log"
        self.deafness = directory / _DEAFNESS
        self.starts = 0
        self.deaths: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        run = directory / "run"
        run.mkdir()
        self._client = Client(run / SOCKET_NAME, timeout_s=10)
        tree = {
            **FAST,
            "cluster": {"slurm_conf": slurm_conf, "bin_dir": str(wrapped_tools(directory))},
            "paths": {
                "state_dir": str(self.state),
                "run_dir": str(run),
                "audit_log": str(self.state / "audit.jsonl"),
            },
        }
        self.good_config = yaml.safe_dump(tree, sort_keys=False)
        self.configure(self.good_config)

    def configure(self, text: str) -> None:
        """Replace the configuration file as a whole."""
        new = self.config.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.chmod(0o600)
        new.replace(self.config)

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start one more process on the same configuration, without waiting for anything."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, str(SKEWED), str(self.skew)),
                    *("--config", str(self.config), "--live", "--allow-root"),
                ],
                env={k: v for k, v in os.environ.items() if not k.startswith("SLURM")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C at the terminal is the campaign's to answer, in its own order.
                start_new_session=True,
            )

    def start(self) -> None:
        """Start the daemon, unless there is one."""
        if self._process is None:
            self._process = self.spawn()
            self.starts += 1

    def adopt(self, process: subprocess.Popen[bytes]) -> None:
        """Let *process*, one of `spawn`, be the daemon from now on."""
        self._process = process
        self.starts += 1

    def send(self, number: signal.Signals) -> None:
        """Send the daemon a signal, if there is one."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def reload(self) -> None:
        """Let the daemon read its configuration again, also while it starts."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(DeadlinePassedError):
            # Python itself takes a moment to come to our first line.
            eventually(lambda: _minds_hangup(process.pid), _ANSWERS_S, what="dlschedd to begin")
            self.send(signal.SIGHUP)

    def kill(self) -> None:
        """End the daemon without giving it a chance."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.kill()
            process.wait(_END_S)
        elif process is not None:
            self._note_death(process)

    def stop(self) -> None:
        """End the daemon as a service manager would."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is not None:
            self._note_death(process)
            return
        end(process)

    def revive(self) -> None:
        """Note it if the daemon has ended by itself, and start another one."""
        if self._process is not None and self._process.poll() is not None:
            self._note_death(self._process)
            self._process = None
        self.start()

    def status(self) -> JsonObject | None:
        """What the daemon says of itself; None if it says nothing."""
        with contextlib.suppress(DaemonError):
            return self._client.ask("status")
        return None

    def wait_acting(self, within_s: float) -> None:
        """Wait until the daemon acts; one that has ended meanwhile is noted and replaced.

        Raises:
            ClusterError: It does not come to that in time.
        """

        def acts() -> bool:
            self.revive()
            answer = self.status()
            return answer is not None and answer.get("doing") == "acting"

        eventually(acts, within_s, 0.5, what=f"dlschedd to act (its log: {self.log})")

    def bugs(self) -> int:
        """Tracebacks in the log: each is a defect, whatever the checker says."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace").count("Traceback (most")
        except FileNotFoundError:
            return 0

    def _note_death(self, process: subprocess.Popen[bytes]) -> None:
        last = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
        self.deaths.append(f"status {process.returncode}: {''.join(last)[:300]}")


def end(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, SIGKILL for one that does not follow; its exit status."""
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(_END_S)


def _minds_hangup(pid: int) -> bool:
    """Whether a process ignores or handles SIGHUP; also true of one that is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except OSError:
        return True
    masks = re.findall(r"^Sig(?:Ign|Cgt):\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) & 1 << signal.SIGHUP - 1 for mask in masks)
