"""The wheel and the source distribution by pipx: in a home of its own, complete, and gone again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import dist
import pytest
import yaml
from commands import CLICK, SECTIONS

TRIES = 3
"""Installing takes packages from an index, which may be away for a moment."""
DATA = {
    "templates": "templates",
    "etc": "etc",
    "traces/fits": "fits",
    "profiles/models": "profiles",
}
"""What the checkout has outside the package, and where it lies in the wheel's ``_data``."""

pytestmark = [pytest.mark.wheel, pytest.mark.full("installs with pipx"), pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Pipx:
    """The program pipx, with nothing of this account's.

    Attributes:
        program: The command.
        top: Everything it may write lies below.
    """

    program: Path
    top: Path

    @property
    def home(self) -> Path:
        """Where the user is."""
        return self.top / "home"

    @property
    def commands(self) -> Path:
        """Where it puts the commands."""
        return self.top / "bin"

    def run(
        self, *argv: object, tries: int = 1, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """What a command does that this user calls from home, without a checkout's path."""
        places = {"PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin", "PIPX_MAN_DIR": "man"}
        # An index of the site's and its certificates are asked for in these.
        kept = ("PIP_", "SSL_", "REQUESTS_", "UV_", "http", "no_proxy", "HTTP", "NO_PROXY")
        clean = {key: text for key, text in os.environ.items() if key.startswith(kept)}
        cache = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
        clean |= {key: str(self.top / name) for key, name in places.items()}
        clean |= {"HOME": str(self.home), "PATH": os.defpath, "PIP_CACHE_DIR": cache}
        for _ in range(tries):
            done = subprocess.run(
                [*map(str, argv)],
                cwd=self.home,
                env={**clean, **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=500,
                check=False,
            )
            if done.returncode == 0:
                break
        return done

    def does(self, *argv: object, tries: int = 1, env: dict[str, str] | None = None) -> str:
        """What such a command prints; it does not fail."""
        done = self.run(*argv, tries=tries, env=env)
        assert done.returncode == 0, f"{argv}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def ours(self) -> list[Path]:
        """All that has a name of ours, but for pipx's own lock and its records of what it did."""
        names = ("*slurm[-_]dl*", *(f"{name}*" for name in SECTIONS))
        found = {path for name in names for path in self.top.rglob(name)}
        lock = self.top / "pipx" / "venvs" / ".slurm-dl.lock"
        logs = self.top / "pipx" / "logs"
        return sorted(p for p in found if p != lock and not p.is_relative_to(logs))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The source distribution and the wheel, by their last suffix."""
    for _ in range(TRIES - 1):
        try:
            return sorted(dist.build(tmp_path_factory.mktemp("built")), key=lambda p: p.suffix)
        except dist.BuildError:
            continue
    return sorted(dist.build(tmp_path_factory.mktemp("built")), key=lambda p: p.suffix)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program itself."""
    where = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", where], check=True)
    install = [where / "bin" / "python", "-m", "pip", "install", "--quiet", "pipx"]
    for _ in range(TRIES):
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return where / "bin" / "pipx"
    pytest.fail(done.stderr[-4000:])


@pytest.fixture
def pipx(program: Path, tmp_path: Path) -> Pipx:
    """A user who has never called it."""
    (tmp_path / "home").mkdir()
    return Pipx(program, tmp_path)


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_pipx_installs_all_of_it_and_takes_all_of_it_away(
    kind: str, pipx: Pipx, built: Sequence[Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Commands, data and completion in between; and nothing outside pipx's own directories."""
    package = built[("sdist", "wheel").index(kind)]
    version = built[1].name.split("-")[1]

    pipx.does(pipx.program, "install", package, tries=TRIES)

    assert {path.name for path in pipx.commands.iterdir()} == set(SECTIONS)
    before = sorted(pipx.home.rglob("*"))
    for command in SECTIONS:
        told = pipx.run(pipx.commands / command, "--version")
        assert (told.returncode, told.stderr) == (0, ""), command
        assert told.stdout == f"{command}, version {version}\n"
        assert command in pipx.does(pipx.commands / command, "--help")
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(built[0]) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    its_data_is_found(pipx, source)
    its_completion_is_found(pipx)
    assert sorted(pipx.home.rglob("*")) == before
    assert pipx.ours()

    pipx.does(pipx.program, "uninstall", "slurm-dl")

    assert pipx.ours() == []
    assert list(pipx.commands.iterdir()) == []
    assert sorted(pipx.home.rglob("*")) == before


def contents(top: Path) -> dict[Path, bytes]:
    """Every file below *top*."""
    return {p.relative_to(top): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def its_data_is_found(pipx: Pipx, source: Path) -> None:
    """By the commands that use it, and word for word that of the *source* distribution."""
    bin_dir = pipx.commands
    shown = json.loads(pipx.does(bin_dir / "dlsubmit", "--json", "--show-template", "srun"))
    assert shown["owner"] == "wheel"
    data = Path(shown["path"]).parents[1]
    assert data.is_relative_to(pipx.top / "pipx" / "venvs" / "slurm-dl")
    for ours, there in DATA.items():
        assert contents(data / there), there
        assert contents(data / there) == contents(source / ours), ours
    (dashboard,) = (data / "etc" / "grafana").glob("*.json")
    assert json.loads(dashboard.read_text("utf-8"))["panels"]
    alerts = yaml.safe_load((data / "etc" / "prometheus" / "alerts.yml").read_text("utf-8"))
    assert all(rule["expr"] for group in alerts["groups"] for rule in group["rules"])
    sample = data / "etc" / "slurm_dl.yaml"
    assert pipx.does(bin_dir / "dlctl", "check-config", sample) == f"{sample}: ok\n"
    assert (data / "etc" / "systemd" / "dlschedd.service").is_file()
    assert "resnet50" in pipx.does(bin_dir / "dlctl", "profile", "list")
    assert "discrete_las" in pipx.does(bin_dir / "dlsim", "policies")


def its_completion_is_found(pipx: Pipx) -> None:
    """From the commands, as docs/start/install.md has it; dlrun has none without files."""
    for command in CLICK:
        asked = {f"_{command.upper()}_COMPLETE": "bash_source", "PATH": f"{os.defpath}:/bin"}
        said = pipx.does(pipx.commands / command, env=asked)
        assert f"-F _{command}_completion {command}" in said
    asked = {"_DLCTL_COMPLETE": "bash_complete", "COMP_WORDS": "dlctl prof", "COMP_CWORD": "1"}
    assert "plain,profile" in pipx.does(pipx.commands / "dlctl", env=asked).split()


def test_pipx_runs_a_command_without_installing_it(pipx: Pipx, built: Sequence[Path]) -> None:
    """Whoever wants to look first: the environment is a throw-away one."""
    said = pipx.does(pipx.program, "run", "--spec", built[1], "dlsim", "policies", tries=TRIES)

    assert "discrete_las" in said
    assert not pipx.commands.exists() or list(pipx.commands.iterdir()) == []
    assert sorted(path for path in pipx.home.rglob("*") if "slurm" in path.name) == []
