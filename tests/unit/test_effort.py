"""A property is tried on as many examples as `--examples` asks for."""

from __future__ import annotations

import effort
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(("times", "examples"), [(0.25, 10), (1, 40), (3, 120), (0.001, 1)])
def test_the_number_of_examples_is_multiplied(times: float, examples: int) -> None:
    """At least one is left, and the other settings are as they were."""
    tried: list[int] = []

    @settings(max_examples=40, database=None, phases=[Phase.generate])
    @given(st.integers())
    def holds(number: int) -> None:
        tried.append(number)

    effort.tried_more(holds, times)
    holds()

    assert len(tried) == examples


def test_it_still_fails_where_it_is_wrong() -> None:
    """Few examples are enough for what is wrong everywhere."""

    @settings(max_examples=40, database=None)
    @given(st.integers())
    def fails(number: int) -> None:
        assert number != number  # noqa: PLR0124

    effort.tried_more(fails, 0.1)

    with pytest.raises(AssertionError):
        fails()


def test_what_is_no_property_is_left_alone() -> None:
    """A plain test is run once, however many examples are asked for."""

    def plain() -> None:
        """Nothing is asked of it."""

    effort.tried_more(plain, 10)

    assert not vars(plain)
