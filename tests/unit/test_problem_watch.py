"""Problems that appear while the daemon runs: seen, kept, gone, and said once each."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
from patience import eventually

from slurm_dl import logging_setup
from slurm_dl.config import Config, load_with_origins
from slurm_dl.daemon.problems import WATCHED
from slurm_dl.doctor import problem_watch
from slurm_dl.doctor.problem_watch import ProblemWatch
from slurm_dl.doctor.site import Account, Site
from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.tool_runner import Slurm

DATA = Path(__file__).parents[1] / "data" / "doctor"
SERVICE = Account(name="slurm_dl", uid=os.geteuid() or 880, gids=frozenset(), why="test")


class Tools(Slurm):
    """Slurm's tools on a cluster on which all is well, but for what a test says."""

    slurm_conf = "/nonexistent"

    def __init__(self) -> None:
        self.said: dict[str, str] = {"user": "slurm_dl|Operator\n", "ahead_s": "0"}
        self.silent = False
        self.calls: Counter[str] = Counter()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def run(self, tool: str, *args: str, **_: float) -> str:
        """What the tool prints."""
        assert self.may_answer.wait(10)
        self.calls[tool] += 1
        if self.silent:
            msg = f"{tool}: no answer"
            raise ClusterError(msg)
        what = next(w for w in ("config", "partition", "user", "qos") if w in args)
        if what == "config":
            now_s = int(time.time()) + int(self.said["ahead_s"])
            known = (DATA / "config-24.11.5.txt").read_text("utf-8").partition("\n")[2]
            return f"Configuration data as of {now_s} \n{self.said.get('config', '')}{known}"
        if what == "partition":
            return self.said.get(what) or (DATA / "partitions-24.11.5.txt").read_text("utf-8")
        return self.said.get(what, "")


