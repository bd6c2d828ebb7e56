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
from collections.abc import Sequence
from pathlib import Path

from slurm_dl.job.child import SESSION, family, looked_at, members
from slurm_dl.job.options import NEVER_REQUEUE_VARIABLE, STOPS_WITH_VARIABLE
from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.own_python import own_python
from slurm_dl.signal_test.run_directory import RunFiles, last_words
from slurm_dl.signal_test.verdict import Disposition, Look, ObservedProcess, ended
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.submit import job_comment

JOB_ID = 4_294_000_000
"""No Slurm counts so far: its ids have 26 bits, and this is one of cluster 63 of a federation."""

KILL_WAIT_S = 10.0  # Between SIGTERM and SIGKILL at a requeue; Slurm's default is 30 s

_TOOLS = ("scontrol", "squeue")
_STAND_IN = """\
import os, sys
place, tool, *words = sys.argv[1:]
if tool == "scontrol" and not words:
    words = sys.stdin.readline().strip().split(" ", 2)
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
    """The processes of one command, started now and anew at each requeue.

    Args:
        argv: The command; its process gets the signal as a batch script's would.
        place: An empty directory for the run directory, the log and the stand-ins.
        watched: Directories that the script writes checkpoints to.

    Raises:
        ConfigError: The command cannot be started.
    """

    every_s = 0.1

    def __init__(
        self,
        argv: Sequence[str],
        contract: Contract,
        *,
        place: Path,
        watched: tuple[Path, ...] = (),
    ) -> None:
        self.contract = contract
        self.files = RunFiles(place / "run", watched)
        self._argv = list(argv)
        self._place = place
        self._claims = ClaimReader(max_grace_s=contract.grace_s)
        self._run = 0
        self.files.directory.mkdir()
        text = job_comment.comment(None, contract=contract, model=None)
        (place / "comment").write_text(text, encoding="utf-8")
        self._write_stand_ins()
        self._session = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._place / "output.log").open("ab") as log:
            try:
                return subprocess.Popen(
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
        if status is None:
            claim = self._claims.read((self._place / "comment").read_text("utf-8", "replace"))
            return Look(state="running", run=self._run, acked=claim.acked_run == self._run)
        return ended(self._run, str(status), max(0, -status))

    def processes(self) -> tuple[ObservedProcess, ...]:
        """All processes of the session, and their descendants."""
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
        self._session = self._start()

    def end(self) -> None:
        """End what is left of the session: SIGTERM, and SIGKILL later."""
        if self._session.returncode is not None:
            return
        session = self._session.pid
        for signum in (signal.SIGTERM, signal.SIGKILL):
            for pid in members(SESSION, session):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
            deadline_s = time.monotonic() + KILL_WAIT_S
            while members(SESSION, session) and time.monotonic() < deadline_s:
                time.sleep(self.every_s)
        self._session.wait(KILL_WAIT_S)

    def last_words(self) -> str:
        """The end of its log."""
        return last_words(self._place / "output.log")

    def _status(self) -> int | None:
        """How its first process ended, -n for signal n; None if it has not.

        It is reaped by `end` alone: until then its number, the session's, is nobody else's.
        """
        if self._session.returncode is not None:
            return self._session.returncode
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PID, self._session.pid, options)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _job_environ(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in (STOPS_WITH_VARIABLE, NEVER_REQUEUE_VARIABLE)
            or not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
        }
        path = os.environ.get("PATH", os.defpath)
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
            words = shlex.join(own_python("-S", str(program), str(self._place), name))
            path = tools / name
            path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
            path.chmod(0o755)


def seen(session: int, name: str) -> tuple[ObservedProcess, ...]:
    """The processes of *session* on this host, and what each does with the signal *name*."""
    found = []
    for process in looked_at(family(session), signal.Signals["SIG" + name], session):
        with contextlib.suppress(OSError):  # it has ended
            path = Path(f"/proc/{process.pid}/status")
            status = path.read_text(encoding="utf-8", errors="replace")
            does = disposition(status, name)
            names = {"USR1", "USR2"} - {name}
            found.append(
                ObservedProcess(
                    pid=process.pid,
                    name=process.program,
                    # A program that handles all signals there are is a wrapper.
                    signal="ignores" if does == "catches" and not process.takes else does,
                    others=tuple(x for x in sorted(names) if disposition(status, x) == "catches"),
                    is_first=process.pid == session,
                    code="" if process.is_fork else process.code,
                )
            )
    return tuple(found)


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
