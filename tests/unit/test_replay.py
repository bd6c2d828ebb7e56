"""Recordings: what is kept comes back exactly, and the engine is one on all that is kept."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import math
import tracemalloc
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build import observed, pending, snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from replay_cluster import ReplayCluster, ReplayOverError
from streams import STREAMS, Stream, fake_cluster, steered_cluster

from slurm_dl.engine.cycle import run_cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Deadlines, Placement, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.booking import entry
from slurm_dl.model.breaker import OWNER_UNKNOWN, Breaker, Restart
from slurm_dl.model.contract import SIGNALS, Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.model.nodes import SharedGpu
from slurm_dl.model.plan import (
    Book,
    ClearSteer,
    ClusterAction,
    ForgetSteer,
    LedgerAction,
    Plan,
    Reshape,
    Retry,
    SetSteer,
    Shrink,
    Throttle,
    Trim,
    TripBreaker,
)
from slurm_dl.model.profile import Profile
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.model.steer import Steer
from slurm_dl.model.step_report import BatchLimits
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.placement import scheme_registry as placement_registry
from slurm_dl.policies import registry
from slurm_dl.policies.fifo import Fifo
from slurm_dl.recording import cycles_file as recording_module
from slurm_dl.recording.anonymise import Anonymous
from slurm_dl.recording.cycles_file import RecordedCycle, Recording, RecordingError, Setup, Writer
from slurm_dl.recording.replay_report import differences, plan_bytes
from slurm_dl.recording.snapshot_file import from_bytes, to_bytes, to_plain

FUZZ = 100
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
FLOATS = st.floats(allow_nan=False) | st.just(math.nan)
WHOLE = st.integers(-(2**63), 2**63 - 1)
_SIZES = ("min_size", "max_size")
STEERS = {SetSteer, ClearSteer, ForgetSteer}
NOT_LIVED = {Trim, TripBreaker, Book, Reshape, Retry, Shrink, Throttle}
"""No job of the streams asks for more than it can do with, changes its size, or fails; breakers are
off, and there are no arrays.

