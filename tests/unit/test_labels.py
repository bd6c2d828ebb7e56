"""Labels of a line: they fall, they fit, and few of them change."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.engine.waiting_line import keep, relabel

MOST = 12
LINES = st.lists(st.integers(0, MOST + 2), max_size=8)
"""What the places of a line had before; 0: nothing."""


@given(labels=LINES)
def test_labels_fall_strictly_within_their_bounds(labels: list[int]) -> None:
    """Whatever was there before."""
    new = relabel(labels, MOST)

    assert len(new) == len(labels)
    assert all(before > after for before, after in itertools.pairwise(new))
    assert all(1 <= label <= MOST for label in new)


@given(labels=LINES)
def test_as_many_labels_stay_as_can(labels: list[int]) -> None:
    """Against all subsets: places whose labels fall, and leave room for the places between."""

    def may_stay(places: tuple[int, ...]) -> bool:
        inside = all(len(labels) - i <= labels[i] <= MOST - i for i in places)
        return inside and all(labels[i] - labels[j] >= j - i for i, j in itertools.pairwise(places))

    count = len(labels)
    best = max(
        k for k in range(count + 1) if any(map(may_stay, itertools.combinations(range(count), k)))
    )
    kept = keep(labels, MOST)

    assert len(kept) == best
    assert may_stay(tuple(kept))


@given(labels=st.sets(st.integers(1, 200), max_size=40), data=st.data())
def test_a_line_that_only_loses_jobs_is_not_written(labels: set[int], data: st.DataObject) -> None:
    """Nor one in which nothing moves."""
    line = sorted(labels, reverse=True)
    left = [label for label in line if data.draw(st.booleans())]

    # Room below each label for those behind it, as `relabel` itself leaves it.
    if all(label >= len(left) - i for i, label in enumerate(left)):
        assert relabel(left, 214) == left
