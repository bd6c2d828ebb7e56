"""``dlctl sandbox``: a private Slurm cluster with fake GPUs on this host, from the command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import click

from slurm_dl.model.errors import ConfigError, SlurmDlError
from slurm_dl.sandbox import (
    LIVELY_SCHEDULER,
    PRODUCTION_SCHEDULER,
    DaemonStatus,
    Sandbox,
    SandboxNodes,
    SandboxSpec,
    SandboxStatus,
)
from slurm_dl.sandbox.layout import check_host
from slurm_dl.sandbox.spec import parse_group, parse_partition

P = ParamSpec("P")
T = TypeVar("T")

_DIRECTORY: Final = click.argument(
    "directory", metavar="[DIR]", default="sandbox", type=click.Path(path_type=Path)
)
_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_DOWN_STATUS: Final = 1


def _example(*lines: str) -> str:
    # \b on a line of its own is click's mark for text that keeps its lines.
    return "\n".join(("\b", "Example:", *(f"  {line}" for line in lines)))


class _WrongInput(click.ClickException):
    exit_code = 2


def _one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ConfigError as err:
            raise _WrongInput(str(err)) from err
        except SlurmDlError as err:
            raise click.ClickException(str(err)) from err

    return run


@click.group(
    epilog=_example(
        "dlctl sandbox up /srv/sandbox --nodes 4 --gpus 4 --type a100",
        'eval "$(dlctl sandbox env /srv/sandbox)"',
        "sinfo",
        "dlctl sandbox down /srv/sandbox",
    )
)
def sandbox() -> None:
    """Run a private Slurm cluster with fake GPUs in one directory of this host.

    It leaves a production Slurm on the same host alone. DIR is ./sandbox unless named.
    """


@sandbox.command(
    epilog=_example(
        "dlctl sandbox up /srv/sandbox --nodes 4 --gpus 4 --type a100",
        "dlctl sandbox up /srv/mixed --group 4x4:a100 --group 2x8:v100 --partition gpu",
        "dlctl sandbox up /srv/sandbox     (resumes the one that is there)",
    )
)
@_DIRECTORY
@click.option("--nodes", type=int, help="Nodes. [default: 4]")
@click.option("--gpus", type=int, help="Fake GPUs of each node. [default: 4]")
@click.option("--type", "gpu_type", help="Type of the GPUs. [default: a100]")
@click.option("--cpus", type=int, help="CPUs of each node, whatever the host has. [default: 16]")
@click.option("--mem-mb", type=int, help="Memory of each node in MiB. [default: 64000]")
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NxG:TYPE",
    help="Nodes of one kind, such as 4x4:a100; may be repeated, instead of --nodes --gpus --type.",
)
@click.option("--nodes-per-leaf", type=int, help="Nodes of a leaf switch, 0: none. [default: 2]")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="NAME[=NODES]",
    help="A partition; may be repeated, the first is the default one. [default: gpu=ALL]",
)
@click.option(
    "--scheduler",
    type=click.Choice(["lively", "production"]),
    help="Decide every few seconds, or at Slurm's own pace. [default: lively]",
)
@click.option(
    "--cred-expire-s", type=int, help="A requeued job is held this long + 1 s. [default: 5]"
)
@click.option("--kill-wait-s", type=int, help="Seconds from SIGTERM to SIGKILL. [default: 5]")
@click.option(
    "--conf",
    "conf",
    multiple=True,
    metavar="KEY=VALUE",
    help="A further line of slurm.conf; may be repeated.",
)
@click.option(
    "--no-slurmd", is_flag=True, help="The controller alone: nodes are known, no job starts."
)
@click.option(
    "--accounting",
    is_flag=True,
    help="A MariaDB and a slurmdbd of its own too, for sacct and sacctmgr.",
)
@click.option("--port", type=int, help="First port of its block. [default: a free one]")
@_one_line_errors
def up(
    directory: Path,
    *,
    nodes: int | None,
    gpus: int | None,
    gpu_type: str | None,
    cpus: int | None,
    mem_mb: int | None,
    groups: tuple[str, ...],
    nodes_per_leaf: int | None,
    partitions: tuple[str, ...],
    scheduler: str | None,
    cred_expire_s: int | None,
    kill_wait_s: int | None,
    conf: tuple[str, ...],
    no_slurmd: bool,
    accounting: bool,
    port: int | None,
) -> None:
    """Start the cluster in DIR, or what is missing of it.

    A DIR that holds a sandbox is resumed with its queue; options that say otherwise are an error.
    """
    check_host()
    # Options that are left out mean what is there, so that a resume need not repeat them.
    there = (directory / "sandbox.json").exists()
    base = Sandbox.open(directory).spec if there else SandboxSpec()
    first = base.groups[0]
    shape = SandboxNodes(
        nodes=_or(nodes, first.nodes),
        gpus=_or(gpus, first.gpus),
        gpu_type=_or(gpu_type, first.gpu_type),
        cpus=_or(cpus, first.cpus),
        mem_mb=_or(mem_mb, first.mem_mb),
    )
    if groups and (nodes, gpus, gpu_type) != (None, None, None):
        message = "--group says nodes, GPUs and type; leave out --nodes, --gpus and --type"
        raise ConfigError(message)
    asked = tuple(parse_group(group, cpus=shape.cpus, mem_mb=shape.mem_mb) for group in groups)
    schedulers = {
        "lively": LIVELY_SCHEDULER,
        "production": PRODUCTION_SCHEDULER,
        None: base.scheduler_parameters,
    }
    spec = SandboxSpec(
        groups=asked or (shape, *base.groups[1:]),
        nodes_per_leaf=_or(nodes_per_leaf, base.nodes_per_leaf),
        cred_expire_s=_or(cred_expire_s, base.cred_expire_s),
        kill_wait_s=_or(kill_wait_s, base.kill_wait_s),
        partitions=tuple(parse_partition(text) for text in partitions) or base.partitions,
        start_slurmd=base.start_slurmd and not no_slurmd,
        scheduler_parameters=schedulers[scheduler],
        slurm_conf_extra=conf or base.slurm_conf_extra,
        accounting=base.accounting or accounting,
    )
    try:
        box = Sandbox.up(directory, spec, port=port)
    except KeyboardInterrupt as err:
        message = "interrupted: 'up' again goes on from here, 'down' ends what was started"
        raise click.ClickException(message) from err
    _print_up(box)


@sandbox.command(
    epilog=_example(
        "dlctl sandbox down /srv/sandbox",
        "dlctl sandbox down --remove /srv/sandbox",
    )
)
@_DIRECTORY
@click.option("--remove", is_flag=True, help="Delete DIR too, with the queue and jobs' output.")
@_one_line_errors
def down(directory: Path, *, remove: bool) -> None:
    """End every process of the cluster in DIR, and no other one.

    Jobs that run are cancelled; jobs that wait are in the queue again after the next up.
    """
    box = Sandbox.open(directory)
    ended = box.down(remove=remove)
    count = f"{len(ended)} processes ended" if ended else "nothing was running"
    click.echo(f"sandbox {box.directory}: {count}{', directory removed' if remove else ''}")


@sandbox.command(
    epilog=_example(
        "dlctl sandbox status /srv/sandbox",
        "dlctl sandbox status --json /srv/sandbox",
    )
)
@_DIRECTORY
@_JSON
@_one_line_errors
def status(directory: Path, *, as_json: bool) -> None:
    """Say which daemons live, and the nodes' states.

    The exit status is 0 when all daemons live and slurmctld answers, else 1.
    """
    found = Sandbox.open(directory).status()
    if as_json:
        click.echo(json.dumps(asdict(found) | {"is_up": found.is_up}, indent=1))
    else:
        _print_status(found)
    if not found.is_up:
        raise SystemExit(_DOWN_STATUS)


@sandbox.command(
    epilog=_example(
        'eval "$(dlctl sandbox env /srv/sandbox)"',
        "squeue",
    )
)
@_DIRECTORY
@_JSON
@_one_line_errors
def env(directory: Path, *, as_json: bool) -> None:
    """Print the environment for Slurm's commands."""
    values = Sandbox.open(directory).env
    if as_json:
        click.echo(json.dumps(values))
        return
    for name, value in values.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _print_up(box: Sandbox) -> None:
    directory = shlex.quote(str(box.directory))
    click.echo(
        f"sandbox {box.directory}: up, {_kinds(box.spec)}, slurmctld on port {box.first_port}"
    )
    click.echo(f'next: eval "$(dlctl sandbox env {directory})" and then sinfo, sbatch, squeue')
    click.echo(f"end:  dlctl sandbox down {directory}")


def _print_status(found: SandboxStatus) -> None:
    answers = "answers" if found.answers else "does not answer"
    click.echo(f"sandbox {found.directory}: {found.cluster}, port {found.first_port}, {answers}")
    _print_rows(
        [
            ("DAEMON", "PID", "STATE"),
            *(
                (daemon.name, "-" if daemon.pid is None else str(daemon.pid), _life(daemon))
                for daemon in found.daemons
            ),
        ]
    )
    if found.nodes:
        click.echo()
        _print_rows([("NODE", "STATE"), *((node.name, node.state) for node in found.nodes)])


def _print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _kinds(spec: SandboxSpec) -> str:
    return ", ".join(
        f"{group.nodes} {'node' if group.nodes == 1 else 'nodes'}"
        + (f" x {group.gpus} {group.gpu_type}" if group.gpus else " without GPUs")
        for group in spec.groups
    )


def _life(daemon: DaemonStatus) -> str:
    if daemon.alive:
        return "alive"
    return "not running" if daemon.pid is None else "died"


def _or(given: T | None, fallback: T) -> T:
    return fallback if given is None else given
