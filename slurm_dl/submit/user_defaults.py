"""Options that a user gives once: for all jobs, and for the jobs of one project.

``~/.config/slurm_dl/config.yaml`` is the user's; ``.slurm_dl.yaml`` in the working directory, or
else in the nearest directory above it that has one, is the project's and comes first. Keys are
options' long names, dlsubmit's or sbatch's: ``partition: gpu``.

A file of somebody else could choose what the user's jobs run. So only a plain file counts that
belongs to the user and that nobody else may write to.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_dl.model.errors import ConfigError
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
