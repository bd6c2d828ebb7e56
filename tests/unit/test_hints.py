"""Hints: what may be given, what job and scheduler are told, and whom a run is compared with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from build import observed, pending, running, snapshot

from slurm_dl.cli.dlsubmit.command import main
from slurm_dl.engine.decide import decide
from slurm_dl.engine.intent import ask, intend
from slurm_dl.engine.preemption.unpack_pairs import losing_pairs
from slurm_dl.engine.settings import Overdue, Placement, Preemption, Settings
from slurm_dl.job import ddp_arguments
from slurm_dl.model.booking import Entry, entry
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import JobRow, JobState
from slurm_dl.model.nodes import SharedGpu
from slurm_dl.model.plan import Book, OpenHandover, Reshape
from slurm_dl.model.profile import Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.policies.fifo import Fifo
from slurm_dl.policies.gavel.queues import GavelFifo
from slurm_dl.policies.shortest import Srsf
from slurm_dl.profiles.directory import read_profile, write_profile
from slurm_dl.profiles.run_reports import learned, read_reports, votes
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.submit.hints import HINTS, read
from slurm_dl.submit.job_request import SubmitOptions, check

SUBMIT = Path(__file__).parents[2] / "docs" / "use" / "submit.md"


def test_the_table_stands_in_the_manual() -> None:
    """Each hint with its value, its default, its variables."""
    lines = SUBMIT.read_text(encoding="utf-8").splitlines()
    for name, hint in HINTS.items():
        row = next((line for line in lines if line.startswith(f"| `{name}")), "")
        told = [*hint.variables, hint.default or ""]
        assert all(word in row for word in told), (name, row)


@pytest.mark.parametrize(
    ("typed", "variables", "claims"),
    [
        ("", {}, {}),
        ("byteps", {"BYTEPS_PARTITION_BYTES": "4096000"}, {"hints": "byteps=4096000"}),
        ("byteps=65536", {"BYTEPS_PARTITION_BYTES": "65536"}, {"hints": "byteps=65536"}),
        ("byteps=1073741824", {"BYTEPS_SERVER_ENABLE_SCHEDULE": "1"}, {}),
        ("p3=0001000", {"MXNET_KVSTORE_SLICE_THRESHOLD": "1000"}, {"hints": "p3=1000"}),
        ("p3_ddp=25", {"SLURM_DL_DDP_BUCKET_MB": "25"}, {"hints": "p3_ddp=25"}),
        ("tictac,p3", {"SLURM_DL_TICTAC": "tic"}, {"hints": "p3=40000,tictac=tic"}),
        ("shape_locked", {}, {"locked": 1}),
        ("shape_locked,p3", {"SLURM_DL_HINTS": "p3=40000"}, {"locked": 1, "hints": "p3=40000"}),
        ("heterog=b:2+a:4", {"SLURM_DL_DEVICE_MAP": "0-1=b,2-5=a"}, {"hints": "heterog=b:2+a:4"}),
    ],
)
def test_hints_become_variables_and_keys_that_are_read_back(
    typed: str, variables: dict[str, str], claims: dict[str, object]
) -> None:
    """The comment's keys are a claim again, and the variables are those of the rows."""
    given = read(typed.split(",") if typed else ())

    assert variables.items() <= given.variables.items()
    assert ("SLURM_DL_HINTS" in given.variables) == bool(given.apart)
    assert claims.items() <= given.claims.items()
    comment = json.dumps({"slurm_dl": {"v": 1, "sizes": "1x1,1x2", **given.claims}})
    claim = ClaimReader(max_grace_s=1.0).read(comment)
    assert (claim.hints, claim.locked) == (given.apart, given.locked)
    assert bool(claim.sizes) != given.locked, "a locked job has one size"
    mb = given.values.get("p3_ddp")
    assert ddp_arguments(given.variables) == ({"bucket_cap_mb": int(mb)} if mb else {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hint": "bytps"}, "no hint 'bytps'; do you mean byteps"),
        ({"hint": "x;rm -rf"}, "there are tictac, p3"),
        ({"hint": "p3,p3"}, "given twice"),
        ({"hint": "p3_ddp"}, "may change results in their last digits; give p3_ddp=1..1024"),
        *(
            ({"hint": text}, "--hint: [a-z3_]+ takes")
            for text in (
                *("byteps=65535", "byteps=1073741825", "p3=", "p3=1e6", "p3=\uff11000", "p3=-1"),
                *("p3_ddp=0", "p3_ddp=$(id)", "tictac=no", "shape_locked=1", "p3=" + "9" * 5000),
                *("heterog=a:0+b:1", "heterog=a:1", "heterog=a:1+a:1", "heterog=a:1+b:\uff11"),
                *("heterog=a:1+b:000019999", "heterog=a:1+b:00001" + "9" * 5000),
                "heterog=" + "+".join(f"t{i}:1" for i in range(9)),
            )
        ),
        ({"hint": "heterog"}, "heterog needs a value"),
        ({"hint": "heterog="}, "'' is not a name"),
        ({"hint": "heterog=a b:1+c:1", "launcher": "srun"}, "'a b' is not a name"),
        ({"hint": "heterog=a:1+b:1", "gpus": None}, "--launcher=srun"),
        ({"hint": "heterog=a:1+b:1", "launcher": "srun"}, "leave out --gpus"),
        (
            {"hint": "heterog=a:1+b:1", "launcher": "srun", "gpus": None, "wait_for_data": True},
            "leave out --wait-for-data",
        ),
        *(
            ({"hint": "shape_locked", **other}, "one job of one shape; leave out --")
            for other in (
                {"sizes": "1,2"}, {"array": "0-3"}, {"nodes": "1-2"}, {"share": True, "gpus": "1"},
            )
        ),
    ],
)  # fmt: skip
def test_bad_hints_get_their_line(change: dict[str, str | bool | None], message: str) -> None:
    """No such hint, a value that is not its own, another option that contradicts it."""
    typed = dataclasses.replace(SubmitOptions(gpus="4"), **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message) as caught:
        check(typed, sbatch=(), command=("true",), cwd="/w", dlrun="/d")
    assert str(caught.value).isprintable()


