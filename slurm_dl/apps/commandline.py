"""What all commands share: exit statuses, one-line errors, safe text, terminal or pipe.

It imports click and nothing heavy, because every command pays for it at every prompt.
"""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Sequence
from typing import NoReturn

import click

from slurm_dl.model.errors import ConfigError, SlurmDlError

EXIT_FAILED = 1
EXIT_USAGE = 2
_LONGEST_LINE = 4000

# Cc: control characters; Cf: bidirectional overrides and other invisible ones; Cs: lone
# surrogates, which cannot be printed at all; Zl and Zp: line breaks by another name.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: str, longest: int = 200) -> str:
    """*text* of a user on one line, without characters that could steer a terminal."""
    kept = "".join(c for c in text[: 4 * longest] if unicodedata.category(c) not in _UNPRINTABLE)
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


def escaped(text: str, longest: int = 500) -> str:
    r"""*text* with such characters written out (``\x1b``), for logs that must lose nothing."""
    out = "".join(
        c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) in _UNPRINTABLE else c
        for c in text[:longest]
    )
    return out if len(text) <= longest else out + "…"


def duration(seconds: float) -> str:
    """*seconds* as squeue writes them: ``M:SS``, ``H:MM:SS``, ``D-HH:MM:SS``."""
    minutes, secs = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{secs:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def ago(seconds: float) -> str:
    """*seconds* in words short enough for a sentence: ``12 s``, ``3 min``, ``2.5 h``, ``4 d``."""
    seconds = max(0.0, seconds)
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


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
        _fail(name, f"{err.format_message()} (see '{where} --help')", EXIT_USAGE)
    except click.ClickException as err:
        _fail(name, err.format_message(), err.exit_code)
    except click.Abort:
        _fail(name, "stopped", EXIT_FAILED)
    except ConfigError as err:
        _fail(name, str(err), EXIT_USAGE)
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