No policy of ours books anything: test_book replays one that does."""
ACTIONS = (*typing.get_args(ClusterAction), *typing.get_args(LedgerAction))


Scalars = Mapping[Any, st.SearchStrategy[Any]]


# Any value of the model, from its types; written apart from the codec.


def values(kind: Any, rows: int = 2, of: Scalars | None = None) -> st.SearchStrategy[Any]:  # noqa: ANN401, PLR0911
    """Values of the type *kind*; its columns have *rows* rows, its scalars are those *of*."""
    of = of or SCALARS
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in of:
        return of[kind]
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(values(a, rows, of) for a in arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is np.ndarray:
        dtype = np.dtype(typing.get_args(arguments[1])[0])
        return npst.arrays(dtype, rows, elements=FLOATS if dtype.kind == "f" else None)
    if origin is tuple:
        length = {"max_size": 2} if arguments[-1] is ... else dict.fromkeys(_SIZES, len(arguments))
        return st.lists(values(arguments[0], rows, of), **length).map(tuple)
    if origin is frozenset:
        return st.frozensets(values(arguments[0], rows, of), max_size=3)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(
            values(arguments[0], rows, of), values(arguments[1], rows, of), max_size=2
        )
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    return fields_of(kind, rows, of)


def fields_of(kind: type[Any], rows: int, of: Scalars) -> st.SearchStrategy[Any]:
    """Instances of a dataclass."""
    hints = typing.get_type_hints(kind)
    drawn = {f.name: values(hints[f.name], rows, of) for f in dataclasses.fields(kind)}
    if kind is Contract:
        drawn |= {"signal": st.sampled_from(SIGNALS), "grace_s": st.floats(0.1, 1e9)}
    if kind is Shape:
        drawn = dict.fromkeys(drawn, st.integers(1, 9999))
    if kind is BatchLimits:
        drawn |= dict.fromkeys(("first", "least_local"), st.integers(1, 9))
        drawn |= dict.fromkeys(("most", "most_local"), st.integers(9, 99))
    if kind is ValueCurve:
        drawn = {"due_s": st.just((1.5, 4e9)), "value": st.sampled_from([(7.0, 0.1), (2.0, 1.0)])}
    if kind is Handover:
        for name in ("beneficiaries", "victims"):
            drawn[name] = st.lists(
                values(typing.get_args(hints[name])[0]), min_size=1, max_size=2
            ).map(tuple)
    if kind is Profile:
        drawn["nccl"] = st.sampled_from([{}, {"NCCL_ALGO": "Ring"}])
    if kind is SharedGpu:
        pairs = st.dictionaries(values(JobId), FLOATS, min_size=1, max_size=2)
        rest = {name: drawn[name] for name in ("node", "index", "first")}
        return st.builds(lambda p, **v: kind(jobs=(*p,), shares=(*p.values(),), **v), pairs, **rest)
    if "name" in drawn and typing.get_origin(hints["name"]) is tuple:
        drawn["name"] = st.lists(st.text(max_size=3), min_size=rows, max_size=rows).map(tuple)
    return st.builds(kind, **drawn)


SCALARS: Scalars = {
    float: FLOATS,
    int: WHOLE,
    bool: st.booleans(),
    str: st.text(max_size=4),
    types.NoneType: st.none(),
}


IN_BOUNDS: Scalars = {
    **SCALARS,
    float: st.floats(1e-9, 1.0),
    int: st.integers(1, 2),
    str: st.sampled_from(["bert", "A100-80G", "x.1"]),
}
"""What each field of a profile takes."""


def same(a: object, b: object) -> bool:
    """Equal to the last bit; NaN equals NaN, 0.0 is not -0.0. Sets and mappings have no order."""
    match a, b:
        case (float(), int() | float()) | (int(), float()):  # A whole number where a float may be.
            return float(a).hex() == float(b).hex()
        case np.ndarray(), np.ndarray():
            return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        case (tuple(), tuple()):
            return len(a) == len(b) and all(map(same, a, b))
        case Mapping(), Mapping():
            return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        names = [f.name for f in dataclasses.fields(a)]
        return all(same(getattr(a, n), getattr(b, n)) for n in names)
    return type(a) is type(b) and a == b


def through_text(value: object, kind: type[Any]) -> Any:  # noqa: ANN401
    """Write *value* into JSON text and read it back; its plain form is the same JSON."""
    text = to_bytes(value, kind)
    assert json.loads(text) == json.loads(json.dumps(to_plain(value, kind), allow_nan=False))
    return from_bytes(text, kind)


PROFILES = st.dictionaries(st.text(max_size=4), values(Profile, of=IN_BOUNDS), max_size=3)


@given(st.integers(0, 3).flatmap(lambda n: st.tuples(*(values(k, n) for k in (Snapshot, Plan)))))
@settings(max_examples=35, deadline=None, suppress_health_check=SLOW)
def test_every_snapshot_and_plan_comes_back_exactly(drawn: tuple[Snapshot, Plan]) -> None:
    """Every column and every kind of action, to the last bit, whatever fields the model has."""
    snap, plan = drawn
    assert same(through_text(snap, Snapshot), snap)
    again = through_text(plan, Plan)
    assert same(again, plan)
    assert plan_bytes(again) == plan_bytes(plan)


@given(PROFILES)
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_every_profile_comes_back_exactly(profiles: dict[str, Profile]) -> None:
    """By every name it has; what nobody knows is not 0 afterwards."""
    there = Settings(partitions=frozenset(), placement=Placement(profiles=profiles))
    again = through_text(there, Settings)
    assert same(again.placement.profiles, profiles)
    assert list(again.placement.profiles) == list(profiles)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 3), (0, 0)])
def test_the_shape_of_a_matrix_comes_back(shape: tuple[int, int]) -> None:
    """Also where it holds nothing."""
    seen = dataclasses.replace(observed([]), node_in=np.ones(shape, dtype=np.bool_))

    assert through_text(seen, type(seen)).node_in.shape == shape


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
def test_plans_are_equal_exactly_if_their_bytes_are(data: st.DataObject) -> None:
    """Any one field of a plan or of an action, changed or not; the differences agree."""
    plan: Plan = data.draw(values(Plan))
    hints = typing.get_type_hints(Plan)
    if plan.actions and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(plan.actions) - 1))
        action = plan.actions[at]
        name = data.draw(st.sampled_from([f.name for f in dataclasses.fields(action)]))
        value = data.draw(values(typing.get_type_hints(type(action))[name]))
        changed = dataclasses.replace(action, **{name: value})
        actions = (*plan.actions[:at], changed, *plan.actions[at + 1 :])
        other = dataclasses.replace(plan, actions=actions)
    else:
        name = data.draw(st.sampled_from(sorted(hints)))
        other = dataclasses.replace(plan, **{name: data.draw(values(hints[name]))})

    equal = same(plan, other)

    assert (plan_bytes(plan) == plan_bytes(other)) == equal
    snap = snapshot(observed([pending(1), pending(2)]))
    assert (not list(differences(plan, other, snap))) == equal


PLAN = Plan(
    tier=np.array([0, 1], dtype=np.int16),
    rank=np.array([0, 1], dtype=np.int32),
    key=np.array([0.1, 2.0]),
    target=frozenset({3, 11, 200}),  # type: ignore[arg-type] # JobId is int
    actions=(),
    notes={2: "b", 11: "a"},  # type: ignore[dict-item]
)


def test_what_counts_in_the_bytes_of_a_plan() -> None:
    """The order of actions, not that of a set or a mapping; a float to its last bit and sign."""
    other = dataclasses.replace(
        PLAN, target=frozenset([200, 11, 3]), notes=dict(reversed(PLAN.notes.items()))
    )
    assert plan_bytes(other) == plan_bytes(PLAN)
    two = tuple(a for c in fake_cluster(30).cycles for a in c.plan.actions)[:2]
    forth, back = (dataclasses.replace(PLAN, actions=a) for a in (two, two[::-1]))
    assert plan_bytes(forth) != plan_bytes(back)

    for key in (math.nextafter(2.0, 3.0), -2.0, math.inf, math.nan):
        other = dataclasses.replace(PLAN, key=np.array([0.1, key]))
        assert plan_bytes(other) != plan_bytes(PLAN)
        [found] = differences(PLAN, other, snapshot(observed([pending(7), pending(8)])))
        assert str(found).startswith("job 8: key: recorded 2.0, now ")
    zero, minus = (dataclasses.replace(PLAN, key=np.array([0.1, z])) for z in (0.0, -0.0))
    assert plan_bytes(zero) != plan_bytes(minus)


def test_every_policy_scheme_and_rule_can_be_recorded() -> None:
    """Its parameters come back as they were, through text."""
    limits = fake_cluster(1).settings
    for name in registry.names():
        setup = Setup.of(registry.find(name)(), limits)
        written = json.loads(json.dumps(dict(setup.parameters)))
        again = dataclasses.replace(setup, parameters=written).make()
        assert again == registry.find(name)(), name
    rules = tuple(placement_registry.find_rule(n)() for n in placement_registry.rule_names())
    for name in placement_registry.scheme_names():
        placement = Placement(scheme=placement_registry.find_scheme(name)(), rules=rules)
        before = Settings(partitions=frozenset({"gpu"}), placement=placement)
        assert through_text(before, Settings) == before, name


def test_what_cannot_be_kept_or_is_not_here_is_refused(stream: Stream) -> None:
    """A scheme before a file is begun; a policy that is none, or does not take its parameters."""
    odd = dataclasses.make_dataclass("Odd", [("what", object, None)], frozen=True)()
    placement = Placement(scheme=typing.cast("Any", odd))
    with pytest.raises(TypeError, match="not to be saved"):
        Setup.of(Fifo(), Settings(partitions=frozenset(), placement=placement))
    with pytest.raises(ConfigError, match="no policy 'none'"):
        dataclasses.replace(stream.setup, policy="none").make()
    # A recording of a stranger must not run a file.
    with pytest.raises(ConfigError, match="is a file"):
        dataclasses.replace(stream.setup, policy="/nonexistent.py:Mine").make()
    with pytest.raises(ConfigError, match="thresholds_gpu_s: must be a list"):
        dataclasses.replace(stream.setup, parameters={"thresholds_gpu_s": 5}).make()


# Files.


@pytest.fixture(scope="module")
def stream() -> Stream:
    """Ninety cycles, shared because nothing changes them."""
    return fake_cluster()


def write(path: Path, stream: Stream) -> Path:
    """A recording of *stream*."""
    with Writer(path, stream.setup) as writer:
        for cycle in stream.cycles:
            writer.write(cycle.snapshot, cycle.plan)
    return path


def read(path: Path) -> list[RecordedCycle]:
    """All its cycles."""
    with Recording(path) as recording:
        return list(recording)


def short(stream: Stream, cycles: int = 3) -> Stream:
    """The busiest few cycles of it."""
    return dataclasses.replace(stream, cycles=stream.cycles[20 : 20 + cycles])


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_a_recording_comes_back(stream: Stream, tmp_path: Path, name: str) -> None:
    """Snapshots, plans and what was in force, each cycle from when it is written on.

    Only its owner may read it; equal recordings are equal files.
    """
    path = tmp_path / name
    with Writer(path, stream.setup) as writer:
        for number, cycle in enumerate(stream.cycles, start=1):
            writer.write(cycle.snapshot, cycle.plan)
            assert writer.size == path.stat().st_size
            assert number > 3 or len(read(path)) == number

    with Recording(path) as recording:
        cycles = list(recording)

    assert recording.cut_off == ""
    assert path.stat().st_mode & 0o777 == 0o600
    assert [c.line for c in cycles] == list(range(2, len(stream.cycles) + 2))
    for recorded, cycle in zip(cycles, stream.cycles, strict=True):
        assert same(recorded.snapshot, cycle.snapshot)
        assert recorded.plan is not None
        assert plan_bytes(recorded.plan) == plan_bytes(cycle.plan)
        assert recorded.setup == stream.setup
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert write(tmp_path / f"again-{name}", stream).read_bytes() == path.read_bytes()


def test_nothing_is_overwritten(stream: Stream, tmp_path: Path) -> None:
    """A writer wants a new file, and follows no link to another one."""
    there = tmp_path / "there"
    there.write_text("precious", "utf-8")
    (tmp_path / "link").symlink_to(there)
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            Writer(tmp_path / name, stream.setup)
    assert there.read_text("utf-8") == "precious"


def test_a_new_policy_holds_for_the_cycles_after_it(stream: Stream, tmp_path: Path) -> None:
    """As after a reload of the daemon."""
    path = tmp_path / "r.jsonl"
    fifo = Setup.of(Fifo(), stream.settings)
    with Writer(path, stream.setup) as writer:
        writer.write(stream.cycles[0].snapshot)
        writer.change(fifo)
        writer.write(stream.cycles[1].snapshot)

    first, second = read(path)

    assert (first.setup, second.setup) == (stream.setup, fifo)
    assert second.setup.make() == Fifo()
    assert (first.plan, second.line) == (None, 4)


def test_a_recording_of_before_there_was_placement_is_read(stream: Stream, tmp_path: Path) -> None:
    """What it does not say was not done then."""
    lines = lines_of(stream, tmp_path)
    header = json.loads(lines[0])
    for name in ("placement", "defragment"):
        del header["setup"]["settings"][name]
    lines[0] = json.dumps(header).encode() + b"\n"
    for number in (1, 2):
        cycle = json.loads(lines[number])
        del cycle["snapshot"]["steers"], cycle["snapshot"]["seen"]["excluded"]
        lines[number] = json.dumps(cycle).encode() + b"\n"
    path = tmp_path / "old"
    path.write_bytes(b"".join(lines))

    for kept, cycle in zip(read(path), short(stream, 2).cycles, strict=True):
        assert kept.setup == stream.setup
        assert same(kept.snapshot, cycle.snapshot)


def test_profiles_of_the_first_format_are_read(stream: Stream, tmp_path: Path) -> None:
    """It has a shape as two numbers, and under a model's other names its own name."""
    lines = lines_of(stream, tmp_path)
    profile = {"name": "a", "speeds": [{"shape": {"nodes": 2, "gpus_per_node": 4}, **SPEED}]}
    place = ("setup", "settings", "placement", "profiles")
    first = edited(lines[0], *place, value={"b": "a", "a": profile})
    path = tmp_path / "old"
    path.write_bytes(edited(first, "recording", value=1) + lines[1])

    [kept] = read(path)

    profiles = kept.setup.settings.placement.profiles
    assert list(profiles) == ["b", "a"]
    assert profiles["b"] == profiles["a"]
    assert profiles["a"].speeds[0].shape == Shape(2, 4)
    path.write_bytes(edited(edited(first, *place, "b", value="c"), "recording", value=1))
    with pytest.raises(RecordingError, match=r"profiles\.b: must be|profiles\.b: has no value"):
        read(path)


