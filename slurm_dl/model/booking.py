"""State of a policy that must outlive a decision: entries of the ledger's table ``book``.

A policy is pure: it reads its entries in `Snapshot.booked` and returns with its `Order` those that
are to stand from now on. All entries of one decision are stored together or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_dl.json_types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One fact in the book."""

    kind: str  # Meaning of the entry, say ``promise``; a policy reads and writes kinds of its own
    key: str  # The subject within the kind: a job id, an account
    body: str  # Canonical JSON, see `entry`; empty: the entry is struck out


def entry(kind: str, key: object, body: JsonObject | None) -> Entry:
    """An entry whose text is the same for equal bodies; None strikes it out."""
    text = "" if body is None else json.dumps(body, sort_keys=True, separators=(",", ":"))
    return Entry(kind=kind, key=str(key), body=text)


def of_kind(entries: Iterable[Entry], kind: str) -> dict[str, JsonObject]:
    """The bodies of one kind that stand, by key."""
    return {e.key: json.loads(e.body) for e in entries if e.kind == kind and e.body}


def changes(booked: Iterable[Entry], wanted: Iterable[Entry]) -> tuple[Entry, ...]:
    """Those of *wanted* that differ from what is *booked*; of two with one key the last."""
    before = {(e.kind, e.key): e.body for e in booked}
    last = {(e.kind, e.key): e for e in wanted}
    return tuple(e for at, e in sorted(last.items()) if before.get(at, "") != e.body)


def updated(booked: Iterable[Entry], news: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries that stand after *news*, sorted by kind and key."""
    after: Mapping[tuple[str, str], Entry] = {(e.kind, e.key): e for e in (*booked, *news)}
    return tuple(e for _, e in sorted(after.items()) if e.body)
