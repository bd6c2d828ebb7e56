"""The Debian package on a Debian host: install, run, upgrade, remove, purge.

The host is a container with systemd as process 1 and a Slurm of one node. Its network leads
nowhere, so that what is installed comes out of the package.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from containers import CHECKOUT, docker

sys.path.append(str(CHECKOUT / "tools" / "packaging"))
import lintian

pytestmark = [
    pytest.mark.docker,
    pytest.mark.full("needs containers of three releases"),
    pytest.mark.timeout(1800),
]

COMMANDS = ("dlctl", "dlqueue", "dlrun", "dlschedd", "dlsim", "dlsubmit")
CONFIG = "/etc/slurm_dl/slurm_dl.yaml"
LEDGER = "/var/lib/slurm_dl/ledger.sqlite"
IMAGE = "slurm_dl-test-host:bookworm"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0"
# For what asks; a conffile that was changed is kept, as by an admin who answers N.
INSTALL = f"{APT} -o Dpkg::Options::=--force-confold install --no-install-recommends"
OLD_LEDGER = CHECKOUT / "tests" / "packages" / "ledgers" / "schema-5.sql"
"""A dump of a ledger as a version before ours wrote it; see tests/packages/test_ledgers.py."""
BEFORE = "/root/before-the-upgrade"
"""Run by the next package's preinst: the old daemon is stopped then, and the new one not there."""
DROP_IN = "/run/systemd/system/dlschedd.service.d"

Eventually = Callable[..., object]


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

    def unit(self, field: str) -> str:
        """What systemd has as that property of the daemon's unit."""
        return self.sh(f"systemctl show --value --property={field} dlschedd.service").strip()

    def status(self) -> dict[str, object]:
        """What the daemon says of itself; empty as long as it does not answer."""
        said = self.sh("dlctl status --json 2>/dev/null || echo '{}'")
        answer: dict[str, object] = json.loads(said)
        return answer

    def ledger(self, query: str) -> list[str]:
        """The first column of what *query* finds in the ledger."""
        script = (
            "import sqlite3; db = sqlite3.connect('file:%s?mode=ro', uri=True); "
            "print(*[r[0] for r in db.execute('%s')])"
        )
        read = f'/usr/lib/slurm-dl/bin/python3 -c "{script % (LEDGER, query)}"'
        return self.sh(f"runuser -u slurm_dl -- {read}").split()

    def attained(self, job: str) -> float:
        """GPU-seconds of *job* in the ledger."""
        said = self.ledger(f"select attained_gpu_s from job where job_id = {int(job)}")  # noqa: S608
        return float(said[0]) if said else 0.0


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of this checkout; or the one that SLURM_DL_DEB names, built before."""
    if built := os.environ.get("SLURM_DL_DEB"):
        return Path(built)
    out = tmp_path_factory.mktemp("deb")
    said = ""
    for _ in range(3):  # The index may be away for a moment.
        done = subprocess.run(
            [sys.executable, CHECKOUT / "tools" / "packaging" / "deb.py", "--out", out],
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
    preinst = tree / "DEBIAN" / "preinst"
    preinst.write_text(f"#!/bin/sh\nset -e\n[ ! -x {BEFORE} ] || {BEFORE}\n", "utf-8")
    preinst.chmod(0o755)
    made = top / "next.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, made],  # noqa: S607
        check=True,
        capture_output=True,
    )
    return made


@pytest.fixture(scope="module")
def image(engine: None) -> str:  # noqa: ARG001
    """The host's image; its layers are made once."""
    base = subprocess.run(
        [CHECKOUT / "docker" / "base-image", "bookworm"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    ).stdout.strip()
    context = str(Path(__file__).parent / "debian")
    said = ""
    for _ in range(3):  # The mirror may be away for a moment.
        done = subprocess.run(
            ["docker", "build", "--quiet", f"--build-arg=BASE={base}", f"--tag={IMAGE}", context],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        said = done.stderr
        if done.returncode == 0:
            return IMAGE
    pytest.fail(said[-4000:])


@pytest.fixture(scope="module")
def host(image: str, package: Path, next_package: Path, eventually: Eventually) -> Iterator[Host]:
    """A Debian 12 under systemd, with the package installed by apt beside a Slurm that works."""
    name = f"sdl-deb-{os.getpid()}"
    docker("network", "create", "--internal", name)
    try:
        # systemd mounts file systems and filters system calls; it is not given the host's devices.
        rights = ("--cap-add=SYS_ADMIN", "--cap-add=SYS_PTRACE", "--cgroupns=private")
        rights += ("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined")
        places = ("--tmpfs=/tmp", "--env=container=docker", "--hostname=host", f"--network={name}")
        docker("run", "--detach", "--name", name, *rights, *places, image)
        made = Host(name, f"/root/{package.name}", "/root/next.deb")
        eventually(
            lambda: made.sh("systemctl is-system-running || :").strip() in {"running", "degraded"},
            within_s=120,
            what="systemd to be up",
        )
        docker("cp", str(package), f"{name}:{made.first}")
        docker("cp", str(next_package), f"{name}:{made.second}")
        eventually(
            lambda: made.sh("sinfo --noheader --format=%T || :").strip() == "idle",
            within_s=120,
            what="Slurm's node to be idle",
        )
        made.sh(f"{INSTALL} {made.first}")
        yield made
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], check=False)  # noqa: S607
        subprocess.run(["docker", "network", "rm", name], check=False)  # noqa: S607


