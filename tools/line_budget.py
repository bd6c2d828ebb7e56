"""Lines of Python per package and per test directory, held against `line_budget.json`.

``python -m tools.line_budget`` fails if one is more than 3 % above its budget, or if more
docstrings than allowed begin with a question word; ``--lower`` lowers the budgets to the present
numbers where those are fewer.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
BUDGET: Final = Path(__file__).with_suffix(".json")
MOST_ABOVE: Final = 0.03
"""Share of a budget by which the lines may exceed it."""

QUESTIONS: Final = "docstrings that begin with a question word"
_QUESTION: Final = re.compile(
    r'(?:\A|:(?:  #.*)?\n) *"""(?:What|Who|Whose|Whom|How|Where|When|Which|Why|Whether)\b'
)


def lines_of(root: Path) -> Counter[str]:
    """Lines in each directory directly below ``slurm_dl`` and ``tests``, with all that is in it."""
    count: Counter[str] = Counter()
    for top in ("slurm_dl", "tests"):
        for path in (root / top).rglob("*.py"):
            below = path.relative_to(root).parts
            count["/".join(below[: min(2, len(below) - 1)])] += path.read_bytes().count(b"\n")
    return count


def questions_of(root: Path) -> int:
    """Docstrings of modules, classes and functions that begin with a question word."""
    paths = (path for top in ("slurm_dl", "tests", "tools") for path in (root / top).rglob("*.py"))
    return sum(len(_QUESTION.findall(path.read_text("utf-8"))) for path in paths)


def problems(lines: Mapping[str, int], budget: Mapping[str, int]) -> Iterable[str]:
    """Lines above their budget or without one, and question words above theirs."""
    for name, count in sorted(lines.items()):
        allowed = budget.get(name)
        if name == QUESTIONS:
            if count > (allowed or 0):
                yield f"{count:,} {name}, {allowed or 0:,} are allowed: begin with the object"
        elif allowed is None:
            yield f"{name}: {count:,} lines and no budget; add it to {BUDGET.relative_to(ROOT)}"
        elif count > allowed * (1 + MOST_ABOVE):
            yield (
                f"{name}: {count:,} lines, {count / allowed - 1:.1%} above its budget of "
                f"{allowed:,}: delete or merge code, or raise the budget in "
                f"{BUDGET.relative_to(ROOT)} and say why in the commit"
            )


def main() -> int:
    """Check the budgets."""
    parser = argparse.ArgumentParser(prog="python -m tools.line_budget", description=__doc__)
    parser.add_argument("--lower", action="store_true", help="write lower budgets where it can")
    lower = parser.parse_args().lower
    lines, budget = lines_of(ROOT), json.loads(BUDGET.read_text("utf-8"))
    lines[QUESTIONS] = questions_of(ROOT)
    found = list(problems(lines, budget))
    for text in found:
        sys.stderr.write(f"{text}\n")
    if not lower and lines[QUESTIONS] < budget.get(QUESTIONS, 0):
        sys.stderr.write(f"{lines[QUESTIONS]:,} {QUESTIONS}: lower their budget with --lower\n")
    if lower:
        kept = {name: min(budget[name], count) for name, count in lines.items() if name in budget}
        BUDGET.write_text(f"{json.dumps(kept, indent=2, sort_keys=True)}\n", "utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
