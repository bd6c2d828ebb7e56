"""What all commands share: exit statuses, one-line errors, safe text, terminal or pipe.

It imports click and nothing heavy, because every command pays for it at every prompt.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from slurm_dl.model.errors import ConfigError, ElsewhereError, SlurmDlError
from slurm_dl.text import escaped

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
