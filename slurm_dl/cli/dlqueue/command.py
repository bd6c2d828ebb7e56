"""``dlqueue``: the queue as the daemon sees it, and why a job is where it is.

It asks the daemon for its last snapshot and never slurmctld, so anybody may run it as often as
they like.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import NoReturn

import click

import slurm_dl
from slurm_dl.cli import completion
from slurm_dl.cli.by_ssh import VIA
from slurm_dl.cli.commandline import SOCKET, FloatRange, LazyGroup, print_json, run
from slurm_dl.cli.dlqueue.columns import (
    COLUMNS,
    START_FORMAT,
    STYLES,
    cells,
    checked,
    show_formatted,
)
from slurm_dl.cli.dlqueue.when import expected_starts, show_stale, when
from slurm_dl.client_config import read_client_config
from slurm_dl.daemon.control.client import Client, daemon_at
from slurm_dl.daemon.control.wire_format import SORTS, QueueRequest
from slurm_dl.json_types import JsonObject, as_list
from slurm_dl.report.terminal_table import show
from slurm_dl.text import safe

_SWEEP = "Show the tasks of dlsubmit --sweep: values, state, steps, and the numbers last reported."


@click.group(
    cls=LazyGroup,
    lazy={"sweep": ("slurm_dl.cli.dlqueue.sweep_table:sweep", _SWEEP)},
    invoke_without_command=True,
)
@click.option("--me", is_flag=True, help="Only my own jobs.")
@click.option(
    "-u", "--user", "users", metavar="LIST", multiple=True, help="Only jobs of these users."
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    metavar="LIST",
    multiple=True,
    shell_complete=completion.partitions,
    help="Only these partitions.",
)
@click.option(
    "-t",
    "--states",
    "states",
    metavar="LIST",
    multiple=True,
    help="Only jobs in these states: PD, R, CG, ..., their long names, or all.",
)
@click.option(
    "-w",
    "--nodelist",
    "nodelists",
    metavar="LIST",
    multiple=True,
    help="Only jobs on these nodes, for instance gpu[01-04].",
)
@click.option(
    "-A", "--account", "accounts", metavar="LIST", multiple=True, help="Only these accounts."
)
@click.option("-q", "--qos", "qos", metavar="LIST", multiple=True, help="Only jobs of these QOS.")
@click.option(
    "-n", "--name", "names", metavar="LIST", multiple=True, help="Only jobs of these names."
)
@click.option(
    "-j",
    "--jobs",
    "job_ids",
    metavar="LIST",
    multiple=True,
    shell_complete=completion.job_ids,
    help="Only these jobs; 4711 is every task of an array, 4711_3 one of them.",
)
@click.option("-h", "--noheader", is_flag=True, help="Without headings.")
@click.option(
    "-S",
    "--sort",
    "sorts",
    metavar="LIST",
    default="rank",
    show_default=True,
    help=f"By what, the first word before all others: {', '.join(SORTS)}. A word with a - before "
    "it turns that order round; running: by state, running jobs first.",
)
@click.option(
    "-o",
    "--format",
    "form",
    metavar="FORMAT",
    callback=checked,
    help="What is shown: squeue's letters, as '%.18i %.9P %t %M %R', or names, as jobid,rank,done.",
)
@click.option(
    "--start",
    is_flag=True,
    help="Jobs that wait, with the time at which half of the forward runs start each; see when.",
)
@click.option(
    "-i",
    "--watch",
    "watch_s",
    metavar="[SECONDS]",
    is_flag=False,
    flag_value=2.0,
    type=FloatRange(min=0.5, max=3600.0),
    help="Stay, and show it anew every so many seconds, 2 if not said; ? shows the keys.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--json-schema",
    "as_schema",
    is_flag=True,
    help="Print the JSON Schema of what --json prints, of the list and of why.",
)
@SOCKET
@click.version_option(slurm_dl.__version__, prog_name="dlqueue")
@VIA
@click.pass_context
def dlqueue(
    ctx: click.Context,
    *,
    me: bool,
    users: tuple[str, ...],
    partitions: tuple[str, ...],
    states: tuple[str, ...],
    nodelists: tuple[str, ...],
    accounts: tuple[str, ...],
    qos: tuple[str, ...],
    names: tuple[str, ...],
    job_ids: tuple[str, ...],
    noheader: bool,
    sorts: str,
    form: str | None,
    start: bool,
    watch_s: float | None,
    as_json: bool,
    as_schema: bool,
    socket: Path | None,
) -> None:
    """Show the queue as dlschedd sees it: tier, rank and attained service of each job.

    RANK is the job's place over all managed jobs, running ones included; Slurm serves waiting jobs
    in this order. TIER is its queue under the policy, 0 is the best. ATTAINED is what it has
    received so far, over all its runs.

    \b
    Examples:
      dlqueue --me
      dlqueue -p gpu -t PD --sort -gpus,user
      dlqueue --watch
      dlqueue why 4711_3
    """  # noqa: D301 - \b is click's mark
    ctx.obj = socket
    if ctx.invoked_subcommand is not None:
        return
    if as_schema:
        schema = Path(__file__).parent / "dlqueue.schema.json"
        click.echo(schema.read_text("utf-8"), nl=False)
        return
    try:
        request = QueueRequest(
            user=((str(os.getuid()),) if me else ()) + _items(users),
            partition=_items(partitions),
            state=_items(states),
            node=_node_names(nodelists),
            account=_items(accounts),
            qos=_items(qos),
            name=_items(names),
            job=_items(job_ids),
            sort=() if sorts == "rank" else _items((sorts,)),
        )
    except ValueError as err:
        msg = f"--sort: {err}"
        raise click.UsageError(msg) from None
    config = read_client_config()
    client = Client(at := daemon_at(socket, config))
    if config.trouble:
        click.echo(f"dlqueue: note: {safe(config.trouble, 500)}", err=True)
    if watch_s is not None:
        if as_json or form or start:
            msg = "--watch and --json, -o or --start exclude each other"
            raise click.UsageError(msg)
        from slurm_dl.cli.dlqueue.watch.start import watch  # noqa: PLC0415 - rich costs 0.1 s

        ctx.exit(watch(client, request, every_s=watch_s, me=me))
    if start:
        answer = expected_starts(request, at)
        form = form or START_FORMAT
    else:
        answer = client.ask("queue", **request.fields())
    jobs = [job for job in as_list(answer.get("jobs")) if isinstance(job, dict)]
    _check_users(_items(users), jobs)
    if as_json:
        print_json(answer)
        return
    show_stale(answer, err=noheader)
    if form:
        show_formatted(jobs, form, header=not noheader)
    else:
        _show(jobs, header=not noheader)
    _warn(answer)


def _show(jobs: list[JsonObject], *, header: bool) -> None:
    styles = {i: STYLES[str(job["state"])] for i, job in enumerate(jobs) if job["state"] in STYLES}
    show(COLUMNS, [cells(job) for job in jobs], header=header, styles=styles)


def _check_users(users: tuple[str, ...], jobs: list[JsonObject]) -> None:
    """Refuse a name that this host does not know and that has no job.

    Raises:
        ClickException: There is one.
    """
    unknown = set(users).difference(str(job["user"]) for job in jobs)
    for name in sorted(name for name in unknown if not name.isdecimal()):
        try:
            pwd.getpwnam(name)
        except (KeyError, ValueError):
            msg = f"there is no user {name}"
            raise click.ClickException(msg) from None


@dlqueue.command()
@click.argument("job", shell_complete=completion.job_ids)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the job's audit lines.")
@click.pass_obj
def why(socket: Path | None, job: str, *, as_json: bool) -> None:
    """Say in sentences why a job is where it is, and what was done to it.

    JOB is a job id; one task of an array is named 4711_3.

    \b
    Example:
      dlqueue why 4711
    """  # noqa: D301 - \b is click's mark
    answer = Client(daemon_at(socket)).ask("why", job=job)
    if as_json:
        print_json(answer)
        return
    show_stale(answer)
    for sentence in as_list(answer.get("sentences")):
        click.echo(safe(str(sentence), 1000))
    _warn(answer)


dlqueue.add_command(when)


def _warn(answer: JsonObject) -> None:
    """Say on standard error if nothing comes of what was shown."""
    if isinstance(paused := answer.get("paused"), dict):
        by, reason = safe(str(paused["by"])), safe(str(paused["reason"]))
        click.echo(
            f"dlqueue: dlschedd is paused by {by}{f': {reason}' if reason else ''}", err=True
        )


def _items(options: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item for option in options for item in option.split(",") if item)


def _node_names(nodelists: tuple[str, ...]) -> tuple[str, ...]:
    """Single names; expanded here, because a short list can stand for very many nodes."""
    if not nodelists:
        return ()
    from ClusterShell.NodeSet import NodeSet, NodeSetException  # noqa: PLC0415 - 40 ms

    try:
        nodes = NodeSet(",".join(nodelists))
    except (NodeSetException, ArithmeticError, AssertionError, ValueError) as err:
        msg = f"-w: {err}"
        raise click.BadParameter(msg) from None
    if len(nodes) > _MOST_NODES:
        msg = f"-w: {len(nodes)} nodes; at most {_MOST_NODES} can be named"
        raise click.BadParameter(msg)
    return tuple(nodes)


_MOST_NODES = 10_000


def main() -> NoReturn:
    """Entry point of ``dlqueue``."""
    run(dlqueue, "dlqueue")
