"""``dlctl doctor``: the command, its table and its JSON."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from slurm_dl.cli.commandline import (
    AS_JSON,
    CONFIG,
    EXIT_FAILED,
    EXIT_USAGE,
    SET,
    SOCKET,
    print_json,
)
from slurm_dl.doctor.all_checks import examine
from slurm_dl.doctor.site import CheckResult, Site
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.text import safe

_LONGEST = 400
_STYLES = {"ok": "", "warning": "yellow", "error": "bold red", "skipped": "dim"}


@click.command()
@CONFIG
@SET
@click.option(
    "--account",
    metavar="NAME",
    help="Account whose rights are meant, if not that of the running daemon, or slurm_dl.",
)
@AS_JSON
@SOCKET
def doctor(
    *,
    config_path: Path | None,
    settings: tuple[str, ...],
    account: str | None,
    as_json: bool,
    socket: Path | None,
) -> None:
    """Check the configuration, Slurm and the daemon, and say what to do.

    It changes nothing and needs no running daemon. What you may not see is skipped, with the
    reason: root sees all. The exit status is 1 if there is an error, 2 if it is in the
    configuration; warnings leave it at 0.

    \b
    Examples:
      dlctl doctor
      dlctl doctor --config new.yaml --account slurm_dl --json
    """  # noqa: D301 - \b is click's mark
    told = examine(Site(config=config_path, settings=settings, socket=socket, account=account))
    status = _status(told)
    if as_json:
        checks = [
            {
                "check": name,
                "level": str(result.level),
                "found": result.found,
                "advice": result.advice or None,
            }
            for name, result in told.items()
        ]
        print_json({"ok": status == 0, "checks": checks})
    else:
        _show(told)
    raise SystemExit(status)


def _status(told: dict[str, CheckResult]) -> int:
    if told["configuration"].level == "error":
        return EXIT_USAGE
    return EXIT_FAILED if any(result.level == "error" for result in told.values()) else 0


def _show(told: dict[str, CheckResult]) -> None:
    columns = (
        Column(title="CHECK"),
        Column(title="RESULT"),
        Column(title="FOUND", least=24, folds=True),
        Column(title="WHAT TO DO", least=24, folds=True),
    )
    cells = [[name, str(r.level), r.found, r.advice] for name, r in told.items()]
    styles = {i: _STYLES[row[1]] for i, row in enumerate(cells)}
    show(columns, cells, styles=styles, longest=_LONGEST)
    counts = Counter(row[1] for row in cells)
    click.echo(safe(", ".join(f"{counts[level]} {level}" for level in _STYLES if counts[level])))