def test_the_list_of_hints_fits_80_columns_and_cuts_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each word of the table is there, whole."""
    assert main(["--list-hints"]) == 0

    said = capsys.readouterr().out
    told = [
        w for h in HINTS.values() for w in (h.takes, h.default, *h.variables, h.build, h.source)
    ]
    words = " ".join([*HINTS, *(word or "" for word in told)]).split()
    assert set(words) <= set(said.split())
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("word", [5, None, ["p3"], "p3;x", "a" * 201, {}])
def test_hints_that_cannot_be_read_are_those_of_no_other_run(word: object) -> None:
    """A damaged key is not the same as no hint."""
    comment = json.dumps({"slurm_dl": {"v": 1, "hints": word}})

    assert ClaimReader(max_grace_s=1.0).read(comment).hints == "?"


# --- whom a run is compared with ------------------------------------------------------------


def run_directory(place: Path, rate: float, **entry: object) -> Path:
    """A run directory with one run on a GPU at *rate* steps a second."""
    place.mkdir()
    whole = {"restart": 0, "attempt": 0, "nodes": 1, "gpus_per_node": 1, "gpu_type": "a100"}
    windows = [[10, 10 / rate]] * 5
    runs = [{**whole, "model": "m", "windows": windows, **entry}]
    (place / "slurm_dl.speed.json").write_text(json.dumps({"v": 1, "runs": runs}))
    return place


def test_a_speed_is_learned_from_runs_under_the_same_hints_alone(tmp_path: Path) -> None:
    """The profile's plain speed stays, each value of a hint has its own, and the file keeps all."""
    under = [
        (5.0, {}),
        (8.0, {"hints": "p3=1000"}),
        (9.0, {"hints": "p3=2000"}),
        (1.0, {"hints": 5}),
    ]
    places = [run_directory(tmp_path / str(i), *one[:1], **one[1]) for i, one in enumerate(under)]
    profile = learned(Profile(name="m"), votes(read_reports(place, {"m"}) for place in places))
    write_profile(tmp_path / "m.yaml", profile)
    profile = read_profile(tmp_path / "m.yaml", reader=None)

    told = {
        hints: profile.speed(Shape(1, 1), "a100", hints=hints) for hints in ("", "p3=1000", "?")
    }
    assert {h: s and s.steps_per_s for h, s in told.items()} == {"": 5.0, "p3=1000": 8.0, "?": None}
    again = learned(profile, votes([read_reports(places[1], {"m"})]))
    assert [(s.hints, s.observations) for s in again.hinted] == [("p3=1000", 2), ("p3=2000", 1)]
    assert again.speeds == profile.speeds
    assert (len(profile.speeds), profile.rate(Shape(1, 1), "a100")) == (1, None)


