"""Calls of functions as jobs: each is a file, and dlsubmit submits the command that loads it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

from slurm_dl.submit.function_job import Job
from slurm_dl.submit.pickled_call import (
    CALL,
    DelayedSubmission,
    SubmitError,
    is_closed,
    pickled,
    write,
)

_ALIASES = {"timeout_min": "time", "job_name": "name", "tasks_per_node": "ntasks_per_node"}
_OF_SUBMITIT = ("additional_parameters", "array_parallelism", "gpus_per_node", "mem_gb")


class Executor:
    """Submits functions, in the shape of submitit's (README and core/core.py of its repository).

    Args:
        folder: For calls, results and logs; the nodes must see it, and nobody else write to it.
        python: The interpreter that makes the calls; the nodes must see it, too.

    Raises:
        SubmitError: Others own the folder or can write to it, or Slurm could not name it.
    """

    def __init__(self, folder: str | os.PathLike[str], python: str = sys.executable) -> None:
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100 -- links stay
        self.python = python
        self._options: dict[str, Any] = {}
        self._batch: list[tuple[Job, str, bytes]] | None = None
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_closed(self.folder.stat()):
            msg = f"others can write to {self.folder}: chmod go-w it, or name a folder of your own"
            raise SubmitError(msg)
        if set("%\\") & set(str(self.folder)):
            msg = f"{self.folder}: Slurm replaces % and \\ in names of logs; name another folder"
            raise SubmitError(msg)

    def update_parameters(self, **options: Any) -> None:  # noqa: ANN401
        """Set options of dlsubmit and sbatch, or submitit's, for the jobs to come; None unsets one.

        dlsubmit and sbatch check them when the next job is submitted.
        """
        for typed, value in options.items():
            name = typed[6:] if typed.startswith("slurm_") else typed
            self._options[_ALIASES.get(name, name)] = value

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job:  # noqa: ANN401
        """Submit the call ``function(*args, **kwargs)``.

        Raises:
            SubmitError: It cannot be pickled, or dlsubmit or Slurm refuses; the message says why.
        """
        name = getattr(function, "__name__", type(function).__name__)
        content = pickled(DelayedSubmission(function, *args, **kwargs))
        entry = (Job(self.folder), re.sub("[^A-Za-z0-9_]", "", name), content)
        if self._batch is None:
            self._send([entry], array=False)
        else:
            self._batch.append(entry)
        return entry[0]

    def map_array(self, function: Callable[..., Any], *iterables: Iterable[Any]) -> list[Job]:
        """Submit a call for each tuple of ``zip(*iterables)``, as one array of Slurm's."""
        with self.batch():
            return [self.submit(function, *args) for args in zip(*iterables)]

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Submit all calls of a ``with`` block as one array, at its end; none if it raises."""
        if self._batch is not None:
            yield
            return
        self._batch = []
        try:
            yield
            if self._batch:
                self._send(self._batch, array=True)
        finally:
            self._batch = None

    def _send(self, entries: list[tuple[Job, str, bytes]], *, array: bool) -> None:
        dlsubmit = _dlsubmit()
        base = str(self.folder / os.urandom(8).hex())
        options = self._command_line(entries[0][1], len(entries) if array else 0)
        python = [] if self._options.get("launcher") == "torchrun" else [self.python]
        command = [*python, "-m", "slurm_dl.submit", base, *(["--array"] if array else [])]
        files = [Path(f"{base}_{task}{CALL}") for task in range(len(entries))]
        for file, (_, _, content) in zip(files, entries):
            write(file, content)
        done = subprocess.run(
            [dlsubmit, "--parsable", *options, "--", *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        job_id = done.stdout.strip()
        if done.returncode or not job_id.isdigit():
            for file in files:
                file.unlink()
            raise SubmitError(done.stderr.strip() or f"dlsubmit printed no job id: {job_id[:200]}")
        sys.stderr.write(done.stderr)  # its notes
        for task, (job, _, _) in enumerate(entries):
            job.submitted_as(f"{base}_{task}", f"{job_id}_{task}" if array else job_id)

    def _command_line(self, name: str, tasks: int) -> list[str]:
        """Options of dlsubmit, for an array if it has *tasks*."""
        given = {"name": name or None, "launcher": "plain", **self._options}
        given.update(given.pop("additional_parameters", None) or {})
        if given.get("gpus_per_node"):
            given["gpus"] = given["gpus_per_node"] * int(given.get("nodes") or 1)
        if given.get("mem_gb"):
            given["mem"] = f"{round(given['mem_gb'] * 1024)}M"
        most = f"%{given['array_parallelism']}" if given.get("array_parallelism") else ""
        given["array"] = f"0-{tasks - 1}{most}" if tasks else None
        for option, end in (("output", "out"), ("error", "err")):
            given[option] = f"{self.folder}/{'%A_%a' if tasks else '%j'}.{end}"
        words = []
        for option, value in given.items():
            if value is None or value is False or option in _OF_SUBMITIT:
                continue
            flag = "--" + option.replace("_", "-")
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            words.append(flag if value is True else f"{flag}={text}")
        return words


def _dlsubmit() -> str:
    """The program: what SLURM_DL_DLSUBMIT names, else beside the interpreter, else on PATH."""
    beside = Path(sys.executable).with_name("dlsubmit")
    found = os.environ.get("SLURM_DL_DLSUBMIT") or shutil.which(str(beside))
    found = found or shutil.which("dlsubmit")
    if found is None:
        msg = f"no dlsubmit in {beside.parent} or on PATH; name it in SLURM_DL_DLSUBMIT"
        raise SubmitError(msg)
    return found
