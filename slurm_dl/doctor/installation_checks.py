"""Checks of the directories that the daemon writes, the templates and the running daemon."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from slurm_dl import __version__, client_config
from slurm_dl.config.derived_files import client_config_of
from slurm_dl.daemon.assembly import LEDGER_FILE
from slurm_dl.daemon.takeover import lease
from slurm_dl.doctor.controller_config import CannotTellError
from slurm_dl.doctor.site import Account, CheckResult, Site, check, error, ok, warning
from slurm_dl.files import why_not_trusted
from slurm_dl.json_types import JsonObject, number
from slurm_dl.model.errors import ConfigError, SlurmDlError
from slurm_dl.submit import script_templates
from slurm_dl.text import ago

_WRITTEN = (lease.LOCK_FILE, LEDGER_FILE, f"{LEDGER_FILE}-wal", f"{LEDGER_FILE}-shm")
"""What dlschedd opens again in its state directory after a restart, beside the audit log."""

MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_WRITE, _WRITE_AND_ENTER = 0o2, 0o3
_NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre"),
        *("nfs", "nfs4", "orangefs", "panfs", "smb3", "smbfs", "wekafs"),
    )
)
_IN_MEMORY = frozenset({"ramfs", "tmpfs"})


_NEEDED: Final = ("server", "socket", "qos", "native", "profile_dir")
"""Keys of client.yaml without which users' commands do something else."""


@check("client file")
def client_yaml(site: Site) -> CheckResult:
    """Users' commands on this host know what they have to of the configuration."""
    wanted = client_config_of(site.config)
    path = Path(site.environ.get(client_config.ENVIRONMENT) or client_config.DEFAULT_PATH)
    try:
        found = client_config.parse(path.read_text("utf-8"))
        keys = [field.name for field in dataclasses.fields(found) if field.name not in _OF_A_HOST]
    except (FileNotFoundError, UnicodeError):
        found, keys = client_config.ClientConfig(), list(_NEEDED)
    differ = [key for key in keys if getattr(found, key) != getattr(wanted, key)]
    if differ:
        return warning(
            f"{path} differs from the configuration in {', '.join(differ)}",
            f"dlctl client-config > {path}, here and on the login nodes",
        )
    return ok(f"{path} agrees with the configuration, or is not needed")


_OF_A_HOST: Final = frozenset({"server", "munge_socket", "daemon_user", "trouble"})
"""Keys of client.yaml that may differ from host to host."""


@check("directories")
def directories(site: Site) -> CheckResult:
    """The account can write where it has to, and nobody else but root."""
    account, paths = site.account, site.config.paths
    state, who = paths.state_dir, f"{account.name} ({account.why})"
    missing: dict[str, list[str]] = {}
    for key, path in (("paths.state_dir", state), ("paths.audit_log", paths.audit_log.parent)):
        try:
            seen = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            missing.setdefault(str(path), []).append(key)
            continue
        if not _can_write(path, seen, account):
            return error(
                f"{who} cannot write to {path} ({key}, mode {stat.S_IMODE(seen.st_mode):04o}, "
                f"owner {seen.st_uid})",
                f"chown {account.name} {path} && chmod 750 {path}",
            )
        if path != state:
            continue
        if open_to := why_not_trusted(state, {account.uid}):
            return error(
                f"{key}: {open_to}",
                f"only root and {account.name} may write there, or to the directories above",
            )
        written = [*(state / name for name in _WRITTEN), paths.audit_log]
        if closed := [str(file) for file in written if _is_closed(file, account)]:
            return error(
                f"{who} cannot write to {', '.join(closed)[:300]}",
                f"chown -R {account.name} {path}: run dlschedd as {account.name} alone",
            )
    if missing:
        told = "; ".join(f"{path} ({', '.join(keys)})" for path, keys in missing.items())
        return warning(
            f"not there yet: {told}",
            f"systemd makes them at the first start; else install -d -o {account.name} -m 750",
        )
    return ok(f"{who} can write to them")


