"""Tables for people: what they tell, that they fit, and that names are only names."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given, settings
from report_cases import Life, life, records_of, workloads
from rich.cells import cell_len
from rich.console import Console, RenderableType

from slurm_dl.report.number_format import duration, number, percent, plain_number, unit_of
from slurm_dl.report.summary_metrics import Summary, by_size, by_user, summarise
from slurm_dl.report.tables import run_tables, sizes_table, users_table
from slurm_dl.text import safe

HOUR = 3600.0


def plain(table: RenderableType, *, width: int = 80) -> list[str]:
    """As it is printed into a pipe."""
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def slow(factor: float) -> Summary:
    """A run whose jobs took *factor* times 10 h and 30 h."""
    lives = [life(0, (0, 10 * HOUR * factor)), life(0, (0, 30 * HOUR * factor))]
    return summarise(records_of(lives), gpus=4)


def test_one_run_tells_its_figures_in_80_columns() -> None:
    """Numbers that can be checked by hand, each with its unit."""
    lives = [
        life(0, (0, HOUR), gpus=4, alone=HOUR, lost=(("redone", 0.36 * HOUR),)),
        life(0, (HOUR, 2 * HOUR), (3 * HOUR, 4 * HOUR), gpus=4, alone=2 * HOUR, success=False),
    ]

    lines = plain(run_tables(summarise(records_of(lives), gpus=4), title="2D-LAS on a trace"))

    assert lines[0] == "2D-LAS on a trace"
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "jobs 2, 2 finished, 1 with success" in text
    assert "makespan 4.00 h" in text
    assert "GPUs used 75.0%, 12.0 GPU-hours" in text
    assert "GPU-hours lost 0.360 (3.0%): redone 0.360" in text
    assert "JCT 2.50 h 2.50 h 4.00 h 4.00 h 4.00 h" in text
    assert "queueing in all 60.0 min 60.0 min 2.00 h 2.00 h 2.00 h" in text
    assert "wait to first start 30.0 min 30.0 min 60.0 min 60.0 min 60.0 min" in text
    assert "slow-down 1.50 1.50 2.00 2.00 2.00" in text


def test_users_are_those_who_used_most() -> None:
    """Twenty are shown, the most service first, and it is told that more were left out."""
    lives = [life(0, (0, 10.0 * i), user=f"u{i:02}") for i in range(1, 26)]

    lines = plain(users_table(by_user(records_of(lives), gpus=99)))

    assert [line.split()[0] for line in lines[2:22]] == [f"u{i:02}" for i in range(25, 5, -1)]
    assert "20 with the most GPU-hours, 5 more left out" in lines[22]


def test_sizes_keep_their_order() -> None:
    """From few GPUs to many, whoever used most."""
    lives = [life(0, (0, 10), gpus=g) for g in (16, 1, 4, 1)]

    lines = plain(sizes_table(by_size(records_of(lives), gpus=99)))

    assert [line.split()[:2] for line in lines[2:5]] == [["1", "2"], ["3-4", "1"], ["9-16", "1"]]


EVIL = "[red]a[/red] [link=http://x]\x1b[31m\u202eb\nc"


def test_names_are_neither_markup_nor_control() -> None:
    """Brackets stay, escapes go, on one line; in every table that shows a name."""
    records = records_of([life(0, (0, 10), user=EVIL)])
    lossy = records_of([life(0, (0, 10), lost=((EVIL, 1.0),))])
    summary = summarise(records, gpus=1)
    tables = [
        run_tables(summary, title=EVIL),
        run_tables(summarise(lossy, gpus=1), title=""),
        users_table(by_user(records, gpus=1)),
    ]

    for table in tables:
        out = io.StringIO()
        Console(file=out, width=200).print(table)
        text = out.getvalue()
        assert "[red]a[/red]" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


@settings(max_examples=20)
@given(lives=workloads)
def test_tables_fit_into_80_columns(lives: list[Life]) -> None:
    """Whatever the figures, and where there is none."""
    records = records_of(lives)
    summary = summarise(records, gpus=24)

    for table in (
        run_tables(summary, title="a run"),
        sizes_table(by_size(records, gpus=24)),
        users_table(by_user(records, gpus=24)),
    ):
        assert all(cell_len(line) <= 80 for line in plain(table))


def test_tables_of_nothing_show_dashes() -> None:
    """No job, no run: headings and no traceback."""
    empty = summarise(records_of([]), gpus=1)

    assert "JCT                    -" in "\n".join(plain(run_tables(empty, title="")))
    assert plain(users_table(()))[-1].startswith("slow-down")


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0, "0 s"), (0.5, "0.500 s"), (95.24, "95.2 s"), (119.9, "120 s"), (120, "2.00 min"),
        (7200, "2.00 h"), (172_700, "48.0 h"), (172_800, "2.00 d"), (1e9, "11,574 d"),
        (math.nan, "-"), (math.inf, "-"),
    ],
)  # fmt: skip
def test_times_are_written_in_the_unit_that_suits(time_s: float, text: str) -> None:
    """Three digits that count; a unit from twice itself on."""
    assert duration(time_s) == text


def test_a_column_has_one_unit() -> None:
    """That of its geometric mean, so that no end of it looks absurd; zeros do not count."""
    assert unit_of([60, 3600 * 24]).sign == "min"
    assert unit_of([0, 3600 * 4, math.nan]).sign == "h"
    assert unit_of([]).sign == "s"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.04951, "0.050"), (0.9996, "1.00"), (9.996, "10.0"), (99.96, "100"),
     (12345.6, "12,346"), (-3.21, "-3.21"), (math.nan, "-")],
)  # fmt: skip
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    """Rounding does not add a fourth."""
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.0, "3"), (-0.0, "0"), (0.1, "0.1"), (1e22, "1e+22"), (2.0**53, "9007199254740992.0"),
     (math.nan, ""), (math.inf, "inf")],
)  # fmt: skip
def test_numbers_for_machines_read_back(value: float, text: str) -> None:
    """Whole ones without a point, as long as each of them is a float."""
    assert plain_number(value) == text


def test_shares_and_names() -> None:
    """A missing share is a dash; a long name ends with a mark of it."""
    assert (percent(0.123), percent(math.nan)) == ("12.3%", "-")
    assert safe("a\x00b" * 9, 5) == "abab…"
