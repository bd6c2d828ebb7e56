"""`slurm_dl.submit` for scripts: options, calls, results and states, on programs that stand in."""

from __future__ import annotations

import ast
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
import pythons
import shown

from slurm_dl import submit
from slurm_dl.submit import function_job
from slurm_dl.submit.pickled_call import load

ROOT = Path(__file__).parents[2]
FOR_3_8 = ("__init__", "__main__", "executor", "function_job", "pickled_call")

DLSUBMIT = f"""#!{sys.executable}
# Keeps what it was given, and runs the command as often as Slurm would.
import json, os, subprocess, sys
from pathlib import Path
here = Path(__file__).parent
(here / "argv").write_text(json.dumps(sys.argv[1:]))
if (here / "refuses").exists():
    sys.exit((here / "refuses").read_text())
at = sys.argv.index("--")
spec = [w[len("--array=0-"):] for w in sys.argv[:at] if w.startswith("--array=")]
for task in range(int(spec[0].partition("%")[0]) + 1) if spec else ["7"]:
    env = dict(os.environ, SLURM_ARRAY_TASK_ID=str(task), PYTHONPATH={str(ROOT)!r})
    if sys.argv[at + 1] != "-m":  # torchrun's
        subprocess.run(sys.argv[at + 1:], env=env, stderr=subprocess.DEVNULL)
print(123)
"""

WORK = """
import os, signal
from slurm_dl import job
from slurm_dl.submit import DelayedSubmission

def divide(a, b=1):
    return a / b

class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(a)

def raises_odd():
    raise Odd(1, 2)

def returns_lambda():
    return lambda: 0

def second_time(mark):
    if not os.path.exists(mark):
        open(mark, "w").close()
        job.exit_for_requeue()
    return "resumed"

class Counts:
    def __call__(self, start):
        if start == 0:
            os.kill(os.getpid(), signal.SIGUSR2)
        return start

    def checkpoint(self, start):
        return DelayedSubmission(self, start + 5)
"""


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Directory of the programs, first on PATH; one with the module ``work`` to import from."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("squeue", "sacct"):
        (directory / name).write_text(f'#!/bin/sh\ncat "{directory}/{name}.says"\n')
    (directory / "dlsubmit").write_text(DLSUBMIT)
    for program in directory.iterdir():
        program.chmod(0o755)
    (directory / "work.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_DL_DLSUBMIT", str(directory / "dlsubmit"))
    monkeypatch.setattr(function_job, "EVERY_S", 0.0)
    monkeypatch.setattr(function_job, "LAG_S", 0.0)
    monkeypatch.setattr(function_job, "_states", function_job._States())
    yield directory
    sys.modules.pop("work", None)


@pytest.fixture
def executor(bin_: Path, tmp_path: Path) -> submit.Executor:
    assert bin_.exists()
    return submit.Executor(tmp_path / "calls")


def work(name: str) -> Callable[..., object]:
    """A function of the module on the path."""
    found: Callable[..., object] = getattr(import_module("work"), name)
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gpus": 8, "time": "2-0", "no_preempt": True}, ["gpus=8", "time=2-0", "no-preempt"]),
        ({"sizes": [1, "2x4"], "share": False, "nice": 0}, ["sizes=1,2x4", "nice=0"]),
        ({"timeout_min": 90, "slurm_partition": "a", "mem_gb": 1.5}, ["mem=1536M", "partition=a"]),
        ({"nodes": 2, "gpus_per_node": 8, "tasks_per_node": 1}, ["gpus=16", "ntasks-per-node=1"]),
        ({"slurm_additional_parameters": {"gpu-bind": "none"}}, ["gpu-bind=none"]),
        ({"name": "x; touch y", "comment": "$(id)"}, ["name=x; touch y", "comment=$(id)"]),
        ({"gpus": 4, "launcher": "torchrun"}, ["launcher=torchrun"]),
        ({}, ["name=divide"]),
    ],
)
def test_options_reach_dlsubmit_as_words(
    executor: submit.Executor, bin_: Path, given: dict[str, object], expected: list[str]
) -> None:
    """Underscores become hyphens; nothing is read by a shell; what is None or False is left out."""
    executor.update_parameters(grace=1)
    executor.update_parameters(**given, grace=None)
    job = executor.submit(work("divide"), 1)

    argv = json.loads((bin_ / "argv").read_text())
    options, command = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    assert {f"--{word}" for word in expected} <= {*options}
    assert not {"--share", "--grace", "--mem-gb"} & {word.partition("=")[0] for word in options}
    python = [] if given.get("launcher") == "torchrun" else [sys.executable]
    assert command[:-1] == [*python, "-m", "slurm_dl.submit"]
    assert f"--output={job.paths.folder}/%j.out" in options


