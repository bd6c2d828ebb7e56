"""Jobs change size: which writes and hand-overs a decision begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from build import NOW_S, observed, pending, running, snapshot

from slurm_dl.engine.decide import decide
from slurm_dl.engine.preemption.surplus import Surplus
from slurm_dl.engine.settings import Native, Overdue, Preemption, Resizing, Settings
from slurm_dl.model.booking import entry
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobRow, Origin
from slurm_dl.model.plan import OpenHandover, Reshape
from slurm_dl.model.shape import Shape
from slurm_dl.model.sizes import SIZE, SizeHistory, Sizes
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.elastic.afs import Afs
from slurm_dl.policies.fifo import Fifo, FifoSkip

SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(commitment="ignored"),
    overdue=Overdue(after_s=0, pass_s=0),
    resizing=Resizing(expand=True, steadiness=1.0, max_per_day=3, cooldown_s=500),
)


def sizes_of(rows: Mapping[int, str], speed: float = 0.9) -> Sizes:
    """By row its sizes, such as ``1x1,1x2``, on GPUs of which g are g ** *speed* as fast as one."""
    shapes = {row: [Shape.of(part) for part in text.split(",")] for row, text in rows.items()}
    flat = [shape for row in sorted(shapes) for shape in shapes[row]]
    first = np.cumsum([0, *(len(shapes[row]) for row in sorted(shapes))])
    gpus = np.array([shape.gpus for shape in flat], dtype=np.float64)
    return Sizes(
        row=np.array(sorted(shapes), dtype=np.int64),
        first=first,
        gpus=gpus,
        nodes=np.array([shape.nodes for shape in flat], dtype=np.int32),
        rate=gpus**speed,
        origin=np.full(len(flat), int(Origin.PRIOR), dtype=np.int8),
        asked=first[:-1].copy(),
    )


class Scene(NamedTuple):
    """A cluster of nodes with 4 GPUs, its jobs, and the writes and hand-overs that follow.

    Attributes:
        held: By job, GPUs by node.
        elastic: By job its sizes.
        plain: Jobs without a contract.
        sizes: Sizes that are written to waiting jobs.
        opened: Of each hand-over its beneficiaries, the size of each victim afterwards (empty: it
            leaves), and its nodes.
    """

    rows: list[JobRow]
    held: dict[int, dict[int, float]]
    elastic: dict[int, str]
    nodes: int = 1
    plain: tuple[int, ...] = ()
    sizes: dict[int, str] = {}  # noqa: RUF012 - read only
    opened: tuple[tuple[tuple[int, ...], dict[int, str], str], ...] = ()
    policy: Policy = FifoSkip()
    settings: Settings = SETTINGS
    more: dict[str, Any] = {}  # noqa: RUF012 - read only


def seen_in(scene: Scene) -> Snapshot:
    """The snapshot of *scene*."""
    ids = [row.job_id for row in scene.rows]
    claims = {
        JobId(j): Claim(contract=None if j in scene.plain else Contract(), cpus_per_gpu=2)
        for j in ids
    }
    seen = observed(
        scene.rows, nodes=(4,) * scene.nodes, held=scene.held, claims=claims, gpu_types=("a100",)
    )
    rows = seen.jobs.row_of()
    snap = snapshot(seen, **scene.more)
    return dataclasses.replace(
        snap,
        left_s=np.full(len(ids), 50_000.0),
        setup_s=np.full(len(ids), 60.0),
        sizes=sizes_of({rows[JobId(j)]: text for j, text in scene.elastic.items()})
        if scene.elastic
        else None,
    )


def resized(*ago_s: float) -> dict[str, Any]:
    """A book in which job 1 changed its size so long ago."""
    history = SizeHistory(resized_s=tuple(NOW_S - s for s in ago_s))
    return {"booked": (entry(SIZE, 1, history.body()),)}


ALL, HALF = {1: {0: 4}}, {1: {0: 2}}
ONE = {1: "1x1,1x2,1x4"}
GIVEN_BACK = (((2,), {1: "1x2"}, "n1"),)
GROWN = (((), {1: "1x4"}, "n1"),)
SCENES = {
    "larger before the first start": Scene([pending(1)], {}, ONE, sizes={1: "1x4"}),
    "smaller before the first start": Scene(
        [running(1, 2), pending(2, 4)], HALF, {2: "1x1,1x2,1x4"}, sizes={2: "1x2"}
    ),
    "two nodes before the first start": Scene(
        [running(1, 2), pending(2, 1)], HALF, {2: "1x1,2x2"}, nodes=2, sizes={2: "2x2"}
    ),
    "the GPUs are there, but in pieces": Scene(
        [running(1, 2), running(2, 2), pending(3, 1)],
        {1: {0: 2}, 2: {1: 2}},
        {3: "1x1,1x2,1x4"},
        nodes=2,
        sizes={3: "1x2"},
    ),
    "nobody is elastic": Scene([running(1, 4), pending(2, 2)], ALL, {}),
    "a rigid job gets back what was lent": Scene(
        [running(1, 4), pending(2, 2)], ALL, ONE, opened=GIVEN_BACK
    ),
    "so does one without a contract": Scene(
        [running(1, 4), pending(2, 2)], ALL, ONE, plain=(2,), opened=GIVEN_BACK
    ),
    "so does one under a policy that preempts": Scene(
        [running(1, 4), pending(2, 2)],
        ALL,
        ONE,
        plain=(2,),
        opened=GIVEN_BACK,
        policy=DiscreteLas(),
    ),
    "and within the minimum quantum": Scene(
        [running(1, 4, ran_s=5), pending(2, 2)], ALL, ONE, opened=GIVEN_BACK
    ),
    "the least size is kept": Scene(
        [running(1, 4, ran_s=5), pending(2, 4)], ALL, ONE, policy=Fifo()
    ),
    "one node of two is given back": Scene(
        [running(1, 4), pending(2, 4)],
        {1: {0: 2, 1: 2}},
        {1: "1x2,2x2"},
        nodes=2,
        opened=(((2,), {1: "1x2"}, "n1 n2"),),
    ),
    "a job that may not be preempted keeps all": Scene(
        [running(1, 4), pending(2, 2)], ALL, ONE, plain=(1,)
    ),
    "free GPUs make it larger": Scene([running(1, 2)], HALF, ONE, opened=GROWN),
    "not if others wait for them": Scene([running(1, 2), pending(2, 2)], HALF, ONE),
    "not inside its quantum": Scene([running(1, 2, ran_s=5)], HALF, ONE),
    "not soon after the last change": Scene([running(1, 2)], HALF, ONE, more=resized(100)),
    "again after a while": Scene([running(1, 2)], HALF, ONE, opened=GROWN, more=resized(600)),
    "not a fourth time in a day": Scene([running(1, 2)], HALF, ONE, more=resized(900, 900, 900)),
    "from one running job to another": Scene(
        [running(1, 3), running(2, 1)],
        {1: {0: 3}, 2: {0: 1}},
        {1: "1x1,1x2,1x3", 2: "1x1,1x2,1x3"},
        opened=(((), {2: "1x2", 1: "1x2"}, "n1"),),
        policy=Afs(),
    ),
    "in native mode no size changes": Scene(
        [running(1, 4), pending(2, 2), pending(3, 1)],
        ALL,
        {1: "1x1,1x4", 3: "1x1,1x4"},
        nodes=2,
        settings=dataclasses.replace(SETTINGS, mode=Native("dl")),
        policy=DiscreteLas(),
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_sizes_that_are_written_and_hand_overs_that_begin(name: str) -> None:
    """See `SCENES`."""
    scene = SCENES[name]
    plan = decide(seen_in(scene), scene.policy, scene.settings)

    written = {int(a.job_id): a for a in plan.actions if isinstance(a, Reshape)}
    shapes = {j: str(a.shape) for j, a in written.items()}
    asked = {row.job_id: int(row.gpus) for row in scene.rows}
    assert shapes == {j: s for j, s in scene.sizes.items() if Shape.of(s).gpus != asked[j]}
    assert all(a.cpus == 2 * a.shape.gpus_per_node for a in written.values())
    opened = tuple(
        (
            tuple(map(int, h.beneficiaries)),
            {int(v.run.job_id): str(v.then or "") for v in h.victims},
            " ".join(h.nodes),
        )
        for h in (a.handover for a in plan.actions if isinstance(a, OpenHandover))
    )
    assert opened == scene.opened


@pytest.mark.parametrize(
    ("history", "written"),
    [
        (SizeHistory(asked=Shape(1, 2), refused=frozenset({Shape(1, 4)})), "1x2"),
        (SizeHistory(asked=Shape(1, 2), written=Shape(1, 4)), ""),
        (SizeHistory(asked=Shape(1, 4), refused=frozenset({Shape(1, 4)})), ""),
    ],
    ids=["refused", "not refused", "asked"],
)
def test_a_waiting_job_gets_its_asked_size_back_where_slurm_refuses_another(
    history: SizeHistory, written: str
) -> None:
    """It shows 1x4, and Slurm says that it never starts."""
    row = pending(1, 4, held=Held.UNAVAILABLE)
    scene = Scene([row], {}, {}, more={"booked": (entry(SIZE, 1, history.body()),)})
    plan = decide(seen_in(scene), scene.policy, scene.settings)
    assert [str(a.shape) for a in plan.actions if isinstance(a, Reshape)] == [written] * bool(
        written
    )


@pytest.mark.parametrize(
    ("held", "sizes", "claim", "stays"),
    [
        ({0: 2, 1: 2}, "1x2,2x2", {}, ("n1",)),
        ({0: 2, 1: 2}, "1x1,2x2", {}, ()),
        ({0: 3, 1: 1}, "1x2,2x2", {}, ()),  # It would have 3 GPUs, which is none of its sizes.
        ({0: 1, 1: 2, 2: 3}, "1x2,3x2", {}, ()),  # n2 alone: Slurm keeps the first.
        ({0: 2, 1: 2}, "1x2,2x2", {"in_place": False}, ()),
        ({0: 2, 1: 2}, "1x2,2x2", {"contract": Contract(requeued_by="job")}, ()),
        ({0: 2, 1: 2}, "1x2,2x2", {"contract": Contract(target="steps")}, ()),
    ],
)
def test_whole_nodes_alone_are_given_back_without_a_requeue(
    held: dict[int, int], sizes: str, claim: dict[str, Any], stays: tuple[str, ...]
) -> None:
    """And only by dlrun, which takes the signal on the first node."""
    row = running(1, sum(held.values()), n_nodes=len(held))
    snap = seen_in(Scene([row], {1: dict(held)}, {1: sizes}, nodes=len(held)))
    said = dataclasses.replace(snap.seen.claims[JobId(1)], **{"in_place": True, **claim})
    seen = dataclasses.replace(snap.seen, claims={JobId(1): said})
    snap = dataclasses.replace(snap, seen=seen)
    assert Surplus.from_sizes(snap, {0: 0}).stays(snap, 0) == stays


@pytest.mark.parametrize("shown", [1, 2])
@pytest.mark.parametrize("held", [Held.NO, Held.BEGIN_TIME])
@pytest.mark.parametrize(
    ("shrunk", "written", "again"), [(True, None, True), (True, "1x2", False), (False, None, False)]
)
def test_a_job_that_shrank_in_place_waits_in_its_last_size(
    shown: int, held: Held, written: str | None, *, shrunk: bool, again: bool
) -> None:
    """Whichever number of nodes Slurm shows, it would start on those with which its run began."""
    history = SizeHistory(
        asked=Shape(2, 2),
        now=Shape(1, 2),
        shrunk=shrunk,
        written=None if written is None else Shape.of(written),
    )
    rows = [running(1, 4), running(3, 2), pending(2, 2 * shown, n_nodes=shown, held=held)]
    more = {"booked": (entry(SIZE, 2, history.body()),)}
    # There is room for the last size alone.
    scene = Scene(rows, {1: {0: 4}, 3: {1: 2}}, {2: "1x2,2x2"}, nodes=2, more=more)
    snap = seen_in(scene)
    claims = {**snap.seen.claims}
    claims[JobId(2)] = dataclasses.replace(claims[JobId(2)], sizes=(Shape(1, 2), Shape(2, 2)))
    snap = dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, claims=claims))
    plan = decide(snap, scene.policy, scene.settings)

    found = [str(a.shape) for a in plan.actions if isinstance(a, Reshape)]
    # What Slurm shows otherwise is written as for any job that may start.
    other = shown == 2 and held is Held.NO
    assert found == ["1x2"] * (again or other)
