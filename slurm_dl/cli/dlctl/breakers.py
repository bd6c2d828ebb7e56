"""``dlctl breakers``: where the circuit breakers stand, and letting one go."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_dl.cli.commandline import print_json
from slurm_dl.cli.dlctl.status_text import ends_text, utc
from slurm_dl.cli.shared_options import AS_JSON, SOCKET
from slurm_dl.daemon.control.client import Client, admins_daemon
from slurm_dl.json_types import Json, as_list
from slurm_dl.model.breaker import BREAKERS
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.text import safe


@click.group(invoke_without_command=True)
@AS_JSON
@SOCKET
@click.pass_context
def breakers(ctx: click.Context, *, as_json: bool, socket: Path | None) -> None:
    """List the circuit breakers: their bounds, whether they have tripped, and why.

    While one has tripped nothing new is preempted, moved or split. It stays so over restarts until
    it re-arms by itself, a reload raises its bound or an admin resets it.

    \b
    Examples:
      dlctl breakers
      dlctl breakers reset failed_restarts
    """  # noqa: D301 - \b is click's mark
    if ctx.invoked_subcommand is not None:
        # Given before the subcommand, they are meant for it.
        ctx.default_map = {"reset": {"as_json": as_json, "socket": socket}}
        return
    found = as_list(Client(admins_daemon(socket)).ask("status").get("breakers"))
    if as_json:
        print_json({"breakers": found})
        return
    columns = (
        Column(title="BREAKER"),
        Column(title="BOUND"),
        Column(title="STATE"),
        Column(title="WHY", least=16, folds=True),
    )
    show(columns, [_cells(b) for b in found if isinstance(b, dict)])


@breakers.command()
@click.argument("name", type=click.Choice(BREAKERS))
@AS_JSON
@SOCKET
def reset(name: str, *, as_json: bool, socket: Path | None) -> None:
    """Let a breaker go; what was before does not count for it any more.

    For admins, once the cause is mended. The audit log says who did it.

    \b
    Example:
      dlctl breakers reset failed_restarts
    """  # noqa: D301 - \b is click's mark
    answer = Client(admins_daemon(socket)).ask("reset_breaker", breaker=name)
    if as_json:
        print_json(answer)
    elif answer.get("was_tripped"):
        click.echo(safe(f"reset {name}; it had tripped: {answer.get('why')}", 1000))
    else:
        click.echo(f"{name} had not tripped; what was until now does not count any more")


def _cells(breaker: dict[str, Json]) -> list[str]:
    bound, tripped_s, reset_s = (breaker.get(k) for k in ("bound", "tripped_s", "reset_s"))
    state = "-" if bound is None else "ok"
    if tripped_s is not None:
        state = f"tripped {utc(tripped_s)}, {ends_text(breaker)}"
    elif reset_s is not None:
        by = breaker.get("reset_by")
        state += f", reset {utc(reset_s)} by {by}" if by else f", re-armed {utc(reset_s)}"
    why = "" if breaker.get("why") is None else str(breaker["why"])
    return [str(breaker.get("breaker")), "off" if bound is None else f"{bound:g}", state, why]
