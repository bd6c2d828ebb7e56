"""An answer is encoded in pieces, none of which keeps the daemon's loop waiting."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.daemon.control.chunked_json import pieces

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=30), st.dictionaries(st.text(max_size=5), inner, max_size=9)
    ),
    max_leaves=30,
)


def counted(value: object) -> int:
    """All values and keys in *value*, one by one."""
    if isinstance(value, dict):
        return 1 + sum(1 + counted(one) for one in value.values())
    if isinstance(value, list | tuple):
        return 1 + sum(map(counted, value))
    return 1


class Encoder:
    """`json.dumps` that notes the largest value it was given."""

    largest = 0

    def __call__(self, value: object) -> str:
        """The JSON of *value*."""
        self.largest = max(self.largest, counted(value))
        return json.dumps(value)


@given(value=JSON, most=st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_it_is_the_same_json_and_no_piece_is_large(value: object, most: int) -> None:
    """Whatever the value: the pieces together are its JSON, and each is within the bound."""
    encoder = Encoder()
    text = "".join(pieces(value, most, encoder))

    assert json.loads(text) == value
    # The list or object around what goes together does not count.
    assert encoder.largest <= most + 1
