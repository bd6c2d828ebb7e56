"""What runs have shown, joined with what a profile says already.

Users write what their runs say. Each owner has one vote in a figure, however many runs there are,
so fewer owners than half cannot move it out of the range of what the others measured.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from slurm_dl.model.profile import CheckpointCost, Profile, Shape, Speed
from slurm_dl.profiles.run_reports import Reports

_DIGITS = 6

Place = tuple[Shape, str] | Literal["size_mb", "save_s"]
"""A figure: the speed in a shape on a GPU type, or a field of `CheckpointCost`."""

Votes = Mapping[int, Sequence[float]]
"""What was measured, by the owner's uid."""


def votes(reports: Iterable[Reports], *, gpu_type: str = "") -> dict[Place, Votes]:
    """What the owners' runs in *reports* say of each figure.

    Args:
        gpu_type: GPUs of all these runs; empty: what each run knows itself.
    """
    found: dict[Place, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for report in reports:
        for one in report.speeds:
            found[one.shape, gpu_type or one.gpu_type][report.owner].append(one.steps_per_s)
        for size_mb in report.sizes_mb:
            found["size_mb"][report.owner].append(size_mb)
        for save_s in report.saves_s:
            found["save_s"][report.owner].append(save_s)
    return {place: dict(by_owner) for place, by_owner in found.items()}


def learned(profile: Profile, found: Mapping[Place, Votes]) -> Profile:
    """*profile* with the speeds and checkpoints of *found* in it.

    A figure is the median over the owners of each one's median. It is joined with an earlier
    measured one by number: as many for each owner as the median owner has. What was published,
    computed or declared for a shape gives way to what was measured here.
    """
    speeds = {(s.shape, s.gpu_type): s for s in profile.speeds}
    for place, by_owner in found.items():
        if isinstance(place, tuple):
            known = speeds.get(place)
            is_ours = known is not None and known.origin == "measured" and known.observations > 0
            speeds[place] = _joined(place, by_owner, known if is_ours else None)
    return replace(
        profile,
        speeds=tuple(
            sorted(speeds.values(), key=lambda s: (s.gpu_type, s.shape.gpus, s.shape.nodes))
        ),
        checkpoint=_checkpoint(profile.checkpoint, found),
    )


def _joined(place: tuple[Shape, str], by_owner: Votes, known: Speed | None) -> Speed:
    count, mean = _weight(by_owner), median_vote(by_owner)
    squares = count * _middle([abs(rate - mean) for rate in own] for own in by_owner.values()) ** 2
    batch = None
    if known is not None:
        # Two samples' sums of squares, joined: Chan, Golub and LeVeque 1979, formula 2.1.
        old, all_of = known.observations, known.observations + count
        old_squares = old * ((known.spread or 0.0) * known.steps_per_s) ** 2
        apart = mean - known.steps_per_s
        mean = known.steps_per_s + apart * count / all_of
        squares += old_squares + apart**2 * old * count / all_of
        count, batch = all_of, known.batch
    return Speed(
        shape=place[0],
        steps_per_s=_rounded(mean),
        gpu_type=place[1],
        observations=count,
        spread=_rounded(math.sqrt(squares / count) / mean) if count > 1 else None,
        batch=batch,
        origin="measured",
    )


def _checkpoint(known: CheckpointCost, found: Mapping[Place, Votes]) -> CheckpointCost:
    sizes_mb, saves_s = found.get("size_mb"), found.get("save_s")
    size_mb = _rounded(median_vote(sizes_mb)) if sizes_mb else known.size_mb
    if not saves_s:
        return replace(known, size_mb=size_mb)
    save_s, count = median_vote(saves_s), _weight(saves_s)
    if known.save_s is not None and known.observations:
        total = known.observations + count
        save_s = (known.save_s * known.observations + save_s * count) / total
        count = total
    return replace(known, size_mb=size_mb, save_s=_rounded(save_s), observations=count)


def median_vote(by_owner: Votes) -> float:
    """The figure: the median over the owners of each one's median."""
    return _middle(by_owner.values())


def _middle(owners: Iterable[Sequence[float]]) -> float:
    return statistics.median(map(statistics.median, owners))


def _weight(by_owner: Votes) -> int:
    return round(len(by_owner) * statistics.median(map(len, by_owner.values())))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
