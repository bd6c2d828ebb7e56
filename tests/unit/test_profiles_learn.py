"""From a job's reports to figures of a profile, and nothing from what a user made up."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl import job
from slurm_dl.job import progress
from slurm_dl.model.profile import CheckpointCost, Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.profiles import run_reports
from slurm_dl.profiles.run_reports import Measured, Reports, learned, read_reports, votes

Clock = Callable[[float], None]

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
SLURM = {
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURM_GPUS_PER_NODE": "a100:4",
    "SLURM_DL_MODEL": "m",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run directory of a job on 2 nodes with 4 a100 each."""
    for name in (*RANKS, *(n for n in os.environ if n.startswith(("SLURM_", "CUDA_")))):
        monkeypatch.delenv(name, raising=False)
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_DL_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(progress, "_throttle", progress._Throttle())
    monkeypatch.setattr(progress, "_windows", progress._Windows())
    return tmp_path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Lets seconds pass."""
    now = [1000.0]
    monkeypatch.setattr("slurm_dl.job.progress.time.monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def train(clock: Clock, step_s: Sequence[float], first: int = 0) -> None:
    """Steps of these lengths, each reported."""
    job.report(first)
    for step, seconds in enumerate(step_s, start=first + 1):
        clock(seconds)
        job.report(step, first + len(step_s))


def write(directory: Path, **entry: object) -> Path:
    """A run directory with one run that says *entry* besides what a good one says."""
    good: dict[str, object] = {
        "restart": 0,
        "attempt": 0,
        "nodes": 1,
        "gpus_per_node": 2,
        "gpu_type": "a100",
        "model": "m",
        "windows": [[10, 2.0]] * 5,
    }
    directory.mkdir(exist_ok=True)
    content = {"v": 1, "runs": [{**good, **entry}]}
    (directory / "slurm_dl.speed.json").write_text(json.dumps(content))
    return directory


def test_reports_become_a_speed_in_their_shape(place: Path, clock: Clock) -> None:
    """Warm-up and pauses do not count: the median of the windows is the plain step."""
    train(clock, [60.0, *[0.25] * 80, 300.0, *[0.25] * 40])

    found = read_reports(place, {"m"})

    assert found.speeds == (Measured(Shape(2, 4), "a100", pytest.approx(4.0)),)
    assert found.remarks == (f"{place}/slurm_dl.state.json: is not there",)


def test_each_run_of_a_job_has_a_shape_of_its_own(
    place: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a requeue the job lies elsewhere; what was written before is kept."""
    train(clock, [0.5] * 20)
    monkeypatch.setenv("SLURM_DL_RESTART_COUNT", "1")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    monkeypatch.setattr(progress, "_windows", progress._Windows())
    train(clock, [0.25] * 40, first=20)

    assert read_reports(place, {"m"}).speeds == (
        Measured(Shape(2, 4), "a100", pytest.approx(2.0)),
        Measured(Shape(1, 4), "a100", pytest.approx(4.0)),
    )


def test_a_long_run_stays_in_a_small_file(place: Path, clock: Clock) -> None:
    """Half of the windows go whenever there are too many, evenly over the run."""
    train(clock, [*[1.0] * 600, *[2.0] * 1000])

    (run,) = json.loads((place / "slurm_dl.speed.json").read_text())["runs"]
    lengths = [seconds for _, seconds, _ in run["windows"]]
    assert progress.KEPT_WINDOWS / 2 <= len(lengths) <= progress.KEPT_WINDOWS
    assert statistics.fmean(length == 2.0 for length in lengths) == pytest.approx(5 / 8, abs=0.05)


