"""Commands on another host, by ssh: for sites without MUNGE between their hosts.

``dlqueue --via ssh:HOST ARGS`` becomes ``ssh -- HOST env ... dlqueue ARGS``, with each word quoted
for the shell there. The exit status is that of the command, or ssh's 255.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import click

from slurm_dl.daemon.control.client import BY_SSH, BY_SSH_ENV
from slurm_dl.model.errors import ElsewhereError

_OPTION = "--via"
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)


def _checked(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None or ctx.resilient_parsing:
        return
    if _after_it(sys.argv[1:]) == sys.argv[1:] or not value.startswith(BY_SSH):
        msg = "write --via ssh:HOST before all that is for the command there"
        raise click.BadParameter(msg, ctx=ctx, param=param)
    raise ElsewhereError(value.removeprefix(BY_SSH))


VIA = click.option(
    _OPTION,
    metavar="ssh:HOST",
    is_eager=True,
    expose_value=False,
    callback=_checked,
    help="First of all options: run the command on HOST, by ssh.",
)


def become_ssh(host: str, name: str) -> str:
    """Run what was typed after *name* on *host*, in place of this process; why it cannot be."""
    if not _HOST.fullmatch(host):
        return f"ssh:{host}: no host: write a name of letters, digits, '.', '-' and '_'"
    words = ["env", f"{BY_SSH_ENV}=1", name, *_after_it(sys.argv[1:])]
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    try:
        if name == "dlsubmit":  # Jobs run, and look for their files, where they are submitted.
            words.insert(1, f"--chdir={Path.cwd()}")
        os.execvp("ssh", ["ssh", *terminal, "--", host, shlex.join(words)])  # noqa: S606, S607 - no shell on this host
    except OSError as err:
        return f"ssh:{host}: {err.strerror}"


def _after_it(words: list[str]) -> list[str]:
    if words[:1] == [_OPTION]:
        return words[2:]
    return words[1:] if words and words[0].startswith(f"{_OPTION}=") else words
