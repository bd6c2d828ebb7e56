"""Files of shadow mode as versions before wrote them: read once into the ledger, then removed."""

from __future__ import annotations

import json
import re
import shutil
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from slurm_dl.daemon.systemd_notify import notify
from slurm_dl.ledger.apply_observation import FORGET_AFTER_S
from slurm_dl.ledger.store_protocol import (
    UNSEEN,
    MinuteTotals,
    Noted,
    PlannedHandover,
    PlannedVictim,
    ShadowJob,
)
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.logging_setup import logger

DIRECTORY: Final = "shadow"
_FILE = re.compile(r"[0-9]{12}\.jsonl|wishes\.jsonl")
_MOST_BYTES = 64 << 20
_KINDS: Final[dict[str, type]] = {
    "job": ShadowJob, "wish": PlannedHandover, "looks": MinuteTotals
}  # fmt: skip
_ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {w: TypeAdapter(k) for w, k in _KINDS.items()}


def import_segments(state_dir: Path, ledger: Ledger) -> None:
    """Take what is in *state_dir* of a version before; what cannot be read is left out and logged.

    Raises:
        StoreError: The ledger cannot be written; nothing is removed then.
    """
    directory = state_dir / DIRECTORY
    if not directory.is_dir():
        return
    jobs, never_ran = _unfinished(directory / "standing.npz")
    ledger.note((), jobs)
    planned: dict[str, PlannedHandover] = {}
    minutes: list[MinuteTotals] = []
    count = bad = 0
    for path in sorted(p for p in directory.iterdir() if _FILE.fullmatch(p.name)):
        if path.stat().st_mtime < time.time() - FORGET_AFTER_S:
            continue
        # A start may take a minute for each file.
        notify("EXTEND_TIMEOUT_USEC=60000000", "STATUS=reading files of shadow mode")
        rows = list(_rows(path))
        for row in rows:
            if isinstance(row, PlannedHandover):
                planned[row.key] = _joined(planned.get(row.key, row), row)
        minutes += [row for row in rows if isinstance(row, MinuteTotals)]
        # One that was gone after a restart may have been seen to end before it.
        ended = sorted((r for r in rows if isinstance(r, ShadowJob)), key=lambda r: r.how != "V")
        ledger.note(ended)
        count, bad = count + len(rows), bad + rows.count(None)
    if minutes:
        minutes[-1] = replace(minutes[-1], never_ran=never_ran)
    ledger.note([*minutes, *planned.values()])
    shutil.rmtree(directory, ignore_errors=True)
    logger().info("files of shadow mode are in the ledger now", rows=count - bad, unreadable=bad)


def _unfinished(path: Path) -> tuple[list[ShadowJob], int]:
    """The jobs in *path* that had run and were not over, and how many had never run.

    None if it is not there, or is not what it should be.
    """
    names = ("job_id", "uid", "gpus", "submit_s", "start_s", "ran_s", "opted_in")
    try:
        with np.load(path, allow_pickle=False) as found:
            jobs, accounts, now_s = found["jobs"], found["accounts"], float(found["now_s"])
        has_run = (jobs["start_s"] > 0) & (jobs["ran_s"] > 0)
        kept = [
            _ADAPTERS["job"].validate_python(
                {name: row[name].item() for name in names}
                | {"account": str(accounts[row["account"]]), "end_s": now_s, "how": ""}
            )
            for row in jobs[has_run]
        ]
        return kept, int(jobs["tasks"][~has_run].sum())
    except (
        *(EOFError, LookupError, MemoryError, OSError, RuntimeError, SyntaxError, TypeError),
        *(ValueError, zipfile.BadZipFile, zlib.error),
    ):
        return [], 0


def _rows(path: Path) -> Iterator[Noted | None]:
    """One for each line; None for a damaged one."""
    with path.open("rb") as file:
        for line in filter(None, file.read(_MOST_BYTES).split(b"\n")):
            if not line.startswith(b'["open"'):
                yield row_of(line)


def row_of(line: bytes) -> Noted | None:
    """The row that a *line* is: a JSON array of a word and the fields in their order."""
    try:
        word, *values = json.loads(line)
        kind = _KINDS[word]
        if kind is PlannedHandover:
            values[7] = [_named(PlannedVictim, victim) for victim in values[7]]
        row: Noted = _ADAPTERS[word].validate_python(_named(kind, values))
    except (LookupError, RecursionError, TypeError, ValueError):
        return None
    return row


def _named(kind: type, values: list[object]) -> dict[str, object]:
    return dict(zip((field.name for field in fields(kind)), values, strict=False))


def _joined(before: PlannedHandover, row: PlannedHandover) -> PlannedHandover:
    """Two lines of one planned hand-over; one that a look missed was begun anew and goes on."""
    is_back = before.end in {"gone", UNSEEN} and row.begin_s > before.last_s
    ended = row if is_back or row.end or not before.end else before
    return replace(
        before,
        last_s=max(before.last_s, row.last_s),
        others=max(before.others, row.others),
        end=ended.end,
        started_s=ended.started_s,
    )
