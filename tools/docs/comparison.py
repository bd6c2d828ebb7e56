"""Tables of docs/evaluate, from the commands that stand above them.

``python -m tools.docs.comparison [PAGE]`` runs each ``dlsim compare`` of the pages and writes what
it found into the table below it: half a minute for policies-compared.md, seven for elastic.md. A
test compares them.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slurm_dl.cli.dlsim.experiment_commands import compare_command

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs/evaluate"
PICTURE: Final = ROOT / "docs/img/policies-60-job.png"

Row = tuple[str, ...]
Found = Mapping[tuple[str, str], Mapping[str, float]]
"""Figures by policy and costs."""

_BLOCK: Final = re.compile(r"```(?:sh|console)\n(?:\$ )?(dlsim compare .*?)\n```", re.DOTALL)
_ROWS: Final = re.compile(r"(?:^\| `\w+` \|.*\n)+", re.MULTILINE)


def commands(page: str) -> list[str]:
    """The commands of the page: all policies on one trace, and Gavel's on its own."""
    return [match[1] for match in _BLOCK.finditer(page)]


def measured(command: str, directory: Path) -> Found:
    """The figures that a command of the page finds; its picture is left in *directory*."""
    json_path = directory / "compared.json"
    argv = shlex.split(command.replace("\\\n", " "))[2:]
    for option, path in (("--json", json_path), ("--plot", directory / "picture.png")):
        if option in argv:
            argv[argv.index(option) + 1] = str(path)
    argv += [] if "--json" in argv else ["--json", str(json_path)]
    argv = [str(ROOT / word) if word.startswith("traces/") else word for word in argv]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        compare_command.main([*argv, "--quiet"], standalone_mode=False)
    rows: Sequence[Any] = json.loads(json_path.read_text("utf-8"))["rows"]
    return {
        (row["policy"], row["costs"]): {
            name: figure["value"] for name, figure in row["figures"].items()
        }
        for row in rows
    }


def of_all(found: Found) -> Iterator[Row]:
    """A row for each policy, the least mean JCT without costs first."""
    names = sorted({policy for policy, _ in found})
    for policy in sorted(names, key=lambda name: found[name, "none"]["avg_jct_s"]):
        ideal, slurm = found[policy, "none"], found[policy, "slurm"]
        yield (
            f"`{policy}`",
            *(f"{ideal[name] / 60:.1f}" for name in ("avg_jct_s", "p95_jct_s", "p99_jct_s")),
            f"{ideal['makespan_s'] / 60:.1f}",
            f"{100 * ideal['utilisation_frac']:.0f}%",
            f"{ideal['preemptions']:.0f}",
            f"{ideal['max_rho']:.2f}",
            *(f"{slurm[name] / 60:.1f}" for name in ("avg_jct_s", "p95_jct_s")),
            f"{slurm['preemptions']:.0f}",
            f"{slurm['gpu_s_lost'] / 3600:.2f}",
            f"{slurm['max_rho']:.2f}",
        )


def of_gavel(found: Found) -> Iterator[Row]:
    """A row for each policy whose results were published."""
    data = ROOT / "tests/data/oracles/gavel_max_min_fairness.json"
    published = json.loads(data.read_text("utf-8"))["published"]
    for (policy, _), figures in found.items():
        name = policy.partition(":")[0]
        theirs = published[name]
        each = (
            figures["avg_jct_s"], theirs["mean_jct_s"], figures["makespan_s"], theirs["makespan_s"]
        )  # fmt: skip
        yield (f"`{name}`", *(f"{figure:,.0f}" for figure in each))


def of_elastic(found: Found) -> Iterator[Row]:
    """A row for each policy, in the order of the command."""
    costs = list(dict.fromkeys(costs for _, costs in found))
    for policy in dict.fromkeys(policy for policy, _ in found):
        cells = []
        for cost in costs:
            figures = found[policy, cost]
            cells += [f"{figures[name] / 3600:.2f}" for name in ("avg_jct_s", "p99_jct_s")]
            cells.append(f"{figures['preemptions']:.0f}")
        yield (f"`{policy}`", *cells)


TABLES: Final[Mapping[str, tuple[Callable[[Found], Iterator[Row]], ...]]] = {
    "policies-compared.md": (of_all, of_gavel),
    "elastic.md": (of_elastic,) * 6,
}
"""By page, in the order of its commands."""


def told(page: str) -> list[list[Row]]:
    """The rows of the page below each command."""
    tables = [_ROWS.search(part) for part in _BLOCK.split(page)[2::2]]
    return [
        [tuple(line.strip("| ").split(" | ")) for line in table[0].splitlines()]
        for table in tables
        if table
    ]


def main(pages: Sequence[str]) -> None:
    """Write the tables of these pages, or of all, and the picture."""
    for name in pages or TABLES:
        page = (DOCS / name).read_text("utf-8")
        for command, rows_of in zip(commands(page), TABLES[name], strict=True):
            with tempfile.TemporaryDirectory() as made:
                found = measured(command, Path(made))
                picture = Path(made) / "picture.png"
                if picture.exists():
                    PICTURE.write_bytes(picture.read_bytes())
            rows = "".join(f"| {' | '.join(row)} |\n" for row in rows_of(found))
            before, after = page.split(command)
            stale = _ROWS.search(after)
            assert stale is not None  # noqa: S101 - each command has its table
            page = before + command + after.replace(stale[0], rows, 1)
        (DOCS / name).write_text(page, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
