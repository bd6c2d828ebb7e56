"""What holds for the files of the project: citation, line budgets, neutral engine, help, tries."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import effort
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import slurm_dl.engine
from slurm_dl import __version__
from slurm_dl.cli.dlctl.command import dlctl
from slurm_dl.cli.dlsim.command import dlsim
from slurm_dl.policies import registry
from tools import line_budget

ROOT = Path(__file__).parents[2]


def test_the_citation_agrees_with_the_package() -> None:
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert told["version"] == __version__
    assert (told["license"], told["keywords"]) == (project["license"], project["keywords"])
    assert {"cff-version", "message", "title", "authors"} <= set(told)


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


ENGINE = Path(slurm_dl.engine.__file__).parent
WORDS_OF_THE_FIELD = {"las", "fifo", "gittins"}
"""Names that are also words; where they stand in a sentence they name no policy."""


def named_in(text: str) -> set[str]:
    """Names of policies, or of their classes, that stand in *text* as words."""
    names = {
        word
        for name, policy in registry.POLICIES.items()
        for word in (name, policy.__name__)
        if word.lower() not in WORDS_OF_THE_FIELD
    }
    return {word for word in names if re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", text)}


@pytest.mark.parametrize("path", sorted(ENGINE.glob("**/*.py")), ids=lambda p: p.name)
def test_no_line_of_the_engine_names_a_policy(path: Path) -> None:
    """Nor does it import one, whatever its name."""
    text = path.read_text(encoding="utf-8")

    assert named_in(text) == set()
    imported = set(re.findall(r"from slurm_dl\.policies(?:\.(\w+))? import", text))
    assert imported <= {"base", "arithmetic"}


def test_a_name_would_be_found() -> None:
    """In code, in a string and in a comment."""
    assert named_in('if policy.name == "discrete_las":') == {"discrete_las"}
    assert named_in("isinstance(policy, Srtf)") == {"Srtf"}
    assert named_in("# only for srsf") == {"srsf"}
    assert named_in("the policy's order") == set()


@pytest.mark.parametrize("group", [dlctl, dlsim], ids=["dlctl", "dlsim"])
def test_help_lists_what_each_command_says_of_itself(group: click.Group) -> None:
    """Also of those whose modules are not imported for it."""
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    own = [
        f"{name} {command.get_short_help_str(200)}"
        for name, command in commands.items()
        if command is not None and not command.hidden
    ]

    listed = CliRunner().invoke(group, ["--help"], terminal_width=200).output

    shown = [" ".join(line.split()) for line in listed.partition("Commands:")[2].splitlines()]
    assert [line for line in shown if line] == own


@pytest.mark.parametrize(("times", "examples"), [(0.25, 10), (1, 40), (3, 120), (0.001, 1)])
def test_the_number_of_examples_is_multiplied(times: float, examples: int) -> None:
    """At least one is left, and the other settings are as they were."""
    tried: list[int] = []

    @settings(max_examples=40, database=None, phases=[Phase.generate])
    @given(st.integers())
    def holds(number: int) -> None:
        tried.append(number)

    effort.tried_more(holds, times)
    holds()

    assert len(tried) == examples


def test_it_still_fails_where_it_is_wrong() -> None:
    """Few examples are enough for what is wrong everywhere."""

    @settings(max_examples=40, database=None)
    @given(st.integers())
    def fails(number: int) -> None:
        assert number != number  # noqa: PLR0124

    effort.tried_more(fails, 0.1)

    with pytest.raises(AssertionError):
        fails()


def test_what_is_no_property_is_left_alone() -> None:
    """A plain test is run once, however many examples are asked for."""

    def plain() -> None:
        """Nothing is asked of it."""

    effort.tried_more(plain, 10)

    assert not vars(plain)