def _can_write(path: Path, seen: os.stat_result, account: Account) -> bool:
    if account.uid == os.geteuid():
        return os.access(path, os.W_OK | os.X_OK)
    return _rights(seen, account) & _WRITE_AND_ENTER == _WRITE_AND_ENTER


def _is_closed(path: Path, account: Account) -> bool:
    try:
        return not _rights(path.stat(), account) & _WRITE
    except OSError:
        return False  # It is not there, or not for us to see.


def _rights(seen: os.stat_result, account: Account) -> int:
    """The permission bits, as those of others, that *account* has by owner, group and mode."""
    if account.uid == 0:
        return 0o7
    if account.uid == seen.st_uid:
        return seen.st_mode >> 6 & 0o7
    return (seen.st_mode >> 3 if seen.st_gid in account.gids else seen.st_mode) & 0o7


@check("state disk")
def state_disk(site: Site) -> CheckResult:
    """The ledger needs locks that work and a disk that is still there tomorrow."""
    path = site.config.paths.state_dir
    kind = _mount_of(path)[0].lower()
    if not kind:
        msg = f"the file system of {path} is not known"
        raise CannotTellError(msg)
    told, wrong = f"{path} is on {kind}", ""
    if kind in _NETWORK or kind.startswith("fuse."):
        wrong = ", over the network: SQLite's ledger may be damaged there"
    elif kind in _IN_MEMORY:
        wrong = ": attained service is lost with a reboot"
    advice = "point paths.state_dir to a local disk"
    return warning(f"{told}{wrong}", advice) if wrong else ok(told)


@check("command lines")
def command_lines(site: Site) -> CheckResult:
    """PrivateData hides jobs from users who may see them in others' command lines."""
    if not {"all", "jobs"}.intersection(site.controller.options("PrivateData")):
        return ok("PrivateData does not hide jobs")
    options = _mount_of(Path("/proc"))[1:]
    found = next((option for option in options if option.startswith("hidepid=")), "no hidepid")
    if found in {"no hidepid", "hidepid=0", "hidepid=off"}:
        return warning(
            f"PrivateData hides jobs, and /proc ({found}) shows every user all command lines: "
            "which jobs are signalled and changed, and what others type",
            "in /etc/fstab: proc /proc proc defaults,hidepid=2 0 0; then mount -o remount /proc; "
            "on login and compute nodes too",
        )
    return ok(f"/proc has {found}")


def _mount_of(path: Path) -> Sequence[str]:
    """Type of the file system that *path* is or would be on, empty if unknown, and its options."""
    real = Path(os.path.realpath(path))
    best, found = -1, [""]
    for line in MOUNTS.read_text("utf-8", "surrogateescape").split("\n"):
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 5 or not rest:  # noqa: PLR2004 - the fifth field is the mount point
            continue
        point = Path(_OCTAL.sub(lambda m: chr(int(m[1], 8)), fields[4]))
        depth = len(point.parts)
        # Of two on one point, the later one covers the earlier.
        if depth >= best and real.is_relative_to(point):
            best, found = depth, [rest[0], *rest[-1].split(",")]
    return found


