"""Sentences, columns and fields that tell users of the sizes of an elastic job."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import build
import numpy as np
import pytest

from slurm_dl.cli.dlqueue.columns import COLUMNS, cells
from slurm_dl.daemon.published_state import row
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.explain.past_reasons import EVERYTHING, how_it_gave_way
from slurm_dl.engine.explain.plan_reasons import why
from slurm_dl.engine.settings import Native, Overdue, Preemption, Resizing, Settings
from slurm_dl.estimates.size_speeds import sizes_of
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.ledger.completions import GaveWay, PastJob
from slurm_dl.model.booking import entry
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.handover import Handover, Purpose, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobRow
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import SIZE, SizeHistory
from slurm_dl.model.snapshot import JobText
from slurm_dl.policies.base import Policy
from slurm_dl.policies.fifo import FifoSkip
from slurm_dl.policies.gandiva_fair import GandivaFair

S1, S2, S4 = Shape(1, 1), Shape(1, 2), Shape(1, 4)
FIFO = FifoSkip()
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(commitment="ignored"),
    overdue=Overdue(after_s=0, pass_s=0),
    resizing=Resizing(expand=True, steadiness=10, max_per_day=2, cooldown_s=900),
)
GUESSED = "Speeds counted on: 1x1 1, 1x2 1.9, 1x4 3.48 (a guess, as for any job"
LENT = "Its GPUs beyond 1 GPU (1x1) are lent: it gives them back"
MOVES = Handover(
    handover_id=HandoverId(1),
    opened_s=build.NOW_S,
    beneficiaries=(),
    victims=(
        Victim(run=Run(JobId(1), build.NOW_S - 5000, 0), gpus=1, contract=Contract(), then=S4),
    ),
    nodes=("n1",),
    purpose="reshape",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Job 1 with its sizes beside others on nodes of 4 GPUs, and what is said and not said."""

    says: tuple[str, ...]
    not_said: tuple[str, ...] = ()
    job: JobRow = field(default_factory=lambda: build.pending(1))
    others: tuple[JobRow, ...] = ()
    held: dict[int, dict[int, float]] = field(default_factory=dict)
    claim: dict[str, Any] = field(default_factory=dict)
    history: SizeHistory | None = None
    settings: Settings = SETTINGS
    policy: Policy = FIFO
    seen: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    left_s: float = 50_000.0


def on(gpus: float) -> dict[str, Any]:
    return {"job": build.running(1, gpus), "held": {1: {0: gpus}}}


def resized(*ago_s: float) -> SizeHistory:
    return SizeHistory(asked=S1, now=S1, resized_s=tuple(build.NOW_S - s for s in ago_s))


