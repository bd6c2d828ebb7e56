"""Trainings with real frameworks that the daemon gives other sizes on a live Slurm."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from resized import TWO, resizing_schedd, until_holds
from schedd import Schedd

from slurm_dl.job.run_files import PROGRESS_FILE, REQUEST_FILE, RunId, write_mark

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.torch,
    pytest.mark.full("trains with real frameworks"),
    pytest.mark.timeout(900),
]

Needs = Callable[..., None]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ELASTIC = EXAMPLES / "train_elastic.py"
SAMPLES, BATCH, EPOCHS = 4096, 32, 2
"""As in the example."""
BAND = 1e-6
"""Largest difference of final losses: the order of additions differs from size to size."""


@pytest.fixture
def place(
    make_sandbox: Callable[..., Any],
    short_directory: Path,
    framework_python: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Schedd]:
    """A daemon, and users who have activated the frameworks' environment."""
    monkeypatch.setenv("PATH", f"{Path(framework_python).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with resizing_schedd(make_sandbox(TWO), short_directory) as daemon:
        yield daemon


def lines(path: Path) -> list[dict[str, Any]]:
    """Entries of a log, none if it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def final_loss(place: Path) -> float:
    """Loss over all samples after the last step."""
    (end,) = lines(place / "end.jsonl")
    return float(end["loss"])


@pytest.fixture(scope="module")
def losses(
    framework_python: str, framework_needs: Needs, tmp_path_factory: pytest.TempPathFactory
) -> list[float]:
    """Final losses of trainings that have 1, 2 and 4 ranks from start to end."""
    framework_needs("torch")
    found = []
    for ranks in (1, 2, 4):
        place = tmp_path_factory.mktemp("fixed")
        torchrun = str(Path(framework_python).parent / "torchrun")
        argv = [torchrun, "--standalone", f"--nproc-per-node={ranks}", str(ELASTIC)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "SLURM_DL_RUN_DIR": str(place)}
        subprocess.run(argv, cwd=place, env=env, check=True, timeout=120)
        found.append(final_loss(place))
    return found


def until_trains(place: Schedd, log: Path, job: str, run: int) -> None:
    """Wait until that run of the job has made some steps."""
    place.until(
        f"run {run} of {job} to train", lambda: sum(e["run"] == run for e in lines(log)) > 3, 90
    )


def test_the_batch_is_the_same_in_every_size(losses: list[float]) -> None:
    """So the loss is, within the band: what a change of size is measured by."""
    assert max(losses) - min(losses) < BAND, losses


def test_a_batch_that_adapts_goes_on_in_another_size(
    framework_python: str, framework_needs: Needs, tmp_path: Path
) -> None:
    """Stopped soon on one rank, then two: each sample of an epoch once, in ever larger steps."""
    framework_needs("torch")
    write_mark(tmp_path / REQUEST_FILE, RunId(0, 0))
    for run in (0, 1):
        torchrun = str(Path(framework_python).parent / "torchrun")
        options = ["--standalone", f"--nproc-per-node={run + 1}", str(ELASTIC), "--adapt"]
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SLURM_DL_RUN_DIR": str(tmp_path),
            "SLURM_DL_RESTART_COUNT": str(run),
            "SLURM_DL_BATCH": "adapt",
        }
        subprocess.run([torchrun, *options], cwd=tmp_path, env=env, check=bool(run), timeout=120)
    entries = [e for path in tmp_path.glob("seen.*.jsonl") for e in lines(path)]
    assert {(e["run"], e["ranks"]) for e in entries} == {(0, 1), (1, 2)}
    for epoch in range(EPOCHS):
        rows = Counter(r for e in entries if e["seen"] // SAMPLES == epoch for r in e["rows"])
        assert rows == Counter(range(SAMPLES)), epoch
    told = json.loads((tmp_path / PROGRESS_FILE).read_text())
    gpus, local, passes, batch, *limits = told["part"]
    assert (gpus * local * passes, gpus, limits) == (batch, 2, [BATCH, 512, 1, 32])
    assert BATCH < batch <= 512
    assert told["step"] == told["total"] == len({(e["run"], e["seen"]) for e in entries})
    assert final_loss(tmp_path) < 0.3


def test_a_training_that_changes_size_is_that_of_one_size(
    losses: list[float], place: Schedd
) -> None:
    """1, 2, 4 and 2 ranks: each sample of an epoch once, and the loss of any fixed size."""
    flags = [place.home / f"end{i}" for i in range(4)]
    two, one = (place.toy(g, 1, "--until", str(f)) for g, f in zip((2, 1), flags, strict=False))
    for other in (two, one):
        place.until_state(other, "RUNNING", within_s=60)
    options = ["--sizes", "1,2,2x2", "--time", "60", "--launcher", "torchrun"]
    pace = ["--step-s", "1", "--until", str(flags[3])]
    job = place.submit(1, str(ELASTIC), *pace, options=options)
    home = place.home / "slurm_dl_runs" / job
    sizes = [(1, 1), (1, 2), (2, 4), (1, 2)]
    for run, size in enumerate(sizes):
        until_holds(place, job, *size)
        until_trains(place, home / "seen.0.jsonl", job, run)
        if run < 2:
            flags[1 - run].touch()
        elif run == 2:
            place.toy(2, 1, "--until", str(flags[2]), options=["--no-preempt"])
    flags[3].touch()
    place.until_state(job, "COMPLETED", within_s=90)

    entries = [e for path in home.glob("seen.*.jsonl") for e in lines(path)]
    assert {(e["run"], e["ranks"]) for e in entries} == {(r, g) for r, (_, g) in enumerate(sizes)}
    for epoch in range(EPOCHS):
        rows = Counter(r for e in entries if e["seen"] // SAMPLES == epoch for r in e["rows"])
        assert rows == Counter(range(SAMPLES)), epoch
    runs = {e["seen"]: e["run"] for e in entries}
    assert sorted(runs) == list(range(0, EPOCHS * SAMPLES, BATCH))
    assert [runs[seen] for seen in sorted(runs)] == sorted(runs.values())
    assert runs[SAMPLES - BATCH] == len(sizes) - 1, "an epoch has been in all sizes"
    assert all(abs(final_loss(home) - loss) < BAND for loss in losses), (final_loss(home), losses)


@pytest.mark.parametrize(
    ("command", "modules"),
    [
        (["huggingface_train.py", "--batch", "8"], ("transformers", "accelerate")),
        (["lightning_train.py", "--devices", "0"], ("lightning",)),
    ],
    ids=["huggingface", "lightning"],
)
def test_a_framework_goes_on_from_its_checkpoint_in_another_size(
    command: list[str],
    modules: tuple[str, ...],
    place: Schedd,
    framework_python: str,
    framework_needs: Needs,
) -> None:
    """One rank, then two: each step once, and as many steps as it was to have."""
    framework_needs(*modules)
    free, kept = (place.home / name for name in ("free", "kept"))
    for gpus, until in ((2, kept), (1, free)):
        place.until_state(place.toy(gpus, 1, "--until", str(until)), "RUNNING")
    script, *more = command
    argv = [str(EXAMPLES / "frameworks" / script), *more, "--steps", "60", "--step-s", "0.5"]
    launcher = "torchrun"
    if script == "lightning_train.py":  # Names of a sandbox's nodes do not resolve.
        launcher, argv = "srun", ["env", "MASTER_ADDR=127.0.0.1", framework_python, *argv]
    options = ["--sizes", "1,2", "--time", "60", "--launcher", launcher]
    job = place.submit(1, *argv, options=options)
    home = place.home / "slurm_dl_runs" / job
    until_holds(place, job, 1, 1)
    until_trains(place, home / "loss.jsonl", job, 0)
    free.touch()
    until_holds(place, job, 1, 2)
    place.until_state(job, "COMPLETED", within_s=120)

    first, second = (lines(home / name) for name in ("loss.jsonl", "loss.1.jsonl"))
    assert [e["step"] for e in first] == list(range(1, 61))
    assert [e["run"] for e in first] == sorted(e["run"] for e in first)
    assert [e["step"] for e in second] == [e["step"] for e in first if e["run"] == 1]
    assert {e["run"] for e in first} == {0, 1}
    assert {e["run"] for e in second} == {1}
