"""Progress that a job reports in its comment, as it is shown to people, programs and metrics."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import build
import pytest
from build import observed, pending, running, snapshot

from slurm_dl.cli.dlqueue.columns import COLUMNS, cells
from slurm_dl.config import Config
from slurm_dl.daemon.enrich import Enricher
from slurm_dl.daemon.metrics.catalogue import of_cycle
from slurm_dl.daemon.published_state import PublishedState, row
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.settings import Settings
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.forecast.start_time_text import job_lines
from slurm_dl.json_types import Json
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.slurm.read.comment_claims import ClaimReader

POLICY = DiscreteLas(thresholds_gpu_s=(3600.0, 36000.0))
HOUR_S = 3600.0


def cycle_of(job: JobRow, comment: str, *, ran_s: float) -> Cycle:
    """A cycle over one job with this comment, enriched as the daemon's."""
    claim = ClaimReader(max_grace_s=600).read(comment)
    seen = observed([job], claims={JobId(1): claim})
    snap = snapshot(seen, memory={"ran_s": {1: ran_s}})
    snap = Enricher(profiles={}, site=SitePriors())(snap)
    plan = decide(snap, POLICY, Settings(partitions=frozenset({"gpu"})))
    return Cycle(snap, plan, acting=False)


def reporting(cycle: Cycle) -> float:
    """The metric of jobs that report."""
    config = Config.model_validate({"manage": {"partitions": ["gpu"]}})
    now = PublishedState(config=config, config_rows=(), started_s=0.0, live=True, cycle=cycle)
    return next(float(v[()]) for m, v in of_cycle(now) if m.short == "reporting_jobs")


@pytest.mark.parametrize(
    ("ours", "ran_s", "shown", "sentence"),
    [
        ({}, HOUR_S, ("-", "-"), ""),
        (
            {"progress": 0.25},
            HOUR_S,
            ("25%", "3:00:00"),
            "It reports 25% done; at the pace so far 3 h of running are left.",
        ),
        (
            {"progress": 0.25, "rate": 7.5},
            HOUR_S,
            ("25%", "3:00:00"),
            "It reports 25% done, 7.5 steps/s; at the pace so far 3 h of running are left.",
        ),
        ({"rate": 7.5}, HOUR_S, ("-", "-"), "It reports 7.5 steps/s."),
        # Too early to tell what is left.
        ({"progress": 0.25}, 60.0, ("25%", "-"), "It reports 25% done."),
        ({"progress": 0.001}, HOUR_S, ("0%", "-"), "It reports 0% done."),
        ({"progress": 0.999}, HOUR_S, ("99%", "0:03"), "It reports 99% done"),
        ({"progress": 1}, HOUR_S, ("100%", "0:00"), "It reports 100% done"),
        ({"progress": 0.29}, HOUR_S, ("29%", "2:26:53"), "It reports 29% done"),
        # What no job should say.
        ({"progress": 7}, HOUR_S, ("100%", "0:00"), "It reports 100% done"),
        ({"progress": -3}, HOUR_S, ("0%", "-"), "It reports 0% done."),
        ({"progress": 1e300}, HOUR_S, ("-", "-"), ""),
        ({"progress": math.nan}, HOUR_S, ("-", "-"), ""),
        ({"progress": math.inf}, HOUR_S, ("-", "-"), ""),
        ({"progress": 10**400}, HOUR_S, ("-", "-"), ""),
        ({"progress": "\x1b[2J"}, HOUR_S, ("-", "-"), ""),
        ({"progress": True}, HOUR_S, ("-", "-"), ""),
        ({"progress": 1e-300, "rate": 1e-300}, 1e12, ("0%", "-"), "It reports 0% done"),
        ({"rate": -1}, HOUR_S, ("-", "-"), ""),
        ({"rate": 1e300}, HOUR_S, ("-", "-"), ""),
    ],
)
def test_what_a_job_reports_is_shown_within_bounds(
    ours: dict[str, object], ran_s: float, shown: tuple[str, str], sentence: str
) -> None:
    """In the columns DONE and LEFT, in one sentence of why, in JSON and in the metric."""
    comment = json.dumps({"slurm_dl": {"v": 1, **ours}})
    cycle = cycle_of(running(1, 1, ran_s=ran_s), comment, ran_s=ran_s)

    job = row(cycle, 0)
    cell = dict(zip([column.title for column in COLUMNS], cells(job), strict=True))
    reports = [line for line in why(cycle, POLICY, JobId(1)) if line.startswith("It reports")]

    assert (cell["DONE"], cell["LEFT"]) == shown
    assert len(reports) == bool(sentence)
    assert not sentence or reports[0].startswith(sentence)
    assert (job["progress"] is None, job["left_s"] is None) == tuple(c == "-" for c in shown)
    assert json.loads(json.dumps(job, allow_nan=False)) == job
    assert {(): reporting(cycle)} == {(): shown[0] != "-"}


def test_what_waits_keeps_its_progress_and_what_is_over_has_nothing_left() -> None:
    """A requeued job says how far it came; it holds no GPUs and so is not counted."""
    comment = '{"slurm_dl":{"v":1,"progress":0.5}}'
    waits = cycle_of(pending(1), comment, ran_s=HOUR_S)
    over = cycle_of(replace(running(1), state=JobState.COMPLETED), comment, ran_s=HOUR_S)

    assert (row(waits, 0)["progress"], row(waits, 0)["left_s"]) == (0.5, HOUR_S)
    assert (row(over, 0)["progress"], row(over, 0)["left_s"]) == (0.5, None)
    assert not any(line.startswith("It reports") for line in why(over, POLICY, JobId(1)))
    for cycle in (waits, over):
        assert reporting(cycle) == 0


@pytest.mark.parametrize(
    ("more", "last"),
    [
        ({}, "It ends"),
        ({"progress": 0.25, "left_s": None}, "It ends"),
        (
            {"progress": 0.259, "left_s": 7200.0},
            "It reports 25% done: at the pace so far 2 h are left.",
        ),
    ],
)
def test_when_adds_what_the_job_says_itself(more: dict[str, Json], last: str) -> None:
    """One line, and none from a daemon of an earlier release or without a report."""
    soon: Json = {"low_s": build.NOW_S, "median_s": build.NOW_S, "high_s": build.NOW_S}
    answer = {
        "job": "1",
        "state": "PD",
        "why_not": None,
        "now_s": build.NOW_S,
        "until_s": build.NOW_S + 9e4,
        "start": soon,
        "end": soon,
        "runs": 20,
        "score": {"ranges": 0, "held": 0},
    }

    lines = job_lines({**answer, **more})

    assert lines[-2].startswith(last)
