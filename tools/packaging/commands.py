"""The six commands, each with the section of the manual it belongs to.

Section 1 holds what users and jobs run, section 8 what the administrator runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from slurm_dl.cli.dlctl.command import dlctl
from slurm_dl.cli.dlqueue.command import dlqueue
from slurm_dl.cli.dlschedd.command import dlschedd
from slurm_dl.cli.dlsim.command import dlsim
from slurm_dl.cli.dlsubmit.command import dlsubmit

SECTIONS = {"dlsubmit": 1, "dlqueue": 1, "dlrun": 1, "dlsim": 1, "dlctl": 8, "dlschedd": 8}
"""Every command of the package, and its section."""

CLICK: dict[str, click.Command] = {
    "dlsubmit": dlsubmit,
    "dlqueue": dlqueue,
    "dlsim": dlsim,
    "dlctl": dlctl,
    "dlschedd": dlschedd,
}
"""Those that click reads the command line of; dlrun has Python's own parser."""


@dataclass(frozen=True, slots=True)
class Described:
    """A command or subcommand as click knows it.

    Attributes:
        words: Its name, as typed: ``("dlctl", "profile", "add")``.
        section: Of the manual.
    """

    words: tuple[str, ...]
    section: int
    command: click.Command
    context: click.Context

    @property
    def page(self) -> str:
        """Name of its page: ``dlctl-profile-add``."""
        return "-".join(self.words)


def described() -> Iterator[Described]:
    """Every command and subcommand that is not hidden, parents first."""
    for name, command in CLICK.items():
        context = click.Context(command, info_name=name, max_content_width=100)
        yield from _below((name,), SECTIONS[name], command, context)


def _below(
    words: tuple[str, ...], section: int, command: click.Command, context: click.Context
) -> Iterator[Described]:
    yield Described(words, section, command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is None or child.hidden:
                continue
            inner = click.Context(child, info_name=name, parent=context)
            yield from _below((*words, name), section, child, inner)
