"""What a profile says of a shape: its own GPU type first, measured before relative, or nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.profile import Profile, ShapeRate, Speed, skew_of
from slurm_dl.model.shape import Shape


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
