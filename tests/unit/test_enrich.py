"""What is known of jobs beforehand, as the daemon adds it to its snapshots."""

from __future__ import annotations

import io
import json
import math
import threading

import build
import numpy as np
import pytest
from pasts import Known, Over, past_of

from slurm_dl import logging_setup
from slurm_dl.config import Config
from slurm_dl.daemon.assembly import knowledge_of
from slurm_dl.daemon.enrich import LONGEST_PAUSE_S, Enricher, HistoryCache, progress_of
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.model.completed_jobs import NO_PAST, Past
from slurm_dl.model.contract import Claim
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Origin
from slurm_dl.model.profile import Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.qssf import Qssf
from slurm_dl.slurm.accounting.query import NoAccountingError

PAST = past_of([Over("ann", "a", 1, 5000.0), Over("ann", "a", 1, 7000.0)])


def snap_of(**claims: Claim) -> Snapshot:
    """Four jobs of ann's under a limit of 10,000 s; the first two run for 1000 s."""
    rows = [
        build.running(1, 1, limit_s=10_000),
        build.running(2, 1, limit_s=10_000),
        build.pending(3, 1, limit_s=10_000),
        build.pending(4, 1),
    ]
    names = {1: "a", 2: "a", 3: "a", 4: "b"}
    seen = build.observed(
        rows,
        texts={JobId(j): JobText(label=str(j), user="ann", name=n) for j, n in names.items()},
        claims={JobId(int(j[1:])): claim for j, claim in claims.items()},
    )
    return build.snapshot(seen, memory={"ran_s": {1: 1000.0, 2: 1000.0}})


def test_each_source_fills_its_part_of_the_snapshot() -> None:
    """Reports, history, profiles and the site's table; each with where it is from."""
    profile = Profile(
        name="m", speeds=(Speed(shape=Shape(1, 1), steps_per_s=2.0, gpu_type="v100"),)
    )
    know = Enricher(
        history=Known(PAST),
        policy=Qssf(),
        profiles={"m": profile},
        site=SitePriors(gpu_speed={"a100": 3.0}),
    )
    snap = know(snap_of(j1=Claim(progress=0.25), j3=Claim(model="m")))

    assert snap.left_s.tolist() == [3000.0, 5000.0, 6000.0, math.inf]
    assert snap.left_from is not None
    assert snap.left_from.tolist() == [
        Origin.REPORTED,
        Origin.HISTORY,
        Origin.HISTORY,
        Origin.PRIOR,
    ]
    assert snap.past is PAST
    assert snap.progress is not None
    assert snap.progress[0] == 0.25
    assert np.isnan(snap.progress[1:]).all()
    assert snap.rates is not None
    assert snap.rates.tolist() == [[3.0, 1.0]] * 4
    assert snap.rates_from is not None


def test_where_nothing_is_known_the_snapshot_says_what_the_ledger_said() -> None:
    """The time limit, and that it is the time limit; no rates, no progress, no past."""
    before = snap_of()
    after = Enricher(profiles={}, site=SitePriors())(before)

    assert after.left_s.tolist() == before.left_s.tolist()
    assert after.left_from is not None
    assert after.left_from.tolist() == [Origin.DECLARED] * 3 + [Origin.PRIOR]
    assert (after.progress, after.rates, after.rates_from) == (None, None, None)
    assert after.past is NO_PAST


def test_claims_of_jobs_that_are_gone_are_passed_over() -> None:
    """A claim may outlive its row."""
    progress = progress_of(snap_of(j99=Claim(progress=0.5)))

    assert progress is not None
    assert np.isnan(progress).all()