@pytest.mark.parametrize(
    ("hints", "loses"), [("", False), ("p3=1000", True), ("p3=2000", False), ("?", False)]
)
def test_a_pair_is_undone_by_speeds_under_the_same_hints_alone(hints: str, *, loses: bool) -> None:
    """5 steps a second are half of 10 without the hint, and a quarter of 20 with it."""
    speeds = {"": 10.0, "p3=1000": 20.0}
    of = [Speed(shape=Shape(1, 1), steps_per_s=s, hints=h) for h, s in speeds.items()]
    profile = Profile(name="m", speeds=tuple(of[:1]), hinted=tuple(of[1:]))
    limits = Preemption(beneficiaries="all", commitment="ignored", min_quantum_s=0)
    claims = [Claim(contract=Contract(), model="m", rate=5.0, hints=h) for h in ("", hints)]
    seen = observed(
        [running(1, 0.5), running(2, 0.5)],
        held={1: {0: 0.5}, 2: {0: 0.5}},
        claims={JobId(i): claim for i, claim in enumerate(claims, start=1)},
        shared=(SharedGpu(node=0, index=0, jobs=(JobId(1), JobId(2)), shares=(0.5, 0.5)),),
        sharable=np.ones(4, dtype=np.bool_),
    )
    assert bool(losing_pairs(snapshot(seen), {"m": profile}, limits)) == loses


# --- locked shapes --------------------------------------------------------------------------

A100, V100 = 0, 1
SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(
        beneficiaries="all", commitment="ignored", min_quantum_s=0, cooldown_s=0,
        limit_reserve_s=0, checkpoint_cost_s=1,
    ),
    placement=Placement(steer=True),
)  # fmt: skip


def world(row: JobRow, *, locked: bool, held: int | None = None, **more: object) -> Snapshot:
    """Job 1, alone on a node of a100, four times as fast, and one of v100."""
    claim = Claim(contract=Contract(), locked=locked)
    seen = observed(
        [row],
        nodes=(4, 4),
        columns={"gpu_type": [A100, V100]},
        held={} if held is None else {1: {held: row.gpus}},
        claims={JobId(1): claim},
    )
    return snapshot(seen, rates=np.array([[4.0, 1.0]]), **more)


def booked(kind: str) -> tuple[Entry, ...]:
    return (entry("locked", 1, {"type": kind, "shape": "1x4"}),)


V = (("locked", "1", '{"shape":"1x4","type":"v100"}'),)


