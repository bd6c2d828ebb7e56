"""A question is encoded in pieces, none of which keeps the daemon's loop waiting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from build import NOW_S, observed, pending, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.config.tree import Config
from slurm_dl.forecast import worker
from slurm_dl.forecast.chunked_json import MOST, pieces
from slurm_dl.forecast.forward_runs import ForecastQuestion
from slurm_dl.json_types import JsonObject
from slurm_dl.model.ids import JobId

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


def test_a_question_about_a_long_queue_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon never encodes more than the bound at once, however many jobs there are."""
    count = 2500
    snap = snapshot(observed([pending(i + 1, 1) for i in range(count)], now_s=NOW_S))
    encoder = Encoder()
    monkeypatch.setattr(worker, "pieces", lambda value: pieces(value, dumps=encoder))
    config = Config.model_validate({"manage": {"partitions": ["gpu"]}})

    content = worker.asked_of_worker(config, snap, ForecastQuestion(jobs=(JobId(1),)), 1.0)

    assert MOST / 2 < encoder.largest <= MOST + 1
    told: JsonObject = json.loads(content)
    inner: Any = told["snapshot"]
    assert len(inner["snapshot"]["seen"]["jobs"]["job_id"]["values"]) == count
