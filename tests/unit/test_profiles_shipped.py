"""The profiles that come with slurm_dl, and what a profile says of a shape."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.profile import Profile, ShapeRate, Speed, skew_of
from slurm_dl.model.shape import Shape
from slurm_dl.profiles import shipped_profiles
from slurm_dl.profiles.directory import shipped_directory

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "profiles"

ARTIFACT_SKEW = {
    "vgg11": 0.774,
    "vgg16": 0.744,
    "vgg19": 0.717,
    "alexnet": 0.611,
    "resnet50": 0.112,
    "resnet101": 0.075,
    "resnet152": 0.060,
    "inception3": 0.138,
    "inception4": 0.044,
}
"""Largest tensor / sum in Tiresias' own table."""

SKEWED = 0.4
"""Any threshold between 0.14 and 0.61 splits Tiresias' models alike."""


def script(name: str) -> ModuleType:
    """The script *name* of profiles/ as a module."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def architectures() -> ModuleType:
    """profiles/architectures.py."""
    return script("architectures")


@pytest.fixture
def build(architectures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """profiles/build.py, which imports the other one as scripts do."""
    monkeypatch.setitem(sys.modules, "architectures", architectures)
    return script("build")


@pytest.fixture(scope="module")
def artifact() -> dict[str, list[float]]:
    """Tiresias' table: tensors of about 1 MB and more."""
    found: dict[str, list[float]] = json.loads(
        (ROOT / "tests/data/profiles/tiresias_tensors_mb.json").read_text()
    )["tensors_mb"]
    return found


def test_the_counts_are_the_published_ones(architectures: ModuleType) -> None:
    """Every architecture whose total is published is counted to the last parameter."""
    for name, published in architectures.PUBLISHED.items():
        assert sum(architectures.ARCHITECTURES[name][0]()) == published, name
    for name, (published, tolerance) in architectures.ROUNDED.items():
        counted = sum(architectures.ARCHITECTURES[name][0]())
        assert math.isclose(counted, published, rel_tol=tolerance), name


def test_the_word_language_model_and_the_autoencoder_by_hand(architectures: ModuleType) -> None:
    """Nobody publishes their totals; the sums are short enough to be written down."""
    embedding, layer = 33_278 * 200, 4 * 200 * (200 + 200 + 2)
    words = 2 * embedding + 33_278 + 2 * layer
    assert sum(architectures.lstm_lm()) == words
    assert sum(architectures.recoder()) == 20_108 * (200 + 200 + 1) + 200


@pytest.mark.parametrize(("model", "skew"), ARTIFACT_SKEW.items())
def test_tiresias_own_skews(artifact: dict[str, list[float]], model: str, skew: float) -> None:
    """Its table gives the known vector, to the three digits it is known with."""
    assert round(skew_of(tuple(artifact[model])), 3) == skew


@pytest.mark.parametrize("model", ARTIFACT_SKEW)
def test_all_tensors_say_the_same_as_the_artifact_s_large_ones(
    artifact: dict[str, list[float]], model: str
) -> None:
    """The shares differ, as the table leaves out small tensors; the verdict does not."""
    ours, theirs = shipped_profiles()[model].skew, skew_of(tuple(artifact[model]))

    assert ours is not None
    assert (ours > SKEWED) == (theirs > SKEWED)


@pytest.mark.parametrize("model", ["vgg11", "vgg16", "vgg19"])
def test_the_artifact_s_table_is_our_count(
    architectures: ModuleType, artifact: dict[str, list[float]], model: str
) -> None:
    """For VGG its rows are our tensors of 1 MB and more, truncated or rounded to 0.1 MB."""
    sizes = [n * 4 / 2**20 for n in architectures.ARCHITECTURES[model][0]()]
    large = [size for size in sizes if size >= 1]

    assert len(large) == len(artifact[model])
    for ours, theirs in zip(large, artifact[model], strict=True):
        assert abs(ours - theirs) <= 0.1


def test_which_alexnet_tiresias_means(
    architectures: ModuleType, artifact: dict[str, list[float]]
) -> None:
    """Its .611 is of the variant with 384 filters in the fourth layer, not of torchvision's."""
    variant = tuple(float(n) for n in architectures.alexnet_384())
    sizes = [n * 4 / 2**20 for n in variant if n * 4 / 2**20 >= 1]

    assert [round(size, 1) for size in sizes] == artifact["alexnet"]
    assert skew_of(variant) == pytest.approx(ARTIFACT_SKEW["alexnet"], abs=0.001)
    assert shipped_profiles()["alexnet"].skew == pytest.approx(0.618, abs=0.0005)


