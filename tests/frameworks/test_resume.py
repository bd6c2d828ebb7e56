"""Each framework's example, preempted on a real Slurm: nothing lost, and the same training.

What is compared is the loss of every step with that of a training which nobody disturbed: it
depends on weights, optimiser, data order and random states, so equal curves mean that all came
back.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from patience import eventually

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.torch,
    pytest.mark.full("trains with real frameworks"),
    pytest.mark.timeout(900),
]

Lab = Any
Job = Any
"""The classes Frameworks and Trained in conftest.py, which cannot be imported."""

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
STEPS = 60
PACE = ["--steps", str(STEPS), "--step-s", "0.1"]


@pytest.mark.parametrize(
    ("script", "modules"),
    [
        ("../train_toy.py", ()),
        ("jax_train.py", ("jax", "optax")),
        ("orbax_train.py", ("jax", "optax", "orbax")),
        ("lightning_train.py", ("lightning",)),
        ("huggingface_train.py", ("transformers", "accelerate")),
    ],
    ids=["plain", "jax", "orbax", "lightning", "huggingface"],
)
def test_one_process_goes_on_exactly_where_it_stopped(
    lab: Lab, script: str, modules: tuple[str, ...]
) -> None:
    """No step twice, none left out, and the losses of an undisturbed training to the last bit."""
    lab.needs(*modules)
    command = [lab.python, str(EXAMPLES / script), "--steps", str(STEPS)]
    expected = lab.alone([*command, "--step-s", "0"])
    job = lab.submit(1, *command, "--step-s", "0.1")
    _preempted_once(job)

    assert [e["step"] for e in job.losses] == list(range(1, STEPS + 1))
    assert _curve(job.losses) == _curve(expected)


def test_submitit_requeues_itself_and_repeats_at_most_one_step(lab: Lab) -> None:
    """USR2 to its steps, as its contract says; it pickles the last whole step."""
    lab.needs("submitit")
    folder = lab.home / "runs"
    script = [lab.python, str(EXAMPLES / "submitit_train.py"), "--folder", str(folder)]
    name = lab.run(*script, *PACE).split()[-1]
    job = lab.trained(name, folder)
    job.until_trains(0)
    contract = {"v": 1, "sig": "USR2", "to": "steps", "grace_s": 60, "by": "job", "until": 0.8}
    assert job.contract() == contract
    job.signal("USR2", "steps")
    job.until_trains(1)
    job.until_completed()

    _covers(job.losses, repeated=1)


def test_hydras_tasks_repeat_no_more_than_since_their_checkpoint(lab: Lab) -> None:
    """A sweep of two: each is preempted by itself, and goes on from its own checkpoint."""
    lab.needs("hydra", "hydra_plugins.hydra_submitit_launcher", "submitit")
    script = [lab.python, str(EXAMPLES / "hydra_train.py"), "--multirun", "rate=0.05,0.1"]
    folder = lab.home / "sweep"
    with lab.background(*script, f"folder={folder}", f"steps={STEPS}", "step_s=0.2"):
        tasks = eventually(lambda: lab.tasks(2), 60, what="the two tasks of the sweep")
        jobs = [
            lab.trained(task, folder / f"rate-{rate}")
            for task, rate in zip(tasks, ("0.05", "0.1"), strict=True)
        ]
        jobs[0].until_trains(0)
        jobs[1].until_trains(0)
        jobs[0].signal("USR2", "steps")
        jobs[0].until_trains(1)
        for job in jobs:
            job.until_completed()

    _covers(jobs[0].losses, repeated=5)
    _covers(jobs[1].losses, repeated=0)
    assert {e["run"] for e in jobs[1].losses} == {0}


def _preempted_once(job: Job) -> None:
    job.until_trains(0)
    job.preempt(0)
    job.until_trains(1)
    job.until_completed()
    assert job.now()[1].restarts == 1


def _curve(entries: list[dict[str, float]]) -> list[float]:
    return [entry["loss"] for entry in entries]


def _covers(entries: list[dict[str, float]], *, repeated: int) -> None:
    """Every step was trained; those that were trained again are few and came out the same."""
    by_step: dict[float, set[float]] = {}
    for entry in entries:
        by_step.setdefault(entry["step"], set()).add(entry["loss"])
    assert sorted(by_step) == list(range(1, STEPS + 1))
    assert all(len(found) == 1 for found in by_step.values()), json.dumps(entries)
    again = Counter(entry["step"] for entry in entries)
    assert sum(times - 1 for times in again.values()) <= repeated
