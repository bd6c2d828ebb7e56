"""Record dlqueue.svg and dlqueue-watch.svg: jobs of three users in a sandbox, one is preempted.

sudo .venv/bin/python docs/img/record_dlqueue.py

The users are in a copy of /etc/passwd that only this process and its children see.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from schedd import TOY, Schedd, schedd_in  # noqa: E402 - found through the line above

from slurm_dl.cli.dlqueue.watch.app import WatchApp  # noqa: E402
from slurm_dl.cli.dlqueue.watch.last_answer import Shown  # noqa: E402
from slurm_dl.daemon.control.client import Client, admins_daemon  # noqa: E402
from slurm_dl.daemon.control.wire_format import QueueRequest  # noqa: E402
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


USERS = {"ada": 62001, "bob": 62002, "cyd": 62003}


def with_users(home: Path) -> None:
    """Run again in a mount namespace with `USERS`, and with a Python that they can read."""
    passwd = home / "passwd"
    lines = [f"{name}:x:{uid}:{uid}::/tmp:/bin/sh\n" for name, uid in USERS.items()]
    passwd.write_text(Path("/etc/passwd").read_text("utf-8") + "".join(lines), "utf-8")
    binds = [f"mount --bind {passwd} /etc/passwd"]
    python = Path(sys.base_prefix)
    if python.is_relative_to("/root"):
        copy = home / python.relative_to("/")
        copy.mkdir(parents=True)
        binds += [f"mount --bind {python} {copy}", f"mount --rbind {home}/root /root"]
    again = f"exec {sys.executable} {__file__} --recorded"
    argv = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", " && ".join([*binds, again])]
    subprocess.run(argv, check=True)


def main() -> None:
    """Play the scene and write the picture."""
    if "--recorded" not in sys.argv:
        with tempfile.TemporaryDirectory(prefix="sdl-", dir="/tmp") as place:
            Path(place).chmod(0o755)
            with_users(Path(place))
        return
    with tempfile.TemporaryDirectory(prefix="sdl-", dir="/tmp") as place:
        home = Path(place)
        home.chmod(0o755)
        for name, uid in USERS.items():
            (home / name).mkdir()
            os.chown(home / name, uid, uid)
        box = Sandbox.up(home / "c", SandboxSpec())
        try:
            with schedd_in(box, home) as daemon:
                daemon.start()
                picture(daemon)
        finally:
            box.down(remove=True)


def train(user: str, daemon: Schedd, gpus: int, name: str, *options: str, save_s: int = 1) -> str:
    """Submit a training of *user*; the job id."""
    uid = str(USERS[user])
    as_user = ["/usr/bin/setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"]
    submit = [str(Path(sys.executable).parent / "dlsubmit"), "--parsable", "--no-check"]
    steps = ["--steps", "4000", "--step-s", "0.25", "--save-s", str(save_s)]
    done = subprocess.run(
        [*as_user, *submit, "--gpus", str(gpus), "--name", name, *options, "--", *TOY, *steps],
        env={**daemon.env, "USER": user, "HOME": str(daemon.home / user)},
        cwd=daemon.home / user,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def picture(daemon: Schedd) -> None:
    """A large job is preempted for a wide job and small ones."""
    train("bob", daemon, 4, "nightly", "--no-preempt")
    big = train("ada", daemon, 8, "llm-8b", "--grace", "60", save_s=20)
    train("ada", daemon, 4, "resnet")

    daemon.until(
        "the large job's next tier",
        lambda: _rows(daemon).get(int(big), {"tier": 0})["tier"] > 0,
        within_s=180.0,
    )
    waiting = [
        train("cyd", daemon, 8, "ablation", "--nodes", "2"),
        *(train("bob", daemon, 1, f"sweep-{i}") for i in range(1, 4)),
    ]
    daemon.until(
        "the signal",
        lambda: (
            daemon.audit(action="signal", result="ok") and {*map(int, waiting)} <= {*_rows(daemon)}
        ),
        within_s=120.0,
    )
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    for argv in (["dlqueue"], ["dlqueue", "why", waiting[0]], ["dlqueue", "why", big]):
        console.print(Text(f"$ {' '.join(argv)}", style="bold"))
        console.print(Text.from_ansi(on_a_terminal(daemon, *argv)))
    save(console.export_svg(title="dlqueue", unique_id="dlqueue"), "dlqueue")
    save(watched(daemon, big), "dlqueue-watch")


def watched(daemon: Schedd, job: str) -> str:
    """A watch in which *job* is selected and says why it is where it is."""
    client, shown = Client(admins_daemon(None, Path(daemon.env["SLURM_DL_CONFIG"]))), Shown()
    shown.hear(client.ask("queue", sort=["running"]))
    row = [str(listed["job"]) for listed in shown.jobs].index(job)

    async def record() -> str:
        app = WatchApp(client, QueueRequest(sort=("running",)), shown, every_s=0.5)
        async with app.run_test(size=(WIDTH, 24)) as pilot:
            await pilot.press(*["j"] * row, "w")
            await pilot.pause(2.0)
            return app.export_screenshot()

    return asyncio.run(record())


def save(drawing: str, name: str) -> None:
    """Write a picture."""
    # Fonts that are fetched from elsewhere: a picture must not call home.
    drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"<!--.*?-->", "", drawing, flags=re.DOTALL)
    (ROOT / "docs" / "img" / f"{name}.svg").write_text(drawing, encoding="utf-8")


def _rows(daemon: Schedd) -> dict[int, dict[str, Any]]:
    listed = json.loads(daemon.ask("dlqueue", "--json").stdout)
    return {row["job_id"]: row for row in listed["jobs"]}


if __name__ == "__main__":
    main()
