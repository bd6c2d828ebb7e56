"""What keys make of a view, and a view of a screen; the terminal itself is in tests/cli."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from slurm_dl.daemon.control.sort_keys import SORTS
from watched import HOSTILE, queue_of

from slurm_dl.cli.dlqueue.watch import keys
from slurm_dl.cli.dlqueue.watch.event_loop import Heard, WatchQuery, after, asked, missing
from slurm_dl.cli.dlqueue.watch.keys import Keys
from slurm_dl.cli.dlqueue.watch.queue_view import SORT_KEYS, View
from slurm_dl.cli.dlqueue.watch.screen import HELP, ScreenData, drawn, pane_lines, room, wrapped
from slurm_dl.daemon.control.queue_query import QueueWindow, page
from slurm_dl.daemon.published_state import Filter

KEYS = st.sampled_from(
    [
        *SORT_KEYS,
        *"qwmjkgGh?/-<> x",
        keys.UP,
        keys.DOWN,
        keys.PAGE_UP,
        keys.PAGE_DOWN,
        keys.HOME,
        keys.END,
        keys.ENTER,
        keys.ESCAPE,
        keys.BACKSPACE,
        keys.CLEAR,
    ]
)

# Keys.


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"jk", ["j", "k"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["pgup", "pgdn", "home", "end"]),
        (b"\r\n\x7f\x08\x15", ["enter", "enter", "backspace", "backspace", "clear"]),
        (b"\x1b[200~x\x1b[1;5C", ["x"]),
        (b"\x1bx", ["escape", "x"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        ("é終".encode(), ["é", "終"]),
        (b"\xff", ["\ufffd"]),
        (b"\x00\x07\xc2\x9b", []),
    ],
)
def test_keys_have_names(raw: bytes, expected: list[str]) -> None:
    """What terminals send for a key, in one piece and byte by byte."""
    one_by_one = Keys()

    assert Keys().feed(raw) == expected
    assert [key for byte in raw for key in one_by_one.feed(bytes([byte]))] == expected


def test_an_escape_alone_is_a_key_once_nothing_follows() -> None:
    """Until then it may be the beginning of another one."""
    pressed = Keys()

    assert pressed.feed(b"\x1b") == []
    assert pressed.waits
    assert pressed.flush() == ["escape"]
    assert not pressed.waits
    assert pressed.feed(b"\x1b[") == []
    assert pressed.flush() == []


@given(chunks=st.lists(st.binary(max_size=12), max_size=12))
@settings(max_examples=300)
def test_whatever_is_pasted_is_names_or_printable(chunks: list[bytes]) -> None:
    """No byte makes it fail, none is kept for ever, and no key is a control character."""
    pressed = Keys()
    names = [key for chunk in chunks for key in pressed.feed(chunk)]

    for key in [*names, *pressed.flush()]:
        assert len(key) > 1 or unicodedata.category(key)[0] != "C"
    assert not pressed.waits


def test_a_sequence_without_an_end_is_given_up() -> None:
    """It must not eat what is typed for ever."""
    pressed = Keys()
    pressed.feed(b"\x1b[" + b"1" * 100)

    assert pressed.feed(b"j")[-1] == "j"


# Views.


@given(
    pressed=st.lists(KEYS, max_size=30),
    total=st.integers(0, 40),
    rows=st.integers(1, 12),
    said=st.integers(0, 30),
)
@settings(max_examples=300)
def test_the_selection_is_in_the_list_and_on_the_screen(
    pressed: list[str], total: int, rows: int, said: int
) -> None:
    """After any keys, on any screen, for any queue."""
    view = View().sized(rows, 0, 0).heard(total, None)
    for key in pressed:
        view = view.pressed(key, selected="7" if total else "")
        view = view.sized(rows, 4 if view.pane else 0, said if view.pane else 0)

        assert 0 <= view.cursor <= max(0, total - 1)
        assert view.first <= view.cursor < view.first + rows or total == 0
        assert 0 <= view.first <= max(0, total - rows)
        assert 0 <= view.scroll <= view.most_scroll
        assert all(word.removeprefix("-") in SORTS for word in view.by)
        if view.over:
            return


@given(at=st.integers(0, 99), cursor=st.integers(1, 99), rows=st.integers(1, 30))
def test_the_selection_goes_with_its_job(at: int, cursor: int, rows: int) -> None:
    """And stays on its line of the screen where the list's ends let it."""
    view = replace(View().sized(rows, 0, 0), total=100, cursor=cursor, follows=True).settled()

    moved = view.heard(100, at)

    assert moved.cursor == at
    line, was = at - moved.first, view.cursor - view.first
    assert line == was or moved.first in (0, max(0, 100 - rows))


def test_the_top_stays_the_top() -> None:
    """Who has not moved sees who is first now, not who was."""
    view = View().sized(5, 0, 0).heard(50, None)

    assert view.heard(50, 30).cursor == 0
    assert not view.pressed("j").pressed("k").follows
    assert not view.pressed("G").pressed("g").follows


