"""Our commands called in this process, with the exit statuses that they have as programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from click.testing import CliRunner, Result


def in_process(main: Callable[[Sequence[str]], object], *args: object) -> Result:
    """What the command prints and how it ends, its output piped.

    Args:
        main: Its entry point.
        args: Its words.
    """

    @click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def whole(rest: tuple[str, ...]) -> None:
        main(rest)

    return CliRunner().invoke(whole, [str(a) for a in args])
