"""``dlschedd``: the daemon's command line, from options to a running loop."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

import slurm_dl
from slurm_dl.cli.commandline import CONFIG, EXIT_FAILED, print_json, run
from slurm_dl.model.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from slurm_dl.config import Config
    from slurm_dl.daemon.audit_log import AuditLog
    from slurm_dl.daemon.components import Components, Loaded
    from slurm_dl.daemon.main_loop import Daemon
    from slurm_dl.daemon.metrics.endpoint import Endpoint
    from slurm_dl.daemon.observers import Observer
    from slurm_dl.daemon.preconditions import PauseSwitch
    from slurm_dl.daemon.takeover.leadership import Leadership
    from slurm_dl.slurm.releases import Release

PRIVATE = 0o027


@click.command()
@CONFIG
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set one value, for instance daemon.poll_s=5; wins over the file.",
)
@click.option("--shadow", is_flag=True, help="Look and plan, and never act.")
@click.option("--live", is_flag=True, help="Act, whatever daemon.shadow says.")
@click.option("--once", is_flag=True, help="Look once, print the plan and exit; --live acts on it.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print JSON.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Ledger and audit log in this directory instead of the configured one.",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Control socket in this directory instead of the configured one.",
)
@click.option("--allow-root", is_flag=True, help="Run as root although SlurmUser is not root.")
@click.version_option(slurm_dl.__version__, prog_name="dlschedd")
def dlschedd(
    *,
    config_path: Path | None,
    settings: tuple[str, ...],
    shadow: bool,
    live: bool,
    once: bool,
    as_json: bool,
    state_dir: Path | None,
    run_dir: Path | None,
    allow_root: bool,
) -> None:
    """Order a Slurm queue by attained service, and preempt by checkpoint and requeue.

    It runs beside slurmctld until SIGTERM or SIGINT; SIGHUP reads the configuration again. In
    shadow mode, the default of daemon.shadow, it plans and reports and touches nothing.

    \b
    Examples:
      dlschedd --once                     # print what it would do now
      dlschedd --shadow                   # watch, plan, serve dlqueue; touch nothing
      dlschedd --live --config /etc/slurm_dl/slurm_dl.yaml
    """  # noqa: D301 - \b is click's mark
    if shadow and live:
        msg = "--shadow and --live exclude each other"
        raise click.UsageError(msg)
    if as_json and not once:
        msg = "--json goes with --once"
        raise click.UsageError(msg)
    overrides = (*settings, *_path_overrides(state_dir, run_dir))

    def reread() -> Loaded:
        from slurm_dl.config import load_with_origins, show  # noqa: PLC0415
        from slurm_dl.daemon.components import Loaded  # noqa: PLC0415 - numpy, structlog, pydantic

        config, origins = load_with_origins(config_path, overrides=overrides, require_private=True)
        return Loaded(config, tuple(show(config, origins)), config_path, overrides)

    def is_live(config: Config) -> bool:
        return live or not (shadow or config.daemon.shadow)

    loaded = reread()
    _refuse_root(loaded.config, allowed=allow_root)
    # What it writes is for its account and its group.
    os.umask(PRIVATE)
    if once:
        _once(loaded, reread, act=live, as_json=as_json)
    else:
        _serve(loaded, reread, is_live)


def _path_overrides(state_dir: Path | None, run_dir: Path | None) -> Iterator[str]:
    # JSON's strings are YAML's.
    if state_dir is not None:
        yield f"paths.state_dir={json.dumps(str(state_dir.absolute()))}"
        yield f"paths.audit_log={json.dumps(str(state_dir.absolute() / 'audit.jsonl'))}"
    if run_dir is not None:
        yield f"paths.run_dir={json.dumps(str(run_dir.absolute()))}"


def _serve(loaded: Loaded, reread: Callable[[], Loaded], is_live: Callable[[Config], bool]) -> None:
    from slurm_dl import logging_setup  # noqa: PLC0415 - see reread
    from slurm_dl.daemon.metrics.endpoint import Endpoint  # noqa: PLC0415
    from slurm_dl.daemon.preconditions import WithdrawnError  # noqa: PLC0415
    from slurm_dl.daemon.takeover.leadership import contending, sole_leadership  # noqa: PLC0415
    from slurm_dl.ledger.sqlite.store import SupersededError  # noqa: PLC0415

    config = loaded.config
    _configure_logs(config)
    log = logging_setup.logger()
    if not config.takeover.enabled:
        with (
            sole_leadership(config, log) as leadership,
            contextlib.closing(Endpoint(config, log)) as endpoint,
        ):
            _act(loaded, reread, is_live, leadership, endpoint)
        return
    with (
        contending(loaded, log, live=is_live(config)) as contender,
        contextlib.closing(Endpoint(config, log)) as endpoint,
    ):
        while (lease := contender.wait()) is not None:
            loaded = _reread(loaded, reread, log)
            try:
                with contender.leadership(lease) as leadership:
                    _act(loaded, reread, is_live, leadership, endpoint)
            except (WithdrawnError, SupersededError) as err:
                # Nothing of what was in memory is kept: the next turn is like a new daemon's.
                log.warning("acts no more", because=str(err))
            else:
                return


def _reread(loaded: Loaded, reread: Callable[[], Loaded], log: FilteringBoundLogger) -> Loaded:
    """The configuration as it is now; the old one if that is no good."""
    kept = "the old configuration stays in force"
    try:
        fresh = reread()
    except ConfigError as err:
        log.warning(kept, because=str(err))
        return loaded
    if fresh.fixed != loaded.fixed:
        log.warning(kept, because="what cannot change at run time has changed: restart dlschedd")
        return loaded
    return fresh


def _act(
    loaded: Loaded,
    reread: Callable[[], Loaded],
    is_live: Callable[[Config], bool],
    leadership: Leadership,
    endpoint: Endpoint,
) -> None:
    """Run a daemon for one turn, until a signal.

    Raises:
        WithdrawnError: The turn is over.
        SupersededError: Likewise.
    """
    from slurm_dl import logging_setup  # noqa: PLC0415 - see reread
    from slurm_dl.cli.dlschedd.startup import when_slurm_answers  # noqa: PLC0415
    from slurm_dl.daemon.assembly import LEDGER_FILE  # noqa: PLC0415
    from slurm_dl.daemon.control.job_history import JobHistory  # noqa: PLC0415
    from slurm_dl.daemon.control.reception import uids_of  # noqa: PLC0415
    from slurm_dl.daemon.control.request_handlers import RequestHandlers  # noqa: PLC0415
    from slurm_dl.daemon.control.status_answer import ControlContext  # noqa: PLC0415
    from slurm_dl.daemon.live_recordings import LiveRecordings  # noqa: PLC0415
    from slurm_dl.daemon.metrics.counters import MetricsTally  # noqa: PLC0415
    from slurm_dl.daemon.preconditions import WithdrawnError  # noqa: PLC0415
    from slurm_dl.doctor.all_checks import ProblemWatch  # noqa: PLC0415
    from slurm_dl.ledger.sqlite.reader import LedgerReader  # noqa: PLC0415

    config = loaded.config
    log = logging_setup.logger()

    def first(assemble: Callable[[Config], Components], config: Config) -> Components:
        return when_slurm_answers(assemble, config, log, sleep=leadership.sleep)

    tally, watch = MetricsTally(), ProblemWatch(log, loaded.path, loaded.settings)
    recordings = LiveRecordings()
    endpoint.follow(config)
    ledger = LedgerReader(config.paths.state_dir / LEDGER_FILE)
    observers = (tally, watch, recordings)
    made = _daemon(loaded, reread, is_live, first, leadership, observers=observers)
    with made as (daemon, audit, pause):
        answers = RequestHandlers(
            ControlContext(
                board=daemon.board,
                audit=audit,
                pause=pause,
                reload=daemon.reload,
                reset_breaker=daemon.reset_breaker,
                wake=daemon.wake,
                past=JobHistory(ledger),
                recordings=recordings,
            )
        )
        with (
            leadership.answering(answers) as reception,
            endpoint.showing(daemon.board, tally, audit=audit, pause=pause),
        ):

            def reloaded(fresh: Config) -> None:
                reception.admins = uids_of([str(a) for a in fresh.control.admins])
                _configure_logs(fresh)
                endpoint.follow(fresh)

            daemon.on_reloaded = reloaded
            daemon.board.problems, daemon.board.checked_s = watch.standing, watch.checked_s
            leadership.on_lost = daemon.wake
            log.info(
                "started",
                pid=os.getpid(),
                mode="live" if is_live(config) else "shadow",
                paused=pause.pause is not None,
                partitions=",".join(config.manage.partitions),
                policy=config.policy.order,
            )
            leadership.begins(audit)
            try:
                daemon.run()
            except WithdrawnError as err:
                leadership.ends(audit, str(err))
                raise


def _configure_logs(config: Config) -> None:
    from slurm_dl import logging_setup  # noqa: PLC0415 - see reread

    logging_setup.configure(level=config.daemon.log_level, form=config.daemon.log_format)


@contextlib.contextmanager
def _daemon(
    loaded: Loaded,
    reread: Callable[[], Loaded],
    is_live: Callable[[Config], bool],
    first: Callable[[Callable[[Config], Components], Config], Components],
    leadership: Leadership,
    *,
    observers: Sequence[Observer] = (),
) -> Iterator[tuple[Daemon, AuditLog, PauseSwitch]]:
    """A daemon with its audit log and pause switch, for one turn; not running yet.

    Args:
        first: Makes the parts that it begins with, from what makes all of them.
        observers: Who is told of each cycle, beside those that the configuration asks for.
    """
    from slurm_dl import logging_setup  # noqa: PLC0415 - see reread
    from slurm_dl.cli.dlschedd.startup import observers_of  # noqa: PLC0415
    from slurm_dl.daemon.assembly import assemble, slurm_of  # noqa: PLC0415
    from slurm_dl.daemon.audit_log import AuditLog  # noqa: PLC0415
    from slurm_dl.daemon.main_loop import Daemon  # noqa: PLC0415
    from slurm_dl.daemon.preconditions import PauseSwitch  # noqa: PLC0415
    from slurm_dl.shadow.recorder import import_segments  # noqa: PLC0415
    from slurm_dl.slurm.accounting.job_runs import Accounting  # noqa: PLC0415

    config = loaded.config
    log = logging_setup.logger()
    pause = PauseSwitch(config.paths.state_dir)
    audit = AuditLog(config.paths.audit_log, warn=log.error)
    assemble_for = functools.partial(assemble, generation=leadership.generation)
    parts = first(assemble_for, config)
    import_segments(config.paths.state_dir, parts.ledger)
    daemon = Daemon(
        loaded=loaded,
        parts=parts,
        reread=reread,
        assemble=assemble_for,
        live=is_live,
        audit=audit,
        pause=pause,
        log=log,
        accounting=Accounting(slurm_of(config)),
        preconditions=leadership.preconditions,
        observers=(*observers_of(lambda: daemon.ledger), *observers),
    )
    daemon.on_first_look = lambda: _warn_of_release(parts.cluster.release, log)
    try:
        yield daemon, audit, pause
    finally:
        daemon.close()
        audit.close()


def _warn_of_release(release: Release, log: FilteringBoundLogger) -> None:
    """Say once what is to be known of Slurm's release; nothing if all is well."""
    from slurm_dl.slurm.releases import (  # noqa: PLC0415 - see reread
        no_preemption,
        unsupported,
    )

    if why := unsupported(release):
        log.warning("this Slurm is not supported", because=why, see="dlctl doctor")
    if why := no_preemption(release):
        log.warning("nothing is preempted under this Slurm", because=why)


