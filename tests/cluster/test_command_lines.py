"""What users write stands in no command line, and no word of it is a command to scontrol."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_dl.job.controller import CallFailedError, comment_of_ours, find_controller
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.plan import Signal
from slurm_dl.sandbox import Sandbox
from slurm_dl.slurm.tool_runner import TOOLS, Slurm
from slurm_dl.slurm.write.actions import Actor
from slurm_dl.slurm.write.current_job import job_now

pytestmark = pytest.mark.slurm

HANDOVER = HandoverId(7)
MARK = "geheim"
ATTACK = "update JobId={other} Comment=taken"
ALL_ASCII = "".join(map(chr, range(128)))
VALUES = [
    *(f"x{end}{ATTACK}{end}shutdown{end}" for end in ("\n", "\r\n", "\x0f", "\u2028", "\x85")),
    *(f"{quote} {ATTACK}" for quote in ("'", '"', "' \"", '\\"', "\\\\'", "\\\\\\\" '")),
    *("\x15!!", "\x1b\x7f\t\x00", "# ", "  ", "Comment=x JobId={other}", "\\n\\u000a\\", "\\"),
    *(ALL_ASCII[:64], ALL_ASCII[64:], "é漢😀 \ufffd", "\ud83d \udcff", "%s$(id)`id`$HOME;|&"),
]
TOO_LONG = [f"{fill * 4000}"[: 1024 - 60] for fill in ("'", "x", f"' {ATTACK} ")]


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """Slurm's tools, each of which notes its command line in ``lines``."""
    for tool in TOOLS:
        note = f'printf "%s\\n" "$0 $*" >> {tmp_path}/lines'
        text = f'#!/bin/sh\n{note}\nexec {shutil.which(tool)} "$@"\n'
        (tmp_path / tool).write_text(text, "utf-8")
        (tmp_path / tool).chmod(0o755)
    return tmp_path


def test_comments_of_users_are_carried_whole_and_unseen(
    sandbox: Sandbox, bin_dir: Path, eventually: Callable[..., object]
) -> None:
    """The daemon counts a preemption and dlrun acknowledges: the rest has the same value after.

    Where there is no room, the comment stays as it was.
    """
    slurm = Slurm(slurm_conf=Path(sandbox.env["SLURM_CONF"]), bin_dir=bin_dir)
    actor = Actor(slurm)
    actor.know({}, no_preemption="")
    (work := sandbox.jobs_directory / MARK).mkdir(exist_ok=True)
    argv = ["sbatch", "--parsable", "--output=/dev/null", f"--job-name={MARK}", f"--chdir={work}"]
    argv.append("--wrap=trap : USR1; while :; do sleep 1; done")
    job, other = (JobId(int(sandbox.run(argv).stdout)) for _ in range(2))
    eventually(lambda: slurm.run("squeue", "-h", f"--jobs={job}", "-tR", "-o%A"), 30.0)
    environ = {"SLURM_JOB_ID": str(job), "PATH": str(bin_dir), **sandbox.env}
    dlrun, why = find_controller(environ, lambda: None)
    assert dlrun is not None, why

    def comment(of: JobId) -> str:
        now = job_now(slurm, of)
        assert now is not None
        return now.comment

    def write(value: str, *, ascii_: bool) -> dict[str, Any]:
        content = {"slurm_dl": {"v": 1}, MARK: value.replace("{other}", str(other))}
        text = json.dumps(content, ensure_ascii=ascii_)
        sandbox.run(["scontrol", "update", f"JobId={job}", f"Comment={text}"])
        return content

    run = job_now(slurm, job).run  # type: ignore[union-attr]
    for value in (*VALUES, *TOO_LONG):
        before = write(value, ascii_="\ud83d" in value or "\ufffd" in value)
        signal = Signal(
            handover_id=HANDOVER, run=run, signal="USR1", target="batch", why="", preemptions=3
        )
        finish = actor.apply(signal)
        assert finish is not None
        assert finish(30.0)
        told = {} if value in TOO_LONG else {"preempted": [3, 0]}
        after = {**before, "slurm_dl": {"v": 1, **told}}
        assert comment_of_ours(comment(job)) == after
        try:
            dlrun.set_ack(dlrun.standing(), 5)
            after["slurm_dl"]["ack"] = 5
        except CallFailedError:
            assert value in TOO_LONG
        assert comment_of_ours(dlrun.standing().comment) == after
    sandbox.run(["scontrol", "update", f"JobId={job}", f"Comment=x\n{ATTACK}\nshutdown"])
    assert dlrun.set_ack(dlrun.standing(), 5) is False

    assert comment(other) == "(null)"
    lines = (bin_dir / "lines").read_text("utf-8", "surrogateescape")
    assert not [line for line in lines.splitlines() if MARK in line]
    assert f" --signal=USR1 --batch {job}\n" in lines
