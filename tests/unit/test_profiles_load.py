"""From dlrun's samples to a profile's load and its speeds beside other models."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.job import gpu_load
from slurm_dl.model.profile import Beside, Load, Pair, Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.profiles import load_reports
from slurm_dl.profiles.learning import find, with_load, with_pairs
from slurm_dl.profiles.load_reports import LoadRun, LoadWindow, read_loads
from slurm_dl.profiles.run_reports import Measured, read_reports
from slurm_dl.yaml_places import LARGEST_BYTES

M = Profile(name="m")


def window(at: int, **changes: Any) -> list[Any]:  # noqa: ANN401 - any JSON
    """The *at*-th window of a run, as dlrun writes it."""
    sample = {"busy": 0.4, "memory_busy": 0.1, "sm_active": 0.2, "own_mb": 1000.0, "samples": 30}
    good: dict[str, Any] = {"start_s": 1000.0 + 30 * at, "seconds": 30.0, "alone": True, **sample}
    good |= {"clock_mhz": 1900.0, "power_w": 300.0, "rate": 10.0}
    assert tuple(good) == gpu_load.Window._fields
    return [*(good | changes).values()]


def write(directory: Path, windows: object, /, **entry: object) -> Path:
    """A run directory with the samples of one run of half a GPU."""
    good: dict[str, object] = {"restart": 0, "attempt": 0, "model": "m", "windows": windows}
    good |= {"nodes": 1, "gpus_per_node": None, "gpu_type": None, "node": "n1", "mode": "slices"}
    good |= {"devices": ["GPU-1"], "device_mb": 40_000, "memory_mb": None, "shared": []}
    directory.mkdir(exist_ok=True)
    (directory / "slurm_dl.load.json").write_text(json.dumps({"v": 1, "runs": [{**good, **entry}]}))
    return directory


def test_the_job_and_the_learner_mean_the_same_file(tmp_path: Path) -> None:
    """Name, bounds and form; the file of the longest job is small enough to be read."""
    assert load_reports.LOAD_FILE == gpu_load.LOAD_FILE
    assert load_reports.KEPT_SPANS == gpu_load.KEPT_SPANS
    windows = [window(at, busy=0.1234, own_mb=123456.7) for at in range(gpu_load.KEPT_WINDOWS)]
    spans = [[1.7e9 + 60.1 * n, 1.7e9 + 60.1 * n + 30.3] for n in range(gpu_load.KEPT_SPANS)]
    write(tmp_path, windows, shared=spans, device_mb=200_000, model="m" * 64)
    content = json.loads((tmp_path / "slurm_dl.load.json").read_text())
    text = json.dumps({"v": 1, "runs": content["runs"] * 16})
    (tmp_path / "slurm_dl.load.json").write_text(text)

    assert len(text) < LARGEST_BYTES
    runs = read_loads(tmp_path, tmp_path.stat().st_uid)
    assert len(runs) == 16
    assert (len(runs[0].windows), len(runs[0].shared)) == (len(windows), len(spans))


def test_figures_of_a_run(tmp_path: Path) -> None:
    """Medians over the windows alone; the most memory of all; what stays, by the script's word."""
    windows = [
        window(0, busy=0.3, own_mb=900.0),
        window(1, busy=0.5, sm_active=None),
        window(2, alone=False, busy=1.0, own_mb=1500.0),
        window(3, busy=0.6, own_mb=None),
    ]
    places = [
        write(tmp_path / str(n), windows, memory_mb=[200.0, 1100.0], gpu_type="a100")
        for n in range(3)
    ]
    runs = [run for place in places for run in read_loads(place, place.stat().st_uid)]

    load = with_load(Load(), find(runs, M, names={"m"}))

    assert load == Load(
        gpu_type="a100",
        gpu_util=0.5,
        memory_util=0.1,
        sm_active=0.2,
        observations=3,
        gpu_mem_mb=1500,
        gpu_mem_kept_mb=600,
    )


