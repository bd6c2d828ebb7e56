"""Whether the state directory is the daemon's own, before anything in it is opened."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_dl.files import why_not_trusted
from slurm_dl.model.errors import ConfigError
from slurm_dl.text import user_name


def check(directory: Path) -> None:
    """Refuse a state directory in which others than root and we could put files.

    Root does not use that of another account either: what it left there that account could not
    write to.

    Raises:
        ConfigError: One line, which says what to do.
    """
    us = os.geteuid()
    try:
        owner = directory.stat().st_uid
    except OSError:
        owner = us  # What is wrong is said where it is used.
    if owner not in {0, us}:
        # sudo takes a number after this sign.
        name, own = user_name(owner, "#"), user_name(us, "#")
        advice = f"run it as that account (sudo -u {name} dlschedd ...), or chown it"
        msg = f"paths.state_dir: {directory}: belongs to {name}, not to {own}: {advice}"
        raise ConfigError(msg)
    try:
        why = why_not_trusted(directory, {us})
    except OSError as err:
        why = f"{err.filename}: {err.strerror}"
    if why:
        msg = f"paths.state_dir: {why}"
        raise ConfigError(msg)