@pytest.mark.parametrize(
    ("variables", "nodes", "gpus", "kind"),
    [
        ("", None, None, None),
        ("JOB_NUM_NODES=2 GPUS_ON_NODE=4", 2, 4, None),
        ("NNODES=1 JOB_GPUS=0,3", 1, 2, None),
        ("NNODES=1 CUDA_VISIBLE_DEVICES=GPU-1a,GPU-2b", 1, 2, None),
        ("NNODES=1 CUDA_VISIBLE_DEVICES=NoDevFiles", 1, None, None),
        ("NNODES=1 CUDA_VISIBLE_DEVICES=", 1, None, None),
        ("JOB_NUM_NODES=2 GPUS_ON_NODE=4 GPUS_PER_NODE=a100:4", 2, 4, "a100"),
        # 3 + 3 + 2: as many on each node is not what this node says.
        ("JOB_NUM_NODES=3 GPUS_ON_NODE=3 GPUS=v100:8", 3, None, "v100"),
        ("JOB_NUM_NODES=2 GPUS_ON_NODE=4 GPUS=8", 2, 4, None),
        # Nor does it for 2 + 3 + 1, though three times two are six.
        ("JOB_NUM_NODES=3 GPUS_ON_NODE=2 GPUS=6", 3, None, None),
        ("JOB_NUM_NODES=2 GPUS_ON_NODE=5 GPUS=8", 2, None, None),
        ("JOB_NUM_NODES=2 GPUS_ON_NODE=4 GPUS_PER_NODE=a100:4 GPUS=v100:8", 2, 4, None),
        (
            "JOB_NUM_NODES=2 GPUS_ON_NODE=4 GPUS_PER_TASK=a100:1 TASKS_PER_NODE=4(x2)",
            *(2, 4, "a100"),
        ),
        (
            "JOB_NUM_NODES=2 GPUS_ON_NODE=4 GPUS_PER_TASK=1 TASKS_PER_NODE=4,2",
            *(2, None, None),
        ),
        ("JOB_NUM_NODES=3 GPUS_ON_NODE=4 GPUS=12 GPUS_PER_NODE=4", 3, 4, None),
        # Half a GPU, as Slurm 22.05 shows it.
        ("NNODES=1 GPUS_ON_NODE=1 JOB_GPUS=0 SHARDS_ON_NODE=1", 1, None, None),
        ("JOB_NUM_NODES=-2 GPUS_ON_NODE=1e9", None, None, None),
        ("GPUS_ON_NODE=4", None, None, None),
    ],
)
def test_what_a_run_lies_on(
    variables: str, nodes: int | None, gpus: int | None, kind: str | None
) -> None:
    """By Slurm's variables, here without their SLURM_; what they do not tell is unknown."""
    pairs = (variable.split("=") for variable in variables.split())
    found = progress.placed(
        {name if name.startswith("CUDA") else f"SLURM_{name}": value for name, value in pairs}
    )

    assert (found["nodes"], found["gpus_per_node"], found["gpu_type"]) == (nodes, gpus, kind)


def test_checkpoints_tell_size_and_time(place: Path, clock: Clock) -> None:
    """Files of a directory are added up; the time counts only where the script measured it."""
    train(clock, [0.5] * 20)
    whole = place / "ck"
    whole.mkdir()
    for part in "ab":
        (whole / part).write_bytes(b"x" * 2**20)
    job.checkpoint_saved(whole, 1)
    job.checkpoint_saved(whole / "a", 2, save_s=3.0)

    found = read_reports(place, {"m"})

    assert sorted(found.sizes_mb) == [1.0, 2.0]
    (save_s,) = found.saves_s
    # The time until it was on disk belongs to it.
    assert 3.0 <= save_s < 60
    with pytest.raises(ValueError, match="save_s must be 0 or more"):
        job.checkpoint_saved(whole, 3, save_s=float("nan"))


