"""What runs have shown, joined with what a profile says already."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from slurm_dl.model.profile import CheckpointCost, Profile, Speed
from slurm_dl.profiles.run_reports import Measured, Reports

_DIGITS = 6


def learned(profile: Profile, reports: Sequence[Reports], *, gpu_type: str = "") -> Profile:
    """*profile* with the speeds and checkpoints of *reports* in it.

    Measured figures are joined by the number of runs behind them: the mean of all, and their
    standard deviation. What was published, computed or declared for a shape gives way to what was
    measured here.

    Args:
        gpu_type: GPUs of all these runs; empty: what each run knows itself.
    """
    by_place: dict[tuple[object, str], list[Measured]] = {}
    for one in (speed for report in reports for speed in report.speeds):
        by_place.setdefault((one.shape, gpu_type or one.gpu_type), []).append(one)
    speeds = {(s.shape, s.gpu_type): s for s in profile.speeds}
    for (_, kind), ones in by_place.items():
        rates = [one.steps_per_s for one in ones]
        place = (ones[0].shape, kind)
        known = speeds.get(place)
        is_ours = known is not None and known.origin == "measured" and known.observations > 0
        speeds[place] = _joined(ones[0], kind, rates, known if is_ours else None)
    return replace(
        profile,
        speeds=tuple(
            sorted(speeds.values(), key=lambda s: (s.gpu_type, s.shape.gpus, s.shape.nodes))
        ),
        checkpoint=_checkpoint(profile.checkpoint, reports),
    )


def _joined(one: Measured, kind: str, rates: Sequence[float], known: Speed | None) -> Speed:
    count, mean = len(rates), statistics.fmean(rates)
    squares = math.fsum((rate - mean) ** 2 for rate in rates)
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
        shape=one.shape,
        steps_per_s=_rounded(mean),
        gpu_type=kind,
        observations=count,
        spread=_rounded(math.sqrt(squares / count) / mean) if count > 1 else None,
        batch=batch,
        origin="measured",
    )


def _checkpoint(known: CheckpointCost, reports: Sequence[Reports]) -> CheckpointCost:
    sizes_mb = [size for report in reports for size in report.sizes_mb]
    saves_s = [save for report in reports for save in report.saves_s]
    size_mb = _rounded(statistics.median(sizes_mb)) if sizes_mb else known.size_mb
    if not saves_s:
        return replace(known, size_mb=size_mb)
    save_s, count = statistics.fmean(saves_s), len(saves_s)
    if known.save_s is not None and known.observations:
        total = known.observations + count
        save_s = (known.save_s * known.observations + save_s * count) / total
        count = total
    return replace(known, size_mb=size_mb, save_s=_rounded(save_s), observations=count)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
