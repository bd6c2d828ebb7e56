"""Records in Slurm's text output that nobody can forge.

Job names and comments may hold newlines, bars and whole fake records (measured on 22.05.8:
sbatch takes them and squeue prints them raw). So the separators are a nonce drawn anew for each
call; text written before the call cannot contain it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from slurm_dl.model.errors import ClusterError


def new_nonce() -> str:
    """A separator that no text in the queue contains."""
    # In squeue's -O "FIELD:SUFFIX", leading digits or a dot of the suffix would be a width.
    return "x" + secrets.token_hex(8)


def output_format(fields: Sequence[str], nonce: str) -> str:
    """The ``-O`` argument that prints *fields* untruncated with separators made of *nonce*."""
    parts = [f"{name}:{nonce}f" for name in fields[:-1]]
    return ",".join([*parts, f"{fields[-1]}:{nonce}r"])


def split_records(text: str, nonce: str, width: int) -> tuple[list[list[str]], int]:
    """The records of *text* and how many others had not exactly *width* fields.

    Raises:
        ClusterError: The output stops in the middle of a record, or no record can be read.
    """
    raw = text.split(f"{nonce}r\n")
    if raw.pop() != "":
        msg = "Slurm's output stops in the middle of a record; nothing of it is used"
        raise ClusterError(msg)
    separator = f"{nonce}f"
    records = [fields for r in raw if len(fields := r.split(separator)) == width]
    if raw and not records:
        msg = f"none of {len(raw)} records has the {width} fields asked for; is this Slurm known?"
        raise ClusterError(msg)
    return records, len(raw) - len(records)
