"""dlsubmit --preview and --when as real processes, with a daemon that says what a test wants."""

from __future__ import annotations

import json
import os
import pty
import shlex
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from slurm_dl.cli.dlsubmit import preview

DLSUBMIT = Path(sys.executable).parent / "dlsubmit"
NOW_S = 1_700_000_000.0

Answers = Callable[[dict[str, Any]], dict[str, Any] | None]


def seconds_ahead(median_s: float) -> dict[str, Any]:
    """A start and an end."""
    told = {"low_s": NOW_S, "median_s": NOW_S + median_s, "high_s": NOW_S + 2 * median_s}
    return {"start": told, "end": told, "until_s": NOW_S + 86_400}


def good(request: dict[str, Any]) -> dict[str, Any]:
    """In 20 minutes, without a contract in 6 hours."""
    shape = {"shape": request["shapes"][0], "gpus": 4, "n_nodes": 1, "why_not": None}
    shape |= {**seconds_ahead(1200), "no_preempt": seconds_ahead(6 * 3600)}
    score = {"ranges": 0, "held": 0, "median_error_s": None}
    result = {"now_s": NOW_S, "runs": 40, "score": score, "doing": "acting", "shapes": [shape]}
    return {"ok": True, "result": result}


def older(request: dict[str, Any]) -> dict[str, Any]:
    """A daemon that does not know what is new."""
    if "within_s" in request:
        return {"ok": False, "kind": "bad_request", "error": "within_s: not permitted"}
    answer = good(request)
    del answer["result"]["shapes"][0]["no_preempt"]
    return answer


def in_shadow(request: dict[str, Any]) -> dict[str, Any]:
    """A daemon that preempts nobody."""
    answer = good(request)
    answer["result"]["doing"] = "shadow mode: plans and touches nothing"
    return answer


def refusing(kind: str) -> Answers:
    """A daemon that says no."""
    return lambda _: {"ok": False, "kind": kind, "error": "no"}


@contextmanager
def daemon(path: Path, answers: Answers) -> Iterator[list[dict[str, Any]]]:
    """What a daemon at *path* was asked; one that answers None says nothing while it lives."""
    asked: list[dict[str, Any]] = []
    over = threading.Event()

    class One(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked.append(json.loads(self.rfile.readline()))
            answer = answers(asked[-1])
            if answer is None:
                over.wait(60)
            else:
                self.wfile.write(json.dumps(answer).encode() + b"\n")

    with socketserver.ThreadingUnixStreamServer(str(path), One) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield asked
        finally:
            over.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def place(short_directory: Path) -> Path:
    """A directory with a Slurm in it that has 4 nodes with 4 GPUs and takes every job."""
    bin_dir = short_directory / "bin"
    bin_dir.mkdir()
    rows = shlex.quote("gpu*|idle|gpu:a100:4\n" * 4)
    for name, does in (("sinfo", f"printf {rows}"), ("sbatch", "echo 123"), ("scontrol", ":")):
        (bin_dir / name).write_text(f"#!/bin/sh\n{does}\n")
        (bin_dir / name).chmod(0o755)
    return short_directory


def dlsubmit(
    place: Path, *args: str, stderr: int = subprocess.PIPE, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run it there."""
    return subprocess.run(
        [str(DLSUBMIT), "--gpus=4", *args],
        cwd=place,
        env={
            **os.environ,
            "PATH": f"{place}/bin:/usr/bin:/bin",
            "HOME": str(place),
            "SLURM_DL_SOCKET": str(place / "s"),
            **environ,
        },
        stdout=subprocess.PIPE,
        stderr=stderr,
        encoding="utf-8",
        timeout=60 * PATIENCE,
        check=False,
    )


EARLY = "note: would start in about 20 min; with --no-preempt in about 6 h"


@pytest.mark.parametrize(
    ("args", "note"),
    [
        (["--preview"], EARLY),
        (["--preview", "--dry-run"], EARLY),
        (
            ["--preview", "--no-preempt"],
            "note: would start in about 6 h; without --no-preempt in about 20 min",
        ),
        (["--preview", "--array=0-9"], "note: the first task would start in about 20 min;"),
        ([], None),
        (["--preview", "--quiet"], None),
        (["--preview", "--parsable"], None),
        (["--preview", "--json"], None),
        (["--preview", "--begin=now+1hour"], None),
        (["--preview", "-dafterok:7"], None),
        (["--preview", "--nodes=1-4"], None),
    ],
)
def test_a_submission_says_when_it_would_start(
    place: Path, args: list[str], note: str | None
) -> None:
    """With the other choice beside it; who did not ask, or wants no words, asks no daemon."""
    with daemon(place / "s", good) as asked:
        done = dlsubmit(place, "--time=2:00:00", "--name=x", *args, "--", "true")

    assert done.returncode == 0, done.stderr
    assert bool(asked) is (note is not None)
    assert (note or "") in done.stderr
    assert ("would start" in done.stderr) is (note is not None)
    for one in asked:
        assert one["shapes"] == ["1x4"]
        assert (one["partition"], one["limit_s"], one["name"]) == ("gpu", 7200, "x")
        assert one["within_s"] < preview.TIMEOUT_S


@pytest.mark.parametrize(
    "answers",
    [
        older,
        in_shadow,
        refusing("failed"),
        refusing("not_ready"),
        refusing("busy"),
        lambda _: None,
        None,
    ],
    ids=["older", "in shadow", "failed", "not ready", "busy", "silent", "absent"],
)
def test_a_submission_depends_on_no_daemon(place: Path, answers: Answers | None) -> None:
    """Nothing is said, and the job is submitted, soon."""
    began_s = time.monotonic()
    if answers is None:
        done = dlsubmit(place, "--preview", "--", "true")
    else:
        with daemon(place / "s", answers) as asked:
            done = dlsubmit(place, "--preview", "--", "true")
        assert asked

    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 123\n", "")
    assert time.monotonic() - began_s < preview.TIMEOUT_S + 5 * PATIENCE


def test_where_users_ask_by_ssh_jobs_are_submitted_here(place: Path) -> None:
    done = dlsubmit(
        place, "--preview", "--", "true", SLURM_DL_SOCKET="", SLURM_DL_SERVER="ssh:ctl1"
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 123\n", "")


@pytest.mark.parametrize(("args", "says"), [([], True), (["--no-preview"], False)])
def test_on_a_terminal_it_is_said_unasked(place: Path, args: list[str], says: bool) -> None:  # noqa: FBT001
    """Unless that is switched off."""
    ours, theirs = pty.openpty()
    with daemon(place / "s", good) as asked:
        done = dlsubmit(place, *args, "--", "true", stderr=theirs)
    os.write(theirs, b".")
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    os.close(theirs)

    assert done.stdout == "Submitted batch job 123\n"
    assert bool(asked) is says
    assert (EARLY in shown) is says


@pytest.mark.parametrize(("answers", "lines"), [(good, 2), (older, 1)])
def test_shapes_are_told_with_and_without_a_contract(
    place: Path, answers: Answers, lines: int
) -> None:
    """Two lines for a shape; one where the daemon knows no other way."""
    with daemon(place / "s", answers):
        done = dlsubmit(place, "--when")

    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if "starts" in line]
    assert len(told) == lines
    assert "starts in about 20 min" in told[0]
    assert all("with --no-preempt: starts in about 6 h" in line for line in told[1:])