CASES = {
    "more than it asked for": Case(
        says=(
            "It can run in 1x1, 1x2 or 1x4 (nodes x GPUs); 1x1 was asked for.",
            GUESSED,
            "It is to start on 4 GPUs (1x4), more than asked for: nobody else should have them",
        ),
    ),
    "fewer": Case(
        job=build.pending(1, 4),
        others=(build.running(2, 2),),
        held={2: {0: 2}},
        says=("start on 2 GPUs (1x2), fewer than asked for: it starts on what is free.",),
    ),
    "as it asked": Case(
        job=build.pending(1, 4),
        says=("It is to start on 4 GPUs (1x4), as asked for.",),
    ),
    "written, and in the target a larger one that has no room": Case(
        job=build.pending(1, 2),
        others=(build.running(2, 2), build.running(3, 2)),
        held={2: {0: 2}, 3: {1: 2}},
        seen={"nodes": (4, 4)},
        history=SizeHistory(asked=S1, written=S2),
        says=("It is to start on 2 GPUs (1x2), more than asked for",),
    ),
    "nothing is free": Case(
        others=(build.running(2, 4),),
        held={2: {0: 4}},
        says=("It gets a size when its turn comes",),
        not_said=("It is to start",),
    ),
    "it grows": Case(
        **on(1),
        says=("It holds 1 GPU (1x1) and should go on with 4 GPUs (1x4): there are GPUs for it",),
        not_said=("lent",),
    ),
    "it is growing": Case(
        **on(1),
        more={"handovers": (MOVES,)},
        says=("it has been chosen to save and go on with 4 GPUs (1x4)", "should go on with 4 GPUs"),
    ),
    "it holds all it may": Case(
        **on(4), says=("It holds 4 GPUs (1x4), and should.", LENT), not_said=("grow",)
    ),
    "others should have some": Case(
        **on(4),
        others=(build.pending(2, 2),),
        says=("should go on with 2 GPUs (1x2): other jobs should have the rest.", LENT),
    ),
    "it does not pay": Case(
        **on(2),
        left_s=1000.0,
        says=("10 restarts of 1 min each (resizing.st", "4 GPUs (1x4) would save it 7 min 32 s."),
    ),
    "nobody knows what is left of it": Case(
        job=build.running(1, 2),
        others=(build.running(2, 2),),
        held={1: {0: 2}, 2: {0: 2}},
        left_s=float("inf"),
        says=("It holds 2 GPUs (1x2), and should.",),
        not_said=("grows only",),
    ),
    "it has just changed": Case(
        **on(1),
        history=resized(300),
        says=("It does not grow for another 10 min (resizing.cooldown_s).",),
    ),
    "it has changed too often": Case(
        **on(1),
        history=resized(10_000, 3600),
        says=("It does not grow for another 21 h 13 min (resizing.max_per_day).",),
    ),
    "it may again": Case(
        **on(1), history=resized(86_400, 900), says=("should go on with 4 GPUs",)
    ),
    "refused, and too large": Case(
        claim={"sizes": (S1, S2, S4, Shape(1, 8), Shape(2, 8))},
        history=SizeHistory(asked=S1, refused=frozenset({S4})),
        says=(
            "It can run in 1x1 or 1x2 (nodes x GPUs)",
            "Slurm did not give it 1x4: that is not tried again.",
            "No nodes that it may use could hold 1x8 or 2x8.",
        ),
    ),
    "only its own is left": Case(
        claim={"sizes": (S1, Shape(1, 8))},
        says=("No size but its own is left to it.", "No nodes that it may use could hold 1x8."),
    ),
    "unreadable": Case(
        claim={"sizes": (), "sizes_unreadable": True}, says=("Its sizes are unreadable",)
    ),
    "a task of an array": Case(
        seen={"texts": {JobId(1): JobText(label="1_7")}}, says=("it is part of an array",)
    ),
    "a part of a heterogeneous job": Case(
        seen={"texts": {JobId(1): JobText(label="1+0")}}, says=("part of a heterogeneous job",)
    ),
    "whole nodes": Case(job=build.pending(1, exclusive=True), says=("it asks for whole nodes",)),
    "any number of nodes": Case(claim={"most_nodes": 4}, says=("on any number of nodes",)),
    "half a GPU": Case(job=build.pending(1, 0.5), says=("it has a share of a GPU, or none",)),
    "another partition": Case(
        job=build.pending(1, partition=1), says=("slurm_dl does not manage its partition",)
    ),
    "native mode": Case(
        **on(1),
        settings=dataclasses.replace(SETTINGS, mode=Native(qos="dl")),
        says=("in native mode no job changes its size",),
    ),
    "preemption is off": Case(
        **on(1),
        settings=dataclasses.replace(SETTINGS, preemption=Preemption(enabled=False)),
        says=("It keeps its size while it runs: preemption is switched off.",),
    ),
    "no contract": Case(
        **on(1),
        claim={"contract": None},
        says=("It keeps its size while it runs: it is not preempted.",),
    ),
    "too long a grace": Case(
        **on(1),
        claim={"contract": Contract(grace_s=9000.0)},
        says=("It keeps its size while it runs: it is not preempted.",),
    ),
    "no requeue": Case(
        job=build.running(1, 4, requeueable=False),
        held={1: {0: 4}},
        says=("It keeps its size while it runs: Slurm may not requeue it.",),
        not_said=("lent",),
    ),
    "sizes are off": Case(
        settings=dataclasses.replace(SETTINGS, resizing=Resizing()),
        says=("Policy fifo_skip changes no sizes (resizing.expand is off), so it keeps",),
    ),
    "shares": Case(
        policy=GandivaFair(), says=("changes no sizes (it shares out time, or GPU types)",)
    ),
}  # fmt: skip


