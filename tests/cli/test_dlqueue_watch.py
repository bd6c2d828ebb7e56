"""dlqueue --watch on a terminal of 80 columns and 24 lines, as an emulator of one shows it."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE, eventually
from watched import HOSTILE, MODULE, Place, Screen, place_of, queue_of, without

Watch = Callable[..., Screen]


@pytest.fixture
def place(short_directory: Path) -> Iterator[Place]:
    """A daemon that has seen 10,000 jobs, the first of them of hostile names."""
    named = queue_of(10_000, names=lambda j: HOSTILE if j < 30 else f"job-{j}")
    with place_of(short_directory, named) as made:
        yield made


@pytest.fixture
def watch(place: Place) -> Iterator[Watch]:
    """A function that starts to watch; all end with the test."""
    screens = []

    def start(*options: str, every_s: str = "0.5", columns: int = 80, lines: int = 24) -> Screen:
        argv = [*MODULE, "--socket", str(place.socket), *options, "--watch", every_s]
        screen = Screen(argv, columns=columns, lines=lines)
        screens.append(screen)
        screen.until_says("dlqueue  ")
        return screen

    yield start
    for screen in screens:
        screen.close()


def state(screen: Screen) -> str:
    """The first line: what is shown, of how many, in which order."""
    return screen.lines[0]


def ids(screen: Screen) -> list[str]:
    """The jobs on the screen."""
    return [line.split()[0] for line in screen.lines[2:] if re.match(r"\d+ +gpu", line)]


def is_as_it_was(screen: Screen) -> bool:
    """Whether the terminal is set as at first, its screen left and its cursor seen."""
    ends = screen.raw.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")
    return screen.terminal_modes == screen.modes and ends


def test_every_key_does_what_help_says(watch: Watch) -> None:
    """Moving, sorting, filters, panes: one after the other on ten thousand jobs."""
    screen = watch()
    assert ids(screen) == [str(j) for j in range(5, 26)]
    assert "1-21 of 10000  by rank" in state(screen)

    def then(keys: str, test: Callable[[Screen], object], what: str) -> None:
        screen.press(keys)
        screen.until(test, what)

    then("jj\x1b[B", lambda s: s.selected.startswith("8 "), "three down")
    then("k", lambda s: s.selected.startswith("7 "), "one up")
    then("\x1b[6~", lambda s: s.selected.startswith("28 "), "a page down")
    then("\x1b[5~", lambda s: s.selected.startswith("7 "), "a page up")
    then("G", lambda s: s.selected.startswith("4 ") and "-10000 of" in state(s), "the last")
    then("\x1b[H", lambda s: s.selected.startswith("5 ") and "1-21 of" in state(s), "the first")
    then("d", lambda s: "by -gpus" in state(s) and ids(s)[:2] == ["7", "15"], "most GPUs")
    then("d", lambda s: "by gpus" in state(s) and ids(s)[:2] == ["8", "16"], "fewest GPUs")
    then("s", lambda s: "by running" in state(s) and ids(s)[:5] == list("12345"), "running first")
    then("a", lambda s: "by attained" in state(s) and ids(s)[0] == "5", "least service")
    then("-", lambda s: "by -attained" in state(s) and ids(s)[:2] == ["4", "3"], "most service")
    then("t", lambda s: "by -time" in state(s) and ids(s)[0] == "4", "longest run")
    then("u", lambda s: "by user" in state(s) and ids(s)[0] == "7", "by user")
    then("c", lambda s: "by account" in state(s) and ids(s)[0] == "6", "by account")
    then("p", lambda s: "by partition" in state(s), "by partition")
    then("n", lambda s: "by name" in state(s) and ids(s)[0] == "5", "by name")
    then("e", lambda s: "by -restarts" in state(s), "by restarts")
    then("i", lambda s: "by job" in state(s) and ids(s)[0] == "1", "by id")
    then(">", lambda s: "by user" in state(s), "the next word")
    then("<<", lambda s: "by attained" in state(s), "the words before")
    then("r", lambda s: "by rank" in state(s) and ids(s)[0] == "5", "by rank")
    then("/job-77", lambda s: s.lines[-1].startswith("/job-77_"), "typing")
    then("\r", lambda s: "of 111 " in state(s) and "with 'job-77'" in state(s), "the filter")
    then("\x1b", lambda s: "of 10000" in state(s), "no filter")
    then("m", lambda s: "of 1000 " in state(s) and "mine" in state(s), "mine")
    then("m", lambda s: "of 10000" in state(s), "all again")
    then("jw", lambda s: "-- why 6" in "\n".join(s.lines), "the pane")
    screen.until_says("It has rank 2 of 10000")
    then("?q", lambda s: "-- why" not in "\n".join(s.lines), "no pane")
    then("?", lambda s: "-- keys" in "\n".join(s.lines), "help")
    first = "\n".join(screen.lines)
    then("G", lambda s: "\n".join(s.lines) != first and "by restarts" in s.lines[-2], "its end")
    then("?", lambda s: "-- keys" not in "\n".join(s.lines), "no help")
    screen.press("q")

    assert screen.process.wait(20 * PATIENCE) == 0
    eventually(lambda: is_as_it_was(screen), 10.0)


def test_hostile_names_stay_in_their_cells(watch: Watch) -> None:
    """Nothing of them reaches the terminal but printable characters, in list and pane."""
    screen = watch()

    screen.press("w")
    screen.until_says("-- why 5")

    assert all(re.match(r"\d+ +gpu  \[2J\]0;owned", line) for line in screen.lines[2:5])
    assert all(len(line) <= 80 for line in screen.lines)
    assert b"\x1b[2J\x1b]0" not in screen.raw
    assert b"\x1b]" not in screen.raw


def test_the_selection_follows_its_job(watch: Watch, place: Place) -> None:
    """Jobs before it end: it stays marked, on its line."""
    screen = watch()
    screen.press("\x1b[6~jjj")
    screen.until(lambda s: s.selected.startswith("29 "), "job 29")

    cycle = place.context.board.current.cycle
    assert cycle is not None
    place.show(without(without(cycle, 6), 7))

    screen.until(lambda s: "of 9998" in state(s), "the next look")
    assert screen.selected.startswith("29 ")


def test_a_daemon_that_goes_away_comes_back(watch: Watch, place: Place) -> None:
    """What was shown stays, with its age; keys work; it goes on by itself."""
    screen = watch()

    place.end()
    screen.until(lambda s: "AWAY, shown is" in state(s), "that it is away")
    assert ids(screen)[0] == "5"
    screen.press("j")
    screen.until(lambda s: s.selected.startswith("6 "), "a key")
    place.begin()

    screen.until(lambda s: "AWAY" not in state(s), "that it is back")
    assert screen.selected.startswith("6 ")


def test_it_fits_whatever_window(watch: Watch) -> None:
    """A smaller and a larger one, while it runs."""
    screen = watch()

    screen.resize(40, 8)
    screen.until(lambda s: "1-5 of" in state(s) and s.lines[-1].startswith("q quit"), "five jobs")
    screen.resize(150, 50)
    screen.until(lambda s: "1-47 of" in state(s) and "ACCOUNT" in s.lines[1], "47 jobs")


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("\x03", 0),
        (signal.SIGINT, 0),
        (signal.SIGTERM, -signal.SIGTERM),
        (signal.SIGHUP, -signal.SIGHUP),
        ("\x1c", -signal.SIGQUIT),
    ],
)
def test_whatever_ends_it_gives_the_terminal_back(
    watch: Watch, how: str | signal.Signals, status: int
) -> None:
    """Ctrl-C quits; signals that end programs end it, once the terminal is as it was."""
    screen = watch()
    assert screen.terminal_modes != screen.modes

    if isinstance(how, str):
        screen.press(how)
    else:
        screen.process.send_signal(how)

    assert screen.process.wait(20 * PATIENCE) == status
    eventually(lambda: is_as_it_was(screen), 10.0)


def test_an_exception_gives_the_terminal_back(place: Place) -> None:
    """A bug is told on the ordinary screen."""
    broken = (
        "import slurm_dl.cli.dlqueue.watch.event_loop as loop\n"
        "from slurm_dl.cli.dlqueue.command import main\n"
        "def drawn(*_): raise RuntimeError('a bug')\n"
        "loop.drawn = drawn\n"
        "main()"
    )
    screen = Screen([sys.executable, "-c", broken, "--socket", str(place.socket), "--watch"])
    try:
        assert screen.process.wait(30 * PATIENCE) == 1
        eventually(lambda: b"RuntimeError: a bug" in screen.raw, 10.0)
        assert screen.terminal_modes == screen.modes
        assert screen.raw.rindex(b"\x1b[?1049l") < screen.raw.rindex(b"RuntimeError")
    finally:
        screen.close()


def test_ctrl_z_stops_it_and_fg_goes_on(place: Place) -> None:
    """The shell has its terminal in between."""
    command = shlex.join([*MODULE, "--socket", str(place.socket), "--watch", "0.5"])
    script = f"{command}; echo STOPPED; stty -a; read -r; fg >/dev/null; echo ENDED $?"
    screen = Screen(["bash", "-mc", script])
    try:
        screen.until_says("of 10000")
        screen.press("\x1a")
        screen.until_says("STOPPED")
        screen.until_says("\nisig icanon ")
        assert screen.raw.count(b"\x1b[?1049l") == 1
        screen.press("\n")
        screen.until(lambda s: state(s).startswith("dlqueue  1-21 of"), "it to go on")
        assert screen.raw.count(b"\x1b[?1049h") == 2
        screen.press("j")
        screen.until(lambda s: s.selected.startswith("6 "), "a key")
        screen.press("q")
        screen.until_says("ENDED 0")
        assert screen.terminal_modes == screen.modes
    finally:
        screen.close()


def test_options_choose_what_is_watched(watch: Watch) -> None:
    """Filters and orders of the list are those of the watch."""
    screen = watch("-A", "lab1", "--sort", "-gpus,job", "-t", "PD", "--me")

    assert "of 334 " in state(screen)
    assert "by -gpus,job  mine" in state(screen)
    screen.press("m")
    screen.until(lambda s: "of 3332 " in state(s), "everybody's")


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--watch"], 2, "--watch needs a terminal"),
        (["--watch", "0"], 2, "0.5<=x<=3600"),
        (["--watch", "--json"], 2, "exclude each other"),
    ],
)
def test_in_a_pipe_it_says_what_to_do(
    place: Place, args: list[str], status: int, message: str
) -> None:
    """One line on standard error, and nothing on standard output."""
    done = subprocess.run(
        [*MODULE, "--socket", str(place.socket), *args],
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
        stdin=subprocess.DEVNULL,
    )

    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_mistake_is_said_before_the_screen_is_taken(place: Place) -> None:
    """A state that is none, on a terminal: one line and status 1."""
    screen = Screen([*MODULE, "--socket", str(place.socket), "-t", "ZZ", "--watch"])
    try:
        assert screen.process.wait(30 * PATIENCE) == 1
        eventually(lambda: b"no job state 'ZZ'" in screen.raw, 10.0)
        assert b"\x1b[?1049h" not in screen.raw
    finally:
        screen.close()
