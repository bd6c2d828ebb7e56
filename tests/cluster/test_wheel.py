"""The wheel, as a site gets it: built, installed into an empty environment, tried from elsewhere.

What works in the checkout may be missing from the wheel: templates, the sample configuration, a
module that only the checkout's path has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from patience import PATIENCE

from slurm_dl.sandbox import Sandbox

ROOT = Path(__file__).parents[2]
COMMANDS = ("dlschedd", "dlctl", "dlqueue", "dlsubmit", "dlsim", "dlrun")
TRIES = 3
"""Building and installing take packages from an index, which may be away for a moment."""

pytestmark = pytest.mark.wheel


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel, and a directory that has nothing of the checkout."""

    prefix: Path
    elsewhere: Path

    @property
    def package(self) -> Path:
        """Where the package lies."""
        (found,) = self.prefix.glob("lib/python3*/site-packages/slurm_dl")
        return found

    @property
    def data(self) -> Path:
        """Where the files lie that the checkout has outside the package."""
        return self.package / "_data"

    def run(
        self, command: str, *args: object, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One of its commands, as a user calls it."""
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLURM", "SBATCH", "PYTHON", "VIRTUAL_ENV"))
        }
        return subprocess.run(
            [self.prefix / "bin" / command, *map(str, args)],
            cwd=self.elsewhere,
            env={**clean, "HOME": str(self.elsewhere), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120 * PATIENCE,
        )


def pip(*argv: object) -> None:
    """Run a command that takes packages from an index, again if it fails."""
    for _ in range(TRIES):
        done = subprocess.run([*map(str, argv)], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
    pytest.fail(f"{' '.join(map(str, argv))}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, which in turn is built from the checkout."""
    directory = tmp_path_factory.mktemp("dist")
    pip(sys.executable, "-m", "build", "--outdir", directory, ROOT)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own, with what it depends on and nothing else."""
    directory = tmp_path_factory.mktemp("wheel")
    prefix, elsewhere = directory / "venv", directory / "elsewhere"
    elsewhere.mkdir()
    pip(sys.executable, "-m", "venv", prefix)
    pip(prefix / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
    return Installed(prefix, elsewhere)


def test_the_wheel_holds_what_is_needed_and_no_more(wheel: Path) -> None:
    """Types, licence, templates and the admin's files are in it; tests and the demo are not."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    dist_info = next(name for name in names if name.endswith(".dist-info/METADATA"))
    top = {name.partition("/")[0] for name in names}

    assert "slurm_dl/py.typed" in names
    assert dist_info.replace("METADATA", "licenses/LICENSE") in names
    # The profiles are made of others' data, and these licences must go with them.
    for owner in ("gavel", "chronus"):
        licence = f"licenses/profiles/published/LICENSE-{owner}"
        assert dist_info.replace("METADATA", licence) in names
    info = dist_info.partition("/")[0]
    assert top == {"slurm_dl", info, info.replace(".dist-info", ".data")}
    for directory in ("templates", "etc"):
        files = {path for path in (ROOT / directory).rglob("*") if path.is_file()}
        assert files, directory
        assert {f"slurm_dl/_data/{path.relative_to(ROOT)}" for path in files} <= names
    tests = re.compile(r"(^|/)(tests?(/|$)|test_|conftest\.py$)")
    # A command of ours is called test-signal.
    ours = {name for name in names if name != "slurm_dl/cli/dlctl/test_signal.py"}
    assert not {name for name in ours if tests.search(name) or name.endswith(".pyc")}


def test_the_wheel_has_every_module_of_the_checkout(installed: Installed) -> None:
    """Nothing is left behind, and the package that runs is the installed one."""
    own = {p.relative_to(installed.package) for p in installed.package.rglob("*.py")}
    checkout = {p.relative_to(ROOT / "slurm_dl") for p in (ROOT / "slurm_dl").rglob("*.py")}

    where = installed.run("python", "-c", "import slurm_dl; print(slurm_dl.__file__)")

    assert own == checkout
    assert Path(where.stdout.strip()) == installed.package / "__init__.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_starts(command: str, installed: Installed) -> None:
    """Each of the six is installed and finds all that it imports."""
    helped = installed.run(command, "--help")

    assert helped.returncode == 0, helped.stderr
    assert command in helped.stdout
    assert not helped.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_the_version_of_the_wheel(
    command: str, installed: Installed, wheel: Path
) -> None:
    """Not that of the checkout, should they differ."""
    told = installed.run(command, "--version")

    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() == f"{command}, version {wheel.name.split('-')[1]}"


def test_the_source_distribution_holds_what_builds_the_packages(wheel: Path) -> None:
    """And nothing of the checkout's environments or results."""
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    packaging = {path for path in (ROOT / "tools" / "packaging").rglob("*") if path.is_file()}
    wanted = {str(p.relative_to(ROOT)) for p in packaging if "__pycache__" not in p.parts}
    assert wanted
    assert wanted <= names
    assert {"pyproject.toml", "Makefile", "LICENSE", "etc/systemd/dlschedd.service"} <= names
    # What tests read besides.
    assert {"mkdocs.yml", ".ci/run", "README.md", "CHANGELOG.md"} <= names
    assert not {name for name in names if name.startswith((".venv", "dist/", "build/"))}


def test_the_packaged_sample_is_a_valid_configuration(installed: Installed) -> None:
    """An admin copies the sample out of the wheel and begins with it."""
    sample = installed.data / "etc" / "slurm_dl.yaml"

    checked = installed.run("dlctl", "check-config", sample)

    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.strip() == f"{sample}: ok"


@pytest.mark.parametrize("launcher", ["plain", "torchrun", "srun"])
def test_dlsubmit_takes_the_templates_of_the_wheel(launcher: str, installed: Installed) -> None:
    """There is no checkout beside an installed package to take them from."""
    shown = installed.run("dlsubmit", "--json", "--show-template", launcher)

    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["owner"] == "wheel"
    assert Path(found["path"]).parent == installed.data / "templates"


@pytest.mark.slurm
def test_dlsubmit_writes_a_script_from_the_wheel(sandbox: Sandbox, installed: Installed) -> None:
    """A dry run against a real cluster: its nodes give the shape, the wheel the template."""
    line = ("--gpus", "8", "--dry-run", "--", "python", "train.py")

    dry = installed.run("dlsubmit", *line, env=sandbox.env)

    assert dry.returncode == 0, dry.stderr
    assert "#SBATCH --nodes=2" in dry.stdout
    assert "#SBATCH --gpus-per-node=4" in dry.stdout
    assert str(installed.prefix / "bin" / "dlrun") in dry.stdout


@pytest.mark.slurm
def test_a_cluster_a_job_and_a_look_with_the_wheel_alone(
    installed: Installed, short_directory: Path, eventually: Callable[..., object]
) -> None:
    """Sandbox, submission and a shadow cycle with the installed commands, start to end."""
    box = short_directory / "c"
    try:
        up = installed.run("dlctl", "sandbox", "up", box, "--nodes", 1, "--gpus", 2)
        assert up.returncode == 0, up.stderr
        env = {"SLURM_CONF": str(box / "slurm.conf")}
        jobs = [
            installed.run(
                "dlsubmit",
                "--parsable",
                f"--chdir={box / 'jobs'}",
                f"--run-dir={box / 'jobs'}",
                *("--gpus", 2, "--", "sleep", 600),
                env=env,
            )
            for _ in range(2)
        ]
        assert [job.returncode for job in jobs] == [0, 0], jobs[0].stderr + jobs[1].stderr
        first, second = (int(job.stdout) for job in jobs)
        config = short_directory / "dl.yaml"
        config.write_text(
            f"cluster: {{slurm_conf: {env['SLURM_CONF']}}}\n"
            "manage: {partitions: [gpu]}\n"
            f"paths: {{state_dir: {short_directory}/state, run_dir: {short_directory}/run,"
            f" audit_log: {short_directory}/state/audit.jsonl}}\n",
            encoding="utf-8",
        )
        config.chmod(0o640)
        (short_directory / "state").mkdir()

        def sees_both() -> bool:
            once = installed.run("dlschedd", "--once", "--shadow", "--json", "--config", config)
            assert once.returncode == 0, once.stderr
            plan = json.loads(once.stdout)
            assert not plan["acting"]
            return {first, second} == {int(job["job"]) for job in plan["jobs"]}

        eventually(sees_both, within_s=30, every_s=1, what="both jobs in the plan")
    finally:
        if (box / "sandbox.json").exists():
            down = installed.run("dlctl", "sandbox", "down", "--remove", box)
            assert down.returncode == 0, down.stderr
    assert not box.exists()
