"""The user's own defaults as options of dlsubmit, and what ``--show-defaults`` prints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import click

from slurm_dl.submit.job_request import SubmitOptions
from slurm_dl.submit.sbatch_options import REFUSED, SBATCH, Option
from slurm_dl.submit.user_defaults import UserDefault, find_defaults
from slurm_dl.text import safe

DEFAULTS = "slurm_dl.defaults"
"""Where click's context has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualOptions:
    """Options that hold where neither the line nor a script says otherwise."""

    own: dict[str, str | bool]  # dlsubmit's, by the names of its parameters
    sbatch: tuple[UserDefault, ...]  # sbatch's
    found: Mapping[str, UserDefault]  # All of them
    notes: tuple[str, ...]  # On files that do not count

    def sbatch_beside(self, given: Sequence[str]) -> list[str]:
        """Options of sbatch as it takes them, without those among *given*."""
        names = {option.removeprefix("--").partition("=")[0] for option in given}
        options = [default for default in self.sbatch if default.name not in names]
        return [
            f"--{default.name}" if default.value is True else f"--{default.name}={default.value}"
            for default in options
            if default.value is not False
        ]


def find(own: Mapping[str, Option]) -> UsualOptions:
    """Defaults in the user's files, for the options *own* of dlsubmit by each of their spellings.

    Raises:
        ConfigError: A file of the user's is wrong.
    """
    settable = {field.name for field in fields(SubmitOptions)}
    ours = {
        spelling.removeprefix("--"): parameter
        for spelling, option in own.items()
        if spelling.startswith("--") and (parameter := option.name.replace("-", "_")) in settable
    }
    theirs = {option.name for option in SBATCH.values()} - REFUSED.keys() - ours.keys()
    found, notes = find_defaults(os.environ, Path.cwd(), {*ours, *theirs})
    return UsualOptions(
        own={ours[name]: default.value for name, default in found.items() if name in ours},
        sbatch=tuple(default for name, default in found.items() if name in theirs),
        found=found,
        notes=tuple(notes),
    )


def show(usual: UsualOptions, *, as_json: bool) -> int:
    """Print each default with its file."""
    rows = sorted((d.name, d.value, str(d.path)) for d in usual.found.values())
    if as_json:
        value = {name: {"value": said, "path": path} for name, said, path in rows}
        click.echo(json.dumps({"defaults": value, "notes": list(usual.notes)}, indent=2))
        return 0
    for name, said, path in rows:
        text = str(said).lower() if isinstance(said, bool) else safe(said)
        click.echo(f"{name}: {text}  ({safe(path)})")
    if not rows:
        click.echo("no defaults: write them into ~/.config/slurm_dl/config.yaml or .slurm_dl.yaml")
    for note in usual.notes:
        click.echo(f"dlsubmit: note: {note}", err=True)
    return 0
