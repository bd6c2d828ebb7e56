"""The ledger's tables and hand-over bodies: what is written is read, and nothing else is."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from enum import EnumType
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.ledger.attained_service import EndedRun
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.ledger.sqlite import rows
from slurm_dl.ledger.sqlite.rows import Table
from slurm_dl.ledger.sqlite.schema import upgrade
from slurm_dl.ledger.sqlite.store import SqliteStore, StoreError
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.model.booking import Entry
from slurm_dl.model.breaker import Breaker, Restart, Taken
from slurm_dl.model.contract import SIGNALS, Contract
from slurm_dl.model.handover import Handover, Victim
from slurm_dl.model.shape import Shape
from slurm_dl.model.steer import Steer

WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=","), min_size=1)
PLAIN: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(),
}
GIVEN: dict[object, dict[str, st.SearchStrategy[Any]]] = {
    Contract: {"signal": st.sampled_from(SIGNALS), "grace_s": st.floats(0.5, 1e6)},
    Handover: {"purpose": st.just("split")},
    Shape: dict.fromkeys(("nodes", "gpus_per_node"), st.integers(1, 9999)),
}
"""Fields that a class itself checks."""


def values(hint: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - any annotation
    """Any value of the type *hint*."""
    hint, kinds = getattr(hint, "__supertype__", hint), get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        fields = {name: values(of) for name, of in get_type_hints(hint).items()}
        return st.builds(hint, **fields | GIVEN.get(hint, {}))
    if get_origin(hint) is tuple and kinds[-1] is not Ellipsis:
        return st.tuples(*map(values, kinds))
    if get_origin(hint) is tuple:
        item = WORD if kinds[0] is str else values(kinds[0])
        least = int(kinds[0] is Victim)
        return st.lists(item, min_size=least, max_size=3).map(tuple)
    if NoneType in kinds:
        return st.none() | values(kinds[0])
    if get_origin(hint) is Literal:
        return st.sampled_from(kinds)
    return st.sampled_from(list(hint)) if isinstance(hint, EnumType) else PLAIN[hint]


EACH: list[tuple[Table[Any], type[Any]]] = [
    (rows.RUNS, EndedRun),
    (rows.TAKEN, Taken),
    (rows.STEERS, Steer),
    (rows.RESTARTS, Restart),
    (rows.BREAKERS, Breaker),
    (rows.BOOK, Entry),
    (rows.ENDINGS, JobEnding),
    *((table, kind) for kind, table in rows.NOTED.items()),
]


@pytest.mark.parametrize(("table", "kind"), EACH, ids=[table.name for table, _ in EACH])
def test_what_is_written_is_read_and_what_is_damaged_is_not(
    table: Table[Any], kind: type[Any]
) -> None:
    """Once for each key; a column that holds something else is named."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    upgrade(db)

    @given(value=values(kind), damaged=st.sampled_from(table.names))
    def check(value: object, damaged: str) -> None:
        db.execute(f"DELETE FROM {table.name}")  # noqa: S608 - our own names
        table.write(db, [value])
        table.write(db, [value])
        assert table.read(db, "") == (value,) * (2 if table is rows.TAKEN else 1)

        row = dict(zip(table.names, table.row(value), strict=True))
        with pytest.raises(ValueError, match=rf"^{table.name}\.{damaged}"):
            table.value([*{**row, damaged: b"\xff"}.values()])

    with closing(db):
        check()


@given(handover=values(Handover))
def test_a_hand_over_is_read_from_its_body(empty: SqliteStore, handover: Handover) -> None:
    """Its numbers to the last digit, and its texts whatever they hold."""
    empty._db.execute("DELETE FROM handover")
    empty.save(StoreChange(handovers=[(handover, "")]))
    assert empty.load().handovers == (handover,)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A ledger with nothing in it, which need not outlast the machine."""
    store = SqliteStore(tmp_path_factory.mktemp("empty") / "ledger.sqlite")
    store._db.execute("PRAGMA synchronous=OFF")
    return store


@pytest.mark.parametrize(
    "damage",
    [
        "INSERT INTO steer VALUES (1, 'spot', '', '', '', 'then', 0, 0, '', NULL)",
        "INSERT INTO restart VALUES (1, 1, 1, 1, 1, 1, 'lost', 1, 1)",
        "INSERT INTO breaker VALUES ('gpus_per_hour', 0, '', '1,n2', 0, '', 0, 0)",
        "INSERT INTO taken VALUES (1, 1, 1, 1, x'00')",
        "INSERT INTO book VALUES ('owed', '', '{}')",
        "INSERT INTO book VALUES ('owed', '', replace(hex(zeroblob(50000)), '0', '['))",
        (
            'INSERT INTO book VALUES (\'owed\', \'\', \'{"job_id": [1], "share": [[1]], "credit_s":'
            ' [[1]], "on": [9], "tasks": [1], "gpu_types": ["a"], "at_s": 1, "lease_s": 1}\')'
        ),
        "INSERT INTO book VALUES ('promise', '1', '{]')",
        "INSERT INTO book VALUES ('promise', '1', '[1]')",
        "INSERT INTO handover VALUES (1, '{}', '')",
        "INSERT INTO handover VALUES (1, replace(hex(zeroblob(50000)), '0', '['), '')",
        "INSERT INTO handover VALUES (1, '{\"handover_id\": 1, \"victims\": []}', '')",
        "UPDATE meta SET value = 'then' WHERE key = 'distrust_until_s'",
    ],
)
def test_a_damaged_ledger_is_not_loaded(path: Path, damage: str) -> None:
    """Nothing may be done by it."""
    with closing(SqliteStore(path)) as store:
        store.save(StoreChange(distrust_until_s=1.0))
        store.load()
        store._db.execute(damage)
        with pytest.raises(StoreError):
            store.load()
