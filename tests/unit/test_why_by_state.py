"""Sentences that `dlqueue why` must and must not say in each state of a job; the page on it."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import build
import pytest
from watched import levers_of

from slurm_dl.daemon.published_state import not_listed
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.ledger.attained_service import EndedRun
from slurm_dl.ledger.completions import GaveWay, PastJob
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover, Run, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import Held, JobRow, JobState
from slurm_dl.model.snapshot import JobText
from slurm_dl.policies.discrete_las import DiscreteLas

NOW_S = build.NOW_S
POLICY = DiscreteLas(thresholds_gpu_s=(3600.0, 36000.0))
LIMITS = Preemption(beneficiaries="all", commitment="ignored")
SETTINGS = Settings(partitions=frozenset({"gpu"}), preemption=LIMITS)
LIVE = ("If it is preempted", "It reports", "It has rank", "would cost", "moves to tier")
PAGE = Path(__file__).parents[2] / "docs" / "use" / "monitor.md"

GAVE_WAY = GaveWay(
    at_s=NOW_S - 40,
    notice_s=4.0,
    gpus=4.0,
    handover_id=HandoverId(3),
    purpose="preempt",
    beneficiaries=(JobId(9),),
    signal="USR1",
)
PAST = PastJob(
    job_id=JobId(7),
    attained_gpu_s=7200.0,
    ran_s=1800.0,
    preemptions=1,
    runs=(EndedRun(job_id=7, start_s=NOW_S - 1900, end_s=NOW_S - 100, gpu_s=7200.0),),
    gave_way=(GAVE_WAY,),
)
HISTORY = (
    {"epoch_s": NOW_S - 50, "action": "set_site_factor", "reason": "its place", "result": "ok"},
    {"epoch_s": NOW_S - 40, "action": "mark_gone", "reason": "requeued", "result": "ok"},
    {"epoch_s": NOW_S - 30, "action": "of_tomorrow", "reason": "news", "result": "ok"},
)


def waits(reason: str, held: Held = Held.NO, label: str = "7", **more: Any) -> str:  # noqa: ANN401
    """Of a waiting job with Slurm's *reason*."""
    texts = {JobId(7): JobText(label=label, reason=reason)}
    return of(build.pending(7, 4, held=held), texts=texts, **more)


def of(
    row: JobRow,
    *others: JobRow,
    claim: Mapping[str, object] | None = None,
    state: VictimState | None = None,
    past: PastJob | None = None,
    **more: Any,  # noqa: ANN401
) -> str:
    """Sentences of job 7, asked ten seconds after the look; *state*: as a victim."""
    claims = {JobId(7): Claim(contract=Contract(), progress=0.5, **(claim or {}))}  # type: ignore[arg-type]
    handovers: tuple[Handover, ...] = ()
    if state is not None:
        run = Run(JobId(7), row.start_s, row.restarts)
        sent_s = more.pop("signalled_s", NOW_S - 50)
        victim = Victim(run=run, gpus=4.0, contract=Contract(), state=state, signalled_s=sent_s)
        handovers = (
            Handover(
                handover_id=HandoverId(6),
                opened_s=NOW_S - 60,
                beneficiaries=(JobId(9),),
                victims=(victim,),
                nodes=("n1",),
            ),
        )
    seen = build.observed([row, *others], claims=claims, **more)
    snap = build.snapshot(seen, handovers=handovers)
    cycle = Cycle(snap, decide(snap, POLICY, SETTINGS), acting=True, settings=SETTINGS)
    return "\n".join(why(cycle, POLICY, JobId(7), HISTORY, past=past, at_s=NOW_S + 10))


def runs(**more: Any) -> str:  # noqa: ANN401
    """Of a running job that was requeued once."""
    return of(build.running(7, 4, ran_s=600, restarts=1), **more)


def over(state: JobState, ending: str, reason: str = "None", **more: Any) -> str:  # noqa: ANN401
    """Of a job that ended 45 s ago and that Slurm still lists."""
    row = dataclasses.replace(build.running(7, 4, ran_s=500), state=state, end_s=NOW_S - 45)
    texts = {JobId(7): JobText(label="7", name="Train", reason=reason, ending=ending)}
    claim = {"saved_s": int(NOW_S) - 60, "unhandled_run": 0}
    return of(row, texts=texts, claim=claim, **{"past": PAST, **more})


FIRST_RUN = dataclasses.replace(GAVE_WAY, at_s=NOW_S - 1000)
WELL = dataclasses.replace(PAST, gave_way=(FIRST_RUN,))
SOON = {JobId(7): NOW_S + 43_200}

