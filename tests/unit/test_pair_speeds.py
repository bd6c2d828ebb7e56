"""Labels of models and expected speeds of pairs, against six pairs measured on an H200."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from slurm_dl.model.profile import Beside, Load, Profile, SharingMode
from slurm_dl.placement.pair_speeds import expected_sum, label_of, labels_in

LOADS: Final = {
    "gpt": Load(gpu_util=0.898, memory_util=0.379, gpu_mem_mb=6184),
    "resnet": Load(gpu_util=0.542, memory_util=0.055, gpu_mem_mb=1156),
    "rec": Load(gpu_util=0.426, memory_util=0.020, gpu_mem_mb=1038),
}
"""Each of the three alone, at the clock of a warm GPU."""

MEASURED: Final[Mapping[SharingMode, Mapping[tuple[str, str], tuple[float, float]]]] = {
    "slices": {
        ("gpt", "gpt"): (0.51, 0.51),
        ("gpt", "resnet"): (0.55, 0.85),
        ("gpt", "rec"): (0.62, 0.94),
        ("resnet", "resnet"): (0.85, 0.87),
        ("resnet", "rec"): (0.86, 0.90),
        ("rec", "rec"): (1.0, 0.96),
    },
    "mps": {
        ("gpt", "gpt"): (0.65, 0.65),
        ("gpt", "resnet"): (0.94, 0.66),
        ("gpt", "rec"): (1.04, 0.84),
        ("resnet", "resnet"): (0.89, 0.77),
        ("resnet", "rec"): (0.94, 1.06),
        ("rec", "rec"): (1.07, 0.88),
    },
}
LABELS: Final = {
    "slices": {"gpt": 2, "resnet": 2, "rec": 2},
    "mps": {"gpt": 2, "resnet": 1, "rec": 0},
}
"""By the mean speed of each one's neighbours."""


def models(mode: SharingMode, *, measured: bool) -> list[Profile]:
    """The three, with or without their speeds beside each other."""
    beside: dict[str, list[Beside]] = {name: [] for name in LOADS}
    for (one, other), (speed, others) in MEASURED[mode].items():
        own = (speed + others) / 2 if one == other else speed
        beside[one].append(Beside(other=other, rate=own, mode=mode, origin="measured"))
        if one != other:
            beside[other].append(Beside(other=one, rate=others, mode=mode, origin="measured"))
    return [
        Profile(name=name, load=load, beside=tuple(beside[name]) if measured else ())
        for name, load in LOADS.items()
    ]


@pytest.mark.parametrize(("mode", "error"), [("slices", 0.11), ("mps", 0.20)])
def test_the_expected_sum_is_within_its_error(mode: SharingMode, error: float) -> None:
    """Of each of the six pairs; and of one it is as far off as that."""
    off = [
        abs(expected_sum(mode, *(LOADS[name].gpu_util or 0.0 for name in pair)) - sum(speeds))
        for pair, speeds in MEASURED[mode].items()
    ]

    assert round(max(off), 2) == error


def test_no_pair_is_expected_to_be_faster_than_two_gpus() -> None:
    """Idle models; the busier the less, in either mode."""
    assert expected_sum("slices", 0.0, 0.1) == expected_sum("mps", 0.0, 0.1) == 2.0
    assert expected_sum("slices", 1.0, 1.0) == pytest.approx(0.84)
    assert expected_sum("mps", 1.0, 1.0) == pytest.approx(1.23)


@pytest.mark.parametrize("mode", ["slices", "mps"])
def test_the_tree_tells_the_three_apart(mode: SharingMode) -> None:
    """By what they are alone; in slices nothing that keeps the GPU busy is light."""
    assert labels_in(models(mode, measured=False), mode, "h200") == LABELS[mode]


def test_measured_neighbours_come_before_the_tree() -> None:
    """The mean speed beside each by hand: 0.72, 0.94 and 0.98 under MPS.

    In slices 0.77, 0.77 and 0.82: a busy one takes 40 % from whoever is beside it.
    """
    assert labels_in(models("mps", measured=True), "mps", "h200") == LABELS["mps"]
    assert labels_in(models("slices", measured=True), "slices", "h200") == LABELS["slices"]
    light = [
        Profile(name=p.name, load=LOADS["gpt"], beside=p.beside)
        for p in models("mps", measured=True)
    ]
    assert labels_in(light, "mps", "h200") == LABELS["mps"], "whatever the tree says"


@pytest.mark.parametrize(
    ("busy", "memory", "slices", "mps"),
    [
        (0.05, 0.05, 0, 0),
        (0.06, 0.05, 1, 0),
        (0.05, 0.06, 1, 0),
        (0.15, 0.15, 1, 0),
        (0.16, 0.1, 2, 0),
        (0.1, 0.16, 2, 0),
        (0.48, 0.35, 2, 0),
        (0.49, 0.35, 2, 1),
        (0.4, 0.36, 2, 1),
        (0.6, 0.6, 2, 1),
        (0.61, 0.0, 2, 2),
        (0.5, 0.61, 2, 2),
        # Kernels that run may all wait for memory.
        (0.35, None, 2, 0),
        (0.36, None, 2, 1),
        (None, 0.0, None, None),
    ],
)
def test_the_tree_by_hand(
    busy: float | None, memory: float | None, slices: int | None, mps: int | None
) -> None:
    """At each of its thresholds, on both sides."""
    profile = Profile(name="m", load=Load(gpu_util=busy, memory_util=memory))

    assert labels_in([profile], "slices", "a100") == {"m": slices}
    assert labels_in([profile], "mps", "a100") == {"m": mps}


def test_a_label_needs_figures_of_its_mode_and_type() -> None:
    """Others', the admin's word under MPS, and what nobody has measured tell nothing."""
    load = Load(gpu_util=0.9, gpu_type="a100")
    here = Beside(other="n", rate=0.96, mode="mps", gpu_type="a100", origin="measured")
    there = Beside(other="n", rate=0.5, mode="mps", gpu_type="v100", origin="measured")
    said = Beside(other="n", rate=0.5, mode="mps", origin="declared")
    sliced = Beside(other="n", rate=0.5, gpu_type="a100", origin="measured")
    m = Profile(name="m", load=load, label=1, beside=(here, there, said, sliced))
    n = Profile(name="n", load=Load(gpu_util=0.9), beside=(Beside(other="m", rate=0.9),))

    assert labels_in([m, n], "mps", "a100") == {"m": 2, "n": 0}
    assert labels_in([m, n], "mps", "v100") == {"m": None, "n": 2}
    assert labels_in([m, n], "slices", "v100") == {"m": 1, "n": 2}


@pytest.mark.parametrize(
    ("speed", "label"), [(1.0, 0), (0.95, 0), (0.949, 1), (0.85, 1), (0.84, 2)]
)
def test_labels_are_lucids(speed: float, label: int) -> None:
    """Mean speeds of neighbours from 0.95 are a 0, from 0.85 a 1, below that a 2."""
    assert label_of(speed) == label
