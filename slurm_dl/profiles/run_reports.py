"""What a job wrote of its speed and checkpoints into its run directory, joined with its profile.

Users own those directories and may write anything there. Nothing is believed that is not of the
right type and plausible, files are read up to a limit and never through a link, and no text of
theirs gets further than a name that is compared. Each owner has one vote in a figure, however many
runs there are, so fewer owners than half cannot move it out of the range of the others' figures.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from slurm_dl.job.run_files import read_regular
from slurm_dl.model.profile import NAME, CheckpointCost, Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.text import escaped
from slurm_dl.yaml_places import LARGEST_BYTES

SPEED_FILE = "slurm_dl.speed.json"
STATE_FILE = "slurm_dl.state.json"
LEAST_WINDOWS = 3  # A run with fewer windows says nothing
_MOST_DIRECTORIES = 256
_MOST_RUNS = 64
_MOST_WINDOWS = 1024
_MOST_CHECKPOINTS = 64
_STEPS_PER_S = (1e-6, 1e6)
_SAVE_S = (1e-3, 86_400.0)
_SIZE_B = (1.0, 2.0**50)
_GPU_TYPE = r"[A-Za-z0-9._+-]{1,64}"


class Measured(NamedTuple):
    """The speed of one run."""

    shape: Shape  # What it lay on
    gpu_type: str  # As in its request; empty if that named none
    steps_per_s: float  # Median of its windows


@dataclass(frozen=True, slots=True)
class Reports:
    """What one run directory tells."""

    owner: int  # uid of the directory; what does not belong to it is not read
    speeds: tuple[Measured, ...]  # One for each run that told enough
    sizes_mb: tuple[float, ...]  # Sizes of its checkpoints, MB
    saves_s: tuple[float, ...]  # Seconds of its saves, of those that were timed
    remarks: tuple[str, ...]  # What was left out and why, for the admin


def read_reports(
    directory: Path, names: Collection[str | None] | None, read: Counter[int] | None = None
) -> Reports:
    """What *directory* tells of one model.

    Args:
        names: The model's name and aliases, None among them for runs that name none. A run that
            was submitted as another one is left out. None: all runs count.
        read: Directories read before, by owner; this one is added. Of one owner a limited number
            is read.
    """
    remarks: list[str] = []
    speeds = []
    try:
        owner = directory.stat().st_uid
    except OSError as err:
        return Reports(-1, (), (), (), (f"{escaped(str(directory))}: {err.strerror}",))
    if read is not None:
        read[owner] += 1
        if read[owner] > _MOST_DIRECTORIES:
            is_first = read[owner] == _MOST_DIRECTORIES + 1
            told = f"uid {owner}: only its first {_MOST_DIRECTORIES} run directories are read"
            return Reports(owner, (), (), (), (told,) if is_first else ())
    for entry in _entries(directory / SPEED_FILE, "runs", _MOST_RUNS, owner, remarks):
        found, why = _measured(entry, names)
        if found is not None:
            speeds.append(found)
        else:
            remarks.append(f"{escaped(str(directory))}: a run is left out: {why}")
    sizes_mb, saves_s = [], []
    if speeds:
        path = directory / STATE_FILE
        for entry in _entries(path, "checkpoints", _MOST_CHECKPOINTS, owner, remarks):
            size_b = _number(entry.get("size_b"), *_SIZE_B)
            save_s = _number(entry.get("save_s"), *_SAVE_S)
            sizes_mb += [] if size_b is None else [size_b / 2**20]
            saves_s += [] if save_s is None else [save_s]
    return Reports(owner, tuple(speeds), tuple(sizes_mb), tuple(saves_s), tuple(remarks))


def _measured(
    entry: Mapping[str, object], names: Collection[str | None] | None
) -> tuple[Measured | None, str]:
    """The run's speed, or why there is none."""
    named = entry.get("model")
    if names is not None and not (isinstance(named, str | None) and named in names):
        if named is None:
            return None, "it names no model"
        spelled = isinstance(named, str) and re.fullmatch(NAME, named)
        return None, f"it is of model {named}" if spelled else "it is of another model"
    nodes, gpus = _whole(entry.get("nodes"), 10**5 - 1), _whole(entry.get("gpus_per_node"), 9999)
    if nodes is None or gpus is None:
        return None, "it does not know its nodes and GPUs"
    windows = entry.get("windows")
    rates = []
    for window in windows[:_MOST_WINDOWS] if isinstance(windows, list) else ():
        if not isinstance(window, list) or len(window) != len(("steps", "seconds")):
            continue
        steps, seconds = _whole(window[0], 10**9), _number(window[1], 1e-3, 1e7)
        rate = None if steps is None or seconds is None else steps / seconds
        rates += [] if rate is None or _number(rate, *_STEPS_PER_S) is None else [rate]
    # The first one has the warm-up in it.
    rates = rates[1:]
    if len(rates) < LEAST_WINDOWS:
        return None, f"it is too short (needs {LEAST_WINDOWS + 1} windows of a second or more)"
    kind = entry.get("gpu_type")
    known = isinstance(kind, str) and re.fullmatch(_GPU_TYPE, kind)
    return Measured(Shape(nodes, gpus), str(kind) if known else "", statistics.median(rates)), ""


def _entries(
    path: Path, key: str, most: int, owner: int, remarks: list[str]
) -> list[Mapping[str, object]]:
    try:
        content = _content(path, owner)
    except FileNotFoundError:
        remarks.append(f"{escaped(str(path))}: is not there")
        return []
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) else "is no JSON object of its owner"
        remarks.append(f"{escaped(str(path))}: {reason}")
        return []
    entries = content.get(key)
    return [e for e in entries[:most] if isinstance(e, dict)] if isinstance(entries, list) else []


def _content(path: Path, owner: int) -> dict[str, object]:
    text = read_regular(path, largest_bytes=LARGEST_BYTES, owner=owner)
    try:
        content: object = json.loads(text)
    except RecursionError:
        content = None
    if not isinstance(content, dict):
        msg = "no JSON object"
        raise ValueError(msg)  # noqa: TRY004 - one error for every unreadable content
    return content


def _whole(value: object, most: int) -> int | None:
    ok = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
    return value if ok and isinstance(value, int) else None


def _number(value: object, least: float, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared before it is converted: a whole number may be too large for a float.
    if not (least <= value <= most):
        return None
    return float(value) if math.isfinite(value) else None


_DIGITS = 6

Place = tuple[Shape, str] | Literal["size_mb", "save_s"]
"""A figure: the speed in a shape on a GPU type, or a field of `CheckpointCost`."""

Votes = Mapping[int, Sequence[float]]  # What was measured, by the owner's uid


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
