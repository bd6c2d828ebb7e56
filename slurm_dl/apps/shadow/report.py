"""The report as data: what was wished, whom it would have helped and hurt, what is not known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_dl.apps.shadow.counterfactual import Cast, Effects
from slurm_dl.apps.shadow.lines import EndedJob, Lookout, Wish, WishedVictim
from slurm_dl.apps.shadow.store import Kept
from slurm_dl.apps.wire import Json, JsonObject
from slurm_dl.model.jobs import F64, Bool

SIZES: Final = ((1, "1"), (4, "2-4"), (8, "5-8"), (16, "9-16"), (64, "17-64"))
LARGEST: Final = "65 and more"
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
class Balance:
    """What the simulator says about one group; *helped*, *hurt* and *same* are all its jobs.

    Attributes:
        plain_wait_s, policy_wait_s: Mean wait, seconds.
        plain_jct_s, policy_jct_s: Mean time from arrival to the end, seconds.
        worst_s: Seconds that the job that is hurt most ends later; 0 if none is.
    """

    group: str
    jobs: int
    helped: int
    hurt: int
    same: int
    plain_wait_s: float
    policy_wait_s: float
    plain_jct_s: float
    policy_jct_s: float
    worst_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The counterfactual.

    Attributes:
        total: All jobs whose end is known.
        by: Groups by ``user``, ``account`` and ``size``, the most jobs first; sizes by size.
        real_wait_s: Mean wait in reality of the jobs that came or waited; NaN if there is none.
        model_wait_s: The same jobs' mean wait under the simulated plain Slurm.
        preemptions: How often jobs were stopped.
        lost_gpu_h: GPU-hours without progress, more than under plain Slurm.
        open_ended, never_ran, unfit: See `Effects` and `Cast`.
    """

    total: Balance
    by: Mapping[str, tuple[Balance, ...]]
    real_wait_s: float
    model_wait_s: float
    preemptions: int
    lost_gpu_h: float
    open_ended: int
    never_ran: int
    unfit: int


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
    wishes: tuple[Wish, ...]
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
    wishes: tuple[Wish, ...]
    ended: tuple[EndedJob, ...]


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
    wishes = [w for w in kept.lines if isinstance(w, Wish) and w.last_s >= begin_s]
    # Wishes and ends are said at once, looks minute by minute.
    end_s = max([end_s, *(w.last_s for w in wishes)])
    ended = (j for j in kept.lines if isinstance(j, EndedJob) and j.end_s >= begin_s)
    by_time = sorted(wishes, key=lambda w: (w.begin_s, w.key))
    return Period(begin_s, end_s, lookouts, tuple(by_time), tuple(ended))


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


def runs_of(wishes: Iterable[Wish]) -> list[WishedVictim]:
    """Each run that would have been stopped once, as it was when it was first wished for."""
    once: dict[tuple[int, int], WishedVictim] = {}
    for wish in wishes:
        for victim in wish.victims:
            once.setdefault((victim.job_id, victim.restarts), victim)
    return list(once.values())


def loss_of(wishes: Iterable[Wish], restart_s: float) -> Loss:
    """What stopping the runs of *wishes* would have cost."""
    runs = runs_of(wishes)
    saved = sum(v.gpus * (v.grace_s + restart_s) for v in runs) / _GPU_H
    return Loss(
        runs=len(runs),
        gpus=sum(v.gpus for v in runs),
        if_saved_gpu_h=saved,
        if_not_gpu_h=saved + sum(v.gpus * v.ran_s for v in runs) / _GPU_H,
    )


def sooner_s(wish: Wish, end_s: float) -> float:
    """How much sooner its job would have started at least, had nothing else been different.

    Seconds; up to *end_s* if it had not started by then, 0 for one that went without a start.
    """
    if not wish.lead or wish.end == "gone":
        return 0.0
    until_s = wish.started_s if wish.end == "started" else end_s
    grace_s = max((v.grace_s for v in wish.victims), default=0.0)
    return max(0.0, until_s - wish.begin_s - grace_s)


def size_of(gpus: float) -> str:
    """The class of jobs that *gpus* belongs to."""
    return next((name for most, name in SIZES if gpus <= most), LARGEST)


def touched(
    wishes: Sequence[Wish], restart_s: float, end_s: float, name_of: Callable[[int], str]
) -> dict[str, tuple[Touched, ...]]:
    """Who would have been touched, by user, account and size."""

    def groups(
        lead: Callable[[Wish], str], victim: Callable[[WishedVictim], str]
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
        "size": tuple(sorted(sizes, key=lambda t: _size_rank(t.group))),
    }


def simulated_of(effects: Effects, cast: Cast, name_of: Callable[[int], str]) -> Simulated:
    """What the simulator says, by user, account and size."""
    players = effects.players
    everybody = np.ones(len(players), dtype=np.bool_)

    def by(group_of: Sequence[str]) -> list[Balance]:
        column = np.array(group_of, dtype=object)
        found = [_balance(effects, column == name, name) for name in dict.fromkeys(group_of)]
        return sorted(found, key=lambda b: (-b.jobs, b.group))

    sizes = by([size_of(p.gpus) for p in players])
    real = np.array([p.real_wait_s for p in players], dtype=np.float64)
    came = ~np.isnan(real)
    return Simulated(
        total=_balance(effects, everybody, "all"),
        by={
            "user": tuple(by([name_of(p.uid) for p in players])),
            "account": tuple(by([p.account or "-" for p in players])),
            "size": tuple(sorted(sizes, key=lambda b: _size_rank(b.group))),
        },
        real_wait_s=_mean(real[came]),
        model_wait_s=_mean(effects.plain_wait_s[came]),
        preemptions=effects.preemptions,
        lost_gpu_h=effects.lost_gpu_s / _GPU_H,
        open_ended=effects.open_ended,
        never_ran=cast.never_ran,
        unfit=cast.unfit,
    )


def _balance(effects: Effects, mask: Bool, group: str) -> Balance:
    later_s = (effects.policy_jct_s - effects.plain_jct_s)[mask]
    jobs = int(mask.sum())
    helped, hurt = int(effects.helped[mask].sum()), int(effects.hurt[mask].sum())
    return Balance(
        group=group,
        jobs=jobs,
        helped=helped,
        hurt=hurt,
        same=jobs - helped - hurt,
        plain_wait_s=_mean(effects.plain_wait_s[mask]),
        policy_wait_s=_mean(effects.policy_wait_s[mask]),
        plain_jct_s=_mean(effects.plain_jct_s[mask]),
        policy_jct_s=_mean(effects.policy_jct_s[mask]),
        worst_s=float(later_s.max(initial=0.0)) if hurt else 0.0,
    )


def _mean(values: F64) -> float:
    return float(values.mean()) if len(values) else math.nan


def _size_rank(name: str) -> int:
    names = [known for _, known in SIZES]
    return names.index(name) if name in names else len(names)


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
