"""A model's load and its speed beside other models, of what dlrun sampled in its runs.

Each owner of run directories has one vote in a figure, as in that of a speed. A figure needs two
owners or three runs: one run may have been of another kind than the rest. What is refused as too
far off is for the caller to say, who has the votes.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from slurm_dl.model.profile import Beside, Load, Pair, Profile
from slurm_dl.model.shape import Shape
from slurm_dl.profiles.load_reports import LEAST_RATES, LEAST_WINDOWS, LoadRun, Span
from slurm_dl.profiles.run_reports import (
    Votes,
    is_named,
    joined_mean,
    median_vote,
    rounded,
    weight,
)

Figure = Literal["gpu_util", "memory_util", "sm_active", "gpu_mem_mb", "gpu_mem_kept_mb"]
"""Fields of `Load` that runs tell."""

_SHARES: Mapping[Figure, str] = {
    "gpu_util": "busy",
    "memory_util": "memory_busy",
    "sm_active": "sm_active",
}
"""Those that are shares, and which fields of a `LoadWindow` they are of."""
_ENOUGH_OWNERS, _ENOUGH_RUNS = 2, 3
_MOST_RATE = 2.0  # As `Beside` has it
_MOST_ON_DEVICE = 256  # Each of them is compared with each

_K = TypeVar("_K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Votes of runs on a model; figures with too few of them are left out."""

    gpu_type: str  # GPUs that the figures of its load are of
    load: Mapping[Figure, Votes]
    beside: Mapping[Pair, Votes]


