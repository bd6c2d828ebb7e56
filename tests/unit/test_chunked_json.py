"""An answer is encoded in pieces, none of which keeps the daemon's loop waiting."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.daemon.control.reception import pieces
from slurm_dl.json_types import Json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner, max_size=9)
    ),
    max_leaves=30,
)


@given(value=JSON, times=st.sampled_from([1, 100, 101, 250]))
@settings(max_examples=20, deadline=None)
def test_it_is_the_same_json(value: Json, times: int) -> None:
    """Whatever the value, in a list and in an object of any length."""
    many: Json = {"list": [value] * times, "object": dict.fromkeys(map(str, range(times)), value)}

    assert json.loads("".join(pieces(many))) == many


@pytest.mark.parametrize("rows", [[*range(50_000)], {str(i): [i] for i in range(50_000)}])
def test_no_piece_of_a_long_answer_is_large(rows: Json) -> None:
    """However deep the rows are below the answer."""
    told = list(pieces({"ok": True, "result": {"rows": {"jobs": rows}}}))

    assert len(told) > 400
    assert max(map(len, told)) < 5000