class Dbd:
    """An accounting that can fail or hang."""

    def __init__(self) -> None:
        self.answer: Past | Exception = PAST
        self.reads = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def read(self) -> Past:
        """What was set."""
        self.reads += 1
        assert self.may_answer.wait(30)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Kept:
    """A history over such an accounting, with a clock and a log."""

    def __init__(self, first_wait_s: float = 30.0) -> None:
        self.dbd = Dbd()
        self.now_s = 0.0
        self.log = io.StringIO()
        logging_setup.configure(level="info", form="json", stream=self.log)
        self.history = HistoryCache(
            self.dbd,
            logging_setup.logger(),
            every_s=3600.0,
            clock=lambda: self.now_s,
            first_wait_s=first_wait_s,
        )

    def look_later(self, by_s: float) -> Past:
        """What stands once a read that began then is done."""
        self.now_s += by_s
        self.history.look()
        self.history.wait(30)
        return self.history.look()

    @property
    def events(self) -> list[tuple[str, str]]:
        """(level, event) of each line logged."""
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [(line["level"], line["event"]) for line in lines]


def test_history_is_read_again_when_it_is_time() -> None:
    """The first look waits for it, later ones do not read more often than they may."""
    kept = Kept()
    assert kept.history.look() is PAST
    kept.now_s += 3599
    assert kept.history.look() is PAST
    assert kept.dbd.reads == 1

    kept.dbd.answer = NO_PAST
    assert kept.look_later(1) is NO_PAST
    assert kept.dbd.reads == 2


def test_no_look_waits_for_a_slow_accounting() -> None:
    """What was read last stands meanwhile, and no second read begins beside the first."""
    kept = Kept(first_wait_s=0.0)
    kept.dbd.may_answer.clear()

    assert kept.history.look() is NO_PAST
    kept.now_s += 7200
    assert kept.history.look() is NO_PAST
    assert kept.dbd.reads == 1
    kept.dbd.may_answer.set()
    kept.history.wait(30)
    assert kept.look_later(0) is PAST


def test_a_failure_keeps_what_was_read_and_is_said_once() -> None:
    """It is asked again sooner than usual, and the success is said too."""
    kept = Kept()
    kept.history.look()
    kept.dbd.answer = ClusterError("slurmdbd is down")
    assert kept.look_later(3600) is PAST
    assert kept.look_later(LONGEST_PAUSE_S - 1) is PAST
    assert kept.dbd.reads == 2
    assert kept.look_later(1) is PAST
    assert kept.dbd.reads == 3
    warned = [event for level, event in kept.events if level == "warning"]
    assert warned == ["accounting does not answer"]
    assert "the history read last is kept" in kept.log.getvalue()

    kept.dbd.answer = PAST
    kept.look_later(LONGEST_PAUSE_S)
    assert kept.events[-1] == ("info", "history read from accounting")


def test_a_site_without_accounting_is_not_asked_more_often() -> None:
    """It says so once, and what that means."""
    kept = Kept()
    kept.dbd.answer = NoAccountingError("sacct is not installed")
    assert kept.history.look() is NO_PAST
    kept.look_later(LONGEST_PAUSE_S)
    assert kept.dbd.reads == 1
    assert kept.events == [("warning", "no accounting")]
    assert "not predicted from history" in kept.log.getvalue()


@pytest.mark.parametrize("where", ["read", "prepare"])
def test_a_bug_is_said_and_ends_nothing(where: str) -> None:
    """Whoever it is that fails."""
    kept = Kept()

    def prepare(_: Past) -> None:
        if where == "prepare":
            raise KeyError(where)

    if where == "read":
        kept.dbd.answer = KeyError(where)
    assert kept.history.look(prepare) is NO_PAST
    assert kept.events[0] == ("error", "bug in reading history")
    kept.dbd.answer = PAST
    assert kept.look_later(LONGEST_PAUSE_S) is PAST


def test_the_configuration_says_what_is_known(tmp_path: object) -> None:  # noqa: ARG001
    """Without days of history nobody is asked; the site's table reaches the rates."""
    config = Config.model_validate(
        {
            "manage": {"partitions": ["gpu"]},
            "estimates": {"gpu_speed": {"v100": 0.5}, "serial_share": 0.2},
        }
    )
    snap = knowledge_of(config)(snap_of())

    assert snap.rates is not None
    assert snap.rates[0].tolist() == [1.0, 0.5]
    assert snap.past is NO_PAST