_DISK_FULL = ("database or disk is full", os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""What SQLite and the system say where there is no room left."""

_LATE_POLLS = 3
_LATE_LEAST_S = 60.0
_LONGEST_POLL_S = 3600.0  # The most that daemon.poll_s can be


@check("templates")
def templates(site: Site) -> CheckResult:
    """There is something for dlsubmit to fill in."""
    # A user's own are nobody else's business.
    places = [p for p in script_templates.places(site.environ) if p.owner != "user"]
    names = [*script_templates.names(places), "_header"]
    seen = [script_templates.find(name, places) for name in names]
    broken = [f"{t.name}: {why}" for t in seen if (why := _trouble_with(t, site))]
    if broken:
        return error("; ".join(broken)[:400], "correct or remove the file")
    usable = [t for t in seen if not t.name.startswith("_")]
    if not usable:
        return error("dlsubmit finds no template", "install slurm_dl again")
    told = ", ".join(f"{t.name} ({t.owner})" for t in usable)
    used = Path(site.environ.get("SLURM_DL_TEMPLATES") or script_templates.SITE)
    config = site.known_config
    if config is not None and (configured := config.paths.template_dir) != used:
        return warning(
            f"{told}; dlsubmit looks in {used}, paths.template_dir is {configured}",
            f"set SLURM_DL_TEMPLATES={configured} for users (/etc/profile.d)",
        )
    return ok(told)


def _trouble_with(template: script_templates.FoundTemplate, site: Site) -> str:
    try:
        template.text()
    except ConfigError as err:
        return str(err)
    # Users' jobs run what stands there.
    if template.owner != "site":
        return ""
    return why_not_trusted(Path(template.path), {site.account.uid})


@check("daemon")
def daemon(site: Site) -> CheckResult:
    """It runs, and it is the one that is installed."""
    try:
        status = site.status
    except SlurmDlError as err:
        return warning(str(err), "systemctl start dlschedd, or dlschedd --shadow to try it")
    doing = str(status.get("doing") or "does not say what it does")
    runs = str(status.get("version") or "unknown")
    if runs != __version__:
        return warning(
            f"version {runs} runs, {__version__} is installed", "systemctl restart dlschedd"
        )
    if isinstance(paused := status.get("paused"), dict):
        reason = f": {paused.get('reason')}" if paused.get("reason") else ""
        return warning(f"paused by {paused.get('by')}{reason}", "dlctl resume, in time")
    return ok(doing)


@check("cycles")
def cycles(site: Site) -> CheckResult:
    """Its looks succeed, come in time, and what it does is written down."""
    try:
        status = site.status
    except SlurmDlError:
        msg = "dlschedd did not answer"
        raise CannotTellError(msg) from None
    if failing := _failing(status):
        return failing
    age = status.get("age_s")
    if not isinstance(age, int | float):
        return warning("it has not looked at the queue yet", "wait, then see dlctl status")
    config = site.known_config
    poll_s = _LONGEST_POLL_S if config is None else config.daemon.poll_s
    if age > max(_LATE_LEAST_S, _LATE_POLLS * poll_s):
        return warning(
            f"the last look was {ago(age)} ago, looks are to come every {poll_s:g} s",
            "see its log: Slurm may be slow",
        )
    told = f"number {number(status.get('cycles')):.0f}, {ago(age)} ago"
    actions = status.get("actions")
    refused = number(actions.get("failed")) if isinstance(actions, dict) else 0
    if refused:
        return warning(
            f"{told}; {refused:.0f} actions were refused since its start",
            "see 'action failed' in its log",
        )
    return ok(told)


def _failing(status: JsonObject) -> CheckResult | None:
    """What keeps it from its work; None: nothing."""
    if isinstance(audit := status.get("audit"), dict) and audit.get("error"):
        return error(
            f"the audit log cannot be written: {audit.get('error')}",
            "if its disk is full, make room there, or correct paths.audit_log; until then it only "
            "looks",
        )
    last = status.get("trouble")
    why = str(last.get("message")) if isinstance(last, dict) else "it does not say why"
    if failures := number(status.get("failures")):
        return error(
            f"{failures:.0f} looks in a row failed: {why}",
            "the disk of paths.state_dir is full: make room there, and it goes on by itself"
            if any(words in why for words in _DISK_FULL)
            else "it goes on by itself when Slurm answers",
        )
    if bugs := number(status.get("bugs")):
        return error(
            f"{bugs:.0f} cycles ended in a fault of dlschedd: {why}",
            "see its log, and report it with dlctl snapshot FILE",
        )
    return None
