"""A partial allocation auction of GPUs: who wins how many, and what each pays in GPUs.

A bid says what an app's value V is with so many more GPUs of its demand. Those win for whom the
product of all values is largest. A winner then keeps only a fraction of what it won,

    c_i = prod_{j != i} V_j(all bid) / prod_{j != i} V_j(i does not bid),

the harm that its bid does to the others. This hidden payment makes the honest bid the best one:
c_i V_i is the product of everybody's values over a number that i cannot change.

The largest product is the largest sum of log V. It is found by taking, again and again, the step
with the largest gain of log V for a GPU. That is exact for steps of one GPU whose gains fall (where
speed is a concave function of GPUs, they do). Steps whose gains rise are taken together, and where
steps are gangs that may not fit, it is the usual approximation of a knapsack.

Source: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020 (partial
allocation auction); Cole, Gkatzelis and Goel, "Mechanism design for fair division: allocating
divisible items without payments", EC 2013 (why it is truthful); Caragiannis et al., "The
Unreasonable Fairness of Maximum Nash Welfare", EC 2016 (first as many values above 0 as can be).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slurm_dl.model.jobs import F64

_SLACK_GPUS = 1e-9  # Ten tenths of a GPU are one, whatever the rounding of their sum
_ALIKE = 1 + 1e-9  # Gains that differ by less are equal: steps of equal gain are taken one by one


@dataclass(frozen=True, slots=True, eq=False)
class Bid:
    """What an app would have of GPUs.

    Attributes:
        gpus: ``(s,)`` GPUs of each step, above 0; a step is taken whole, and only after those
            before it.
        value: ``(s + 1,)`` V after 0, 1 ... s steps, 0 or more, not decreasing.
    """

    gpus: F64
    value: F64


@dataclass(frozen=True, slots=True, eq=False)
class Won:
    """What an auction of n bids came to.

    Attributes:
        steps: ``(n,)`` how many steps of each bid are won.
        gpus: ``(n,)`` GPUs that those are.
        kept: ``(n,)`` c, the fraction of them that the winner keeps, 0 to 1; 1 for losers.
    """

    steps: npt.NDArray[np.int64]
    gpus: F64
    kept: F64


class _Step(NamedTuple):
    """Steps of one bid that are taken together; smaller ones are taken first.

    Attributes:
        certain: 0: it brings a value from 0, which is worth more than anything else.
        rank: By what such steps are ordered.
        bid: Whose.
        number: Which of the bid's steps are taken once this is.
        gpus: What it costs.
        gain: Of log V, finite; for a value from 0, log V after it.
    """

    certain: int
    rank: tuple[float, float]
    bid: int
    number: int
    gpus: float
    gain: float


def auction(bids: Sequence[Bid], room: float) -> Won:
    """Sell *room* GPUs.

    Args:
        bids: Ties are decided by their order.
        room: GPUs, 0 or more.
    """
    steps = sorted(step for i, bid in enumerate(bids) for step in _concave(bid, i))
    filled = _Filled.of(steps, room + _SLACK_GPUS, len(bids))
    won = np.zeros(len(bids), dtype=np.int64)
    gpus, kept = np.zeros(len(bids)), np.ones(len(bids))
    for step, taken in zip(steps, filled.taken, strict=True):
        if taken:
            won[step.bid] = step.number
            gpus[step.bid] += step.gpus
    for i in won.nonzero()[0].tolist():
        kept[i] = filled.kept(i)
    return Won(won, gpus, kept)


def _concave(bid: Bid, number: int) -> list[_Step]:
    """The steps of a bid that can be worth taking, gains for a GPU falling."""
    spent: list[float] = [0.0, *np.cumsum(bid.gpus).tolist()]
    level: list[float] = [math.log(v) if v > 0 else -math.inf for v in bid.value.tolist()]
    if len(level) > 1 and level[0] == -math.inf:
        first = next((k for k, y in enumerate(level) if y > -math.inf), None)
        if first is None:
            return []
        begin = _Step(0, (spent[first], -level[first]), number, first, spent[first], level[first])
        found, hull = [begin], [first]
    else:
        found, hull = [], [0]

    def slope(a: int, b: int) -> float:
        return (level[b] - level[a]) / (spent[b] - spent[a])

    for k in range(hull[0] + 1, len(level)):
        while len(hull) > 1 and slope(hull[-2], hull[-1]) * _ALIKE < slope(hull[-1], k):
            hull.pop()
        hull.append(k)
    steep = math.inf
    for a, b in itertools.pairwise(hull):
        if level[b] > level[a]:
            steep = min(steep, slope(a, b))
            found.append(
                _Step(1, (-steep, 0.0), number, b, spent[b] - spent[a], level[b] - level[a])
            )
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Filled:
    """The steps taken, and enough beside them to take back those of one bid.

    Attributes:
        steps: In the order in which they are taken.
        taken: Whether each was.
        refused: Places of those that were not.
        room: GPUs left before each of them.
        least: GPUs of the smallest refused step from each place on.
        out: By bid, the place of the step that did not fit; the number of steps if all did.
        own: By bid, the places of its steps that were taken.
    """

    steps: list[_Step]
    taken: list[bool]
    refused: list[int]
    room: list[float]
    least: list[float]
    out: list[int]
    own: list[list[int]]

    @classmethod
    def of(cls, steps: list[_Step], room: float, bids: int) -> _Filled:
        taken: list[bool] = []
        before: list[float] = []
        out = [len(steps)] * bids
        own: list[list[int]] = [[] for _ in range(bids)]
        for place, step in enumerate(steps):
            before.append(room)
            fits = out[step.bid] > place and step.gpus <= room
            if fits:
                room -= step.gpus
                own[step.bid].append(place)
            else:
                out[step.bid] = min(out[step.bid], place)
            taken.append(fits)
        refused = [place for place, fits in enumerate(taken) if not fits]
        gpus = np.array([s.gpus for s in steps])
        gpus[np.array(taken, dtype=np.bool_)] = math.inf
        least = np.minimum.accumulate(gpus[::-1])[::-1].tolist()
        return cls(steps, taken, refused, before, least, out, own)

    def kept(self, i: int) -> float:
        """The c of bid *i*, which won something.

        While the others have at least the room they had, only refused steps can change.
        """
        steps, room, out = self.steps, self.room, self.out
        own = self.own[i]
        begin = own[0]
        places = self.refused[bisect.bisect(self.refused, begin) :]
        if len(own) > 1:
            places = sorted(places + own[1:])
        more, late = steps[begin].gpus, set[int]()
        fewer, harm, last = 0, 0.0, own[-1]
        for place in places:
            if room[place] + more < self.least[place] and place > last:
                break
            step = steps[place]
            if step.bid == i:
                more += step.gpus if self.taken[place] else 0.0
            elif step.bid not in late and out[step.bid] >= begin:
                if step.gpus > room[place] + more:
                    late.add(step.bid)
                    continue
                more -= step.gpus
                fewer += step.certain == 0
                harm += step.gain
                if more < 0:
                    lost = self._plainly(i, place + 1, more, late)
                    fewer, harm = fewer + lost[0], harm + lost[1]
                    break
        if fewer:
            return 0.0 if fewer > 0 else 1.0
        return math.exp(-max(harm, 0.0))

    def _plainly(self, i: int, begin: int, more: float, late: set[int]) -> tuple[int, float]:
        """What the others gain from *begin* on, step by step: values from 0, and of log V."""
        fewer, harm = 0, 0.0
        if begin == len(self.steps):
            return fewer, harm
        first, room, last = self.own[i][0], self.room[begin] + more, self.own[i][-1]
        for place in range(begin, len(self.steps)):
            if place > last and room >= self.room[place] and room < self.least[place]:
                break
            step = self.steps[place]
            if step.bid == i:
                continue
            # Who was refused before the first of these steps is refused here too.
            fits = step.gpus <= room and step.bid not in late and self.out[step.bid] >= first
            if fits:
                room -= step.gpus
            else:
                late.add(step.bid)
            change = int(fits) - int(self.taken[place])
            fewer += change if step.certain == 0 else 0
            harm += change * step.gain
        return fewer, harm
