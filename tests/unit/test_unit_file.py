"""The unit gives dlschedd nothing that it does not need, and says so by systemd's own measure."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from confined import UNIT, directives, words

ROOT = Path(__file__).parents[2]
ANALYZE = shutil.which("systemd-analyze") or ""
PRIVILEGES = ROOT / "docs" / "operate" / "security.md"

SWITCHED_ON = (
    *("LockPersonality", "MemoryDenyWriteExecute", "NoNewPrivileges", "PrivateDevices"),
    *("PrivateMounts", "PrivateTmp", "ProtectClock", "ProtectControlGroups", "ProtectHome"),
    *("ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables"),
    *("RemoveIPC", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"),
)
GIVES = (
    *("BindPaths", "DeviceAllow", "DynamicUser", "ExecStartPost", "ExecStartPre", "ExecStopPost"),
    *("ExecPaths", "LoadCredential", "PermissionsStartOnly", "ReadWriteDirectories"),
    *("ReadWritePaths", "SupplementaryGroups"),
)
"""Settings that would widen what it may do, or run something beside it."""


@pytest.mark.parametrize("key", SWITCHED_ON)
def test_it_is_switched_on(key: str) -> None:
    """Once, and for good: a second line would undo the first."""
    assert directives()[key] == ["yes"]


@pytest.mark.parametrize("key", ["CapabilityBoundingSet", "AmbientCapabilities"])
def test_no_capability_is_left(key: str) -> None:
    """An empty set, not a list with something taken out of it."""
    assert directives()[key] == [""]


def test_it_runs_as_an_account_of_its_own() -> None:
    """Not root, and no line that begins as root (``+``, ``!`` before a program)."""
    unit = directives()

    assert unit["User"] == unit["Group"] == ["slurm_dl"]
    assert {line[0] for key, lines in unit.items() if key.startswith("Exec") for line in lines} == {
        "/"
    }


def test_it_writes_into_its_two_directories_and_nowhere_else() -> None:
    """The whole tree is read-only but for the state and the runtime directory."""
    unit = directives()

    assert unit["ProtectSystem"] == ["strict"]
    assert {key for key in unit if key in GIVES} == set()
    assert {key for key in unit if key.endswith("Directory")} == {
        "StateDirectory",
        "RuntimeDirectory",
        "ConfigurationDirectory",
    }
    # Others enter neither the ledger's directory nor anything the daemon makes.
    assert int(unit["StateDirectoryMode"][0], 8) & 0o007 == 0
    assert int(unit["UMask"][0], 8) & 0o027 == 0o027


def test_it_speaks_to_munge_and_slurmctld_alone() -> None:
    """Unix sockets and TCP or UDP; no raw, packet or netlink socket."""
    assert set(words(directives(), "RestrictAddressFamilies")) == {
        "AF_UNIX",
        "AF_INET",
        "AF_INET6",
    }


def test_system_calls_are_those_of_a_service_without_the_privileged_ones() -> None:
    """An allow list, of this machine's own calls, less what changes users, clocks, mounts."""
    unit = directives()

    assert unit["SystemCallFilter"] == ["@system-service", "~@privileged @resources"]
    assert unit["SystemCallArchitectures"] == ["native"]


def test_true_user_ids_are_kept() -> None:
    """The control socket and munge ask the kernel who somebody is."""
    assert "PrivateUsers" not in directives()


@pytest.mark.skipif(not ANALYZE, reason="systemd is not installed")
def test_systemd_finds_it_no_more_exposed_than_the_docs_say() -> None:
    """``systemd-analyze security`` gives 0 (nothing exposed) to 10; the page tells the score."""
    told = re.search(r"Overall exposure level for dlschedd\.service: ([0-9.]+)", _page())
    assert told

    done = subprocess.run(
        [ANALYZE, "security", "--offline=yes", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    found = re.search(r"Overall exposure level for dlschedd\.service: ([0-9.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) <= float(told[1])


def test_the_page_speaks_of_every_setting() -> None:
    """What bounds the daemon is explained, and nothing is explained that is not there."""
    unit = directives()
    hardening = {
        key
        for key in unit
        if key in SWITCHED_ON
        or key.startswith(("Restrict", "SystemCall", "Capability", "Ambient", "Protect", "Private"))
    } - {"RestartPreventExitStatus"}
    named = set(re.findall(r"`([A-Z][A-Za-z]+)=", _page()))

    assert hardening - named == set()
    assert {key for key in named if key.startswith(("Protect", "Private", "Restrict"))} <= {
        *hardening,
        "PrivateUsers",
        "PrivateNetwork",
    }


def _page() -> str:
    return PRIVILEGES.read_text("utf-8")