CASES: Final[dict[str, tuple[Callable[[], str], tuple[str, ...], tuple[str, ...]]]] = {
    "waits for another job": (
        lambda: waits("Dependency", Held.DEPENDENCY),
        ("dependency",),
        ("limit", "next pass"),
    ),
    "waits for a limit of its array": (
        lambda: waits("JobArrayTaskLimit", Held.LIMIT, "7_[2-9]"),
        ("its array", "%N"),
        ("account", "QOS"),
    ),
    "waits for a limit": (
        lambda: waits("QOSMaxGRESPerUser", Held.LIMIT),
        ("limit of its QOS", "QOSMaxGRESPerUser"),
        ("array",),
    ),
    "waits for a licence": (lambda: waits("Licenses", Held.UNAVAILABLE), ("licences",), ("nodes",)),
    "is held": (
        lambda: waits("JobHeldUser", Held.USER_OR_ADMIN),
        ("held by its user", "release"),
        ("admin",),
    ),
    "has room": (lambda: waits("Priority"), ("next pass",), ("Slurm plans",)),
    "has room, but not by Slurm's plan": (
        lambda: waits("Resources", planned=SOON),
        ("Slurm plans to start it at 1970-01-24 15:33:20Z, 12 h", "there is room for it by"),
        ("next pass",),
    ),
    "has been signalled": (
        lambda: runs(state=VictimState.SIGNALLED),
        ("has 60 s left",),
        ("If it is preempted", "120 s"),
    ),
    "has been signalled, and its grace is over": (
        lambda: runs(state=VictimState.SIGNALLED, signalled_s=NOW_S - 111),
        ("its grace is over",),
        ("left to save",),
    ),
    "was requeued": (
        lambda: waits("BeginTime", Held.BEGIN_TIME, begins={JobId(7): NOW_S + 98}, past=PAST),
        ("not start it before 1970-01-24 03:34:58Z", "gone 4 s later"),
        ("next pass",),
    ),
    "resumed": (
        lambda: runs(claim={"saved_s": int(NOW_S) - 900}),
        ("no checkpoint in this run", "since it started"),
        ("reported no checkpoint.", "handler"),
    ),
    "takes no signal": (
        lambda: runs(claim={"unhandled_run": 1}),
        ("its run 1 had a handler for USR1", "loses the work"),
        ("nothing took", "shell"),
    ),
    "took no signal in a former run": (
        lambda: runs(claim={"unhandled_run": 0}),
        ("its run 0 had a handler",),
        ("loses the work",),
    ),
    "has ended by itself": (
        lambda: over(JobState.COMPLETED, "COMPLETED", past=WELL),
        ("1970-01-24 03:32:35Z: completed, with status 0", "2.00 GPU-hours", "checkpoint at"),
        ("asked to save", *LIVE),
    ),
    "has ended with status 0 when asked to save": (
        lambda: over(JobState.COMPLETED, "COMPLETED"),
        ("with status 0", "asked to save by USR1", "not run it again"),
        ("handler", *LIVE),
    ),
    "was cancelled": (
        lambda: over(JobState.FAILED, "CANCELLED", past=None),
        ("Job 7 (Train) is over", ": cancelled."),
        ("status", "never ran", *LIVE),
    ),
    "failed": (
        lambda: over(JobState.FAILED, "FAILED", "NonZeroExitCode", failed_with={JobId(7): 3}),
        ("failed (NonZeroExitCode), with status 3",),
        ("status 0", *LIVE),
    ),
}


@pytest.mark.parametrize("state", CASES)
def test_what_is_said_in_each_state(state: str) -> None:
    """Facts that must be there, and those that must not; no name of an action, one form of time."""
    say, musts, nevers = CASES[state]
    said = say()

    assert [words for words in musts if words not in said] == [], said
    assert [words for words in nevers if words in said] == [], said
    assert not re.search(r"\dT\d|Z: \w+_\w+:", said), said
    assert "Z: of tomorrow: news" in said


def test_who_may_not_start_is_not_ahead() -> None:
    """They are counted apart."""
    kept = [build.pending(j, held=h) for j, h in ((1, Held.DEPENDENCY), (2, Held.LIMIT))]

    said = of(build.pending(7, 4), *kept, build.pending(4))
    assert "0 running and 1 waiting jobs, first 4." in said
    assert "2 more of a better rank may not start now" in said
    assert "No job is ahead of it." in of(build.pending(7, 4), *kept)


@pytest.mark.parametrize(
    ("job", "owner", "words"),
    [
        ("8", None, r"submitted since, it is not looked at yet; the next look is in [89] s"),
        ("8_1", None, "not looked at yet"),
        ("6", None, "and no record of one"),
        ("6", 1001, "of yours .*not looked at yet"),
    ],
)
def test_a_job_that_came_since_is_not_called_gone(
    job: str, owner: int | None, words: str, tmp_path: Path
) -> None:
    """Slurm counts upwards: a higher number is new; users learn nothing of the jobs of others."""
    snap = build.snapshot(build.observed([build.running(7, 4)]))
    cycle = Cycle(snap, decide(snap, POLICY, SETTINGS), acting=True)
    now = levers_of(tmp_path, cycle, {"next_poll_s": time.time() + 9}).board.current

    said = not_listed(now, job, [], owner)

    assert re.search(words, said)
    assert "no longer" not in said


def test_the_page_quotes_what_is_said() -> None:
    """Each row of its table names a state above; but for numbers it quotes what is said there."""
    table = PAGE.read_text("utf-8").partition("<!-- why by state -->\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]

    assert [row[0] for row in rows] == list(CASES)
    for state, quoted in rows:
        said = re.sub(r"\d+", "0", CASES[state][0]())
        for words in re.findall(r'"([^"]+)"', quoted):
            assert re.sub(r"\d+", "0", words) in said, (state, said)
