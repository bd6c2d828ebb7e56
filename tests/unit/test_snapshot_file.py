"""Snapshots as JSON: jobs that name the same nodes share a mask, and older files are read."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from build import observed, pending, snapshot

from slurm_dl.model.ids import JobId
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.recording.snapshot_file import decode, encode, to_bytes, to_plain

MASKS = ([True, False], [False, True], [False, False])


def choosing(count: int) -> Snapshot:
    """So many waiting jobs, each with one of three choices of two nodes."""
    seen = observed([pending(i + 1) for i in range(count)], nodes=(4.0, 4.0))
    masks = {JobId(i + 1): np.array(MASKS[i % 3]) for i in range(count)}
    return snapshot(dataclasses.replace(seen, choices=masks, excluded={JobId(1): masks[JobId(1)]}))


def told(snap: Snapshot) -> Any:  # noqa: ANN401 - any JSON
    return json.loads(json.dumps(encode(snap)))


def test_equal_masks_are_written_once_and_come_back_to_each_job() -> None:
    """A mask is there once for each choice of nodes; the first format has one for each job."""
    snap = choosing(30)
    content = told(snap)

    assert len(content["snapshot"]["seen"]["choices"]["masks"]) == len(MASKS)
    back = decode(content)
    assert to_plain(back, Snapshot) == to_plain(snap, Snapshot)
    assert back.seen.choices[JobId(5)].tolist() == MASKS[1]
    assert back.seen.excluded[JobId(1)].tolist() == MASKS[0]
    seen = content["snapshot"]["seen"]
    for name in ("choices", "excluded"):
        shared = seen[name]
        seen[name] = {job_id: shared["masks"][at] for job_id, at in shared["of"].items()}
    assert seen["choices"]["4"]["values"] == MASKS[0]
    assert to_plain(decode({**content, "format": 1}), Snapshot) == to_plain(snap, Snapshot)


def test_before_the_fourth_format_the_place_was_by_submission() -> None:
    """And a place that is told is kept."""
    snap = choosing(3)
    content = told(snap)
    places = [7.0, *snap.memory.first_submit_s.tolist()[1:]]
    content["snapshot"]["memory"]["queued_s"]["values"] = places

    assert decode(content).memory.queued_s.tolist() == places
    del content["snapshot"]["memory"]["queued_s"]
    back = decode({**content, "format": 3}).memory
    assert back.queued_s.tolist() == back.first_submit_s.tolist() != places


def test_what_shares_no_mask_is_refused() -> None:
    """By its place in the file; so is what a later release may keep, that this one would drop."""
    for choices, because in (
        ({"masks": [], "of": {"1": 0}}, r"choices\.shared: of\.1: the number of a mask"),
        ({"masks": [], "of": {"0": -1}}, r"choices\.shared: of\.0: the number of a mask"),
        ({"masks": [1], "of": {}}, r"choices\.shared\.masks\.0: must be a mapping"),
        ({"masks": []}, r"choices\.shared\.of: is required"),
        ({"1": 0}, r"choices\.each\.1: must be a mapping"),
    ):
        content = told(choosing(2))
        content["snapshot"]["seen"]["choices"] = choices
        with pytest.raises(ValueError, match=because):
            decode(content)
    for number in (0, 5, True, 1.0, "2", None):
        with pytest.raises(ValueError, match="format 1 to 4 was expected"):
            decode({**told(choosing(1)), "format": number})


def test_a_long_queue_is_encoded_with_pauses_for_other_threads() -> None:
    """Python is called between entries: where it is not, the daemon's loop cannot run."""
    texts = {JobId(i): JobText(label=str(i), name="train", user="ann") for i in range(2000)}
    to_bytes({}, Mapping[JobId, JobText])  # How it is done is found once.
    events: list[str] = []
    sys.setprofile(lambda _frame, event, _: events.append(event))
    try:
        to_bytes(MappingProxyType(texts), Mapping[JobId, JobText])
    finally:
        sys.setprofile(None)

    assert events.count("call") > len(texts) / 100
