"""``dlctl``: look after a running daemon, its configuration and what it left in Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import click

import slurm_dl
from slurm_dl.cli.by_ssh import VIA
from slurm_dl.cli.commandline import AS_JSON, SOCKET, LazyGroup, print_json, run
from slurm_dl.cli.dlctl.status_text import status_lines
from slurm_dl.daemon.control.client import Client, admins_daemon
from slurm_dl.json_types import JsonObject
from slurm_dl.text import safe

_COMMANDS = {
    "advice": (
        "slurm_dl.cli.dlctl.advice:advice",
        "Advise on what only an admin can do.",
    ),
    "breakers": (
        "slurm_dl.cli.dlctl.daemon_tables:breakers",
        "List the circuit breakers: their bounds, whether they have tripped, and why.",
    ),
    "can-requeue": (
        "slurm_dl.cli.dlctl.can_requeue:can_requeue",
        "Say whether Slurm would put a job back and start it again, and what to do if not.",
    ),
    "check-config": (
        "slurm_dl.cli.dlctl.configuration:check_config",
        "Check a configuration file and name everything that is wrong, with lines.",
    ),
    "client-config": (
        "slurm_dl.cli.dlctl.configuration:client_config",
        "Print client.yaml: what users' commands have to know of the daemon's configuration.",
    ),
    "doctor": (
        "slurm_dl.cli.dlctl.doctor:doctor",
        "Check the configuration, Slurm and the daemon, and say what to do.",
    ),
    "logs": (
        "slurm_dl.cli.dlctl.logs:logs",
        "Print what a job has written, with a mark where each of its runs ended, and why.",
    ),
    "placements": (
        "slurm_dl.cli.policy_lists:placements",
        "List the schemes and rules of placement, and the paper each comes from.",
    ),
    "policies": (
        "slurm_dl.cli.policy_lists:policies",
        "List the policies: the published system each is, what is shown of it, what it needs.",
    ),
    "profile": (
        "slurm_dl.cli.dlctl.profiles:profile",
        "Look at models' profiles, install them, and learn them from real runs.",
    ),
    "promises": (
        "slurm_dl.cli.dlctl.daemon_tables:promises",
        "List the promises of deadlines: their windows, their states, and how many were kept.",
    ),
    "record": (
        "slurm_dl.cli.dlctl.record:record",
        "Record what the daemon sees and plans from its next cycle on, for 'dlsim replay'.",
    ),
    "release-all": (
        "slurm_dl.cli.dlctl.release_all:release_all",
        "Give the cluster back to plain Slurm: undo whatever slurm_dl left in it.",
    ),
    "runtimes": (
        "slurm_dl.cli.dlctl.runtimes:runtimes",
        "Say whether the site's history tells how long jobs will run.",
    ),
    "sandbox": (
        "slurm_dl.cli.dlctl.sandbox:sandbox",
        "Run a private Slurm cluster with fake GPUs in one directory of this host.",
    ),
    "shadow-report": (
        "slurm_dl.cli.dlctl.shadow_report:shadow_report",
        "Say what dlschedd would have done while it ran in shadow mode.",
    ),
    "show-config": (
        "slurm_dl.cli.dlctl.configuration:show_config",
        "Print each value of the configuration with where it comes from.",
    ),
    "test-signal": (
        "slurm_dl.cli.dlctl.test_signal:test_signal",
        "Show that a job saves, stops and goes on when it is preempted, before it is needed.",
    ),
}
"""Commands that are imported on use: where they are, and their line in the help."""


@click.group(cls=LazyGroup, lazy=_COMMANDS)
@click.version_option(slurm_dl.__version__, prog_name="dlctl")
@VIA
def dlctl() -> None:
    """Look after dlschedd: state, pause, configuration, and what it left in Slurm.

    \b
    Examples:
      dlctl doctor
      dlctl status
      dlctl pause --reason "cooling work until noon"
      dlctl check-config /etc/slurm_dl/slurm_dl.yaml
    """  # noqa: D301 - \b is click's mark


@dlctl.command()
@AS_JSON
@SOCKET
def status(*, as_json: bool, socket: Path | None) -> None:
    """Say how the daemon is and what it is doing.

    \b
    Example:
      dlctl status --json
    """  # noqa: D301 - \b is click's mark
    answer = Client(admins_daemon(socket)).ask("status")
    if as_json:
        print_json(answer)
        return
    for title, text in status_lines(answer):
        click.echo(f"{title + ':':<12}{safe(text, 1000)}")


@dlctl.command()
@click.option("--reason", default="", help="Why; everybody who asks for the status reads it.")
@AS_JSON
@SOCKET
def pause(*, reason: str, as_json: bool, socket: Path | None) -> None:
    """Stop the daemon from acting; it goes on looking and answering.

    The pause survives a restart and ends with 'dlctl resume'. Nothing new is signalled, requeued
    or reordered; jobs that were signalled already are not requeued until then. With
    preemption.mode native Slurm goes on preempting by the last SiteFactors.

    \b
    Example:
      dlctl pause --reason "cooling work until noon"
    """  # noqa: D301 - \b is click's mark
    answer = Client(admins_daemon(socket)).ask("pause", reason=reason)
    _done(answer, "paused", as_json=as_json)


@dlctl.command()
@AS_JSON
@SOCKET
def resume(*, as_json: bool, socket: Path | None) -> None:
    """Let the daemon act again after a pause.

    \b
    Example:
      dlctl resume
    """  # noqa: D301 - \b is click's mark
    answer = Client(admins_daemon(socket)).ask("resume")
    _done(answer, "resumed" if answer.get("was_paused") else "was not paused", as_json=as_json)


@dlctl.command(name="reload")
@AS_JSON
@SOCKET
def reload_(*, as_json: bool, socket: Path | None) -> None:
    """Let the daemon read its configuration again, as SIGHUP does.

    A bad configuration is refused, and the old one stays in force.

    \b
    Example:
      dlctl check-config && dlctl reload
    """  # noqa: D301 - \b is click's mark
    answer = Client(admins_daemon(socket)).ask("reload")
    _done(answer, str(answer.get("message")), as_json=as_json)


@dlctl.command()
@click.argument("file", type=click.Path(path_type=Path))
@AS_JSON
@SOCKET
def snapshot(file: Path, *, as_json: bool, socket: Path | None) -> None:
    """Save what the daemon saw and remembered at its last look, for a bug report.

    It holds job names, users and nodes. '-' writes to standard output.

    \b
    Example:
      dlctl snapshot snapshot.json
    """  # noqa: D301 - \b is click's mark
    answer = Client(admins_daemon(socket), timeout_s=120.0).ask("snapshot")
    text = json.dumps(answer["snapshot"])
    if str(file) == "-":
        click.echo(text)
        return
    try:
        file.write_text(f"{text}\n", "utf-8")
    except OSError as err:
        msg = f"{file}: {err.strerror}"
        raise click.ClickException(msg) from None
    _done({"file": str(file), "bytes": len(text)}, f"saved to {file}", as_json=as_json)


def _done(answer: JsonObject, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        click.echo(safe(what, 1000))
    if warning := answer.get("warning"):
        click.echo(f"dlctl: {safe(str(warning), 500)}", err=True)


def main() -> NoReturn:
    """Entry point of ``dlctl``."""
    run(dlctl, "dlctl")