def _once(loaded: Loaded, reread: Callable[[], Loaded], *, act: bool, as_json: bool) -> None:
    """Look once and, with *act*, act once; print what was planned and done."""
    from slurm_dl import logging_setup  # noqa: PLC0415 - see reread
    from slurm_dl.cli.dlschedd.plan_text import as_object, show_plan  # noqa: PLC0415
    from slurm_dl.daemon.takeover.leadership import leadership_for_once  # noqa: PLC0415

    def first(assemble: Callable[[Config], Components], config: Config) -> Components:
        return assemble(config)

    # What the loop would say is printed here as a whole.
    logging_setup.configure(level="error", form="console")
    with (
        leadership_for_once(loaded.config, logging_setup.logger()) as leadership,
        _daemon(loaded, reread, lambda _: act, first, leadership) as (daemon, _, pause),
    ):
        cycle = daemon.cycle_once(acting=False)
        if act and pause.pause is None:
            cycle = daemon.cycle_once(acting=True)
        if as_json:
            print_json(as_object(cycle))
        else:
            show_plan(cycle)
            if act and pause.pause is not None:
                click.echo(f"dlschedd: paused by {pause.pause.by}: nothing was done", err=True)
    if any(done.error for done in cycle.done) or (act and pause.pause is not None):
        raise SystemExit(EXIT_FAILED)


