"""``dlctl doctor``: the command, its table and its JSON."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from slurm_dl.cli.commandline import EXIT_FAILED, EXIT_USAGE, print_json
from slurm_dl.cli.shared_options import AS_JSON, CONFIG, SET, SOCKET
from slurm_dl.doctor.all_checks import CheckOutcome, examine
from slurm_dl.doctor.findings import ConfigFile, Findings
from slurm_dl.doctor.gather import DoctorOptions, gather
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
    wanted = DoctorOptions(config=config_path, settings=settings, socket=socket, account=account)
    found = gather(wanted)
    rows = examine(found)
    status = _status(found, rows)
    if as_json:
        checks = [
            {
                "check": row.name,
                "level": str(row.verdict.level),
                "found": row.verdict.found,
                "advice": row.verdict.advice or None,
            }
            for row in rows
        ]
        print_json({"ok": status == 0, "checks": checks})
    else:
        _show(rows)
    raise SystemExit(status)


def _status(found: Findings, rows: tuple[CheckOutcome, ...]) -> int:
    if isinstance(found.file, ConfigFile) and found.file.mistakes:
        return EXIT_USAGE
    return EXIT_FAILED if any(row.verdict.level == "error" for row in rows) else 0


def _show(rows: tuple[CheckOutcome, ...]) -> None:
    columns = (
        Column(title="CHECK"),
        Column(title="RESULT"),
        Column(title="FOUND", least=24, folds=True),
        Column(title="WHAT TO DO", least=24, folds=True),
    )
    cells = [[r.name, str(r.verdict.level), r.verdict.found, r.verdict.advice] for r in rows]
    styles = {i: _STYLES[str(row.verdict.level)] for i, row in enumerate(rows)}
    show(columns, cells, styles=styles, longest=_LONGEST)
    counts = Counter(str(row.verdict.level) for row in rows)
    told = ", ".join(f"{counts[level]} {level}" for level in _STYLES if counts[level])
    click.echo(safe(told))
