"""dlqueue --watch: the application by Textual's pilot, and both displays on a real terminal."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PATIENCE, eventually
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import DataTable
from watched import HOSTILE, MODULE, Place, Terminal, place_of, queue_of, without

from slurm_dl.cli.dlqueue.watch.app import SORT_KEYS, WatchApp
from slurm_dl.cli.dlqueue.watch.last_answer import Shown
from slurm_dl.daemon.control.client import Client
from slurm_dl.daemon.control.wire_format import QueueRequest
from slurm_dl.json_types import Json, JsonObject

WITHOUT_TEXTUAL = [
    sys.executable,
    "-c",
    """import sys; sys.modules['textual'] = None
from slurm_dl.cli.dlqueue.command import main; main()""",
]
WITH_A_BUG = [
    sys.executable,
    "-c",
    """from slurm_dl.cli.dlqueue.watch import app
app.laid_out = None
from slurm_dl.cli.dlqueue.command import main; main()""",
]


@pytest.fixture
def place(short_directory: Path) -> Iterator[Place]:
    """A daemon that has seen 10,000 jobs, the first of them of hostile names."""
    named = queue_of(10_000, names=lambda j: HOSTILE if j < 30 else f"job-{j}")
    with place_of(short_directory, named) as made:
        yield made


class SlowClient(Client):
    """A client whose answers come while `through` is set; it notes how many jobs are asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.limits: list[Json] = []
        self.through = threading.Event()
        self.through.set()

    def ask(self, request: str, **fields: Json) -> JsonObject:
        """As a client does."""
        if request == "queue":
            self.limits.append(fields.get("limit"))
        self.through.wait(60)
        return super().ask(request, **fields)


