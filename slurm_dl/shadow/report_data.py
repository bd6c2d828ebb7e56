"""The report as data: what was wished, whom it would have helped and hurt, what is not known."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from slurm_dl.json_types import Json, JsonObject
from slurm_dl.ledger.store_protocol import (
    UNSEEN,
    MinuteTotals,
    PlannedHandover,
    PlannedVictim,
    ShadowRecord,
)

SIZES: Final = {"1": 1, "2-4": 4, "5-8": 8, "9-16": 16, "17-64": 64, "65 and more": math.inf}
"""Classes of jobs, and the most GPUs of each."""

NEIGHBOURS_S: Final = 300.0  # Look-outs that are no further apart have nothing missing between them
HOUR_S: Final = 3600.0

Names = Callable[[int], str]  # A user's name by uid

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Period(ShadowRecord):
    """What was recorded, cut to one time."""

    begin_s: float  # First look in it, epoch seconds
    end_s: float  # Last look in it, epoch seconds
    last: MinuteTotals  # The minute that was written last


def period_of(recorded: ShadowRecord, since_s: float) -> Period | None:
    """What was recorded since *since_s*, epoch seconds; None if nobody looked then."""
    written = [m for m in recorded.minutes if m.to_s >= since_s]
    if not written:
        return None
    minutes = tuple(sorted(written, key=lambda m: m.from_s))
    begin_s = max(since_s, minutes[0].from_s)
    # One that was not seen to end is open.
    until_s = [max(p.last_s, p.started_s) if p.end else math.inf for p in recorded.planned]
    planned = [p for p, end_s in zip(recorded.planned, until_s, strict=True) if end_s >= begin_s]
    # Planned hand-overs and ends are written at once, looks minute by minute.
    end_s = max([*(m.to_s for m in minutes), *(p.last_s for p in planned)])
    return Period(
        begin_s=begin_s,
        end_s=end_s,
        last=written[-1],
        bad=recorded.bad,
        minutes=minutes,
        planned=tuple(planned),
        ended=tuple(j for j in recorded.ended if j.end_s >= begin_s),
        unfinished=recorded.unfinished,
    )


@dataclass(frozen=True, slots=True)
class Loss:
    """GPU-hours that preemption would have cost, as bounds; each run counts once."""

    runs: int  # Runs that would have been stopped
    gpus: float  # GPUs of all of them
    if_saved_gpu_h: float  # At most, if each saves as declared: GPUs for its grace and restart
    if_not_gpu_h: float  # At most, if none saves: all its run so far as well


@dataclass(frozen=True, slots=True)
class Touched:
    """Who would have been touched in one group, as observed."""

    group: str
    sooner: int  # Wishes whose job would have started sooner
    sooner_s: float  # See `sooner_s`; together
    stopped: int  # Runs that would have been stopped
    if_saved_gpu_h: float  # As in `Loss`


@dataclass(frozen=True, slots=True)
class Balance:
    """The simulator's answer for one group; *helped*, *hurt* and *same* are all its jobs."""

    group: str
    jobs: int
    helped: int
    hurt: int
    same: int
    plain_wait_s: float  # Mean wait, seconds; under the policy the next
    policy_wait_s: float
    plain_jct_s: float  # Mean time from arrival to the end, seconds; under the policy the next
    policy_jct_s: float
    worst_s: float  # Seconds that the job that is hurt most ends later; 0 if none is


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The counterfactual."""

    total: Balance  # All jobs whose end is known
    by: Mapping[str, tuple[Balance, ...]]  # As `by_group` has them
    real_wait_s: float  # Mean wait in reality of jobs that came or waited; NaN if there is none
    model_wait_s: float  # The same jobs' mean wait under the simulated plain Slurm
    preemptions: int  # How often jobs were stopped under the policy
    lost_gpu_h: float  # GPU-hours without progress, more than under plain Slurm
    open_ended: int  # Jobs that took part and had not ended in reality
    never_ran: int  # As in `MinuteTotals`: how long they would run is not known
    unfit: int  # Jobs that fit no equal shares of the nodes
    jobs_taken: int  # Jobs that took part
    jobs_in_all: int  # Those there were: more than that if this is a sample
    gpus: float  # GPUs that were simulated
    gpus_in_all: float  # Those there are

    @property
    def is_sample(self) -> bool:
        """Whether the nodes were a share of those there are."""
        return self.gpus < self.gpus_in_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it."""

    from_s: float  # The time that was asked for and is there, epoch seconds
    to_s: float
    covered_s: float  # Seconds of it in which somebody looked
    looks: int
    missed: int  # Planned hand-overs and rows that could not be kept
    bad: int  # Rows that could not be read
    policies: tuple[str, ...]  # What was in force, in the order of time
    modes: tuple[str, ...]
    gpus: float  # At the last look
    busy_share: float  # Of them held, mean over time
    compared: int  # As in `MinuteTotals`, over all looks; so are the next two
    first_other: int
    others: float
    most_wishes: int  # Most hand-overs in one plan
    tripped: int  # Looks in which a circuit breaker would have stopped preemption
    ended: int  # Jobs whose end was seen
    wishes: tuple[PlannedHandover, ...]  # In the order of time
    loss: Loss  # Of all wishes
    restart_s: float  # What starting a stopped job again is taken to cost, seconds
    touched: Mapping[str, tuple[Touched, ...]]  # As `by_group` has them
    simulated: Simulated | None = None  # None if it was left out
    why_not: str = ""  # Why it was


