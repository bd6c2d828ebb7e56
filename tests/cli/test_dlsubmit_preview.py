"""dlsubmit --preview and --when as real processes, with a daemon that says what a test wants."""

from __future__ import annotations

import json
import os
import pty
import re
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

from slurm_dl.cli.dlsubmit.verdict import TIMEOUT_S
from slurm_dl.daemon.control.requests import QuoteRequest, parse

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
def daemon(path: Path, answers: Answers | None) -> Iterator[list[dict[str, Any]]]:
    """The requests to a daemon at *path*; one that answers None says nothing while it lives.

    Args:
        answers: None: there is no daemon.
    """
    asked: list[dict[str, Any]] = []
    if answers is None:
        yield asked
        return
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
    """Submit 4 GPUs there."""
    return script(place, "--gpus=4", *args, stderr=stderr, **environ)


def script(
    place: Path, *args: str, stderr: int = subprocess.PIPE, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run dlsubmit there."""
    return subprocess.run(
        [str(DLSUBMIT), *args],
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
        (["--preview", "--no-preempt"], "about 6 h; without --no-preempt in about 20 min"),
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
        assert one["within_s"] < TIMEOUT_S


@pytest.mark.parametrize(
    "answers",
    [
        older, in_shadow, refusing("failed"), refusing("not_ready"), refusing("busy"),
        lambda _: None, None, "by ssh",
    ],
    ids=["older", "in shadow", "failed", "not ready", "busy", "silent", "absent", "by ssh"],
)  # fmt: skip
def test_a_submission_depends_on_no_daemon(place: Path, answers: Answers | str | None) -> None:
    """Nothing is said, and the job is submitted, soon; here, where users ask by ssh, too."""
    began_s, there = time.monotonic(), None if isinstance(answers, str) else answers
    far = {"SLURM_DL_SOCKET": "", "SLURM_DL_SERVER": "ssh:ctl1"} if answers == "by ssh" else {}
    with daemon(place / "s", there) as asked:
        done = dlsubmit(place, "--preview", "--", "true", **far)

    assert bool(asked) is (there is not None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 123\n", "")
    assert time.monotonic() - began_s < TIMEOUT_S + 5 * PATIENCE


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


# Deadlines


def verdict(says: str | None, *, doing: str = "acting", **more: Any) -> Answers:  # noqa: ANN401
    """A daemon with this verdict: 4 GPUs at 10:00 UTC tomorrow at the latest, or in two days."""
    now_s = time.time()
    one = {"says": says, "begin_s": None, "end_s": None, "spare_s": None, "nearest_s": None}
    one |= {"why": None, "rests_on": "limit", "odds": None}
    if says == "yes":
        one |= {"begin_s": now_s + 3900, "end_s": now_s + 7200, "spare_s": 3900}
    elif says == "no":
        odds = {"share": 0.62, "runs": 40}
        one |= {"why": "GPUs are promised to others", "nearest_s": now_s + 9000, "odds": odds}
    one |= more

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        result = {"now_s": now_s, "policy": "p", "doing": doing}
        of_job = {**one, "due_s": int(now_s + 7200)} if "job" in request else {"shapes": [one]}
        return {"ok": True, "result": {"due_s": request.get("due_s"), **result, **of_job}}

    return answer


YES, NO, NONE = verdict("yes"), verdict("no"), verdict(None, odds={"share": 0.5, "runs": 40})
SHADOW = verdict("yes", doing="shadow mode: plans and touches nothing")
PROMISED = r"promised: done by .*[0-9]:[0-9]{2}; starts by .* at the latest, 65 min to spare"
BEST_EFFORT = (
    "not promised: best effort, as GPUs are promised to others; 62% of 40 forward runs are done by "
    ".*; could be promised by .*"
)
CANCEL = "--or-else=cancel"


@pytest.mark.parametrize(
    ("answers", "args", "status", "words"),
    [
        (YES, ["--quote"], 0, f"^{PROMISED}\n$"),
        (NO, ["--quote"], 3, f"^{BEST_EFFORT}\n$"),
        (NONE, ["--quote"], 3, r"policy \(p\) promises nothing; 50% of 40 forward runs"),
        (SHADOW, ["--quote"], 3, "would be promised if dlschedd acted: done by"),
        (YES, ["--quote", "--quiet"], 0, "^$"),
        (NO, ["--quote", "--json"], 3, '"nearest_s": 1'),
        (refusing("failed"), ["--quote"], 1, "error: no"),
        (None, ["--quote"], 1, "error: "),
        (YES, ["--quote", "--array=0-3"], 1, "arrays are never promised"),
        (YES, ["--quote", "--begin=now+1hour"], 1, "jobs with --begin"),
        (NO, [CANCEL], 3, f"not submitted .*: {BEST_EFFORT}"),
        (NONE, [CANCEL], 3, "not submitted .*promises nothing"),
        (SHADOW, [CANCEL], 3, "not submitted .*would be promised"),
        (refusing("busy"), [CANCEL], 3, "not submitted .*no verdict: no"),
        (None, [CANCEL], 3, "not submitted .*no verdict"),
    ],
)
def test_a_verdict_is_said_and_nothing_is_submitted(
    place: Path, answers: Answers | None, args: list[str], status: int, words: str
) -> None:
    """Exit status 3 if the deadline is not promised, whatever the reason."""
    with daemon(place / "s", answers) as asked:
        done = dlsubmit(place, "--by=+2h", "--time=1:00:00", "--name=x", *args, "--", "true")

    for one in asked:
        assert isinstance(parse(one), QuoteRequest)
        assert (one["shapes"], one["partition"], one["limit_s"]) == (["1x4"], "gpu", 3600)
        assert time.time() < one["due_s"] < time.time() + 7201
    assert done.returncode == status, done.stderr
    said = done.stdout if status in {0, 3} and "--quote" in args else done.stderr
    assert re.search(words, said), said
    assert "Submitted" not in done.stdout


@pytest.mark.parametrize(
    ("answers", "args", "words"),
    [
        (YES, ["--preview"], f"note: {PROMISED}"),
        (NO, ["--preview"], f"note: {BEST_EFFORT}"),
        (NO, ["--preview", "--or-else=run"], f"note: {BEST_EFFORT}"),
        (None, ["--preview"], "^$"),
        (NO, [], "^$"),
        (NO, ["--dry-run", CANCEL], "^$"),
        (YES, [CANCEL], "^$"),
    ],
)
def test_a_job_with_a_deadline_is_submitted(
    place: Path, answers: Answers | None, args: list[str], words: str
) -> None:
    """Its verdict is said where the start would be said without one."""
    with daemon(place / "s", answers) as asked:
        done = dlsubmit(place, "--by=+2h", "--time=1:00:00", *args, "--", "true")

    assert [one["request"] for one in asked] == ["quote"] * len(asked)
    said = "".join(one for one in done.stderr.splitlines(keepends=True) if "note: due" not in one)
    assert done.returncode == 0, done.stderr
    assert re.search(words, said), said
    assert ("Submitted batch job 123" in done.stdout) is ("--dry-run" not in args)


@pytest.mark.parametrize(
    ("then", "status", "cancelled"),
    [([YES], 0, ""), ([NO], 3, "123\n"), ([refusing("not_found"), NONE, NO], 3, "123\n")],
)
def test_a_job_whose_deadline_turns_out_not_to_be_promised_is_cancelled(
    place: Path, then: list[Answers], status: int, cancelled: str
) -> None:
    """Promised when it was asked, refused when it was there: by its own submission, as it said."""
    scancel = place / "bin" / "scancel"
    scancel.write_text(f'#!/bin/sh\necho "$@" >> {place}/cancelled\n')
    scancel.chmod(0o755)
    verdicts = iter([YES, *then])
    with daemon(place / "s", lambda request: next(verdicts)(request)) as asked:  # noqa: PLW0108
        done = dlsubmit(place, "--by=+2h", "--time=1:00:00", CANCEL, "--", "true")

    assert done.returncode == status, done.stderr
    assert "Submitted batch job 123" in done.stdout
    assert [one.get("job") for one in asked] == [None, *["123"] * len(then)]
    assert [parse(one).request for one in asked] == ["quote"] * len(asked)
    written = place / "cancelled"
    assert (written.read_text() if written.exists() else "") == cancelled
    assert ("job 123 is cancelled" in done.stderr) is bool(cancelled)


@pytest.mark.parametrize("args", [["--quote"], [CANCEL], ["--or-else=run"]])
def test_what_is_about_a_deadline_needs_one(place: Path, args: list[str]) -> None:
    (place / "job.sh").write_text("#!/bin/sh\n#SBATCH --gpus=4\ntrue\n")
    for line in ([*args, "--", "true"], [*args, "job.sh"]):
        done = dlsubmit(place, *line)
        assert (done.returncode, done.stdout) == (2, "")
        assert "needs a deadline: --by TIME" in done.stderr


@pytest.mark.parametrize(
    ("lines", "args", "shape"),
    [
        (["--gpus-per-node=a100:2", "--nodes=3"], [], "3x2"),
        (["--gres=gpu:4", "-p gpu"], [], "1x4"),
        (["--gpus=8"], [], "8"),
        (["--gpus=a100:8", "-N 2"], [], "2x4"),
        (["--gres=gpu:4"], ["--gpus=6"], "6"),
        (["--gpus-per-task=1"], [], "how many GPUs"),
        (["--gpus=8", "-N 1-2"], [], "range of nodes"),
        (["--gpus=8", "--begin=now+1"], [], "jobs with --begin"),
        (["--gpus=8", "--array=1-3"], [], "arrays"),
        (["--gpus=8"], ["--no-preempt"], "as it is"),
    ],
)
def test_a_batch_script_gets_a_verdict(
    place: Path, lines: list[str], args: list[str], shape: str
) -> None:
    """Of the shape that its lines ask for, or none where they leave that open."""
    text = "".join(f"#SBATCH {line}\n" for line in ["--time=60", "-A vision", *lines])
    (place / "job.sh").write_text(f"#!/bin/sh\n{text}true\n")
    with daemon(place / "s", YES) as asked:
        done = script(place, "--by=+2h", "--quote", *args, "job.sh")

    if not asked:
        assert done.returncode == 1
        assert shape in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert asked[0]["shapes"] == [shape]
    assert (asked[0]["partition"], asked[0]["account"]) == ("gpu", "vision")
    assert asked[0]["limit_s"] == 3600


SCRIPT = "#!/bin/sh\n#SBATCH --gpus=4 --time=60\ntrue\n"


@pytest.mark.parametrize("rest", [["--gpus=4", "--time=60", "--", "true"], ["job.sh"]])
def test_several_deadlines_are_written_down_and_asked_about_by_the_first(
    place: Path, rest: list[str]
) -> None:
    """As options or in a file of defaults; one of a later line replaces them all."""
    (place / "job.sh").write_text(SCRIPT)
    typed = ["--by=+4h=5", "--by=+2h=10"]
    with daemon(place / "s", YES) as asked:
        for more in (["--quote"], []):
            assert script(place, *more, *typed, *rest).returncode == 0
    texts = []
    for line in ([*typed, *rest], ["--again=123"], ["--again=123", "--by=+1h"], rest):
        if line is rest:
            (place / ".slurm_dl.yaml").write_text("by: +4h=5; +2h=10\n")
        texts.append(script(place, "--dry-run", *line).stdout.replace("\\", ""))
    assert '"values"' not in texts.pop(2)
    for text in texts:
        due, first, last = (int(s) for s in re.findall(r'(?:due":|\[)(\d{10})\b', text)[:3])
        assert f'"values":[[{first},10],[{last},5]]' in text
        assert (due, last - first) == (first, 7200)
        assert abs(due - asked[0]["due_s"]) < 60 * PATIENCE


def three(*says: str) -> Answers:
    """A daemon with these verdicts on three sizes."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(parse(request), QuoteRequest)
        assert request["limits_s"] == [2400, 1800, 1200]
        whole = YES(request)
        whole["result"]["shapes"] = [verdict(w)(request)["result"]["shapes"][0] for w in says]
        return whole

    return answer


@pytest.mark.parametrize("rest", [["--", "true"], ["job.sh"]], ids=["command", "script"])
@pytest.mark.parametrize(
    ("answers", "size", "words"),
    [
        (three("yes", "yes", "yes"), 2, rf"the smallest size .* 2 GPUs: {PROMISED}\n"),
        (three("no", "yes", "yes"), 4, rf"4 GPUs: {PROMISED} \| 2 GPUs: {BEST_EFFORT}\n"),
        (refusing("bad_request"), 2, "no verdict, so the first size is taken, 2: no"),
    ],
)
def test_the_smallest_size_that_is_promised_is_submitted(
    place: Path, answers: Answers, size: int, words: str, rest: list[str]
) -> None:
    """With the time limit of that size; else the first. All are asked at once."""
    seen = place / "sent"
    (place / "bin" / "sbatch").write_text(f'#!/bin/sh\n(echo "$@"; cat) > {seen}\necho 123\n')
    (place / "job.sh").write_text(SCRIPT)
    line = ["--by=+4h", "--gpus=2,4,8", "--time=40,30,20", *rest]
    with daemon(place / "s", answers) as asked:
        done = script(place, *line)

    assert len(asked) == 1
    assert done.returncode == 0, done.stderr
    assert re.search(words, done.stderr), done.stderr
    assert re.search(rf"--gpus(?:-per-node)?={size}\b", seen.read_text())
    assert f"--time={50 - 5 * size}" in seen.read_text()
