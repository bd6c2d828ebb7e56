"""A trial without Slurm: the script as a session of processes here, in a job that is pretended.

Programs named ``scontrol`` and ``squeue`` stand first on its PATH: they take the acknowledgement
and the request to be requeued, and reach no Slurm. The number of the job is above all that a Slurm
gives, so that whoever asks a real one is told there is no such job.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_dl.job.child import SESSION, members
from slurm_dl.job.options import NEVER_REQUEUE_VARIABLE, STOPS_WITH_VARIABLE
from slurm_dl.model.contract import SIGNALS, Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.signal_test.interrupts import unstopped
from slurm_dl.signal_test.observations import Disposition, Look, ObservedProcess
from slurm_dl.signal_test.run_directory import RunFiles
from slurm_dl.slurm.read.comment_claims import ClaimReader

JOB_ID = 4_294_000_000
"""No Slurm counts so far: its ids have 26 bits, and this is one of cluster 63 of a federation."""

KILL_WAIT_S = 10.0
"""Between SIGTERM and SIGKILL at a requeue; Slurm's default is 30 s."""

_LAST_WORDS = 2000
_TOOLS = ("scontrol", "squeue")
_STAND_IN = """\
import os, sys
place, tool, *words = sys.argv[1:]
comment = os.path.join(place, "comment")
def put(path, text):
    with open(path + ".new", "w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(text)
    os.replace(path + ".new", path)
if tool == "squeue":
    if any(word.startswith("PreemptTime") for word in words):
        print("N/A")
    elif "%T %L %k" in words:
        with open(comment, encoding="utf-8", errors="surrogateescape") as text:
            print("RUNNING UNLIMITED", text.read())
elif words[:1] == ["update"]:
    for word in words:
        if word.startswith("Comment="):
            put(comment, word.removeprefix("Comment="))
elif words[:1] == ["requeue"]:
    put(os.path.join(place, "requeue"), "")
else:
    sys.exit("scontrol: dlctl test-signal --local pretends a job; it has no such answer")
"""


