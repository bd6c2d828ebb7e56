"""Files of the user's: options that are given once, and submissions that dlsubmit remembers.

``~/.config/slurm_dl/config.yaml`` is the user's; ``.slurm_dl.yaml`` in the working directory, or
else in the nearest directory above it that has one, is the project's and comes first. Keys are
options' long names, dlsubmit's or sbatch's: ``partition: gpu``.

A file of somebody else could choose what the user's jobs run. So only a plain file counts that
belongs to the user and that nobody else may write to.

A submission is remembered to make it again, and to find its sweep: a file for each job in
``~/.local/state/slurm_dl/submissions``. In the run base, beside the run directories, lies
``JOB.sweep.json``: the swept names, and the values of each task in order.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_dl.job.run_files import RUNS_NAME, read_object, write_whole
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.parameter_sweep import Sweep
from slurm_dl.submit.sbatch_options import CommandLine, Option, divide
from slurm_dl.text import safe, shown

PROJECT_FILE = ".slurm_dl.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDefault:
    """One option that holds where nothing else is said."""

    name: str  # Its long name
    value: str | bool
    path: Path  # Of the file that says so


def find_defaults(
    environ: Mapping[str, str], cwd: Path, known: Collection[str]
) -> tuple[dict[str, UserDefault], list[str]]:
    """The options by name, and notes on files that do not count.

    Args:
        environ: HOME and XDG_CONFIG_HOME are read.
        cwd: The working directory.
        known: Names of options that there are.

    Raises:
        ConfigError: A file of the user's is wrong.
    """
    home = environ.get("HOME", "")
    base = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    paths = [Path(base, "slurm_dl", "config.yaml")] if Path(base).is_absolute() else []
    found: dict[str, UserDefault] = {}
    notes: list[str] = []
    above = (directory / PROJECT_FILE for directory in (cwd, *cwd.parents))
    project = next((path for path in above if os.path.lexists(path)), None)
    for path in [*paths, *([project] if project else [])]:
        try:
            text = read_own(path)
        except FileNotFoundError:
            continue
        except (OSError, UnicodeError) as err:
            why = getattr(err, "strerror", None) or "it is no text in UTF-8"
            notes.append(f"{safe(str(path))} is not used: {why}")
        else:
            found |= {default.name: default for default in parse_defaults(text, path, known)}
    return found, notes


def read_own(path: Path, most_bytes: int = 64 * 1024) -> str:
    """The text of a plain file of the user's that nobody else may write to.

    Raises:
        OSError: It is another's, or cannot be read.
        UnicodeError: It is no UTF-8.
    """
    # A FIFO would hold up the command; a link may name any file of the user's.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
            raise OSError(errno.EPERM, "it is not a plain file of yours")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(errno.EPERM, "others may write to it: chmod go-w it")
        return file.read(most_bytes)


def parse_defaults(text: str, path: Path, known: Collection[str]) -> Iterator[UserDefault]:
    """The options in *text*, which stands at *path*; `ConfigError` if it is wrong."""
    from slurm_dl.yaml_places import parse  # noqa: PLC0415 - 30 ms that only who has a file pays

    where = safe(str(path))
    document = parse(text, where, texts=True)
    if document.problems:
        raise ConfigError(str(document.problems[0]))
    if not isinstance(document.value, dict | None):
        msg = f"{where}: write one option a line, as in partition: gpu"
        raise ConfigError(msg)
    for key, value in (document.value or {}).items():
        name, line = key.replace("_", "-"), document.places[key,]
        if name not in known:
            msg = f"{line}: {shown(key)} is no option of dlsubmit or sbatch; see --help"
            raise ConfigError(msg)
        if not isinstance(value, bool | str):
            msg = f"{line}: {name}: {shown(value)} is not one value; put lists in quotes"
            raise ConfigError(msg)
        yield UserDefault(name=name, value=value, path=path)


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
    # Of other options the last word holds.
    several = ("--sweep=", "--by=")
    anew = tuple(name for name in several if any(word.startswith(name) for word in mine))
    theirs = [word for word in old["own"] if not word.startswith(anew)]
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