def report_of(period: Period, restart_s: float, name_of: Names) -> Report:
    """The report of what was observed; *restart_s* as there."""
    lookouts = period.minutes
    compared = sum(o.compared for o in lookouts)
    busy = [(o.held / o.gpus, o.looks) for o in lookouts if o.gpus > 0]
    return Report(
        from_s=period.begin_s,
        to_s=period.end_s,
        covered_s=covered_s(lookouts, period.begin_s),
        looks=sum(o.looks for o in lookouts),
        missed=sum(o.missed for o in lookouts),
        bad=period.bad,
        policies=tuple(dict.fromkeys(o.policy for o in lookouts)),
        modes=tuple(dict.fromkeys(o.mode for o in lookouts)),
        gpus=lookouts[-1].gpus,
        busy_share=sum(s * n for s, n in busy) / max(1, sum(n for _, n in busy)),
        compared=compared,
        first_other=sum(o.first_other for o in lookouts),
        others=sum(o.others * o.compared for o in lookouts) / max(1, compared),
        most_wishes=max(o.wishes for o in lookouts),
        tripped=sum(o.tripped for o in lookouts),
        ended=len(period.ended),
        wishes=tuple(period.planned),
        loss=loss_of(period.planned, restart_s),
        restart_s=restart_s,
        touched=_touched(period, restart_s, name_of),
    )


def covered_s(lookouts: Sequence[MinuteTotals], begin_s: float) -> float:
    """Seconds in which somebody looked, from *begin_s* on; short gaps between looks count."""
    total, until = 0.0, begin_s
    for lookout in lookouts:
        from_s = until if lookout.from_s - until <= NEIGHBOURS_S else lookout.from_s
        total += max(0.0, lookout.to_s - max(from_s, until))
        until = max(until, lookout.to_s)
    return total


def loss_of(wishes: Iterable[PlannedHandover], restart_s: float) -> Loss:
    """The price of stopping the runs of *wishes*."""
    runs = _runs(wishes)
    saved = sum((v.gpus * (v.grace_s + restart_s) for v in runs), start=0.0)
    lost = saved + sum(v.gpus * v.ran_s for v in runs)
    return Loss(len(runs), sum(v.gpus for v in runs), saved / HOUR_S, lost / HOUR_S)


def _runs(wishes: Iterable[PlannedHandover]) -> list[PlannedVictim]:
    """Each run that would have been stopped once, as it was when it was first wished for."""
    once: dict[tuple[int, int], PlannedVictim] = {}
    for victim in (v for wish in wishes for v in wish.victims):
        once.setdefault((victim.job_id, victim.restarts), victim)
    return list(once.values())


def sooner_s(wish: PlannedHandover, end_s: float) -> float:
    """How much sooner its job would have started at least, had nothing else been different.

    Seconds that it went on waiting after the wish and its victims' longest grace; up to *end_s* if
    it had not started by then, to the last look that wished it if nobody saw what became of it, 0
    for one that went without a start.
    """
    if not wish.lead or wish.end == "gone":
        return 0.0
    until_s = {"started": wish.started_s, UNSEEN: wish.last_s}.get(wish.end, end_s)
    grace_s = max((v.grace_s for v in wish.victims), default=0.0)
    return max(0.0, until_s - wish.begin_s - grace_s)


def _touched(period: Period, restart_s: float, name_of: Names) -> dict[str, tuple[Touched, ...]]:
    gains = [(w, s) for w in period.planned if (s := sooner_s(w, period.end_s)) > 0]
    runs = _runs(period.planned)
    owners = [(w.lead_uid, w.lead_account, w.lead_gpus) for w, _ in gains]
    owners += [(v.uid, v.account, v.gpus) for v in runs]

    def touched(group: str, rows: Sequence[int]) -> Touched:
        gained_s = [gains[i][1] for i in rows if i < len(gains)]
        stopped = [runs[i - len(gains)] for i in rows if i >= len(gains)]
        cost_s = sum(v.gpus * (v.grace_s + restart_s) for v in stopped)
        return Touched(group, len(gained_s), sum(gained_s), len(stopped), cost_s / HOUR_S)

    return by_group(owners, touched, name_of)


def by_group(
    owners: Sequence[tuple[int, str, float]],
    sums: Callable[[str, list[int]], T],
    name_of: Names,
) -> dict[str, tuple[T, ...]]:
    """The sums of each group by ``user``, ``account`` and ``size``; see `SIZES`.

    Args:
        owners: Uid, account and GPUs of each row.
        sums: Makes them of a group's name and rows.

    Returns:
        Groups with the most rows first; sizes by size.
    """
    words = {
        "user": [name_of(uid) for uid, _, _ in owners],
        "account": [account or "-" for _, account, _ in owners],
        "size": [next(s for s, most in SIZES.items() if gpus <= most) for *_, gpus in owners],
    }
    found = {}
    for what, names in words.items():
        rows = defaultdict[str, list[int]](list)
        for i, name in enumerate(names):
            rows[name].append(i)
        found[what] = sorted(rows.items(), key=lambda item: (-len(item[1]), item[0]))
    found["size"].sort(key=lambda item: SIZES[item[0]])
    return {what: tuple(sums(*item) for item in groups) for what, groups in found.items()}


def as_json(report: Report) -> JsonObject:
    """The report for ``--json``, numbers to thousandths; what is not known is null."""
    return {key: _plain(value) for key, value in dataclasses.asdict(report).items()}


def _plain(value: object) -> Json:
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float():
            return round(value, 3) if math.isfinite(value) else None
        case int() | str():
            return value
        case _:
            return None