UNLIKELY: list[dict[str, object]] = [
    {"windows": "abc"},
    {"windows": [window(n)[:10] for n in range(9)]},
    {"windows": [window(n, alone=1) for n in range(9)]},
    {"windows": [window(n, seconds=0) for n in range(9)]},
    {"windows": [window(n, start_s=-1) for n in range(9)]},
    {"windows": [window(n, start_s=10**400) for n in range(9)]},
    {"device_mb": None},
    {"device_mb": -1},
    {"device_mb": 10**9},
    {"mode": "both"},
    {"mode": ["mps"]},
    {"devices": "GPU-1"},
    {"devices": ["GPU-1"] * 100},
    {"restart": -1},
    {"attempt": True},
    {"model": "other"},
    {"model": ["m"]},
    {"model": "m\n"},
]


@pytest.mark.parametrize("entry", UNLIKELY)
def test_what_is_not_plausible_teaches_nothing(tmp_path: Path, entry: dict[str, object]) -> None:
    place = write(tmp_path, [window(n) for n in range(9)], **entry)

    runs = read_loads(place, place.stat().st_uid) * 3
    found = find(runs, M, names={"m"})

    assert (found.load, found.beside) == ({}, {})


@pytest.mark.parametrize(
    ("changes", "figure"),
    [
        ({"busy": 1.01}, "gpu_util"),
        ({"busy": -0.01}, "gpu_util"),
        ({"busy": math.inf}, "gpu_util"),
        ({"busy": True}, "gpu_util"),
        ({"memory_busy": "0.5"}, "memory_util"),
        ({"sm_active": 2}, "sm_active"),
        ({"own_mb": 40_001}, "gpu_mem_mb"),
        ({"own_mb": -1}, "gpu_mem_mb"),
    ],
)
def test_a_figure_out_of_bounds_is_left_out_alone(
    tmp_path: Path, changes: dict[str, object], figure: str
) -> None:
    """Busy shares are 0 to 1, and no job has more memory than the device."""
    place = write(tmp_path, [window(n, **changes) for n in range(9)])

    found = find(read_loads(place, place.stat().st_uid) * 3, M, names={"m"})

    assert {"gpu_util", "memory_util", "sm_active", "gpu_mem_mb"} - {*found.load} == {figure}


def test_links_and_others_files_are_not_read(tmp_path: Path) -> None:
    real = write(tmp_path / "real", [window(n) for n in range(9)])
    owner = real.stat().st_uid
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "slurm_dl.load.json").symlink_to(real / "slurm_dl.load.json")

    assert len(read_loads(real, owner)) == 1
    assert read_loads(real, owner + 1) == ()
    assert read_loads(linked, owner) == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["windows", "shared", "memory_mb", "devices"]), json_values))
def test_any_json_is_survived(
    tmp_path_factory: pytest.TempPathFactory, entry: dict[str, object]
) -> None:
    place = write(tmp_path_factory.getbasetemp() / "any", [window(0)], **entry)

    find(read_loads(place, place.stat().st_uid), M, names={"m"})


# --- votes


def run(
    owner: int = 0, *, busy: float = 0.4, mb: float = 1000.0, gpu_type: str = "a100"
) -> LoadRun:
    """Three windows alone."""
    windows = [
        LoadWindow(
            span=(30.0 * n, 30.0 * n + 30),
            alone=True,
            busy=busy,
            memory_busy=None,
            sm_active=None,
            own_mb=mb,
            rate=10.0,
        )
        for n in range(5)
    ]
    return LoadRun(
        place=Path(f"/{owner}"),
        owner=owner,
        run=(0, 0),
        model="m",
        gpu_type=gpu_type,
        node="n1",
        nodes=1,
        devices=frozenset({"GPU-1"}),
        mode="slices",
        inside_mb=None,
        shared=(),
        windows=tuple(windows),
    )


def beside(
    one: LoadRun, rates: Sequence[float], model: str, place: str, first_s: float = 300.0
) -> LoadRun:
    """*one* with shared windows of these rates after what it has."""
    spans = [(first_s + 30 * n, first_s + 30 * n + 30) for n in range(len(rates))]
    shared = [
        replace(one.windows[0], alone=False, span=span, rate=rate)
        for span, rate in zip(spans, rates, strict=True)
    ]
    return replace(
        one,
        model=model,
        place=Path(place),
        shared=((first_s - 5, spans[-1][1] + 5),),
        windows=(*one.windows, *shared),
    )


