"""Real Slurm clusters for tests marked ``slurm``, and what everybody needs around them.

The daemons live in short directories of /tmp: pytest's own are closed to other users, and unix
socket paths are limited to 107 bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
import selection
from effort import tried_more
from hypothesis import HealthCheck, settings
from patience import eventually as patiently
from sweep import new_directory

from slurm_dl.model.errors import ConfigError, SlurmDlError
from slurm_dl.sandbox import Sandbox, SandboxSpec
from slurm_dl.sandbox.layout import check_host

MakeSandbox = Callable[..., Sandbox]

# How fast an example is says what else the machine does, and nothing of the code.
settings.register_profile("slurm_dl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slurm_dl")

_LOG_TAIL_LINES: Final = 60
_RESERVATION_PREFIX: Final = "slurm_dl_"
_LIVE: Final[list[Sandbox]] = []
"""Every sandbox a test could have used, for the report of a failure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for how much is tried, and for the record of a run."""
    parser.addoption(
        "--examples",
        type=float,
        default=1.0,
        metavar="TIMES",
        help="try TIMES as many examples of each property (hypothesis) as it says itself",
    )
    parser.addoption(
        "--share",
        type=float,
        default=1.0,
        help="run this share of the tests of the files in `selection.SHARED` (at least 3 of each)",
    )
    parser.addoption("--share-seed", default="", help="which tests these are")
    parser.addoption("--part", metavar="N/OF", help="run one part of what `make test` leaves out")
    parser.addoption(
        "--changed", default="", metavar="FILE,...", help="with --part: run these files as well"
    )
    parser.addoption(
        "--record", type=Path, metavar="FILE", help="write failures and durations as JSON"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Try each property as often as asked, choose the tests, and begin with the longest files."""
    times: float = config.getoption("--examples")
    if times != 1:
        # The cases of one test share their settings.
        for test in {item.function for item in items if isinstance(item, pytest.Function)}:
            tried_more(test, times)
    out: set[pytest.Item] = set()
    table = selection.durations()
    if part := config.getoption("--part"):
        changed = config.getoption("--changed").split(",")
        out |= selection.outside_part(items, part, changed, table)
    share: float = config.getoption("--share")
    if share != 1:
        out |= selection.shared_out(items, share, config.getoption("--share-seed"))
    if out:
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]
    selection.longest_first(items, table)
    for item in items:
        item.user_properties.append(("unit", selection.unit_of(item)))


