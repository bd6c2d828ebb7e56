"""Reads what the checks look at: files, Slurm by a handful of commands, and the daemon's answer.

Each thing is read once. Nothing here judges, and nothing that fails ends it: what could not be read
is `Missing`, with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import grp
import os
import pwd
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import slurm_dl
from slurm_dl.config import Config, engine_settings, load_with_origins
from slurm_dl.daemon import assembly
from slurm_dl.daemon.control.client import (
    CONFIG_ENV,
    DEFAULT_CONFIG,
    DEFAULT_RUN_DIR,
    SOCKET_ENV,
    Client,
)
from slurm_dl.daemon.control.wire_format import SOCKET_NAME
from slurm_dl.doctor.controller_config import PartitionRecord, read_controller, read_partitions
from slurm_dl.doctor.directories import NO_CONFIG, directories_of
from slurm_dl.doctor.findings import (
    Account,
    ConfigFile,
    ControllerReply,
    Findings,
    Missing,
    OwnPreemption,
    Profiles,
    Template,
)
from slurm_dl.json_types import JsonObject
from slurm_dl.model.errors import ClusterError, ConfigError, SlurmDlError
from slurm_dl.profiles import load_profiles
from slurm_dl.profiles.directory import SUFFIX
from slurm_dl.slurm.preflight import check_native
from slurm_dl.slurm.pyslurm.reader_choice import reader_choice
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.queue_reader import ReaderChoice
from slurm_dl.slurm.read.record_parser import job_records, new_nonce
from slurm_dl.slurm.read.squeue_fields import queue_arguments
from slurm_dl.slurm.running_config import config_values
from slurm_dl.slurm.slurm_conf import PLUGIN, site_factor_plugin
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import script_templates
from slurm_dl.trusted_paths import why_not_trusted

SERVICE_ACCOUNT = "slurm_dl"
"""Of etc/sysusers.d and etc/systemd."""

_DAEMON_TIMEOUT_S = 10.0
_ROOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What the command line said.

    Attributes:
        account: Whose rights are meant; None: found out.
    """

    config: Path | None = None
    settings: Sequence[str] = ()
    socket: Path | None = None
    account: str | None = None


def gather(wanted: DoctorOptions, environ: Mapping[str, str] = os.environ) -> Findings:
    """Read everything.

    Raises:
        ConfigError: There is no such account as was named.
    """
    file = _config_file(wanted, environ)
    config = None if isinstance(file, Missing) else file.config
    socket = _socket(wanted, config, environ)
    account = _account(wanted, socket, config)
    slurm = _slurm(config)
    asked = _asked(slurm)
    site = Path(environ.get("SLURM_DL_TEMPLATES") or script_templates.SITE)
    return Findings(
        file=file,
        account=account,
        slurm=asked,
        partitions=_partitions(slurm) if isinstance(asked, ControllerReply) else _NOT_REACHED,
        admin_level=_admin_level(slurm, account) if _has_accounting(asked) else _NO_SLURMDBD,
        native=_native(slurm, config) if isinstance(asked, ControllerReply) else _NOT_REACHED,
        reader=_reader(slurm, config) if isinstance(asked, ControllerReply) else _NOT_REACHED,
        weights=_weights(slurm, config) if isinstance(asked, ControllerReply) else _NOT_REACHED,
        profiles=_profiles(slurm, config, account),
        directories=directories_of(config, account),
        templates=_templates(environ, account),
        template_dir=site,
        status=_status(socket),
        version=slurm_dl.__version__,
    )


_NOT_REACHED = Missing("Slurm was not reached")
_NO_SLURMDBD = Missing("there is no slurmdbd, or Slurm was not reached")


def _config_file(wanted: DoctorOptions, environ: Mapping[str, str]) -> ConfigFile | Missing:
    path = wanted.config or Path(environ.get(CONFIG_ENV) or DEFAULT_CONFIG)
    try:
        with path.open("rb"):
            pass
    except PermissionError:
        return Missing(f"{path} may not be read by {_name_of(os.geteuid())}")
    except (OSError, ValueError):
        pass  # What is wrong with it is said below.
    try:
        # As dlschedd reads it: it trusts no file that others may write to.
        config, _ = load_with_origins(
            path, overrides=wanted.settings, require_private=True, environ=environ
        )
    except ConfigError as err:
        return ConfigFile(path=path, mistakes=tuple(str(err).splitlines()) or ("unreadable",))
    return ConfigFile(path=path, config=config)


