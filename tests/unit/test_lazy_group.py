from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from slurm_dl.cli.dlctl.command import dlctl
from slurm_dl.cli.dlsim.command import dlsim


@pytest.mark.parametrize("group", [dlctl, dlsim], ids=["dlctl", "dlsim"])
def test_help_lists_what_each_command_says_of_itself(group: click.Group) -> None:
    """Also of those whose modules are not imported for it."""
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    own = [
        f"{name} {command.get_short_help_str(200)}"
        for name, command in commands.items()
        if command is not None and not command.hidden
    ]

    listed = CliRunner().invoke(group, ["--help"], terminal_width=200).output

    shown = [" ".join(line.split()) for line in listed.partition("Commands:")[2].splitlines()]
    assert [line for line in shown if line] == own