@pytest.mark.parametrize(
    ("owners", "is_enough"),
    [((), False), ((1,), False), ((1, 1), False), ((1, 2), True), ((1, 1, 1), True)],
)
def test_a_figure_needs_two_owners_or_three_runs(
    owners: tuple[int, ...], *, is_enough: bool
) -> None:
    found = find([run(owner) for owner in owners], M, names={"m"})
    load = with_load(Load(gpu_util=0.9), found)

    assert (load.gpu_util, load.gpu_mem_mb) == ((0.4, 1000) if is_enough else (0.9, None))


@pytest.mark.parametrize(("gpu_type", "busy"), [("a100", 0.5), ("made-up", 0.55)])
def test_an_owner_with_many_runs_has_one_vote(gpu_type: str, busy: float) -> None:
    """Also on the type of GPU: what one owner makes up takes nobody's vote away."""
    runs = [*[run(1, busy=0.01, mb=1.0, gpu_type=gpu_type)] * 50, run(2, busy=0.5)]

    load = with_load(Load(), find([*runs, run(3, busy=0.6)], M, names={"m"}))

    assert (load.gpu_type, load.gpu_util, load.gpu_mem_mb) == ("a100", busy, 1000)


@pytest.mark.parametrize(
    ("known", "mem_mb", "kept_mb"),
    [
        # A job that once needed more may need it again; an admin's word gives way.
        (Load(gpu_type="a100", gpu_mem_mb=5000, observations=3), 5000, None),
        (Load(gpu_mem_mb=2000), 1000, None),
        # What stays is never more than all of it.
        (Load(gpu_mem_mb=5000, gpu_mem_kept_mb=4000), 1000, 1000),
    ],
)
def test_memory_that_was_measured_never_shrinks(
    known: Load, mem_mb: float, kept_mb: float | None
) -> None:
    load = with_load(known, find([run(n) for n in range(3)], M, names={"m"}))

    assert (load.gpu_mem_mb, load.gpu_mem_kept_mb) == (mem_mb, kept_mb)


def test_windows_without_memory_on_the_gpu_say_nothing_of_the_training() -> None:
    """A job that did nothing there is not one that fits beside everybody."""
    idle = [run(n, busy=0.0, mb=0.0) for n in range(3)]
    late = [replace(one, windows=one.windows + run().windows) for one in idle]

    assert find(idle, M, names={"m"}).load == {}
    assert with_load(Load(), find(late, M, names={"m"})).gpu_util == 0.4


def test_one_type_of_gpu_is_learned_at_a_time() -> None:
    """That which is known already, else that of most runs; two types make no mean."""
    runs = [*[run(n, busy=0.9, gpu_type="t4") for n in range(3)], run(8), run(9)]

    fresh = with_load(Load(), find(runs, M, names={"m"}))
    known = Load(gpu_type="a100", gpu_util=0.2, observations=2)
    later = with_load(known, find(runs, replace(M, load=known), names={"m"}))

    assert (fresh.gpu_type, fresh.gpu_util) == ("t4", 0.9)
    assert (later.gpu_type, later.gpu_util, later.observations) == ("a100", pytest.approx(0.3), 4)
    other = Load(gpu_type="h100", gpu_util=0.2, observations=2)
    moved = with_load(other, find(runs, replace(M, load=other), names={"m"}))
    assert (moved.gpu_type, moved.gpu_util, moved.observations) == ("t4", 0.9, 3)


