"""``dlctl check-config`` and ``dlctl show-config``: the file of the site, and what is in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slurm_dl import config as configs
from slurm_dl.cli.commandline import AS_JSON, CONFIG, SET, SOCKET, print_json
from slurm_dl.config import derived_files
from slurm_dl.config.derived_files import client_config_of
from slurm_dl.daemon.control.client import Client, admins_daemon
from slurm_dl.json_types import Json, as_list
from slurm_dl.model.errors import ConfigError
from slurm_dl.report.terminal_table import Column, show


@click.command("check-config")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@SET
@click.option("--schema", is_flag=True, help="Print a JSON schema of the file for editors instead.")
@AS_JSON
def check_config(
    file: Path | None, settings: tuple[str, ...], *, schema: bool, as_json: bool
) -> None:
    """Check a configuration file and name everything that is wrong, with lines.

    FILE is the usual one if not given. The exit status is 2 if something is wrong.

    \b
    Examples:
      dlctl check-config
      dlctl check-config new.yaml --json
      dlctl check-config --schema > slurm_dl.schema.json
    """  # noqa: D301 - \b is click's mark
    if schema:
        print_json(derived_files.schema())
        return
    try:
        config, origins = configs.load_with_origins(file, overrides=settings)
    except ConfigError as err:
        if as_json:
            print_json({"ok": False, "errors": str(err).splitlines()})
            raise SystemExit(2) from None
        raise
    note = config.preemption.grace_note()
    if as_json:
        print_json({"ok": True, "file": str(origins.path), "notes": [note] if note else []})
        return
    click.echo(f"{origins.path}: ok")
    if note:
        click.echo(f"dlctl: note: {note}", err=True)


@click.command("client-config")
@CONFIG
@click.option(
    "--server",
    "servers",
    metavar="HOST:PORT",
    multiple=True,
    help="A daemon, in the order in which users' commands ask them; else that of this host.",
)
def client_config(config_path: Path | None, servers: tuple[str, ...]) -> None:
    """Print client.yaml: what users' commands have to know of the daemon's configuration.

    Put it into /etc/slurm_dl on each host on which users work, readable for all.

    \b
    Examples:
      dlctl client-config > client.yaml
      dlctl client-config --server ctl1:6822 --server ctl2:6822
    """  # noqa: D301 - \b is click's mark
    config, origins = configs.load_with_origins(config_path)
    click.echo(f"# Written by dlctl client-config from {origins.path}\n", nl=False)
    click.echo(client_config_of(config, servers).text(), nl=False)


@click.command("show-config")
@CONFIG
@SET
@click.option("--running", is_flag=True, help="What the running daemon has in force instead.")
@AS_JSON
@SOCKET
def show_config(
    *,
    config_path: Path | None,
    settings: tuple[str, ...],
    running: bool,
    as_json: bool,
    socket: Path | None,
) -> None:
    """Print each value of the configuration with where it comes from.

    \b
    Examples:
      dlctl show-config
      dlctl show-config --running
    """  # noqa: D301 - \b is click's mark
    values: list[Json] = []
    if running:
        answer = Client(admins_daemon(socket, config_path)).ask("config")
        values = as_list(answer.get("values"))
    else:
        for row in configs.show(*configs.load_with_origins(config_path, overrides=settings)):
            value: Any = row.value
            values.append({"key": row.key, "value": value, "origin": row.origin})
    if as_json:
        print_json({"values": values})
        return
    columns = (
        Column(title="KEY"),
        Column(title="VALUE", least=12),
        Column(title="ORIGIN", least=8),
    )
    rows = [v for v in values if isinstance(v, dict)]
    show(columns, [[str(r["key"]), _written(r["value"]), str(r["origin"])] for r in rows])


def _written(value: Json) -> str:
    if isinstance(value, list):
        return ", ".join(_written(item) for item in value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_written(item)}' for key, item in value.items())}}}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return "" if value is None else str(value)