@pytest.mark.parametrize(("key", "word"), SORT_KEYS.items())
def test_each_letter_sorts_and_sorts_the_other_way_round(key: str, word: str) -> None:
    """From the top; the second time turned round."""
    view = replace(View(by=("tier",)).sized(5, 0, 0).heard(50, None), cursor=30, follows=True)

    once = view.pressed(key)
    twice = once.pressed(key)

    assert once.by == (word,)
    assert (once.cursor, once.first, once.follows) == (0, 0, False)
    assert {twice.by[0], word} == {word.removeprefix("-"), f"-{word.removeprefix('-')}"}
    assert once.pressed("-").by == twice.by


def test_letters_go_to_all_sorts_with_the_arrows() -> None:
    """< and > go through every word and come round."""
    view = View().sized(5, 0, 0)
    seen = []
    for _ in SORTS:
        seen.append(view.by[0])
        view = view.pressed(">")

    assert seen == list(SORTS)
    assert view.by == ("rank",)
    assert view.pressed("<").by == (SORTS[-1],)


def test_a_filter_is_taken_left_and_dropped() -> None:
    """Enter takes what was typed, Escape while typing leaves it, in the list it drops it."""
    view = View().sized(5, 0, 0).heard(50, None)
    typed = view.pressed("/")
    for key in "qa1":
        typed = typed.pressed(key)

    assert not typed.over
    assert typed.typing == "qa1"
    taken = typed.pressed(keys.BACKSPACE).pressed(keys.ENTER)
    assert (taken.search, taken.typing) == ("qa", None)
    assert taken.pressed("/").typing == "qa"
    assert taken.pressed("/").pressed("b").pressed(keys.ESCAPE).search == "qa"
    assert taken.pressed("/").pressed(keys.CLEAR).pressed(keys.ENTER).search == ""
    assert taken.pressed(keys.ESCAPE).search == ""


def test_a_pane_opens_scrolls_and_closes() -> None:
    """Keys go to the pane while it is open; q closes it and does not quit."""
    view = View().sized(5, 0, 0).heard(50, None)
    assert view.pressed("w", "").pane == ""
    opened = view.pressed("w", "12_3").sized(5, 4, 20)

    assert (opened.pane, opened.why_of) == ("why", "12_3")
    assert opened.pressed("j").scroll == 1
    assert opened.pressed("G").scroll == 16
    assert opened.pressed("G").pressed(keys.PAGE_UP).scroll == 13
    assert opened.pressed("j").cursor == 0
    for key in ("q", "w", keys.ENTER, keys.ESCAPE):
        closed = opened.pressed(key)
        assert (closed.pane, closed.why_of, closed.over) == ("", "", False)
    assert opened.pressed("r").by == opened.by
    assert view.pressed("q").over


# Questions and answers.

JOBS = page(queue_of(60), Filter(), QueueWindow()).jobs


def test_it_asks_for_what_it_shows() -> None:
    """A screenful on either side, however long the queue; the place of the job it follows."""
    view = View(search="x", by=("-gpus",)).sized(10, 0, 0).heard(10_000, None)
    known = ScreenData(jobs=JOBS, offset=0)
    far = replace(view, first=5000, cursor=5003, follows=True)

    assert asked(view, known, {"user": ["ann"]}).fields == {
        "user": ["ann"],
        "sort": ["-gpus"],
        "search": "x",
        "offset": 0,
        "limit": 20,
    }
    question = asked(far, ScreenData(jobs=JOBS, offset=4990), {"user": ["ann"]})
    assert (question.fields["offset"], question.fields["limit"]) == (4990, 30)
    assert question.fields["locate"] == JOBS[13]["job_id"]
    mine = asked(replace(view, mine=True), known, {"user": ["ann"]}).fields["user"]
    assert mine != ["ann"]


def test_an_answer_about_another_list_is_not_shown() -> None:
    """Somebody has sorted otherwise since; that the daemon is there is taken all the same."""
    view = View().sized(10, 0, 0)
    known = ScreenData(away="was away")
    question = asked(view, known, {})
    page_ = {"jobs": JOBS, "total": 60, "offset": 0, "doing": "acting", "age_s": 1.0}

    _, taken = after(view, known, Heard(question, page_), {})
    _, left = after(view.pressed("u"), known, Heard(question, page_), {})

    assert len(taken.jobs) == 60
    assert left.jobs == ()
    assert left.away == ""


def test_an_old_look_is_shown_as_such() -> None:
    """How old it is and why, in the first line."""
    view, known = View().sized(10, 0, 0), ScreenData()
    page_ = {"jobs": JOBS, "total": 60, "doing": "waiting", "age_s": 29.0, "stale": True}
    page_["last_error"] = "no contact"

    view, known = after(view, known, Heard(asked(view, known, {}), page_), {})

    assert (
        "as of 29 s ago: dlschedd is waiting (no contact)" in drawn(view, known, 160, 24)[0].plain
    )