def test_lintian_has_nothing_against_what_is_ours(
    host: Host, package: Path, tmp_path: Path
) -> None:
    """And every override is needed. Over the wheels inside it takes minutes: make lintian."""
    own = lintian.without_wheels(package, tmp_path)
    docker("cp", str(own), f"{host.name}:/root/own.deb")

    said = host.sh(f"lintian {' '.join(lintian.OPTIONS)} /root/own.deb; rm /root/own.deb")

    assert lintian.complaints(said) == []
    # It has looked: of this it always says so, as there is no script for another init.
    assert "package-supports-alternative-init-but-no-init.d-script" in said


def test_it_is_installed_and_starts_nothing(host: Host) -> None:
    """Account, directory, unit and configuration are there; the service is neither on nor up."""
    assert host.sh("id -un slurm_dl; getent passwd slurm_dl | cut -d: -f7").split()[0] == "slurm_dl"
    assert "nologin" in host.sh("getent passwd slurm_dl")
    assert host.sh("stat -c '%a %U:%G' /var/lib/slurm_dl").strip() == "750 slurm_dl:slurm_dl"
    assert host.sh(f"stat -c '%a %U:%G' {CONFIG}").strip() == "644 root:root"
    assert host.sh("systemctl is-enabled dlschedd", check=False).strip() == "disabled"
    assert host.sh("systemctl is-active dlschedd", check=False).strip() == "inactive"
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


def test_it_runs_within_the_units_bounds(host: Host, eventually: Eventually) -> None:
    """In shadow mode it sees the queue and changes nothing; it can be reloaded."""
    for _ in range(2):
        host.sh(
            "cd /home/alice; sbatch --gpus=2 --output=/dev/null --wrap 'sleep 900'", user="alice"
        )
    host.sh(
        f"sed -i 's/^  #poll_s: 30/  poll_s: 2/; s/^  #fast_poll_s: 5/  fast_poll_s: 1/' {CONFIG}"
    )
    before = host.sh("squeue --noheader --format='%i %Q' | sort")

    host.sh("systemctl --quiet enable --now dlschedd")

    assert host.sh("systemctl is-active dlschedd").strip() == "active"
    eventually(lambda: host.status().get("managed_jobs") == 2, within_s=60, what="both jobs seen")
    status = host.status()
    assert str(status["doing"]).startswith("shadow mode")
    assert not status["live"]
    pid = host.unit("MainPID")
    assert str(status["pid"]) == pid
    eventually(lambda: host.attained("1") > 0, within_s=60, what="service in the ledger")
    assert host.sh("squeue --noheader --format='%i %Q' | sort") == before
    assert host.sh("dlqueue | grep -c alice", user="alice").strip() == "2"

    # The kernel's word for it, not systemd's, which leaves out what it cannot have in a container.
    told = dict(
        line.partition(":")[::2] for line in host.sh(f"cat /proc/{pid}/status").splitlines()
    )
    assert int(told["CapEff"], 16) == int(told["CapBnd"], 16) == 0
    assert told["NoNewPrivs"].strip() == "1"
    assert told["Seccomp"].strip() == "2"
    host.sh("touch /tmp/of-another; touch /home/alice/of-another")
    within = f"nsenter --target {pid} --mount --"
    for where in ("/etc", "/usr", "/var/lib", "/srv"):
        assert "Read-only" in host.sh(f"{within} touch {where}/x", check=False), where
    host.sh(f"{within} test -w /var/lib/slurm_dl")
    assert host.sh(f"{within} ls /tmp /home", check=False).count("of-another") == 0
    # Of root's processes not even the names, for the account itself.
    seen = host.sh(f"{within} runuser -u slurm_dl -- ls /proc").split()
    assert pid in seen
    assert "1" not in seen

    host.sh("systemctl reload dlschedd")
    eventually(lambda: host.status().get("reloaded"), within_s=60, what="the reload")
    reloaded = host.status()["reloaded"]
    assert isinstance(reloaded, dict)
    assert reloaded["ok"]
    assert host.unit("MainPID") == pid
    assert host.unit("NRestarts") == "0"


OLDER = r"""#!/usr/bin/python3
import os, pathlib, sqlite3

path = pathlib.Path("LEDGER")
with sqlite3.connect(path) as db:
    jobs = db.execute("SELECT NAMES FROM job").fetchall()
db.close()
for end in ("", "-wal", "-shm"):
    path.with_name(path.name + end).unlink(missing_ok=True)
with sqlite3.connect(path) as db:
    db.executescript(pathlib.Path("/root/older.sql").read_text())
    db.executemany("INSERT INTO job (NAMES) VALUES (MARKS)", jobs)
    assert db.execute("PRAGMA user_version").fetchone() == (5,)
db.close()
path.chmod(0o600)
os.chown(path, path.parent.stat().st_uid, path.parent.stat().st_gid)
pathlib.Path("BEFORE").unlink()
"""
"""Puts a ledger of a former form in the place of the one of today, with the jobs of both."""


