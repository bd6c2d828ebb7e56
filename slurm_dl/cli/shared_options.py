"""Options that several commands have, each worded once."""

from __future__ import annotations

import re
from pathlib import Path

import click

from slurm_dl.text import safe

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

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
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", value)
    if match is None or not int(match[1]):
        msg = f"{safe(value, 40)!r} is no time: write 30s, 90m, 24h or 7d"
        raise click.BadParameter(msg, ctx=ctx, param=param)
    return int(match[1]) * _UNITS_S[match[2]]
