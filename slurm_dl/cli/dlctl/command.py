"""``dlctl``: look after a running daemon, its configuration and what it left in Slurm."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

import slurm_dl
from slurm_dl.cli.commandline import print_json, run
from slurm_dl.cli.dlctl.status_text import as_list, status_lines
from slurm_dl.cli.shared_options import AS_JSON, CONFIG, SET, SOCKET
from slurm_dl.daemon.control.client import Client, DaemonError, socket_path
from slurm_dl.daemon.control.wire_format import SOCKET_NAME
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.text import safe

if TYPE_CHECKING:
    from slurm_dl.config import Config
    from slurm_dl.model.steer import Steer

_LAZY = {
    "breakers": (
        "slurm_dl.cli.dlctl.breakers:breakers",
        "List the circuit breakers that stop preemption, and reset one.",
    ),
    "doctor": (
        "slurm_dl.cli.dlctl.doctor:doctor",
        "Check the configuration, Slurm and the daemon, and say what to do.",
    ),
    "placements": (
        "slurm_dl.cli.dlctl.placements:placements",
        "List the schemes and rules of placement, and the paper each comes from.",
    ),
    "policies": (
        "slurm_dl.cli.dlctl.policies:policies",
        "List the policies: the published system each is, what is shown of it, what it needs.",
    ),
    "profile": (
        "slurm_dl.cli.dlctl.profiles:profile",
        "Look at models' profiles, install them, and learn them from real runs.",
    ),
    "runtimes": (
        "slurm_dl.cli.dlctl.runtimes:runtimes",
        "Say whether the site's history tells how long jobs will run.",
    ),
    "sandbox": (
        "slurm_dl.cli.dlctl.sandbox:sandbox",
        "A private Slurm cluster with fake GPUs, to try things on.",
    ),
    "shadow-report": (
        "slurm_dl.cli.dlctl.shadow_report:shadow_report",
        "Say what dlschedd would have done while it ran in shadow mode.",
    ),
    "test-signal": (
        "slurm_dl.cli.dlctl.test_signal:test_signal",
        "Show that a job saves, stops and goes on when it is preempted.",
    ),
}
"""Commands that live elsewhere: where, and their line in the help."""


class _LazyGroup(click.Group):
    """A group that imports the commands in `_LAZY` when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _LAZY:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = _LAZY[cmd_name][0].partition(":")
        command: Any = getattr(importlib.import_module(module), attribute)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = None if name in _LAZY else self.get_command(ctx, name)
            rows.append((name, command.get_short_help_str(80) if command else _LAZY[name][1]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_LazyGroup)
@click.version_option(slurm_dl.__version__, prog_name="dlctl")
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
    answer = Client(socket_path(socket)).ask("status")
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
    answer = Client(socket_path(socket)).ask("pause", reason=reason)
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
    answer = Client(socket_path(socket)).ask("resume")
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
    answer = Client(socket_path(socket)).ask("reload")
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
    import json  # noqa: PLC0415 - for this command alone

    answer = Client(socket_path(socket), timeout_s=120.0).ask("snapshot")
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


@dlctl.command("check-config")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@SET
@AS_JSON
def check_config(file: Path | None, settings: tuple[str, ...], *, as_json: bool) -> None:
    """Check a configuration file and name everything that is wrong, with lines.

    FILE is the usual one if not given. The exit status is 2 if something is wrong.

    \b
    Examples:
      dlctl check-config
      dlctl check-config new.yaml --json
    """  # noqa: D301 - \b is click's mark
    from slurm_dl.config import load_with_origins  # noqa: PLC0415 - pydantic and YAML: 0.1 s
    from slurm_dl.model.errors import ConfigError  # noqa: PLC0415

    try:
        config, origins = load_with_origins(file, overrides=settings)
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


@dlctl.command("show-config")
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
        answer = Client(socket_path(socket, config_path)).ask("config")
        values = as_list(answer.get("values"))
    else:
        from slurm_dl import config  # noqa: PLC0415 - pydantic and YAML: 0.1 s

        for row in config.show(*config.load_with_origins(config_path, overrides=settings)):
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


@dlctl.command("release-all")
@CONFIG
@SET
@click.option("--yes", is_flag=True, help="Do not ask.")
@AS_JSON
def release_all(
    *, config_path: Path | None, settings: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Give the cluster back to plain Slurm: undo whatever slurm_dl left in it.

    SiteFactor 0 on all unfinished jobs of the managed partitions, no reservation of ours, no
    pending job in one, no pending job kept from nodes or put off by us. It needs Slurm's own
    commands and the configuration, not the daemon; a daemon that acts must be stopped or paused
    first, or it would do it all again. What it cannot see in Slurm it takes from the ledger, if
    that is there and may be read. Waiting jobs come first. With preemption.mode native, running
    jobs keep their SiteFactor as long as Slurm preempts inside preemption.qos: it says what to do
    about that.

    \b
    Example:
      systemctl stop dlschedd && dlctl release-all --yes
    """  # noqa: D301 - \b is click's mark
    from slurm_dl.config import load  # noqa: PLC0415
    from slurm_dl.daemon.assembly import LEDGER_FILE, slurm_of  # noqa: PLC0415 - numpy, pydantic, YAML
    from slurm_dl.model.errors import ClusterError  # noqa: PLC0415
    from slurm_dl.slurm.write.release_all import release_all as undo  # noqa: PLC0415

    config = load(config_path, overrides=settings)
    _refuse_if_acting(config.paths.run_dir / SOCKET_NAME)
    partitions = ", ".join(config.manage.partitions)
    if not yes:
        question = (
            f"Reset SiteFactor of all jobs in {partitions}, drop our reservations and let jobs go?"
        )
        click.confirm(question, abort=True, err=True)
    lines, error = [], ""
    steers, note = _ledgers_steers(config.paths.state_dir / LEDGER_FILE)
    if note:
        click.echo(f"dlctl: {safe(note, 500)}", err=True)
    try:
        for line in undo(
            slurm_of(config), config.manage.partitions, within=_within(config), steers=steers
        ):
            lines.append(line)
            if not as_json:
                click.echo(safe(line, 500))
    except ClusterError as err:
        error = str(err)
    if as_json:
        print_json({"ok": not error, "done": lines, "error": error or None, "note": note or None})
    elif not lines and not error:
        click.echo("nothing of ours is left")
    if error:
        raise click.ClickException(error)


def _ledgers_steers(path: Path) -> tuple[tuple[Steer, ...], str]:
    """What the ledger says jobs are kept from, and what is to be known if it says nothing."""
    from slurm_dl.ledger.sqlite.store import StoreError, stored_steers  # noqa: PLC0415 - numpy

    try:
        return stored_steers(path), ""
    except StoreError as err:
        note = (
            f"the ledger is not there or cannot be read ({err}): nodes that jobs are kept from are "
            "known by the way they are written; jobs that are put off start by themselves, once "
            "the begin time that was last written is over"
        )
        return (), note


def _within(config: Config) -> str:
    """The QOS inside which Slurm may preempt by itself; empty: none.

    Also where the mode has just been changed: as long as a QOS is named it may still do so.
    """
    return config.preemption.qos.lower()


def _refuse_if_acting(path: Path) -> None:
    try:
        answer = Client(path, timeout_s=5.0).ask("status")
    except DaemonError:
        return  # It is down, or not ours to ask: this must work all the same.
    if answer.get("standby"):
        msg = f"this dlschedd would take over ({answer.get('doing')}): stop it, and the other one"
        raise click.ClickException(msg)
    if answer.get("live") and not answer.get("paused"):
        msg = f"dlschedd (pid {answer.get('pid')}) acts: stop it, or 'dlctl pause', first"
        raise click.ClickException(msg)


def _done(answer: JsonObject, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        click.echo(safe(what, 1000))
    if warning := answer.get("warning"):
        click.echo(f"dlctl: {safe(str(warning), 500)}", err=True)


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


def main() -> NoReturn:
    """Entry point of ``dlctl``."""
    run(dlctl, "dlctl")
