"""Values of JSON files that users own: believed if they are of the right type and plausible."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from slurm_dl.job.run_files import read_regular
from slurm_dl.text import escaped
from slurm_dl.yaml_places import LARGEST_BYTES


def entries(
    path: Path, key: str, most: int, owner: int, remarks: list[str] | None
) -> list[Mapping[str, object]]:
    """The objects in the list *key* of the file, *most* of them.

    Args:
        owner: A file of another uid is not read.
        remarks: Why there are none is added; None: a file that is not there is no remark.
    """
    try:
        content = _content(path, owner)
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) else "is no JSON object of its owner"
        if isinstance(err, FileNotFoundError):
            reason = "is not there"
        if remarks is not None:
            remarks.append(f"{escaped(str(path))}: {reason}")
        return []
    listed = content.get(key)
    return [e for e in listed[:most] if isinstance(e, dict)] if isinstance(listed, list) else []


def _content(path: Path, owner: int) -> dict[str, object]:
    text = read_regular(path, largest_bytes=LARGEST_BYTES, owner=owner)
    try:
        content: object = json.loads(text)
    except RecursionError:
        content = None
    if not isinstance(content, dict):
        msg = "no JSON object"
        raise ValueError(msg)  # noqa: TRY004 - one error for every unreadable content
    return content


def whole(value: object, most: int, *, least: int = 1) -> int | None:
    """*value*, a whole number from *least* to *most*; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value <= most else None


def number(value: object, least: float, most: float) -> float | None:
    """*value*, a number from *least* to *most*; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared before it is converted: a whole number may be too large for a float.
    if not (least <= value <= most):
        return None
    return float(value) if math.isfinite(value) else None
