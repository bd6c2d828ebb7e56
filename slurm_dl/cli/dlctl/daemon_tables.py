"""``dlctl breakers`` and ``dlctl promises``: circuit breakers, and answers about deadlines."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_dl.cli.commandline import AS_JSON, SOCKET, print_json
from slurm_dl.cli.dlctl.status_text import ends_text, utc
from slurm_dl.daemon.control.client import Client, admins_daemon
from slurm_dl.json_types import Json, as_list, number
from slurm_dl.model.breaker import BREAKERS
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.text import ago, safe


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
    show(_COLUMNS, [_promise_cells(one) for one in listed if isinstance(one, dict)])
    if isinstance(totals, dict) and isinstance(broken := totals["broken"], dict):
        causes = ", ".join(f"{number} {cause}" for cause, number in broken.items())
        kept = f"{totals['kept']} kept, {totals['withdrawn']} withdrawn"
        click.echo(f"settled so far: {kept}, broken: {causes or 'none'}")


def _promise_cells(one: dict[str, Json]) -> list[str]:
    spare_s = one["spare_s"]
    spare = "-" if spare_s is None else ago(abs(number(spare_s)))
    return [
        *(str(one[key]) for key in ("job", "says", "state")),
        *("-" if one[key] is None else utc(one[key]) for key in ("due_s", "begin_s", "end_s")),
        f"-{spare}" if number(spare_s or 0) < 0 else spare,
        str(one["broken"] or one["why"]),
    ]