@pytest.mark.parametrize(
    ("snap", "moves", "asks", "books"),
    [
        pytest.param(world(running(1, 4), locked=False, held=V100), True, [], (), id="free"),
        pytest.param(world(running(1, 4), locked=True, held=V100), False, [], V, id="runs"),
        pytest.param(world(running(1, 4), locked=True, held=V100, booked=booked("v100")),
                     False, [], (), id="known"),
        pytest.param(world(running(1, 4), locked=True, held=V100, booked=booked("a100")),
                     False, [], (), id="elsewhere"),
        pytest.param(world(pending(1, 4), locked=True), False, [], (), id="never ran"),
        pytest.param(world(pending(1, 4), locked=True, booked=booked("v100")),
                     False, [("1x4", "v100")], (), id="waits again"),
        pytest.param(world(pending(1, 4, gpu_type=V100), locked=True, booked=booked("v100")),
                     False, [], (), id="asks for it"),
        pytest.param(world(pending(1, 4), locked=False, booked=booked("v100")),
                     False, [], (("locked", "1", ""),), id="unlocked"),
        pytest.param(world(pending(1, 4), locked=True, booked=booked("not read")),
                     False, [], (), id="no such type now"),
        pytest.param(world(running(1, 4, state=JobState.FAILED), locked=True,
                           booked=booked("v100")), False, [], (), id="may be retried"),
    ],
)  # fmt: skip
def test_a_locked_job_asks_for_the_type_it_ran_on_and_is_not_moved(
    snap: Snapshot, asks: list[tuple[str, str]], books: tuple[tuple[str, str, str], ...], *,
    moves: bool,
) -> None:  # fmt: skip
    """Gavel would have it on the faster type; a locked one stays where it first ran."""
    plan = decide(snap, GavelFifo(lease_s=8.0), SETTINGS)

    opened = [a for a in plan.actions if isinstance(a, OpenHandover)]
    assert bool(opened) == moves
    written = [(str(a.shape), a.gpu_type) for a in plan.actions if isinstance(a, Reshape)]
    assert written == asks
    entries = [e for a in plan.actions if isinstance(a, Book) for e in a.entries]
    assert tuple((e.kind, e.key, e.body) for e in entries if e.kind == "locked") == books


# --- heterogeneous jobs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "target"),
    [
        ((4.0, 4.0), {2, 3, 4}),
        ((4.0, 2.0), {4}),
        ((1.0, 4.0), {1, 4}),
    ],
)
def test_components_stand_by_their_whole_and_are_served_all_or_none(
    free: tuple[float, float], target: set[int]
) -> None:
    """2 + 3 GPUs for 10 h are 50; a gang that is left out leaves its GPUs to others."""
    rows = [
        pending(1, 3, gpu_type=V100, limit_s=72_000.0),
        pending(2, 2, gpu_type=A100, limit_s=36_000.0),
        pending(3, 3, gpu_type=V100, limit_s=36_000.0),
        pending(4, 1, gpu_type=V100, limit_s=72_000.0),
    ]
    labels = {1: "1", 2: "2+0", 3: "2+1", 4: "4"}
    texts = {JobId(job): JobText(label=label) for job, label in labels.items()}
    seen = observed(rows, nodes=free, columns={"gpu_type": [A100, V100]}, texts=texts)
    policy, snap = Srsf(), snapshot(seen)

    order, _ = ask(snap, policy)

    assert (order.key / 3600).tolist() == [60.0, 50.0, 50.0, 20.0]
    intent = intend(snap, policy)
    assert snap.jobs.job_id[intent.ranked].tolist() == [4, 2, 3, 1]
    assert set(snap.jobs.job_id[intent.target].tolist()) == target


@pytest.mark.parametrize(
    "first",
    [
        Overdue(after_s=0.0, short_s=900.0, short_gpus=8.0, short_share=1.0),
        Overdue(after_s=1.0, share=1.0),
        Overdue(after_s=1.0, share=1.0, short_s=900.0, short_gpus=1.0, short_share=1.0),
    ],
    ids=["short", "overdue", "short jobs before them"],
)
@pytest.mark.parametrize("policy", [Fifo(), Srsf()])
def test_nothing_lets_a_component_hold_gpus_by_itself(first: Overdue, policy: Policy) -> None:
    """Of 20 gangs each has a component that fits; the jobs behind them get the GPUs."""
    gangs = [pending(1 + i, 3.0 + 3 * (i % 2), limit_s=900.0) for i in range(40)]
    behind = [pending(50 + i, 1, limit_s=900.0) for i in range(9)]
    texts = {JobId(1 + i): JobText(label=f"{1 + i // 2 * 2}+{i % 2}") for i in range(40)}
    snap = snapshot(observed([*gangs, *behind], nodes=(4, 4), texts=texts))

    settings = dataclasses.replace(SETTINGS, overdue=first)
    target = decide(snap, policy, settings).target
    assert (len(target), min(target)) == (8, 50)