def test_no_answer_keeps_what_is_shown() -> None:
    """And says why."""
    view, known = View().sized(10, 0, 0).heard(60, None), ScreenData(jobs=JOBS)

    same, told = after(view, known, Heard(WatchQuery({}, ""), error="it is away"), {})

    assert same == view
    assert (told.jobs, told.away) == (JOBS, "it is away")


def test_a_job_that_went_elsewhere_takes_the_screen_along() -> None:
    """The part that was asked for may not have it: the next one will."""
    view = replace(View().sized(10, 0, 0).heard(1000, None), cursor=5, follows=True)
    known = ScreenData(jobs=JOBS, offset=0)
    question = asked(view, known, {})
    answer = Heard(question, {"jobs": JOBS[:20], "total": 1000, "offset": 0, "at": 500})

    moved, then = after(view, known, answer, {})

    assert moved.cursor == 500
    assert missing(moved, then)
    offset = asked(moved, then, {}).fields["offset"]
    assert isinstance(offset, int)
    assert offset <= moved.first


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"jobs": None, "total": None},
        {"jobs": ["x", 7], "total": "9", "offset": [], "at": "x", "doing": 7, "age_s": "old"},
    ],
)
def test_an_answer_that_is_none_breaks_nothing(answer: dict[str, object]) -> None:
    """Another version of the daemon may leave things out."""
    view, known = View().sized(10, 0, 0), ScreenData()

    view, known = after(view, known, Heard(asked(view, known, {}), answer), {})  # type: ignore[arg-type]

    assert view.total == 0
    drawn(view, known, 80, 24)


# Screens.

HOSTILE_JOBS = page(queue_of(60, names=lambda _: HOSTILE), Filter(), QueueWindow()).jobs


@given(
    width=st.integers(1, 220),
    height=st.integers(1, 60),
    pressed=st.lists(KEYS, max_size=6),
    known=st.builds(
        ScreenData,
        jobs=st.just(HOSTILE_JOBS),
        offset=st.integers(0, 40),
        sentences=st.lists(st.text(max_size=120), max_size=6),
        away=st.text(max_size=60),
    ),
)
@settings(max_examples=200)
def test_a_screen_is_filled_exactly(
    width: int, height: int, pressed: list[str], known: ScreenData
) -> None:
    """As many lines as it has, each as wide as it is, and nothing in it that steers a terminal."""
    view = View().heard(60, None)
    for key in ["", *pressed]:
        view = view.pressed(key, selected="5")
        rows, pane_rows = room(height, pane=bool(view.pane))
        said = len(pane_lines(view, known, width)) if view.pane else 0
        view = view.sized(rows, pane_rows, said)

    lines = drawn(view, known, width, height)

    assert len(lines) == height
    for line in lines:
        assert cell_len(line.plain) == width
        assert not {unicodedata.category(c) for c in line.plain} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_eighty_columns_are_enough() -> None:
    """Every column of ten thousand jobs stands in 80 columns, no number cut."""
    jobs = [
        {**job, "name": "a-very-long-name-of-a-job", "rank": 10_000, "attained_gpu_h": 98765.43}
        | {"time_s": 86400 * 12 + 5, "restarts": 112, "job": "12345678", "gpus": 1024.0}
        for job in JOBS
    ]
    view = View().sized(21, 0, 0).heard(10_000, None)

    lines = [line.plain for line in drawn(view, ScreenData(jobs=jobs), 80, 24)]

    assert lines[1].split() == [
        *("JOBID", "PART", "NAME", "USER", "ST", "GPUS", "TIER", "RANK", "GPU-h", "RST", "TIME"),
        "NODES(W…",
    ]
    for line in lines[2:-1]:
        for number in ("12345678 ", " 1024 ", " 10000 ", " 98765.43 ", " 112 "):
            assert number in line


def test_a_wide_terminal_gets_more() -> None:
    """Whole headings, account and QOS."""
    view = View().sized(21, 0, 0).heard(60, None)

    heading = drawn(view, ScreenData(jobs=JOBS), 200, 24)[1].plain.split()

    assert heading[-3:] == ["ACCOUNT", "QOS", "NOTE"]
    assert "ATTAINED(GPU-h)" in heading


@given(text=st.text(max_size=200), width=st.integers(2, 40))
def test_wrapping_loses_nothing_but_blanks(text: str, width: int) -> None:
    """No line is too wide, and every other character is still there, in order."""
    lines = wrapped(text, width)

    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_help_names_every_key() -> None:
    """And fits 80 columns."""
    text = "\n".join(HELP)

    assert all(cell_len(line) <= 79 for line in HELP)
    for key, word in SORT_KEYS.items():
        assert f"\n{key} " in text
        assert f"by {word.removeprefix('-')}" in text
    for key in ("j k", "PgUp", "PgDn", "g G", "w, Enter", "/", "Esc", "m ", "q, Ctrl-C", "< >"):
        assert key in text
