"""The report as data: what was wished, whom it would have helped and hurt, what is not known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_dl.json_types import Json, JsonObject
from slurm_dl.shadow.counterfactual import Simulated, size_of, size_rank
from slurm_dl.shadow.records import UNSEEN, EndedJobRecord, Lookout, WishedHandover, WishedVictim
from slurm_dl.shadow.segment_store import Kept

_GPU_H: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """GPU-hours that preemption would have cost, as bounds; each run counts once.

    Attributes:
        runs: Runs that would have been stopped.
        gpus: GPUs of all of them.
        if_saved_gpu_h: At most so many, if each saves when it is asked, as it has declared: its
            GPUs for its whole grace and for the restart.
        if_not_gpu_h: At most so many, if none saves: all its run so far as well.
    """

    runs: int
    gpus: float
    if_saved_gpu_h: float
    if_not_gpu_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """Who would have been touched in one group, as observed.

    Attributes:
        sooner: Wishes whose job would have started sooner.
        sooner_s: Seconds their jobs went on waiting after the wish and its victims' longest grace,
            together; up to the end of the record for those that still wait.
        stopped: Runs that would have been stopped.
        if_saved_gpu_h: As in `Loss`.
    """

    group: str
    sooner: int
    sooner_s: float
    stopped: int
    if_saved_gpu_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it.

    Attributes:
        from_s, to_s: The time that was asked for and is there, epoch seconds.
        covered_s: Seconds of it in which somebody looked.
        looks, missed, bad: Looks; looks and lines that were missed; lines that were unreadable.
        policies, modes: What was in force, in the order of time.
        gpus: GPUs at the last look.
        busy_share: Of them held, mean over time.
        compared, first_other, others: As in `Lookout`, over all looks.
        most_wishes: Most hand-overs in one plan.
        tripped: Looks in which a circuit breaker would have stopped preemption.
        ended: Jobs whose end was seen.
        wishes: In the order of time.
        loss: Of all wishes.
        touched: By ``user``, ``account`` and ``size``.
        simulated: None if it was left out; *why_not* says why.
    """

    from_s: float
    to_s: float
    covered_s: float
    looks: int
    missed: int
    bad: int
    policies: tuple[str, ...]
    modes: tuple[str, ...]
    gpus: float
    busy_share: float
    compared: int
    first_other: int
    others: float
    most_wishes: int
    tripped: int
    ended: int
    wishes: tuple[WishedHandover, ...]
    loss: Loss
    restart_s: float
    touched: Mapping[str, tuple[Touched, ...]]
    simulated: Simulated | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Period:
    """What was kept, cut to one time.

    Attributes:
        begin_s, end_s: First and last look in it, epoch seconds.
    """

    begin_s: float
    end_s: float
    lookouts: tuple[Lookout, ...]
    wishes: tuple[WishedHandover, ...]
    ended: tuple[EndedJobRecord, ...]


def period_of(kept: Kept, since_s: float) -> Period | None:
    """What of *kept* is since *since_s*, epoch seconds; None if nobody looked then."""
    lookouts = tuple(
        sorted(
            (o for o in kept.lines if isinstance(o, Lookout) and o.to_s >= since_s),
            key=lambda o: o.from_s,
        )
    )
    if not lookouts:
        return None
    begin_s = max(since_s, lookouts[0].from_s)
    end_s = max(o.to_s for o in lookouts)
    wishes = [w for w in kept.lines if isinstance(w, WishedHandover) and _until_s(w) >= begin_s]
    # Wishes and ends are said at once, looks minute by minute.
    end_s = max([end_s, *(w.last_s for w in wishes)])
    ended = (j for j in kept.lines if isinstance(j, EndedJobRecord) and j.end_s >= begin_s)
    by_time = sorted(wishes, key=lambda w: (w.begin_s, w.key))
    return Period(begin_s, end_s, lookouts, tuple(by_time), tuple(ended))


def _until_s(wish: WishedHandover) -> float:
    """When it was last known to be open, epoch seconds; inf if it still is."""
    return max(wish.last_s, wish.started_s) if wish.end else math.inf


def report_of(
    period: Period, *, bad: int, restart_s: float, name_of: Callable[[int], str]
) -> Report:
    """The report of what was observed.

    Args:
        bad: Lines that could not be read.
        restart_s: What starting a stopped job again is taken to cost, seconds.
        name_of: A user's name by uid.
    """
    looks = sum(o.looks for o in period.lookouts)
    compared = sum(o.compared for o in period.lookouts)
    last = period.lookouts[-1]
    busy = [(o.held / o.gpus, o.looks) for o in period.lookouts if o.gpus > 0]
    return Report(
        from_s=period.begin_s,
        to_s=period.end_s,
        covered_s=covered_s(period.lookouts, period.begin_s),
        looks=looks,
        missed=sum(o.missed for o in period.lookouts),
        bad=bad,
        policies=tuple(dict.fromkeys(o.policy for o in period.lookouts)),
        modes=tuple(dict.fromkeys(o.mode for o in period.lookouts)),
        gpus=last.gpus,
        busy_share=sum(s * n for s, n in busy) / max(1, sum(n for _, n in busy)),
        compared=compared,
        first_other=sum(o.first_other for o in period.lookouts),
        others=sum(o.others * o.compared for o in period.lookouts) / max(1, compared),
        most_wishes=max(o.wishes for o in period.lookouts),
        tripped=sum(o.tripped for o in period.lookouts),
        ended=len(period.ended),
        wishes=period.wishes,
        loss=loss_of(period.wishes, restart_s),
        restart_s=restart_s,
        touched=touched(period.wishes, restart_s, period.end_s, name_of),
    )


