"""Runs one Slurm command and gives back its output, or says in one line why there is none.

Everything the project asks of Slurm's tools goes through here: an argv list and never a shell, a
tool path resolved once, an environment of our own making, a deadline, and a count of the calls.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from slurm_dl.model.errors import ClusterError, ConfigError

TOOLS = ("squeue", "sinfo", "scontrol", "scancel", "sprio")
_LONGEST_WORDS = 300

# C0 and C1 controls move a terminal's cursor; bidi marks and line separators forge lines.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """*text* on one line, with everything that could act on a terminal written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda m: m.group().encode("unicode_escape").decode("ascii"), text)


class Slurm:
    """Slurm's command-line tools, bound to one cluster.

    Attributes:
        calls: How often each tool was run.
    """

    def __init__(
        self,
        *,
        slurm_conf: Path | None = None,
        bin_dir: Path | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Resolve the tools.

        Args:
            slurm_conf: Path of slurm.conf; None leaves it to Slurm's built-in place.
            bin_dir: Where the tools are; None searches PATH.
            timeout_s: Longest wait for one command, seconds; above 0.

        Raises:
            ConfigError: A tool is missing.
        """
        if not timeout_s > 0:
            msg = f"timeout_s must be above 0 (got {timeout_s})"
            raise ValueError(msg)
        self.calls: Counter[str] = Counter()
        self._timeout_s = timeout_s
        path = os.environ.get("PATH", os.defpath) if bin_dir is None else str(bin_dir)
        self._tools = {tool: _resolve(tool, path) for tool in TOOLS}
        # Nothing is inherited: SQUEUE_FORMAT, SLURM_CLUSTERS, SCONTROL_ALL and their like change
        # what the tools print. A bit-string length of 0 prints array specs in full.
        self._env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C",
            "TZ": "UTC",
            "SLURM_TIME_FORMAT": "%s",
            "SLURM_BITSTR_LEN": "0",
        }
        if slurm_conf is not None:
            self._env["SLURM_CONF"] = str(slurm_conf.absolute())

    def run(self, tool: str, *args: str) -> str:
        """Standard output of one command.

        Undecodable bytes come back as U+FFFD: names and comments may hold any bytes.

        Raises:
            ClusterError: It failed, was silent for too long or could not be started.
        """
        self.calls[tool] += 1
        words = printable(" ".join([tool, *args[:2]]))[:80]
        try:
            done = subprocess.run(
                [self._tools[tool], *args],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self._env,
                cwd="/",
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            msg = f"{words}: no answer in {self._timeout_s:g} s; is slurmctld overloaded or down?"
            raise ClusterError(msg) from None
        except (OSError, ValueError) as err:
            msg = f"{words}: cannot be run: {printable(str(err))}"
            raise ClusterError(msg) from None
        if done.returncode != 0:
            said = _last_line(done.stderr) or _last_line(done.stdout) or "no message"
            msg = f"{words} failed (exit {done.returncode}): {said}"
            raise ClusterError(msg)
        return done.stdout.decode("utf-8", errors="replace")


def _resolve(tool: str, path: str) -> str:
    found = shutil.which(tool, path=path)
    if found is None or not Path(found).is_absolute():
        msg = f"{tool} not found in {path}; install Slurm's client tools or say where they are"
        raise ConfigError(msg)
    return found


def _last_line(raw: bytes) -> str:
    lines = [line.strip() for line in raw.decode("utf-8", errors="replace").split("\n")]
    said = [line for line in lines if line]
    return printable(said[-1])[:_LONGEST_WORDS] if said else ""
