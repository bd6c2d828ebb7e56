"""Jobs that would hold GPUs where some may change their size: by hand, and as a property."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from elastic_jobs import SEEDS, sizes_of, some_elastic

from slurm_dl.engine.intent import intend
from slurm_dl.engine.settings import Resizing
from slurm_dl.engine.sized_target import Chosen, Movable, choose_sizes, steady
from slurm_dl.engine.target import EVERYTHING, NOBODY, PartitionPool, Rows
from slurm_dl.model.jobs import COMPLETING, I32, JobState
from slurm_dl.model.sizes import AS_ASKED, NOT_NOW, Sizes, are_sizes, wanted_gpus
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.fifo import FifoSkip
from slurm_dl.testing.snapshot_builder import TYPES, running, snapshot, waiting

CURVE: Final = ((1.0, 0.5), (2.0, 1.0), (4.0, 1.6))
"""Row 0 has the sizes 0, 1, 2 and row 1 the sizes 3, 4, 5; row 2 is not elastic."""


def on(gpus: float, *, runs: tuple[int, ...] = (), **more: Any) -> Snapshot:  # noqa: ANN401
    """Three jobs that hold, or ask for, 2 GPUs each, on one node."""
    rows = [running(i + 1, 2) if i in runs else waiting(i + 1, 2) for i in range(3)]
    left_s = np.full(3, 1000.0)
    fields = {"left_s": left_s, "sizes": sizes_of({0: CURVE, 1: CURVE}), **more}
    return snapshot(rows, nodes=((gpus, 0),), **fields)


class Case(NamedTuple):
    """GPUs, the sizes that the policy wants, and the rows and sizes that are to be served."""

    gpus: float
    wants: tuple[int, int, int]
    served: tuple[tuple[int, int], ...]
    skips: bool = True
    pinned: tuple[int, ...] = ()


CASES: Final[Mapping[str, Case]] = {
    "all as wanted": Case(7, (2, 3, AS_ASKED), ((0, 2), (1, 3), (2, AS_ASKED))),
    "smaller where it does not fit": Case(6, (2, 5, AS_ASKED), ((0, 2), (1, 4))),
    "the least at last": Case(5, (2, 5, AS_ASKED), ((0, 2), (1, 3))),
    "never below the least": Case(4, (2, 5, AS_ASKED), ((0, 2),)),
    "never above what is wanted": Case(9, (0, 4, AS_ASKED), ((0, 0), (1, 4), (2, AS_ASKED))),
    "a rigid one has one size": Case(3, (1, 3, AS_ASKED), ((0, 1), (1, 3))),
    "a rigid one behind one that does not fit": Case(2.5, (2, 5, AS_ASKED), ((0, 1),)),
    "an elastic one may be as it is": Case(3, (AS_ASKED, AS_ASKED, AS_ASKED), ((0, AS_ASKED),)),
    "not now": Case(4, (NOT_NOW, 4, AS_ASKED), ((1, 4), (2, AS_ASKED))),
    "not now does not block": Case(4, (NOT_NOW, 4, AS_ASKED), ((1, 4), (2, AS_ASKED)), skips=False),
    "what does not fit blocks": Case(2, (1, AS_ASKED, AS_ASKED), ((0, 1),), skips=False),
    "what does not fit is passed over": Case(3, (1, AS_ASKED, AS_ASKED), ((0, 1),)),
    "who is pinned keeps its size": Case(4, (2, NOT_NOW, 0), ((1, AS_ASKED), (0, 1)), pinned=(1,)),
    "who is pinned comes first": Case(2, (2, 5, AS_ASKED), ((2, AS_ASKED),), pinned=(2,)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sizes_are_served_in_the_order_of_the_jobs(case: Case) -> None:
    wants = np.array(case.wants, dtype=np.int32)

    rows, chosen, _ = choose_sizes(
        on(case.gpus, runs=case.pinned),
        np.arange(3),
        np.array(case.pinned, dtype=np.int64),
        wants,
        skips=case.skips,
    )

    assert tuple(zip(rows.tolist(), chosen.tolist(), strict=True)) == case.served


def test_the_largest_that_fits_passes_a_rigid_one_that_does_not() -> None:
    """Rows in another order: who is behind gets its least size, unless nobody is to be passed."""
    wants, order = np.array([0, 5, AS_ASKED], dtype=np.int32), np.array([1, 2, 0])
    for skips, served in ((True, [1, 0]), (False, [1])):
        rows, *_ = choose_sizes(on(5), order, NOBODY, wants, skips=skips)
        assert rows.tolist() == served


EXPANDED: Final[Mapping[str, tuple[float, tuple[float, float], tuple[tuple[int, int], ...]]]] = {
    # GPUs, the seconds that the elastic ones have left, the rows and sizes that are to be served.
    "all in their least size": (4, (1000, 900), ((0, 0), (1, 3), (2, AS_ASKED))),
    "what is left goes to who gains most": (5, (900, 1000), ((0, 0), (1, 4), (2, AS_ASKED))),
    "of equal gains the first": (5, (900, 900), ((0, 1), (1, 3), (2, AS_ASKED))),
    "a step that is too large": (7, (900, 1000), ((0, 1), (1, 4), (2, AS_ASKED))),
    "no room for the last": (3, (1000, 900), ((0, 1), (1, 3))),
    "all that they can have": (20, (1000, 900), ((0, 2), (1, 5), (2, AS_ASKED))),
}


@pytest.mark.parametrize(("gpus", "left_s", "served"), EXPANDED.values(), ids=EXPANDED)
def test_sizes_that_no_policy_chose(
    gpus: float, left_s: tuple[float, float], served: tuple[tuple[int, int], ...]
) -> None:
    snap = on(gpus, left_s=np.array([*left_s, 1.0]))

    rows, chosen, _ = choose_sizes(snap, np.arange(3), NOBODY, None, skips=True)

    assert tuple(zip(rows.tolist(), chosen.tolist(), strict=True)) == served


def test_who_is_pinned_does_not_grow() -> None:
    snap = on(12, runs=(0,))

    rows, chosen, _ = choose_sizes(snap, np.arange(3), np.array([0]), None, skips=True)

    assert rows.tolist() == [0, 1, 2]
    assert chosen.tolist() == [AS_ASKED, 5, AS_ASKED]


@pytest.mark.parametrize("steadiness", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("expand", [False, True])
def test_gpus_are_never_above_those_of_the_pool(
    seed: int, steadiness: float, *, expand: bool
) -> None:
    """Any wishes, any order, some pinned; on all nodes or half of them."""
    snap, draw = some_elastic(seed), np.random.default_rng(seed)
    jobs, sizes = snap.jobs, snap.sizes
    assert sizes is not None
    m = len(snap.seen.nodes)
    pool = draw.choice(np.array([*EVERYTHING, PartitionPool(None, np.arange(m) % 2 == 0)]))
    live = ((jobs.state < COMPLETING) & (jobs.gpus > 0)).nonzero()[0]
    pinned, held = [], 0.0
    for row in draw.permutation(live[jobs.state[live] == JobState.RUNNING]).tolist():
        if draw.random() < 0.3 and held + jobs.gpus[row] <= pool.gpus(snap):
            pinned.append(row)
            held += jobs.gpus[row]
    wants = np.array(
        [draw.choice([AS_ASKED, NOT_NOW, *sizes.of(row)]) for row in range(len(jobs))], np.int32
    )
    size = np.full(len(jobs), AS_ASKED, dtype=np.int32)

    rows, chosen, _ = choose_sizes(
        snap, draw.permutation(live), np.array(pinned, dtype=np.int64),
        None if expand else wants, skips=True, pool=pool, steadiness=steadiness,
    )  # fmt: skip

    size[rows] = chosen
    assert are_sizes(size, sizes)
    assert len(set(rows.tolist())) == len(rows)
    assert rows[: len(pinned)].tolist() == pinned
    assert (chosen[: len(pinned)] == AS_ASKED).all()
    assert wanted_gpus(jobs.gpus, sizes, size)[rows].sum() <= pool.gpus(snap) + 1e-9
    assert expand or not (wants[rows[len(pinned) :]] == NOT_NOW).any()
    if not steadiness and not expand:
        known = (chosen >= 0) & (wants[rows] >= 0)
        assert (chosen[known] <= wants[rows][known]).all()


# --- steadiness -----------------------------------------------------------------------------

STEADY: Final[Mapping[str, tuple[float, tuple[int, ...], dict[int, int], dict[int, int]]]] = {
    # GPUs, rows that run, chosen size by row, size by row that remains. A restart costs 30 s, and
    # 1000 s left save 375 s by 4 GPUs instead of 2, and lose 1000 s by 1 GPU.
    "grows if it saves more": (8, (0,), {0: 2}, {0: 2}),
    "shrinks as nobody wants its GPUs": (8, (0,), {0: 0}, {0: 1}),
    "shrinks for one that starts": (4, (0, 1), {0: 0, 1: 4, 2: AS_ASKED}, {0: 0, 1: 4, 2: -1}),
    "one grows for less than another loses": (5, (0, 1), {0: 2, 1: 3}, {0: 1, 1: 4}),
    "keeps what would suffice for both": (6, (0, 1), {0: 2, 1: 3}, {0: 2, 1: 4}),
    "who waits gets its size": (8, (), {0: 0, 1: 5}, {0: 0, 1: 5}),
    "no step is no step": (8, (0,), {0: 1}, {0: 1}),
}


@pytest.mark.parametrize(("gpus", "runs", "chosen", "remains"), STEADY.values(), ids=STEADY)
def test_no_running_job_changes_its_size_for_too_little(
    gpus: float, runs: tuple[int, ...], chosen: dict[int, int], remains: dict[int, int]
) -> None:
    snap = on(gpus, runs=runs, setup_s=np.full(3, 30.0))
    sizes = np.array(list(chosen.values()), dtype=np.int32)

    found = steadied(snap, sizes, gpus, rows=np.array(list(chosen)))

    assert dict(zip(chosen, found.tolist(), strict=True)) == remains
    assert sizes.tolist() == list(chosen.values()), "the choice itself stays as it was"


def steadied(
    snap: Snapshot, sizes: I32, gpus: float, *, steadiness: float = 10.0, rows: Rows | None = None
) -> I32:
    """The sizes after `steady`, on so many GPUs of one type."""
    rows = np.arange(len(sizes)) if rows is None else rows
    wanted = Chosen(rows, sizes, np.full(len(rows), -1, dtype=np.int16))
    return steady(snap, wanted, steadiness=steadiness, capacity=np.array([gpus])).size


FINE: Final = tuple((float(n), float(n)) for n in range(1, 9))
"""Row 0 has the sizes 0 to 7 and row 1 the sizes 8 to 15; each GPU more is as good as the first."""

TRADES: Final[Mapping[str, tuple[Any, ...]]] = {
    # GPUs held, seconds left at speed 1, sizes wanted, GPUs that row 2 waits for of 8, and the
    # sizes that remain. A restart costs 1 s.
    "as far as it is wanted": ((6, 1), (9e4, 10), (0, 8), 2, (4, 8)),
    "both, if that loses less": ((2, 6), (10, 9e4), (0, 9), 4, (0, 10)),
    "nobody but one that gives enough": ((2, 6), (900, 100), (0, 9), 4, (1, 9)),
    "all that they may": ((2, 6), (900, 900), (0, 8), 6, (0, 8)),
    # One GPU of the second saves the first 9e4 / 2 s, and costs the second 100 / 30 s.
    "one grows for more than another loses": ((1, 6), (9e4, 100), (1, 12), 1, (1, 12)),
    # Two GPUs more save it 40 s and cost the second 10 s; six would save 50 s and cost 500 s.
    "as far as that pays": ((1, 6), (60, 100), (5, 8), 1, (3, 10)),
}


@pytest.mark.parametrize(
    ("holds", "left_s", "wants", "asks", "remains"),
    TRADES.values(),
    ids=TRADES,
)
def test_gpus_go_from_job_to_job_only_if_both_restarts_and_the_loss_are_saved(
    holds: tuple[int, int],
    left_s: tuple[float, float],
    wants: tuple[int, int],
    asks: int,
    remains: tuple[int, int],
) -> None:
    snap = snapshot(
        [running(1, holds[0]), running(2, holds[1]), waiting(3, asks)],
        nodes=((8, 0),),
        left_s=np.array([*left_s, 1.0]),
        setup_s=np.ones(3),
        sizes=sizes_of({0: FINE, 1: FINE}),
    )
    chosen = np.array([*wants, AS_ASKED], dtype=np.int32)

    found = steadied(snap, chosen, 8.0, steadiness=10.0)

    assert found.tolist() == [*remains, AS_ASKED]


def test_nobody_gives_gpus_that_another_has_to_give_anyhow() -> None:
    """The first would give one GPU for less, but the second has no size between 2 and 6."""
    snap = snapshot(
        [running(1, 2), running(2, 6), waiting(3, 4)],
        nodes=((8, 0),),
        left_s=np.array([10.0, 9e4, 1.0]),
        setup_s=np.ones(3),
        sizes=sizes_of({0: FINE, 1: ((2.0, 2.0), (6.0, 6.0))}),
    )
    chosen = np.array([0, 8, AS_ASKED], dtype=np.int32)

    found = steadied(snap, chosen, 8.0, steadiness=10.0)

    assert found.tolist() == [1, 8, AS_ASKED]


@pytest.mark.parametrize("pinned", [[0], []])
@pytest.mark.parametrize("gives", [False, True])
def test_gpus_without_a_type_name_are_of_no_other_type(pinned: list[int], *, gives: bool) -> None:
    """Job 1 holds such GPUs; the others need not give theirs back, for nobody wants them."""
    snap = snapshot(
        [running(1, 8), running(2, 4, gpu_type=1), running(3, 4, gpu_type=0)],
        nodes=((8, -1), (4, 0), (4, 1)),
        types=TYPES[:2],
        setup_s=np.ones(3),
        sizes=sizes_of({0: FINE, 1: FINE, 2: FINE}),
    )
    wants = np.array([0 if gives else AS_ASKED, 9, 17], dtype=np.int32)

    found = choose_sizes(
        snap, np.array([1, 2, 0]), np.array(pinned, dtype=np.int64), wants,
        skips=True, steadiness=1.0, movable=Movable(giving=np.array([0] if gives else NOBODY)),
        kinds=np.array([-1, 1, 0], dtype=np.int16),
    )  # fmt: skip

    sizes = {row: (size, kind) for row, size, kind in zip(*found, strict=True)}
    assert (sizes[1], sizes[2]) == ((11, 1), (19, 0))


def test_a_job_shrinks_to_a_size_of_no_speed_if_it_has_no_other() -> None:
    """Job 1 keeps 2 of 4 GPUs, of the only type, in which nobody knows it to run."""
    sizes = dataclasses.replace(
        sizes_of({0: CURVE[1:]}), on_type=np.array([[0.0, 0.0], [1.6, 0.0]])
    )
    snap = snapshot(
        [running(1, 4), waiting(2, 2)],
        nodes=((4, 0), (0, 1)),
        types=TYPES[:2],
        setup_s=np.ones(2),
        sizes=sizes,
    )

    found = choose_sizes(
        snap, np.arange(2), np.array([0]), np.array([0, AS_ASKED], dtype=np.int32),
        skips=True, steadiness=1.0, movable=Movable(giving=np.array([0])),
        kinds=np.zeros(2, dtype=np.int16),
    )  # fmt: skip

    assert list(zip(*found, strict=True)) == [(0, 0, 0), (1, AS_ASKED, 0)]


@pytest.mark.parametrize("expand", [False, True])
def test_types_of_gpus_come_before_sizes(*, expand: bool) -> None:
    """With speeds by type, jobs are served on types, at the size that they ask for."""
    snap = snapshot(
        [waiting(1, 2), waiting(2, 2)],
        nodes=((4, 0), (4, 1)),
        types=TYPES[:2],
        left_s=np.full(2, 1000.0),
        rates=np.array([[1.0, 0.5], [0.5, 1.0]]),
        sizes=sizes_of({0: CURVE}),
    )

    found = intend(snap, FifoSkip(), resizing=Resizing(expand=expand))

    assert found.size is None
    assert found.kind is not None


@pytest.mark.parametrize(("steadiness", "size"), [(0.0, 2), (12.4, 2), (12.5, 1), (13.0, 1)])
def test_a_job_grows_only_if_it_saves_more_than_so_many_restarts(
    steadiness: float, size: int
) -> None:
    """375 s saved are 12.5 times 30 s; a restart that nobody measured costs nothing."""
    for setup_s, expected in ((np.full(3, 30.0), size), (None, 2)):
        snap = on(8, runs=(0,), setup_s=setup_s)
        wants = np.array([2, NOT_NOW, NOT_NOW], dtype=np.int32)
        _, found, _ = choose_sizes(
            snap, np.arange(3), NOBODY, wants, skips=True, steadiness=steadiness
        )
        assert found.tolist() == [expected]


def test_gpus_that_are_no_size_of_a_job_count_as_well() -> None:
    """Job 1 holds 3 GPUs, which it may not any more: job 2 gives one back for its fourth."""
    snap = on(7, runs=(0, 1), setup_s=np.full(3, 30.0))
    for holds, remains in (([3.0, 4.0, 2.0], [2, 4]), ([4.0, 3.0, 2.0], [2, 3])):
        jobs = dataclasses.replace(snap.jobs, gpus=np.array(holds))
        there = dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, jobs=jobs))
        wants = np.array([2, remains[1]], dtype=np.int32)

        found = steadied(there, wants, 7.0, steadiness=10.0)

        assert found.tolist() == remains


def test_of_endless_time_equal_speeds_save_nothing() -> None:
    """Job 2 is as fast in half its GPUs: it gives them, and does not grow."""
    equal = ((2.0, 1.0), (4.0, 1.0))
    for gpus, holds, wants, remains in (
        (10.0, [2, 2], [2, 4], [2, 3]),
        (7.0, [2, 4], [0, 3], [1, 3]),
    ):
        snap = on(6, runs=(0, 1), sizes=sizes_of({0: CURVE, 1: equal}), setup_s=np.zeros(3))
        jobs = dataclasses.replace(snap.jobs, gpus=np.array([*holds, 2], dtype=np.float64))
        there = dataclasses.replace(
            snap, seen=dataclasses.replace(snap.seen, jobs=jobs), left_s=np.full(3, np.inf)
        )
        chosen = np.array([*wants, AS_ASKED], np.int32)

        found = steadied(there, chosen, gpus, steadiness=1.0)

        assert found[:2].tolist() == remains


def test_who_loses_least_for_each_gpu_shrinks_first() -> None:
    """Both are to give one GPU, and one is wanted: the job that is nearly done gives it."""
    for left_s, sizes in (((100.0, 900.0, 1.0), [0, 4]), ((900.0, 100.0, 1.0), [1, 3])):
        snap = on(5, runs=(0, 1), left_s=np.array(left_s), setup_s=np.full(3, 30.0))
        wants = np.array([0, 3, AS_ASKED], dtype=np.int32)

        found = steadied(snap, wants, 5.0, steadiness=10.0)

        assert found.tolist() == [*sizes, AS_ASKED]


# --- sizes ----------------------------------------------------------------------------------

GOOD: Final = sizes_of({0: CURVE, 2: CURVE[:2]})


@pytest.mark.parametrize(
    ("size", "good"),
    [
        ((0, AS_ASKED, 4), True),
        ((NOT_NOW, NOT_NOW, AS_ASKED), True),
        ((3, AS_ASKED, AS_ASKED), False),  # A size of row 2
        ((AS_ASKED, 0, AS_ASKED), False),  # Row 1 is not elastic
        ((AS_ASKED, AS_ASKED, 5), False),
        ((-3, AS_ASKED, AS_ASKED), False),
    ],
)
def test_a_size_of_another_job_is_none(size: tuple[int, ...], good: bool) -> None:  # noqa: FBT001
    column = np.array(size, dtype=np.int32)

    assert are_sizes(column, GOOD) == good
    assert are_sizes(column, None) == (good and max(size) < 0)


BROKEN: Final[Mapping[str, Callable[[Sizes], dict[str, Any]]]] = {
    "a row twice": lambda _: {"row": np.array([2, 2])},
    "rows that fall": lambda s: {"row": s.row[::-1]},
    "a row below 0": lambda s: {"row": s.row - 1},
    "a row behind the last": lambda s: {"row": s.row + 1},
    "a bound too few": lambda s: {"first": s.first[:-1]},
    "bounds that begin late": lambda _: {"first": np.array([1, 3, 5]), "asked": np.array([1, 3])},
    "bounds that end early": lambda _: {"first": np.array([0, 3, 4])},
    "a job without sizes": lambda _: {"first": np.array([0, 5, 5])},
    "no nodes": lambda s: {"nodes": s.nodes * 0},
    "speeds from nowhere": lambda s: {"origin": s.origin + 99},
    "no GPUs": lambda s: {"gpus": s.gpus * 0},
    "fewer GPUs after more": lambda s: {"gpus": s.gpus[[1, 0, 2, 3, 4]]},
    "endless GPUs": lambda s: {"gpus": s.gpus * np.inf},
    "no speed": lambda s: {"rate": s.rate * 0},
    "endless speed": lambda s: {"rate": s.rate * np.inf},
    "a speed too few": lambda s: {"rate": s.rate[1:]},
    "nodes too few": lambda s: {"nodes": s.nodes[1:]},
    "origins too few": lambda s: {"origin": s.origin[1:]},
    "speeds on a type that is not there": lambda _: {"on_type": np.ones((5, 2))},
    "a speed below 0 on a type": lambda _: {"on_type": np.full((5, 1), -1.0)},
    "an endless speed on a type": lambda _: {"on_type": np.full((5, 1), np.inf)},
    "asked of another job": lambda s: {"asked": s.asked[::-1]},
    "asked too few": lambda s: {"asked": s.asked[:1]},
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_sizes_whose_parts_do_not_fit_are_refused(
    broken: Callable[[Sizes], dict[str, Any]],
) -> None:
    assert GOOD.fits(n=3, types=1)
    assert not dataclasses.replace(GOOD, **broken(GOOD)).fits(n=3, types=1)


def test_a_size_is_found_by_its_gpus_and_its_nodes() -> None:
    """Four GPUs on one node or on four."""
    nodes = np.array([1, 1, 4, 1, 1], dtype=np.int32)
    sizes = dataclasses.replace(GOOD, gpus=np.array([1.0, 4.0, 4.0, 1.0, 2.0]), nodes=nodes)

    found = [sizes.held(0, 4, 4), sizes.held(0, 4, 1), sizes.held(0, 4, 2), sizes.held(0, 4)]
    assert found == [2, 1, 1, 1]
    assert [sizes.held(0, 2), sizes.held(1, 1), sizes.held(2, 2)] == [AS_ASKED, AS_ASKED, 4]