def older_ledger(top: Path) -> tuple[Path, Path]:
    """Such a ledger's dump with the times of the last hours, and `OLDER` for its columns."""
    # The dump's times all begin with 179000; what is a week old would be dropped.
    dump = top / "older.sql"
    text = OLD_LEDGER.read_text("utf-8").replace("179000", f"{int(time.time()) // 10_000 - 1:06d}")
    dump.write_text(text, "utf-8")
    with sqlite3.connect(":memory:") as db:
        db.executescript(text)
        names = [row[1] for row in db.execute("PRAGMA table_info(job)")]
    db.close()
    script = top / "before"
    words = {"LEDGER": LEDGER, "BEFORE": BEFORE, "NAMES": ", ".join(names)}
    words["MARKS"] = ", ".join("?" * len(names))
    told = OLDER
    for word, value in words.items():
        told = told.replace(word, value)
    script.write_text(told, "utf-8")
    script.chmod(0o755)
    return dump, script


def test_upgrade_remove_and_purge(host: Host, eventually: Eventually, tmp_path: Path) -> None:
    """Ledger and configuration outlast an upgrade and a removal, and nothing outlasts a purge."""
    host.sh("systemctl --quiet enable --now dlschedd")
    today = host.ledger("pragma user_version")
    for path, place in zip(older_ledger(tmp_path), ("/root/older.sql", BEFORE), strict=True):
        docker("cp", str(path), f"{host.name}:{place}")
    before, config = host.attained("1"), host.sh(f"sha256sum {CONFIG}")
    pid = host.unit("MainPID")

    # It runs: it is stopped for the upgrade and started after it.
    host.sh(f"{INSTALL} {host.second}")
    assert "99.0-1" in host.sh("dpkg-query -W slurm-dl")
    assert host.unit("ActiveState") == "active"
    assert host.unit("MainPID") not in {pid, "0"}
    # What it has found is a ledger of an older form, with jobs and runs of then.
    assert host.sh(f"ls {BEFORE}", check=False).count("No such file") == 1
    assert host.ledger("pragma user_version") == today != ["5"]
    assert host.attained("1") >= before > 0
    assert host.attained("901") == 23456.5
    assert host.ledger("select gpu_s from run where job_id = 901 order by start_s")[0] == "15600.0"
    assert host.ledger("select handover_id from handover order by 1")[:2] == ["6", "7"]
    eventually(lambda: host.status().get("managed_jobs") == 2, within_s=60, what="both jobs seen")
    assert host.sh(f"sha256sum {CONFIG}") == config
    assert "The next version" in host.sh("cat /etc/logrotate.d/slurm_dl")
    assert "A default of the next" in host.sh(f"cat {CONFIG}.dpkg-dist")
    assert "enabled" in host.sh("systemctl is-enabled dlschedd")

    # It does not run: nobody starts it.
    host.sh("systemctl stop dlschedd")
    host.sh(f"{INSTALL} --reinstall {host.second}")
    assert host.unit("ActiveState") == "inactive"

    # It has failed and waits for its next start: that does not come while the files are away.
    host.sh(
        f"mkdir -p {DROP_IN}; systemctl reset-failed dlschedd; "
        f"printf '[Service]\\nType=exec\\nRestartSec=1h\\nExecStart=\\nExecStart=/bin/false\\n' "
        f">{DROP_IN}/fails.conf; systemctl daemon-reload; systemctl start dlschedd || :"
    )
    eventually(lambda: host.unit("SubState") == "auto-restart", within_s=60, what="a failure")
    assert host.unit("ActiveState") == "activating"
    ledger = host.sh(f"sha256sum {LEDGER}")
    host.sh(f"{APT} remove slurm-dl")
    assert host.unit("ActiveState") == "inactive"
    assert host.unit("LoadState") == "not-found"
    assert host.sh("find /etc/systemd -name 'dlschedd*'") == ""
    assert host.sh(f"sha256sum {LEDGER} {CONFIG}") == ledger + config
    assert host.sh("ls /usr/lib/slurm-dl /usr/bin/dlctl 2>/dev/null | wc -l").strip() == "0"

    host.sh(f"rm -r {DROP_IN}; systemctl daemon-reload; {APT} purge slurm-dl")
    left = host.sh(
        "find / -xdev \\( -iname '*slurm_dl*' -o -iname '*slurm-dl*' -o -iname 'dlctl*' "
        "-o -iname '*dlschedd*' -o -iname 'dlsubmit*' -o -iname 'dlrun*' -o -user slurm_dl \\) "
        "-not -path '/proc/*' -not -path '/sys/*'"
    ).split()
    assert left == [host.first]
    # The account stays: a number that is given out again would own what the old one left behind.
    assert "slurm_dl" in host.sh("id slurm_dl")
