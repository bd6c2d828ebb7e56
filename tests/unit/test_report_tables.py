"""Tables for people: what they tell, that they fit, and that names are only names."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from report_cases import Life, life, records_of, workloads
from rich.cells import cell_len
from rich.console import Console, RenderableType

from slurm_dl.report.summary_metrics import by_size, by_user, summarise
from slurm_dl.report.tables import run_tables, sizes_table, users_table
from slurm_dl.report.terminal_table import duration, number, percent, plain_number, unit_of
from slurm_dl.text import safe

HOUR = 3600.0


def plain(table: RenderableType, *, width: int = 80) -> list[str]:
    """As it is printed into a pipe."""
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_one_run_tells_its_figures_in_80_columns() -> None:
    """Numbers that can be checked by hand, each with its unit."""
    lives = [
        life(0, (0, HOUR), gpus=4, alone=HOUR, lost=(("redone", 0.36 * HOUR),)),
        life(0, (HOUR, 2 * HOUR), (3 * HOUR, 4 * HOUR), gpus=4, alone=2 * HOUR, success=False),
    ]

    lines = plain(run_tables(summarise(records_of(lives), gpus=4), title="2D-LAS on a trace"))

    assert lines[0] == "2D-LAS on a trace"
    told = {" ".join(line.split()) for line in lines}
    assert told >= {
        "jobs 2, 2 finished, 1 with success",
        "makespan 4.00 h",
        "GPUs used 75.0%, 12.0 GPU-hours",
        "GPU-hours lost 0.360 (3.0%): redone 0.360",
        "JCT 2.50 h 2.50 h 4.00 h 4.00 h 4.00 h",
        "queueing in all 60.0 min 60.0 min 2.00 h 2.00 h 2.00 h",
        "wait to first start 30.0 min 30.0 min 60.0 min 60.0 min 60.0 min",
        "slow-down 1.50 1.50 2.00 2.00 2.00",
    }


def test_users_are_those_who_used_most_and_sizes_keep_their_order() -> None:
    """Twenty are shown, the most service first, and it is told that more were left out."""
    lives = [life(0, (0, 10.0 * i), user=f"u{i:02}") for i in range(1, 26)]
    lines = plain(users_table(by_user(records_of(lives), gpus=99)))
    assert [line.split()[0] for line in lines[2:22]] == [f"u{i:02}" for i in range(25, 5, -1)]
    assert "20 with the most GPU-hours, 5 more left out" in lines[22]

    sizes = records_of([life(0, (0, 10), gpus=g) for g in (16, 1, 4, 1)])
    lines = plain(sizes_table(by_size(sizes, gpus=99)))
    assert [line.split()[:2] for line in lines[2:5]] == [["1", "2"], ["3-4", "1"], ["9-16", "1"]]


EVIL = "[red]a[/red] [link=http://x]\x1b[31m\u202eb\nc"


def test_names_are_neither_markup_nor_control() -> None:
    """Brackets stay, escapes go, on one line; in every table that shows a name."""
    records = records_of([life(0, (0, 10), user=EVIL)])
    lossy = records_of([life(0, (0, 10), lost=((EVIL, 1.0),))])

    for table in (
        run_tables(summarise(records, gpus=1), title=EVIL),
        run_tables(summarise(lossy, gpus=1), title=""),
        users_table(by_user(records, gpus=1)),
    ):
        text = "\n".join(plain(table, width=200))
        assert "[red]a[/red]" in text
        assert not {"\x1b", "\u202e"} & set(text)


@settings(max_examples=20)
@given(lives=workloads)
def test_tables_fit_into_80_columns(lives: list[Life]) -> None:
    """Whatever the figures, and where there is none."""
    records = records_of(lives)
    summary = summarise(records, gpus=24)
    users, sizes = by_user(records, gpus=24), by_size(records, gpus=24)

    for table in (run_tables(summary, title="a run"), sizes_table(sizes), users_table(users)):
        assert all(cell_len(line) <= 80 for line in plain(table))


def test_tables_of_nothing_show_dashes() -> None:
    """No job, no run: headings and no traceback."""
    empty = plain(run_tables(summarise(records_of([]), gpus=1), title=""))

    assert "JCT - - - - -" in {" ".join(line.split()) for line in empty}
    assert plain(users_table(()))[-1].startswith("slow-down")


FORMS: dict[Callable[[float], str], list[tuple[float, str]]] = {
    # In the unit that suits, from twice itself on.
    duration: [
        (0, "0 s"), (0.5, "0.500 s"), (95.24, "95.2 s"), (119.9, "120 s"), (120, "2.00 min"),
        (7200, "2.00 h"), (172_700, "48.0 h"), (172_800, "2.00 d"), (1e9, "11,574 d"),
        (math.nan, "-"), (math.inf, "-"),
    ],
    # Three digits that count; rounding adds no fourth.
    number: [
        (0, "0"), (0.04951, "0.050"), (0.9996, "1.00"), (9.996, "10.0"), (99.96, "100"),
        (12345.6, "12,346"), (-3.21, "-3.21"), (math.nan, "-"),
    ],
    # For machines: whole ones without a point, as long as each of them is a float.
    plain_number: [
        (3.0, "3"), (-0.0, "0"), (0.1, "0.1"), (1e22, "1e+22"), (2.0**53, "9007199254740992.0"),
        (math.nan, ""), (math.inf, "inf"),
    ],
    percent: [(0.123, "12.3%"), (math.nan, "-")],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_numbers_are_written_for_people_and_machines(form: Callable[[float], str]) -> None:
    assert [form(value) for value, _ in FORMS[form]] == [text for _, text in FORMS[form]]


def test_a_column_has_one_unit_and_a_long_name_an_end() -> None:
    """The unit of its geometric mean, so that no end of it looks absurd; zeros do not count."""
    columns = ([60, 3600 * 24], [0, 3600 * 4, math.nan], [])
    assert [unit_of(column).sign for column in columns] == ["min", "h", "s"]
    assert safe("a\x00b" * 9, 5) == "abab…"