@given(st.lists(st.lists(st.floats(0.1, 0.9), min_size=3, max_size=6), min_size=1, max_size=4))
def test_learning_in_parts_is_the_mean_of_the_parts_medians(parts: list[list[float]]) -> None:
    """Weighted by number of runs: of load and of speeds beside another model."""
    load, pairs = Load(), tuple[Beside, ...]()
    for part in parts:
        runs = [run(1, busy=busy) for busy in part]
        profile = replace(M, load=load)
        load = with_load(load, find(runs, profile, names={"m"}))
        pairs = with_pairs(pairs, {Pair("o", "mps", "a100"): {1: part}})
    medians = [statistics.median(part) for part in parts]
    mean = sum(m * len(p) for m, p in zip(medians, parts, strict=True)) / sum(map(len, parts))

    assert load.gpu_util == pytest.approx(mean, rel=1e-4)
    (pair,) = pairs
    assert (pair.rate, pair.origin) == (pytest.approx(mean, rel=1e-4), "measured")
    assert pair.observations == load.observations == sum(map(len, parts))


# --- beside other models


def two(a: Sequence[float], b: Sequence[float], **changes: Any) -> list[LoadRun]:  # noqa: ANN401
    """Three pairs of runs of m and of o on one GPU; *changes* to that of o."""
    found = []
    for n in range(3):
        found.append(beside(run(1), a, "m", f"/a{n}"))
        found.append(replace(beside(run(2), b, "o", f"/b{n}"), **changes))
    return [
        replace(one, devices=frozenset({f"GPU-{place // 2}"})) if one.devices == {"GPU-1"} else one
        for place, one in enumerate(found)
    ]


def test_speed_beside_another_model_is_relative_to_alone() -> None:
    """Of each side: the median of its shared windows / its rate alone, 10 steps a second."""
    runs = two([5, 6, 7, 100], [9, 9, 9])

    of_m = find(runs, M, names={"m"}).beside
    of_o = find(runs, Profile(name="o"), names={"o"}).beside

    assert of_m == {Pair("o", "slices", "a100"): {1: [pytest.approx(0.6)] * 3}}
    assert of_o == {Pair("m", "slices", "a100"): {2: [pytest.approx(0.9)] * 3}}


@pytest.mark.parametrize(
    ("rates", "changes"),
    [
        ([9, 9], {}),
        ([9, 9, 9], {"node": "n2"}),
        ([9, 9, 9], {"devices": frozenset({"GPU-9"})}),
        ([9, 9, 9], {"mode": "mps"}),
        ([9, 9, 9], {"model": None}),
        ([9, 9, 9], {"plain": False}),
        ([9, 9, 9], {"shared": ((0.0, 100.0),)}),
        ([9, 9, 9], {"windows": ()}),
        ([9, 9, 9], {"devices": frozenset({"GPU-0", "GPU-1", "GPU-2", "GPU-9"})}),
    ],
)
def test_no_pair_without_three_windows_of_both_at_once_on_one_gpu(
    rates: list[float], changes: dict[str, object]
) -> None:
    assert find(two([6, 6, 6], rates), M, names={"m"}).beside or len(rates) < 3
    assert find(two([6, 6, 6], rates, **changes), M, names={"m"}).beside == {}


@pytest.mark.parametrize(
    ("own", "changes"),
    [
        ([21, 21, 21], {}),
        ([6, 6, 6], {"nodes": 2}),
        ([6, 6, 6], {"nodes": None}),
        ([6, 6, 6], {"devices": frozenset({"GPU-0", "GPU-1", "GPU-2"})}),
    ],
)
def test_a_run_on_several_gpus_or_at_twice_its_speed_tells_nothing(
    own: list[float], changes: dict[str, Any]
) -> None:
    is_wide = "devices" in changes
    runs = [
        replace(one, **changes) if is_wide or one.model == "m" else one
        for one in two(own, [9, 9, 9])
    ]

    assert find(runs, M, names={"m"}).beside == {}


def test_the_rate_alone_is_of_windows_alone() -> None:
    assert beside(run(), [5] * 99, "m", "/m").alone_rate() == 10


@pytest.mark.parametrize(
    ("span", "is_shared"),
    [
        ((0, 10), False),
        ((0, 11), True),
        ((0, 30), True),
        ((12, 13), True),
        ((19, 30), True),
        ((20, 30), False),
    ],
)
def test_a_stretch_is_shared_if_any_of_it_is(span: tuple[float, float], *, is_shared: bool) -> None:
    assert replace(run(), shared=((10, 20),)).is_shared(span) is is_shared