class LocalJob:
    """The processes of one command, started anew at each requeue.

    Args:
        argv: The command; its process gets the signal as a batch script's would.
        contract: What is tried.
        comment: The job's comment, with the contract in it.
        place: An empty directory for the run directory, the log and the stand-ins.
        more: Further directories that the script writes checkpoints to.
        environ: Environment to start from.
    """

    def __init__(
        self,
        argv: Sequence[str],
        contract: Contract,
        *,
        comment: str,
        place: Path,
        more: tuple[Path, ...] = (),
        environ: Mapping[str, str],
    ) -> None:
        self.contract = contract
        self.every_s = 0.1
        self.files = RunFiles(place / "run", more)
        self._argv = list(argv)
        self._place = place
        self._environ = dict(environ)
        self._claims = ClaimReader(max_grace_s=contract.grace_s)
        self._process: subprocess.Popen[bytes] | None = None
        self._run = 0
        self.files.directory.mkdir(parents=True, exist_ok=True)
        (place / "comment").write_text(comment, encoding="utf-8")
        self._write_stand_ins()

    def start(self) -> None:
        """Start the command, as run 0 or, after a requeue, as the next one.

        Raises:
            ConfigError: It cannot be started.
        """
        # A stop in between would leave a process whose number nobody knows.
        with (self._place / "output.log").open("ab") as log, unstopped():
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    env=self._job_environ(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as err:
                msg = f"{self._argv[0]}: cannot be started: {err.strerror or err}"
                raise ConfigError(msg) from None

    def look(self) -> Look:
        """How it is; a job that has put itself back is ended, and waits to be started again."""
        if (self._place / "requeue").exists():
            self.end()
            return Look(state="waiting", run=self._run)
        status = self._status()
        claim = self._claims.read((self._place / "comment").read_text("utf-8", "replace"))
        if status is None:
            return Look(state="running", run=self._run, acked=claim.acked_run == self._run)
        killed_by = _signal_name(-status) if status < 0 else ""
        end = f"it died of {killed_by}" if killed_by else f"it ended with status {status}"
        return Look(state="over", run=self._run, end=end, killed_by=killed_by)

    def processes(self) -> tuple[ObservedProcess, ...]:
        """All processes of the session."""
        return seen(self._session.pid, self.contract.signal)

    def signal(self) -> None:
        """Send the signal to the first process alone, as ``scancel --batch`` does."""
        if self._status() is None:
            os.kill(self._session.pid, signal.Signals["SIG" + self.contract.signal])

    def requeue(self) -> None:
        """End the run as Slurm does, and start the next."""
        self.end()
        (self._place / "requeue").unlink(missing_ok=True)
        self._run += 1
        self.start()

    def end(self) -> None:
        """End what is left of the session: SIGTERM, and SIGKILL later."""
        if self._process is None or self._process.returncode is not None:
            return
        session = self._process.pid
        for signum in (signal.SIGTERM, signal.SIGKILL):
            send(session, signum)
            deadline_s = time.monotonic() + KILL_WAIT_S
            while members(SESSION, session) and time.monotonic() < deadline_s:
                time.sleep(self.every_s)
        self._process.wait(KILL_WAIT_S)

    def last_words(self) -> str:
        """The end of its log."""
        try:
            with (self._place / "output.log").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_WORDS))
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def _status(self) -> int | None:
        """How its first process ended, -n for signal n; None if it has not.

        It is reaped by `end` alone: until then its number, the session's, is nobody else's.
        """
        if self._session.returncode is not None:
            return self._session.returncode
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        ended = os.waitid(os.P_PID, self._session.pid, options)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    @property
    def _session(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            msg = "the job has not been started"
            raise ValueError(msg)
        return self._process

    def _job_environ(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in self._environ.items()
            if name in (STOPS_WITH_VARIABLE, NEVER_REQUEUE_VARIABLE)
            or not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
        }
        path = self._environ.get("PATH", os.defpath)
        node = os.uname().nodename
        # Slurm sets the restart count only from the first restart on.
        restarts = {"SLURM_RESTART_COUNT": str(self._run)} if self._run else {}
        return {
            **kept,
            **restarts,
            "PATH": f"{self._place / 'bin'}:{path}:{Path(sys.executable).parent}",
            "SLURM_DL_RUN_DIR": str(self.files.directory),
            "SLURM_DL_SIGNAL": self.contract.signal,
            "SLURM_DL_GRACE_S": f"{self.contract.grace_s:g}",
            "SLURM_JOB_ID": str(JOB_ID),
            "SLURM_JOBID": str(JOB_ID),
            "SLURM_JOB_NAME": "test-signal",
            "SLURM_JOB_NODELIST": node,
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_NNODES": "1",
            "SLURM_NODEID": "0",
            "SLURM_NTASKS": "1",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_SUBMIT_DIR": str(Path.cwd()),
            "SLURMD_NODENAME": node,
        }

    def _write_stand_ins(self) -> None:
        tools = self._place / "bin"
        tools.mkdir()
        program = self._place / "stand_in.py"
        program.write_text(_STAND_IN, encoding="utf-8")
        for name in _TOOLS:
            words = shlex.join([sys.executable, "-IS", str(program), str(self._place), name])
            path = tools / name
            path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
            path.chmod(0o755)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:  # most of the real-time signals have no name
        return str(number)


# What the processes of a session on this host do with signals, as /proc has it.
def seen(session: int, name: str) -> tuple[ObservedProcess, ...]:
    """The processes of *session* and what each does with the signal *name*."""
    found = (_seen(pid, name, is_first=pid == session) for pid in members(SESSION, session))
    return tuple(process for process in found if process is not None)


def send(session: int, signum: int) -> None:
    """Send a signal to each process of *session*, by its number."""
    for pid in members(SESSION, session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def disposition(status: str, name: str) -> Disposition:
    """What a process with this ``/proc/PID/status`` does with the signal *name*."""
    masks = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    bit = 1 << (signal.Signals["SIG" + name] - 1)
    # dlrun and others block a signal and fetch it: that is as good as a handler.
    words: tuple[tuple[str, Disposition], ...] = (
        ("SigBlk", "blocks"),
        ("SigIgn", "ignores"),
        ("SigCgt", "catches"),
    )
    for mask, word in words:
        if int(masks.get(mask, "0"), 16) & bit:
            return word
    return "dies of"


def _seen(pid: int, name: str, *, is_first: bool) -> ObservedProcess | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return ObservedProcess(
        pid=pid,
        name=status.partition("\n")[0].removeprefix("Name:\t"),
        signal=disposition(status, name),
        others=tuple(
            other
            for other in SIGNALS
            if other not in {name, "CONT", "INT", "HUP"} and disposition(status, other) == "catches"
        ),
        is_first=is_first,
    )
