"""The tables of the page of all policies are what its commands find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs import comparison

CASES = {
    "all": ("policies-compared.md", 0),
    "gavel": ("policies-compared.md", 1),
    "itp10": ("elastic.md", 0),
    "itp01": ("elastic.md", 1),
    "itp06": ("elastic.md", 2),
    "itp10 expanded": ("elastic.md", 3),
    "itp01 expanded": ("elastic.md", 4),
    "itp06 expanded": ("elastic.md", 5),
}
SLOW = pytest.mark.full("half a minute to two minutes")


def figure(cell: str) -> float:
    return float(cell.rstrip("%").replace(",", ""))


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=SLOW if case.startswith("itp") else ()) for case in CASES],
)
def test_the_table_has_what_its_command_finds(case: str, tmp_path: Path) -> None:
    """But for ties that rounding decides, which differs between processors."""
    name, place = CASES[case]
    page = (comparison.DOCS / name).read_text("utf-8")
    found = comparison.measured(comparison.commands(page)[place], tmp_path)

    rows = {row[0]: row[1:] for row in comparison.TABLES[name][place](found)}

    told = {row[0]: row[1:] for row in comparison.told(page)[place]}
    assert set(told) == set(rows)
    for policy, cells in told.items():
        want = [pytest.approx(figure(cell), rel=0.02, abs=0.1) for cell in rows[policy]]
        assert [figure(cell) for cell in cells] == want, policy
