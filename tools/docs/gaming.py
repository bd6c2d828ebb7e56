"""The table of docs/evaluate/gaming.md, from what ``dlsim game --json FILE`` wrote.

``python -m tools.docs.gaming FILE...`` writes it: two columns for each file, policy and load, in
their order. A file is called what its name says, so ``before.json after.json`` stand side by side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slurm_dl.cli.dlsim.game import spread
from slurm_dl.experiments.game import Spread
from slurm_dl.experiments.game_strategies import BASES, STRATEGIES
from tools.docs.comparison import DOCS
from tools.docs.page_parts import table_row

PAGE: Final = DOCS / "gaming.md"
BEGIN: Final = "<!-- dlsim game -->\n"
END: Final = "<!-- end of dlsim game -->\n"

Figure = Mapping[str, float | None]


def _cell(figure: Figure) -> str:
    values = {name: float("nan") if at is None else at for name, at in figure.items()}
    return spread(Spread(**values))


def table(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Lines of the table.

    Args:
        files: What ``--json`` wrote, by what the table is to call it.
    """
    at: dict[tuple[str, str, float], dict[str, Mapping[str, Any]]] = {}
    for name, told in files.items():
        for row in told["rows"]:
            at.setdefault((name, row["policy"], row["load"]), {})[row["strategy"]] = row
    loads = {load for _, _, load in at}
    heads = []
    for name, policy, load in at:
        words = (f"`{policy}`", *[f"load {load:g}"] * (len(loads) > 1), *[name] * (len(files) > 1))
        heads += [f"{', '.join(words)}: gain", "others lose"]
    yield table_row("strategy", *heads)
    yield table_row("---", *["---"] * len(heads)).replace(" ", "")
    for strategy, about in STRATEGIES.items():
        if strategy in BASES or not any(strategy in rows for rows in at.values()):
            continue
        cells = []
        for rows in at.values():
            row = rows.get(strategy)
            cells += ["-", "-"] if row is None else [_cell(row["gain"]), _cell(row["loss"])]
        yield table_row(about.title, *cells)


def main(paths: Sequence[str]) -> None:
    """Write the table of the page from these files."""
    files = {Path(path).stem: json.loads(Path(path).read_text("utf-8")) for path in paths}
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    made = "".join(f"{line}\n" for line in table(files))
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
