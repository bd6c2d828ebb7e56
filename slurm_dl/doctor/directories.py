"""The directories that the daemon writes to, and on which kind of file system each is."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

from slurm_dl.config import Config
from slurm_dl.daemon.assembly import LEDGER_FILE
from slurm_dl.daemon.takeover import lock
from slurm_dl.doctor.findings import Account, Directory, Missing
from slurm_dl.forecast.calibration import FILE_NAME
from slurm_dl.trusted_paths import why_not_trusted

_SHADOW = "shadow"
_WRITTEN = (
    *(lock.FILE_NAME, FILE_NAME, _SHADOW),
    *(LEDGER_FILE, f"{LEDGER_FILE}-wal", f"{LEDGER_FILE}-shm"),
)
"""What dlschedd opens again in its state directory after a restart, beside the audit log."""

_OCTAL = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: Path, mountinfo: str) -> str:
    """Type of the file system that *path* is or would be on; empty if the table does not say.

    Args:
        path: Links in it are followed.
        mountinfo: The text of ``/proc/self/mountinfo``, see proc(5).
    """
    real = Path(os.path.realpath(path))
    best, kind = -1, ""
    for line in mountinfo.split("\n"):
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 5 or not rest:  # noqa: PLR2004 - the fifth field is the mount point
            continue
        point = Path(_OCTAL.sub(lambda m: chr(int(m[1], 8)), fields[4]))
        depth = len(point.parts)
        # Of two on one point, the later one covers the earlier.
        if depth >= best and real.is_relative_to(point):
            best, kind = depth, rest[0]
    return kind


NO_CONFIG = Missing("there is no valid configuration that says where they are")


def directories_of(
    config: Config | None, account: Account | Missing
) -> tuple[Directory, ...] | Missing:
    """What the checks look at of the directories that the daemon writes to."""
    if config is None:
        return NO_CONFIG
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        mounts = ""
    ours = not isinstance(account, Missing) and account.uid == os.geteuid()
    wanted = {
        "paths.state_dir": config.paths.state_dir,
        "paths.audit_log": config.paths.audit_log.parent,
    }
    try:
        found = [_directory(key, path, mounts, ours=ours) for key, path in wanted.items()]
        if isinstance(account, Missing):
            return tuple(found)
        state = config.paths.state_dir
        written = [state / name for name in _WRITTEN]
        written += [*(state / _SHADOW).glob("*"), config.paths.audit_log]
        found[0] = replace(
            found[0],
            open_to=why_not_trusted(state, {account.uid}),
            closed=tuple(str(path) for path in written if not _may_write(path, account)),
        )
        return tuple(found)
    except OSError as err:
        return Missing(f"{err.filename}: {err.strerror}")


def _directory(key: str, path: Path, mounts: str, *, ours: bool) -> Directory:
    """What is known of *path*.

    Raises:
        OSError: It cannot be looked at, for instance for want of permission.
    """
    there = filesystem_of(path, mounts)
    try:
        seen = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return Directory(key=key, path=path, mode=None, filesystem=there)
    return Directory(
        key=key,
        path=path,
        mode=stat.S_IMODE(seen.st_mode),
        uid=seen.st_uid,
        gid=seen.st_gid,
        filesystem=there,
        writable=os.access(path, os.W_OK | os.X_OK) if ours else None,
    )


def rights_at(uid: int, gid: int, mode: int, account: Account) -> int:
    """The permission bits, as those of others, that *account* has by owner, group and mode."""
    if account.uid == 0:
        return 0o7
    if account.uid == uid:
        return mode >> 6 & 0o7
    return (mode >> 3 if gid in account.gids else mode) & 0o7


def _may_write(path: Path, account: Account) -> bool:
    try:
        seen = path.stat()
    except OSError:
        return True  # It is not there, or not for us to see.
    return bool(rights_at(seen.st_uid, seen.st_gid, seen.st_mode, account) & 0o2)
