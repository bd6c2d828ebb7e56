"""What the daemon makes of the section ``placement``, and what it says of jobs that it steers."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from build import observed, pending, running, snapshot
from structlog.testing import capture_logs

from slurm_dl import logging_setup
from slurm_dl.cli.dlctl.status_text import status_lines
from slurm_dl.config import Config, engine_settings, load
from slurm_dl.daemon import assembly
from slurm_dl.daemon.audit_log import line_of
from slurm_dl.daemon.control.status_answer import steers_of
from slurm_dl.daemon.observers import CycleLog, one_line
from slurm_dl.daemon.published_state import Durations, PublishedState
from slurm_dl.engine.cycle import AppliedAction, Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Placement, Settings
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError, stored_steers
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import Action, ClearSteer, ForgetSteer, SetSiteFactor, SetSteer
from slurm_dl.model.profile import Profile
from slurm_dl.model.steer import Steer
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.policies.fifo import Fifo
from slurm_dl.profiles import shipped_profiles


def steer(job_id: int, **more: Any) -> Steer:  # noqa: ANN401 - fields of Steer
    """A steer of a job."""
    values: dict[str, Any] = {
        "job_id": JobId(job_id),
        "kind": "spot",
        "avoid": ("n1", "n2", "n3"),
        "since_s": 100.0,
        "until_s": 700.0,
        "why": "the fullest nodes it fits on",
    }
    return Steer(**{**values, **more})


def cycle_of(*steers: Steer, done: tuple[Action, ...] = ()) -> Cycle:
    """A cycle over jobs that wait, with what was done in it."""
    snap = snapshot(
        observed([pending(1), pending(2), running(3)]), steers={s.job_id: s for s in steers}
    )
    plan = decide(snap, Fifo(), Settings(partitions=frozenset({"gpu"})))
    return Cycle(snap, plan, acting=True, done=tuple(AppliedAction(action) for action in done))


# From the configuration to the engine.


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory of profiles."""
    directory = tmp_path / "profiles"
    directory.mkdir()
    directory.chmod(0o755)
    return directory


def profile(directory: Path, name: str, text: str) -> None:
    """Put a profile there."""
    path = directory / f"{name}.yaml"
    path.write_text(text, "utf-8")
    path.chmod(0o644)


def configured(site: Path, text: str = "") -> Config:
    """A configuration whose profiles are in *site*."""
    path = site.parent / "dl.yaml"
    head = f"manage: {{partitions: [gpu]}}\npaths: {{profile_dir: {site}}}\n"
    path.write_text(head + text, "utf-8")
    return load(path)


def test_the_engine_gets_what_was_configured(site: Path) -> None:
    """Names became schemes; a job is put off by four polls, so that two may fail."""
    text = "daemon: {poll_s: 20}\nplacement: {scheme: best_fit, steer: true, steer_for_s: 50, "
    text += "trim: true, settle_s: 25, window: 7}\n"
    profiles = {"a": Profile(name="a")}
    placement = engine_settings.settings_of(configured(site, text), profiles).placement

    assert placement == Placement(
        scheme=BestFit(),
        steer=True,
        trim=True,
        steer_for_s=50.0,
        defer_s=80.0,
        settle_s=25.0,
        window=7,
        profiles=profiles,
        max_host_slowdown=placement.max_host_slowdown,
    )


def test_defaults_are_the_engines(site: Path) -> None:
    """A key that the engine knows has one default, not two."""
    assert engine_settings.settings_of(configured(site)).placement == Placement()


def test_the_sites_profiles_come_before_ours(site: Path) -> None:
    """By name; the directory need not be there."""
    shipped = shipped_profiles()
    name = next(iter(shipped))
    profile(site, "one", f"name: {shipped[name].name}\nsource: ours\n")
    profile(site, "two", "name: new-one\naliases: [newer]\n")

    found = engine_settings.profiles_of(configured(site))

    assert found[shipped[name].name].source == "ours"
    assert found["newer"] is found["new-one"]
    assert found.keys() == {*shipped, "new-one", "newer"}
    assert engine_settings.profiles_of(configured(site / "nowhere")) == shipped


