"""Whether what is ours is in order: the configuration, files, templates and the running daemon."""

from __future__ import annotations

import errno
import os

from slurm_dl.doctor.check_result import CannotTellError, CheckResult, error, ok, warning
from slurm_dl.doctor.directories import rights_at
from slurm_dl.doctor.findings import Account, Directory, Findings, Missing, need
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.text import ago

_WRITE_AND_ENTER = 0o3
_NETWORK = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "smb3",
        "smbfs",
        "wekafs",
    }
)
_DISK_FULL = ("database or disk is full", os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""What SQLite and the system say where there is no room left."""

_IN_MEMORY = frozenset({"ramfs", "tmpfs"})
_LATE_POLLS = 3
_LATE_LEAST_S = 60.0
_LONGEST_POLL_S = 3600.0
"""The most that daemon.poll_s can be."""


def configuration(found: Findings) -> CheckResult:
    """The file says what it is to say, and only root could have written it."""
    file = need(found.file)
    if file.mistakes:
        if len(file.mistakes) == 1:
            return error(file.mistakes[0], "correct it; dlschedd does not start like this")
        told = f"{file.mistakes[0]} (and {len(file.mistakes) - 1} more)"
        return error(told, "dlctl check-config names all mistakes")
    return ok(str(file.path))


def directories(found: Findings) -> CheckResult:
    """The account can write where it has to, and nobody else but root."""
    account = need(found.account)
    missing: dict[str, list[str]] = {}
    for place in need(found.directories):
        if place.mode is None:
            missing.setdefault(str(place.path), []).append(place.key)
        elif not _can_write(place, account):
            return error(
                f"{account.name} ({account.why}) cannot write to {place.path} ({place.key}, mode "
                f"{place.mode:04o}, owner {place.uid})",
                f"chown {account.name} {place.path} && chmod 750 {place.path}",
            )
        elif place.open_to:
            return error(
                f"{place.key}: {place.open_to}",
                f"only root and {account.name} may write there, or to the directories above",
            )
        elif place.closed:
            return error(
                f"{account.name} ({account.why}) cannot write to {', '.join(place.closed)[:300]}",
                f"chown -R {account.name} {place.path}: run dlschedd as {account.name} alone",
            )
    if missing:
        told = "; ".join(f"{path} ({', '.join(keys)})" for path, keys in missing.items())
        return warning(
            f"not there yet: {told}",
            f"systemd makes them at the first start; else install -d -o {account.name} -m 750",
        )
    return ok(f"{account.name} ({account.why}) can write to them")


def _can_write(place: Directory, account: Account) -> bool:
    if place.writable is not None:
        return place.writable
    assert place.mode is not None  # noqa: S101 - narrows the type
    rights = rights_at(place.uid, place.gid, place.mode, account)
    return rights & _WRITE_AND_ENTER == _WRITE_AND_ENTER


def state_disk(found: Findings) -> CheckResult:
    """The ledger needs locks that work and a disk that is still there tomorrow."""
    place = next(d for d in need(found.directories) if d.key == "paths.state_dir")
    kind = place.filesystem.lower()
    if not kind:
        msg = f"the file system of {place.path} is not known"
        raise CannotTellError(msg)
    if kind in _NETWORK or kind.startswith("fuse."):
        return warning(
            f"{place.path} is on {kind}, over the network: SQLite's ledger may be damaged there",
            "point paths.state_dir to a local disk",
        )
    if kind in _IN_MEMORY:
        return warning(
            f"{place.path} is on {kind}: attained service is lost with a reboot",
            "point paths.state_dir to a local disk",
        )
    return ok(f"{place.path} is on {kind}")


def templates(found: Findings) -> CheckResult:
    """There is something for dlsubmit to fill in."""
    seen = need(found.templates)
    broken = [f"{t.name}: {t.trouble}" for t in seen if t.trouble]
    if broken:
        return error("; ".join(broken)[:400], "correct or remove the file")
    usable = [t for t in seen if not t.name.startswith("_")]
    if not usable:
        return error("dlsubmit finds no template", "install slurm_dl again")
    told = ", ".join(f"{t.name} ({t.owner})" for t in usable)
    configured = found.known_config
    if configured is not None and configured.paths.template_dir != found.template_dir:
        return warning(
            f"{told}; dlsubmit looks in {found.template_dir}, paths.template_dir is "
            f"{configured.paths.template_dir}",
            f"set SLURM_DL_TEMPLATES={configured.paths.template_dir} for users (/etc/profile.d)",
        )
    return ok(told)


def daemon(found: Findings) -> CheckResult:
    """It runs, and it is the one that is installed."""
    if isinstance(found.status, Missing):
        return warning(found.status.why, "systemctl start dlschedd, or dlschedd --shadow to try it")
    status = found.status
    doing = str(status.get("doing") or "does not say what it does")
    runs = str(status.get("version") or "unknown")
    if runs != found.version:
        return warning(
            f"version {runs} runs, {found.version} is installed", "systemctl restart dlschedd"
        )
    if isinstance(paused := status.get("paused"), dict):
        reason = f": {paused.get('reason')}" if paused.get("reason") else ""
        return warning(f"paused by {paused.get('by')}{reason}", "dlctl resume, in time")
    return ok(doing)


def cycles(found: Findings) -> CheckResult:
    """Its looks succeed, come in time, and what it does is written down."""
    if isinstance(found.status, Missing):
        msg = "dlschedd did not answer"
        raise CannotTellError(msg)
    status = found.status
    failing = _failing(status)
    if failing is not None:
        return failing
    age = status.get("age_s")
    if not isinstance(age, int | float):
        return warning("it has not looked at the queue yet", "wait, then see dlctl status")
    config = found.known_config
    poll_s = _LONGEST_POLL_S if config is None else config.daemon.poll_s
    if age > max(_LATE_LEAST_S, _LATE_POLLS * poll_s):
        return warning(
            f"the last look was {ago(age)} ago, looks are to come every {poll_s:g} s",
            "see its log: Slurm may be slow",
        )
    told = f"number {_number(status, 'cycles'):.0f}, {ago(age)} ago"
    actions = status.get("actions")
    refused = _number(actions, "failed") if isinstance(actions, dict) else 0
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
    if failures := _number(status, "failures"):
        why = _trouble(status)
        return error(
            f"{failures:.0f} looks in a row failed: {why}",
            "the disk of paths.state_dir is full: make room there, and it goes on by itself"
            if any(words in why for words in _DISK_FULL)
            else "it goes on by itself when Slurm answers",
        )
    if bugs := _number(status, "bugs"):
        return error(
            f"{bugs:.0f} cycles ended in a fault of dlschedd: {_trouble(status)}",
            "see its log, and report it with dlctl snapshot FILE",
        )
    return None


def _number(answer: JsonObject, key: str) -> float:
    value: Json = answer.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _trouble(status: JsonObject) -> str:
    last = status.get("trouble")
    return str(last.get("message")) if isinstance(last, dict) else "it does not say why"