def _refuse_root(config: Config, *, allowed: bool) -> None:
    """Root only where Slurm itself runs as root, or somebody insists.

    Raises:
        ConfigError: We are root and neither holds.
    """
    if os.geteuid() != 0 or allowed:
        return
    try:
        user = _slurm_user(config)
    except ClusterError as err:
        because = f"SlurmUser could not be found out: {err}; is cluster.slurm_conf to be set?"
    else:
        because = f"SlurmUser is {user}"
        if user == "root":
            return
    msg = (
        f"refusing to run as root ({because}): nothing it does needs root, and a fault would cost "
        "more; use an account with AdminLevel=Operator or SlurmUser's, or --allow-root"
    )
    raise ConfigError(msg)


def _slurm_user(config: Config) -> str:
    """Slurm's account: from slurm.conf if it is named, else from slurmctld.

    Raises:
        ClusterError: slurmctld does not say it.
    """
    from slurm_dl.daemon.assembly import slurm_of  # noqa: PLC0415 - see reread

    if config.cluster.slurm_conf:
        with contextlib.suppress(OSError):
            return slurm_user_in(Path(config.cluster.slurm_conf).read_text("utf-8", "replace"))
    shown = slurm_of(config).run("scontrol", "show", "config")
    found = re.search(r"^SlurmUser\s*=\s*([^\s(]+)", shown, re.MULTILINE)
    if not found:
        msg = "'scontrol show config' does not name it"
        raise ClusterError(msg)
    return found[1]


def slurm_user_in(slurm_conf: str) -> str:
    """SlurmUser as a slurm.conf's text has it; root where it says nothing, as in Slurm."""
    found = re.findall(r"^\s*SlurmUser\s*=\s*([^\s#]+)", slurm_conf, re.MULTILINE | re.IGNORECASE)
    return str(found[-1]) if found else "root"


def main() -> NoReturn:
    """Entry point of ``dlschedd``."""
    # What asks for a reload before there is anything to reload must not end the start.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run(dlschedd, "dlschedd")
