from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from slurm_dl.config import DEFAULT_PATH, Config

ETC = Path(__file__).parents[2] / "etc"


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    settings = defaultdict(list)
    for line in (ETC / "systemd" / "dlschedd.service").read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            settings[key].append(value)
    return dict(settings)


@pytest.fixture(scope="module")
def config() -> Config:
    return Config.model_validate({"manage": {"partitions": ["gpu"]}})


def test_unit_makes_the_directories_of_the_configuration(
    unit: dict[str, list[str]], config: Config
) -> None:
    """Under ProtectSystem=strict the daemon writes where its defaults say, and nowhere else."""
    assert unit["ProtectSystem"] == ["strict"]
    assert [Path("/var/lib", *unit["StateDirectory"])] == [config.paths.state_dir]
    assert [Path("/run", *unit["RuntimeDirectory"])] == [config.paths.run_dir]
    assert [Path("/etc", *unit["ConfigurationDirectory"])] == [DEFAULT_PATH.parent]
    assert config.paths.audit_log.parent == config.paths.state_dir
    assert config.paths.template_dir.parent == DEFAULT_PATH.parent
    assert config.paths.profile_dir.parent == DEFAULT_PATH.parent
    assert unit["RuntimeDirectoryMode"] == ["0755"]


def test_unit_notifies_reloads_and_does_not_insist_on_slurmctld(unit: dict[str, list[str]]) -> None:
    """The daemon says when it is ready, reloads on SIGHUP, and outlives slurmctld."""
    assert unit["Type"] == ["notify"]
    assert unit["NotifyAccess"] == ["main"]
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert {"munge.service", "slurmctld.service"} <= set(unit["After"][0].split())
    assert "Requires" not in unit
    assert "BindsTo" not in unit
    # Exit status 2 is a wrong configuration: it would be wrong the next time, too.
    assert unit["RestartPreventExitStatus"] == ["2"]


def test_watchdog_outlasts_slow_slurm_commands(unit: dict[str, list[str]], config: Config) -> None:
    """A cycle whose commands all run into their timeout is no reason to be killed."""
    (watchdog,) = unit["WatchdogSec"]

    assert watchdog.endswith("min")
    assert int(watchdog.removesuffix("min")) * 60 >= 10 * config.cluster.timeout_s


def test_daemon_has_no_privileges(unit: dict[str, list[str]]) -> None:
    """It runs as a user of its own without capabilities, and that user is the one created."""
    user = unit["User"][0]

    assert unit["CapabilityBoundingSet"] == [""]
    assert unit["NoNewPrivileges"] == ["yes"]
    # munge and the control socket's peer credentials need the true user ids.
    assert "PrivateUsers" not in unit
    created = (ETC / "sysusers.d" / "slurm_dl.conf").read_text().splitlines()[-1].split()
    assert created[:2] == ["u", user]


def test_logrotate_turns_the_audit_log_as_its_owner(
    unit: dict[str, list[str]], config: Config
) -> None:
    """The rotated file is the daemon's, in a directory that root should not write as root."""
    text = (ETC / "logrotate.d" / "slurm_dl").read_text()
    user, group = unit["User"][0], unit["Group"][0]

    assert f"\n{config.paths.audit_log} {{\n" in text
    assert f"    su {user} {group}\n" in text
    # The daemon makes its own file, with its own mode.
    assert "    nocreate\n" in text
    assert not [line for line in text.splitlines() if line.strip() == "copytruncate"]


def test_the_steps_without_a_package_install_what_the_package_does() -> None:
    """Account, unit, rotation of the audit log, configuration."""
    page = (ETC.parent / "docs/start/install.md").read_text("utf-8")
    steps = re.findall(r"^ +install -D -m 644 (\S+) /etc/", page, re.MULTILINE)
    own = [p for name in ("logrotate.d", "systemd", "sysusers.d") for p in (ETC / name).iterdir()]

    assert {ETC / step for step in steps} == {*own, ETC / "slurm_dl.yaml"}
