"""Runs a program as etc/systemd/dlschedd.service would have it, where systemd does not run.

``python tests/confined.py --user U --writable DIR ... -- ARGV`` as root: what the unit says is put
into force by the same means of the kernel that systemd uses (a mount namespace, the bounding set,
seccomp filters), as far as one host with a cluster below /tmp can have it. Left out:
PrivateTmp and PrivateDevices (the cluster's files are there), ProtectProc, RemoveIPC, and limits
that need a control group.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

UNIT = Path(__file__).parents[1] / "etc" / "systemd" / "dlschedd.service"

_CLONE_NEWNS, _MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    0x20000,
    1,
    0x20,
    0x1000,
    0x4000,
    0x40000,
)
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_ALLOW, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
_EQUAL, _MASKED_EQUAL = 4, 7
_PROT_WRITE, _PROT_EXEC, _SHM_EXEC = 2, 4, 0o100000
_NEW_NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
_HOMES = ("/home", "/root", "/run/user")
_KERNELS = ("/proc/sys", "/sys")


def directives(unit: Path = UNIT) -> dict[str, list[str]]:
    """The unit's settings by key, each with its values in order."""
    settings = defaultdict(list)
    for line in unit.read_text("utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            settings[key].append(value)
    return dict(settings)


def words(settings: dict[str, list[str]], key: str) -> list[str]:
    """The words of a setting whose values add up."""
    return " ".join(settings.get(key, [])).split()


_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        err = ctypes.get_errno()
        raise OSError(err, f"{what}: {os.strerror(err)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    done = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode())
    _check(done, f"mount {target}")


def confine_files(writable: list[str]) -> None:
    """ProtectSystem=strict, ProtectHome, and what of the kernel's own trees may not be written."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    for directory in writable:
        _mount(directory, directory, "", _MS_BIND | _MS_REC)
    for tree in _KERNELS:
        _mount(tree, tree, "", _MS_BIND | _MS_REC)
    _cover_homes()
    # The last mount on a path is the one that counts; escapes are octal.
    mounts = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    targets = {line.split()[4].encode().decode("unicode_escape") for line in mounts}
    for target in sorted(targets):
        free = target in writable or target == "/proc" or target.startswith("/dev")
        if not free:
            # A container may end meanwhile, and its mounts with it.
            with contextlib.suppress(FileNotFoundError):
                _mount("none", target, "", _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _cover_homes() -> None:
    """Empty directories in place of homes; this Python stays reachable if it lies in one."""
    python = os.path.realpath(sys.base_prefix)
    for home in _HOMES:
        if not Path(home).is_dir():
            continue
        inside = python.startswith(f"{home}/")
        held = os.open(python, os.O_PATH) if inside else -1
        _mount("tmpfs", home, "tmpfs", 0, "mode=755" if inside else "mode=000")
        if inside:
            Path(python).mkdir(parents=True)
            _mount(f"/proc/self/fd/{held}", python, "", _MS_BIND | _MS_REC)
            os.close(held)


def become(user: str) -> None:
    """User=, an empty bounding set and NoNewPrivileges=."""
    entry = pwd.getpwnam(user)
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # There are no more.
    os.setgroups([])
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    os.environ.update(HOME=entry.pw_dir, USER=user, LOGNAME=user)


class _Compare(ctypes.Structure):
    _fields_ = [
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    ]


class _Filter:
    """One seccomp filter, made by libseccomp as systemd makes its own."""

    def __init__(self, default: int) -> None:
        self._lib = ctypes.CDLL("libseccomp.so.2")
        self._lib.seccomp_init.restype = ctypes.c_void_p
        self._lib.seccomp_init.argtypes = [ctypes.c_uint32]
        self._lib.seccomp_load.argtypes = [ctypes.c_void_p]
        self._lib.seccomp_rule_add_array.argtypes = [
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.POINTER(_Compare),
        ]
        self._context = self._lib.seccomp_init(default)

    def rule(self, action: int, call: str, *compares: tuple[int, int, int, int]) -> None:
        """Do *action* on a system call; a call that this machine does not have is left out."""
        number = self._lib.seccomp_syscall_resolve_name(call.encode())
        if number < 0:
            return
        array = (_Compare * max(1, len(compares)))(*(_Compare(*c) for c in compares))
        done = self._lib.seccomp_rule_add_array(self._context, action, number, len(compares), array)
        if done != 0:
            raise OSError(-done, f"seccomp rule for {call}")

    def load(self) -> None:
        """Put it into force, for good."""
        done = self._lib.seccomp_load(self._context)
        if done != 0:
            raise OSError(-done, "seccomp_load")


def call_groups() -> dict[str, list[str]]:
    """The groups of system calls that systemd knows, by name."""
    shown = subprocess.run(
        [shutil.which("systemd-analyze") or "systemd-analyze", "syscall-filter", "--no-pager"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    groups: dict[str, list[str]] = {}
    for line in shown.splitlines():
        if line.startswith("@"):
            members = groups.setdefault(line.strip(), [])
        elif line.startswith("    ") and not line.strip().startswith("#"):
            members.append(line.strip())
        elif line.strip().startswith("# @"):
            members.append(line.strip().removeprefix("# "))
    return groups


def allowed_calls(settings: dict[str, list[str]]) -> set[str]:
    """The system calls that SystemCallFilter= leaves, with systemd's implicit @default."""
    groups = call_groups()

    def expand(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        if not name.startswith("@"):
            return {name}
        below = (expand(n, seen | {name}) for n in groups.get(name, []) if n not in seen)
        return set().union(*below)

    calls = expand("@default")
    for value in settings["SystemCallFilter"]:
        names = set().union(*(expand(name) for name in value.removeprefix("~").split()))
        calls = calls - names if value.startswith("~") else calls | names
    return calls


def confine_calls(settings: dict[str, list[str]], *, calls: set[str]) -> None:
    """RestrictAddressFamilies=, MemoryDenyWriteExecute=, RestrictNamespaces=, SystemCallFilter=."""
    families = {int(getattr(socket, name)) for name in words(settings, "RestrictAddressFamilies")}
    some = _Filter(_ALLOW)
    for family in set(range(46)) - families:
        some.rule(0x00050061, "socket", (0, _EQUAL, family, 0))
    if settings["MemoryDenyWriteExecute"] == ["yes"]:
        both = _PROT_WRITE | _PROT_EXEC
        some.rule(_EPERM, "mmap", (2, _MASKED_EQUAL, both, both))
        some.rule(_EPERM, "mprotect", (2, _MASKED_EQUAL, _PROT_EXEC, _PROT_EXEC))
        some.rule(_EPERM, "pkey_mprotect", (2, _MASKED_EQUAL, _PROT_EXEC, _PROT_EXEC))
        some.rule(_EPERM, "shmat", (2, _MASKED_EQUAL, _SHM_EXEC, _SHM_EXEC))
    if settings["RestrictNamespaces"] == ["yes"]:
        some.rule(_EPERM, "unshare")
        some.rule(_EPERM, "setns")
        some.rule(_ENOSYS, "clone3")
        for flag in _NEW_NAMESPACES:
            some.rule(_EPERM, "clone", (0, _MASKED_EQUAL, flag, flag))
    allow = _Filter(_EPERM)
    for call in sorted(calls):
        allow.rule(_ALLOW, call)
    some.load()
    allow.load()


def main() -> None:
    """Confine ourselves, and become the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--user", required=True)
    parser.add_argument("--writable", action="append", default=[])
    parser.add_argument("argv", nargs="+")
    options = parser.parse_args()
    settings = directives()
    calls = allowed_calls(settings)
    confine_files([os.path.realpath(d) for d in options.writable])
    os.chdir("/")
    os.umask(int(settings["UMask"][0], 8))
    become(options.user)
    confine_calls(settings, calls=calls)
    os.execv(options.argv[0], options.argv)  # noqa: S606 - there is no shell to be had


if __name__ == "__main__":
    main()