def test_files_are_what_the_script_writes(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody edits them by hand: byte for byte."""
    monkeypatch.setattr(sys, "argv", ["build.py", str(tmp_path)])
    build.main()

    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in shipped_directory().iterdir()}


def test_tensors_add_up_to_the_parameters() -> None:
    """In every profile that has them, and the largest makes its skew."""
    with_tensors = [p for p in shipped_profiles().values() if p.tensors_mb]
    assert with_tensors
    for profile in with_tensors:
        elements = math.fsum(profile.tensors_mb) * 2**20 / 4
        assert profile.parameters == pytest.approx(elements, rel=1e-5)
        assert profile.skew == pytest.approx(skew_of(profile.tensors_mb), rel=1e-5)


def test_nothing_is_guessed() -> None:
    """Every figure is computed or published and named; what has no source is unknown."""
    for profile in shipped_profiles().values():
        assert profile.source
        assert {s.origin for s in profile.speeds} <= {"published"}
        assert profile.label is None
        assert not profile.nccl
        assert profile.load.gpu_util is None
        for table, figures in (("gavel", profile.beside), ("Chronus", profile.shape_rates)):
            assert not figures or table in profile.source


def test_models_of_the_traces_find_their_profile() -> None:
    """Tiresias' and Gavel's traces, by the names that stand in them."""
    found = shipped_profiles()
    with (ROOT / "traces/tiresias/60_job.csv").open() as file:
        names = {row["model_name"] for row in csv.DictReader(file)}
    traces = list((ROOT / "traces/gavel").rglob("*.trace"))
    assert traces
    for trace in traces:
        names |= {line.split("\t")[0] for line in trace.read_text().splitlines()}

    assert len(names) > 20
    assert names <= set(found)


@pytest.mark.parametrize(
    ("model", "shape", "gpu_type", "rate"),
    [
        ("vgg16", Shape(4, 1), "", 0.317809),  # Chronus, 4 GPUs on 4 nodes
        ("vgg16", Shape(1, 4), "v100", 1.0),
        ("resnet101", Shape(4, 1), "", 0.953821),
        ("lstm", Shape(2, 1), "v100", 30.44 / 132.17),  # Gavel, consolidated or not
        ("resnet18", Shape(1, 8), "v100", 1.0),
        ("resnet50", Shape(2, 1), "k80", None),  # not measured
        ("gpt2", Shape(1, 4), "", None),
    ],
)
def test_how_much_a_shape_costs(
    model: str, shape: Shape, gpu_type: str, rate: float | None
) -> None:
    """Speed relative to the best shape with as many GPUs, from the published tables."""
    found = shipped_profiles()[model].rate(shape, gpu_type)

    assert found == (None if rate is None else pytest.approx(rate, rel=1e-3))


def speed(shape: Shape, steps_per_s: float, gpu_type: str = "") -> Speed:
    """A speed without further figures."""
    return Speed(shape=shape, steps_per_s=steps_per_s, gpu_type=gpu_type)


PROFILE = Profile(
    name="m",
    speeds=(
        speed(Shape(1, 4), 8.0, "a100"),
        speed(Shape(2, 2), 4.0, "a100"),
        speed(Shape(1, 8), 99.0, "a100"),
        speed(Shape(1, 4), 6.0),
        speed(Shape(4, 1), 1.5),
        speed(Shape(1, 2), 5.0),
    ),
    shape_rates=(
        ShapeRate(shape=Shape(2, 4), rate=0.5),
        ShapeRate(shape=Shape(1, 8), rate=2.0),
        ShapeRate(shape=Shape(4, 1), rate=0.125),
        ShapeRate(shape=Shape(1, 16), rate=0.5),
    ),
)


@pytest.mark.parametrize(
    ("shape", "gpu_type", "rate"),
    [
        (Shape(2, 2), "a100", 0.5),
        (Shape(1, 4), "a100", 1.0),
        (Shape(4, 1), "a100", 0.25),  # not measured on an a100: by any type
        (Shape(4, 1), "", 0.25),
        (Shape(2, 2), "", None),  # an a100's speed says nothing of others
        (Shape(2, 4), "a100", 0.25),  # relative to the best relative one
        (Shape(1, 8), "a100", 1.0),  # alone among speeds, so by the relative ones
        (Shape(1, 16), "", None),  # the only one with 16 GPUs
        (Shape(1, 2), "", None),
        (Shape(3, 1), "", None),
    ],
)
def test_rate_of_a_shape(shape: Shape, gpu_type: str, rate: float | None) -> None:
    """Each way a figure is found, and each in which there is none."""
    assert PROFILE.rate(shape, gpu_type) == rate


@given(
    st.lists(
        st.builds(
            speed,
            st.sampled_from([Shape(1, 4), Shape(2, 2), Shape(4, 1), Shape(1, 2)]),
            st.floats(0.01, 100),
            st.sampled_from(["", "a", "b"]),
        ),
        unique_by=lambda s: (s.shape, s.gpu_type),
    )
)
def test_the_best_shape_of_a_type_is_one(speeds: list[Speed]) -> None:
    """Every rate is above 0 and at most 1, and the fastest of its kind is exactly 1."""
    profile = Profile(name="m", speeds=tuple(speeds))
    for one in speeds:
        rate = profile.rate(one.shape, one.gpu_type)
        rivals = [s for s in speeds if (s.gpu_type, s.shape.gpus) == (one.gpu_type, one.shape.gpus)]
        if len(rivals) > 1:
            assert rate == one.steps_per_s / max(s.steps_per_s for s in rivals)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_tensors_have_no_skew(value: float) -> None:
    """A tensor has a size."""
    with pytest.raises(ValueError, match="above 0"):
        skew_of((1.0, value))


def test_shapes() -> None:
    """Nodes, GPUs on each, written as in a file."""
    assert (Shape(2, 4).gpus, str(Shape(2, 4))) == (8, "2x4")
    with pytest.raises(ValueError, match="node"):
        Shape(0, 4)
