"""Jobs whose batch adapts on a live Slurm: who gains by a larger batch gets the GPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from conftest import MakeSandbox
from resized import SETTINGS, held
from schedd import Schedd, schedd_in

from slurm_dl.sandbox.spec import SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

ONE: Final = SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=3, gpu_type="a100"),), nodes_per_leaf=0)

TRAINING: Final = """
import os, sys, time
from slurm_dl import job
from slurm_dl.job import elastic

gpus, noise = int(os.environ["SLURM_GPUS_ON_NODE"]), float(sys.argv[1])
for step in range(10**6):
    # A pass takes as long whatever its batch: two divisions in turn show that.
    most_local = (64, 16)[step // 12 % 2]
    part = elastic.split(64, gpus, most_local=most_local, most=1024, noise=noise)
    part = part._replace(most_local=64)
    time.sleep(0.1 * part.passes)
    job.report(step, 10**6, part=part, noise=noise)
    if job.should_checkpoint():
        job.checkpoint_saved(__file__)
        job.exit_for_requeue()
"""


@pytest.fixture
def place(make_sandbox: MakeSandbox, short_directory: Path) -> Iterator[Schedd]:
    with schedd_in(make_sandbox(ONE), short_directory) as daemon:
        yield daemon


@pytest.mark.full("two minutes")
def test_who_gains_by_a_larger_batch_gets_the_gpus(place: Schedd) -> None:
    """One GPU is left. By their reports the second job has noise to average out, the first none."""
    settings = SETTINGS | {"resizing": {"steadiness": 0.1, "cooldown_s": 3, "expand": False}}
    place.configure(policy={"order": "pollux", "parameters": {"quantum_s": 5.0}}, **settings)
    place.start()
    script, often = place.home / "training.py", place.home / "often.sh"
    script.write_text(TRAINING, encoding="ascii")
    often.write_text("export SLURM_DL_SAVED_EVERY_S=2\n", encoding="ascii")
    options = ["--sizes", "1,2", "--batch", "adapt", "--time", "60", "--setup", str(often)]
    plain, noisy = (
        place.submit(1, sys.executable, str(script), noise, options=options)
        for noise in ("0", "1e6")
    )

    place.until("two and one", lambda: held(place, noisy) == (1, 2), 300)
    looked = place.cycles()
    place.until("some more looks", lambda: place.cycles() > looked + 5, 60)
    assert (held(place, noisy), held(place, plain)) == ((1, 2), (1, 1))
    assert "by its own reports" in place.ask("dlqueue", "why", noisy).stdout
