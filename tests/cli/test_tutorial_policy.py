"""docs/develop/add-a-policy.md: its code is that of examples/policy, its commands are run.

Its last part, on a sandbox, is run by tests/cluster/test_third_party_policy.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from third_party import EXAMPLE, ROOT, TUTORIAL, install

TEXT = TUTORIAL.read_text("utf-8")
SHOWN = re.findall(r"^```console\n\$ (.*)\n((?:.*\n)*?)```$", TEXT, re.MULTILINE)
PLAIN = re.findall(r"^```sh\n(.*)\n```$", TEXT, re.MULTILINE)
"""One-line commands of which no output is shown."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of a shell in which the example is installed."""
    return {**os.environ, **install(tmp_path_factory.mktemp("site"))}


def run(command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command of the page, in the checkout."""
    return subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300 * PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_page_shows_what_is_printed(
    command: str, shown: str, environment: dict[str, str]
) -> None:
    """Line by line."""
    done = run(command, environment)

    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()


def test_all_parts_of_the_page_are_looked_at() -> None:
    """The commands in front of the sandbox are these, and nothing is left out."""
    assert [command.split()[0] for command, _ in SHOWN] == ["dlsim", "dlctl", "python", "dlsim"]
    assert PLAIN == ["pip install examples/policy", "pytest -q examples/policy"]
    assert TEXT.count("```") == 2 * (len(SHOWN) + len(PLAIN) + 3)  # Python, TOML, the sandbox.


def test_the_code_of_the_page_is_that_of_the_example() -> None:
    """Whoever copies it from either place has the same."""
    [python] = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    [toml] = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)

    assert (EXAMPLE / "small_first.py").read_text("utf-8").endswith(python)
    assert f"\n{toml}\n" in (EXAMPLE / "pyproject.toml").read_text("utf-8")
    assert python.startswith("@dataclass")


def test_its_own_test_passes(environment: dict[str, str]) -> None:
    """The three lines of the page."""
    done = run(f"{PLAIN[1]} -p no:cacheprovider", environment)

    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


@pytest.mark.wheel
def test_pip_installs_it(tmp_path: Path) -> None:
    """As the page says, but into a directory of its own."""
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    pip = [sys.executable, "-m", *PLAIN[0].split(), "--no-deps", "--target", str(tmp_path)]
    for _ in range(3):  # The index may be away for a moment.
        done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break

    shown = run(f"{sys.executable} -m slurm_dl.testing small_first", env)

    assert done.returncode == 0, done.stderr
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert (tmp_path / "small_first.py").exists()
