"""Options that several commands have, each worded once."""

from __future__ import annotations

from pathlib import Path

import click

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