class Watched:
    """The application, as a user sees it."""

    def __init__(self, app: WatchApp, pilot: Pilot[None], client: SlowClient) -> None:
        self.app, self.pilot, self.client = app, pilot, client

    @property
    def lines(self) -> list[str]:
        """What stands on the screen."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def ids(self) -> list[str]:
        """The jobs on the screen."""
        return [line.split()[0] for line in self.lines[2:] if re.match(r"\d+ +gpu", line)]

    @property
    def selected(self) -> str:
        """The id of the selected job."""
        table = self.app.query_one(DataTable)
        return str(table.get_row_at(table.cursor_row)[0]).strip()

    async def until(self, test: Callable[[Watched], object], what: str) -> None:
        """Wait until the screen is as wanted."""
        end_s = time.monotonic() + 20 * PATIENCE
        while not test(self):
            assert time.monotonic() < end_s, "\n".join([what, *self.lines])
            await self.pilot.pause(0.02)

    async def says(self, *texts: str) -> None:
        """Wait until all these stand on the screen."""
        await self.until(lambda w: all(t in "\n".join(w.lines) for t in texts), repr(texts))


def watch(
    place: Place,
    scene: Callable[[Watched], Awaitable[None]],
    request: QueueRequest | None = None,
    *,
    size: tuple[int, int] = (80, 24),
    me: bool = False,
) -> None:
    """Run *scene* in a watch that asks five times a second."""

    async def run() -> None:
        client, wanted, shown = SlowClient(place.socket), request or QueueRequest(), Shown()
        shown.hear(client.ask("queue", **replace(wanted, limit=24).fields()))
        app = WatchApp(client, wanted, shown, every_s=0.2, me=me)
        async with app.run_test(size=size) as pilot:
            await scene(Watched(app, pilot, client))
            client.through.set()

    asyncio.run(run())


KEYS: list[tuple[str, str, list[str], str]] = [
    # Keys, what the first line says then, the first jobs, the selected one.
    ("", "1-21 of 10000  by rank", ["5", "6"], "5"),
    ("j j down", "1-21 of", ["5"], "8"),
    ("k", "1-21 of", ["5"], "7"),
    ("pagedown", "22-42 of", ["26"], "28"),
    ("pageup", "1-21 of", ["5"], "7"),
    ("G", "9980-10000 of", ["9984"], "4"),
    ("home", "1-21 of", ["5"], "5"),
    ("d", "by -gpus", ["7", "15"], "7"),
    ("d", "by gpus", ["8", "16"], "8"),
    ("s", "by running", ["1", "2", "3", "4", "5"], "1"),
    ("j a", "by attained", ["5"], "5"),
    ("minus", "by -attained", ["4", "3"], "4"),
    ("t", "by -time", ["4"], "4"),
    ("u", "by user", ["7"], "7"),
    ("c", "by account", ["6"], "6"),
    ("p", "by partition", ["5"], "5"),
    ("n", "by name", ["5"], "5"),
    ("e", "by -restarts", ["5"], "5"),
    ("i", "by job", ["1"], "1"),
    (">", "by user", ["7"], "7"),
    ("< <", "by attained", ["5"], "5"),
    ("r", "by rank", ["5"], "5"),
    ("/ j o b minus 7 7 enter", "of 111  by rank  with 'job-77'", ["77"], "77"),
    ("/ q escape", "with 'job-77'", ["77"], "77"),
    ("escape", "of 10000  by rank", ["5"], "5"),
    ("m", "of 1000  by rank  mine", ["10"], "10"),
    ("m", "of 10000  by rank", ["5"], "5"),
    ("w q", "of 10000", ["5"], "5"),
]


def test_every_key_does_what_the_documents_say(place: Place) -> None:
    """Moving, sorting, filters: one after the other on ten thousand jobs, of which few are sent."""

    async def scene(w: Watched) -> None:
        for keys, head, ids, selected in KEYS:
            await w.pilot.press(*keys.split())
            await w.until(
                lambda w, head=head, ids=ids, selected=selected: (
                    head in w.lines[0] and w.ids[: len(ids)] == ids and w.selected == selected
                ),
                f"{keys}: {head} {ids} {selected}",
            )
        assert {key for keys, *_ in KEYS for key in keys.split()} >= set(SORT_KEYS)
        assert all(isinstance(limit, int) and limit <= 3 * 21 for limit in w.client.limits)
        await w.pilot.press("q")
        assert w.app.return_code == 0

    watch(place, scene)


def test_panes_open_scroll_and_close(place: Place) -> None:
    """Keys go to the pane while it is open; the selected job stays in sight above it."""

    async def scene(w: Watched) -> None:
        await w.pilot.press(*["j"] * 20, "w")
        await w.says("why 25", "It has rank 21 of 10000")
        assert "25" in w.ids
        await w.pilot.press("j", "escape", "g", "?")
        await w.says("ctrl+c", "my jobs, or all again")
        await w.pilot.press("G")
        await w.says("sort by restarts")
        await w.pilot.press("q", "enter")
        await w.says("why 5")
        await w.pilot.press("w")
        await w.until(lambda w: len(w.ids) == 21, "no pane")
        assert w.selected == "5"

    watch(place, scene)


def test_hostile_text_is_only_shown(place: Place) -> None:
    """Names and what is searched for: as they are written, without what steers a terminal."""
    shown = re.compile(r"gpu +\[2J\]0;owned\[red\]x\[/\]root 終わり")

    async def scene(w: Watched) -> None:
        await w.pilot.press("/", "[", "r", "e", "d", "]", "enter")
        await w.says("with '[red]'", "of 29")
        await w.pilot.press("w")
        await w.says("why 5", "It has rank 1 of")
        assert all(shown.search(line) for line in w.lines[2:6])
        bad = {unicodedata.category(c) for c in "".join(w.lines)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
        assert not bad

    watch(place, scene, size=(160, 40))


def test_the_selection_follows_its_job(place: Place) -> None:
    """Jobs before it end: it stays selected; and its pane says so if it ends itself."""

    async def scene(w: Watched) -> None:
        await w.pilot.press("pagedown", "j", "j", "j", "w")
        await w.says("why 29", "It has rank 25 of 10000")
        cycle = place.context.board.current.cycle
        assert cycle is not None
        place.show(without(without(cycle, 6), 7))
        await w.says("of 9998", "It has rank 23 of 9998")
        assert w.selected == "29"
        place.show(without(cycle, 29))
        await w.says("of 9999", "no job 29 in the last snapshot")

    watch(place, scene)


def test_a_daemon_that_is_slow_or_away_holds_up_no_key(place: Place) -> None:
    """What was shown stays, with its age; it goes on by itself."""

    async def scene(w: Watched) -> None:
        w.client.through.clear()
        await w.pilot.press("j")
        await w.until(lambda w: w.selected == "6", "a key while an answer is under way")
        place.end()
        w.client.through.set()
        await w.says("AWAY, shown is", "dlschedd does not listen")
        await w.pilot.press("j")
        assert (w.selected, w.ids[0]) == ("7", "5")
        await w.pilot.press("G")
        n = len(w.client.limits)
        await w.pilot.pause(1.0)
        assert len(w.client.limits) < n + 15, "it asks at its pace"
        place.begin()
        await w.until(lambda w: "AWAY" not in w.lines[0], "that it is back")
        assert w.selected == "4"

    watch(place, scene, size=(160, 24))


@pytest.mark.parametrize(
    ("size", "rows", "titles"),
    [
        ((40, 8), 5, "JOBID PART NAME"),
        (
            (80, 24),
            21,
            "JOBID PART NAME USER ST GPUS TIER RANK GPU-h RST TIME DONE LEFT NODES(",
        ),
        (
            (160, 50),
            47,
            "JOBID PARTITION NAME USER ST GPUS TIER RANK ATTAINED(GPU-h) RESTARTS TIME DONE LEFT",
        ),
    ],
)
def test_it_fits_whatever_window(
    place: Place, size: tuple[int, int], rows: int, titles: str
) -> None:
    """Every column in 80 cells with no number cut, more columns where there is room."""

    async def scene(w: Watched) -> None:
        await w.until(lambda w: len(w.ids) == rows, f"{rows} jobs")
        assert " ".join(w.lines[1].split()).startswith(titles)
        assert all(cell_len(line) <= size[0] for line in w.lines)
        await w.pilot.resize_terminal(80, 12)
        await w.until(lambda w: len(w.ids) == 9 and "1-9 of" in w.lines[0], "another size")
        await w.pilot.press("G")
        await w.until(lambda w: w.ids[-1] == "4", "the last job")
        assert re.search(r" R +4 +2 10000 +4\.00 +0 1:00:00 +- +- n4", w.lines[-2])

    watch(place, scene, size=size)


def test_an_end_while_timers_run_and_answers_come_is_a_quiet_one() -> None:
    """The last of them find no table any more."""

    class Quick(Client):
        def ask(self, request: str, **fields: Json) -> JsonObject:  # noqa: ARG002 - as of the client
            return {"jobs": [], "total": 0, "offset": 0, "doing": request}

    async def run() -> None:
        app = WatchApp(Quick(Path("none")), QueueRequest(), Shown(), every_s=0.001)
        async with app.run_test() as pilot:
            await pilot.pause(0.05)

    for _ in range(3):
        asyncio.run(run())


def test_options_choose_what_is_watched(place: Place) -> None:
    """Filters and orders of the list are those of the watch; m shows everybody's."""

    async def scene(w: Watched) -> None:
        await w.says("of 334 ", "by -gpus,job  mine")
        await w.pilot.press("m")
        await w.says("of 3332 ")

    request = QueueRequest(account=("lab1",), state=("PD",), sort=("-gpus", "job"))
    watch(place, scene, request, me=True)


