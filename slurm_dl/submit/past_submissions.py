"""Submissions that dlsubmit remembers: enough to make one again, and to find its sweep.

A file for each job in ``~/.local/state/slurm_dl/submissions``. In the run base, beside the run
directories, lies ``JOB.sweep.json``: the swept names, and the values of each task in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_dl.job.run_files import read_object, write_whole
from slurm_dl.job.untrusted_files import RUNS_NAME
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.parameter_sweep import Sweep
from slurm_dl.submit.sbatch_options import CommandLine, Option, divide
from slurm_dl.submit.user_defaults import read_own
from slurm_dl.text import safe, shown

KEPT = 1000
_MOST_BYTES = 8 * 1024 * 1024
_OF_THE_ANSWER = {"--json", "--parsable", "--quiet", "--preview", "--no-preview"}


def remember(job_id: int, line: CommandLine, run_base: str, sweep: Sweep | None) -> str:
    """Write the submission down; a note if that fails, for the job is submitted already."""
    content = {
        "v": 1,
        "own": [word for word in line.own if word not in _OF_THE_ANSWER],
        "sbatch": line.sbatch,
        "rest": line.script or ("--", *line.command),
        "cwd": str(Path.cwd()),
        "run_base": run_base,
        "time_s": int(time.time()),
    }
    try:
        directory = _directory()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(directory / f"{_here()}-{job_id}.json", content, durable=False, mode=0o600)
        with contextlib.suppress(FileNotFoundError):  # another dlsubmit tidies up, too
            for old in _newest_first(directory, "*-*.json")[KEPT:]:
                old.unlink()
        if sweep is not None:
            content = {"v": 1, "names": sweep.names, "tasks": sweep.tasks}
            Path(run_base).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(Path(run_base, f"{job_id}.sweep.json"), content, durable=False)
    except (OSError, RuntimeError) as err:
        return f"not written down for --again and dlqueue sweep: {safe(str(err))}"
    return ""


def again(line: CommandLine, own: Mapping[str, Option]) -> tuple[CommandLine, list[str]]:
    """The line of the job in ``--again``, with what *line* adds; goes to its directory, too.

    Returns:
        *line* itself if it has no such option; notes.

    Raises:
        ConfigError: That job, or its directory, is not known.
    """
    asked = [word.partition("=")[2] for word in line.own if word.startswith("--again=")]
    if not asked:
        return line, []
    old = recall(asked[-1])
    where = safe(old["cwd"])
    try:
        os.chdir(old["cwd"])
    except OSError as err:
        msg = f"--again: {where}, from where it was submitted: {err.strerror}"
        raise ConfigError(msg) from None
    mine = [word for word in line.own if not word.startswith("--again=")]
    anew = any(word.startswith("--sweep=") for word in mine)
    theirs = [word for word in old["own"] if not (anew and word.startswith("--sweep="))]
    rest = line.script or (("--", *line.command) if line.command else old["rest"])
    note = f"as job {asked[-1]}, in {where}; it begins anew, in a run directory of its own"
    return divide([*old["sbatch"], *line.sbatch, *theirs, *mine, *rest], own), [note]


def recall(job: str) -> dict[str, Any]:
    """The submission of *job*: of this host, else the newest of that id.

    Raises:
        ConfigError: Nothing, or it cannot be read.
    """
    path = directory = _directory()
    try:
        if re.fullmatch(r"[1-9]\d{0,9}", job, re.ASCII):
            found = _newest_first(directory, f"*-{job}.json")
            here = directory / f"{_here()}-{job}.json"
            path = here if here in found or not found else found[0]
        content: dict[str, Any] = json.loads(read_own(path, _MOST_BYTES))
    except (OSError, ValueError) as err:
        why = getattr(err, "strerror", None) or "it is damaged"
        msg = f"no submission of job {shown(job)} is known: {safe(str(path))}: {why}"
        raise ConfigError(msg) from None
    return content


def recall_sweep(job: str) -> tuple[Path, Sweep]:
    """The run base and the sweep of *job*.

    Raises:
        ConfigError: It is not known.
    """
    base = Path(RUNS_NAME).absolute()
    with contextlib.suppress(ConfigError):
        base = Path(recall(job)["run_base"])
    path = base / f"{job}.sweep.json"
    try:
        content: Any = read_object(path, must_be_ours=True)
        return base, Sweep(tuple(content["names"]), tuple(map(tuple, content["tasks"])))
    except (OSError, ValueError, TypeError, KeyError):
        msg = f"no sweep of job {shown(job)} is known: {safe(str(path))} cannot be read"
        raise ConfigError(msg) from None


def _directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    return Path(
        base if base.startswith("/") else "~/.local/state", "slurm_dl/submissions"
    ).expanduser()


def _here() -> str:
    """The cluster, as far as that is known without a question to Slurm."""
    name = os.environ.get("SLURM_CLUSTER_NAME") or socket.gethostname()
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _newest_first(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.glob(pattern), key=lambda path: path.lstat().st_mtime, reverse=True)