def _socket(wanted: DoctorOptions, config: Config | None, environ: Mapping[str, str]) -> Path:
    if wanted.socket is not None:
        return wanted.socket
    if wanted.config is None and environ.get(SOCKET_ENV):
        return Path(environ[SOCKET_ENV])
    return (config.paths.run_dir if config else DEFAULT_RUN_DIR) / SOCKET_NAME


def _status(socket: Path) -> JsonObject | Missing:
    try:
        return Client(socket, _DAEMON_TIMEOUT_S).ask("status")
    except SlurmDlError as err:
        return Missing(str(err))


# Slurm.


def _slurm(config: Config | None) -> Slurm | Missing:
    try:
        return assembly.slurm_of(config) if config else Slurm()
    except ConfigError as err:
        return Missing(str(err))


def _asked(slurm: Slurm | Missing) -> ControllerReply | Missing:
    if isinstance(slurm, Missing):
        return slurm
    before_s = time.time()
    try:
        text = slurm.run("scontrol", "show", "config")
    except ClusterError as err:
        return Missing(str(err))
    after_s, controller = time.time(), read_controller(text)
    plugin = site_factor_plugin(config_values(text), slurm.slurm_conf)
    if plugin:
        # Slurm does not always show it.
        values = {**controller.values, PLUGIN.lower(): plugin}
        controller = dataclasses.replace(controller, values=values)
    return ControllerReply(controller=controller, before_s=before_s, after_s=after_s)


def _partitions(slurm: Slurm | Missing) -> tuple[PartitionRecord, ...] | Missing:
    if isinstance(slurm, Missing):
        return slurm
    try:
        return read_partitions(slurm.run("scontrol", "--all", "show", "partition", "--oneliner"))
    except ClusterError as err:
        return Missing(str(err))


def _has_accounting(asked: ControllerReply | Missing) -> bool:
    if isinstance(asked, Missing):
        return False
    return "slurmdbd" in asked.controller.values.get("accountingstoragetype", "")


def _admin_level(slurm: Slurm | Missing, account: Account | Missing) -> str | Missing:
    if isinstance(slurm, Missing):
        return slurm
    if isinstance(account, Missing):
        return account
    try:
        shown = slurm.run("sacctmgr", "-nP", "show", "user", "format=User,AdminLevel")
    except ClusterError as err:
        return Missing(str(err))
    levels = dict(line.split("|")[:2] for line in shown.split("\n") if line.count("|") == 1)
    if account.name not in levels and os.geteuid() not in {0, account.uid}:
        # PrivateData=users hides others; root and the account itself see it.
        return Missing(f"slurmdbd shows {_name_of(os.geteuid())} no user {account.name}")
    return levels.get(account.name, "")


def _reader(slurm: Slurm | Missing, config: Config | None) -> ReaderChoice | Missing:
    if isinstance(slurm, Missing):
        return slurm
    try:
        return reader_choice(slurm, "auto" if config is None else config.cluster.reader)
    except ClusterError as err:
        return Missing(str(err))


def _native(slurm: Slurm | Missing, config: Config | None) -> OwnPreemption | Missing:
    if config is None or config.preemption.mode != "native":
        return Missing("preemption.mode is not native")
    if isinstance(slurm, Missing):
        return slurm
    try:
        remark = check_native(
            slurm,
            qos=config.preemption.qos.lower(),
            settings=engine_settings.settings_of(config),
            poll_s=config.daemon.poll_s,
        )
    except ConfigError as err:
        lines = str(err).splitlines()
        return OwnPreemption(
            lacks=tuple(line.removeprefix("preemption.mode: native: ") for line in lines)
        )
    except ClusterError as err:
        return Missing(str(err))
    return OwnPreemption(remark=remark)


def _weights(slurm: Slurm | Missing, config: Config | None) -> tuple[int, ...] | Missing:
    if isinstance(slurm, Missing):
        return slurm
    if config is None:
        return NO_CONFIG
    try:
        # All of them: sinfo takes no partitions beside --all, and hides some without it.
        shown = slurm.run("sinfo", "--noheader", "--all", "--exact", "--format=%R %w")
        lines = [line.split() for line in shown.splitlines()]
        return tuple(sorted({int(w) for name, w in lines if name in config.manage.partitions}))
    except (ClusterError, ValueError) as err:
        return Missing(f"Weights of nodes cannot be read: {str(err)[:200]}")


