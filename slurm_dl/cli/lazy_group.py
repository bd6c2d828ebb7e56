"""A group of commands, of which some are imported when they are used and not when it is."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

_ARGUMENTS: Final = f"{__name__}.arguments"


def command_line() -> str:
    """The command that runs, in words that a shell takes."""
    context = click.get_current_context()
    return shlex.join([context.find_root().info_name or "", *context.meta.get(_ARGUMENTS, ())])


class LazyGroup(click.Group):
    """A group that lists the commands in *lazy* without importing their modules.

    Args:
        lazy: By name: ``module:attribute`` of the command, and its line in the help and in the
            completion of shells; a command with an empty line is hidden.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:  # noqa: ANN401 - as of click.Group
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep *args* for `command_line`."""
        ctx.meta[_ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in order."""
        return sorted([*super().list_commands(ctx), *self._lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with its module imported."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command and its line."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lines(ctx)))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin with *incomplete*."""
        names = [
            CompletionItem(name, help=line)
            for name, line in self._lines(ctx)
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def _lines(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        for name in self.list_commands(ctx):
            if name in self._lazy:
                line = self._lazy[name][1]
            else:
                line = self.commands[name].get_short_help_str(80)
            if line:
                yield name, line
