"""The callback for Hugging Face's Trainer with the ways to save that could undo what it saved."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.full("trains with real frameworks"),
    pytest.mark.timeout(900),
]

Told = dict[str, Any]
ROOT = Path(__file__).parents[2]
STEPS = list(range(1, 9))
ONLY_BEST: dict[str, object] = {
    "load_best_model_at_end": True,
    "save_total_limit": 1,
    "metric_for_best_model": "loss",
}
CASES: dict[str, dict[str, object]] = {
    "best and one": {
        "asked": 5,
        "save_strategy": "steps",
        "save_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        **ONLY_BEST,
    },
    "an evaluation is due": {
        "asked": 4,
        "save_strategy": "best",
        "eval_strategy": "steps",
        "eval_steps": 4,
        "metric_for_best_model": "loss",
    },
    "best at each step": {
        "asked": 5,
        "save_strategy": "best",
        "eval_strategy": "steps",
        "eval_steps": 1,
        "metric_for_best_model": "loss",
    },
    "end of an epoch": {
        "asked": 4,
        "save_strategy": "epoch",
        "eval_strategy": "epoch",
        **ONLY_BEST,
    },
    "an epoch's end by steps": {
        "asked": 4,
        "save_strategy": "steps",
        "save_steps": 4,
        "eval_strategy": "epoch",
        "metric_for_best_model": "loss",
    },
    "within an epoch": {
        "asked": 6,
        "save_strategy": "epoch",
        "eval_strategy": "epoch",
        **ONLY_BEST,
    },
    "the last step": {"asked": 8, "save_strategy": "no"},
    "the last step is saved": {"asked": 8, "save_strategy": "steps", "save_steps": 8},
}


@pytest.fixture(scope="module")
def told(
    framework_python: str,
    framework_needs: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Told]:
    """Each case, trained to its end, by its name."""
    framework_needs("transformers", "accelerate")
    program = Path(__file__).parent / "trainings.py"
    done = subprocess.run(
        [
            *(framework_python, str(program), json.dumps(list(CASES.values()))),
            str(tmp_path_factory.mktemp("trainings")),
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"statuses')]
    assert len(lines) == len(CASES), (done.stdout, done.stderr[-3000:])
    return dict(zip(CASES, lines, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_each_step_is_trained_once(told: dict[str, Told], case: str) -> None:
    """Whatever the Trainer keeps, deletes or evaluates around the stop."""
    runs = 1 if CASES[case]["asked"] == STEPS[-1] else 2
    saved = told[case]["saved"]

    assert told[case]["statuses"] == [75, 0][-runs:]
    assert told[case]["steps"] == STEPS
    # To write one anew could tear what is recorded: only with an evaluation that came later.
    assert len(saved) == len(set(saved)) + (case == "an epoch's end by steps"), saved


@pytest.mark.parametrize(
    ("case", "evaluated"),
    [
        ("best and one", [2, 4, 6, 8]),
        ("an evaluation is due", [4, 8]),
        ("best at each step", [1, 2, 3, 4, 5, 7, 8]),
        ("end of an epoch", [4, 8]),
        ("an epoch's end by steps", [4, 8]),
        ("within an epoch", [4, 8]),
    ],
)
def test_evaluations_are_neither_left_out_nor_added(
    told: dict[str, Told], case: str, evaluated: list[int]
) -> None:
    """But for one: where each evaluation overrules the request, a later one gives way."""
    assert told[case]["evaluated"] == evaluated


@pytest.mark.parametrize(
    ("case", "left"),
    [
        ("best and one", ["checkpoint-2"]),
        ("end of an epoch", ["checkpoint-4"]),
        ("within an epoch", ["checkpoint-4"]),
        ("best at each step", ["checkpoint-1", "checkpoint-6"]),
    ],
)
def test_at_the_real_end_the_trainer_keeps_what_it_was_told_to(
    told: dict[str, Told], case: str, left: list[str]
) -> None:
    """The first is the best, also after a stop: what we hold back ends with the run."""
    assert set(left) <= set(told[case]["left"])
    if CASES[case].get("save_total_limit"):
        assert told[case]["left"] == left


def test_other_callbacks_see_the_end_of_each_run(told: dict[str, Told]) -> None:
    """Reporters write out there what they still hold."""
    assert told["best and one"]["ends"] == [5, 8]