NEIGHBOURS_S: Final = 300.0
"""Look-outs that are no further apart have nothing missing between them."""


def covered_s(lookouts: Sequence[Lookout], begin_s: float) -> float:
    """Seconds in which somebody looked, from *begin_s* on; short gaps between looks count."""
    total, until = 0.0, begin_s
    for lookout in lookouts:
        from_s = until if lookout.from_s - until <= NEIGHBOURS_S else lookout.from_s
        total += max(0.0, lookout.to_s - max(from_s, until))
        until = max(until, lookout.to_s)
    return total


def runs_of(wishes: Iterable[WishedHandover]) -> list[WishedVictim]:
    """Each run that would have been stopped once, as it was when it was first wished for."""
    once: dict[tuple[int, int], WishedVictim] = {}
    for wish in wishes:
        for victim in wish.victims:
            once.setdefault((victim.job_id, victim.restarts), victim)
    return list(once.values())


def loss_of(wishes: Iterable[WishedHandover], restart_s: float) -> Loss:
    """What stopping the runs of *wishes* would have cost."""
    runs = runs_of(wishes)
    saved = sum(v.gpus * (v.grace_s + restart_s) for v in runs) / _GPU_H
    return Loss(
        runs=len(runs),
        gpus=sum(v.gpus for v in runs),
        if_saved_gpu_h=saved,
        if_not_gpu_h=saved + sum(v.gpus * v.ran_s for v in runs) / _GPU_H,
    )


def sooner_s(wish: WishedHandover, end_s: float) -> float:
    """How much sooner its job would have started at least, had nothing else been different.

    Seconds; up to *end_s* if it had not started by then, to the last look that wished it if nobody
    saw what became of it, 0 for one that went without a start.
    """
    if not wish.lead or wish.end == "gone":
        return 0.0
    until_s = {"started": wish.started_s, UNSEEN: wish.last_s}.get(wish.end, end_s)
    grace_s = max((v.grace_s for v in wish.victims), default=0.0)
    return max(0.0, until_s - wish.begin_s - grace_s)


def touched(
    wishes: Sequence[WishedHandover], restart_s: float, end_s: float, name_of: Callable[[int], str]
) -> dict[str, tuple[Touched, ...]]:
    """Who would have been touched, by user, account and size."""

    def groups(
        lead: Callable[[WishedHandover], str], victim: Callable[[WishedVictim], str]
    ) -> tuple[Touched, ...]:
        found: dict[str, Touched] = {}

        def of(group: str) -> Touched:
            none = Touched(group=group, sooner=0, sooner_s=0, stopped=0, if_saved_gpu_h=0)
            return found.get(group, none)

        for wish in wishes:
            gain_s = sooner_s(wish, end_s)
            if gain_s > 0:
                before = of(lead(wish))
                found[before.group] = dataclasses.replace(
                    before, sooner=before.sooner + 1, sooner_s=before.sooner_s + gain_s
                )
        for run in runs_of(wishes):
            before = of(victim(run))
            cost = run.gpus * (run.grace_s + restart_s) / _GPU_H
            found[before.group] = dataclasses.replace(
                before, stopped=before.stopped + 1, if_saved_gpu_h=before.if_saved_gpu_h + cost
            )
        order = sorted(found.values(), key=lambda t: (-t.sooner - t.stopped, t.group))
        return tuple(order)

    sizes = groups(lambda w: size_of(w.lead_gpus), lambda v: size_of(v.gpus))
    return {
        "user": groups(lambda w: name_of(w.lead_uid), lambda v: name_of(v.uid)),
        "account": groups(lambda w: w.lead_account or "-", lambda v: v.account or "-"),
        "size": tuple(sorted(sizes, key=lambda t: size_rank(t.group))),
    }


def as_json(report: Report) -> JsonObject:
    """The report for ``--json``; what is not known is null."""
    plain = _plain(dataclasses.asdict(report))
    assert isinstance(plain, dict)  # noqa: S101 - narrows the type
    return plain


def _plain(value: object) -> Json:
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float():
            return round(value, 3) if math.isfinite(value) else None
        case bool() | int() | str() | None:
            return value
        case _:
            raise TypeError(type(value))