def test_a_bad_profile_is_a_bad_configuration(site: Path) -> None:
    """At the start and at a reload: nothing is assembled of it, every mistake is named."""
    profile(site, "one", "name: a\nskw: 3\n")
    profile(site, "two", "name: [b]\n")

    with pytest.raises(ConfigError) as caught:
        assembly.assemble(configured(site))

    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [f"{site}/{n}.yaml" for n in ("one", "two")]


def test_a_directory_that_is_none_is_said(site: Path) -> None:
    """Not the same as one that is not there."""
    (site.parent / "file").touch()

    with pytest.raises(ConfigError, match="file: cannot be read: Not a directory"):
        engine_settings.profiles_of(configured(site.parent / "file"))
    inner = [f"paths.profile_dir={site.parent}/file/inner"]
    config = load(site.parent / "dl.yaml", overrides=inner)
    with pytest.raises(ConfigError, match="inner: cannot be read: Not a directory"):
        engine_settings.profiles_of(config)


def test_only_models_that_have_a_profile_are_believed(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no profile at all, what jobs say is passed on."""
    given: list[Any] = []
    monkeypatch.setattr(assembly, "SlurmCluster", lambda _, **more: given.append(more["models"]))
    monkeypatch.setattr(assembly, "make_queue", lambda *_: None)
    monkeypatch.setattr(assembly, "slurm_of", lambda _: None)

    assembly.cluster_of(configured(site), {"a": Profile(name="a")})
    assembly.cluster_of(configured(site))

    assert [None if names is None else set(names) for names in given] == [{"a"}, None]


@pytest.mark.parametrize("reader", ["cli", "pyslurm"])
def test_the_queue_is_read_as_configured(
    site: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """And by nothing else: there is no fallback."""
    monkeypatch.setattr(assembly, "slurm_of", lambda _: None)
    config = configured(site, f"cluster: {{reader: {reader}}}\n")

    assert assembly.cluster_of(config).reader.reader == reader


# What is written down and said.


def test_the_audit_log_folds_what_a_job_is_kept_from() -> None:
    """Thousands of nodes are one word, and an end that never comes is none."""
    names = tuple(f"n{i}" for i in range(1, 3001))
    action = SetSteer(steer=steer(7, avoid=names, own=("x1",), until_s=math.inf), why="there")

    line = line_of(AppliedAction(action), 5.0).as_json()

    assert (line["action"], line["job"], line["reason"]) == ("set_steer", 7, "there")
    assert line["details"] == {
        "kind": "spot",
        "avoid": "n[1-3000]",
        "own": "x1",
        "until_s": None,
        "not_before_s": None,
        "lift": False,
    }
    json.dumps(line, allow_nan=False)


def test_the_audit_log_tells_how_a_steer_ended() -> None:
    """What was undone, and whether Slurm did as it was steered."""
    undone = line_of(AppliedAction(ClearSteer(job_id=JobId(7), own=("b2", "b1"), why="free")), 5.0)
    over = line_of(
        AppliedAction(ForgetSteer(job_id=JobId(7), outcome="not honoured", why="why", late_s=30.0)),
        5.0,
    )

    assert (undone.action, undone.job, undone.details["own"]) == ("clear_steer", 7, "b[1-2]")
    assert (over.action, over.job, over.details) == (
        "forget_steer",
        7,
        {"outcome": "not honoured", "late_s": 30.0},
    )


def test_the_cycle_log_says_what_was_steered() -> None:
    """In words, those that were refused not counted; nothing where nothing was."""
    actions: tuple[Action, ...] = (
        SetSteer(steer=steer(1), why=""),
        SetSteer(steer=steer(2), why=""),
        SetSteer(steer=steer(3, kind="wait"), why=""),
        SetSteer(steer=steer(4, kind="over"), why=""),
        ClearSteer(job_id=JobId(5), own=(), why=""),
        ForgetSteer(job_id=JobId(6), outcome="honoured", why=""),
    )
    cycle = cycle_of(steer(1), steer(3, kind="started"), done=actions)
    cycle = dataclasses.replace(cycle, done=(*cycle.done, AppliedAction(actions[0], "refused")))
    logging_setup.configure(level="debug", form="json", stream=io.StringIO())

    with capture_logs() as said:
        log = CycleLog(logging_setup.logger())
        log.say(cycle, Durations(), paused=False)
        plain = cycle_of(done=(SetSiteFactor(job_id=JobId(1), value=1, why=""),))
        log.say(plain, Durations(), paused=False)

    assert said[0]["steered"] == "2 to nodes, 1 to wait, 1 let go, 1 undone, 1 honoured"
    assert (said[0]["steers"], said[1]["steers"]) == (1, 0)
    assert "steered" not in said[1]


def test_the_status_says_who_is_steered(site: Path) -> None:
    """Those that wait, by what for; how many did as they were steered."""
    cycle = cycle_of(steer(1), steer(2, kind="wait"), steer(3, kind="started"))
    assert steers_of(cycle) == {"spot": 1, "wait": 1, "over": 0}

    answer: Any = {
        **dict.fromkeys(("doing", "pid", "version", "config_file", "policy", "preemption"), "x"),
        **dict.fromkeys(("now_s", "started_s"), 1.0),
        **dict.fromkeys(("paused", "seen_s", "reader", "reloaded", "trouble", "audit"), None),
        "actions": {"done": 1, "failed": 0},
        "placement": configured(site).placement.in_words(),
        "steers": steers_of(cycle),
        "steers_ended": {"honoured": 4, "not_honoured": 1},
    }
    said = dict(status_lines(answer))

    assert said["placement"] == "left to Slurm"
    assert said["steers"] == "1 to nodes; 1 to wait; 4 honoured, 1 not honoured since start"
    quiet = {**answer, "steers": {}, "steers_ended": {"honoured": 0, "not_honoured": 0}}
    assert "steers" not in dict(status_lines(quiet))


def test_one_line_needs_no_steers(site: Path) -> None:
    """Systemctl shows what it always showed."""
    now = PublishedState(
        config=configured(site), config_rows=(), started_s=0.0, live=True, cycle=cycle_of(steer(1))
    )

    assert one_line(now, paused=False) == "live: 1 running, 2 pending, 0 hand-overs"


# The ledger, read by others.


def test_steers_are_read_from_a_ledger_that_is_in_use(tmp_path: Path) -> None:
    """And it is left as it is."""
    path = tmp_path / "ledger.sqlite"
    store = SqliteStore(path)
    mine = (steer(3, own=("n9",), left=("n4",), until_s=math.inf), steer(4, avoid=()))
    store.save(StoreChange(steers=mine))
    before = path.read_bytes()

    assert stored_steers(path) == mine
    assert path.read_bytes() == before
    store.close()
    assert stored_steers(path) == mine


def test_a_ledger_of_before_there_were_steers_has_none(tmp_path: Path) -> None:
    """It is not changed by looking at it."""
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE job (job_id INTEGER)")
    db.close()

    assert stored_steers(path) == ()
    db = sqlite3.connect(path)
    assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("job",)]
    db.close()


def test_a_ledger_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """Not there, or no ledger at all; none is made."""
    path = tmp_path / "odd # ? name.sqlite"
    with pytest.raises(StoreError, match="unable to open"):
        stored_steers(path)
    assert not path.exists()

    path.write_bytes(b"this is no database, whatever else it may be" * 100)
    with pytest.raises(StoreError, match="not a database"):
        stored_steers(path)
