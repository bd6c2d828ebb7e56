from __future__ import annotations

from pathlib import Path

import pytest

from tools import line_budget


@pytest.mark.parametrize(
    ("budget", "above"),
    [
        ({"slurm_dl": 1, "slurm_dl/engine": 100, "tests/unit": 2}, []),
        ({"slurm_dl": 1, "slurm_dl/engine": 101, "tests/unit": 2}, []),
        ({"slurm_dl": 1, "slurm_dl/engine": 100, "tests/unit": 1}, ["tests/unit"]),
        ({"slurm_dl": 1, "slurm_dl/engine": 99, "tests/unit": 2}, ["slurm_dl/engine"]),
        ({"slurm_dl": 1, "tests/unit": 2}, ["slurm_dl/engine"]),
    ],
)
def test_more_than_three_percent_above_a_budget_is_told(
    budget: dict[str, int], above: list[str], tmp_path: Path
) -> None:
    """102 lines in a package with a package in it."""
    for name, lines in {
        "slurm_dl/json_types.py": 1,
        "slurm_dl/engine/intent.py": 60,
        "slurm_dl/engine/placing/steering.py": 42,
        "slurm_dl/engine/page.js": 500,
        "tests/unit/test_intent.py": 2,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * lines)

    found = line_budget.problems(line_budget.lines_of(tmp_path), budget)

    assert [text.partition(":")[0] for text in found] == above


def test_one_question_word_above_the_budget_is_told(tmp_path: Path) -> None:
    """Two docstrings begin with one; a string that is none does not count."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/a.py").write_text(
        '"""What a."""\nasync def f():\n    """Whether b."""\n    return "How c."\n'
    )

    lines = {line_budget.QUESTIONS: line_budget.questions_of(tmp_path)}

    for allowed, above in ((1, True), (2, False), (3, False)):
        found = line_budget.problems(lines, {line_budget.QUESTIONS: allowed})
        assert bool(list(found)) == above