@pytest.mark.parametrize(
    "entry",
    [
        {"nodes": None},
        {"nodes": 0},
        {"nodes": True},
        {"nodes": 2.0},
        {"nodes": 10**400},
        {"gpus_per_node": "2"},
        {"windows": []},
        {"windows": "abc"},
        {"windows": [[10, 2.0]] * 3},
        {"windows": [[10, 0.0]] * 9},
        {"windows": [[10, -1]] * 9},
        {"windows": [[10, 1e999]] * 9},
        {"windows": [[10**400, 1]] * 9},
        {"windows": [[10, 10**400]] * 9},
        {"windows": [[True, 1.0]] * 9},
        {"windows": [[10, 1.0, -5]] * 9},
        {"windows": [[10**9, 0.001]] * 9},
        {"model": "other"},
        {"model": ["m"]},
        {"model": None},
    ],
)
def test_what_is_not_plausible_teaches_nothing(tmp_path: Path, entry: dict[str, object]) -> None:
    """And the admin is told that it was left out."""
    found = read_reports(write(tmp_path / "r", **entry), {"m"})

    assert not found.speeds
    assert len(found.remarks) == 1
    assert found.remarks[0].isprintable()


def test_what_users_write_of_themselves_is_compared_alone(tmp_path: Path) -> None:
    """A model's name could steer a terminal, a GPU's type would become a key of the profile."""
    place = write(tmp_path / "r", model="\x1b[2Jevil")
    (remark,) = read_reports(place, {"m"}).remarks
    assert "evil" not in remark
    assert len(read_reports(place, None).speeds) == 1
    assert len(read_reports(write(place, model="alias"), {"m", "alias"}).speeds) == 1
    (found,) = read_reports(write(place, gpu_type="a\n: b"), {"m"}).speeds
    assert found.gpu_type == ""


def test_of_one_owner_a_limited_number_of_directories_is_read(tmp_path: Path) -> None:
    """The admin is told once."""
    place, read = write(tmp_path / "r"), Counter({os.geteuid(): 255})
    found = [read_reports(place, {"m"}, read) for _ in range(4)]
    assert [len(each.speeds) for each in found] == [1, 0, 0, 0]
    assert [len(each.remarks) for each in found] == [1, 1, 0, 0]


def test_links_pipes_and_huge_files_are_not_read(tmp_path: Path) -> None:
    """The admin reads with rights that the user does not have."""
    secret = write(tmp_path / "secret") / "slurm_dl.speed.json"
    for make in (
        lambda path: path.symlink_to(secret),
        os.mkfifo,
        lambda path: path.write_bytes(b"[" * 2**20),
        lambda path: path.write_bytes(b"[" * 2**17),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_bytes(b"[]"),
        lambda path: path.mkdir(),
    ):
        place = tmp_path / "r"
        place.mkdir(exist_ok=True)
        path = place / "slurm_dl.speed.json"
        make(path)
        found = read_reports(place, {"m"})
        assert not found.speeds
        assert len(found.remarks) == 1
        path.rmdir() if path.is_dir() else path.unlink()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["model", "nodes", "windows", "size_b", "save_s"]), inner)
    ),
    max_leaves=20,
)


@given(runs_=JSON, checkpoints=JSON)
def test_any_json_is_survived(
    tmp_path_factory: pytest.TempPathFactory, runs_: object, checkpoints: object
) -> None:
    """Whatever a user writes, only plausible figures come out."""
    place = tmp_path_factory.getbasetemp() / "any"
    write(place)
    (place / run_reports.SPEED_FILE).write_text(json.dumps({"runs": runs_}))
    (place / run_reports.STATE_FILE).write_text(json.dumps({"checkpoints": checkpoints}))

    for speed in read_reports(place, {"m"}).speeds:
        assert 1e-6 <= speed.steps_per_s <= 1e6


def test_the_job_and_the_learner_mean_the_same_files() -> None:
    """The job's package stands alone, so the names are written twice."""
    assert run_reports.SPEED_FILE == progress.SPEED_FILE
    assert run_reports.STATE_FILE == job.checkpoint.STATE_FILE


