"""The command of a job: its words, its launcher, and what is derived from them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Literal

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit import option_values
from slurm_dl.text import shown

Launcher = Literal["plain", "torchrun", "srun"]
LAUNCHERS: tuple[Launcher, ...] = ("plain", "torchrun", "srun")

_MOST_NAME = 64


def launcher_of(text: str) -> Launcher:
    """The launcher named *text*; ConfigError: there is none of that name."""
    for launcher in LAUNCHERS:
        if text == launcher:
            return launcher
    msg = f"--launcher: {shown(text)} is not one of {', '.join(LAUNCHERS)}"
    raise ConfigError(msg)


def tasks_per_node(typed: str | None, launcher: Launcher) -> int | None:
    """``--ntasks-per-node`` as a number; ConfigError: it is none, or not for this launcher."""
    if typed is None:
        return None
    tasks = option_values.count(typed, "--ntasks-per-node")
    if launcher == "torchrun" and tasks != 1:
        msg = "--ntasks-per-node: torchrun starts its own workers, one per GPU; leave it out"
        raise ConfigError(msg)
    return tasks


def command_words(command: Sequence[str], launcher: Launcher) -> tuple[str, ...]:
    """*command* as it is started; ConfigError: this launcher cannot start it."""
    if not command or not command[0]:
        msg = "what should the job run? give -- COMMAND at the end"
        raise ConfigError(msg)
    if command[0].startswith("-") and not (launcher == "torchrun" and command[0] == "-m"):
        msg = f"COMMAND: {shown(command[0])} is not a program"
        raise ConfigError(msg)
    if any("\0" in argument for argument in command):
        msg = "COMMAND: a NUL cannot be part of an argument"
        raise ConfigError(msg)
    if launcher != "plain" and ":" in command:
        # Measured on 22.05.8: srun takes it for the start of another component of the job.
        msg = "COMMAND: srun cannot pass on an argument that is a lone ':'; wrap it in a script"
        raise ConfigError(msg)
    return tuple(command)


def default_name(command: Sequence[str]) -> str:
    """The script's name, or else the program's, in letters that suit a job name."""
    script = next((a for a in command if a.endswith((".py", ".sh"))), None)
    stem = PurePath(script).stem if script else PurePath(command[0]).name if command else ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")[:_MOST_NAME]
    return name or "job"


def dlrun_path(typed: str | None, found: str | None) -> str:
    """Path of dlrun on the compute nodes: *typed*, or else the one *found* beside dlsubmit."""
    if typed is None:
        if found is None:
            msg = "no dlrun beside dlsubmit; give its path on the compute nodes as --dlrun=PATH"
            raise ConfigError(msg)
        return option_values.clean_text(found, "dlrun")
    if not PurePath(typed).is_absolute():
        msg = f"--dlrun: {shown(typed)} is not an absolute path on the compute nodes"
        raise ConfigError(msg)
    return option_values.clean_text(typed, "--dlrun")