def outcome(path: Path) -> tuple[int, str]:
    """How many cycles can be read, and what is said of the rest; -1 if it is refused."""
    try:
        with Recording(path) as recording:
            return len(list(recording)), recording.cut_off
    except RecordingError as err:
        return -1, str(err)


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_a_killed_writer_costs_one_line_at_most(stream: Stream, tmp_path: Path, name: str) -> None:
    """Wherever the file ends, the whole lines before are used, and the loss is told."""
    path = write(tmp_path / name, short(stream, 4))
    whole = path.read_bytes()
    ends = sorted({len(whole) * i // 40 for i in range(41)} | {len(whole) - 1})
    counts = []
    for end in ends:
        path.write_bytes(whole[:end])
        number, said = outcome(path)
        counts.append(number)
        if end < len(whole) - 1:
            at_a_line_end = name == "r.jsonl" and whole[:end].endswith(b"\n")
            assert said.startswith("" if at_a_line_end else f"{path}:{number + 2}: ")
            assert bool(said) != at_a_line_end

    assert counts == sorted(counts)
    assert set(counts) == {-1, 0, 1, 2, 3, 4}


def lines_of(stream: Stream, tmp_path: Path) -> list[bytes]:
    """The lines of a short recording: header and two cycles."""
    path = write(tmp_path / "lines", short(stream, 2))
    lines = path.read_bytes().splitlines(keepends=True)
    path.unlink()
    return lines


def edited(line: bytes, *place: str | int, value: object) -> bytes:
    """*line* with another value at *place*."""
    content = json.loads(line)
    inner: Any = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return json.dumps(content).encode() + b"\n"


JOBS = "snapshot.seen.jobs"
PLACEMENT = "setup.settings.placement"
MASK = {"dtype": "|b1", "values": [True]}
STEER = {"job_id": 1, "kind": "spot", "avoid": ["n1"], "since_s": 1, "until_s": 2, "why": ""}
SPEED = {"steps_per_s": 1.5}
SHARED = {"node": 3, "index": 0, "jobs": [1], "shares": [0.5]}
EDITS: Mapping[str, tuple[str, object, str]] = {
    "settings": ("setup.settings.window", "many", ": must be a whole number (got 'many')"),
    "unknown": ("snapshot.wished", 1, ": unknown key"),
    "objects": (f"{JOBS}.gpus.dtype", "O", ": String should match pattern"),
    "huge elements": (f"{JOBS}.gpus.dtype", "f999999999", ": "),
    "floats for ids": (f"{JOBS}.job_id/values.0", 1.5, ": values of the kind i were expected"),
    "too large": (f"{JOBS}.state/values.0", 300, ": "),
    "a word": (f"{JOBS}.gpus/values.0", "Infinity", ": values of the kind f were expected"),
    "lengths": ("snapshot.seen.jobs/gpus.values", [], ": job columns differ in length"),
    "a ragged matrix": ("snapshot.seen.node_in/values", [[True], []], ": rows of one length"),
    "no such state": (f"{JOBS}.state/values.0", 99, ": no such state"),
    "no such partition": (f"{JOBS}.partition/values.0", 7, ": no such partition"),
    "a job twice": (f"{JOBS}.job_id/values.0", 2, ": a job is listed twice"),
    "a node that is not there": ("snapshot.seen.held.node/values.0", 77, ": no such row"),
    "managed": ("snapshot.managed/values", [], ": 1 values were expected"),
    "a scheme that is not here": (
        f"{PLACEMENT}.scheme", {"name": "none", "parameters": {}}, ".name: no scheme of placement",
    ),
    "an unknown parameter": (
        f"{PLACEMENT}.scheme", {"name": "best_fit", "parameters": {"x": 1}},
        ".parameters.x: unknown key",
    ),
    "rules": (f"{PLACEMENT}.rules", [{"name": 3, "parameters": {}}], ".0.name: must be text"),
    "excluded nodes": ("snapshot.seen.excluded", {"1": MASK}, ": 3 values a job were expected"),
    "another's steer": ("snapshot.steers", {"1": {**STEER, "job_id": 2}}, ": the steer of another"),
    "an endless steer": (
        "snapshot.steers", {"1": {**STEER, "until_s": "nan"}}, ": numbers were expected",
    ),
    "a breaker without an instant": (
        "snapshot.breakers", [{"name": "cluster_share", "tripped_s": "nan"}],
        ": finite numbers were expected",
    ),
    "a shared GPU of no node": ("snapshot.seen.shared", [SHARED], ": no such row among the nodes"),
    "no action of ours": ("plan.actions", [{"is": "Reboot"}], ".0: must be one of 'SetSiteFactor'"),
}  # fmt: skip


def _edit(place: str, value: object, words: str) -> tuple[int, Callable[[bytes], bytes], str]:
    keys = [int(key) if key.isdecimal() else key for key in place.replace("/", ".").split(".")]
    said = place.partition("/")[0] + words
    return 1 + (keys[0] != "setup"), lambda line: edited(line, *keys, value=value), said


HOSTILE: Mapping[str, tuple[int, Callable[[bytes], bytes], str]] = {
    "empty": (1, lambda _: b"", "its first line is not whole"),
    "not JSON at all": (1, lambda _: b"\x00\xff\xfe junk\n", "not JSON"),
    "another JSON": (1, lambda _: b"[1]\n", "must be a mapping"),
    "no header": (1, lambda _: b'{"snapshot":{}}\n', "not a recording"),
    "format": (1, lambda b: edited(b, "recording", value=99), "1 to 4 was expected (got 99)"),
    "no settings": (1, lambda b: edited(b, "setup", value={}), "setup.policy: is required"),
    "not JSON": (2, lambda b: b[:50] + b"\n", "not JSON"),
    "blank": (2, lambda _: b"\n", "not JSON"),
    "NaN": (
        2, lambda b: b.replace(b'"now_s":1', b'"now_s":NaN,"x":1'),
        "snapshot.seen.now_s: must be a number",
    ),
    "deep": (2, lambda _: b"[" * 200_000 + b"\n", "not JSON: recursion limit"),
    "long number": (2, lambda _: b"1" * 100_000 + b"\n", "not JSON"),
    "no snapshot": (2, lambda _: b"{}\n", "a snapshot, with or without a plan"),
    "more": (2, lambda b: edited(b, "extra", value=1), "extra: unknown key"),
    "too large a float": (
        2, lambda b: edited(b, *JOBS.split("."), "gpus", "values", 0, value=12345)
        .replace(b"12345", b"1e999"), "snapshot.seen.jobs.gpus: a number is too large",
    ),
    "a label that is none": (
        2, lambda b: edited(
            edited(b, "snapshot", "steers", value={"1": STEER}),
            *("snapshot", "seen", "texts", "1", "label"), value="x_1",
        ), "snapshot.seen.texts: a job's number was expected as label",
    ),
    "a plan of other jobs": (
        2, lambda b: edited(b, "plan", "rank", "values", value=[]),
        "values were expected, one a job",
    ),
    **{name: _edit(*case) for name, case in EDITS.items()},
}  # fmt: skip


@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE)
def test_what_is_wrong_is_said_with_its_line(
    stream: Stream,
    tmp_path: Path,
    case: tuple[int, Callable[[bytes], bytes], str],
    packed: Callable[[bytes], bytes],
) -> None:
    """One sentence that begins with file and line; exit status 2, as for bad configuration."""
    line, spoil, said = case
    lines = lines_of(stream, tmp_path)
    lines[line - 1] = spoil(lines[line - 1])
    path = tmp_path / "bad"
    content = b"".join(lines) if line > 1 else lines[0]
    path.write_bytes(packed(content))

    with pytest.raises(RecordingError) as caught:
        read(path)

    text = str(caught.value)
    assert text.startswith(f"{path}:{line}: ")
    assert said in text
    assert len(text) < len(str(path)) + 400
    assert len(text.splitlines()) == 1


def test_what_cannot_be_opened_or_unpacked_is_named(stream: Stream, tmp_path: Path) -> None:
    """With the line that was being read; a pipe is not waited for."""
    for path in (tmp_path / "none", tmp_path, Path("/dev/null")):
        with pytest.raises(RecordingError, match=f"^{path}: n"):
            Recording(path)
    path = write(tmp_path / "r.gz", short(stream))
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(RecordingError, match=rf"^{path}:\d+: "):
        read(path)


def test_a_small_file_cannot_fill_the_memory(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line is read no further than its limit, however small it was compressed."""
    monkeypatch.setattr(recording_module, "MOST_LINE_BYTES", 2**20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(lines_of(stream, tmp_path)[0] + b" " * 2**25))
    assert path.stat().st_size < 2**16

    tracemalloc.start()
    try:
        with pytest.raises(RecordingError, match=rf"^{path}:2: longer than 1 MiB$"):
            read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 2**23


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["inf", "nan", "", "x", "<f8", "O"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def leaves(content: object, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Places of everything inside a JSON value."""
    found: list[tuple[str | int, ...]] = [at] if at else []
    if isinstance(content, dict):
        found += [place for k, v in content.items() for place in leaves(v, (*at, k))]
    if isinstance(content, list):
        found += [place for i, v in enumerate(content) for place in leaves(v, (*at, i))]
    return found


@pytest.fixture(scope="module", params=["plain", "steered"])
def fuzzed(request: pytest.FixtureRequest, stream: Stream) -> Stream:
    """A stream whose cycles are changed; of the steered one those in which jobs are steered."""
    if request.param == "plain":
        return stream
    made = steered_cluster()
    busy = [c for c in made.cycles if c.snapshot.steers and c.snapshot.seen.excluded]
    return dataclasses.replace(made, cycles=(*made.cycles[:20], *busy))


@given(data=st.data())
@settings(max_examples=FUZZ, deadline=None, suppress_health_check=SLOW)
def test_whatever_is_written_into_a_recording_it_is_refused_or_decided(
    fuzzed: Stream, tmp_path: Path, data: st.DataObject
) -> None:
    """No value of any kind anywhere gets past the reader and breaks the decision."""
    lines = lines_of(fuzzed, tmp_path)
    place = data.draw(st.sampled_from(leaves({"snapshot": json.loads(lines[1])["snapshot"]})))
    lines[1] = edited(lines[1], *place, value=data.draw(JSON))
    path = tmp_path / "fuzzed"
    path.write_bytes(b"".join(lines))

    number, said = outcome(path)

    assert said.startswith("" if number >= 0 else f"{path}:2: ")
    for cycle in read(path) if number >= 0 else ():
        decide(cycle.snapshot, cycle.setup.make(), cycle.setup.settings)


# Names.


def test_anonymous_recordings_hold_no_name(tmp_path: Path, stream: Stream) -> None:
    """Neither of users nor of jobs, accounts, projects and nodes, wherever they stand."""
    busy = next(c.snapshot for c in stream.cycles if c.snapshot.handovers)
    fields = {"name": "secretjob", "account": "secretaccount", "qos": "secretqos"}
    fields |= {"reason": "Resources secretnode1", "nodes": "secretnode[1-2]"}
    texts = {
        job_id: JobText(label=str(job_id), user=f"secretuser{job_id % 2}", **fields)
        for job_id in busy.jobs.job_id.tolist()
    }
    secret = {n: f"secret{n}" for n in busy.seen.nodes.name}
    nodes = dataclasses.replace(busy.seen.nodes, name=tuple(secret.values()))
    handovers = tuple(
        dataclasses.replace(h, nodes=tuple(secret[n] for n in h.nodes)) for h in busy.handovers
    )
    steer = Steer(
        job_id=JobId(next(iter(texts))), kind="spot", avoid=("secretn1",), own=("secretn2",),
        left=("secretn3",), since_s=busy.now_s, until_s=busy.now_s + 60, why="the node secretn2",
    )  # fmt: skip
    told = Restart(job_id=JobId(1), restarts=0, gpus=1.0, requeued_s=busy.now_s, uid=999777)
    named = dataclasses.replace(
        busy,
        seen=dataclasses.replace(busy.seen, texts=texts, nodes=nodes),
        handovers=handovers,
        steers={steer.job_id: steer},
        breakers=(Breaker(name="cluster_share", reset_s=1.0, reset_by="user secret (0)"),),
        restarts=(told, dataclasses.replace(told, restarts=1, uid=OWNER_UNKNOWN)),
        booked=(
            entry("broken_contract", 999777, {"job_id": 1, "at_s": busy.now_s}),
            entry("promise", "secret", {}),
        ),
    )
    anonymous = Anonymous()
    path = tmp_path / "r"
    with Writer(path, stream.setup) as writer:
        writer.write(anonymous(named))
        writer.write(anonymous(named))

    (first, again), content = read(path), path.read_bytes()
    snap = first.snapshot

    assert b"secret" not in content
    assert b"999777" not in content
    assert b"1000" not in content.partition(b'"uid"')[2][:60]
    assert same(snap, again.snapshot)
    users = [snap.seen.texts[j].user for j in texts]
    assert users == [f"user-{1 + i % 2}" for i in range(len(users))]
    assert snap.handovers[0].nodes[0] in snap.seen.nodes.name
    known, unknown = snap.restarts
    assert (known.uid in range(1000), unknown.uid) == (True, OWNER_UNKNOWN)
    assert [e.key for e in snap.booked] == [str(known.uid)]
    [kept] = snap.steers.values()
    assert len({*kept.avoid, *kept.own, *kept.left} & {*snap.seen.nodes.name}) == 3
    decided = [decide(s, stream.policy, stream.settings) for s in (named, snap)]
    assert same(decided[0].rank, decided[1].rank)
    assert decided[0].target == decided[1].target


@dataclasses.dataclass(frozen=True)
class Owned:
    """A scheme that is given accounts by name."""

    name: typing.ClassVar[str] = "owned"
    cells: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    by_type: Mapping[str, int] = dataclasses.field(default_factory=dict)


def test_accounts_in_parameters_are_those_of_the_jobs(stream: Stream) -> None:
    """The same stand-in in both, what no job names yet included; GPU types stay."""
    snap = stream.cycles[20].snapshot
    job_id = JobId(int(snap.jobs.job_id[0]))
    texts = {job_id: JobText(label="1", account="vision")}
    snap = dataclasses.replace(snap, seen=dataclasses.replace(snap.seen, texts=texts))
    scheme: Any = Owned(
        cells={"speech": {"node": 2}, "vision": {"node": 1}}, by_type={snap.seen.gpu_types[0]: 7}
    )
    settings = dataclasses.replace(
        stream.settings,
        placement=Placement(scheme=scheme, rules=(scheme,)),
        deadlines=Deadlines(qos=("secret",)),
        preemption=dataclasses.replace(stream.settings.preemption, exempt_accounts=("vision",)),
    )
    anonymous = Anonymous()
    account = anonymous(snap).seen.texts[job_id].account

    anonymised = anonymous.setup(Setup.of(Fifo(), settings), snap).settings
    kept = anonymised.placement

    assert anonymised.deadlines == Deadlines(qos=("qos-1",))
    assert anonymised.preemption.exempt_accounts == (account,)
    assert kept.scheme == Owned(
        cells={"account-2": {"node": 2}, account: {"node": 1}}, by_type={snap.seen.gpu_types[0]: 7}
    )
    assert kept.rules == (kept.scheme,)
    assert anonymous.setup(stream.setup, snap) == stream.setup


# The engine is one.


@pytest.fixture(scope="module", params=list(STREAMS))
def lived(request: pytest.FixtureRequest) -> Stream:
    """Each stream that a loop of ours has made."""
    return STREAMS[request.param]()


@pytest.fixture
def recorded(lived: Stream, tmp_path: Path) -> list[RecordedCycle]:
    """The same stream out of a file."""
    return read(write(tmp_path / "stream.gz", lived))


def test_the_stream_has_something_to_get_wrong(lived: Stream) -> None:
    """Enough cycles, every kind of action, jobs that come to their end."""
    kinds = {type(a) for c in lived.cycles for a in c.plan.actions}
    assert len(lived.cycles) >= 60
    assert kinds == set(ACTIONS) - NOT_LIVED - (set() if lived.settings.placement.steer else STEERS)
    assert sum(bool(c.snapshot.handovers) for c in lived.cycles) >= 5
    assert (lived.cycles[-1].snapshot.jobs.state == JobState.COMPLETED).sum() >= 5


def test_each_recorded_snapshot_gives_the_plan_the_loop_made(
    lived: Stream, recorded: list[RecordedCycle]
) -> None:
    """Byte for byte, with the policy and the limits out of the file."""
    for cycle, kept in zip(lived.cycles, recorded, strict=True):
        plan = decide(kept.snapshot, kept.setup.make(), kept.setup.settings)

        assert plan_bytes(plan) == plan_bytes(cycle.plan), kept.line


def test_the_loop_on_what_was_seen_plans_the_same_again(
    lived: Stream, recorded: list[RecordedCycle]
) -> None:
    """From an empty ledger: it grows as it grew then, and the same is told to the cluster."""
    cluster = ReplayCluster(kept.snapshot.seen for kept in recorded)
    ledger = Ledger(MemoryStore())
    setup = recorded[0].setup
    policy = setup.make()
    for cycle in lived.cycles:
        again = run_cycle(cluster, ledger, policy, setup.settings, clock=cluster.clock, acting=True)

        assert same(again.snapshot, cycle.snapshot)
        assert plan_bytes(again.plan) == plan_bytes(cycle.plan)
    told = [d.action for c in lived.cycles for d in c.done if isinstance(d.action, ClusterAction)]
    assert [action for _, action in cluster.applied] == told
    with pytest.raises(ReplayOverError):
        cluster.observe()


def test_another_parameter_makes_other_plans(lived: Stream, recorded: list[RecordedCycle]) -> None:
    """So the tests above can fail: every parameter shows in some plan."""
    whole = lived.setup.parameters
    changes = {n: v + 0.5 for n, v in whole.items() if isinstance(v, float)} | {
        n: [typing.cast("float", one) * 1.01 for one in v]
        for n, v in whole.items()
        if isinstance(v, list)
    }
    assert changes
    for name, value in changes.items():
        policy = dataclasses.replace(lived.setup, parameters={**whole, name: value}).make()
        assert any(
            plan_bytes(decide(kept.snapshot, policy, kept.setup.settings)) != plan_bytes(cycle.plan)
            for kept, cycle in zip(recorded, lived.cycles, strict=True)
        ), name


def test_a_ledger_that_forgets_makes_other_plans(
    lived: Stream, recorded: list[RecordedCycle]
) -> None:
    """What is remembered matters: with a new ledger in the middle the plans are others."""
    half = len(recorded) // 3
    cluster = ReplayCluster(kept.snapshot.seen for kept in recorded[half:])
    ledger = Ledger(MemoryStore())
    again = [
        run_cycle(cluster, ledger, lived.policy, lived.settings, clock=cluster.clock, acting=True)
        for _ in recorded[half:]
    ]

    assert [plan_bytes(c.plan) for c in again] != [
        plan_bytes(c.plan) for c in itertools.islice(lived.cycles, half, None)
    ]
