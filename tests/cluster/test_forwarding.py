"""The checkpoint signal reaches trainings behind srun and shells, on a real Slurm."""

from __future__ import annotations

import sys

import pytest
from schedd import Schedd, running_schedd

pytestmark = pytest.mark.slurm

TRAIN = """import os, pathlib, signal, sys, time
name = f"{sys.argv[1]}-{os.environ['SLURM_PROCID']}"
def save(*_):
    with open(f"saved-{name}", "a") as out:
        out.write("saved\\n")
    sys.exit(75)
signal.signal(signal.SIGUSR1, save)
pathlib.Path(f"up-{name}").touch()
time.sleep(600)
"""
PYTHON = f"{sys.executable} train.py"

place = running_schedd()


def test_trainings_behind_srun_save_and_nothing_follows(place: Schedd) -> None:
    """A task that is a shell, one that is the training, and two tasks on two nodes."""
    (place.home / "train.py").write_text(TRAIN)
    scripts = {
        "bare": (2, 1, f"srun -n1 {PYTHON} bare; code=$?; touch lives-bare; exit $code"),
        "wrapped": (
            2,
            1,
            f"srun -n1 bash -c '{PYTHON} wrapped; code=$?; touch lives-wrapped; exit $code'",
        ),
        "spread": (8, 2, f"srun -n2 {PYTHON} spread; code=$?; touch lives-spread; exit $code"),
    }
    jobs = {}
    for name, (gpus, ranks, script) in scripts.items():
        jobs[name] = place.submit(gpus, "bash", "-c", script)
        up = [place.home / f"up-{name}-{rank}" for rank in range(ranks)]
        place.until(f"{name} to train", lambda up=up: all(path.exists() for path in up))
    place.box.run(["scancel", "--batch", "--signal=USR1", *jobs.values()])

    place.until("the acknowledgements", lambda: _acknowledged(place) >= set(jobs.values()))
    for name, (_, ranks, _) in scripts.items():
        assert not (place.home / f"lives-{name}").exists()
        for rank in range(ranks):
            assert (place.home / f"saved-{name}-{rank}").read_text() == "saved\n"
    logs = {
        name: "".join(p.read_text() for p in place.home.glob(f"*{job}*.out"))
        for name, job in jobs.items()
    }
    assert "sent USR1 to srun" in logs["spread"], logs
    assert "sent USR1 to python" in logs["bare"], logs


def _acknowledged(place: Schedd) -> set[str]:
    lines = place.box.run(["squeue", "-ho", "%A %k"]).stdout.splitlines()
    return {line.split()[0] for line in lines if '"ack":0' in line.replace(" ", "")}