def pytest_configure(config: pytest.Config) -> None:
    """Let a terminated run clean up like an interrupted one: its daemons must not outlive it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if (path := config.getoption("--record")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Record(path))


class _Record:
    """What failed in a run, whether a repetition can tell something, and how long units took."""

    repeatable: Final = {"slurm", "docker", "torch", "wheel"}

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, bool] = {}
        self._seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Book one phase of a test; called in the controller for all workers."""
        if report.failed:
            self._failed[report.nodeid] = bool(self.repeatable & set(report.keywords))
        about = dict(report.user_properties)
        if "unit" in about:
            kind = "full" if set(selection.LEFT_OUT) & set(report.keywords) else "test"
            self._seconds[str(about["unit"])][kind] += report.duration

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read fails as it is."""
        if report.failed:
            self._failed[report.nodeid] = False

    def pytest_sessionfinish(self) -> None:
        """Write all of it."""
        told = {"failed": self._failed, "seconds": self._seconds}
        self._path.write_text(json.dumps(told), encoding="utf-8")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of real daemons where there can be none; on CI that is a failure."""
    if item.get_closest_marker("slurm") is None:
        return
    try:
        check_host()
    except ConfigError as err:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the tests of real Slurm daemons: {err}", pytrace=False)
        pytest.skip(f"cannot start Slurm daemons: {err}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the controllers' log and jobs to the report of a failed ``slurm`` test."""
    report = yield
    if report.failed and item.get_closest_marker("slurm") is not None:
        for box in _LIVE:
            report.sections.append((f"slurmctld log of {box.directory}", _log_tail(box)))
            report.sections.append((f"jobs of {box.directory}", _jobs(box)))
    return report


@pytest.fixture(scope="session")
def eventually() -> Callable[..., object]:
    """``eventually(predicate, within_s=30, every_s=0.2)``: poll with a deadline."""
    return patiently


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A cluster of 4 nodes x 4 GPUs (a100) under 2 leaf switches, shared by the whole run."""
    with _own_sandbox(SandboxSpec()) as box:
        yield box


@pytest.fixture
def make_sandbox() -> Iterator[MakeSandbox]:
    """A function that makes a cluster of its own from a SandboxSpec; all end with the test."""
    with ExitStack() as boxes:

        def make(spec: SandboxSpec | None = None, *, port: int | None = None) -> Sandbox:
            return boxes.enter_context(_own_sandbox(spec or SandboxSpec(), port=port))

        yield make


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """An empty directory that every user can enter and whose name is short."""
    with _short_directory() as path:
        yield path


@pytest.fixture(scope="module")
def module_directory() -> Iterator[Path]:
    """The same for all tests of a module."""
    with _short_directory() as path:
        yield path


@pytest.fixture(autouse=True)
def _empty_shared_queue(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give each test that uses the shared cluster an empty queue, and the next one too."""
    if "sandbox" not in request.fixturenames:
        yield
        return
    box: Sandbox = request.getfixturevalue("sandbox")
    _empty(box)
    yield
    _empty(box)


@pytest.fixture
def empty_queue() -> Callable[[Sandbox], None]:
    """What runs before and after each test on the shared cluster, for use inside one."""
    return _empty


def _empty(box: Sandbox) -> None:
    """Bring back daemons a test has ended, end every job, delete slurm_dl's reservations."""
    if not box.status().is_up:
        Sandbox.up(box.directory)
    patiently(lambda: _cancel_all(box), 60.0, what="the queue to be empty")
    reservations = box.run(["scontrol", "-o", "show", "reservations"]).stdout
    for line in reservations.splitlines():
        name = line.partition(" ")[0].removeprefix("ReservationName=")
        if name.startswith(_RESERVATION_PREFIX):
            box.run(["scontrol", "delete", f"ReservationName={name}"])
    for partition in box.spec.partitions:
        box.run(["scontrol", "update", f"PartitionName={partition.name}", "State=UP"])
    if not _all_idle(box):
        # Refused for nodes that are merely ending a job, so the status says nothing.
        for name in box.spec.node_names:
            box.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"], check=False)
    patiently(lambda: _all_idle(box), 60.0, what="all nodes to be idle")


def _cancel_all(box: Sandbox) -> bool:
    jobs = box.run(["squeue", "-ah", "-t", "PENDING,RUNNING,SUSPENDED", "-o", "%A"]).stdout.split()
    if jobs:
        box.run(["scancel", "--quiet", "--signal=KILL", *sorted(set(jobs))], check=False)
        box.run(["scancel", "--quiet", *sorted(set(jobs))], check=False)
    return not box.run(["squeue", "-ah", "-o", "%A"]).stdout.split()


def _all_idle(box: Sandbox) -> bool:
    return all(node.state in {"IDLE", "IDLE+RESERVED"} for node in box.status().nodes)


@contextmanager
def _own_sandbox(spec: SandboxSpec, *, port: int | None = None) -> Iterator[Sandbox]:
    with _short_directory() as parent:
        directory = parent / "c"
        try:
            box = Sandbox.up(directory, spec, port=port)
            _LIVE.append(box)
            try:
                yield box
            finally:
                _LIVE.remove(box)
        finally:
            # Also for a start that broke off half way.
            if (directory / "sandbox.json").exists():
                Sandbox.open(directory).down(remove=True)


@contextmanager
def _short_directory() -> Iterator[Path]:
    path = new_directory()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _log_tail(box: Sandbox) -> str:
    try:
        text = (box.log_directory / "slurmctld.log").read_text(encoding="utf-8", errors="replace")
    except OSError as err:
        return str(err)
    return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])


def _jobs(box: Sandbox) -> str:
    try:
        return box.run(["scontrol", "show", "job"], 10.0, check=False).stdout
    except SlurmDlError as err:
        return str(err)