def find(
    runs: Sequence[LoadRun],
    profile: Profile,
    *,
    names: Collection[str | None] | None,
    gpu_type: str = "",
    canonical: Callable[[str], str] = str,
) -> Found:
    """Votes of *runs* on the model of *profile*, but for those under hints.

    Args:
        runs: Its own, and those of models that it may have lain beside.
        names: As of `read_reports`: which of them are its own.
        gpu_type: GPUs of all these runs; empty: what each run knows itself.
        canonical: The name that is written for another model's.
    """
    typed = [replace(run, gpu_type=gpu_type or run.gpu_type) for run in runs if run.plain]
    own = [run for run in typed if is_named(run.model, names)]
    kind = _kind(own, profile.load)
    load: dict[Figure, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in own:
        for figure, value in _of_run(run).items() if run.gpu_type == kind else ():
            load[figure][run.owner].append(value)
    return Found(
        gpu_type=kind, load=_enough(load), beside=_enough(_pairs(own, typed, profile, canonical))
    )


def _kind(runs: Iterable[LoadRun], known: Load) -> str:
    """The GPU type of most owners of *runs*, or of *known* if it is measured and some are of it."""
    kinds = Counter(kind for _, kind in {(r.owner, r.gpu_type) for r in runs if _of_run(r)})
    if known.observations and known.gpu_type in kinds:
        return known.gpu_type
    return max(kinds, key=lambda kind: (kinds[kind], kind), default="")


def _of_run(run: LoadRun) -> dict[Figure, float]:
    """The run's figures: medians over its windows alone, and the most memory of all windows.

    Windows in which it had no memory on the GPU are left out: it did something else.
    """
    alone = [window for window in run.windows if window.alone and window.own_mb != 0]
    if len(alone) < LEAST_WINDOWS:
        return {}
    found: dict[Figure, float] = {}
    for figure, name in _SHARES.items():
        if known := [share for w in alone if (share := getattr(w, name)) is not None]:
            found[figure] = statistics.median(known)
    memory_mb = [w.own_mb for w in run.windows if w.own_mb is not None]
    if len(memory_mb) >= LEAST_WINDOWS:
        found["gpu_mem_mb"] = max(memory_mb)
        if run.inside_mb is not None:
            # Libraries and the caching allocator's reserve stay as well, which no script can see.
            found["gpu_mem_kept_mb"] = max(0.0, max(memory_mb) - run.inside_mb)
    return found


def _pairs(
    own: Sequence[LoadRun],
    runs: Sequence[LoadRun],
    profile: Profile,
    canonical: Callable[[str], str],
) -> Mapping[Pair, Votes]:
    """Relative speeds of *own* runs beside each of *runs* that lay on one of their GPUs."""
    on: dict[tuple[str, str], list[LoadRun]] = defaultdict(list)
    for run in runs:
        if run.model is not None:
            for device in run.devices:
                if len(on[run.node, device]) < _MOST_ON_DEVICE:
                    on[run.node, device].append(run)
    found: dict[Pair, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in own:
        # Of a job with several GPUs it is not known how much each of them slowed it down.
        where = [(run.node, device) for device in run.devices if run.node and run.nodes == 1]
        speed = profile.speed(Shape(1, 1), run.gpu_type)
        alone = run.alone_rate() or (None if speed is None else speed.steps_per_s)
        if len(where) != 1 or alone is None:
            continue
        # The run has one vote on each pair, however many runs its neighbour had meanwhile.
        for other, rates in _rates_beside(run, on[where[0]], canonical).items():
            if (rate := statistics.median(rates) / alone) <= _MOST_RATE:
                found[Pair(other, run.mode, run.gpu_type)][run.owner].append(rate)
    return found


def _rates_beside(
    run: LoadRun, partners: Sequence[LoadRun], canonical: Callable[[str], str]
) -> Mapping[str, Sequence[float]]:
    """Median steps a second of *run* beside each run of *partners*, by the other model."""
    found: dict[str, list[float]] = defaultdict(list)
    for partner in partners:
        is_other = partner.place != run.place and partner.devices == run.devices
        if not is_other or partner.mode != run.mode:
            continue
        rates = _rates_within(run, partner.shared)
        if min(len(rates), len(_rates_within(partner, run.shared))) >= LEAST_RATES:
            found[canonical(partner.model or "")].append(statistics.median(rates))
    return found


def _rates_within(run: LoadRun, spans: Sequence[Span]) -> list[float]:
    """Steps a second of the run's shared windows that lie within one of *spans*, in order."""
    found = []
    for window in run.windows:
        if not window.alone and window.rate is not None:
            at = bisect_right(spans, window.span[0], key=lambda span: span[0]) - 1
            if at >= 0 and window.span[1] <= spans[at][1]:
                found.append(window.rate)
    return found


def _enough(found: Mapping[_K, Mapping[int, Sequence[float]]]) -> dict[_K, Votes]:
    return {
        key: dict(by_owner)
        for key, by_owner in found.items()
        if len(by_owner) >= _ENOUGH_OWNERS or sum(map(len, by_owner.values())) >= _ENOUGH_RUNS
    }


def with_load(known: Load, found: Found) -> Load:
    """*known* with what was found: shares joined by number of runs, of memory the larger.

    What was not measured here, or on other GPUs, gives way.
    """
    votes = found.load
    if not votes:
        return known
    counts = known.observations if known.gpu_type == found.gpu_type else 0
    new = max(map(weight, votes.values()))
    values: dict[str, Any] = {}
    for figure, by_owner in votes.items():
        was, now = getattr(known, figure), median_vote(by_owner)
        if was is not None and figure not in _SHARES and known.observations:
            now = max(was, now)
        elif was is not None and counts:
            now = joined_mean(was, counts, now, weight(by_owner))
        values[figure] = rounded(now)
    after = replace(known, **values, gpu_type=found.gpu_type, observations=counts + new)
    if after.gpu_mem_mb is None or after.gpu_mem_kept_mb is None:
        return after
    return replace(after, gpu_mem_kept_mb=min(after.gpu_mem_kept_mb, after.gpu_mem_mb))


def with_pairs(known: Sequence[Beside], found: Mapping[Pair, Votes]) -> tuple[Beside, ...]:
    """*known* with the pairs of *found*; measured ones are joined by number of runs."""
    beside = {one.pair: one for one in known}
    for pair, by_owner in found.items():
        was, rate, count = beside.get(pair), median_vote(by_owner), weight(by_owner)
        if was is not None:
            rate = joined_mean(was.rate, was.observations, rate, count)
            count += was.observations
        beside[pair] = Beside(
            rate=rounded(rate), observations=count, origin="measured", **pair._asdict()
        )
    return tuple(beside.values())
