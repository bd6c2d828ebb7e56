"""Speeds that two models are expected to have on one GPU, and labels of what they do to neighbours.

A pair that was measured has its measured speeds. Of another one the sum is expected from the share
of the time in which each keeps the GPU busy alone:

    sum = a - b (busy of one + busy of the other), at most 2

with a and b fitted to six pairs on an H200: 2.84 and 1.00 where jobs take turns in slices of time
(largest error 0.11), 2.55 and 0.66 under MPS (0.20).

Lucid's label of a model is 0 if its neighbours reach 0.95 of their speed on average, 1 from 0.85,
else 2. It is found from measured neighbours, else from the admin's word, else by a tree from what
the model does alone. Time slices protect nobody: there a busy host loses 40 % beside any guest, so
only very light models are not 2.

Source: Lucid, ASPLOS 2023, section 4.2 (labels; its tree was learned on other GPUs, and its
thresholds are not published as figures: those here separate the classes measured on an H200).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from slurm_dl.model.profile import Label, Load, Profile, SharingMode

_LABEL_0_FROM, _LABEL_1_FROM = 0.95, 0.85  # Mean speed of neighbours
_EXPECTED: Final[Mapping[SharingMode, tuple[float, float]]] = {
    "slices": (2.84, 1.00),
    "mps": (2.55, 0.66),
}
_MOST_SUM: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTree:
    """Thresholds of the tree; each is a share of the time, 0 to 1."""

    tiny_util: float  # Up to this GPU share, and
    tiny_memory: float  # this memory share, a model is 0
    medium_util: float  # Up to this GPU share, and
    medium_memory: float  # this memory share, it is 1, else 2

    def label(self, load: Load) -> Label | None:
        """Label of a model with *load*; None if its GPU share is not known.

        A memory share that is not known counts as the GPU share: kernels that run may all wait for
        memory.
        """
        if load.gpu_util is None:
            return None
        memory = load.gpu_util if load.memory_util is None else load.memory_util
        if load.gpu_util <= self.tiny_util and memory <= self.tiny_memory:
            return 0
        return 1 if load.gpu_util <= self.medium_util and memory <= self.medium_memory else 2


TREES: Final[Mapping[SharingMode, LabelTree]] = MappingProxyType(
    {
        "slices": LabelTree(tiny_util=0.05, tiny_memory=0.05, medium_util=0.15, medium_memory=0.15),
        "mps": LabelTree(tiny_util=0.48, tiny_memory=0.35, medium_util=0.60, medium_memory=0.60),
    }
)


def label_of(mean_speed: float) -> Label:
    """Label of a model beside which others run at *mean_speed* of their speed alone.

    Source: Lucid, ASPLOS 2023 (thresholds 0.95 and 0.85).
    """
    if mean_speed >= _LABEL_0_FROM:
        return 0
    return 1 if mean_speed >= _LABEL_1_FROM else 2


def labels_in(
    profiles: Iterable[Profile], mode: SharingMode, gpu_type: str
) -> Mapping[str, Label | None]:
    """Label of each model on GPUs of *gpu_type*, by its name; None if nothing tells it.

    Measured here: the mean speed of the models that ran beside it.
    """
    known = {profile.name: profile for profile in profiles}
    speeds: dict[str, list[float]] = defaultdict(list)  # Of those that ran beside each
    for profile in known.values():
        for one in profile.beside:
            if (one.mode, one.origin) == (mode, "measured") and one.gpu_type in ("", gpu_type):
                speeds[one.other].append(one.rate)
    found: dict[str, Label | None] = {}
    for name, profile in known.items():
        if name in speeds:
            found[name] = label_of(math.fsum(speeds[name]) / len(speeds[name]))
        elif profile.label is not None and mode == "slices":
            found[name] = profile.label
        else:
            load = profile.load
            found[name] = TREES[mode].label(load) if load.gpu_type in ("", gpu_type) else None
    return found


def expected_sum(mode: SharingMode, busy: float, other_busy: float) -> float:
    """Sum of the relative speeds that two models are expected to reach together.

    Args:
        busy: Share of the time in which one keeps the GPU busy alone, 0 to 1.
    """
    most, less = _EXPECTED[mode]
    return min(_MOST_SUM, most - less * (busy + other_busy))