@pytest.mark.parametrize("pickler", ["cloudpickle", "pickle"])
def test_results_and_exceptions_come_back(
    executor: submit.Executor, bin_: Path, monkeypatch: pytest.MonkeyPatch, pickler: str
) -> None:
    """Of single calls and of an array; what cannot be pickled comes as text."""
    if pickler == "pickle":
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
    else:
        pytest.importorskip(pickler)
    executor.update_parameters(array_parallelism=2)
    one = executor.submit(work("divide"), 6, b=3)
    jobs = executor.map_array(work("divide"), [8, 1, 9], [2, 0, 3])
    (bin_ / "squeue.says").write_text("123|FAILED\n")
    odd = executor.submit(work("raises_odd"))

    one = pickle.loads(pickle.dumps(one))  # noqa: S301 -- a later script's
    assert (one.job_id, one.result(), one.exception()) == ("123", 2.0, None)
    assert [job.job_id for job in jobs] == ["123_0", "123_1", "123_2"]
    assert [jobs[0].result(), jobs[2].result()] == [4.0, 3.0]
    with pytest.raises(ZeroDivisionError) as caught:
        jobs[1].result()
    assert "return a / b" in str(caught.value.__cause__)
    assert isinstance(jobs[1].exception(), ZeroDivisionError)
    with pytest.raises(submit.JobFailedError, match="raise Odd"):
        odd.result()
    modes = {path.stat().st_mode & 0o777 for path in executor.folder.iterdir()}
    assert (modes, executor.folder.stat().st_mode & 0o777) == ({0o600}, 0o700)
    assert executor.map_array(work("divide"), []) == []


