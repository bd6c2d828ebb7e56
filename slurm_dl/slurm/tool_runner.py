"""Runs one Slurm command and gives back its output, or says in one line why there is none.

Everything the project asks of Slurm's tools goes through here: an argv list and never a shell, a
tool path resolved once, an environment of our own making, a deadline, and a count of the calls.
What users wrote stands in no argv: scontrol reads it from standard input. sbatch alone gets the
user's environment.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_dl.job import tool_process
from slurm_dl.job.tool_process import arguments_and_input
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.read.record_parser import fold_of
from slurm_dl.text import escaped, shown

TOOLS = ("squeue", "sinfo", "scontrol", "scancel", "sprio")
OPTIONAL_TOOLS = ("sacct", "sacctmgr", "sdiag")
"""Tools that only some sites have; what is asked of them can be done without."""

_OF_SLURMDBD = ("sacct", "sacctmgr")

_LONGEST_WORDS = 300
_JOB_ID = re.compile(r"(\d+)(?:;.*)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of a call of sbatch."""

    job_id: int | None  # The job, or the array as a whole; None if sbatch refused
    text: bytes  # Its messages, as they came


class Slurm:
    """Slurm's command-line tools, bound to one cluster.

    Attributes:
        calls: How often each tool was run.
        spent_s: How long the tools waited for Slurm in all, seconds.
        env: The whole environment of a command.
        timeout_s: Longest wait for one command, seconds.
    """

    def __init__(
        self,
        *,
        slurm_conf: Path | None = None,
        bin_dir: Path | None = None,
        environ: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Resolve the tools.

        Args:
            slurm_conf: Path of slurm.conf; None leaves it to Slurm's built-in place.
            bin_dir: Where the tools are; None searches PATH.
            environ: A user's environment, whose PATH, HOME and SLURM_CONF count, and no tool need
                be there; None: the process's PATH alone.
            timeout_s: Longest wait for one command, seconds; above 0.

        Raises:
            ConfigError: A tool other than the optional ones is missing.
        """
        if not timeout_s > 0:
            msg = f"timeout_s must be above 0 (got {timeout_s})"
            raise ValueError(msg)
        self.calls: Counter[str] = Counter()
        self.spent_s = 0.0
        self.timeout_s = timeout_s
        path = (os.environ if environ is None else environ).get("PATH", os.defpath)
        path = path if bin_dir is None else str(bin_dir)
        known = (*TOOLS, *OPTIONAL_TOOLS, "sbatch")
        found = {tool: shutil.which(tool, path=path) for tool in known}
        self._tools = {tool: at for tool, at in found.items() if at and Path(at).is_absolute()}
        missing = [] if environ is not None else [tool for tool in TOOLS if not self.has(tool)]
        if missing:
            advice = "install Slurm's client tools or say where they are"
            msg = f"{missing[0]} not found in {path}; {advice}"
            raise ConfigError(msg)
        # Nothing is inherited: SQUEUE_FORMAT, SLURM_CLUSTERS, SCONTROL_ALL and their like change
        # what the tools print. A bit-string length of 0 prints array specs in full.
        self.env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C",
            "TZ": "UTC",
            "SLURM_TIME_FORMAT": "%s",
            "SLURM_BITSTR_LEN": "0",
            "INPUTRC": "/dev/null",
        }
        if environ is not None:
            kept = ("PATH", "HOME", "SLURM_CONF")
            self.env |= {name: environ[name] for name in kept if name in environ}
        if slurm_conf is not None:
            self.env["SLURM_CONF"] = str(slurm_conf.absolute())

    @property
    def slurm_conf(self) -> str:
        """Path of slurm.conf; empty where Slurm's built-in place is used."""
        return self.env.get("SLURM_CONF", "")

    def has(self, tool: str) -> bool:
        """Whether *tool* is installed."""
        return tool in self._tools

    def path(self, tool: str) -> str:
        """Absolute path of *tool*.

        Raises:
            ClusterError: It is not there.
        """
        if not self.has(tool):
            msg = f"{tool} is not installed on this host, or not in PATH"
            raise ClusterError(msg)
        return self._tools[tool]

    def run(self, tool: str, *args: str, within_s: float = math.inf) -> str:
        """Standard output of one command.

        Undecodable bytes come back as U+FFFD: names and comments may hold any bytes.

        Args:
            within_s: Wait no longer than this, seconds, if that is less than usual.

        Raises:
            ClusterError: It failed, was silent for too long, is not there or could not be started.
        """
        words = self._count(tool, args)
        timeout_s = min(self.timeout_s, within_s)
        began_s, computed_s = time.monotonic(), _children_s()
        fold = fold_of(args) if tool == "squeue" else None
        try:
            argv, told = arguments_and_input(args)
            done = tool_process.run(
                [self._tools[tool], *argv],
                told,
                timeout_s=timeout_s,
                feed=fold.feed if fold else None,
                env=self.env,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            asked = "slurmdbd" if tool in _OF_SLURMDBD else "slurmctld"
            msg = f"{words}: no answer in {round(timeout_s, 1):g} s; is {asked} overloaded or down?"
            raise ClusterError(msg) from None
        except (OSError, ValueError) as err:
            raise _not_run(words, err) from None
        finally:
            # What the tool computes, such as the text of each task of an array, is no sign of a
            # slow slurmctld: users decide on it.
            own_s = _children_s() - computed_s
            self.spent_s += max(0.0, time.monotonic() - began_s - own_s)
        if done.returncode:
            said = last_line(done.stderr) or last_line(done.stdout) or "no message"
            msg = f"{words} failed (exit {done.returncode}): {said}"
            raise ClusterError(msg)
        return fold.text() if fold else done.stdout

    def start(self, tool: str, *args: str) -> subprocess.Popen[bytes]:
        """Start one command and do not wait; its standard error is a pipe, its group its own.

        Raises:
            ClusterError: It is not there or could not be started.
        """
        words = self._count(tool, args)
        try:
            return subprocess.Popen(
                [self._tools[tool], *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self.env,
                cwd="/",
                start_new_session=True,
            )
        except (OSError, ValueError) as err:
            raise _not_run(words, err) from None

    def submit(self, *args: str, environ: Mapping[str, str], script: bytes = b"") -> Answer:
        """Run sbatch in *environ*, the user's own, and where the user stands.

        There is no time limit: a killed sbatch may have submitted the job.

        Args:
            script: Its standard input.

        Raises:
            ClusterError: There is no sbatch, or it took the job and answered something that is not
                a job id.
        """
        argv = [self.path("sbatch"), *args]
        done = subprocess.run(argv, input=script, env=environ, capture_output=True, check=False)
        if done.returncode:
            return Answer(job_id=None, text=done.stderr + done.stdout)
        last = done.stdout.decode(errors="replace").strip().splitlines()[-1:]
        match = _JOB_ID.fullmatch(last[0]) if last else None
        if match is None:
            msg = f"sbatch answered {shown(''.join(last))} instead of a job id; see squeue --me"
            raise ClusterError(msg)
        return Answer(job_id=int(match[1]), text=done.stderr)

    def _count(self, tool: str, args: Sequence[str]) -> str:
        """Count one call; the command in words."""
        self.path(tool)
        self.calls[tool] += 1
        return escaped(" ".join([tool, *args[:2]]))[:80]


def _children_s() -> float:
    """CPU seconds of the commands that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _not_run(words: str, err: Exception) -> ClusterError:
    return ClusterError(f"{words}: cannot be run: {escaped(str(err))}")


def last_line(text: str) -> str:
    """The last of what a program said, safe to print; empty if it said nothing."""
    said = [line for line in map(str.strip, text.split("\n")) if line]
    return escaped(said[-1])[:_LONGEST_WORDS] if said else ""