def cycle_of(case: Case) -> Cycle:
    """A cycle that only looked."""
    named = {"contract": Contract(), "sizes": (S1, S2, S4), **case.claim}
    others = {JobId(row.job_id): Claim(contract=Contract()) for row in case.others}
    parts: dict[str, Any] = {"nodes": (4,), "gpu_types": ("a100",), **case.seen}
    seen = build.observed(
        [case.job, *case.others],
        held=case.held,
        claims={JobId(1): Claim(**named), **others},
        **parts,
    )
    booked = () if case.history is None else (entry(SIZE, 1, case.history.body()),)
    snap = build.snapshot(seen, booked=booked, **case.more)
    n = len(snap.jobs)
    snap = dataclasses.replace(
        snap, left_s=np.full(n, case.left_s), setup_s=np.full(n, 60.0),
        sizes=sizes_of(snap, {}, SitePriors(serial_share=0.05)),
    )  # fmt: skip
    plan = decide(snap, case.policy, case.settings)
    return Cycle(snap, plan, acting=False, settings=case.settings)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sizes_are_explained(case: Case) -> None:
    """Each sentence where it is true, and not where it is not."""
    cycle = cycle_of(case)

    said = "\n".join(why(cycle, case.policy, JobId(1)))

    assert [words for words in case.says if words not in said] == [], said
    assert [words for words in case.not_said if words in said] == [], said


@pytest.mark.parametrize(
    ("case", "size", "wanted", "sizes", "gpus"),
    [
        ("it grows", "1x1", "1x4", ["1x1", "1x2", "1x4"], "1>4"),
        ("it holds all it may", "1x4", "1x4", ["1x1", "1x2", "1x4"], "4"),
        ("others should have some", "1x4", "1x2", ["1x1", "1x2", "1x4"], "4>2"),
        ("nothing is free", "1x1", None, ["1x1", "1x2", "1x4"], "1"),
        ("half a GPU", None, None, [], "0.5"),
    ],
)
def test_the_queue_shows_sizes(
    case: str, size: str | None, wanted: str | None, sizes: list[str], gpus: str
) -> None:
    """For programs as NODESxGPUS, and in the table the GPUs alone."""
    shown = row(cycle_of(CASES[case]), 0)

    assert (shown["size"], shown["wanted_size"], shown["sizes"]) == (size, wanted, sizes)
    assert cells(shown)[[c.title for c in COLUMNS].index("GPUS")] == gpus


@pytest.mark.parametrize(
    ("purpose", "gpus", "held", "then", "best", "words"),
    [
        ("preempt", 2, 4, S2, (4,), "gave 2 of its 4 GPUs back to job 4, to go on with 2 GPUs"),
        ("reshape", 3, 4, S1, (), "gave 3 of its 4 GPUs back, to go on with 1 GPU (1x1) (hand"),
        ("reshape", 0, 2, Shape(2, 2), (), "stopped to go on with 4 GPUs (2x2) in place of 2 ("),
        ("reshape", 2, 2, None, (), "moved with its 2 GPUs to faster ones"),
        ("preempt", 2, 2, None, (4,), "gave 2 GPUs to job 4"),
    ],
)  # fmt: skip
def test_a_change_of_size_is_told_afterwards(
    *, purpose: Purpose, gpus: float, held: float, then: Shape | None, best: tuple[int, ...],
    words: str,
) -> None:  # fmt: skip
    """By what it held and what it was to have."""
    one = GaveWay(
        at_s=build.NOW_S, notice_s=6.0, gpus=gpus, handover_id=HandoverId(3), purpose=purpose,
        beneficiaries=tuple(map(JobId, best)), held=held, then=then,
    )  # fmt: skip
    past = PastJob(job_id=JobId(1), attained_gpu_s=0, ran_s=0, gave_way=(one,))

    assert f"Z it {words}" in how_it_gave_way(past, EVERYTHING)[0]
