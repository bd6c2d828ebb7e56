"""What a job wrote of its speed and checkpoints into its run directory, joined with its profile.

Users own those directories and may write anything there. Nothing is believed that is not of the
right type and plausible, files are read up to a limit and never through a link, and no text of
theirs gets further than a name that is compared. Each owner has one vote in a figure, however many
runs there are, so fewer owners than half cannot move it out of the range of the others' figures.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from slurm_dl.model.profile import HINTS, NAME, CheckpointCost, Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.profiles.load_reports import LoadRun, read_loads
from slurm_dl.profiles.untrusted import entries, number, whole
from slurm_dl.text import escaped

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
_SLACK_S = 2.0  # Samples are a second apart, and so are the two files
_GPU_TYPE = r"[A-Za-z0-9._+-]{1,64}"


class Measured(NamedTuple):
    """The speed of one run."""

    shape: Shape  # What it lay on
    gpu_type: str  # As in its request; empty if that named none
    steps_per_s: float  # Median of its windows
    hints: str = ""  # Those that it was under; empty: none


@dataclass(frozen=True, slots=True)
class Reports:
    """What one run directory tells."""

    owner: int  # uid of the directory; what does not belong to it is not read
    speeds: tuple[Measured, ...]  # One for each run that told enough
    sizes_mb: tuple[float, ...]  # Sizes of its checkpoints, MB
    saves_s: tuple[float, ...]  # Seconds of its saves, of those that were timed
    remarks: tuple[str, ...]  # What was left out and why, for the admin
    loads: tuple[LoadRun, ...] = ()  # What its runs put on their GPUs, those of other models too


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
    loads = read_loads(directory, owner)
    for entry in entries(directory / SPEED_FILE, "runs", _MOST_RUNS, owner, remarks):
        run = (entry.get("restart"), entry.get("attempt"))
        load = next((load for load in loads if load.run == run), None)
        found, why = _measured(entry, names, load)
        if found is not None:
            speeds.append(found)
        else:
            remarks.append(f"{escaped(str(directory))}: a run is left out: {why}")
    sizes_mb, saves_s = [], []
    if speeds:
        path = directory / STATE_FILE
        for entry in entries(path, "checkpoints", _MOST_CHECKPOINTS, owner, remarks):
            size_b = number(entry.get("size_b"), *_SIZE_B)
            save_s = number(entry.get("save_s"), *_SAVE_S)
            sizes_mb += [] if size_b is None else [size_b / 2**20]
            saves_s += [] if save_s is None else [save_s]
    return Reports(owner, tuple(speeds), tuple(sizes_mb), tuple(saves_s), tuple(remarks), loads)


def is_named(model: object, names: Collection[str | None] | None) -> bool:
    """A run of *model* is one of those that *names* of `read_reports` means."""
    return names is None or (isinstance(model, str | None) and model in names)


def _measured(
    entry: Mapping[str, object], names: Collection[str | None] | None, load: LoadRun | None
) -> tuple[Measured | None, str]:
    """The run's speed, or why there is none.

    Args:
        load: Its samples, which tell when it was alone on its GPUs; None if there are none.
    """
    named = entry.get("model")
    if not is_named(named, names):
        if named is None:
            return None, "it names no model"
        spelled = isinstance(named, str) and re.fullmatch(NAME, named)
        return None, f"it is of model {named}" if spelled else "it is of another model"
    nodes, gpus = whole(entry.get("nodes"), 10**5 - 1), whole(entry.get("gpus_per_node"), 9999)
    part_of_one = gpus is None and load is not None and (nodes, len(load.devices)) == (1, 1)
    if part_of_one:
        # It has a part of a GPU, and all of it while it is alone there.
        gpus = 1
    if nodes is None or gpus is None:
        return None, "it does not know its nodes and GPUs"
    rates = []
    for steps, seconds, end_s in _windows(entry.get("windows")):
        if load is not None and _is_beside(load, (end_s - seconds, end_s), certain=part_of_one):
            continue
        rate = steps / seconds
        rates += [] if number(rate, *_STEPS_PER_S) is None else [rate]
    # The first one has the warm-up in it.
    rates = rates[1:]
    if len(rates) < LEAST_WINDOWS:
        told = "windows alone" if part_of_one else "windows"
        return None, f"it is too short (needs {LEAST_WINDOWS + 1} {told} of a second or more)"
    kind = entry.get("gpu_type")
    known = isinstance(kind, str) and re.fullmatch(_GPU_TYPE, kind)
    hints = entry.get("hints", "")
    if not isinstance(hints, str) or not re.fullmatch(HINTS, hints):
        return None, "its hints cannot be read"
    shape, gpu_type = Shape(nodes, gpus), str(kind) if known else ""
    return Measured(shape, gpu_type, statistics.median(rates), hints), ""


def _windows(listed: object) -> Iterator[tuple[int, float, float]]:
    """Steps, seconds and end of each window; earlier releases wrote no end: minus infinity."""
    for window in listed[:_MOST_WINDOWS] if isinstance(listed, list) else ():
        if not isinstance(window, list) or len(window) not in {2, 3}:
            continue
        steps, seconds = whole(window[0], 10**9), number(window[1], 1e-3, 1e7)
        end_s = number(window[2], 0.0, 2.0**40) if window[2:] else -math.inf
        if steps is not None and seconds is not None and end_s is not None:
            yield steps, seconds, end_s


def _is_beside(load: LoadRun, span: tuple[float, float], *, certain: bool) -> bool:
    """Another job was on the GPUs in *span*, or may have been, if it has to be *certain*."""
    start_s, end_s = load.known
    unknown = span[0] < start_s - _SLACK_S or span[1] > end_s + _SLACK_S
    return load.is_shared(span) or (certain and unknown)


_DIGITS = 6

Place = tuple[Shape, str, str] | Literal["size_mb", "save_s"]
"""A figure: the speed in a shape on a GPU type under some hints, or a field of `CheckpointCost`."""

Votes = Mapping[int, Sequence[float]]  # What was measured, by the owner's uid


def votes(reports: Iterable[Reports], *, gpu_type: str = "") -> dict[Place, Votes]:
    """What the owners' runs in *reports* say of each figure.

    Args:
        gpu_type: GPUs of all these runs; empty: what each run knows itself.
    """
    found: dict[Place, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for report in reports:
        for one in report.speeds:
            found[one.shape, gpu_type or one.gpu_type, one.hints][report.owner].append(
                one.steps_per_s
            )
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
    speeds = {(s.shape, s.gpu_type, s.hints): s for s in (*profile.speeds, *profile.hinted)}
    for place, by_owner in found.items():
        if isinstance(place, tuple):
            known = speeds.get(place)
            is_ours = known is not None and known.origin == "measured" and known.observations > 0
            speeds[place] = _joined(place, by_owner, known if is_ours else None)
    order = sorted(
        speeds.values(), key=lambda s: (s.hints, s.gpu_type, s.shape.gpus, s.shape.nodes)
    )
    return replace(
        profile,
        speeds=tuple(speed for speed in order if not speed.hints),
        hinted=tuple(speed for speed in order if speed.hints),
        checkpoint=_checkpoint(profile.checkpoint, found),
    )


def _joined(place: tuple[Shape, str, str], by_owner: Votes, known: Speed | None) -> Speed:
    count, mean = weight(by_owner), median_vote(by_owner)
    squares = count * _middle([abs(rate - mean) for rate in own] for own in by_owner.values()) ** 2
    batch = None
    if known is not None:
        # Two samples' sums of squares, joined: Chan, Golub and LeVeque 1979, formula 2.1.
        old, all_of = known.observations, known.observations + count
        old_squares = old * ((known.spread or 0.0) * known.steps_per_s) ** 2
        apart = mean - known.steps_per_s
        mean = joined_mean(known.steps_per_s, old, mean, count)
        squares += old_squares + apart**2 * old * count / all_of
        count, batch = all_of, known.batch
    return Speed(
        shape=place[0],
        steps_per_s=rounded(mean),
        gpu_type=place[1],
        hints=place[2],
        observations=count,
        spread=rounded(math.sqrt(squares / count) / mean) if count > 1 else None,
        batch=batch,
        origin="measured",
    )


def _checkpoint(known: CheckpointCost, found: Mapping[Place, Votes]) -> CheckpointCost:
    sizes_mb, saves_s = found.get("size_mb"), found.get("save_s")
    size_mb = rounded(median_vote(sizes_mb)) if sizes_mb else known.size_mb
    if not saves_s:
        return replace(known, size_mb=size_mb)
    save_s, count = median_vote(saves_s), weight(saves_s)
    if known.save_s is not None and known.observations:
        save_s = joined_mean(known.save_s, known.observations, save_s, count)
        count += known.observations
    return replace(known, size_mb=size_mb, save_s=rounded(save_s), observations=count)


def joined_mean(old: float, old_count: int, new: float, new_count: int) -> float:
    """Mean of two samples: Chan, Golub and LeVeque 1979, formula 2.1b."""
    return old + (new - old) * new_count / (old_count + new_count)


def median_vote(by_owner: Votes) -> float:
    """The figure: the median over the owners of each one's median."""
    return _middle(by_owner.values())


def _middle(owners: Iterable[Sequence[float]]) -> float:
    return statistics.median(map(statistics.median, owners))


def weight(by_owner: Votes) -> int:
    """Runs that the figure counts for: as many for each owner as the median owner has."""
    return round(len(by_owner) * statistics.median(map(len, by_owner.values())))


def rounded(value: float) -> float:
    """*value* as it is written."""
    return float(f"{value:.{_DIGITS}g}")
