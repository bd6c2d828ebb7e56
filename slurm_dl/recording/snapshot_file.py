"""A snapshot as JSON and back: what a bug report carries.

How values are kept is the codec's; here is the frame around them, with the number of its format.
Jobs that name the same nodes share one mask: of 3,000 such jobs each had its own before format 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from slurm_dl.json_types import JsonObject
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Bool
from slurm_dl.model.snapshot import Observed, Snapshot
from slurm_dl.recording.codec import Codec, FormError, Json, codec_of, dataclass_codec
from slurm_dl.recording.codec.protocol import at, refuse
from slurm_dl.recording.snapshot_consistency import check

FORMAT: Final = 2
"""What is written."""

OLDEST: Final = 1
"""What is still read: the same with a mask for each job."""

_BY_JOB: Final = codec_of(Mapping[JobId, Bool])
_MASK: Final = codec_of(Bool)
_INDEX: Final = codec_of(Mapping[JobId, int])


def encode(snapshot: Snapshot) -> JsonObject:
    """*snapshot* as plain JSON values."""
    return {"format": FORMAT, "snapshot": _SNAPSHOT[FORMAT].write(snapshot)}


def decode(content: JsonObject) -> Snapshot:
    """The snapshot that `encode` wrote, now or in an older release.

    Raises:
        ValueError: It is of another format, or not a snapshot.
    """
    found = content.get("format")
    if type(found) is not int or found not in _SNAPSHOT:
        msg = f"a saved snapshot of format {OLDEST} to {FORMAT} was expected (got {found!r})"
        raise ValueError(msg)
    try:
        snapshot = _SNAPSHOT[found].read(content.get("snapshot"))
        assert isinstance(snapshot, Snapshot)  # noqa: S101 - narrows the type
        check(snapshot)
    except FormError as err:
        msg = f"not a saved snapshot: {err}"
        raise ValueError(msg) from err
    return snapshot


def _write_shared(value: object) -> Json:
    """``{"masks": [mask, ...], "of": {job id: which of them}}``."""
    if not isinstance(value, Mapping):
        return _BY_JOB.write(value)
    first: dict[tuple[str, bytes], int] = {}
    masks: list[Json] = []
    index: dict[Any, int] = {}
    for job_id, mask in value.items():
        # Another shape of the same bytes is another mask.
        key = str(np.shape(mask)), np.asarray(mask).tobytes()
        if key not in first:
            first[key] = len(masks)
            masks.append(_MASK.write(mask))
        index[job_id] = first[key]
    return {"masks": masks, "of": _INDEX.write(index)}


def _read_shared(content: Json) -> object:
    if not isinstance(content, dict) or content.keys() != {"masks", "of"}:
        refuse("a mapping (masks, of)", content)
    told = content["masks"]
    if not isinstance(told, list):
        refuse("a list", told, "masks")
    masks = []
    for number, mask in enumerate(told):
        with at("masks"), at(str(number)):
            masks.append(_MASK.read(mask))
    with at("of"):
        index = _INDEX.read(content["of"])
        assert isinstance(index, dict)  # noqa: S101 - narrows the type
        for job_id, which in index.items():
            if not 0 <= which < len(masks):
                refuse("the number of a mask", which, str(job_id))
    return {job_id: masks[which] for job_id, which in index.items()}


def _with(masks: Codec) -> Codec:
    seen = dataclass_codec(Observed, {"choices": masks, "excluded": masks})
    return dataclass_codec(Snapshot, {"seen": seen})


_SNAPSHOT: Final = {OLDEST: codec_of(Snapshot), FORMAT: _with(Codec(_write_shared, _read_shared))}
