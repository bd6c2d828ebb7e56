"""The Debian package in a container with nothing but Debian: install, use, upgrade, remove, purge.

systemd does not run there. That the maintainer scripts ask it for the right things is seen by a
stand-in for systemctl, which writes down what it is asked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import build
import pytest
from containers import CHECKOUT, docker

from slurm_dl.backends.store import SqliteStore
from slurm_dl.engine.memory import Change
from slurm_dl.engine.service import EndedRun, Service, fold

COMMANDS = ("dlctl", "dlqueue", "dlrun", "dlschedd", "dlsim", "dlsubmit")
CONFIG = "/etc/slurm_dl/slurm_dl.yaml"
LEDGER = "/var/lib/slurm_dl/ledger.sqlite"
SHELLS = ("man-db", "bash", "bash-completion", "zsh", "fish")
# The path is apt's own, with the place of the stand-in before it.
PATH = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
APT = f"apt-get -qq -y -o Acquire::Retries=5 -o Dpkg::Use-Pty=0 -o DPkg::Path={PATH}"
# For what asks; a conffile that was changed is kept, as by an admin who answers N.
INSTALL = f"{APT} -o Dpkg::Options::=--force-confold install --no-install-recommends"
STAND_IN = """\
#!/bin/sh
echo "$*" >>/run/asked
case "$*" in *is-active*) test -e /run/active ;; esac
"""


@dataclass(frozen=True)
class Host:
    """A container that stands for a host.

    Attributes:
        first: The package.
        second: The next version of it, with another default configuration.
    """

    name: str
    first: str
    second: str

    def sh(self, script: str, *, user: str = "root", check: bool = True) -> str:
        """What *script* prints; its exit status is 0 unless *check* is off."""
        done = subprocess.run(
            ["docker", "exec", "--user", user, self.name, "sh", "-euc", script],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=300,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{script}: {done.stdout[-3000:]}"
        return done.stdout

    def asked(self) -> list[str]:
        """What systemctl was asked since the last time."""
        return self.sh("touch /run/asked; cat /run/asked; rm /run/asked").splitlines()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of this checkout; or the one that SLURM_DL_DEB names, built before."""
    if built := os.environ.get("SLURM_DL_DEB"):
        return Path(built)
    out = tmp_path_factory.mktemp("deb")
    said = ""
    for _ in range(3):  # The index may be away for a moment.
        done = subprocess.run(
            [sys.executable, CHECKOUT / "packaging" / "deb.py", "--out", out],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        said = done.stderr
        if done.returncode == 0:
            return Path(done.stdout.strip())
    pytest.fail(said[-4000:])


@pytest.fixture(scope="module")
def next_package(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same one version later, with a line more in the default configuration."""
    top = tmp_path_factory.mktemp("next")
    tree = top / "tree"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)  # noqa: S607
    control = tree / "DEBIAN" / "control"
    text = control.read_text("utf-8")
    control.write_text(re.sub(r"(?m)^Version: .*", "Version: 99.0-1", text), "utf-8")
    with (tree / CONFIG[1:]).open("a", encoding="utf-8") as file:
        file.write("# A default of the next version.\n")
    with (tree / "etc/logrotate.d/slurm_dl").open("a", encoding="utf-8") as file:
        file.write("# The next version.\n")
    made = top / "next.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, made],  # noqa: S607
        check=True,
        capture_output=True,
    )
    return made


@pytest.fixture(scope="module")
def host(engine: None, package: Path, next_package: Path) -> Iterator[Host]:  # noqa: ARG001
    """A Debian 12 with the package installed by apt; the shells are there beforehand."""
    image = subprocess.run(
        [CHECKOUT / "docker" / "base-image", "bookworm"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    ).stdout.strip()
    name = f"sdl-deb-{os.getpid()}"
    docker("run", "--detach", "--name", name, "--init", image, "sleep", "3600")
    try:
        made = Host(name, f"/root/{package.name}", "/root/next.deb")
        docker("cp", str(package), f"{name}:{made.first}")
        docker("cp", str(next_package), f"{name}:{made.second}")
        # A slim image leaves out manual pages; no script may start a service.
        made.sh("rm -f /etc/dpkg/dpkg.cfg.d/docker; useradd --create-home alice")
        policy = "/usr/sbin/policy-rc.d"
        made.sh(f"printf '#!/bin/sh\\nexit 101\\n' >{policy}; chmod 755 {policy}")
        made.sh(
            f"export DEBIAN_FRONTEND=noninteractive; {APT} update; {INSTALL} {' '.join(SHELLS)}"
        )
        made.sh(f"export DEBIAN_FRONTEND=noninteractive; {INSTALL} {made.first}")
        yield made
    finally:
        docker("rm", "--force", "--volumes", name)


def test_it_is_installed_and_starts_nothing(host: Host) -> None:
    """Account, directory, unit and configuration are there; the service is neither on nor up."""
    assert host.sh("id -un slurm_dl; getent passwd slurm_dl | cut -d: -f7").split()[0] == "slurm_dl"
    assert "nologin" in host.sh("getent passwd slurm_dl")
    assert host.sh("stat -c '%a %U:%G' /var/lib/slurm_dl").strip() == "750 slurm_dl:slurm_dl"
    assert host.sh(f"stat -c '%a %U:%G' {CONFIG}").strip() == "644 root:root"
    assert host.sh("systemctl is-enabled dlschedd", check=False).strip() == "disabled"
    assert host.sh("ls /var/lib/slurm_dl /run/slurm_dl 2>/dev/null", check=False).split() in (
        ["/var/lib/slurm_dl:"],
        [],
    )
    assert host.sh("systemd-analyze --man=no verify /usr/lib/systemd/system/dlschedd.service") == ""
    assert "ExecStart=/usr/bin/dlschedd" in host.sh("cat /usr/lib/systemd/system/dlschedd.service")
    assert host.sh("dpkg --verify slurm-dl") == ""


def test_every_command_runs_for_a_plain_user(host: Host) -> None:
    """Whatever Python path a module of the site has set; templates and profiles are found."""
    for command in COMMANDS:
        helped = host.sh(f"PYTHONPATH=/nowhere PYTHONHOME=/nowhere {command} --help", user="alice")
        assert command in helped
    assert host.sh(f"dlctl check-config {CONFIG}", user="alice").strip() == f"{CONFIG}: ok"
    assert '"owner": "wheel"' in host.sh("dlsubmit --json --show-template srun", user="alice")
    assert "resnet50" in host.sh("dlctl profile list", user="alice")
    assert "discrete_las" in host.sh("dlctl policies", user="alice")
    generated = "dlsim generate --help >/dev/null && dlsim policies >/dev/null && echo fine"
    assert host.sh(f"cd && {generated}", user="alice").strip() == "fine"
    # The module of the training script, for any Python 3.9 or later.
    used = "PYTHONPATH=/usr/share/slurm-dl/python python3 -c 'from slurm_dl import job; print(job)'"
    assert "/usr/share/slurm-dl/python/slurm_dl/job" in host.sh(used, user="alice")
    assert host.sh("find / -xdev -user alice -newer /etc/slurm_dl -not -path '/proc/*'") == ""


def test_pages_and_completion_are_where_the_shells_look(host: Host) -> None:
    """Man, bash, zsh and fish, each by its own means."""
    pages = {"dlsubmit": 1, "dlqueue": 1, "dlrun": 1, "dlctl": 8, "dlctl-doctor": 8, "dlschedd": 8}
    for page, section in pages.items():
        shown = host.sh(f"LC_ALL=C.UTF-8 man --warnings {section} {page} 2>&1 | cat", user="alice")
        assert shown.startswith(f"{page.upper()}({section})"), shown[:200]
        assert ": warning: " not in shown
    bash = (
        "bash -c 'source /usr/share/bash-completion/bash_completion; _completion_loader dlctl; "
        'COMP_WORDS=(dlctl prof); COMP_CWORD=1; _dlctl_completion dlctl; echo "${COMPREPLY[@]}"\''
    )
    assert host.sh(bash, user="alice").split() == ["profile"]
    fish = 'fish -c \'complete -C "dlctl prof"; complete -C "dlsubmit --gpu"\''
    offered = {line.split("\t")[0] for line in host.sh(fish, user="alice").splitlines()}
    assert {"profile", "--gpus", "--gpu-type"} <= offered
    zsh = "zsh -fc 'autoload -Uz compinit; compinit -u; print -- $_comps[dlctl] $_comps[dlrun]'"
    assert host.sh(zsh, user="alice").split() == ["_dlctl", "_dlrun"]


def test_upgrade_remove_and_purge(host: Host, tmp_path: Path) -> None:
    """Ledger and configuration outlast an upgrade and a removal, and nothing outlasts a purge."""
    ledger = tmp_path / "ledger.sqlite"
    store = SqliteStore(ledger)
    service = fold(Service.empty(), build.observed([build.running(7, 3), build.pending(2)])).service
    store.save(Change(jobs=service, ended=[EndedRun(job_id=7, start_s=1.0, end_s=2.0, gpu_s=3.0)]))
    store.close()
    docker("cp", str(ledger), f"{host.name}:{LEDGER}")
    host.sh(f"chown slurm_dl:slurm_dl {LEDGER}; chmod 600 {LEDGER}")
    host.sh(f"sed -i 's/partitions: .gpu./partitions: [a100]/' {CONFIG}")
    before = host.sh(f"sha256sum {LEDGER} {CONFIG}")
    host.sh(
        f"cat >/usr/local/sbin/systemctl <<'END'\n{STAND_IN}END\n"
        "chmod 755 /usr/local/sbin/systemctl; mkdir -p /run/systemd/system; touch /run/active"
    )
    quiet = "export DEBIAN_FRONTEND=noninteractive"

    # It runs: it is stopped for the upgrade and started after it.
    host.sh(f"{quiet}; {INSTALL} {host.second}")
    assert "99.0-1" in host.sh("dpkg-query -W slurm-dl")
    assert [w.split()[0] for w in host.asked() if w.split()[0] in {"stop", "start"}] == [
        "stop",
        "start",
    ]
    assert host.sh(f"sha256sum {LEDGER} {CONFIG}") == before
    assert "The next version" in host.sh("cat /etc/logrotate.d/slurm_dl")
    assert "A default of the next" in host.sh(f"cat {CONFIG}.dpkg-dist")
    rows = (
        "import sqlite3; db = sqlite3.connect('file:%s?mode=ro', uri=True); "
        "print(db.execute('pragma integrity_check').fetchone()[0], "
        "*sorted(r[0] for r in db.execute('select job_id from job')))"
    )
    read = f'/usr/lib/slurm-dl/bin/python3 -c "{rows % LEDGER}"'
    assert host.sh(f"runuser -u slurm_dl -- {read}").split() == ["ok", "2", "7"]
    assert host.sh(f"dlctl check-config {CONFIG}").strip().endswith("ok")

    # It does not run: nobody starts it.
    host.sh("rm /run/active")
    host.sh(f"{quiet}; {INSTALL} --reinstall {host.second}")
    assert not [line for line in host.asked() if "start" in line.split()]

    host.sh("touch /run/active")
    host.sh(f"{quiet}; {APT} remove slurm-dl")
    asked = host.asked()
    assert "stop dlschedd.service" in asked
    assert any("disable" in line for line in asked)
    assert host.sh(f"sha256sum {LEDGER} {CONFIG}") == before
    assert host.sh("ls /usr/lib/slurm-dl /usr/bin/dlctl 2>/dev/null | wc -l").strip() == "0"

    host.sh(f"{quiet}; {APT} purge slurm-dl")
    left = host.sh(
        "find / -xdev \\( -iname '*slurm*' -o -iname 'dlctl*' -o -iname '*dlschedd*' "
        "-o -iname 'dlsubmit*' -o -iname 'dlrun*' -o -user slurm_dl \\) "
        "-not -path '/proc/*' -not -path '/sys/*'"
    ).split()
    assert left == [host.first]
    # The account stays: a number that is given out again would own what the old one left behind.
    assert "slurm_dl" in host.sh("id slurm_dl")
