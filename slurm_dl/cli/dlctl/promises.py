"""``dlctl promises``: deadlines that were answered, and how many promises were kept."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_dl.cli.commandline import print_json
from slurm_dl.cli.dlctl.status_text import utc
from slurm_dl.cli.shared_options import AS_JSON, SOCKET
from slurm_dl.daemon.control.client import Client, admins_daemon
from slurm_dl.json_types import Json, as_list, number
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.text import ago

_COLUMNS = (
    *(Column(title=t) for t in ("JOB", "SAYS", "STATE", "DUE", "FROM", "TO", "SPARE")),
    Column(title="WHY", least=16, folds=True),
)


@click.command()
@AS_JSON
@SOCKET
def promises(*, as_json: bool, socket: Path | None) -> None:
    """List the promises of deadlines: their windows, their states, and how many were kept.

    FROM and TO are the window in which GPUs are kept for the job. Where Slurm hides the jobs of
    other users, users see the promises of their own jobs and no totals.

    \b
    Example:
      dlctl promises --json
    """  # noqa: D301 - \b is click's mark
    answer = Client(admins_daemon(socket)).ask("promises")
    listed, totals = as_list(answer.get("promises")), answer.get("totals")
    if as_json:
        print_json({"promises": listed, "totals": totals})
        return
    show(_COLUMNS, [_cells(one) for one in listed if isinstance(one, dict)])
    if isinstance(totals, dict) and isinstance(broken := totals["broken"], dict):
        causes = ", ".join(f"{number} {cause}" for cause, number in broken.items())
        kept = f"{totals['kept']} kept, {totals['withdrawn']} withdrawn"
        click.echo(f"settled so far: {kept}, broken: {causes or 'none'}")


def _cells(one: dict[str, Json]) -> list[str]:
    spare_s = one["spare_s"]
    spare = "-" if spare_s is None else ago(abs(number(spare_s)))
    return [
        *(str(one[key]) for key in ("job", "says", "state")),
        *("-" if one[key] is None else utc(one[key]) for key in ("due_s", "begin_s", "end_s")),
        f"-{spare}" if number(spare_s or 0) < 0 else spare,
        str(one["broken"] or one["why"]),
    ]