def test_a_batch_is_one_array_of_calls_as_they_were(executor: submit.Executor) -> None:
    """Pickled when submitted, sent at the end of the block, and not at all if that raises."""
    many = [4]
    with executor.batch():
        first = executor.submit(sum, many)
        many.append(5)
        rest = executor.map_array(abs, [-1, -2])
        with pytest.raises(submit.SubmitError):
            _ = first.job_id
    with pytest.raises(ZeroDivisionError), executor.batch():
        executor.submit(sum, [1]).folder.joinpath(str(1 // 0))

    assert [job.result() for job in (first, *rest)] == [4, 1, 2]
    assert [job.job_id for job in (first, *rest)] == ["123_0", "123_1", "123_2"]
    assert len(list(executor.folder.glob("*_call.pkl"))) == 3


@pytest.mark.parametrize("name", ["second_time", "Counts"])
def test_a_run_that_asks_to_be_requeued_leaves_no_result(
    executor: submit.Executor,
    bin_: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """By the function's own call, or by ``checkpoint`` of a callable when the signal comes."""
    monkeypatch.setenv("SLURM_DL_SIGNAL", "USR2")
    (bin_ / "squeue.says").write_text("123|PENDING\n")
    call = (work("second_time"), str(tmp_path / "mark")) if name == "second_time" else None
    job = executor.submit(*(call or (work("Counts")(), 0)))
    assert (job.done(), job.state, job.wait(0)) == (False, "PENDING", False)

    argv = json.loads((bin_ / "argv").read_text())
    command = argv[argv.index("--") + 1 :]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env={**env, "SLURM_PROCID": "1"}, check=True)
    assert not job.done()  # rank 0 has the result
    subprocess.run(command, env=env, check=True)

    assert job.result() == ("resumed" if call else 5)


@pytest.mark.parametrize(
    ("said", "state", "done"),
    [
        (("123|RUNNING\n4|FAILED\n", ""), "RUNNING", False),
        (("123|COMPLETING\n", ""), "COMPLETING", False),
        (("123|REQUEUE_HOLD\n", ""), "REQUEUE_HOLD", False),
        (("123|TIMEOUT\n", ""), "TIMEOUT", True),
        (("4|RUNNING\n", "123|CANCELLED by 1000\n"), "CANCELLED", True),
        (("", "123|RUNNING\n"), "RUNNING", False),
        (("", None), "NOT_FOUND", True),
        ((None, "123|COMPLETED\n"), "UNKNOWN", False),
    ],
)
def test_the_state_is_squeues_or_else_sacct_s(
    executor: submit.Executor,
    bin_: Path,
    said: tuple[str | None, str | None],
    state: str,
    *,
    done: bool,
) -> None:
    """None: it fails. A job that is over without a result has failed, and the log is named."""
    for name, says in zip(("squeue", "sacct"), said, strict=True):
        if says is not None:
            (bin_ / f"{name}.says").write_text(says)
    job = executor.submit(work("divide"), 1)
    job.paths.result.unlink()

    assert (job.state, job.done()) == (state, done)
    if done:
        with pytest.raises(submit.JobFailedError, match=rf"{state}.*123\.err"):
            job.result()


def test_slurm_is_asked_once_for_all_jobs(
    executor: submit.Executor, bin_: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most once in `EVERY_S`."""
    monkeypatch.setattr(function_job, "EVERY_S", 1000.0)
    states = "".join(f"123_{task}|RUNNING\n" for task in range(3))
    (bin_ / "squeue").write_text(f"#!/bin/sh\necho >> {bin_}/asked\nprintf '{states}'\n")
    jobs = executor.map_array(abs, range(3))

    assert [job.state for job in jobs * 3].count("RUNNING") >= 7
    assert (bin_ / "asked").read_text() == "\n"


@pytest.mark.parametrize("kind", ["link", "mode", "fifo", "owner"])
def test_a_pickle_that_somebody_else_could_have_written_is_not_loaded(
    executor: submit.Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It would run code: here it would make a file."""
    job = executor.submit(abs, -1)
    path, moved = job.paths.result, tmp_path / "moved"
    if kind in {"link", "fifo"}:
        path.rename(moved)
    if kind == "link":
        path.symlink_to(moved)
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "mode":
        path.chmod(0o620)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)

    with pytest.raises(submit.SubmitError, match="not loaded"):
        job.exception()
    with pytest.raises(submit.SubmitError, match="not loaded"):
        load(path)


def test_what_cannot_be_submitted_says_why(
    executor: submit.Executor, bin_: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by dlsubmit, or never given to it; no call is left behind."""
    (bin_ / "refuses").write_text("dlsubmit: error: no such option --gpuz")
    with pytest.raises(submit.SubmitError, match="--gpuz"):
        executor.submit(abs, 1)
    monkeypatch.setenv("SLURM_DL_DLSUBMIT", "/bin/echo")  # prints something else than an id
    with pytest.raises(submit.SubmitError, match="no job id"):
        executor.submit(abs, 1)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    mine = type("Mine", (), {"__module__": "__main__"})
    monkeypatch.setattr("__main__.Mine", mine, raising=False)  # pickle would take it
    for function, value in ((abs, mine()), (mine, 1), (lambda: 0, 1)):
        with pytest.raises(submit.SubmitError, match="cloudpickle"):
            executor.submit(function, value)
    assert list(executor.folder.iterdir()) == []
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    for folder, why in ((shared, "chmod go-w"), (tmp_path / "50%j", "%")):
        with pytest.raises(submit.SubmitError, match=why):
            submit.Executor(folder)


IMPORTS = """
import sys
before = set(sys.modules)
from slurm_dl import submit
print(*(m for m in set(sys.modules) - before))
"""


@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_it_needs_the_standard_library_alone(version: str) -> None:
    """And no more of slurm_dl than is in the small wheel."""
    done = subprocess.run(
        [pythons.python(version), "-S", "-c", IMPORTS],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    names = {*done.stdout.split()}
    ours = {name for name in names if name.startswith("slurm_dl")}
    assert ours == {"slurm_dl", "slurm_dl.submit", *(f"slurm_dl.submit.{n}" for n in FOR_3_8[2:])}
    assert not {"asyncio", "cloudpickle", "multiprocessing", "numpy"} & names
    for name in FOR_3_8:
        text = (ROOT / "slurm_dl/submit" / f"{name}.py").read_text("utf-8")
        ast.parse(text, feature_version=(3, 8))


def test_the_code_of_the_page_runs(bin_: Path, tmp_path: Path) -> None:
    """Its module, and its script beside it."""
    module, *blocks = [
        x for kind, x in shown.fences(ROOT / "docs/use/python.md") if kind == "python"
    ]
    (tmp_path / "train.py").write_text(module)
    (tmp_path / "script.py").write_text("".join(blocks))

    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["5.0", "[2.5, 5.0, 10.0]", "1000.0 4"]
    assert (bin_ / "argv").exists()
