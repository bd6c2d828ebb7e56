"""The tables of the page of all policies are what its commands find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs import comparison

PAGE = comparison.PAGE.read_text("utf-8")
COMMANDS = comparison.commands(PAGE)


def figure(cell: str) -> float:
    return float(cell.rstrip("%").replace(",", ""))


@pytest.mark.parametrize("place", range(len(comparison.TABLES)), ids=["all", "gavel"])
def test_the_table_has_what_its_command_finds(place: int, tmp_path: Path) -> None:
    """But for ties that rounding decides, which differs between processors."""
    found = comparison.measured(COMMANDS[place], tmp_path)

    rows = {row[0]: row[1:] for row in comparison.TABLES[place](found)}

    told = {row[0]: row[1:] for row in comparison.told(PAGE)[place]}
    assert set(told) == set(rows)
    for policy, cells in told.items():
        want = [pytest.approx(figure(cell), rel=0.02, abs=0.1) for cell in rows[policy]]
        assert [figure(cell) for cell in cells] == want, policy
