"""A snapshot as JSON and back: what a bug report carries.

How values are kept is the codec's; here is the frame around them, with the number of its format.
"""

from __future__ import annotations

from slurm_dl.apps.wire import JsonObject
from slurm_dl.backends.codec import FormError, from_plain, to_plain
from slurm_dl.backends.replay.consistency import check
from slurm_dl.model.snapshot import Snapshot

FORMAT = 1


def encode(snapshot: Snapshot) -> JsonObject:
    """*snapshot* as plain JSON values."""
    return {"format": FORMAT, "snapshot": to_plain(snapshot, Snapshot)}


def decode(content: JsonObject) -> Snapshot:
    """The snapshot that `encode` wrote.

    Raises:
        ValueError: It is of another format, or not a snapshot.
    """
    if content.get("format") != FORMAT:
        msg = f"a saved snapshot of format {FORMAT} was expected (got {content.get('format')!r})"
        raise ValueError(msg)
    try:
        snapshot = from_plain(content.get("snapshot"), Snapshot)
        check(snapshot)
    except FormError as err:
        msg = f"not a saved snapshot: {err}"
        raise ValueError(msg) from err
    return snapshot
