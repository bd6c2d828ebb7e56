"""What all commands share: exit statuses, one-line errors, safe text, terminal or pipe.

It imports click and nothing heavy, because every command pays for it at every prompt.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from click.shell_completion import CompletionItem

from slurm_dl.model.errors import ConfigError, ElsewhereError, SlurmDlError
from slurm_dl.text import escaped, safe, seconds_in

EXIT_FAILED = 1
EXIT_USAGE = 2
_LONGEST_LINE = 4000


def print_json(value: object) -> None:
    """*value* on standard output as JSON; non-ASCII and control characters escaped."""
    click.echo(json.dumps(value, indent=2))


def run(command: click.Command, name: str, args: Sequence[str] | None = None) -> NoReturn:
    """Run *command* and exit: 0 done, 1 it failed, 2 the user has to change something."""
    try:
        status = command.main(args=args, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as err:
        where = err.ctx.command_path if err.ctx else name
        told = err.format_message()
        if isinstance(err, click.MissingParameter):
            # click lists choices on lines that begin with a tab.
            told = " ".join(told.split())
        _fail(name, f"{told} (see '{where} --help')", EXIT_USAGE)
    except click.ClickException as err:
        _fail(name, err.format_message(), err.exit_code)
    except click.Abort:
        _fail(name, "stopped", EXIT_FAILED)
    except ConfigError as err:
        _fail(name, str(err), EXIT_USAGE)
    except ElsewhereError as err:
        from slurm_dl.cli.by_ssh import become_ssh  # noqa: PLC0415 - seldom wanted

        _fail(name, become_ssh(err.host, name), EXIT_USAGE)
    except SlurmDlError as err:
        _fail(name, str(err), EXIT_FAILED)
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Without this, the flush at exit fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(name: str, message: str, status: int) -> NoReturn:
    for line in message.rstrip("\n").split("\n"):
        # Paths, arguments and answers may be in it as they were given.
        click.echo(f"{name}: {escaped(line, _LONGEST_LINE)}", err=True)
    sys.exit(status)


class FloatRange(click.FloatRange):
    """A number between bounds; click itself lets ``nan`` through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as of click.FloatRange
        """The number, or click's error of a wrong value."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
SOCKET = click.option(
    "--socket", type=click.Path(path_type=Path), help="The daemon's socket, if not the usual one."
)
CONFIG = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="Configuration file, if not SLURM_DL_CONFIG or /etc/slurm_dl/slurm_dl.yaml.",
)
SET = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set one value as dlschedd's option of that name does.",
)


def seconds_of(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds out of ``30s``, ``90m``, ``24h`` or ``7d``; None if the option is not given."""
    if value is None:
        return None
    seconds = seconds_in(value)
    if seconds is None:
        msg = f"{safe(value, 40)!r} is no time: write 30s, 90m, 24h or 7d"
        raise click.BadParameter(msg, ctx=ctx, param=param)
    return seconds


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
