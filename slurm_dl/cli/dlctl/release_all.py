"""``dlctl release-all``: what slurm_dl left in Slurm is undone."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_dl.cli.commandline import AS_JSON, CONFIG, SET, print_json
from slurm_dl.client_config import SOCKET_NAME
from slurm_dl.config import load
from slurm_dl.daemon.assembly import LEDGER_FILE, slurm_of
from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.ledger.sqlite.store import StoreError, stored_steers, stored_throttles
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.steer import Steer
from slurm_dl.model.throttle import Throttled
from slurm_dl.slurm.write import release_all as releasing
from slurm_dl.text import safe


@click.command("release-all")
@CONFIG
@SET
@click.option("--yes", is_flag=True, help="Do not ask.")
@AS_JSON
def release_all(
    *, config_path: Path | None, settings: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Give the cluster back to plain Slurm: undo whatever slurm_dl left in it.

    SiteFactor 0 on all unfinished jobs of the managed partitions, no reservation of ours, no
    pending job in one, no pending job kept from nodes or put off by us, no throttle of an array
    that the ledger has as ours. It needs Slurm's own
    commands and the configuration, not the daemon; a daemon that acts must be stopped or paused
    first, or it would do it all again. What it cannot see in Slurm it takes from the ledger, if
    that is there and may be read. Waiting jobs come first. With preemption.mode native, running
    jobs keep their SiteFactor as long as Slurm preempts inside preemption.qos: it says what to do
    about that.

    \b
    Example:
      systemctl stop dlschedd && dlctl release-all --yes
    """  # noqa: D301 - \b is click's mark
    config = load(config_path, overrides=settings)
    _refuse_if_acting(config.paths.run_dir / SOCKET_NAME)
    partitions = ", ".join(config.manage.partitions)
    if not yes:
        question = (
            f"Reset SiteFactor of all jobs in {partitions}, drop our reservations and let jobs go?"
        )
        click.confirm(question, abort=True, err=True)
    lines, error = [], ""
    steers, throttles, note = _ledgers_own(config.paths.state_dir / LEDGER_FILE)
    if note:
        click.echo(f"dlctl: {safe(note, 500)}", err=True)
    try:
        for line in releasing.release_all(
            slurm_of(config),
            config.manage.partitions,
            # As long as a QOS is named Slurm may still preempt inside it, whatever the mode.
            within=config.preemption.qos.lower(),
            steers=steers,
            throttles=throttles,
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


def _ledgers_own(path: Path) -> tuple[tuple[Steer, ...], dict[JobId, Throttled], str]:
    """Steers and throttles in the ledger, and what is to be known if it says nothing."""
    try:
        return stored_steers(path), stored_throttles(path), ""
    except StoreError as err:
        note = (
            f"the ledger is not there or cannot be read ({err}): nodes that jobs are kept from are "
            "known by the way they are written; jobs that are put off start by themselves, once "
            "the begin time that was last written is over; arrays keep their ArrayTaskThrottle"
        )
        return (), {}, note


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