class Case:
    """A watch, its cluster, its files and its log."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.tools = home, Tools()
        monkeypatch.setattr(Site, "account", SERVICE, raising=False)
        monkeypatch.setattr(Site, "slurm", self.tools, raising=False)
        for name in ("state", "profiles", "templates"):
            (home / name).mkdir(mode=0o700)
        os.chown(home / "state", SERVICE.uid, -1)
        paths = f"state_dir: {home}/state, audit_log: {home}/state/audit.jsonl, "
        paths += f"profile_dir: {home}/profiles, template_dir: {home}/templates"
        self.write("dl.yaml", f"manage: {{partitions: [gpu]}}\npaths: {{{paths}}}\n")
        self.config = self.read()
        self.watch = ProblemWatch(logging_setup.logger(), home / "dl.yaml", ())

    def read(self, *settings: str) -> Config:
        """The configuration."""
        return load_with_origins(self.home / "dl.yaml", overrides=settings)[0]

    def write(self, name: str, text: str, mode: int = 0o600) -> None:
        """Write a file of the site."""
        (self.home / name).write_text(text, "utf-8")
        (self.home / name).chmod(mode)

    def sets(self, **said: str) -> None:
        """Have Slurm say something else."""
        self.tools.said |= said

    def names(self) -> list[str]:
        """The checks that found a problem."""
        return [problem.check for problem in self.watch.standing()]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """One on which all is well."""
    return Case(tmp_path, monkeypatch)


def config(line: str) -> Callable[[Case], None]:
    """A setting of slurm.conf; of two equal keys the first counts."""
    return lambda case: case.sets(config=f"{line}\n")


TROUBLE: dict[str, Callable[[Case], None]] = {
    "configuration": lambda case: case.write("dl.yaml", "mange: {}\n"),
    "release": config("SLURM_VERSION = 23.02.0"),
    "partitions": lambda case: case.sets(partition="PartitionName=debug State=UP\n"),
    "rights": lambda case: case.sets(user="slurm_dl|None\n"),
    "private data": lambda case: case.sets(user="x|None\n", config="PrivateData = jobs\n"),
    "clock": lambda case: case.sets(ahead_s="100"),
    "priority plugin": config("PriorityType = priority/basic"),
    "site factor": config("PrioritySiteFactorPlugin = site_factor/own"),
    "priority weights": config("PriorityWeightAge = 100000000"),
    "priority flags": config("PriorityFlags = INCR_ONLY"),
    "gpus": config("GresTypes = shard"),
    "preemption": lambda case: setattr(
        case, "config", case.read("preemption.mode=native", "preemption.qos=dl")
    ),
    "profiles": lambda case: case.write("profiles/x.yaml", "no: profile\n"),
    "job records": config("MinJobAge = 1 sec"),
    "directories": lambda case: (case.home / "state").chmod(0o777),
    "templates": lambda case: case.write("templates/own.sbatch.j2", "#!/bin/sh\n", mode=0o666),
}


def test_each_watched_check_is_tested() -> None:
    """Or a new one would be watched unseen."""
    assert tuple(TROUBLE) == WATCHED


@pytest.mark.parametrize("check", WATCHED)
def test_a_problem_appears_stays_and_goes(case: Case, check: str) -> None:
    """It is said once that it is there, and once that it is gone; also if Slurm is silent then."""
    text = (case.home / "dl.yaml").read_text("utf-8")
    before, said = case.config, dict(case.tools.said)
    with structlog.testing.capture_logs() as lines:
        case.watch.look(case.config)
        assert (case.names(), lines) == ([], [])
        TROUBLE[check](case)
        for silent in (False, False, True):
            case.tools.silent = silent
            case.watch.look(case.config)
            assert check in case.names()
        since_s = [problem.since_s for problem in case.watch.standing()]
        assert max(since_s) <= time.time()

        case.tools.silent, case.tools.said, case.config = False, said, before
        case.write("dl.yaml", text)
        (case.home / "state").chmod(0o700)
        for name in ("profiles", "templates"):
            for path in (case.home / name).iterdir():
                path.unlink()
        for _ in range(2):
            case.watch.look(case.config)
    assert case.names() == []
    told = [(line["log_level"], line["event"]) for line in lines if line["check"] == check]
    assert told == [("error", "problem"), ("info", "problem is gone")]
    assert all(line["advice"] for line in lines if line["event"] == "problem")


def test_a_look_costs_few_commands(case: Case) -> None:
    """Two of slurmctld and one of slurmdbd; one where slurmctld is silent."""
    case.watch.look(case.config)
    assert case.tools.calls == {"scontrol": 2, "sacctmgr": 1}
    case.tools.silent = True
    case.tools.calls.clear()
    case.watch.look(case.config)
    assert case.tools.calls == {"scontrol": 1}


def test_it_looks_at_the_start_after_a_reload_and_in_time(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the cycles: none waits, and a reload during a look is not forgotten."""
    reloaded = object()

    def cycle(reload: object = None) -> None:
        now: Any = SimpleNamespace(config=case.config, reloaded=reload)
        case.watch.on_cycle(now)

    def looked(times: int) -> bool:
        return case.tools.calls["sacctmgr"] == times

    case.tools.may_answer.clear()
    cycle()
    cycle(reloaded)
    assert not case.tools.calls
    case.tools.may_answer.set()
    eventually(lambda: looked(1), 10.0, 0.01)
    eventually(lambda: cycle(reloaded) or looked(2), 10.0, 0.01)  # type: ignore[func-returns-value]
    cycle(reloaded)
    assert looked(2)
    now_s = time.monotonic() + problem_watch.EVERY_S
    with monkeypatch.context() as patch:
        patch.setattr(problem_watch.time, "monotonic", lambda: now_s)
        cycle(reloaded)
    eventually(lambda: looked(3), 10.0, 0.01)
    eventually(lambda: "problems" not in {t.name for t in threading.enumerate()}, 10.0, 0.01)
