"""What is shown while it plays: a live screen on a terminal, plain lines into a pipe."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.frames import Event, Frame, Row
from demo.workload import GPUS

PLAIN: Final = "plain Slurm"
OURS: Final = "slurm_dl"

TELL_EVERY_S: Final = 5.0
_ORDER: Final = ("CG", "R", "CF", "S", "PD")
_STYLE: Final = {"preempt": "yellow", "resume": "cyan", "end": "dim"}
_LETTER_STYLE: Final = {"R": "green", "PD": "", "CG": "dim"}
_LEAST_ROWS: Final = 5
_LEAST_EVENTS: Final = 4
# Title, note, the strip, the heading of the events, three empty lines, and one to spare.
_FIXED_LINES: Final = 9
_WIDE: Final = 100


class Screen(Protocol):
    """Where frames and messages go."""

    def __enter__(self) -> Self:
        """Begin to draw."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Leave the terminal as it was."""

    def show(self, frame: Frame) -> None:
        """Show one instant."""


class Lines:
    """Progress for a pipe: a line every few seconds, and one for each preemption and resume."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told_s = -TELL_EVERY_S
        self._told_events = 0

    def __enter__(self) -> Self:
        """Nothing to begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Nothing to leave."""

    def show(self, frame: Frame) -> None:
        """Tell what is new."""
        for event in frame.events[self._told_events :]:
            if event.kind != "end":
                self._say(frame, event.at_s, event.text)
        self._told_events = len(frame.events)
        if frame.at_s - self._told_s >= TELL_EVERY_S:
            self._told_s = frame.at_s
            self._say(frame, frame.at_s, summary(frame))

    def _say(self, frame: Frame, at_s: float, text: str) -> None:
        self._console.print(Text(f"{frame.arm:<11} {at_s:4.0f} s  {text}"), soft_wrap=True)


class Picture:
    """The live screen of one arm.

    Args:
        note: One line under the title.
    """

    def __init__(self, console: Console, note: str) -> None:
        self._console = console
        self._note = note
        self._live = Live(
            console=console, refresh_per_second=4, transient=True, vertical_overflow="crop"
        )

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Take the picture away."""
        self._live.stop()

    def show(self, frame: Frame) -> None:
        """Draw one instant."""
        width, height = self._console.size
        self._live.update(draw(frame, self._note, width=width, height=height))


def summary(frame: Frame) -> str:
    """An instant in one line."""
    over = len(frame.rows) - frame.count("PD", *_ORDER)
    return (
        f"{frame.count('R', 'CG', 'CF'):2} running, {frame.count('PD'):2} waiting,"
        f" {over:2} of {frame.jobs} done, {frame.busy:2} of {GPUS} GPUs held"
    )


def draw(frame: Frame, note: str, *, width: int, height: int) -> RenderableType:
    """The whole picture, for a terminal of this size."""
    spare = max(_LEAST_ROWS + _LEAST_EVENTS, height - _FIXED_LINES)
    waiting_or_running = frame.count(*_ORDER)
    row_lines = min(
        spare - max(_LEAST_EVENTS, spare // 3), max(_LEAST_ROWS, waiting_or_running + 2)
    )
    event_lines = spare - row_lines
    return Group(
        Text.assemble((f" {frame.arm} ", "reverse bold"), f" {frame.at_s:4.0f} s ", summary(frame)),
        Text(note, style="dim", no_wrap=True, overflow="ellipsis"),
        Text(),
        _strip(frame),
        Text(),
        _queue(frame, row_lines, wide=width >= _WIDE),
        Text(),
        Text("LAST EVENTS", style="bold"),
        *_events(frame.events, event_lines),
    )


def _strip(frame: Frame) -> Table:
    """Each node with the jobs on its GPUs, two nodes in a line."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    nodes = list(frame.slots.items())
    half = (len(nodes) + 1) // 2
    for left in range(half):
        cells: list[Text] = []
        for node, held in nodes[left::half]:
            cells.append(Text(f" {node}", style="bold"))
            cells += [_slot(name) for name in held]
        table.add_row(*cells)
    return table


def _slot(name: str) -> Text:
    return Text(f"{name:^6}", style=f"black on {_colour(name)}") if name else Text("  --  ", "dim")


def _colour(name: str) -> str:
    if name.startswith("e"):
        return "green"
    return "yellow" if name.startswith("mid") else "cyan"


def _queue(frame: Frame, lines: int, *, wide: bool) -> RenderableType:
    live = [row for row in frame.rows if row.state in _ORDER]
    live.sort(key=_place)
    # One line is the heading, the last one says what is left out.
    shown = live[: lines - 2]
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False
    )
    table.add_column("JOB", width=6)
    table.add_column("ST", width=2)
    table.add_column("TIER", justify="right")
    table.add_column("GPUS", justify="right")
    table.add_column("ATTAINED", justify="right", width=10)
    table.add_column("RESTARTS", justify="right")
    table.add_column("DONE", width=20 if wide else 12)
    table.add_column("NODES", width=20 if wide else 11, no_wrap=True)
    for row in shown:
        table.add_row(*_cells(row, bar=20 if wide else 12), style=_LETTER_STYLE.get(row.state, ""))
    rest = live[len(shown) :]
    more = f"and {len(rest)} more: {_counted(rest)}" if rest else ""
    blank = [Text("") for _ in range(lines - 2 - len(shown))]
    return Group(table, Text(more, style="dim"), *blank)


def _place(row: Row) -> tuple[int, bool, int, int]:
    """Running jobs first, the big ones and those that were preempted before the others."""
    return _ORDER.index(row.state) // 4, not row.restarts, -row.gpus, row.job_id


def _cells(row: Row, *, bar: int) -> list[str]:
    done = round(row.progress * bar)
    return [
        row.name,
        row.state,
        "-" if row.tier is None else str(row.tier),
        str(row.gpus),
        "-" if row.attained_gpu_s is None else f"{row.attained_gpu_s:.0f} GPU-s",
        str(row.restarts) if row.restarts else "-",
        "#" * done + "." * (bar - done),
        ",".join(row.nodes),
    ]


def _counted(rows: list[Row]) -> str:
    running = sum(row.state != "PD" for row in rows)
    parts = [(running, "running"), (len(rows) - running, "waiting")]
    return ", ".join(f"{count} {word}" for count, word in parts if count)


def _events(events: tuple[Event, ...], lines: int) -> list[Text]:
    last = [
        Text(
            f"{event.at_s:4.0f} s  {event.text}",
            style=_STYLE[event.kind],
            no_wrap=True,
            overflow="ellipsis",
        )
        for event in events[-lines:]
    ]
    return last + [Text("") for _ in range(lines - len(last))]