def reports(rates: Sequence[float], saves_s: Sequence[float] = (), owner: int = 0) -> Reports:
    """One run for each rate."""
    speeds = tuple(Measured(Shape(1, 2), "a100", rate) for rate in rates)
    return Reports(owner, speeds, (), tuple(saves_s), ())


RATES = st.lists(st.floats(0.1, 1000), min_size=1, max_size=6)


@given(st.lists(RATES.map(lambda rates: rates[:2]), min_size=1, max_size=5))
def test_learning_in_parts_is_learning_at_once(parts: list[list[float]]) -> None:
    """Mean and standard deviation of the parts' medians (of two runs: their mean), by number."""
    profile = Profile(name="m")
    for part in parts:
        profile = learned(profile, votes([reports(part)]))

    every = [rate for part in parts for rate in part]
    (speed,) = profile.speeds
    assert speed.observations == len(every)
    assert speed.origin == "measured"
    assert speed.steps_per_s == pytest.approx(statistics.fmean(every), rel=1e-4)
    expected = statistics.pstdev(every) / statistics.fmean(every)
    assert (speed.spread or 0.0) == pytest.approx(expected, rel=1e-2, abs=1e-3)
    assert (speed.spread is None) == (len(every) == 1)


LIES = st.lists(st.sampled_from([1e-6, 4.9, 1e6]) | st.floats(1e-6, 1e6), min_size=1, max_size=64)


@given(st.lists(RATES, min_size=1, max_size=4), st.lists(LIES, max_size=3))
def test_fewer_owners_than_half_move_no_figure_beyond_the_others(
    honest: list[list[float]], lies: list[list[float]]
) -> None:
    """However many runs they have: speed, number of runs and time to save stay in the range."""
    lies = lies[: len(honest) - 1]
    owners = [reports(rates, rates, owner) for owner, rates in enumerate((*honest, *lies))]

    after = learned(Profile(name="m"), votes(owners))

    (speed,) = after.speeds
    assert after.checkpoint.save_s is not None
    least, most = min(map(min, honest)), max(map(max, honest))
    assert least * 0.9999 <= speed.steps_per_s <= most * 1.0001
    assert least * 0.9999 <= after.checkpoint.save_s <= most * 1.0001
    fewest, largest = (len(owners) * of(map(len, honest)) for of in (min, max))
    assert fewest <= speed.observations <= largest
    assert (speed.spread or 0.0) * speed.steps_per_s <= (most - least) * 1.0001


def test_measured_takes_the_place_of_published_and_leaves_the_rest() -> None:
    """A figure from elsewhere is not averaged with one from here."""
    here = Speed(shape=Shape(1, 2), gpu_type="a100", steps_per_s=9, batch=64, observations=7)
    there = Speed(shape=Shape(2, 1), gpu_type="a100", steps_per_s=8, origin="published")
    before = Profile(name="m", skew=0.5, speeds=(here, there))

    after = learned(before, votes([reports([3.0, 5.0])]))

    assert after.skew == 0.5
    assert there in after.speeds
    found = after.speed(Shape(1, 2), "a100")
    assert (found.steps_per_s, found.observations, found.spread) == (4.0, 2, 0.25)
    assert (found.batch, found.origin) == (None, "measured")
    (named,) = learned(Profile(name="m"), votes([reports([3.0])], gpu_type="h100")).speeds
    assert named.gpu_type == "h100"


def test_saves_are_averaged_by_their_number() -> None:
    """A declared time without observations gives way."""
    before = Profile(name="m", checkpoint=CheckpointCost(save_s=99.0, restore_s=5.0))
    once = learned(before, votes([reports([1.0], [2.0, 4.0])]))
    twice = learned(once, votes([reports([1.0], [9.0])]))

    assert once.checkpoint == CheckpointCost(save_s=3.0, restore_s=5.0, observations=2)
    assert twice.checkpoint == CheckpointCost(save_s=5.0, restore_s=5.0, observations=3)
