"""``dlctl logs``: what a job has written over all its runs, with marks where one ended and why.

Slurm says which file that is. It is opened with the rights of whoever types the command, never
the daemon's, and only if it belongs to the job's owner: a job may name any path as its log.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import click

from slurm_dl.cli import completion
from slurm_dl.cli.commandline import SOCKET
from slurm_dl.daemon.control.client import Client, DaemonError, daemon_at
from slurm_dl.json_types import Json, JsonObject, as_list, number
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.text import escaped, safe

_JOB = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?", re.ASCII)
_FILE = re.compile(r"^\s+StdOut=(/.*)$", re.MULTILINE)
_OWNER = re.compile(r"^\s+UserId=[^\n]*?\(([0-9]{1,10})\)", re.MULTILINE)
_RUN = re.compile(rb"dlrun: (\S{1,40}) run ([0-9]{1,9}) of ")
_CHUNK = 1 << 16
_EVERY_S = 1.0
_LOOKS = 5  # So often the file is looked at for each question to the daemon

_OVER = frozenset({"CD", "F"})

Ask = Callable[[], JsonObject]


@click.command()
@click.argument("job", shell_complete=completion.job_ids)
@click.option("-f", "--follow", is_flag=True, help="Go on, over restarts, until the job ends.")
@SOCKET
def logs(job: str, *, follow: bool, socket: Path | None) -> None:
    """Print what a job has written, with a mark where each of its runs ended, and why.

    JOB is a job id; one task of an array is named 4711_3. Slurm must still list the job.

    \b
    Example:
      dlctl logs -f 4711
    """  # noqa: D301 - \b is click's mark
    path, owner = output_of(Slurm(environ=os.environ), job)
    client = Client(daemon_at(socket))
    as_it_is = sys.stdout.isatty() and os.geteuid() == owner
    log = Log(path, owner, lambda: client.ask("why", job=job), as_it_is=as_it_is)
    log.follow() if follow else log.once()


def output_of(slurm: Slurm, job: str) -> tuple[Path, int]:
    """The file that Slurm writes the output of *job* to, and the job's owner.

    Raises:
        ConfigError: *job* is no job id, or several jobs.
        ClusterError: Slurm does not answer or does not list it, or the job has no such file.
    """
    if not _JOB.fullmatch(job):
        msg = f"{escaped(job, 40)!r} is no job id: write 123 or, for an array task, 123_7"
        raise ConfigError(msg)
    told = slurm.run("scontrol", "show", "job", job)
    # A name with a line break could add one; then there are two.
    files, owners = set(_FILE.findall(told)), set(_OWNER.findall(told))
    if len(files) > 1 or len(owners) > 1:
        msg = f"job {job} is several jobs: name one of them, as in {job}_0"
        raise ConfigError(msg)
    if not files or not owners:
        msg = f"job {job} has no file for its output: it is not a batch job"
        raise ClusterError(msg)
    return Path(files.pop()), int(owners.pop())


class Log:
    """A file that grows, and what the daemon knows of its job.

    Args:
        owner: The only uid to whom the file may belong.
        ask: Asks the daemon for ``why``.
        as_it_is: Control characters are shown as they are; else they are written out.
    """

    def __init__(self, path: Path, owner: int, ask: Ask, *, as_it_is: bool) -> None:
        self._path, self._owner, self._ask, self._as_it_is = path, owner, ask, as_it_is
        self._told: JsonObject = {}
        self._at = 0
        self._begins_line = True
        self._run, self._run_s = 0, 0.0
        """The last run that was announced or seen to begin, and when, epoch seconds."""
        self._restarts: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def once(self) -> None:
        """Print what is there.

        Raises:
            ClusterError: It cannot be read, or may not.
        """
        self._look()
        if not self._more():
            msg = f"{safe(str(self._path), 500)} does not exist: the job has not started here"
            raise ClusterError(msg)

    def follow(self) -> None:
        """Print what is there and what comes, until the job is over.

        Raises:
            ClusterError: It cannot be read, or may not.
        """
        while True:
            over = self._look()
            for _ in range(1 if over else _LOOKS):
                self._more()
                if over:
                    self._mark(f"job over: {over}")
                    return
                time.sleep(_EVERY_S)

    def _look(self) -> str:
        """Ask the daemon; how the job ended, empty while it has not or that is not known."""
        with contextlib.suppress(DaemonError):
            self._told = self._ask()
        job, past = self._told.get("job"), _object(self._told.get("past"))
        if self._told and job is None:
            return str(_object(past.get("ended")).get("ending") or "Slurm no longer lists it")
        row = _object(job)
        restarts = int(number(row.get("restarts")))
        if self._restarts is not None and restarts > self._restarts:
            self._more()
            self._begins(restarts, time.time())
        self._restarts = restarts
        return str(row.get("ending") or row["state"]) if row.get("state") in _OVER else ""

    def _more(self) -> bool:
        """Print what is new; False if there is no file."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            opened = open(os.open(self._path, flags), "rb")  # noqa: PTH123, SIM115 -- a descriptor
        except FileNotFoundError:
            return False
        except OSError as err:
            msg = f"{safe(str(self._path), 500)}: {err.strerror}"
            raise ClusterError(msg) from None
        with opened as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != self._owner:
                msg = f"{safe(str(self._path), 500)} is no regular file of the job's owner"
                raise ClusterError(msg)
            if status.st_size < self._at:
                self._mark("the file was cut; from its beginning")
                self._at = 0
            file.seek(self._at)
            while chunk := file.read(_CHUNK):
                self._at += len(chunk)
                for line in chunk.splitlines(keepends=True):
                    self._show(line)
        sys.stdout.flush()
        return True

    def _show(self, line: bytes) -> None:
        if self._begins_line and (run := _RUN.match(line)):
            with contextlib.suppress(ValueError, OverflowError):
                at_s = datetime.fromisoformat(run[1].decode("ascii", "replace")).timestamp()
                self._begins(int(run[2]), at_s)
        self._begins_line = line.endswith(b"\n")
        if self._as_it_is:
            sys.stdout.buffer.write(line)
            return
        text = self._decoder.decode(line)
        if not text.removesuffix("\n").isprintable():
            text = "".join(c if c in "\n\t" else escaped(c) for c in text)
        sys.stdout.write(text)

    def _begins(self, run: int, at_s: float) -> None:
        """A run begins: before its output stands why the one before it has ended."""
        past = _object(self._told.get("past"))
        gave_way = as_list(past.get("gave_way"))
        ways = [w for w in map(_object, gave_way) if self._run_s < number(w["at_s"]) <= at_s]
        if run > self._run:
            why = "put back, not by slurm_dl" if past else "it is not known why"
            if ways:
                why = f"gave way ({ways[-1]['purpose'] or 'preempt'}, {ways[-1]['signal'] or '-'})"
            self._mark(f"run {run - 1} ended: {why}; run {run} follows")
        self._run, self._run_s = max(run, self._run), at_s

    def _mark(self, text: str) -> None:
        line = f"--- dlctl: {safe(text)} ---"
        click.secho(line if self._begins_line else f"\n{line}", fg="yellow")
        self._begins_line = True


def _object(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}