def _profiles(
    slurm: Slurm | Missing, config: Config | None, account: Account | Missing
) -> Profiles | Missing:
    if config is None:
        return NO_CONFIG
    directory = config.paths.profile_dir
    try:
        # Whose they are is asked for dlschedd's account, which need not be ours.
        profiles = engine_settings.profiles_of(config, reader="user")
        site = load_profiles(directory, reader="user") if directory.exists() else {}
        mistakes = tuple(_foreign(directory, account)) if directory.exists() else ()
    except ConfigError as err:
        return Profiles(mistakes=tuple(str(err).splitlines()) or ("unreadable",))
    except OSError as err:
        return Missing(f"{directory}: {err.strerror}")
    return Profiles(
        mistakes=mistakes,
        models=len({p.name for p in profiles.values()}),
        of_site=len({p.name for p in site.values()}),
        unknown=_unknown_models(slurm, profiles),
    )


def _foreign(directory: Path, account: Account | Missing) -> Iterator[str]:
    """What dlschedd would not believe, because it is neither root's nor its own."""
    if isinstance(account, Missing):
        return
    for path in (directory, *sorted(directory.glob(f"*{SUFFIX}"))):
        uid = path.stat().st_uid
        if uid not in {_ROOT, account.uid}:
            yield f"{path}: belongs to {_name_of(uid)}, neither root nor {account.name}"


def _unknown_models(
    slurm: Slurm | Missing, profiles: Collection[str]
) -> Mapping[str, int] | Missing:
    """Models that unfinished jobs name and nobody has a profile of, most jobs first."""
    if isinstance(slurm, Missing):
        return slurm
    nonce, reader = new_nonce(), ClaimReader(max_grace_s=assembly.LONGEST_GRACE_S)
    try:
        shown = slurm.run("squeue", *queue_arguments(("JobID", "Comment"), nonce))
        records, _ = job_records(shown, nonce, 2)
    except ClusterError as err:
        return Missing(str(err))
    models = (reader.read(comment).model for _, comment in records)
    counts = Counter(m for m in models if m is not None and m not in profiles)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


# This host.


def _account(wanted: DoctorOptions, socket: Path, config: Config | None) -> Account | Missing:
    if wanted.account is not None:
        try:
            return _account_of(pwd.getpwnam(wanted.account), "--account")
        except (KeyError, ValueError):
            msg = f"--account: there is no account {wanted.account[:80]!r} on this host"
            raise ConfigError(msg) from None
    with contextlib.suppress(OSError, ValueError, KeyError):
        return _account_of(pwd.getpwuid(socket.lstat().st_uid), "owner of the running daemon")
    with contextlib.suppress(KeyError):
        return _account_of(pwd.getpwnam(SERVICE_ACCOUNT), "the service's account")
    if config is not None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            owner = config.paths.state_dir.stat().st_uid
            return _account_of(pwd.getpwuid(owner), "owner of paths.state_dir")
    try:
        return _account_of(pwd.getpwuid(os.geteuid()), "you")
    except KeyError:
        return Missing(f"uid {os.geteuid()} has no account on this host")


def _account_of(entry: pwd.struct_passwd, why: str) -> Account:
    try:
        gids = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except OSError:
        gids = [g.gr_gid for g in grp.getgrall() if entry.pw_name in g.gr_mem]
    return Account(
        name=entry.pw_name, uid=entry.pw_uid, gids=frozenset([entry.pw_gid, *gids]), why=why
    )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _templates(
    environ: Mapping[str, str], account: Account | Missing
) -> tuple[Template, ...] | Missing:
    owners = set() if isinstance(account, Missing) else {account.uid}
    try:
        # A user's own are nobody else's business.
        where = [p for p in script_templates.places(environ) if p.owner != "user"]
        found = [
            script_templates.find(name, where)
            for name in [*script_templates.names(where), "_header"]
        ]
        return tuple(
            Template(name=f.name, owner=f.owner, trouble=_trouble(f, owners)) for f in found
        )
    except (ConfigError, OSError) as err:
        return Missing(str(err))


def _trouble(template: script_templates.FoundTemplate, owners: Collection[int]) -> str:
    try:
        template.text()
    except ConfigError as err:
        return str(err)
    # Users' jobs run what stands there.
    return why_not_trusted(Path(template.path), owners) if template.owner == "site" else ""