@pytest.mark.parametrize("program", [MODULE, WITHOUT_TEXTUAL], ids=["textual", "rich"])
@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("\x03", 0),
        (signal.SIGINT, 0),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGHUP, 128 + signal.SIGHUP),
    ],
)
def test_whatever_ends_it_gives_the_terminal_back(
    place: Place, program: list[str], how: str | signal.Signals, status: int
) -> None:
    """Ctrl-C quits with status 0, also while the daemon is away; a signal with 128 and more."""
    screen = Terminal([*program, "--socket", str(place.socket), "--watch", "0.5"])
    try:
        screen.until_says("of 10000")
        place.end()
        screen.until_says("AWAY, shown is")
        place.begin()
        screen.until_says("acting", after=screen.until_says("AWAY, shown is"))
        if isinstance(how, str):
            screen.press(how)
        else:
            screen.process.send_signal(how)
        assert screen.process.wait(20 * PATIENCE) == status
        eventually(lambda: screen.is_as_it_was, 10.0)
        assert b"\x1b[2J\x1b]0" not in screen.raw
        assert (b"slurm-dl[watch]" in screen.raw) == (program is WITHOUT_TEXTUAL)
    finally:
        screen.close()


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [(WITH_A_BUG, [], "TypeError"), (MODULE, ["-t", "ZZ"], "no job state 'ZZ'")],
)
def test_what_goes_wrong_is_said_on_the_ordinary_screen(
    place: Place, program: list[str], options: list[str], message: str
) -> None:
    """A bug, and a mistake in the filters: status 1."""
    screen = Terminal([*program, "--socket", str(place.socket), *options, "--watch"])
    try:
        assert screen.process.wait(30 * PATIENCE) == 1
        screen.until_says(message)
        assert screen.is_as_it_was
    finally:
        screen.close()


def test_ctrl_z_stops_it_and_fg_goes_on(place: Place) -> None:
    """The shell has its terminal in between."""
    command = shlex.join([*MODULE, "--socket", str(place.socket), "--watch", "0.5"])
    script = f"{command}; echo STOPPED; stty -a; read -r; fg >/dev/null; echo ENDED $?"
    screen = Terminal(["bash", "-mc", script])
    try:
        screen.until_says("of 10000")
        screen.press("\x1a")
        screen.until_says("STOPPED")
        stopped = screen.until_says("\nisig icanon ")
        screen.press("\n")
        screen.until_says("of 10000", after=stopped)
        screen.press("q")
        screen.until_says("ENDED 0")
        eventually(lambda: screen.is_as_it_was, 10.0)
    finally:
        screen.close()


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
