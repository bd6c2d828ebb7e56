"""How the commands write: safe text, fitted tables, one-line errors and their statuses."""

from __future__ import annotations

import unicodedata

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.cli.commandline import run
from slurm_dl.cli.dlqueue.columns import COLUMNS
from slurm_dl.cli.dlschedd.command import slurm_user_in
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.report.terminal_table import Column, fitted, laid_out
from slurm_dl.text import ago, duration, escaped, safe, user_name

HOSTILE = "a\x1b[31m\r\n\t\x00\x9b\u202e\u2028\ud800b\x7f"


@given(st.text(max_size=400))
def test_safe_text_cannot_steer_a_terminal(text: str) -> None:
    """Whatever a user wrote, what is printed is one bounded line of printable characters."""
    for shown in (safe(text), escaped(text)):
        assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
        shown.encode("utf-8")
    assert len(safe(text)) <= 200


def test_safe_drops_and_escaped_keeps() -> None:
    """A table leaves control characters out; a log writes them so that they can be seen."""
    assert safe(HOSTILE) == "a[31mb"
    assert escaped(HOSTILE) == r"a\x1b[31m\r\n\t\x00\x9b\u202e\u2028\ud800b\x7f"


@given(st.text(alphabet=st.characters(categories=["L", "N", "P"]), max_size=100))
def test_ordinary_text_is_left_alone(text: str) -> None:
    """Names in any script are printed as they are."""
    assert safe(text) == escaped(text) == text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, "0:00"),
        (0, "0:00"),
        (59.9, "0:59"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (86399, "23:59:59"),
        (90061, "1-01:01:01"),
    ],
)
def test_durations_are_squeues(seconds: float, expected: str) -> None:
    """As in squeue's TIME column."""
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172800, "2 d")],
)
def test_ages_are_short(seconds: float, expected: str) -> None:
    """One number and one unit."""
    assert ago(seconds) == expected


@given(
    natural=st.lists(st.integers(1, 60), min_size=len(COLUMNS), max_size=len(COLUMNS)),
    width=st.integers(80, 300),
)
def test_columns_give_way_but_never_below_their_least(natural: list[int], width: int) -> None:
    """Only columns that may be cut are cut, only if they must be, and no further than needed."""
    widths = fitted(COLUMNS, natural, width)

    for column, before, after in zip(COLUMNS, natural, widths, strict=True):
        assert after <= before
        if column.least is None:
            assert after == before
        else:
            assert after >= min(before, column.least)
    total = sum(widths) + len(widths) - 1
    if sum(natural) + len(natural) - 1 <= width:
        assert widths == natural
    elif any(c.least is not None and w > c.least for c, w in zip(COLUMNS, widths, strict=True)):
        assert total == width


@pytest.mark.parametrize(
    ("width", "optional", "kept", "widths"),
    [
        (21, 1, [0, 1, 2, 3], [9, 4, 4, 1]),
        (20, 1, [0, 1, 2], [9, 4, 4]),
        (14, 0, [0, 1, 2, 3], [2, 4, 4, 1]),
        (13, 0, [0, 2, 3], [6, 4, 1]),
        (9, 1, [0, 2], [4, 4]),
        (5, 1, [0, 2], [2, 4]),
    ],
)
def test_a_column_that_may_go_goes_where_the_narrowest_table_has_no_room(
    width: int, optional: int, kept: list[int], widths: list[int]
) -> None:
    """After the optional ones, and after all that may be cut was cut."""
    columns = [
        Column(title="A", least=2),
        Column(title="B", may_go=True),
        Column(title="C"),
        Column(title="D"),
    ]

    found, titles, made = laid_out(
        columns, [["a" * 9, "bbbb", "cccc", "d"]], width, optional=optional
    )

    assert (found, made) == (kept, widths)
    assert titles == [columns[i].title for i in kept]
    both = [Column(title="A", may_go=True), Column(title="B", may_go=True)]
    assert laid_out(both, [["aa", "bb"]], 3) == ([0], ["A"], [2])


def test_the_widest_gives_way_first() -> None:
    """A short name is not cut while a long one can be."""
    columns = [Column(title="A", least=2), Column(title="B", least=2)]

    assert fitted(columns, [20, 6], 17) == [10, 6]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigError("a: 1\nb: 2"), 2, "cmd: a: 1\ncmd: b: 2\n"),
        (ClusterError("squeue: no"), 1, "cmd: squeue: no\n"),
        (click.ClickException("x"), 1, "cmd: x\n"),
        (click.Abort(), 1, "cmd: stopped\n"),
        (click.UsageError("bad"), 2, "cmd: bad (see 'cmd --help')\n"),
    ],
)
def test_errors_are_lines_and_statuses(
    error: Exception, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's mistakes end with 2, failures with 1, each line names the command."""

    @click.command()
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        run(command, "cmd", [])

    assert caught.value.code == status
    assert capsys.readouterr().err == said


def test_a_bug_keeps_its_traceback() -> None:
    """What is not the user's fault is not dressed up as one."""

    @click.command()
    def command() -> None:
        msg = "bug"
        raise KeyError(msg)

    with pytest.raises(KeyError):
        run(command, "cmd", [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "root"),
        ("#SlurmUser=x\n", "root"),
        ("SlurmUser=slurm\n", "slurm"),
        ("SlurmdUser=root\n  slurmuser = bob # why\n", "bob"),
        ("SlurmUser=a\nSlurmUser=b", "b"),
    ],
)
def test_slurmuser_is_read_as_slurm_reads_it(text: str, expected: str) -> None:
    """Any case, comments, the last one wins, root if there is none."""
    assert slurm_user_in(text) == expected


@pytest.mark.parametrize(
    ("uid", "prefix", "name"),
    [(0, "#", "root"), (4_000_000_001, "", "4000000001"), (4_000_000_001, "#", "#4000000001")],
)
def test_an_account_without_a_name_is_its_number(uid: int, prefix: str, name: str) -> None:
    """After a sign where sudo is to take it; ids beyond those of the system are numbers too."""
    assert user_name(uid, prefix) == name
    assert user_name(2**40, prefix) == f"{prefix}{2**40}"
