"""One cluster of containers for each Slurm release, one after the other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterator

import pytest
from containers import RELEASES, Containers, docker
from engine import NoEngineError, docker_engine

_LIVE: list[Containers] = []
_SAID: dict[str, str] = {}
"""What is to be told at the end, by release."""


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """A Docker Engine; where there can be none its tests are skipped, on CI they fail."""
    try:
        with docker_engine():
            yield
    except NoEngineError as err:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the tests in containers: {err}", pytrace=False)
        pytest.skip(str(err))


@pytest.fixture(scope="session", params=RELEASES)
def cluster(request: pytest.FixtureRequest, engine: None) -> Iterator[Containers]:  # noqa: ARG001
    """The cluster of one release, shared by all tests that want it."""
    release: str = request.param
    made = Containers(release, f"sdl-test-{release.replace('.', '')}-{os.getpid()}")
    try:
        made.up()
        _LIVE.append(made)
        slurm = made.run("login", "scontrol", "--version").stdout.strip()
        pyslurm = made.run("login", "cat", "/opt/pyslurm/status").stdout.strip()
        _SAID[release] = f"{slurm}; pyslurm {pyslurm}"
        yield made
    finally:
        if made in _LIVE:
            _LIVE.remove(made)
        made.down()


@pytest.fixture(autouse=True)
def _empty_queue(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give each test a cluster without jobs, all of it up."""
    if "cluster" not in request.fixturenames:
        yield
        return
    cluster: Containers = request.getfixturevalue("cluster")
    yield
    for user in ("alice", "bob", "carol"):
        cluster.run("slurmctld", "scancel", "--quiet", f"--user={user}", check=False)
    cluster.until("the queue to be empty", lambda: _is_idle(cluster), 90)


def _is_idle(cluster: Containers) -> bool:
    jobs = cluster.run("slurmctld", "squeue", "--noheader", "--all").stdout
    states = cluster.run("slurmctld", "sinfo", "--noheader", "--format=%T", "-p", "gpu").stdout
    return not jobs and set(states.split()) == {"idle"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the cluster's parts said to the report of a failed test."""
    report = yield
    if report.failed and "cluster" in getattr(item, "fixturenames", ()):
        for cluster in _LIVE:
            for part in ("dlschedd", "slurmctld"):
                report.sections.append((f"log of {part}", _log(cluster, part)))
            report.sections.append(("jobs", _jobs(cluster)))
    return report


def _log(cluster: Containers, part: str) -> str:
    try:
        return docker("logs", "--tail=60", cluster.container(part))
    except (AssertionError, subprocess.TimeoutExpired) as err:
        return str(err)


def _jobs(cluster: Containers) -> str:
    try:
        return cluster.run("slurmctld", "scontrol", "show", "job", check=False).stdout
    except (AssertionError, subprocess.TimeoutExpired) as err:
        return str(err)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which Slurm it was: Debian's newest moves on by itself."""
    for release, said in sorted(_SAID.items()):
        terminalreporter.write_line(f"docker {release}: {said}")
