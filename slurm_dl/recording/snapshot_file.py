"""A snapshot as JSON and back: what a bug report carries.

How values are kept is `typed_json`'s; here is the frame around them, with the number of its format.
"""

from __future__ import annotations

from typing import Final

from slurm_dl.json_types import JsonObject
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.recording.snapshot_consistency import check
from slurm_dl.recording.typed_json import FormError, from_plain, to_plain

FORMAT: Final = 2
"""What is written."""

OLDEST: Final = 1
"""What is still read: the same with a mask for each job."""


def encode(snapshot: Snapshot) -> JsonObject:
    """*snapshot* as plain JSON values."""
    return {"format": FORMAT, "snapshot": to_plain(snapshot, Snapshot)}


def decode(content: JsonObject) -> Snapshot:
    """The snapshot that `encode` wrote, now or in an older release.

    Raises:
        ValueError: It is of another format, or not a snapshot.
    """
    found = content.get("format")
    if type(found) is not int or not OLDEST <= found <= FORMAT:
        msg = f"a saved snapshot of format {OLDEST} to {FORMAT} was expected (got {found!r})"
        raise ValueError(msg)
    try:
        snapshot = from_plain(content.get("snapshot"), Snapshot)
        check(snapshot)
    except FormError as err:
        msg = f"not a saved snapshot: {err}"
        raise ValueError(msg) from err
    return snapshot