def test_a_run_is_one_run_however_many_its_neighbour_says_it_had() -> None:
    """The neighbour's file is of another user."""
    one, other = two([6, 6, 6], [9, 9, 9])[:2]
    restarts = [replace(other, run=(n, 0)) for n in range(16)]

    assert find([one, *restarts], M, names={"m"}).beside == {}


def test_without_a_rate_alone_the_profiles_speed_on_one_gpu_counts() -> None:
    runs = [replace(one, windows=one.windows[5:]) for one in two([6, 6, 6], [9, 9, 9])]
    speed = Speed(shape=Shape(1, 1), steps_per_s=20.0, gpu_type="a100")

    assert find(runs, M, names={"m"}).beside == {}
    found = find(runs, replace(M, speeds=(speed,)), names={"m"}).beside
    assert found == {Pair("o", "slices", "a100"): {1: [pytest.approx(0.3)] * 3}}


def test_a_measured_pair_takes_the_place_of_a_declared_one_of_its_mode_and_type_alone() -> None:
    declared = [
        Beside(other="o", rate=0.5, gpu_type="a100"),
        Beside(other="o", rate=0.4, gpu_type="v100"),
        Beside(other="o", rate=0.3, mode="mps", gpu_type="a100"),
    ]

    after = with_pairs(declared, {Pair("o", "slices", "a100"): {1: [0.8] * 3}})

    assert [(one.rate, one.observations) for one in after] == [(0.8, 3), (0.4, 0), (0.3, 0)]


# --- speeds


def speeds(place: Path, windows: list[list[float]], gpus: int | None) -> Path:
    entry = {"restart": 0, "attempt": 0, "nodes": 1, "gpus_per_node": gpus, "gpu_type": None}
    content = {"v": 1, "runs": [{**entry, "model": "m", "windows": windows}]}
    (place / "slurm_dl.speed.json").write_text(json.dumps(content))
    return place


@pytest.mark.parametrize(("gpus", "devices"), [(None, ["GPU-1"]), (2, ["GPU-1", "GPU-2"])])
def test_only_windows_alone_make_a_speed(
    tmp_path: Path, gpus: int | None, devices: list[str]
) -> None:
    """Of a whole GPU's and of half a GPU's job, which has all of it while it is alone."""
    place = write(
        tmp_path,
        [window(n, alone=n < 4) for n in range(8)],
        shared=[[1120.0, 1240.0]],
        devices=devices,
    )
    steps = [[10, 1.0, 1000.0 + s] for s in range(2, 120, 5)]
    beside_it = [[4, 1.0, 1000.0 + s] for s in range(121, 240, 2)]

    assert read_reports(speeds(place, steps + beside_it, gpus), {"m"}).speeds == (
        Measured(Shape(1, gpus or 1), "", 10.0),
    )


def test_half_a_gpu_tells_no_speed_of_moments_that_were_not_sampled(tmp_path: Path) -> None:
    """The samples ended early, or the windows are of a release that wrote no times."""
    place = write(tmp_path, [window(n) for n in range(4)])
    late = [[10, 1.0, 2000.0 + s] for s in range(9)]

    assert read_reports(speeds(place, late, None), {"m"}).speeds == ()
    spans = [[1050.0 + n / 2, 1050.2 + n / 2] for n in range(gpu_load.KEPT_SPANS)]
    write(place, [window(n) for n in range(4)], shared=spans)
    early = [[10, 1.0, 1001.0 + s] for s in range(9)]
    assert read_reports(speeds(place, early, None), {"m"}).speeds == (), "earlier spans were left"
    write(place, [window(n) for n in range(4)], shared=spans[1:])
    assert len(read_reports(speeds(place, early, None), {"m"}).speeds) == 1
    assert read_reports(speeds(place, [[10, 1.0]] * 9, None), {"m"}).speeds == ()
    assert len(read_reports(speeds(place, [[10, 1.0]] * 9, 1), {"m"}).speeds) == 1
