"""The engine knows no policy by its name: what a new one needs is said by the policy itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import slurm_dl.engine
from slurm_dl.policies import registry

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
