"""The comment carries the contract and leaves the user's own words alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.job_comment import comment

CONTRACT = Contract()


@pytest.mark.parametrize(
    ("contract", "model", "most_nodes", "expected"),
    [
        (
            CONTRACT,
            "resnet50",
            None,
            '"sig":"USR1","to":"batch","grace_s":120,"by":"daemon","model":"resnet50"',
        ),
        (
            Contract(grace_s=0.5),
            None,
            None,
            '"sig":"USR1","to":"batch","grace_s":0.5,"by":"daemon"',
        ),
        (None, "vgg16", 4, '"model":"vgg16","nodes":4'),
    ],
)
def test_the_metadata_is_compact_json(
    contract: Contract | None, model: str | None, most_nodes: int | None, expected: str
) -> None:
    """These keys, in this order, without blanks; no signal without a contract."""
    text = comment(None, contract=contract, model=model, most_nodes=most_nodes)

    assert text == f'{{"slurm_dl":{{"v":1,{expected}}}}}'
    due = comment(None, contract=contract, model=model, most_nodes=most_nodes, due_s=1_790_090_000)
    assert due == f'{{"slurm_dl":{{"v":1,{expected},"due":1790090000}}}}'


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        (
            '{"OccupiedIdleGPUsJobReaper": {"exempt": true}}',
            {"OccupiedIdleGPUsJobReaper": {"exempt": True}},
        ),
        ("please keep | this", {"comment": "please keep | this"}),
        ('[1, "a"]', {"comment": '[1, "a"]'}),
        ('{"a": NaN}', {"comment": '{"a": NaN}'}),
        ('{"a": ', {"comment": '{"a": '}),
        ("grüße", {"comment": "grüße"}),
        ("", {"comment": ""}),
    ],
)
def test_the_users_comment_stays_beside_ours(theirs: str, kept: dict[str, object]) -> None:
    """A JSON object keeps its keys; any other text is kept under ``comment``."""
    read = json.loads(comment(theirs, contract=CONTRACT, model=None))

    assert read.pop("slurm_dl")["sig"] == "USR1"
    assert read == kept


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ('{"slurm_dl": {"v": 1}}', "'slurm_dl' is written by dlsubmit"),
        ('{"slurm_dl": 1, "slurm_dl": 2}', "'slurm_dl' is written by dlsubmit"),
        ('{"slurm\\u005fdl": 1}', "'slurm_dl' is written by dlsubmit"),
        ("x" * 500, "at most 511 fit; shorten it by"),
        ("a\nb", "control character"),
        ('{"a":' * 500 + "1" + "}" * 500, "at most 511"),
        ('{"a":' + "[" * 2000 + "]" * 2000 + "}", "nested too deeply|at most 511"),
    ],
)
def test_bad_comments_get_their_line(theirs: str, message: str) -> None:
    """Our key cannot be forged, and the whole fits into Slurm's field."""
    with pytest.raises(ConfigError, match=message):
        comment(theirs, contract=CONTRACT, model=None)


@given(st.text())
def test_a_comment_is_one_short_line_of_ascii(theirs: str) -> None:
    """Whatever the user writes, the field is printable ASCII of less than 512 bytes."""
    try:
        text = comment(theirs, contract=CONTRACT, model="m")
    except ConfigError:
        return

    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 512
    assert json.loads(text)["slurm_dl"]["grace_s"] == 120
