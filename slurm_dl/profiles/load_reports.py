"""Samples of a job's GPUs from its run directory, where users may write anything."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from slurm_dl.model.profile import NAME, SharingMode
from slurm_dl.profiles.untrusted import entries, number, whole

LOAD_FILE = "slurm_dl.load.json"
LEAST_WINDOWS = 2  # Of the load: a run with fewer windows alone says nothing
LEAST_RATES = 3  # Of the speed, alone or beside another job
KEPT_SPANS = 64  # As dlrun keeps them
_MOST_RUNS = 16  # As dlrun keeps them
_MOST_WINDOWS = 64  # Likewise
_MOST_DEVICES = 64
_MOST_RESTARTS = 2**31 - 1
_LATEST_S = 2.0**40
_LONGEST_S = 1e5
_MOST_MB = 2.0**24
_RATE = (1e-6, 1e6)
_WORD = r"[A-Za-z0-9._-]{1,255}"  # A node, a GPU's UUID, a GPU type: compared alone
_MODES: tuple[SharingMode, ...] = get_args(SharingMode)

Span = tuple[float, float]  # From and to, seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWindow:
    """Half a minute of a run; None for what is not known."""

    span: Span
    alone: bool  # No other job was on its GPUs
    busy: float | None  # Share of the time, 0 to 1
    memory_busy: float | None  # Likewise
    sm_active: float | None  # Likewise
    own_mb: float | None  # Its memory on the fullest GPU, MB
    rate: float | None  # Steps a second


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """One run of a job."""

    place: Path  # Its run directory
    owner: int  # uid of that
    run: tuple[int, int]  # Restart and attempt
    model: str | None  # As the job was submitted; None if it names none
    gpu_type: str  # As in its request; empty if that named none
    node: str  # The first of its nodes; empty if unknown
    nodes: int | None
    devices: frozenset[str]  # UUIDs of its GPUs there
    mode: SharingMode
    inside_mb: float | None  # Memory of the peak that is free between steps, MB, by the script
    shared: tuple[Span, ...]  # When another job was on them, in order
    windows: tuple[LoadWindow, ...]  # In order
    plain: bool = True  # It was under no hints

    @property
    def known(self) -> Span:
        """Time in which it is known whether it was alone; empty if there is none."""
        if not self.windows:
            return (0.0, 0.0)
        is_cut = len(self.shared) >= KEPT_SPANS
        start_s = self.shared[0][0] if is_cut else self.windows[0].span[0]
        return (start_s, self.windows[-1].span[1])

    def is_shared(self, span: Span) -> bool:
        """Another job was there at some time of *span*."""
        return any(start < span[1] and end > span[0] for start, end in self.shared)

    def alone_rate(self) -> float | None:
        """Median steps a second alone, but for the first window; None if there are too few."""
        rates = [w.rate for w in self.windows[1:] if w.alone and w.rate is not None]
        return statistics.median(rates) if len(rates) >= LEAST_RATES else None


def read_loads(directory: Path, owner: int) -> tuple[LoadRun, ...]:
    """Runs in *directory*, which belongs to *owner*; what is not plausible is left out."""
    listed = entries(directory / LOAD_FILE, "runs", _MOST_RUNS, owner, None)
    found = [_run(entry, directory, owner) for entry in listed]
    return tuple(run for run in found if run is not None)


def _run(entry: Mapping[str, object], place: Path, owner: int) -> LoadRun | None:
    restart = whole(entry.get("restart"), _MOST_RESTARTS, least=0)
    attempt = whole(entry.get("attempt"), _MOST_RESTARTS, least=0)
    devices, device_mb = entry.get("devices"), number(entry.get("device_mb"), 1.0, _MOST_MB)
    mode = next((mode for mode in _MODES if mode == entry.get("mode")), None)
    if restart is None or attempt is None or device_mb is None or mode is None:
        return None
    if not isinstance(devices, list) or len(devices) > _MOST_DEVICES:
        return None
    memory_mb = _two(entry.get("memory_mb"), device_mb)
    spans = [_two(one, _LATEST_S) for one in _listed(entry.get("shared"), KEPT_SPANS)]
    windows = [_window(one, device_mb) for one in _listed(entry.get("windows"), _MOST_WINDOWS)]
    return LoadRun(
        place=place,
        owner=owner,
        run=(restart, attempt),
        model=_spelled(entry.get("model"), NAME) or None,
        gpu_type=_spelled(entry.get("gpu_type"), r"[A-Za-z0-9._+-]{1,64}"),
        plain=not entry.get("hints"),
        node=_spelled(entry.get("node"), _WORD),
        nodes=whole(entry.get("nodes"), 10**5 - 1),
        devices=frozenset(filter(None, (_spelled(device, _WORD) for device in devices))),
        mode=mode,
        inside_mb=None if memory_mb is None else max(0.0, memory_mb[1] - memory_mb[0]),
        shared=tuple(sorted(filter(None, spans))),
        windows=tuple(sorted(filter(None, windows), key=lambda window: window.span)),
    )


def _listed(value: object, most: int) -> list[object]:
    return value[:most] if isinstance(value, list) else []


def _spelled(value: object, pattern: str) -> str:
    return value if isinstance(value, str) and re.fullmatch(pattern, value) else ""


def _two(value: object, most: float) -> tuple[float, float] | None:
    """Two numbers from 0 to *most*."""
    pair = value if isinstance(value, list) and len(value) == 2 else (None, None)  # noqa: PLR2004
    one, other = (number(each, 0.0, most) for each in pair)
    return None if one is None or other is None else (one, other)


def _window(value: object, device_mb: float) -> LoadWindow | None:
    # Order and number as in slurm_dl.job.gpu_load.
    if not isinstance(value, list) or len(value) != 11:  # noqa: PLR2004
        return None
    start_s, seconds = number(value[0], 0.0, _LATEST_S), number(value[1], 1.0, _LONGEST_S)
    alone = value[2]
    if start_s is None or seconds is None or not isinstance(alone, bool):
        return None
    busy, memory_busy, sm_active = (number(one, 0.0, 1.0) for one in value[3:6])
    return LoadWindow(
        span=(start_s, start_s + seconds),
        alone=alone,
        busy=busy,
        memory_busy=memory_busy,
        sm_active=sm_active,
        own_mb=number(value[6], 0.0, device_mb),
        rate=number(value[10], *_RATE),
    )
