"""Record dlqueue.svg and dlqueue-watch.svg: a real sandbox while one job gives way to others.

sudo .venv/bin/python docs/img/record_dlqueue.py
"""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from schedd import Schedd, schedd_in  # noqa: E402 - found through the line above
from watched import Screen  # noqa: E402

from slurm_dl.sandbox import Sandbox, SandboxSpec  # noqa: E402

WIDTH = 88


def on_a_terminal(daemon: Schedd, *argv: str) -> str:
    """What a command prints to a terminal WIDTH columns wide."""
    main, side = pty.openpty()
    env = {**daemon.env, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    command = [str(Path(sys.executable).parent / argv[0]), *argv[1:]]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=side, stderr=side
    ) as process:
        os.close(side)
        chunks = []
        while True:
            try:
                chunk = os.read(main, 65536)
            except OSError:
                break
            if not chunk:
                break
            chunks.append(chunk)
        process.wait()
    os.close(main)
    return b"".join(chunks).decode().replace("\r\n", "\n")


def main() -> None:
    """Play the scene and write the picture."""
    with tempfile.TemporaryDirectory(prefix="sdl-", dir="/tmp") as place:
        home = Path(place)
        home.chmod(0o755)
        box = Sandbox.up(home / "c", SandboxSpec())
        try:
            with schedd_in(box, home) as daemon:
                daemon.start()
                picture(daemon)
        finally:
            box.down(remove=True)


def picture(daemon: Schedd) -> None:
    """A large job, a wall, and small ones for which the large one gives way."""
    daemon.toy(4, 4000, options=["--name", "nightly", "--no-preempt"])
    big = daemon.toy(8, 4000, "--save-s", "20", options=["--name", "llm-8b", "--grace", "60"])
    daemon.toy(4, 4000, options=["--name", "resnet"])

    def sank() -> bool:
        return bool(daemon.audit(action="set_site_factor", job=int(big))[1:])

    daemon.until("the large job to sink", sank, within_s=180.0)
    waiting = [
        daemon.toy(8, 4000, options=["--nodes", "2", "--name", "ablation"]),
        *(daemon.toy(1, 4000, options=["--name", f"sweep-{i}"]) for i in range(1, 4)),
    ]
    daemon.until(
        "the signal",
        lambda: daemon.audit(action="signal", result="ok") and _all_seen(daemon, waiting),
        within_s=120.0,
    )
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    for argv in (["dlqueue"], ["dlqueue", "why", waiting[0]], ["dlqueue", "why", big]):
        console.print(Text(f"$ {' '.join(argv)}", style="bold"))
        console.print(Text.from_ansi(on_a_terminal(daemon, *argv)))
    save(console, "dlqueue")
    save(watched(daemon, big), "dlqueue-watch", title="dlqueue --watch")


def watched(daemon: Schedd, job: str) -> Console:
    """A watch in which *job* is selected and says why it is where it is."""
    os.environ |= {key: daemon.env[key] for key in ("SLURM_CONF", "SLURM_DL_CONFIG")}
    command = str(Path(sys.executable).parent / "dlqueue")
    screen = Screen([command, "--watch", "0.5"], columns=WIDTH, lines=24)
    try:
        screen.until_says("q quit")
        screen.press("s")
        screen.until_says("by running")
        for _ in range(10):
            if screen.selected.split()[0] == job:
                break
            before = screen.selected
            screen.press("j")
            screen.until(lambda s, was=before: s.selected != was, "the selection to move")
        screen.press("w")
        screen.until_says("If it has to give way")
        console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
        for line in screen.cells:
            text = Text()
            for (fg, bold, reverse), run in itertools.groupby(
                line, lambda c: (c.fg, c.bold, c.reverse)
            ):
                colour = None if fg == "default" else Color.parse(fg)
                style = Style(color=colour, bold=bold, reverse=reverse)
                text.append("".join(cell.data for cell in run), style)
            console.print(text, no_wrap=True, crop=True)
        return console
    finally:
        screen.close()


def save(console: Console, name: str, *, title: str = "dlqueue") -> None:
    """Write what was printed as a picture."""
    drawing = console.export_svg(title=title, unique_id=name)
    # Fonts that are fetched from elsewhere: a picture must not call home.
    drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"<!--.*?-->", "", drawing, flags=re.DOTALL)
    (ROOT / "docs" / "img" / f"{name}.svg").write_text(drawing, encoding="utf-8")


def _all_seen(daemon: Schedd, jobs: list[str]) -> bool:
    listed = json.loads(daemon.ask("dlqueue", "--json").stdout)
    return set(map(int, jobs)) <= {row["job_id"] for row in listed["jobs"]}


if __name__ == "__main__":
    main()
