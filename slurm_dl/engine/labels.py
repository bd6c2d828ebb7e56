"""Strictly falling numbers for the places of a line, with as few changes as can be.

A label that was given before stays where it still fits. So a job that comes or goes costs one
write or none, not one for every job behind it.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Final

MOST_MOVED: Final = 3
"""If more labels than this would have to change, all places are labelled anew, with gaps."""


def relabel(labels: Sequence[int], most: int) -> list[int]:
    """New labels, strictly falling from at most *most* to at least 1.

    Args:
        labels: What each place of the line has now, first place first; 0: none.
        most: Highest label; no less than ``len(labels)``.
    """
    if all(high > low for high, low in itertools.pairwise([most + 1, *labels, 0])):
        return list(labels)
    new = _between_kept(labels, most)
    moved = sum(before not in (0, after) for before, after in zip(labels, new, strict=True))
    return _spread(len(labels), most) if moved > MOST_MOVED else new


def keep(labels: Sequence[int], most: int) -> list[int]:
    """The most places whose labels may stay: they fall, and leave room for the places between.

    It is the longest subsequence in which ``label + place`` does not grow (patience sorting).
    """
    ends: list[int] = []
    last: list[int] = []
    before = [-1] * len(labels)
    for place, label in enumerate(labels):
        # There must be room below for those behind, and above for those before.
        if not len(labels) - place <= label <= most - place:
            continue
        value = -(label + place)
        at = bisect.bisect_right(ends, value)
        before[place] = last[at - 1] if at else -1
        ends[at : at + 1], last[at : at + 1] = [value], [place]
    kept = []
    place = last[-1] if last else -1
    while place >= 0:
        kept.append(place)
        place = before[place]
    return kept[::-1]


def _between_kept(labels: Sequence[int], most: int) -> list[int]:
    """Labels that are kept, and others as evenly as can be between them.

    Before the first kept one they are close above it, behind the last one close below it: most
    jobs come at an end.
    """
    new, count = list(labels), len(labels)
    kept = [(place, labels[place]) for place in keep(labels, most)]
    if not kept:
        return _spread(count, most)
    first, label = kept[0]
    new[:first] = range(label + first, label, -1)
    for (i, high), (j, low) in itertools.pairwise(kept):
        new[i + 1 : j] = [high - (k * (high - low)) // (j - i) for k in range(1, j - i)]
    behind, label = kept[-1]
    new[behind + 1 :] = range(label - 1, label - count + behind, -1)
    return new


def _spread(count: int, most: int) -> list[int]:
    """Labels with gaps, and room above the first and below the last."""
    top = most - most // 8
    gap = max(1, (top - 1) // max(count + count // 2, 1))
    low = top - gap * (count - 1)
    return [top - gap * k if low >= 1 else count - k for k in range(count)]
